"""Two connections at one mark, ordered by the locks that they wait for: no race is left to luck."""

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import sessionmaker
from support import sql_doors
from support.locks import end_backend, wait_until_blocked
from support.sql_doors import ISOLATION, PUT, do, ledger, marks, token, with_isolation

from adapters.sql import SqlGuard
from fencing import Token, errors, fenced_write, raise_fence


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as threads:
        yield threads


@contextmanager
def holder(address: str, *resources: str, token: Token) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that has raised the marks and is still open; the caller commits it or rolls it back."""
    connection = psycopg.connect(address)
    try:
        connection.execute("select 1")
        with connection.transaction():
            raise_fence(connection, *resources, token=token)
        yield connection
    finally:
        connection.close()


class Writer:
    """A fenced write on a thread, through a connection whose waiting can be watched."""

    def __init__(self, kind: str, address: str, guard: SqlGuard | None = None, snapshot: bool = False) -> None:
        """``snapshot``: whether the transaction has looked at the marks before it writes."""
        self.kind = kind
        self.address = address
        self.guard = guard or SqlGuard(lock_timeout=60)
        self.snapshot = snapshot
        self.pid = 0
        self.begun = threading.Event()
        self.go = threading.Event()

    def write(self, *resources: str, token: Token) -> None:
        """``ledger[resource] = token``, once told to go; commits."""
        if self.kind == "psycopg-async":
            asyncio.run(self._write_async(resources, token))
        elif self.kind == "psycopg":
            with psycopg.connect(self.address, autocommit=True) as connection, connection.transaction():
                self._write(connection, connection.info.backend_pid, resources, token)
        else:
            with sql_doors.engine(self.address).begin() as target:
                pid = target.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
                self._write(target, pid, resources, token)

    def _write(self, target: Any, pid: int, resources: tuple[str, ...], token: Token) -> None:
        if self.snapshot:
            do(target, LOOK)
        self.pid = pid
        self.begun.set()
        assert self.go.wait(60)
        with fenced_write(self.guard.on(target), *resources, token=token):
            for resource in resources:
                do(target, PUT, id=resource, owner=token.value)

    async def _write_async(self, resources: tuple[str, ...], token: Token) -> None:
        async with await psycopg.AsyncConnection.connect(self.address, autocommit=True) as connection:
            async with connection.transaction():
                if self.snapshot:
                    await do(connection, LOOK)
                self.pid = connection.info.backend_pid
                self.begun.set()
                assert await asyncio.to_thread(self.go.wait, 60)
                async with fenced_write(self.guard.on(connection), *resources, token=token):
                    for resource in resources:
                        await do(connection, PUT, id=resource, owner=token.value)

    def begin(self, pool: ThreadPoolExecutor, *resources: str, token: Token) -> "Future[None]":
        """Returns once the transaction is open; the write begins at ``go``."""
        future = pool.submit(self.write, *resources, token=token)
        assert self.begun.wait(60)
        return future

    def start(self, pool: ThreadPoolExecutor, *resources: str, token: Token) -> "Future[None]":
        """Begins the write on a thread."""
        self.go.set()
        return self.begin(pool, *resources, token=token)

    def start_blocked(self, pool: ThreadPoolExecutor, *resources: str, token: Token) -> "Future[None]":
        """Begins the write on a thread and returns once it waits for a lock."""
        future = self.start(pool, *resources, token=token)
        wait_until_blocked(self.address.partition("?")[0], self.pid)
        return future


LOOK = "select count(*) from fencing_mark"
KINDS = ("psycopg", "psycopg-async", "connection")
ANSWERS = [
    pytest.param(token(9), token(5), errors.StaleTokenError, id="stale"),
    pytest.param(token(9), token(9, "line-b"), errors.LineageConflictError, id="lineage"),
    pytest.param(token(9, issuer="bank"), token(99), errors.IssuerMismatchError, id="issuer"),
    pytest.param(token(9), token(9), None, id="repeated"),
    pytest.param(token(9), token(10), None, id="advanced"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("existing", [True, False], ids=["mark there", "first write"])
@pytest.mark.parametrize(("first", "second", "error"), ANSWERS)
def test_who_comes_second_waits_and_is_then_judged_by_what_was_committed(
    pg: str,
    pool: ThreadPoolExecutor,
    kind: str,
    existing: bool,
    first: Token,
    second: Token,
    error: type[Exception] | None,
) -> None:
    if existing:
        raise_fence(sql_doors.engine(pg), "a", token=Token(1, first.issuer, "line-a"))
    with holder(pg, "a", token=first) as open_transaction:
        waiting = Writer(kind, pg).start_blocked(pool, "a", token=second)
        open_transaction.commit()
    if error is None:
        waiting.result(60)
        assert (ledger(pg), marks(pg)) == ({"a": second.value}, {"a": str(second)})
    else:
        with pytest.raises(error) as caught:
            waiting.result(60)
        assert type(caught.value) is error
        assert (ledger(pg), marks(pg)) == ({}, {"a": str(first)})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("existing", [True, False], ids=["mark there", "first write"])
def test_a_raise_that_is_rolled_back_is_no_evidence_against_who_waited(
    pg: str, pool: ThreadPoolExecutor, kind: str, existing: bool
) -> None:
    if existing:
        raise_fence(sql_doors.engine(pg), "a", token=token(1))
    with holder(pg, "a", token=token(9)) as open_transaction:
        waiting = Writer(kind, pg).start_blocked(pool, "a", token=token(5))
        open_transaction.rollback()
        waiting.result(60)
    assert (ledger(pg), marks(pg)) == ({"a": 5}, {"a": "shop/line-a/5"})


@pytest.mark.parametrize("level", ISOLATION)
def test_a_newer_holder_waits_for_an_older_write_in_flight(pg: str, pool: ThreadPoolExecutor, level: str) -> None:
    """Once the newer holder's write has begun, nothing older can still commit, at no isolation level."""
    raise_fence(sql_doors.engine(pg), "a", token=token(5))
    older = psycopg.connect(with_isolation(pg, level), autocommit=True)
    with older, older.transaction():
        with fenced_write(older, "a", token=token(5)):
            newer = Writer("psycopg", pg).start_blocked(pool, "a", token=token(9))
            do(older, PUT, id="a", owner=5)
        assert not newer.done()
    newer.result(60)
    assert (ledger(pg), marks(pg)) == ({"a": 9}, {"a": "shop/line-a/9"})


