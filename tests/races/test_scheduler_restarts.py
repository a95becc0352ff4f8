"""Servers that go away and come back as something else: the work goes on, nothing is lost, and no token falls."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool
from support.jobs import Hand, Tables, Working, drained, installed, worker
from support.servers import PG_BINDIR, available
from support.sql_doors import sync_url
from support.waiting import eventually

from adapters.sql import create_all
from fencing import fenced_write
from fencing.errors import LeaseUnavailableError
from scheduler import Job, Retry, Scheduler
from scheduler._connect import translated
from scheduler.console.embedded import Postgres
from scheduler.errors import DatabaseUnavailableError

LEASES = {"work": 30.0}


@pytest.fixture(scope="module")
def waiting_server() -> Iterator[tuple[Postgres, str]]:
    """A server whose commits can be made to wait for a standby that does not come."""
    with available(), Postgres(bindir=PG_BINDIR) as server:
        yield server, server.create_database("shop")


def wait_for_standby(admin: psycopg.Connection[Any], name: str) -> None:
    """Commits wait for the standby of that name from now on."""
    admin.execute(f"alter system set synchronous_standby_names = {name}".encode())
    admin.execute("select pg_reload_conf()")


def tokens_of(hand: Hand, count: int = 3) -> list[tuple[int, str]]:
    """Claims jobs one by one; their tokens and lineages. They have to rise."""
    claimed = [(job.token, job.lineage) for job in (hand.claim_one() for _ in range(count))]
    assert claimed == sorted(claimed)
    return claimed


def filled(dsn: str, jobs: int = 50) -> None:
    with installed(dsn) as (app, _):
        app.task("work", lease=30)(print)
        app.enqueue_many("work", range(jobs))


def claim_from(dsn: str, owner: str) -> list[tuple[int, str]]:
    hand = Hand(dsn, LEASES, owner=owner)
    try:
        return tokens_of(hand)
    finally:
        hand.close()


def test_a_restart_in_the_middle_of_a_run_stops_no_loop_loses_no_job_and_lowers_no_token(
    pg_server: Callable[..., Postgres],
) -> None:
    """dbos #716, procrastinate: recovery ran once, failed, and never again."""
    server = pg_server()
    dsn = server.create_database("shop")
    with installed(dsn) as (app, tables):
        create_all(sa.create_engine(sync_url(dsn), poolclass=NullPool))
        tables.rows("create table effect (job bigint, token bigint)")
        tasks = """
            import sqlalchemy
            from sqlalchemy.pool import NullPool
            engine = sqlalchemy.create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
            again = Retry(max_attempts=20, base=0.2, cap=0.2)

            @app.task("work", lease=15, retry=again)
            def work(job):
                fenced_write(engine, f"effect/{job.id}", once=job.key, effect=lambda connection: connection.execute(
                    sqlalchemy.text("insert into effect values (:job, :token)"),
                    dict(job=job.id, token=job.token.value)) and None)

            @app.task("long", lease=60, retry=Retry(max_attempts=1))
            def long(job):
                hear()
                work(job)

            app.task("tick", retry=again)(lambda job: None)
            app.schedule("tick", "* * * * * *", seconds=True, tz="UTC", task="tick", catch_up="all")
        """
        app.task("work", retry=Retry(max_attempts=20))(print)
        app.task("long", retry=Retry(max_attempts=1))(print)
        held, go_on, lost = threading.Event(), threading.Event(), []

        def hold() -> None:
            with app.lease("reindex", ttl=60) as lease:
                held.set()
                go_on.wait(280)
                lost.append(lease.lost.is_set())
                lease.ensure()

        holder = threading.Thread(target=hold, daemon=True)
        holder.start()
        assert held.wait(60)
        long = app.enqueue("long").id
        app.enqueue_many("work", range(600))
        with worker(dsn, tasks) as one, worker(dsn, tasks) as two:
            token = tables.wait_for(long, "leased")["token"]
            eventually(lambda: tables.states().get("completed", 0) > 100, "the run is in the middle")
            before = tables.one("select max(token) from {s}.job")
            server.restart("immediate")
            tables.connect_anew()
            with pytest.raises(LeaseUnavailableError):
                _other_lease(dsn)
            one.tell("go on")
            two.tell("go on")
            after = app.enqueue("work", "after").id
            eventually(lambda: tables.job(after)["status"] == "completed", "what is enqueued afterwards runs", 120)
            eventually(lambda: tables.states().get("leased", 0) == 0, "everything has ended", 120)
            ticks = len(tables.occurrences("tick"))
            eventually(lambda: len(tables.occurrences("tick")) > ticks, "the materialisers go on")
            go_on.set()
            holder.join(60)
            for process in (one, two):
                process.send(15)
                drained(process)
        assert lost == [False], "the named lease was kept over the restart"
        assert tables.job(long)["token"] == token, "the holder wrote and settled under the token from before"
        assert tables.outcomes(long) == ["completed"]
        assert tables.job(after)["token"] > before
        assert tables.rows("select 1 from {s}.job where status not in ('completed', 'ready')") == []
        assert tables.one("select count(*) from {s}.job where task <> 'tick' and status = 'completed'") == 602
        assert tables.one("select count(*) from effect") == tables.one("select count(distinct job) from effect") == 602
        assert tables.one("select count(distinct lineage) from {s}.attempt") == 2


