"""Named leases: one holder at a time, renewed while it holds, told when it is lost, fenced by the issuer's tokens."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool
from support.jobs import Hand, Tables, installed, program
from support.processes import PythonProcess
from support.sql_doors import sync_url
from support.waiting import eventually

from adapters.sql import compact, create_all
from fencing import Lease, LeaseSource, current_lease, fenced_write, raise_fence, read_mark
from fencing._lease import lease_clock
from fencing.errors import LeaseLostError, LeaseUnavailableError, StaleTokenError
from scheduler import Scheduler, _leases
from scheduler.console.embedded import Postgres
from scheduler.errors import DatabaseUnavailableError


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_leases")
    postgres.drop_database("scheduler_leases")


@pytest.fixture(scope="module")
def tables(database: str) -> Iterator[Tables]:
    with installed(database) as (_, tables):
        create_all(sa.create_engine(sync_url(database), poolclass=NullPool))
        yield tables


@pytest.fixture
def app(tables: Tables) -> Iterator[Scheduler]:
    yield from scheduler(tables)


@pytest.fixture
def other(tables: Tables) -> Iterator[Scheduler]:
    """Another process's scheduler, as far as the database can tell."""
    yield from scheduler(tables)


def scheduler(tables: Tables) -> Iterator[Scheduler]:
    tables.move_clock(0)
    tables.rows("delete from {s}.lease")
    made = Scheduler(tables.dsn)
    yield made
    made.close()


def row(tables: Tables, name: str) -> dict[str, Any] | None:
    found = tables.rows("select * from {s}.lease where name = %(name)s", name=name)
    return found[0] if found else None


def test_a_scheduler_is_a_source_of_leases(app: Scheduler) -> None:
    assert isinstance(app, LeaseSource)


def test_one_holder_at_a_time_and_each_gets_a_higher_token(app: Scheduler, other: Scheduler) -> None:
    tokens = []
    for source in (app, other, app, app):
        with source.lease("reindex", ttl=30) as lease:
            tokens.append(lease.token)
            assert lease.remaining() > 0
            lease.ensure()
            for rival in (app, other):
                with pytest.raises(LeaseUnavailableError, match=r"'reindex' is held by .* for \d+\.\d s") as caught:
                    with rival.lease("reindex", ttl=30):
                        pass
                assert caught.value.holder == lease.holder
        assert lease.ended
        with pytest.raises(LeaseLostError, match="was released"):
            lease.ensure()
    assert tokens == sorted(tokens)
    assert len({token.value for token in tokens}) == 4


def test_leases_of_other_names_do_not_get_in_the_way(app: Scheduler, other: Scheduler) -> None:
    with app.lease("a", ttl=30) as a, other.lease("b", ttl=30) as b, app.lease("c", ttl=30) as c:
        assert a.token < b.token < c.token


def test_jobs_and_leases_take_their_tokens_from_one_issuer(app: Scheduler, tables: Tables) -> None:
    app.task("work")(print)
    hand = Hand(tables.dsn, {"work": 30})
    with app.lease("before", ttl=30) as before:
        app.enqueue("work")
        job = hand.claim_one()
    with app.lease("after", ttl=30) as after:
        pass
    assert before.token.value < job.token < after.token.value
    assert {before.token.lineage, after.token.lineage} == {job.lineage}
    assert before.token.issuer == after.token.issuer == tables.one("select name from {s}.issuer")
    hand.complete(job)
    hand.close()


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"name": ""}, ValueError, "a lease's name"),
        ({"name": 5}, TypeError, "a lease is named by a str"),
        ({"ttl": 0.1}, ValueError, "ttl= is a number of seconds from 0.5"),
        ({"ttl": float("inf")}, ValueError, "ttl="),
        ({"ttl": "30"}, ValueError, "ttl="),
        ({"wait": -1}, ValueError, "wait="),
        ({"wait": None}, ValueError, "wait="),
    ],
)
def test_an_impossible_lease_is_refused_and_nothing_is_taken(
    app: Scheduler, tables: Tables, options: dict[str, Any], kind: type[Exception], says: str
) -> None:
    given: dict[str, Any] = {"name": "reindex", "ttl": 30} | options
    with pytest.raises(kind, match=says), app.lease(given.pop("name"), **given):
        pass
    assert tables.rows("select * from {s}.lease") == []