def test_writers_with_the_same_token_take_turns(pg: str, pool: ThreadPoolExecutor) -> None:
    with holder(pg, "a", token=token(5)) as first:
        second = Writer("connection", pg).start_blocked(pool, "a", token=token(5))
        first.commit()
    second.result(60)
    with holder(pg, "b", "a", token=token(5)) as first:
        second = Writer("psycopg", pg).start_blocked(pool, "a", "c", token=token(5))
        first.commit()
    second.result(60)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", ISOLATION[1:])
@pytest.mark.parametrize("resources", [("a",), ("a", "b")], ids=["one", "two"])
@pytest.mark.parametrize("mode", ["create", "reject"])
def test_no_stale_commit_from_an_old_snapshot(
    pg: str, pool: ThreadPoolExecutor, kind: str, level: str, resources: tuple[str, ...], mode: Any
) -> None:
    """The mark moved after the snapshot was taken: contention, whatever the snapshot still shows; never a success."""
    raise_fence(sql_doors.engine(pg), *resources, token=token(5))
    writer = Writer(kind, with_isolation(pg, level), SqlGuard(on_missing=mode), snapshot=True)
    write = writer.begin(pool, *resources, token=token(5))
    raise_fence(sql_doors.engine(pg), *resources, token=token(9))
    writer.go.set()
    with pytest.raises(errors.ContentionError):
        write.result(60)
    assert ledger(pg) == {}
    assert set(marks(pg).values()) == {"shop/line-a/9"}


@pytest.mark.parametrize("level", ISOLATION[1:])
def test_no_stale_commit_past_a_mark_that_the_snapshot_does_not_show(
    pg: str, pool: ThreadPoolExecutor, level: str
) -> None:
    writer = Writer("psycopg", with_isolation(pg, level), snapshot=True)
    write = writer.begin(pool, "a", token=token(5))
    raise_fence(sql_doors.engine(pg), "a", token=token(9))
    writer.go.set()
    with pytest.raises(errors.ContentionError):
        write.result(60)
    assert (ledger(pg), marks(pg)) == ({}, {"a": "shop/line-a/9"})


