"""Plans are part of the contract: every statement prepares on a real server, and the hot ones stay on their indexes."""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import psycopg
import pytest
from support.jobs import Hand, Tables, completed, ended, installed

from scheduler._connect import Connection, Database
from scheduler._lanes import Found, Lanes
from scheduler._sql import Statements
from scheduler.console.embedded import Postgres

BATCH = 20
HOT = ("job", "attempt")
TASKS = {"work": 30.0, "rare": 30.0}


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("sql_plans")
    postgres.drop_database("sql_plans")


@pytest.fixture(scope="module")
def tables(database: str) -> Iterator[Tables]:
    with installed(database) as (_, tables):
        for table in HOT:
            tables.rows(f"alter table {{s}}.{table} set (autovacuum_enabled = off)")
        yield tables


@pytest.fixture(scope="module")
def full(tables: Tables) -> Tables:
    """Two hundred thousand jobs: finished, for later, of tasks that no worker here knows, held by others, and due."""
    kinds = (
        ("work", "completed", "-1 day", 140_000),
        ("work", "ready", "1 day", 20_000),
        ("foreign", "ready", "-1 hour", 30_000),
        ("foreign", "leased", "-1 hour", 5_000),
        ("work", "ready", "-1 minute", 5_000),
    )
    for task, status, due, count in kinds:
        tables.rows(
            "insert into {s}.job (queue, task, args, priority, due_at, status, max_attempts,"
            " created_at, attempt, owner, token, lineage, claimed_at, lease_until)"
            " select 'default', %(task)s, '{}', i %% 3, now() + %(due)s::interval + i * interval '1 ms', %(status)s, 5,"
            " now(), 1, 'someone', i, 'line', now(), now() + interval '1 hour' from generate_series(1, %(count)s) i",
            task=task,
            status=status,
            due=due,
            count=count,
        )
    tables.rows(
        "insert into {s}.attempt select id, token, 'line', 1, 'someone', now(), now(), 'completed'"
        " from {s}.job where status = 'completed'"
    )
    return tables


@pytest.fixture
def hand(database: str) -> Iterator[Hand]:
    one = Hand(database, TASKS)
    yield one
    one.close()


# -- every statement


def statements() -> list[str]:
    names = [entry.name for entry in files("scheduler").joinpath("sql").iterdir() if entry.name.endswith(".sql")]
    return sorted(name.removesuffix(".sql") for name in names)