def test_it_is_renewed_while_it_is_held(app: Scheduler, other: Scheduler, tables: Tables) -> None:
    with app.lease("reindex", ttl=2) as lease:

        def renewed() -> bool:
            with pytest.raises(LeaseUnavailableError), other.lease("reindex", ttl=30):
                pass
            found = row(tables, "reindex")
            assert found is not None
            assert found["token"] == lease.token.value
            return bool((found["lease_until"] - found["acquired_at"]).total_seconds() > 2 * 2)

        eventually(renewed, "it is held for twice its time")
        lease.ensure()
        assert not lease.lost.is_set()
    assert row(tables, "reindex") is None


def test_its_deadline_is_counted_from_before_it_was_asked_for(
    app: Scheduler, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted from the answer, a slow one would let the holder believe in a lease that is over in the database."""
    asked: list[float] = []
    believed: list[float] = []
    extend = Lease.extend

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            asked.append(lease_clock())
            return function(*args)

        return noted

    def extended(lease: Lease, deadline: float) -> None:
        believed.append(deadline - asked[-1])
        extend(lease, deadline)

    monkeypatch.setattr(_leases, "acquire_lease", noting(_leases.acquire_lease))
    monkeypatch.setattr(_leases, "renew_leases", noting(_leases.renew_leases))
    monkeypatch.setattr(Lease, "extend", extended)
    with app.lease("reindex", ttl=3) as lease:
        assert lease._deadline <= asked[-1] + 3
        eventually(lambda: believed, "it is renewed")
    assert max(believed) <= 3


def test_who_waits_gets_it_when_it_is_released(app: Scheduler, other: Scheduler, tables: Tables) -> None:
    got: list[Lease] = []

    def wait() -> None:
        with other.lease("reindex", ttl=30, wait=20) as lease:
            got.append(lease)

    with app.lease("reindex", ttl=30) as lease:
        waiter = threading.Thread(target=wait)
        waiter.start()
        eventually(lambda: len(tables.sessions("lease")) >= 2, "the waiter asks")
        assert got == []
    waiter.join(60)
    assert [one.token > lease.token for one in got] == [True]


def test_an_exception_in_the_block_releases_it(app: Scheduler, tables: Tables) -> None:
    with pytest.raises(ZeroDivisionError), app.lease("reindex", ttl=30):
        raise ZeroDivisionError
    assert row(tables, "reindex") is None


def test_a_lease_that_was_taken_over_is_lost_and_its_late_release_frees_nobody_else(
    app: Scheduler, other: Scheduler, tables: Tables
) -> None:
    """fencekit: a release by owner id freed the new holder."""
    with app.lease("reindex", ttl=30) as old:
        tables.move_clock(31)
        with other.lease("reindex", ttl=30) as new:
            old._deadline = 0  # by its own clock it is time to renew; the database then says no
            assert old.lost.wait(60)
            with pytest.raises(LeaseLostError, match="is lost"):
                old.ensure()
            taken = row(tables, "reindex")
            assert taken is not None
            assert taken["token"] == new.token.value
    assert row(tables, "reindex") is None


def test_the_same_process_may_take_over_its_own_lost_lease_and_the_old_one_stays_lost(
    app: Scheduler, tables: Tables
) -> None:
    held, leave, leases = threading.Event(), threading.Event(), []

    def hold() -> None:
        with app.lease("reindex", ttl=30) as lease:
            leases.append(lease)
            held.set()
            leave.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    tables.move_clock(31)
    with app.lease("reindex", ttl=30) as new:
        assert new.token > leases[0].token
        leave.set()
        holder.join(60)
        taken = row(tables, "reindex")
        assert taken is not None, "the old release freed the new holder"
        assert taken["token"] == new.token.value
        new.ensure()


def test_a_renewal_that_gets_no_answer_does_not_keep_the_news_from_the_holder(app: Scheduler, tables: Tables) -> None:
    with app.lease("reindex", ttl=1.0) as lease:
        backend = tables.wait_for_session("lease renewal")
        os.kill(backend, signal.SIGSTOP)
        try:
            assert lease.lost.wait(60)
        finally:
            os.kill(backend, signal.SIGCONT)


def test_a_row_that_somebody_has_locked_costs_neither_its_own_lease_nor_the_others(
    app: Scheduler, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[dict[int, bool]] = []
    renew_leases = _leases.renew_leases

    def noting(*args: Any) -> dict[int, bool]:
        answers.append(renew_leases(*args))
        return answers[-1]

    monkeypatch.setattr(_leases, "renew_leases", noting)
    with app.lease("one", ttl=600) as one, app.lease("two", ttl=600) as two, psycopg.connect(tables.dsn) as person:
        person.execute("select from fencing.lease where name = 'one' for update")
        for lease in (one, two):
            lease._deadline -= 300  # it is time to renew
        eventually(lambda: two.remaining() > 500, "the other one is renewed")
        eventually(lambda: {one.token.value: False} in answers, "it is asked again")
        assert not one.is_lost
        person.rollback()
        eventually(lambda: one.remaining() > 500, "it is renewed")


def test_a_session_that_is_killed_costs_no_lease(app: Scheduler, tables: Tables) -> None:
    with app.lease("reindex", ttl=4) as lease:
        backend = tables.wait_for_session("lease renewal")
        tables.rows("select pg_terminate_backend(%(pid)s)", pid=backend)
        eventually(lambda: backend not in [one["pid"] for one in tables.sessions("lease renewal")], "it is gone")
        before = row(tables, "reindex")
        assert before is not None

        def renewed() -> bool:
            now = row(tables, "reindex")
            assert now is not None
            return bool(now["lease_until"] > before["lease_until"])

        eventually(renewed, "it is renewed again")
        lease.ensure()


def test_a_fenced_write_inside_takes_its_token_and_an_older_holders_is_refused(
    app: Scheduler, other: Scheduler, tables: Tables
) -> None:
    engine = sa.create_engine(sync_url(tables.dsn), poolclass=NullPool)

    def write() -> None:
        with engine.begin() as connection, fenced_write(connection, "index/products"):
            connection.execute(sa.text("select 1"))

    with app.lease("reindex", ttl=30) as old:
        write()
        assert read_mark(engine, "index/products").token == old.token
        tables.move_clock(31)
        with other.lease("reindex", ttl=30) as new:
            with engine.begin() as connection, fenced_write(connection, "index/products", token=new):
                pass
        with engine.begin() as connection, pytest.raises(StaleTokenError) as caught:
            with fenced_write(connection, "index/products", token=old):
                pass
        assert (caught.value.presented, caught.value.mark) == (old.token, new.token)
        assert caught.value.holder == new.holder


def test_a_change_of_the_servers_identity_begins_a_new_lineage_here_too(app: Scheduler, tables: Tables) -> None:
    with app.lease("before", ttl=30) as before:
        pass
    tables.rows("update {s}.issuer set identity = 'another server'")
    with app.lease("after", ttl=30) as after:
        pass
    assert after.token > before.token
    assert after.token.lineage != before.token.lineage


HOLD = """
    with app.lease("reindex", ttl=float(sys.argv[2])) as lease:
        say("held", lease.token.value)
        while not lease.lost.wait(0.01):
            pass
        say("lost")
        hear()
"""


def holding(tables: Tables, ttl: float) -> PythonProcess:
    return program(tables.dsn, HOLD, str(ttl))


def test_a_process_that_is_stopped_loses_it_and_learns_of_it_when_it_wakes(app: Scheduler, tables: Tables) -> None:
    with holding(tables, ttl=1) as process:
        held = int(process.line().split()[1])
        process.pause()
        with app.lease("reindex", ttl=30, wait=20) as lease:
            assert lease.token.value > held
            process.resume()
            process.expect("lost")
            process.tell("go on")
            assert process.wait() == 0
            taken = row(tables, "reindex")
            assert taken is not None, "the woken process released the next holder's lease"
            assert taken["token"] == lease.token.value
            lease.ensure()


def test_a_process_that_is_killed_gives_it_up_when_its_time_is_over(app: Scheduler, tables: Tables) -> None:
    with holding(tables, ttl=30) as process:
        held = int(process.line().split()[1])
        process.kill()
        with pytest.raises(LeaseUnavailableError), app.lease("reindex", ttl=30):
            pass
        tables.move_clock(31)
        with app.lease("reindex", ttl=30, wait=20) as lease:
            assert lease.token.value > held


_FORKS = """
import signal
child = None
try:
    with app.lease("reindex", ttl=30) as lease:
        for _ in range(20):
            child = os.fork()
            if not child:
                signal.alarm(30)  # where it hangs, let it end
                raise RuntimeError
            assert os.waitpid(child, 0)[1] == 0
        lease.ensure()
        say("held", lease.token.value)
        hear()
except RuntimeError:
    os._exit(0)
say("over")
"""


def test_one_that_was_taken_while_its_answer_got_lost_is_not_out_of_reach(
    app: Scheduler, other: Scheduler, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire_lease, lost = _leases.acquire_lease, []

    def losing(*args: Any) -> Any:
        taken = acquire_lease(*args)
        if not lost:
            lost.append(taken.token)
            raise DatabaseUnavailableError("the answer got lost")
        return taken

    monkeypatch.setattr(_leases, "acquire_lease", losing)
    with pytest.raises(DatabaseUnavailableError), app.lease("reindex", ttl=600):
        pass
    assert (row(tables, "reindex") or {})["token"] == lost[0]
    with pytest.raises(LeaseUnavailableError), other.lease("reindex", ttl=600):
        pass  # for all that others know, somebody holds it
    with app.lease("reindex", ttl=600) as lease:
        assert lease.token.value > lost[0]
        with pytest.raises(LeaseUnavailableError), app.lease("reindex", ttl=600):
            pass  # now somebody does
        lease.ensure()


def test_a_fork_that_leaves_the_block_leaves_the_lease_to_its_parent(app: Scheduler, tables: Tables) -> None:
    with program(tables.dsn, _FORKS) as process:
        assert process.line() == f"held {(row(tables, 'reindex') or {}).get('token')}"
        process.tell("go on")
        assert process.line() == "over"
    assert row(tables, "reindex") is None


def test_after_a_close_it_works_anew(app: Scheduler) -> None:
    with app.lease("reindex", ttl=30) as before:
        pass
    app.close()
    with app.lease("reindex", ttl=0.5) as after:
        assert after.token > before.token
        assert after.holder != before.holder


def test_who_holds_one_while_its_scheduler_is_closed_is_told_and_gives_it_back_all_the_same(
    app: Scheduler, tables: Tables
) -> None:
    later = app.lease("later", ttl=600)
    with app.lease("reindex", ttl=30) as lease:
        app.close()
        assert lease.lost.is_set()
        with pytest.raises(LeaseLostError, match="its scheduler was closed"):
            lease.ensure()
    assert row(tables, "reindex") is None
    with later as lease:
        lease._deadline -= 300  # it is time to renew
        eventually(lambda: lease.remaining() > 500, "it is renewed as any other")
    later._leases.close()


# -- the same in asyncio


def test_an_async_block_holds_it_renews_it_and_releases_it(app: Scheduler, other: Scheduler) -> None:
    async def hold() -> None:
        async with app.lease("one", ttl=4) as lease:
            assert current_lease() is lease
            with pytest.raises(LeaseUnavailableError):
                async with other.lease("one", ttl=2):
                    pass
            before = lease.remaining()
            while lease.remaining() <= before:  # until a renewal was confirmed
                before = lease.remaining()
                await asyncio.sleep(0.01)
            lease.ensure()
        with pytest.raises(LeaseLostError, match="released"):
            lease.ensure()
        async with other.lease("one", ttl=2) as next_one:
            assert next_one.token > lease.token

    asyncio.run(hold())


def test_an_async_task_that_waits_for_it_leaves_the_loop_to_the_others(app: Scheduler, other: Scheduler) -> None:
    async def both() -> list[str]:
        told: list[str] = []

        async def waiting() -> None:
            async with app.lease("one", ttl=5, wait=20):
                told.append("got it")

        async with other.lease("one", ttl=5):
            task = asyncio.create_task(waiting())
            for _ in range(20):
                await asyncio.sleep(0.01)
            told.append("still here")
        await task
        return told

    assert asyncio.run(both()) == ["still here", "got it"]


def test_an_async_task_that_is_cancelled_while_it_asks_keeps_no_lease(
    app: Scheduler, other: Scheduler, tables: Tables
) -> None:
    """The question was sent, and its answer comes when nobody waits for it any more."""

    async def cancelled() -> None:
        async def hold() -> None:
            async with app.lease("one", ttl=30):
                raise AssertionError("it was cancelled before")

        with psycopg.connect(tables.dsn) as door:
            door.execute(f"lock table {tables.schema}.lease in access exclusive mode".encode())
            task = asyncio.create_task(hold())
            await asyncio.to_thread(tables.wait_for_session, "lease", waiting=True)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            door.rollback()

    asyncio.run(cancelled())
    with other.lease("one", ttl=5, wait=20):
        pass


def test_an_answer_that_came_in_the_moment_of_the_cancel_is_given_back(app: Scheduler, tables: Tables) -> None:
    asked = _leases._Asked(app._here().leases, "one", 30.0)
    assert isinstance(asked.ask(), Lease)
    asked.abandon()
    eventually(lambda: row(tables, "one") is None, "it is released")


def test_an_async_task_that_is_cancelled_while_it_releases_leaves_no_lease(app: Scheduler, tables: Tables) -> None:
    """It waits for a thread to do so, and they are all taken."""

    async def cancelled() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        busy, leaving, leases = threading.Event(), asyncio.Event(), []

        async def hold() -> None:
            async with app.lease("one", ttl=300) as lease:
                leases.append(lease)
                asyncio.get_running_loop().run_in_executor(None, busy.wait)
                leaving.set()

        task = asyncio.create_task(hold())
        try:
            await leaving.wait()
            with pytest.raises(LeaseLostError, match="released"):
                leases[0].ensure()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        finally:
            busy.set()
        assert await asyncio.to_thread(row, tables, "one") is None, "the only thread did that first"

    asyncio.run(cancelled())


def test_one_hold_is_for_one_block(app: Scheduler) -> None:
    hold = app.lease("one", ttl=5)
    with hold:
        with pytest.raises(RuntimeError, match=r"call lease\(\) for each block"):
            hold.__enter__()
    with hold:
        pass


def test_the_oldest_live_token_is_that_of_whoever_may_still_write(app: Scheduler, tables: Tables) -> None:
    engine = sa.create_engine(sync_url(tables.dsn), poolclass=NullPool)
    with app.lease("finished", ttl=30) as finished:
        raise_fence(engine, "finished/1", token=finished)
    assert app.oldest_live_token() == finished.token, "the newest one that was issued, where nobody holds anything"
    tables.rows(
        "insert into {s}.job (queue, task, args, priority, due_at, max_attempts, created_at)"
        " values ('default', 'work', '{}', 0, {s}.clock(), 5, {s}.clock())"
    )
    with contextlib.closing(Hand(tables.dsn, {"work": 30.0})) as hand:
        job = hand.claim_one()
        tables.move_clock(3600)  # its lease has run out, and nobody has taken it back
        with app.lease("newer", ttl=30) as newer, app.lease("newest", ttl=30):
            assert app.oldest_live_token().value == job.token
            assert compact(engine, app.oldest_live_token(), idle=0) >= 1  # marks that other tests have left go too
            assert read_mark(engine, "finished/1") is None
            hand.complete(job)
            assert app.oldest_live_token() == newer.token