@pytest.mark.parametrize("level", ISOLATION[1:])
def test_who_waited_under_a_snapshot_meets_contention_when_the_mark_moved(
    pg: str, pool: ThreadPoolExecutor, level: str
) -> None:
    raise_fence(sql_doors.engine(pg), "a", token=token(1))
    with holder(pg, "a", token=token(9)) as newer:
        writer = Writer("psycopg", with_isolation(pg, level), snapshot=True)
        write = writer.start_blocked(pool, "a", token=token(5))
        newer.commit()
    with pytest.raises(errors.ContentionError) as caught:
        write.result(60)
    assert (caught.value.resource, caught.value.presented) == ("a", token(5))
    assert ledger(pg) == {}


@pytest.mark.parametrize("level", ISOLATION)
def test_thirty_first_writes_at_once_neither_deadlock_nor_pass_each_other(
    pg: str, pool: ThreadPoolExecutor, level: str
) -> None:
    start = threading.Barrier(30)
    bind = sql_doors.engine(with_isolation(pg, level))

    def first_write(value: int) -> str:
        def effect(connection: sa.Connection) -> None:
            for resource in ("a", "b"):
                do(connection, PUT, id=resource, owner=value)

        names = random.Random(value).sample(("a", "b", "c", "d"), 4)
        start.wait()
        try:
            fenced_write(SqlGuard(lock_timeout=60).on(bind), *names, effect=effect, token=token(value))
        except errors.StaleTokenError:
            return "stale"
        except errors.ContentionError:
            return "contention"
        return "written"

    ends = list(pool.map(first_write, range(1, 31)))
    assert "written" in ends
    if level == "read committed":
        assert ends[-1] == "written"
        assert "contention" not in ends
        assert set(marks(pg).values()) == {"shop/line-a/30"}
    best = max(value for value, end in zip(range(1, 31), ends, strict=True) if end == "written")
    assert ledger(pg) == {"a": best, "b": best}
    assert set(marks(pg).values()) == {f"shop/line-a/{best}"}


@pytest.mark.parametrize(("first", "second"), [("create", "reject"), ("reject", "create")])
def test_guards_of_both_modes_take_the_marks_in_one_order(
    pg: str, pool: ThreadPoolExecutor, first: Any, second: Any
) -> None:
    """Whoever waits for the mark in the middle has the first one and not the last: no circle is possible."""
    raise_fence(sql_doors.engine(pg), "a", "b", "c", token=token(1))
    with holder(pg, "b", token=token(1)) as middle:
        one = Writer("psycopg", pg, SqlGuard(on_missing=first))
        other = Writer("psycopg", pg, SqlGuard(on_missing=second))
        writes = [one.start_blocked(pool, "c", "b", "a", token=token(5))]
        writes.append(other.start(pool, "a", "b", "c", token=token(5)))
        wait_until_blocked(pg, other.pid, by=one.pid)
        with psycopg.connect(pg, autocommit=True) as free, free.transaction(force_rollback=True):
            raise_fence(SqlGuard(lock_timeout=0.2).on(free), "c", token=token(5))
        middle.rollback()
    for write in writes:
        write.result(60)


