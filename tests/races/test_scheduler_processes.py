"""Workers in processes of their own: beside each other, paused, killed at any moment, blocked, forked, told to stop."""

import json
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool
from support.jobs import Tables, Working, drained, installed, program, until, worker
from support.processes import PythonProcess
from support.sql_doors import sync_url
from support.waiting import eventually

from adapters.sql import create_all
from scheduler import Job, Retry, Scheduler

LEASE = 30.0  # it is over when the test has moved the clock

# What the workers do: an effect in the database, fenced, once for the job's key. Two places where a test can hold them.
EFFECT = f"""
    import ctypes
    import sqlalchemy
    from sqlalchemy.pool import NullPool

    engine = sqlalchemy.create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)

    @app.task("invoice", lease={LEASE}, retry=Retry(max_attempts=3, base=0))
    def invoice(job):
        say("in", job.id, job.token.value)
        told = hear()
        if told == "block":
            say("blocked")
            ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)
        try:
            fenced_write(engine, f"invoice/{{job.args}}", once=job.key, effect=lambda connection: connection.execute(
                sqlalchemy.text("insert into invoice (n, token) values (:n, :token)"),
                dict(n=job.args, token=job.token.value)) and None)
        except errors.StaleTokenError as refused:
            say("refused", refused.presented.value, refused.mark.value)
            if told == "return":
                return  # as if nothing had been: now the completion has to be refused
            raise
        say("written", job.token.value)
"""


@pytest.fixture
def ground(pg_dsn: str) -> Iterator[tuple[Scheduler, Tables]]:
    with installed(pg_dsn) as (app, tables):
        create_all(sa.create_engine(sync_url(pg_dsn), poolclass=NullPool))
        tables.rows("create table invoice (n int not null, token bigint not null)")
        yield app, tables


@pytest.fixture
def app(ground: tuple[Scheduler, Tables]) -> Scheduler:
    """A scheduler in this process that knows the task too, and never waits in it."""
    app, tables = ground
    engine = sa.create_engine(sync_url(tables.dsn), poolclass=NullPool)
    from fencing import fenced_write

    @app.task("invoice", lease=LEASE, retry=Retry(max_attempts=3, base=0))
    def invoice(job: Job) -> None:
        def effect(connection: sa.Connection) -> None:
            connection.execute(
                sa.text("insert into invoice (n, token) values (:n, :token)"),
                {"n": job.args, "token": job.token.value},
            )

        fenced_write(engine, f"invoice/{job.args}", once=job.key, effect=effect)

    return app


@pytest.fixture
def tables(ground: tuple[Scheduler, Tables]) -> Tables:
    return ground[1]


def invoices(tables: Tables) -> list[tuple[int, int]]:
    return [(row["n"], row["token"]) for row in tables.rows("select n, token from invoice order by token")]


def end_leases(tables: Tables) -> None:
    """Every lease that was taken so far is over."""
    tables.move_clock(tables.one("select extract(epoch from {s}.clock() - clock_timestamp())::float8") + LEASE + 1)


def looked_since(tables: Tables, role: str, moment: datetime) -> int:
    """How many sessions of the role have begun a statement after the moment."""
    return len(
        tables.rows(
            "select pid from pg_stat_activity where datname = current_database()"
            " and application_name = %(name)s and query_start > %(moment)s",
            name=f"fencing {role}",
            moment=moment,
        )
    )


def held_or_looked(tables: Tables, role: str, moment: datetime) -> int:
    """How many sessions of the role wait for a lock, or have begun a statement after the moment."""
    waiting = [one for one in tables.sessions(role) if one["wait_event_type"] == "Lock"]
    return len(waiting) + looked_since(tables, role, moment)


# -- beside each other