def _other_lease(dsn: str) -> None:
    other = Scheduler(dsn)
    with other.lease("reindex", ttl=15):
        pass
    other.close()


def test_a_server_killed_under_asynchronous_commit_repeats_no_token_and_forgets_no_settlement(
    pg_server: Callable[..., Postgres],
) -> None:
    # The log is written at every commit that waits for it, and else once in ten seconds.
    server = pg_server(settings={"synchronous_commit": "off", "wal_writer_delay": "10s"})
    dsn = server.create_database("shop")
    filled(dsn)
    tables = Tables(dsn)
    tables.rows("create table forgotten ()")
    # Whether the server really forgets depends on where in its ten seconds the writer is.
    for round_ in range(1, 5):
        hand = Hand(dsn, LEASES)
        done = hand.claim_one()
        hand.complete(done, "settled")
        before = tokens_of(hand)
        tables.rows("insert into forgotten default values")
        server.kill()
        server.start_again()
        tables.connect_anew()
        after = claim_from(dsn, "after")
        assert after[0][0] > before[-1][0]
        assert {lineage for _, lineage in after}.isdisjoint(lineage for _, lineage in before)
        assert tables.job(done.id)["result"] == "settled"
        assert tables.states() == {"completed": round_, "leased": 6 * round_, "ready": 50 - 7 * round_}
        if tables.one("select count(*) from forgotten") < round_:
            break
    else:
        pytest.fail("the server forgot nothing: the case is no case")
    tables.connection.close()


def test_a_promoted_standby_that_lagged_issues_higher_tokens_and_until_then_none(
    pg_server: Callable[..., Postgres], tmp_path: Path
) -> None:
    primary = pg_server()
    dsn = primary.create_database("shop")
    filled(dsn)
    first = claim_from(dsn, "first")
    backup = primary.base_backup(tmp_path / "backup")
    with primary.standby(name="east") as east, primary.standby(name="west") as west:
        for standby in (east, west):
            standby.wait_until_caught_up()
        with pytest.raises(DatabaseUnavailableError, match="read-only"), translated("claim"):
            claim_from(east.dsn("shop"), "on the standby")
        idle = Hand(east.dsn("shop"), {"nothing": 30.0})
        with pytest.raises(DatabaseUnavailableError, match="recovery is in progress"), translated("claim"):
            idle.claim(sweep=False)
        idle.close()
        app = Scheduler(east.dsn("shop"))
        app.task("work")(print)
        for refused in (lambda: app.enqueue("work"), lambda: app.lease("a", ttl=30).__enter__()):
            with pytest.raises(DatabaseUnavailableError, match="read-only"):
                refused()
        app.close()
        east.stop_receiving()
        second = claim_from(dsn, "second")
        assert second[-1][0] > first[-1][0]
        primary.kill()
        east.promote()
        third = claim_from(east.dsn("shop"), "third")
        assert third[0][0] > second[-1][0], "higher than what the standby never heard of"
        assert third[0][1] not in {lineage for _, lineage in first + second}
        west.promote()
        fourth = claim_from(west.dsn("shop"), "fourth")
        assert fourth[0][0] > third[-1][0], "its sibling, promoted later, has another clock and another lineage"
        assert fourth[0][1] != third[0][1]
    restored = pg_server(backup=backup)
    fifth = claim_from(restored.dsn("shop"), "fifth")
    assert fifth[0][0] > fourth[-1][0], "an old base backup, started last, is above everything"
    assert fifth[0][1] not in {lineage for _, lineage in first + second + third + fourth}