@pytest.mark.parametrize("resources", [("a",), ("a", "b")], ids=["one", "two"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["create", "reject"])
def test_a_holder_that_stays_is_contention_after_the_lock_timeout_and_never_stale(
    pg: str, pool: ThreadPoolExecutor, kind: str, resources: tuple[str, ...], mode: Any
) -> None:
    raise_fence(sql_doors.engine(pg), "a", "b", token=token(1))
    with holder(pg, "a", token=token(9)):
        write = Writer(kind, pg, SqlGuard(lock_timeout=0.2, on_missing=mode)).start(pool, *resources, token=token(5))
        with pytest.raises(errors.ContentionError, match="lock timeout"):
            write.result(60)
    assert ledger(pg) == {}
    assert set(marks(pg).values()) == {"shop/line-a/1"}


@pytest.mark.parametrize("mode", ["create", "reject", "first write"])
def test_each_of_several_marks_is_waited_for_no_longer_than_the_lock_timeout(
    pg: str, pool: ThreadPoolExecutor, mode: Any
) -> None:
    if mode != "first write":
        raise_fence(sql_doors.engine(pg), "a", "b", "c", token=token(1))
    guard = SqlGuard(lock_timeout=0.2, on_missing="reject" if mode == "reject" else "create")
    with holder(pg, "c", token=token(9)):
        write = Writer("psycopg", pg, guard).start(pool, "a", "b", "c", token=token(5))
        with pytest.raises(errors.ContentionError):
            write.result(60)


def test_a_stricter_lock_timeout_of_the_callers_stays(pg: str, pool: ThreadPoolExecutor) -> None:
    with holder(pg, "a", token=token(9)), psycopg.connect(pg, autocommit=True) as bare:
        bare.execute("set lock_timeout = '150ms'")
        for names in (("a",), ("a", "b")):
            with pytest.raises(errors.ContentionError), bare.transaction():
                raise_fence(SqlGuard(lock_timeout=600).on(bare), *names, token=token(5))


def test_several_marks_that_were_contended_leave_the_callers_transaction_usable(pg: str) -> None:
    with holder(pg, "b", token=token(9)), psycopg.connect(pg, autocommit=True) as bare, bare.transaction():
        with pytest.raises(errors.ContentionError):
            raise_fence(SqlGuard(lock_timeout=0.1).on(bare), "a", "b", token=token(5))
        do(bare, PUT, id="unfenced", owner=0)
    assert (ledger(pg), marks(pg)) == ({"unfenced": 0}, {})


def test_a_statement_timeout_while_waiting_is_contention(pg: str) -> None:
    with holder(pg, "a", token=token(9)), psycopg.connect(pg, autocommit=True) as bare:
        bare.execute("set statement_timeout = '150ms'")
        with pytest.raises(errors.ContentionError), bare.transaction():
            raise_fence(bare, "a", token=token(5))


def test_a_deadlock_is_contention(pg: str, pool: ThreadPoolExecutor) -> None:
    with psycopg.connect(pg, autocommit=True) as bare, bare.transaction():
        raise_fence(bare, "b", token=token(5))
        other = psycopg.connect(pg, autocommit=True)

        def cross() -> None:
            with other, other.transaction():
                raise_fence(other, "a", token=token(5))
                raise_fence(other, "b", token=token(5))

        crossing = pool.submit(cross)
        wait_until_blocked(pg, other.info.backend_pid)
        ends: list[BaseException | None] = []
        try:
            with bare.transaction():
                raise_fence(bare, "a", token=token(5))
            ends.append(None)
        except errors.ContentionError as exc:
            ends.append(exc)
    ends.append(crossing.exception(60))
    failed = [end for end in ends if end is not None]
    assert len(failed) == 1
    assert type(failed[0]) is errors.ContentionError
    assert "deadlock" in str(failed[0])


# once=


@pytest.mark.parametrize("resources", [("a", "a"), ("a", "b")], ids=["one mark", "two marks"])
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "rolled back"])
def test_a_concurrent_caller_of_a_key_waits_for_the_first(
    pg: str, pool: ThreadPoolExecutor, resources: tuple[str, str], committed: bool
) -> None:
    calls: list[str] = []
    in_effect, finish = threading.Event(), threading.Event()

    class Undone(Exception):
        pass

    def slow(handle: Any) -> str:
        calls.append("first")
        in_effect.set()
        assert finish.wait(60)
        if not committed:
            raise Undone
        return "of the first"

    def quick(handle: Any) -> str:
        calls.append("second")
        return "of the second"

    first = pool.submit(
        fenced_write, sql_doors.engine(pg), resources[0], effect=slow, token=token(5), once="k", fingerprint="f"
    )
    assert in_effect.wait(60)
    other = psycopg.connect(pg, autocommit=True)

    def call() -> Any:
        with other, other.transaction():
            return fenced_write(other, resources[1], effect=quick, token=token(6), once="k", fingerprint="f")

    second = pool.submit(call)
    wait_until_blocked(pg, other.info.backend_pid)
    finish.set()
    if committed:
        assert (first.result(60), second.result(60), calls) == ("of the first", "of the first", ["first"])
    else:
        assert isinstance(first.exception(60), Undone)
        assert (second.result(60), calls) == ("of the second", ["first", "second"])


