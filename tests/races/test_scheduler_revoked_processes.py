"""A worker that is really stopped in its handler while its job is taken from it: when it wakes, nothing of it lands."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool
from support.jobs import Tables, drained, installed, until, worker
from support.processes import PythonProcess
from support.sql_doors import sync_url

from adapters.sql import create_all
from scheduler import Job, Retry, Scheduler

# Its lease outlasts the test: nothing here is the work of a lease that ran out.
STOPPED = """
    import sqlalchemy
    from sqlalchemy.pool import NullPool

    engine = sqlalchemy.create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)

    @app.task("invoice", lease=600, max_runtime={limit}, retry=Retry(max_attempts=3, base=0),
        fences=lambda job: [(engine, "invoice/1")])
    def invoice(job):
        say("in", job.token.value)
        hear()
        try:
            with engine.begin() as tx, fenced_write(tx, "invoice/1"):
                tx.execute(sqlalchemy.text("insert into invoice values (:token)"), dict(token=job.token.value))
        except errors.StaleTokenError as refused:
            say("refused", refused.mark.value)
        else:
            say("written")
        job.lease.lost.wait()
        try:
            job.lease.ensure()
        except errors.LeaseLostError as lost:
            say(str(lost))
        return "as if nothing had been"
"""


@pytest.fixture
def ground(pg_dsn: str) -> Iterator[tuple[Scheduler, Tables]]:
    with installed(pg_dsn) as (app, tables):
        create_all(sa.create_engine(sync_url(pg_dsn), poolclass=NullPool))
        tables.rows("create table invoice (token bigint not null)")
        yield app, tables


def declare(app: Scheduler, dsn: str, limit: float | None = None) -> None:
    """The same task in this process, which does not wait in it."""
    engine = sa.create_engine(sync_url(dsn), poolclass=NullPool)

    @app.task(
        "invoice",
        lease=600,
        max_runtime=limit,
        retry=Retry(max_attempts=3, base=0),
        fences=lambda job: [(engine, "invoice/1")],
    )
    def invoice(job: Job) -> str:
        return "second"


def stopped_in_its_handler(tables: Tables, app: Scheduler, limit: float | None = None) -> tuple[PythonProcess, int]:
    process = worker(tables.dsn, STOPPED.format(limit=limit), "concurrency=1")
    tables.wait_for_session("listener")
    number = app.enqueue("invoice").id
    until(process, "in")
    process.pause()
    return process, number


def woken(process: PythonProcess) -> list[str]:
    """What it says of its write and of its lease; then it has drained, and its settlement was refused."""
    process.resume()
    process.tell("go on")
    said = [process.line(30), process.line(30)]
    process.send(15)
    counts = drained(process)
    assert (counts["lost"], counts["completed"], counts["retried"]) == (1, 0, 0)
    process.close()
    return said


def test_it_wakes_after_a_cancel_and_its_write_and_its_settlement_are_refused(
    ground: tuple[Scheduler, Tables],
) -> None:
    app, tables = ground
    declare(app, tables.dsn)
    process, number = stopped_in_its_handler(tables, app)
    assert app.cancel(number, reason="wrong customer", actor="ann").fenced, "without a word from the stopped one"
    write, lease = woken(process)
    assert write == f"refused {tables.job(number)['token']}"
    assert "cancelled by ann: wrong customer" in lease
    assert tables.rows("select * from invoice") == []
    assert (tables.job(number)["status"], tables.job(number)["result"]) == ("cancelled", None)
    assert tables.outcomes(number) == ["cancelled"]


def test_where_the_canceller_knows_no_task_another_worker_fences_the_stopped_one(
    ground: tuple[Scheduler, Tables],
) -> None:
    _, tables = ground
    knowing = Scheduler(tables.dsn)
    declare(knowing, tables.dsn)
    stranger = Scheduler(tables.dsn)
    process, number = stopped_in_its_handler(tables, knowing)
    assert not stranger.cancel(number, reason="wrong customer", actor="ann").fenced
    knowing.run_until_idle(queues=["elsewhere"])  # a worker that knows the task, whatever it works on
    assert tables.one("select raised_at from {s}.revocation") is not None
    write, _ = woken(process)
    assert write.startswith("refused")
    assert tables.rows("select * from invoice") == []
    for one in (stranger, knowing):
        one.close()


def test_it_wakes_over_its_limit_and_finds_the_next_attempt_done(ground: tuple[Scheduler, Tables]) -> None:
    app, tables = ground
    declare(app, tables.dsn, limit=300)
    process, number = stopped_in_its_handler(tables, app, limit=300)
    tables.move_clock(301)
    counts = app.run_until_idle()
    assert (counts.overran, counts.completed) == (1, 1)
    write, lease = woken(process)
    assert write.startswith("refused")
    assert "over its run-time limit of 300 s" in lease
    assert tables.outcomes(number) == ["overran", "completed"]
    assert tables.job(number)["result"] == "second"
    assert tables.rows("select * from invoice") == []
