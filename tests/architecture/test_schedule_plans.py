"""The plans of what is asked of schedules all the time: on indexes, whatever the ledger has kept."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.jobs import Tables, installed

from scheduler._connect import Database
from scheduler._sql import Statements
from scheduler.console.embedded import Postgres

SCHEDULES, KEPT = 5_000, 100_000


@pytest.fixture(scope="module")
def full(postgres: Postgres) -> Iterator[Tables]:
    """Thousands of schedules, one in ten of which minds overlap, and a ledger of a hundred thousand occurrences."""
    with installed(postgres.create_database("schedule_plans")) as (_, tables):
        tables.rows(
            "insert into {s}.schedule (name, task, args, queue, priority, max_attempts, definition, catch_up,"
            " catch_up_limit, overlap, number, begins_at, materialised_until, next_at, zone_version, zone_hash,"
            " created_at, changed_at)"
            " select 's' || i, 'work', 'null', 'default', 0, 5, '{}', 'all', 100,"
            " case i %% 10 when 0 then 'skip' else 'allow' end, 1, now(), now(), now() + i * interval '1 second',"
            " '2026a', 'x', now(), now() from generate_series(1, %(n)s) i",
            n=SCHEDULES,
        )
        tables.rows(
            "insert into {s}.occurrence (schedule, key, due_at, nominal, state, job_id, revision, created_at)"
            " select 's' || 1 + i %% %(n)s, 'key ' || i, now() - i * interval '1 minute', now(), 'enqueued', i, 1,"
            " now()"
            " from generate_series(1, %(kept)s) i",
            n=SCHEDULES,
            kept=KEPT,
        )
        tables.rows(
            "insert into {s}.occurrence (schedule, key, due_at, nominal, state, revision, created_at)"
            " select 's' || 10 * i, 'due ' || i, now() - interval '1 second', now(), 'waiting', 1, now()"
            " from generate_series(1, 20) i"
        )
        tables.rows(
            "insert into {s}.job (queue, task, args, priority, due_at, status, max_attempts, schedule, created_at,"
            " finished_at)"
            " select 'default', 'work', 'null', 0, now(), 'completed', 5, 's' || 1 + i %% %(n)s, now(), now()"
            " from generate_series(1, %(kept)s) i",
            n=SCHEDULES,
            kept=KEPT,
        )
        for table in ("schedule", "occurrence", "job"):
            tables.rows(f"vacuum analyze {{s}}.{table}")
        yield tables
    postgres.drop_database("schedule_plans")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def read(full: Tables, role: str, statement: str, /, **parameters: Any) -> tuple[set[str], int]:
    """What a statement reads (indexes, and tables that it reads whole), and how many rows of them."""
    with Database(full.dsn).connect(role) as connection, connection.transaction(force_rollback=True):
        text = f"explain (analyze, format json, verbose) {Statements('fencing')[statement]}"
        plan = connection.execute(text.encode(), parameters, prepare=False).fetchall()[0][0][0]["Plan"]
    scans = [node for node in nodes(plan) if node["Node Type"].endswith("Scan") and "Relation Name" in node]
    rows = sum(node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) for node in scans)
    return {node.get("Index Name") or f"all of {node['Relation Name']}" for node in nodes(plan) if
            "Index Name" in node or node["Node Type"] == "Seq Scan"}, int(rows)  # fmt: skip


def test_the_question_whether_anything_waits_reads_two_ends_of_a_small_index(full: Tables) -> None:
    indexes, rows = read(full, "claim", "outlook", queues=["default"], tasks=["work"])
    assert indexes - {"all of issuer", "all of queue", "queue_pkey"} == {"occurrence_due", "job_exclusive_due"}
    assert rows <= 3


def test_the_gate_reads_what_waits_and_what_lives_of_it(full: Tables) -> None:
    indexes, rows = read(full, "claim", "overlap_due", batch=100, without=[])
    assert indexes <= {"occurrence_due", "occurrence_waiting", "schedule_pkey", "job_schedule"}
    assert rows <= 5 * 20
    indexes, rows = read(full, "claim", "overlap_state", names=["s10", "s20"], most=1000)
    assert indexes <= {"occurrence_waiting", "job_schedule"}
    assert rows <= 2
    given = {"schedules": ["s10", "s20"], "keys": ["due 1", "due 2"]}
    for name, more in (("overlap_admit", {}), ("overlap_skip", {"reasons": ["x", "x"]})):
        indexes, rows = read(full, "claim", name, **given, **more)
        assert indexes <= {"occurrence_pkey", "schedule_pkey"}, name
        assert rows <= 6, name


def test_the_materialiser_reads_what_is_due_and_nothing_else(full: Tables) -> None:
    indexes, rows = read(full, "materialise", "schedules_due", batch=50, horizon=5.0, without=[])
    assert indexes == {"schedule_next"}
    assert rows <= 2 * 50
    indexes, rows = read(full, "materialise", "schedules_rezone", version="2026a", batch=50, without=[])
    assert indexes == {"schedule_zone"}
    assert rows == 0


def test_an_act_reads_its_schedule_and_what_lives_of_it(full: Tables) -> None:
    indexes, rows = read(full, "app", "schedule_supersede", name="s10", reason="x")
    assert indexes <= {"job_schedule", "occurrence_pkey", "occurrence_waiting"}
    assert rows <= KEPT / SCHEDULES + 5
    indexes, rows = read(full, "app", "ledger_latest", name="s10", most=5)
    assert indexes <= {"occurrence_pkey", "job_pkey"}
    assert rows <= 20