def test_twenty_callers_of_one_key_apply_it_once(pg: str, pool: ThreadPoolExecutor) -> None:
    start = threading.Barrier(20)
    calls: list[int] = []

    def call(number: int) -> Any:
        def effect(connection: sa.Connection) -> int:
            calls.append(number)
            do(connection, PUT, id="a", owner=number)
            return number

        start.wait()
        guard = SqlGuard(lock_timeout=60).on(sql_doors.engine(pg))
        return fenced_write(guard, f"own/{number}", effect=effect, token=token(5), once="k", fingerprint="f")

    results = list(pool.map(call, range(20)))
    assert len(calls) == 1
    assert set(results) == set(calls)
    assert ledger(pg) == {"a": calls[0]}


@pytest.mark.parametrize("level", ISOLATION[1:])
def test_a_key_that_an_old_snapshot_does_not_show_is_contention(pg: str, level: str) -> None:
    with psycopg.connect(with_isolation(pg, level), autocommit=True) as bare:
        with pytest.raises(errors.ContentionError), bare.transaction():
            bare.execute("select count(*) from fencing_applied")
            fenced_write(sql_doors.engine(pg), "a", effect=lambda handle: 1, token=token(5), once="k", fingerprint="f")
            fenced_write(
                bare, "b", effect=lambda handle: pytest.fail("ran twice"), token=token(5), once="k", fingerprint="f"
            )


# Transactions of its own


@pytest.mark.parametrize("own", ["engine", "sessionmaker", "engine-async"])
def test_an_engine_tries_again_on_contention_and_only_then(pg: str, own: str) -> None:
    """A write skew under SERIALIZABLE: the first try fails in the effect or at its commit, the second passes."""
    serializable = with_isolation(pg, "serializable")
    tries = 0

    def before(handle: Any, total: int) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:  # somebody else reads the same and writes first
            with sql_doors.engine(serializable).begin() as other:
                count = do(other, "select count(*) from ledger").scalar()
                do(other, PUT, id=f"other {count}", owner=count)

    if own == "engine-async":

        async def effect_async(handle: Any) -> int:
            total = (await do(handle, "select count(*) from ledger")).scalar()
            before(handle, total)
            await do(handle, PUT, id=f"mine {total}", owner=total)
            return int(total)

        async def work() -> Any:
            bind = create_async_engine(sql_doors.async_url(serializable))
            try:
                return await fenced_write(bind, "a", effect=effect_async, token=token(5))
            finally:
                await bind.dispose()

        assert asyncio.run(work()) == 1
    else:

        def effect(handle: Any) -> int:
            total = do(handle, "select count(*) from ledger").scalar()
            before(handle, total)
            do(handle, PUT, id=f"mine {total}", owner=total)
            return int(total)

        bind = sql_doors.engine(serializable)
        assert fenced_write(bind if own == "engine" else sessionmaker(bind), "a", effect=effect, token=token(5)) == 1
    assert tries == 2
    assert ledger(pg) == {"other 0": 0, "mine 1": 1}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_tries_are_bounded_and_refusals_are_final(pg: str, asynchronous: bool) -> None:
    address = sql_doors.async_url(pg) if asynchronous else sql_doors.sync_url(pg)
    begun: list[object] = []

    def call(target_token: Token, guard: SqlGuard) -> None:
        if not asynchronous:
            bind = sa.create_engine(address)
            sa.event.listen(bind, "begin", begun.append)
            raise_fence(guard.on(bind), "a", token=target_token)
            return

        async def work() -> None:
            bind = create_async_engine(address)
            sa.event.listen(bind.sync_engine, "begin", begun.append)
            try:
                await raise_fence(guard.on(bind), "a", token=target_token)
            finally:
                await bind.dispose()

        asyncio.run(work())

    with holder(pg, "a", token=token(9)) as newer:
        with pytest.raises(errors.ContentionError):
            call(token(5), SqlGuard(lock_timeout=0.05))
        assert len(begun) == 5
        begun.clear()
        newer.commit()
    with pytest.raises(errors.StaleTokenError):
        call(token(5), SqlGuard(lock_timeout=0.05))
    assert len(begun) == 1