def test_what_ended_while_the_server_was_away_is_settled_when_it_is_back(
    pg_server: Callable[..., Postgres], caplog: pytest.LogCaptureFixture
) -> None:
    server = pg_server()
    dsn = server.create_database("shop")
    with installed(dsn) as (app, tables):
        away, started = threading.Event(), threading.Semaphore(0)

        @app.task("work", lease=30, retry=Retry(max_attempts=1))
        def work(_: Job) -> str:
            started.release()
            assert away.wait(60)
            return "done while it was away"

        numbers = [app.enqueue("work").id for _ in range(3)]
        with Working(app):
            for _ in numbers:
                assert started.acquire(timeout=60)
            tables.connect_anew()
            server.stop()
            away.set()
            eventually(lambda: caplog.text.count("settler failed") >= 2, "the settler has tried, and tried again")
            server.start_again()
            for number in numbers:
                assert tables.wait_for(number, "completed")["result"] == "done while it was away"
        assert [tables.outcomes(number) for number in numbers] == [["completed"]] * 3


def test_a_holder_writes_and_settles_over_a_restart_shorter_than_its_lease(
    pg_server: Callable[..., Postgres],
) -> None:
    server = pg_server()
    dsn = server.create_database("shop")
    with installed(dsn) as (app, tables):
        engine = sa.create_engine(sync_url(dsn), poolclass=NullPool)
        create_all(engine)
        restarted, started = threading.Event(), threading.Event()

        @app.task("work", lease=24, retry=Retry(max_attempts=1))
        def work(job: Job) -> Any:
            started.set()
            assert restarted.wait(60)
            job.lease.ensure()
            return fenced_write(engine, "account/1", effect=lambda _: job.token.value)

        number = app.enqueue("work").id
        with Working(app):
            assert started.wait(60)
            tables.connect_anew()
            server.restart()
            renewed = tables.job(number)["lease_until"]
            eventually(lambda: tables.job(number)["lease_until"] > renewed, "the heart beats again")
            restarted.set()
            tables.wait_for(number, "completed")
        job = tables.job(number)
        assert job["result"] == job["token"]
        assert tables.outcomes(number) == ["completed"]


@pytest.mark.parametrize("unique", ["alive", "forever"])
def test_that_a_job_is_there_already_is_said_once_a_synchronous_standby_has_it(
    waiting_server: tuple[Postgres, str], unique: Any
) -> None:
    """After a crash a job can be seen whose own commit still waited, and a failover takes it away again."""
    server, dsn = waiting_server
    with installed(dsn, f"test_{unique}") as (app, _), ExitStack() as stack:
        # Each twice: once in a while a sequence's number is written to the log, which would be waited for too.
        apps = [Scheduler(dsn, schema=f"test_{unique}") for _ in range(4)]
        for one in (app, *apps):
            one.task("work")(print)
            stack.callback(one.close)
        first = app.enqueue("work", key="one", unique=unique)
        app.enqueue_many("work", ["many"], key=str, unique=unique)
        pool = stack.enter_context(ThreadPoolExecutor(4))
        admin = stack.enter_context(psycopg.connect(server.dsn(), autocommit=True))
        try:
            wait_for_standby(admin, "'nobody'")
            single = [pool.submit(one.enqueue, "work", key="one", unique=unique) for one in apps[:2]]
            many = [pool.submit(one.enqueue_many, "work", ["many"], key=str, unique=unique) for one in apps[2:]]
            waiting = "select count(*) = 4 from pg_stat_activity where wait_event = 'SyncRep'"
            eventually(lambda: admin.execute(waiting).fetchone() == (True,), "all wait for the standby", 20)
        finally:
            wait_for_standby(admin, "default")
        assert [asked.result(20) for asked in single] == [first._replace(created=False)] * 2
        assert [asked.result(20) for asked in many] == [0, 0]