def test_three_processes_materialise_and_work_one_monthly_schedule_and_there_is_one_invoice(tables: Tables) -> None:
    due = datetime(2026, 2, 1, 3, tzinfo=UTC)
    tables.start_clock(due - timedelta(days=10))
    tasks = """
        @app.task("monthly-invoices")
        def monthly(job):
            record("insert into invoice (n, token) values (%s, %s)", job.nominal.month, job.token.value)
        app.schedule("monthly-invoices", "0 9 1 * *", tz="Asia/Dhaka", task="monthly-invoices")
    """
    with worker(tables.dsn, tasks) as one, worker(tables.dsn, tasks) as two, worker(tables.dsn, tasks) as three:
        processes = [one, two, three]
        eventually(lambda: len(tables.sessions("materialise")) == 3, "all three materialise")
        with psycopg.connect(tables.dsn) as door:
            # The one that comes first is held before it writes into the ledger, until the others have come too.
            door.execute("lock table fencing.occurrence in share row exclusive mode")
            tables.start_clock(due - timedelta(seconds=1))
            tables.wait_for_session("materialise", waiting=True)
            met = tables.one("select clock_timestamp()")
            eventually(lambda: held_or_looked(tables, "materialise", met) == 3, "the others meet it")

        def done() -> bool:
            return tables.states() == {"completed": 1}

        eventually(done, "the occurrence was worked")
        since = tables.one("select clock_timestamp()")
        for role in ("materialise", "claim"):
            eventually(lambda role=role: looked_since(tables, role, since) == 3, f"each {role} has looked again")
        for process in processes:
            process.send(signal.SIGTERM)
        counts = [drained(process) for process in processes]
    assert sum(one["completed"] for one in counts) == 1
    assert [n for n, _ in invoices(tables)] == [2]
    (occurrence,) = tables.occurrences("monthly-invoices")
    assert occurrence["due_at"] == due
    assert tables.outcomes(occurrence["job_id"]) == ["completed"]


def test_two_claimers_on_ten_thousand_jobs_claim_each_once_and_hold_no_transaction_while_handlers_run(
    tables: Tables, app: Scheduler
) -> None:
    app.task("count")(print)
    app.enqueue_many("count", range(10_000))
    tasks = """
        ran = []
        app.task("count")(lambda job: ran.append(job.args))
        threading.Thread(target=lambda: (hear(), os.kill(os.getpid(), 15)), daemon=True).start()
    """
    idle_in_transaction = []

    def done() -> bool:
        for role in ("claim", "settle", "heart", "rescue"):
            idle_in_transaction.extend(one for one in tables.sessions(role) if "in transaction" in (one["state"] or ""))
        return tables.states() == {"completed": 10_000}

    run = "batch=20"
    with worker(tables.dsn, tasks, run) as one, worker(tables.dsn, tasks, run) as two:
        eventually(done, "all are done", 60)
        one.tell("stop")
        two.tell("stop")
        counts = [drained(one), drained(two)]
    assert idle_in_transaction == []
    assert sum(each["claimed"] for each in counts) == sum(each["completed"] for each in counts) == 10_000
    assert all(each["claimed"] > 0 for each in counts), "both took part"
    distinct = "array[count(*), count(distinct job_id), count(distinct token), max(attempt)]"
    assert tables.one(f"select {distinct} from {{s}}.attempt") == [10_000, 10_000, 10_000, 1]


# -- killed


def in_handler(process: PythonProcess) -> tuple[int, int]:
    """The job and the token of the handler that it is in."""
    _, number, token = until(process, "in").split()
    return int(number), int(token)


def test_a_worker_killed_before_its_claim_returns_loses_no_job(app: Scheduler, tables: Tables) -> None:
    with psycopg.connect(tables.dsn) as door, worker(tables.dsn, EFFECT) as process:
        tables.wait_for_session("claim")
        door.execute("lock table fencing.job in exclusive mode")
        app.enqueue("invoice", 7, connection=door)
        tables.wait_for_session("claim", waiting=True)
        process.kill()
        door.commit()
    (job,) = tables.jobs()
    eventually(lambda: not tables.sessions("claim"), "the server has noticed")
    # The server may notice before the commit of the claim, or after it: in the name of a worker that is no more.
    claimed = tables.job(job["id"])["status"] == "leased"
    end_leases(tables)
    with Working(app):
        tables.wait_for(job["id"], "completed")
    assert tables.outcomes(job["id"]) == (["expired", "completed"] if claimed else ["completed"])
    assert [n for n, _ in invoices(tables)] == [7]


def test_a_worker_killed_in_its_handler_is_followed_by_another_after_the_lease(app: Scheduler, tables: Tables) -> None:
    number = app.enqueue("invoice", 7).id
    with worker(tables.dsn, EFFECT) as process:
        _, token = in_handler(process)
        process.kill()
    end_leases(tables)
    with Working(app):
        job = tables.wait_for(number, "completed")
    assert job["token"] > token
    assert tables.outcomes(number) == ["expired", "completed"]
    assert invoices(tables) == [(7, job["token"])]