@pytest.mark.parametrize("own", ["engine", "sessionmaker", "engine-async"])
@pytest.mark.parametrize("when", ["before the commit", "at the commit"])
def test_a_lost_commit_is_unknown_and_what_was_lost_before_is_not(pg: str, own: str, when: str) -> None:
    calls = 0

    def kill(connection: sa.Connection) -> None:
        pid = connection.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
        end_backend(pg, pid)

    def prepared(bind: sa.Engine) -> sa.Engine:
        if when == "at the commit":
            sa.event.listen(bind, "commit", kill)
        return bind

    def effect(handle: Any) -> None:
        nonlocal calls
        calls += 1
        do(handle, PUT, id="a", owner=5)
        if when == "before the commit":
            kill(handle if isinstance(handle, sa.Connection) else handle.connection())
            do(handle, PUT, id="b", owner=5)

    async def effect_async(handle: Any) -> None:
        nonlocal calls
        calls += 1
        await do(handle, PUT, id="a", owner=5)
        if when == "before the commit":
            await asyncio.to_thread(kill, handle.sync_connection)
            await do(handle, PUT, id="b", owner=5)

    async def work() -> None:
        bind = create_async_engine(sql_doors.async_url(pg))
        prepared(bind.sync_engine)
        try:
            await fenced_write(bind, "a", effect=effect_async, token=token(5))
        finally:
            await bind.dispose()

    expected = errors.OutcomeUnknownError if when == "at the commit" else sa.exc.OperationalError
    with pytest.raises(expected) as caught:
        if own == "engine-async":
            asyncio.run(work())
        else:
            bind = prepared(sql_doors.engine(pg))
            fenced_write(bind if own == "engine" else sessionmaker(bind), "a", effect=effect, token=token(5))
    assert type(caught.value) is expected
    assert calls == 1
    assert (ledger(pg), marks(pg)) == ({}, {})


@pytest.mark.parametrize("own", ["engine", "sessionmaker", "engine-async"])
@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
def test_with_a_key_a_lost_commit_is_found_out(pg: str, own: str, done: bool) -> None:
    """The answer is lost once; the key tells the next try whether the effect is there."""
    lost: list[bool] = []
    calls = 0

    def losing(bind: sa.Engine) -> sa.Engine:
        def lose(connection: sa.Connection) -> None:
            if lost:
                return
            lost.append(True)
            raw: Any = connection.connection
            if done:
                raw.cursor().execute("commit")
                raise psycopg.OperationalError("the connection is lost")
            end_backend(pg, raw.driver_connection.info.backend_pid)

        sa.event.listen(bind, "commit", lose)
        return bind

    async def work() -> Any:
        bind = create_async_engine(sql_doors.async_url(pg))
        losing(bind.sync_engine)
        try:
            return await fenced_write(bind, "a", effect=effect_async, token=token(5), once="k")
        finally:
            await bind.dispose()

    def effect(handle: Any) -> int:
        nonlocal calls
        calls += 1
        do(handle, PUT, id="a", owner=calls)
        return calls

    async def effect_async(handle: Any) -> int:
        nonlocal calls
        calls += 1
        await do(handle, PUT, id="a", owner=calls)
        return calls

    if own == "engine-async":
        found = asyncio.run(work())
    else:
        bind = losing(sql_doors.engine(pg))
        target = bind if own == "engine" else sessionmaker(bind)
        found = fenced_write(target, "a", effect=effect, token=token(5), once="k")
    assert (lost, found, calls) == ([True], 1, 1) if done else ([True], 2, 2)
    assert ledger(pg) == {"a": found}


def test_what_a_lost_commit_left_stays_unknown_where_it_cannot_be_found_out(pg: str) -> None:
    """A newer holder came between: it was applied, or never will be, and a refusal would say that it was not."""
    bind, lost = sql_doors.engine(pg), []

    def lose(connection: sa.Connection) -> None:
        lost.append(True)
        raw: Any = connection.connection.driver_connection
        raw.execute("commit")
        raise_fence(sql_doors.engine(pg), "a", token=token(9))
        raise psycopg.OperationalError("the connection is lost")

    sa.event.listen(bind, "commit", lose)
    with pytest.raises(errors.OutcomeUnknownError) as caught:
        fenced_write(bind, "a", effect=lambda tx: do(tx, PUT, id="a", owner=5) and None, token=token(5), once="k")
    assert isinstance(caught.value.__cause__, errors.StaleTokenError)
    assert (len(lost), ledger(pg)) == (1, {"a": 5})


