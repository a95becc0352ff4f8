"""Fences of jobs: raised before the handler's first line, and jobs that meet on a resource let each other through."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool
from support.jobs import Hand, Tables, Working, installed_beside
from support.sql_doors import sync_url
from support.waiting import eventually

from adapters.sql import SqlGuard, create_all
from fencing import Token, fenced_write, raise_fence
from fencing.errors import StaleTokenError
from fencing.testing import AsyncMemoryGuard, MemoryGuard
from scheduler import Job, Retry, Scheduler
from scheduler.console.embedded import Postgres

ONCE = Retry(max_attempts=1)


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_yields")
    postgres.drop_database("scheduler_yields")


@pytest.fixture
def ground(database: str) -> Iterator[tuple[Scheduler, Tables]]:
    with installed_beside(database) as both:
        yield both


@pytest.fixture
def guard() -> MemoryGuard:
    return MemoryGuard()


def mark(guard: MemoryGuard, resource: str = "r") -> Token:
    found = guard.read_mark(resource)
    assert found is not None
    return found.token


def test_two_jobs_of_two_seconds_and_a_stream_of_short_ones_on_one_resource_all_complete(
    app: Scheduler, tables: Tables
) -> None:
    engine = sa.create_engine(sync_url(tables.dsn), poolclass=NullPool)
    create_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.text("create table if not exists writes (job bigint, token bigint, part text)"))

    def write(job: Job, part: str) -> None:
        with engine.begin() as connection, fenced_write(connection, "account/1"):
            connection.execute(
                sa.text("insert into writes values (:job, :token, :part)"),
                {"job": job.id, "token": job.token.value, "part": part},
            )

    streaming = threading.Event()

    @app.task("long", retry=ONCE, fences=[(engine, "account/1")])
    def long(job: Job) -> None:
        streaming.set()
        write(job, "first")
        time.sleep(2)
        write(job, "last")

    app.task("short", retry=ONCE, fences=[(engine, "account/1")])(lambda job: write(job, "only"))
    long_ones = [app.enqueue("long").id for _ in range(2)]
    with Working(app), Working(app):
        assert streaming.wait(60)
        shorts = [app.enqueue("short").id for _ in range(8)]
        eventually(lambda: tables.states() == {"completed": 10}, "all complete", 90)
    with engine.connect() as connection:
        writes = [tuple(row) for row in connection.execute(sa.text("select job, token, part from writes"))]
    for number in long_ones:
        token = tables.job(number)["token"]
        assert (number, token, "first") in writes
        assert (number, token, "last") in writes
    assert {job for job, _, part in writes if part == "only"} == set(shorts)
    outcomes = [one for job in tables.jobs() for one in tables.outcomes(job["id"])]
    assert set(outcomes) == {"yielded", "completed"}, "nobody failed, some gave way"


def test_the_fence_is_raised_before_the_handlers_first_line(app: Scheduler, tables: Tables, guard: MemoryGuard) -> None:
    app.task("work", fences=lambda job: [(guard, f"r/{job.args}", "shared")])(
        lambda job: [mark(guard, f"r/{job.args}").value, mark(guard, "shared").value]
    )
    number = app.enqueue("work", 7).id
    app.run_until_idle()
    job = tables.job(number)
    assert job["result"] == [job["token"], job["token"]]


def test_a_job_that_meets_a_live_holder_is_given_back_and_runs_when_that_one_is_done(
    app: Scheduler, tables: Tables, guard: MemoryGuard
) -> None:
    app.task("work", retry=ONCE, fences=[(guard, "r")])(lambda job: job.token.value)
    with app.lease("holder", ttl=30) as lease:
        raise_fence(guard, "r", token=lease)
        number = app.enqueue("work").id
        with Working(app):
            eventually(lambda: tables.job(number)["yields"] >= 3, "it gives way")
            assert mark(guard) == lease.token, "the holder's mark was not touched"
            lease.ensure()
            other = app.enqueue("work", queue="nobody's").id
    with Working(app):
        job = tables.wait_for(number, "completed")
    assert job["attempt"] == 1, "giving way is no attempt"
    assert job["result"] == mark(guard).value
    assert job["error"].startswith("another live holder")
    assert set(tables.outcomes(number)[:-1]) == {"yielded"}
    assert tables.job(other)["yields"] == 0


@pytest.mark.parametrize("task", ["work", "foreign"])
def test_the_mark_of_a_holder_whose_lease_ran_out_stops_nobody(
    app: Scheduler, tables: Tables, guard: MemoryGuard, task: str
) -> None:
    """Also one that no worker takes back, since none knows its task."""
    app.task("work", fences=[(guard, "r")])(lambda _: None)
    elsewhere = Scheduler(tables.dsn, schema=tables.schema)
    elsewhere.task(task)(print)
    elsewhere.enqueue(task, key="crashed")
    elsewhere.close()
    crashed = Hand(tables.dsn, {task: 30}, owner="crashed", schema=tables.schema)
    job = crashed.claim_one()
    issuer = tables.one("select name from {s}.issuer")
    raise_fence(guard, "r", token=Token(job.token, issuer, job.lineage))
    number = app.enqueue("work").id
    app.run_until_idle()
    assert tables.job(number)["yields"] >= 1, "while its lease lives it is given way to"
    tables.move_clock(31)
    app.run_until_idle()
    assert tables.job(number)["status"] == "completed"
    assert tables.job(job.id)["status"] == ("completed" if task == "work" else "leased")
    crashed.close()


def test_a_holder_that_is_stopped_in_its_transaction_costs_the_next_job_no_attempt(
    app: Scheduler, tables: Tables
) -> None:
    """Its lease is over, its row lock is not: five attempts would be over in half a minute, and the job dead, unrun."""
    engine = sa.create_engine(sync_url(tables.dsn), poolclass=NullPool)
    create_all(engine)
    target = SqlGuard(lock_timeout=0.1).on(engine)
    started: list[int] = []
    app.task("work", retry=ONCE, fences=[(target, "account/2")])(lambda job: started.append(job.id))
    app.task("impatient", retry=ONCE, max_yields=1, fences=[(target, "account/2")])(lambda job: started.append(job.id))
    with app.lease("stopped", ttl=30) as lease:
        token = lease.token
    with engine.begin() as stopped:
        with fenced_write(stopped, "account/2", token=token):
            pass
        number, other = app.enqueue("work").id, app.enqueue("impatient").id
        app.run_until_idle()
        assert (tables.states(), started) == ({"ready": 1, "dead": 1}, [])
        assert "ContentionError" in tables.job(other)["error"]
        assert set(tables.outcomes(number)) == {"yielded"}
        assert tables.job(number)["error"].startswith("its fences could not be raised: ")
    tables.rows("update {s}.job set due_at = {s}.clock() where status = 'ready'")
    app.run_until_idle()
    assert (tables.job(number)["status"], started) == ("completed", [number])
    assert tables.job(number)["attempt"] == 1
    engine.dispose()


def test_a_named_lease_is_given_way_to_as_long_as_it_lives(app: Scheduler, tables: Tables, guard: MemoryGuard) -> None:
    app.task("work", fences=[(guard, "r")])(lambda _: None)
    lease = app.lease("reindex", ttl=3600)
    raise_fence(guard, "r", token=lease.__enter__())
    number = app.enqueue("work").id
    app.run_until_idle()
    assert set(tables.outcomes(number)) == {"yielded"}
    tables.move_clock(3601)  # its process was stopped, and renews no more
    app.run_until_idle()
    assert tables.job(number)["status"] == "completed"
    lease.__exit__(None, None, None)


def test_a_job_that_finds_a_newer_token_comes_back_under_one_that_is_newer_still(
    app: Scheduler, tables: Tables, guard: MemoryGuard
) -> None:
    """The newer one is done already: the older job only waited too long for its thread."""

    @app.task("old", retry=ONCE, fences=lambda job: overtaken(job) or [(guard, "r")])
    def old(job: Job) -> int:
        return job.token.value

    tokens: list[int] = []

    def overtaken(job: Job) -> None:
        tokens.append(job.token.value)
        if len(tokens) == 1:
            with app.lease("newer", ttl=30) as lease:
                raise_fence(guard, "r", token=lease)
                tokens.append(lease.token.value)

    number = app.enqueue("old").id
    with Working(app):
        job = tables.wait_for(number, "completed")
    first, newer, last = tokens
    assert first < newer < last == job["result"]
    assert (job["attempt"], job["yields"]) == (1, 1)


def test_a_stale_write_under_a_live_lease_is_a_yield_and_not_a_failure(
    app: Scheduler, tables: Tables, guard: MemoryGuard
) -> None:
    runs: list[Token] = []

    @app.task("work", retry=ONCE)
    def work(job: Job) -> None:
        runs.append(job.token)
        if len(runs) == 1:
            with app.lease("taker", ttl=30) as lease:
                raise_fence(guard, "r", token=lease)
        with fenced_write(guard, "r", token=job) as store:
            store.write("r", job.token.value)

    number = app.enqueue("work").id
    with Working(app):
        job = tables.wait_for(number, "completed")
    assert (job["attempt"], job["yields"], len(runs)) == (1, 1, 2)
    assert guard.store.read("r") == runs[1].value


def test_a_refusal_of_somebody_elses_token_is_a_failure_like_any_other(
    app: Scheduler, tables: Tables, guard: MemoryGuard
) -> None:
    @app.task("work", retry=ONCE)
    def work(job: Job) -> None:
        with app.lease("inner", ttl=30) as lease:
            raise_fence(guard, "r", token=lease)
            with fenced_write(guard, "r", token=Token(1, lease.token.issuer, lease.token.lineage)):
                pass

    number = app.enqueue("work").id
    app.run_until_idle()
    job = tables.job(number)
    assert (job["status"], job["reason"], job["yields"]) == ("dead", "attempts used up", 0)
    assert "StaleTokenError" in job["error"]


def test_preempt_takes_the_resource_over_and_the_older_holder_is_refused(
    app: Scheduler, tables: Tables, guard: MemoryGuard
) -> None:
    app.task("urgent", preempt=True, fences=[(guard, "r")])(lambda job: job.token.value)
    with app.lease("holder", ttl=30) as lease:
        raise_fence(guard, "r", token=lease)
        number = app.enqueue("urgent").id
        app.run_until_idle()
        job = tables.job(number)
        assert (job["status"], job["yields"]) == ("completed", 0)
        with pytest.raises(StaleTokenError), fenced_write(guard, "r", token=lease):
            pass


def test_a_job_that_always_meets_another_ends_dead_as_starved(
    app: Scheduler, tables: Tables, guard: MemoryGuard
) -> None:
    app.task("work", max_yields=3, fences=[(guard, "r")])(lambda _: None)
    with app.lease("holder", ttl=30) as lease:
        raise_fence(guard, "r", token=lease)
        number = app.enqueue("work").id
        with Working(app):
            job = tables.wait_for(number, "dead")
    assert job["reason"] == "starved"
    assert tables.outcomes(number) == ["yielded", "yielded", "dead"]


def test_fences_may_be_async_and_on_an_async_target(app: Scheduler, tables: Tables, guard: MemoryGuard) -> None:
    async def fences(job: Job) -> list[tuple[Any, str]]:
        return [(AsyncMemoryGuard(guard), f"r/{job.args}"), (guard, "sync")]

    async def work(job: Job) -> int:
        return job.token.value

    app.task("work", fences=fences)(work)
    number = app.enqueue("work", 1).id
    app.run_until_idle()
    assert tables.job(number)["result"] == mark(guard, "r/1").value == mark(guard, "sync").value


@pytest.mark.parametrize(
    ("fences", "says"),
    [
        (lambda _: 1 / 0, "ZeroDivisionError"),
        (lambda _: [("no target", "r")], "TypeError"),
        (lambda _: [MemoryGuard()], "TypeError"),
        (lambda _: [(MemoryGuard(), "")], "a resource's name is empty"),
    ],
)
def test_fences_that_make_no_sense_are_a_failed_attempt_and_the_handler_does_not_start(
    app: Scheduler, tables: Tables, fences: Any, says: str
) -> None:
    started: list[Job] = []
    app.task("work", retry=ONCE, fences=fences)(started.append)
    number = app.enqueue("work").id
    app.run_until_idle()
    job = tables.job(number)
    assert (job["status"], started) == ("dead", [])
    assert says in job["error"]


def test_a_mark_of_another_issuer_is_a_failed_attempt_that_says_so(
    app: Scheduler, tables: Tables, guard: MemoryGuard
) -> None:
    raise_fence(guard, "r", token=Token(5, "another", "line"))
    app.task("work", retry=ONCE, fences=[(guard, "r")])(lambda _: None)
    number = app.enqueue("work").id
    app.run_until_idle()
    assert "IssuerMismatchError" in tables.job(number)["error"]
    assert mark(guard) == Token(5, "another", "line")