def test_a_worker_killed_between_the_effect_and_the_settlement_leaves_the_effect_once(
    app: Scheduler, tables: Tables
) -> None:
    number = app.enqueue("invoice", 7).id
    with psycopg.connect(tables.dsn) as door, worker(tables.dsn, EFFECT) as process:
        in_handler(process)
        door.execute("lock table fencing.attempt in exclusive mode")
        process.tell("go on")
        _, token = until(process, "written").split()
        settle = tables.wait_for_session("settle", waiting=True)
        process.kill()
        door.execute("select pg_terminate_backend(%s)", [settle])
        eventually(lambda: settle not in [one["pid"] for one in tables.sessions("settle")], "the settlement is undone")
        door.rollback()
    assert tables.job(number)["status"] == "leased"
    end_leases(tables)
    with Working(app):
        job = tables.wait_for(number, "completed")
    assert tables.outcomes(number) == ["expired", "completed"]
    assert job["token"] > int(token)
    assert invoices(tables) == [(7, int(token))], "the second attempt found its key applied"


def test_a_job_that_kills_its_worker_each_time_ends_dead(app: Scheduler, tables: Tables) -> None:
    app.task("killer", lease=LEASE, retry=Retry(max_attempts=2))(lambda _: pytest.fail("the third worker runs it"))
    number = app.enqueue("killer").id
    tasks = f"""
        app.task("killer", lease={LEASE}, retry=Retry(max_attempts=2))(lambda job: os.kill(os.getpid(), 9))
    """
    for _ in range(2):
        with worker(tables.dsn, tasks) as process:
            assert process.wait() == -signal.SIGKILL
        end_leases(tables)
    with Working(app):
        job = tables.wait_for(number, "dead")
        after = app.enqueue("invoice", 1).id
        tables.wait_for(after, "completed")
    assert (job["reason"], job["attempt"]) == ("lease expired", 2)
    assert tables.outcomes(number) == ["expired", "expired"]


def test_a_materialiser_killed_inside_its_transaction_leaves_ledger_and_job_both_or_neither(
    app: Scheduler, tables: Tables
) -> None:
    due = datetime(2026, 2, 1, 3, tzinfo=UTC)
    tables.start_clock(due - timedelta(days=10))
    app.schedule("monthly", "0 9 1 * *", tz="Asia/Dhaka", task="invoice", args=2)
    app.sync_schedules()
    tasks = """
        app.task("invoice", retry=Retry(max_attempts=3))(print)
        app.schedule("monthly", "0 9 1 * *", tz="Asia/Dhaka", task="invoice", args=2)
    """
    with psycopg.connect(tables.dsn) as door, worker(tables.dsn, tasks) as process:
        tables.wait_for_session("materialise")
        # Readers and row locks pass, an insert into the jobs does not: it is stopped after the ledger's row.
        door.execute("lock table fencing.job in share row exclusive mode")
        tables.start_clock(due)
        stopped = tables.wait_for_session("materialise", waiting=True)
        process.kill()
        door.rollback()
        eventually(lambda: stopped not in [one["pid"] for one in tables.sessions("materialise")], "its session ends")
    assert len(tables.occurrences("monthly")) == len(tables.jobs())
    app.run_until_idle()
    (occurrence,) = tables.occurrences("monthly")
    (job,) = tables.jobs()
    assert occurrence["job_id"] == job["id"]
    assert [n for n, _ in invoices(tables)] == [2]


# -- paused and blocked


def taken_over(process: PythonProcess, app: Scheduler, tables: Tables, number: int) -> int:
    """Another worker finishes the job, whose lease is over; returns its token."""
    end_leases(tables)
    with Working(app):
        return int(tables.wait_for(number, "completed")["token"])


def refused_everywhere(process: PythonProcess, tables: Tables, number: int, old: int, new: int) -> None:
    """The first holder, awake again, has its write and its settlement refused, and nothing has changed."""
    before = tables.job(number), tables.attempts(number), invoices(tables)
    assert until(process, "refused").split()[1:] == [str(old), str(new)]
    eventually(lambda: "was refused: the lease was lost" in process.errors, "its settlement is refused")
    process.send(signal.SIGTERM)
    assert drained(process)["lost"] == 1
    assert (tables.job(number), tables.attempts(number), invoices(tables)) == before
    assert tables.outcomes(number) == ["expired", "completed"]
    assert invoices(tables) == [(7, new)]


def test_a_worker_stopped_for_longer_than_its_lease_is_refused_everywhere_when_it_wakes(
    app: Scheduler, tables: Tables
) -> None:
    """procrastinate, pgqueuer, apscheduler 4: the woken worker's completion was accepted."""
    number = app.enqueue("invoice", 7).id
    with worker(tables.dsn, EFFECT) as process:
        _, old = in_handler(process)
        process.pause()
        new = taken_over(process, app, tables, number)
        process.resume()
        process.tell("return")
        refused_everywhere(process, tables, number, old, new)