def server_side(text: str) -> tuple[str, int]:
    """The statement with the server's own parameters, and how many there are."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", text)))
    text = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", text)
    return text.replace("%%", "%"), len(names)


@pytest.mark.parametrize("name", statements())
def test_every_statement_prepares_and_explains_on_a_real_server(tables: Tables, name: str) -> None:
    ours = Statements("fencing")
    text = ours.claim(guarded="guarded" in name) if name.startswith("claim") else ours[name]
    statement, parameters = server_side(text)
    with Database(tables.dsn).connect("claim") as connection:
        connection.execute(f"prepare it as {statement}".encode(), prepare=False)
        arguments = f"({', '.join(['null'] * parameters)})" if parameters else ""
        assert connection.execute(f"explain execute it{arguments}".encode(), prepare=False).fetchall()


@pytest.mark.parametrize("name", statements())
def test_every_statement_says_what_its_rows_mean_what_it_locks_and_which_index_it_needs(name: str) -> None:
    text = files("scheduler").joinpath("sql", f"{name}.sql").read_text("utf-8")
    header = " ".join(line.removeprefix("--") for line in text.splitlines() if line.startswith("--"))
    assert header, "no header"
    for word in ("Rows:", "Locks:", "Index:"):
        assert word in header, f"the header does not tell of {word}"


# -- the hot ones


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def plans_of(connection: Connection, analyze: bool = False) -> dict[str, dict[str, Any]]:
    """The plans of everything that this connection has prepared, as the driver prepared it, by the first table written
    or read."""
    # The arguments below are null: a plan for these very values would say nothing.
    connection.execute("set plan_cache_mode = force_generic_plan", prepare=False)
    found = {}
    prepared = connection.execute(
        "select name, statement, cardinality(parameter_types) from pg_prepared_statements", prepare=False
    ).fetchall()
    for name, statement, count in prepared:
        if ".job" in statement or ".attempt" in statement:
            arguments = f"({', '.join(['null'] * count)})" if count else ""
            explained = connection.execute(
                f'explain (format json, verbose) execute "{name}"{arguments}'.encode(), prepare=False
            ).fetchall()
            plan = explained[0][0]
            found[statement] = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
    assert found, "nothing was prepared"
    return found


def scans(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """The nodes that read a hot table or one of its indexes."""
    return [
        node
        for node in nodes(plan)
        if node["Node Type"].endswith("Scan")
        and (node.get("Relation Name") in HOT or str(node.get("Index Name", "")).startswith(("job_", "attempt_")))
    ]


def on_indexes(plan: dict[str, Any], allowed: dict[str, str]) -> None:
    """Every scan of a hot table is on one of these indexes, bounded by the columns given for it.

    '' is for the whole of an index that is small.
    """
    seen = set()
    for node in scans(plan):
        if node["Node Type"] == "Bitmap Heap Scan":
            continue  # it reads what the index scan below it found
        index = node.get("Index Name")
        assert index in allowed, f"{node['Node Type']} of {node.get('Relation Name')} on {index}: {json.dumps(node)}"
        for column in filter(None, allowed[index].split()):
            assert column in node.get("Index Cond", ""), f"{index} is not bounded by {column}: {json.dumps(node)}"
        seen.add(index)
    assert seen, "it reads no hot table at all"


@pytest.fixture(params=["never analysed", "analysed", "analysed when it was nearly empty"])
def statistics(request: pytest.FixtureRequest, full: Tables) -> str:
    for table in HOT:
        if request.param != "never analysed":
            full.rows(f"analyze {{s}}.{table}")
            if request.param != "analysed":
                full.rows(f"update pg_class set reltuples = 10 where oid = '{{s}}.{table}'::regclass")
        else:
            full.rows(f"delete from pg_statistic where starelid = '{{s}}.{table}'::regclass")
            full.rows(f"update pg_class set reltuples = -1, relpages = 0 where oid = '{{s}}.{table}'::regclass")
    return str(request.param)


def test_the_claim_reads_one_range_for_each_task_in_order_and_the_rows_it_takes(
    full: Tables, statistics: str, hand: Hand
) -> None:
    # With a limit, or it would be seen that nothing needs the guarded claim.
    full.rows("insert into {s}.queue (name, max_running, changed_at) values ('default', 1000000, now())")
    try:
        assert [len(hand.claim(BATCH, sweep=sweep)) for sweep in (False, True)] == [BATCH, BATCH]
    finally:
        full.rows("delete from {s}.queue")
    plans = plans_of(hand.on("claim"))
    (plan,) = [plan for statement, plan in plans.items() if "update" in statement]
    (look,) = [plan for statement, plan in plans.items() if "upcoming" in statement]
    (waits,) = [plan for statement, plan in plans.items() if "update" not in statement and "upcoming" not in statement]
    on_indexes(waits, {"job_exclusive_due": "queue task"})
    on_indexes(look, {"job_ready": "queue task priority", "job_exclusive_due": "queue task", "job_leased": ""})
    ahead = [node for node in scans(look) if "due_at >" in node.get("Index Cond", "")]
    assert [node["Index Name"] for node in ahead] == ["job_ready", "job_exclusive_due"], "the next that will be due"
    ordinary_ranges = [node for node in scans(plan) if ">= ROW(" in node.get("Index Cond", "")]
    assert len(ordinary_ranges) == 2, "each lane begins at its bound: once to count, once to lock"
    on_indexes(
        plan,
        {
            "job_ready": "queue task due_at",
            "job_exclusive": "queue task exclusive",
            "job_exclusive_live": "exclusive",
            "job_leased": "queue",
            "job_pkey": "id",
        },
    )
    arms = [node for node in nodes(plan) if node["Node Type"] == "LockRows"]
    assert len(arms) == 3, "of ordinary jobs; of slots; of what the slots guard"
    ordinary = [arm for arm in arms if any(node.get("Index Name") == "job_ready" for node in nodes(arm))]
    assert len(ordinary) == 1
    for arm in ordinary:
        below = [node["Node Type"] for node in nodes(arm)]
        assert "Sort" not in below, "it would read and lock the whole range first"
        assert "Incremental Sort" not in below


@pytest.mark.parametrize("guarded", [False, True], ids=["plain", "guarded"])
@pytest.mark.parametrize("tasks", [{"work": 30.0}, {"rare": 30.0}], ids=["with due jobs", "with nothing due"])
def test_a_claim_reads_no_more_rows_than_it_takes_however_many_it_cannot_run(
    full: Tables, statistics: str, tasks: dict[str, float], guarded: bool
) -> None:
    hand = Hand(full.dsn, tasks)
    text = hand.statements.claim(guarded=guarded)
    values = {"owner": "x", "queues": ["default"], "tasks": list(tasks), "leases": list(tasks.values()), "batch": BATCH}
    values |= {"after": "", "values": 200, "back": 0.0, "peek": BATCH, "anyway": False, "lease": None}
    lanes = Lanes(["default"], list(tasks))
    lanes.found((Found("default", task, priority, True, None) for task in tasks for priority in (2, 1, 0)), 0.0)
    values |= lanes.parameters(0.0, bounded=True)
    connection = hand.on("claim")
    with connection.transaction(force_rollback=True):
        explained = connection.execute(f"explain (analyze, format json, verbose) {text}".encode(), values).fetchall()
    hand.close()
    read = sum(
        node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
        for node in scans(explained[0][0][0]["Plan"])
    )
    assert read <= 5 * BATCH, "in the ranges of three priorities to count, in the ranges to lock, in the key's index"


@pytest.mark.parametrize("task", ["work", "rare"])
def test_the_claim_of_one_lane_reads_one_range_in_order_and_no_more_rows_than_it_takes(
    full: Tables, statistics: str, task: str
) -> None:
    hand = Hand(full.dsn, {task: 30.0})
    full.rows("update {s}.job set priority = 0 where task = %(task)s and status = 'ready'", task=task)
    jobs = hand.claim(BATCH, guarded=False, sweep=False)
    assert len(jobs) == (BATCH if task == "work" else 0)
    connection = hand.on("claim")
    (plan,) = [plan for statement, plan in plans_of(connection).items() if "update" in statement]
    on_indexes(plan, {"job_ready": "queue task priority due_at", "job_pkey": "id"})
    ranges = [node for node in scans(plan) if ">= ROW(" in node.get("Index Cond", "")]
    assert len(ranges) == 1, "it begins at the lane's bound"
    (arm,) = [node for node in nodes(plan) if node["Node Type"] == "LockRows"]
    assert "Sort" not in [node["Node Type"] for node in nodes(arm)], "it would read and lock the whole range first"
    values = {"owner": "x", "queue": "default", "task": task, "priority": 0, "due": None, "id": None, "lease": 1.0}
    with connection.transaction(force_rollback=True):
        text = f"explain (analyze, format json, verbose) {hand.statements['claim_lane']}".encode()
        (row,) = connection.execute(text, {**values, "back": 0.0, "batch": BATCH, "anyway": False}).fetchall()
    hand.close()
    read = sum(
        node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
        for node in scans(row[0][0]["Plan"])
    )
    assert read <= 2 * BATCH, "in the range, in the key's index"


def test_settling_looks_up_each_job_by_its_key(full: Tables, statistics: str, hand: Hand) -> None:
    jobs = hand.claim(BATCH)
    hand.settle(
        completed(jobs[0]), completed(jobs[1], {"n": 1}), *(ended(job, "ready", "returned") for job in jobs[2:])
    )
    hand.settle(completed(jobs[0]))  # asks what was settled before, too
    plans = plans_of(hand.on("settle"))
    assert len(plans) >= 3
    for statement, plan in plans.items():
        if "update" in statement:
            on_indexes(plan, {"job_pkey": "id", "job_leased": "id"})
        else:
            on_indexes(plan, {"attempt_pkey": "job_id"})


def test_renewing_looks_up_each_job_by_its_key(full: Tables, statistics: str, hand: Hand) -> None:
    jobs = hand.claim(BATCH)
    assert hand.renew(*jobs) == {job.token: True for job in jobs}
    (plan,) = plans_of(hand.on("heart")).values()
    on_indexes(plan, {"job_pkey": "id", "job_leased": "id"})


def test_a_renewal_rewrites_no_index(full: Tables, hand: Hand) -> None:
    columns = full.rows(
        "select indexdef from pg_indexes"
        " where schemaname = '{s}' and tablename = 'job' and indexdef like '%%lease_until%%'"
    )
    assert columns == [], "each renewal would write to it"


def test_a_sweep_reads_what_is_running_and_nothing_else(full: Tables, statistics: str, hand: Hand) -> None:
    hand.claim(BATCH)
    hand.rescue()
    (plan,) = plans_of(hand.on("rescue")).values()
    on_indexes(plan, {"job_leased": "", "job_pkey": "id"})


def test_a_look_for_overrun_attempts_reads_what_is_running_and_nothing_else(full: Tables, statistics: str) -> None:
    from scheduler._limiter import BATCH as most

    with Database(full.dsn).connect("limit") as connection:
        parameters = {"tasks": ["work"], "limits": [60.0], "batch": most}
        connection.execute(Statements("fencing")["overrun"], parameters).fetchall()
        (plan,) = plans_of(connection).values()
    on_indexes(plan, {"job_leased": ""})


def test_pruning_reads_one_page_by_the_key_and_deletes_by_keys(full: Tables, statistics: str) -> None:
    kept = {"states": ["completed", "dead"], "seconds": [0.0, 0.0], "shortest": 0.0, "after": 1000, "batch": BATCH}
    text = Statements("fencing")["prune_jobs"]
    with Database(full.dsn).connect("prune") as connection:
        with connection.transaction(force_rollback=True):
            connection.execute("set local fencing.pruning = 'on'")
            connection.execute(text, kept).fetchall()
            (plan,) = plans_of(connection).values()
            explained = connection.execute(f"explain (analyze, format json, verbose) {text}".encode(), kept).fetchall()
    on_indexes(plan, {"job_pkey": "id", "attempt_pkey": "job_id"})
    read = sum(
        node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
        for node in scans(explained[0][0][0]["Plan"])
    )
    assert read <= 5 * BATCH, "the page, the doomed, the deleted, their attempts"


def test_asking_which_tokens_live_reads_what_is_running_and_nothing_else(full: Tables, statistics: str) -> None:
    from scheduler._postgres import live_tokens

    with Database(full.dsn).connect("look-up") as connection:
        live_tokens(connection, Statements("fencing"), [1, 2, 3])
        (plan,) = plans_of(connection).values()
    on_indexes(plan, {"job_leased": ""})


def test_the_oldest_live_token_is_found_among_what_is_running(full: Tables, statistics: str) -> None:
    with Database(full.dsn).connect("look-up") as connection:
        connection.execute(Statements("fencing")["oldest_live_token"])
        (plan,) = plans_of(connection).values()
    on_indexes(plan, {"job_leased": ""})


def test_enqueuing_under_a_key_looks_up_the_key_alone(full: Tables, statistics: str) -> None:
    from scheduler import Scheduler

    app = Scheduler(full.dsn)
    app.task("work")(print)
    with psycopg.connect(full.dsn, prepare_threshold=0) as connection:
        app.enqueue("work", key="one", connection=connection)
        (plan,) = plans_of(connection).values()
        on_indexes(plan, {"job_alive_key": "key"})
        connection.rollback()
    app.close()


# -- measuring: what it costs does not grow with the number of jobs


def explained(tables: Tables, name: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """The nodes of a measuring statement's plan, as it ran on a connection like that of :meth:`Scheduler.measure`."""
    with Database(tables.dsn).connect("measure") as connection, connection.transaction(force_rollback=True):
        text = f"explain (analyze, format json, verbose) {Statements('fencing')[name]}"
        return list(nodes(connection.execute(text.encode(), values).fetchall()[0][0][0]["Plan"]))