def test_a_deferred_constraint_that_fails_at_the_commit_is_no_unknown(pg_dsn: str) -> None:
    sql_doors.prepare(pg_dsn)
    bind = sql_doors.engine(pg_dsn)
    with bind.begin() as connection:
        do(connection, "alter table ledger add unique (owner) deferrable initially deferred")
        do(connection, PUT, id="b", owner=5)
    with pytest.raises(sa.exc.IntegrityError):
        fenced_write(bind, "a", effect=lambda handle: do(handle, PUT, id="a", owner=5) and None, token=token(5))


# SQLite has one write lock and no list of who waits


@pytest.fixture
def lite(tmp_path: Path) -> str:
    address = f"sqlite:///{tmp_path / 'bank.db'}"
    sql_doors.prepare(address)
    return address


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_sqlite_waits_for_a_writer_no_longer_than_the_lock_timeout(lite: str, journal: str) -> None:
    bind = sql_doors.engine(lite)
    with bind.connect() as connection:
        connection.exec_driver_sql(f"pragma journal_mode = {journal}")
    with bind.begin() as other:
        raise_fence(other, "a", token=token(9))
        guard = SqlGuard(lock_timeout=0.05)
        began = time.monotonic()
        with sql_doors.engine(lite, connect_args={"timeout": 200}).connect() as connection:
            for names in (("a",), ("a", "b")):
                with pytest.raises(errors.ContentionError, match="SQLITE_BUSY"):
                    raise_fence(guard.on(connection), *names, token=token(5))
            with pytest.raises(errors.ContentionError, match="SQLITE_BUSY"):
                fenced_write(guard.on(connection), "a", effect=lambda handle: 1, token=token(5), once="k")
            assert connection.exec_driver_sql("pragma busy_timeout").scalar() == 200_000
        assert time.monotonic() - began < 100
    assert marks(lite) == {"a": "shop/line-a/9"}


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_sqlite_writers_wait_their_turn(lite: str, pool: ThreadPoolExecutor, journal: str) -> None:
    with sql_doors.engine(lite).connect() as connection:
        connection.exec_driver_sql(f"pragma journal_mode = {journal}")
    start = threading.Barrier(8)

    def write(number: int) -> str:
        bind = sql_doors.engine(lite)
        start.wait()
        ends = ""
        for value in range(number + 1, 41, 8):
            try:
                with (
                    bind.begin() as target,
                    fenced_write(SqlGuard(lock_timeout=60).on(target), "a", token=token(value)),
                ):
                    before = do(target, "select coalesce(max(owner), 0) from ledger").scalar()
                    assert before < value
                    do(target, PUT, id="a", owner=value)
                ends += "w"
            except errors.StaleTokenError:
                ends += "s"
        return ends

    patient = list(pool.map(write, range(8)))
    assert patient[-1][-1] == "w"
    assert ledger(lite) == {"a": 40}
    assert marks(lite) == {"a": "shop/line-a/40"}


def test_sqlite_never_writes_over_a_mark_that_its_snapshot_does_not_show(lite: str) -> None:
    """A transaction that the caller began deferred and read in; WAL lets another one commit meanwhile."""
    raise_fence(sql_doors.engine(lite), "a", token=token(5))
    with sql_doors.engine(lite).connect() as connection:
        connection.exec_driver_sql("pragma journal_mode = wal")
        connection.exec_driver_sql("begin")
        assert connection.exec_driver_sql("select count(*) from fencing_mark").scalar() == 1
        raise_fence(sql_doors.engine(lite), "a", token=token(9))
        with pytest.raises(errors.ContentionError, match="SQLITE_BUSY_SNAPSHOT"):
            with fenced_write(connection, "a", token=token(5)):
                pytest.fail("the block must not run")
    assert marks(lite) == {"a": "shop/line-a/9"}


def test_sqlite_an_engine_tries_again(lite: str) -> None:
    bind = sql_doors.engine(lite, connect_args={"timeout": 0.01})
    blocker = bind.connect()
    raise_fence(blocker, "b", token=token(1))
    begun: list[object] = []

    @sa.event.listens_for(bind, "begin")
    def begin(connection: sa.Connection) -> None:
        begun.append(connection)
        if len(begun) == 3:
            blocker.rollback()

    raise_fence(bind, "a", token=token(5))
    blocker.close()
    assert len(begun) == 3
    assert marks(lite) == {"a": "shop/line-a/5"}