def test_a_handler_that_blocks_the_interpreter_for_longer_than_its_lease_is_taken_over_and_refused(
    app: Scheduler, tables: Tables
) -> None:
    number = app.enqueue("invoice", 7).id
    # A call into C that keeps the interpreter's lock: no other thread of the process runs, the heart neither. It ends
    # when the test writes to the pipe.
    with worker(tables.dsn, EFFECT) as process:
        _, old = in_handler(process)
        process.tell("block")
        until(process, "blocked")
        new = taken_over(process, app, tables, number)
        process.tell("")
        refused_everywhere(process, tables, number, old, new)


# -- told to stop


def test_the_first_signal_drains_and_the_job_that_runs_is_finished(app: Scheduler, tables: Tables) -> None:
    running = app.enqueue("invoice", 7).id
    with worker(tables.dsn, EFFECT, "concurrency=1") as process:
        in_handler(process)
        process.send(signal.SIGTERM)
        waiting = app.enqueue("invoice", 8).id
        eventually(lambda: "draining" in process.errors, "it drains")
        process.tell("go on")
        counts = drained(process)
        assert process.wait() == 0
    assert (counts["claimed"], counts["completed"]) == (1, 1)
    assert tables.outcomes(running) == ["completed"]
    assert (tables.job(waiting)["status"], tables.job(waiting)["attempt"]) == ("ready", 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_leaves_what_runs_to_expire(app: Scheduler, tables: Tables, number: int) -> None:
    job = app.enqueue("invoice", 7).id
    with worker(tables.dsn, EFFECT) as process:
        in_handler(process)
        process.send(number)
        eventually(lambda: "draining" in process.errors, "it drains")  # two signals at once may arrive as one
        process.send(number)
        counts = drained(process)
        assert process.wait() == 0
    assert counts["completed"] == 0
    assert tables.job(job)["status"] == "leased"
    end_leases(tables)
    with Working(app):
        tables.wait_for(job, "completed")
    assert tables.outcomes(job) == ["expired", "completed"]


def test_a_signal_that_arrives_inside_a_lock_of_the_stop_event_does_not_hang_the_worker(
    app: Scheduler, tables: Tables
) -> None:
    tasks = """
        app.task("invoice")(print)

        class Stop(threading.Event):
            def wait(self, timeout=None):
                with self._cond:
                    signal.raise_signal(signal.SIGTERM)
                return super().wait(timeout)

        import signal
    """
    with worker(tables.dsn, tasks, "stop=Stop()") as process:
        drained(process)
        assert process.wait() == 0


# -- forked


FORK = """
    app.task("invoice")(print)
    say(app.enqueue("invoice", 1).created)
    with app.lease("parent", ttl=30) as mine:
        {held}
        child = os.fork()
        if child == 0:
            say("child", app.enqueue("invoice", 2).created)
            with app.lease("child", ttl=30) as lease:
                say("child", lease.holder)
            app.close()
            os._exit(0)
        {free}
        say("child ended with", os.waitpid(child, 0)[1])
        say("parent", app.enqueue("invoice", 3).created)
        mine.ensure()
        say("parent", mine.holder)
"""


@pytest.mark.parametrize("held", ["", "app._process_lock.acquire()"], ids=["at rest", "while a thread is in its lock"])
def test_a_fork_gets_connections_and_an_owner_of_its_own_and_leaves_the_parents_alone(
    app: Scheduler, tables: Tables, held: str
) -> None:
    with program(tables.dsn, FORK.format(held=held, free=held.replace("acquire", "release"))) as process:
        process.expect("True")
        process.expect("child True")
        child = process.line().removeprefix("child ")
        process.expect("child ended with 0")
        process.expect("parent True")
        parent = process.line().removeprefix("parent ")
        assert process.wait() == 0, process.errors
    assert child != parent
    assert [job["args"] for job in tables.jobs()] == [1, 2, 3]
    assert tables.rows("select * from {s}.lease") == [], "both were given back"


def test_two_workers_with_one_host_name_and_one_process_id_are_never_confused(app: Scheduler, tables: Tables) -> None:
    """A restored container has both from the one before it."""
    code = """
        import socket
        socket.gethostname = lambda: "web-1"
        os.getpid = lambda: 17
        app.task("invoice")(print)
        with app.lease(sys.argv[1][-3:] + str(id(app)), ttl=30) as lease:
            say(json.dumps(lease.holder))
    """
    owners = set()
    for _ in range(2):
        with program(tables.dsn, code) as process:
            owners.add(json.loads(process.line()))
    assert len(owners) == 2
    assert all(owner.startswith("web-1:17:") for owner in owners)