def rows_read(found: list[dict[str, Any]]) -> float:
    return sum(
        node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
        for node in found
        if node["Node Type"].endswith("Scan") and node.get("Relation Name")
    )


MEASURES = {
    # 40,000 jobs are ready: the due ones of each range are counted up to 1,000.
    "measure_due": ({}, {"job_ready"}, 6_100),
    # 5,000 values wait, one of them with 15,000 jobs: 1,000 values are looked at, and 100 jobs of each.
    "measure_due_exclusive": ({}, {"job_exclusive"}, 5_000),
    # 5,000 are leased: all of these are read, and nothing else.
    "measure_leased": ({}, {"job_leased"}, 6_000),
    "measure_stuck": ({"tasks": ["work"], "limits": [60.0], "otherwise": 3600.0}, {"job_leased"}, 6_000),
    "measure_dead": ({}, {"job_dead"}, 1),
    "waiting_tasks": ({"most": 1000}, {"job_ready", "job_exclusive_due"}, 100),
}


@pytest.mark.parametrize("name", MEASURES)
def test_measuring_reads_a_bounded_part_of_a_full_table(full: Tables, statistics: str, name: str) -> None:
    values, indexes, most = MEASURES[name]
    if name == "measure_due_exclusive":
        full.rows(
            "insert into {s}.job (queue, task, exclusive, args, priority, due_at, max_attempts, created_at)"
            " select 'exclusive', 'foreign', case when i % 4 = 0 then 'v' || i else 'a' end, '{}', 0, now(), 5, now()"
            " from generate_series(1, 20000) i where not exists (select from {s}.job where queue = 'exclusive')"
        )
    found = explained(full, name, values)
    assert {node["Index Name"] for node in found if "Index Name" in node} == indexes
    assert not [node for node in found if node["Node Type"] == "Seq Scan"]
    assert rows_read(found) <= most


def test_measures_of_the_last_hour_are_one_range_of_their_index(full: Tables) -> None:
    full.rows(
        "insert into {s}.measure select date_trunc('minute', now()) - i * interval '1 minute', 'w' || j, 'default',"
        " 'work', 1, '{}', 0, 0, '{}', 0, 0, '{}', 0, 0 from generate_series(0, 2000) i, generate_series(1, 20) j"
    )
    full.rows("analyze {s}.measure")
    found = explained(full, "measure_minutes", {"window": 300})
    assert {node["Index Name"] for node in found if "Index Name" in node} == {"measure_pkey"}
    assert rows_read(found) <= 61 * 20
    written = explained(
        full,
        "measure_write",
        {
            "owner": "me",
            "queues": ["default"],
            "concurrency": 1,
            "running": 0,
            "clock_skew": 0.0,
            "listen_reconnects": 0,
            "minute": None,
            "tallies": "[]",
        },
    )
    assert rows_read([node for node in written if node.get("Relation Name") == "measure"]) <= 3_000
