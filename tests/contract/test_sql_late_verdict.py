"""`SqlGuard(late_verdict=True)` in a pipeline: nobody waits at the block's beginning, and nothing passes for that."""

import asyncio
import contextlib
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from support import sql_doors
from support.locks import wait_until_blocked
from support.sql_doors import PUT, do, ledger, marks, token

from adapters._tx import _psycopg
from adapters.sql import SqlGuard, compact
from fencing import Token, errors, fenced_write, history, on_refusal, raise_fence

LATE = SqlGuard(late_verdict=True)
EXISTING = SqlGuard(late_verdict=True, on_missing="reject")
Connection = psycopg.Connection[Any]


@pytest.fixture
def bare(pg: str) -> Iterator[Connection]:
    with psycopg.connect(pg, autocommit=True) as connection:
        yield connection


def late(connection: Any, *names: str, under: Token, guard: SqlGuard = LATE) -> Any:
    return fenced_write(guard.on(connection), *names, token=under)  # type: ignore[call-overload]


def write(connection: Connection, *names: str, under: Token, guard: SqlGuard = LATE) -> None:
    """One fenced write of the ledger, in a pipeline and a transaction of its own."""
    with connection.pipeline(), connection.transaction():
        with late(connection, *names, under=under, guard=guard):
            do(connection, PUT, id=names[0], owner=under.value)


def nothing_changed(pg: str) -> bool:
    return (ledger(pg), marks(pg)) == ({"a": 5}, {"a": "shop/line-a/5", "b": "shop/line-a/7"})


@pytest.fixture
def taken(pg: str, bare: Connection) -> Connection:
    """What is written to `a` under 5; `b` is held under 7."""
    write(bare, "a", under=token(5))
    raise_fence(sql_doors.engine(pg), "b", token=token(7))
    return bare


def test_what_the_law_accepts_is_written_and_the_mark_rises(pg: str, taken: Connection) -> None:
    write(taken, "a", under=token(5))
    write(taken, "a", "b", under=token(8))
    write(taken, "c", under=token(3))
    write(taken, "a", "b", under=token(9), guard=EXISTING)
    assert ledger(pg) == {"a": 9, "c": 3}
    assert marks(pg) == {"a": "shop/line-a/9", "b": "shop/line-a/9", "c": "shop/line-a/3"}
    assert taken.execute("show lock_timeout").fetchone() == ("0",)


@pytest.mark.parametrize(
    ("names", "under", "guard", "kind", "mark"),
    [
        (("a",), token(4), LATE, errors.StaleTokenError, token(5)),
        (("a",), token(4), EXISTING, errors.StaleTokenError, token(5)),
        (("a",), token(9, issuer="shed"), LATE, errors.IssuerMismatchError, token(5)),
        (("a",), token(5, "line-b"), LATE, errors.LineageConflictError, token(5)),
        (("b", "a", "new"), token(6), LATE, errors.StaleTokenError, token(7)),
        (("b", "a"), token(6), EXISTING, errors.StaleTokenError, token(7)),
        (("new",), token(9), EXISTING, errors.MarkMissingError, None),
        (("a", "new"), token(9), EXISTING, errors.MarkMissingError, None),
    ],
)
def test_each_refusal_comes_late_and_whole(
    pg: str,
    taken: Connection,
    names: tuple[str, ...],
    under: Token,
    guard: SqlGuard,
    kind: type[errors.FenceRejected],
    mark: Token | None,
) -> None:
    with pytest.raises(kind) as raised:
        with taken.pipeline(), taken.transaction():
            do(taken, PUT, id="before", owner=1)
            with late(taken, *names, under=under, guard=guard):
                do(taken, PUT, id="a", owner=under.value)
    error = raised.value
    refusing = ("new" if guard is EXISTING else "") if mark is None else "a" if mark == token(5) else "b"
    assert (error.presented, error.mark, error.resource) == (under, mark, refusing)
    assert str(error).startswith(f"{error.downstream} refused a write to {refusing!r}: presented {under}")
    assert (error.late is None) == (error.holder is None) == (mark is None)
    assert isinstance(error, psycopg.Error) and isinstance(error.__cause__, psycopg.errors.InvalidTextRepresentation)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.mark) == (kind, str(error), mark)
    assert nothing_changed(pg)
    assert taken.info.transaction_status == TransactionStatus.IDLE


@pytest.mark.parametrize("join", ["hashjoin", "mergejoin", "nestloop"])
def test_a_mark_that_nobody_named_refuses_nothing_whatever_the_plan(pg: str, taken: Connection, join: str) -> None:
    taken.execute("analyze fencing_mark")
    for other in {"hashjoin", "mergejoin", "nestloop"} - {join}:
        taken.execute(f"set enable_{other} = off".encode())
    for names in (("a",), ("a", "c")):  # `b` is held under 7
        raise_fence(sql_doors.engine(pg), *names, token=token(5))
        write(taken, *names, under=token(6), guard=EXISTING)
        taken.execute("update fencing_mark set value = 5 where resource <> 'b'")
    assert ledger(pg) == {"a": 6}


def test_the_block_begins_before_the_server_can_answer(pg: str, taken: Connection) -> None:
    """The mark is locked by another one, who gives it up only in the block."""
    with psycopg.connect(pg, autocommit=True) as other, pytest.raises(errors.StaleTokenError):
        with taken.pipeline(), taken.transaction():
            with contextlib.ExitStack() as holding:
                holding.enter_context(other.transaction())
                raise_fence(other, "a", token=token(6))
                with late(taken, "a", under=token(5)):
                    wait_until_blocked(pg, taken.info.backend_pid, by=other.info.backend_pid)
                    holding.close()
                    do(taken, PUT, id="a", owner=5)
    assert (ledger(pg), marks(pg)["a"]) == ({"a": 5}, "shop/line-a/6")


def test_an_async_pipeline_has_late_verdicts_too(pg: str, taken: Connection) -> None:
    async def work(value: int) -> None:
        async with await psycopg.AsyncConnection.connect(pg, autocommit=True) as connection:
            async with connection.pipeline(), connection.transaction():
                async with late(connection, "a", under=token(value)):
                    await do(connection, PUT, id="a", owner=value)

    with pytest.raises(errors.StaleTokenError) as raised:
        asyncio.run(work(4))
    assert isinstance(raised.value, psycopg.Error)
    assert nothing_changed(pg)
    asyncio.run(work(6))
    assert (ledger(pg), marks(pg)["a"]) == ({"a": 6}, "shop/line-a/6")


def test_what_waits_for_an_answer_in_the_block_is_told_the_verdict(pg: str, taken: Connection) -> None:
    with pytest.raises(errors.StaleTokenError):
        with taken.pipeline(), taken.transaction():
            with late(taken, "a", under=token(4)):
                do(taken, PUT, id="a", owner=4)
                taken.execute("select 1").fetchone()
                pytest.fail("the answer came without the verdict")
    assert nothing_changed(pg)


def test_who_swallows_the_verdict_in_the_block_is_told_again_and_commits_nothing(pg: str, taken: Connection) -> None:
    for and_then in (lambda: None, lambda: taken.execute("select 1").fetchone()):
        with pytest.raises(errors.StaleTokenError):
            with taken.pipeline(), taken.transaction():
                with late(taken, "a", under=token(4)):
                    with pytest.raises(errors.StaleTokenError):
                        taken.execute("select 1").fetchone()
                    do(taken, PUT, id="a", owner=4)
                    and_then()  # meets an aborted pipeline, which says nothing of the verdict
        assert nothing_changed(pg)


def test_who_swallows_it_outside_commits_nothing(pg: str, taken: Connection) -> None:
    # An error is answered at once: what was skipped behind it may be answered, by this name, to who waits next.
    with contextlib.suppress(psycopg.errors.PipelineAborted), taken.pipeline() as pipeline, taken.transaction():
        do(taken, PUT, id="before", owner=1)
        with pytest.raises(errors.StaleTokenError):
            with late(taken, "a", under=token(4)):
                do(taken, PUT, id="a", owner=4)
                pipeline.sync()
    assert nothing_changed(pg)


def test_a_savepoint_is_all_that_is_lost(pg: str, taken: Connection) -> None:
    with taken.pipeline(), taken.transaction():
        do(taken, PUT, id="before", owner=1)
        with pytest.raises(errors.StaleTokenError), taken.transaction():
            with late(taken, "a", under=token(4)):
                do(taken, PUT, id="a", owner=4)
        with taken.transaction():
            with late(taken, "a", under=token(6)), late(taken, "c", under=token(6)):
                do(taken, PUT, id="a", owner=6)
        with pytest.raises(ZeroDivisionError), taken.transaction():
            with late(taken, "d", under=token(6)):
                do(taken, PUT, id="d", owner=6)
                raise ZeroDivisionError
    assert ledger(pg) == {"before": 1, "a": 6}
    assert marks(pg) == {"a": "shop/line-a/6", "b": "shop/line-a/7", "c": "shop/line-a/6"}


def test_the_mark_is_judged_as_it_is_after_the_wait(pg: str, taken: Connection) -> None:
    """The statement's snapshot is older than what refuses it, of a mark that is there and of one that is made."""
    pid = taken.info.backend_pid
    for name in ("a", "new"):
        with ThreadPoolExecutor(1) as pool, psycopg.connect(pg, autocommit=True) as other:
            with other.transaction():
                raise_fence(other, name, token=token(9))
                done = pool.submit(write, taken, name, under=token(8))
                wait_until_blocked(pg, pid, by=other.info.backend_pid)
            with pytest.raises(errors.StaleTokenError) as raised:
                done.result()
        assert (raised.value.mark, raised.value.resource) == (token(9), name)
    assert ledger(pg) == {"a": 5}


def test_a_floor_that_is_raised_meanwhile_refuses_the_mark_that_is_made(pg: str, taken: Connection) -> None:
    try:
        for guard, kind in ((LATE, errors.StaleTokenError), (EXISTING, errors.StaleTokenError)):
            raise_fence(sql_doors.engine(pg), "old", token=token(20))
            with ThreadPoolExecutor(1) as pool, psycopg.connect(pg, autocommit=True) as other:
                with other.transaction():
                    compact(other, token(30), idle=0)
                    done = pool.submit(write, taken, "old", under=token(21), guard=guard)
                    wait_until_blocked(pg, taken.info.backend_pid, by=other.info.backend_pid)
                with pytest.raises(kind, match="floor 30"):
                    done.result()
            write(taken, "old", under=token(31))
            taken.execute("delete from fencing_mark")
            taken.execute("update fencing_floor set floors = '{}'")
        assert ledger(pg) == {"a": 5, "old": 31}
    finally:
        taken.execute("update fencing_floor set floors = '{}'")


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_contention_is_no_refusal(pg: str, taken: Connection, level: str) -> None:
    with psycopg.connect(pg, autocommit=True) as other:
        with pytest.raises(errors.ContentionError) as raised, taken.pipeline(), taken.transaction():
            taken.execute(f"set transaction isolation level {level}".encode())
            taken.execute("select count(*) from fencing_mark").fetchone()
            write(other, "a", under=token(6))
            with late(taken, "a", under=token(7)):
                do(taken, PUT, id="a", owner=7)
        assert isinstance(raised.value, psycopg.Error) and raised.value.sqlstate == "40001"
        assert (raised.value.resource, raised.value.presented) == ("a", token(7))
        hasty = SqlGuard(late_verdict=True, lock_timeout=0.05)
        with other.transaction():
            raise_fence(other, "a", token=token(6))
            with pytest.raises(errors.ContentionError):
                write(taken, "a", under=token(7), guard=hasty)
    assert (ledger(pg), marks(pg)["a"]) == ({"a": 6}, "shop/line-a/6")


def test_a_mark_that_something_keeps_from_being_written_is_no_permission(pg: str, taken: Connection) -> None:
    taken.execute("create function swallow() returns trigger language plpgsql as 'begin return null; end'")
    taken.execute(
        "create trigger swallow before insert or update on fencing_mark for each row execute function swallow()"
    )
    try:
        for names in (("a",), ("a", "b")):
            with pytest.raises(errors.ContentionError, match="came or went"):
                write(taken, *names, under=token(9))
    finally:
        taken.execute("drop function swallow cascade")
    taken.execute("delete from fencing_floor")
    try:
        with pytest.raises(errors.SchemaMissingError, match="fencing_floor has no row"):
            write(taken, "new", under=token(9))
    finally:
        taken.execute("insert into fencing_floor (one, floors) values (1, '{}')")
    assert nothing_changed(pg)


def test_the_caller_s_own_errors_stay_its_own(pg: str, taken: Connection) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        with taken.pipeline(), taken.transaction():
            taken.execute("select * from the_callers_mistake")
            with late(taken, "a", under=token(6)):
                do(taken, PUT, id="a", owner=6)
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        with taken.pipeline(), taken.transaction():
            with late(taken, "a", under=token(6)):
                taken.execute("select cast('fencing refuses:5b' as boolean)")
    assert nothing_changed(pg)


def test_a_holder_s_name_comes_through_any_encoding_of_the_client_s(pg: str, taken: Connection) -> None:
    class Lease:
        token = token(6)
        holder = "ключ “7”\n"

    with taken.pipeline(), taken.transaction():
        with fenced_write(LATE.on(taken), "a", token=Lease()):  # type: ignore[call-overload]
            pass
    with psycopg.connect(pg, autocommit=True, client_encoding="latin1") as other:
        with pytest.raises(errors.StaleTokenError) as raised:
            write(other, "a", under=token(4))
    assert raised.value.holder == Lease.holder


def test_each_write_is_recorded_once_its_verdict_is_known(pg: str, taken: Connection) -> None:
    events: list[history.Event] = []
    told: list[str] = []
    ends = [history.subscribe(events.append), on_refusal(lambda refusal: told.append(refusal.kind))]
    try:
        write(taken, "a", under=token(6))
        with taken.pipeline() as pipeline, taken.transaction():
            with history.effects("one"), late(taken, "a", under=token(6)):
                pass
            assert len(events) == 1  # not known, not told
            pipeline.sync()
            assert len(events) == 2
        with pytest.raises(errors.StaleTokenError):
            write(taken, "a", under=token(5))
        # An error is answered at once, and may have come in before the block begins.
        with pytest.raises((ZeroDivisionError, errors.StaleTokenError)), taken.pipeline(), taken.transaction():
            with late(taken, "a", under=token(4)):
                raise ZeroDivisionError
    finally:
        for end in ends:
            end()
    assert [(event.outcome, event.error) for event in events] == [
        ("accepted", ""),
        ("accepted", ""),
        ("refused", "StaleTokenError"),
        ("refused", "StaleTokenError"),
    ]
    assert [event.effects for event in events[:2]] == [(), ("one",)]
    assert all(event.pending for event in events[:2])
    assert told == ["StaleTokenError", "StaleTokenError"]


def test_a_record_that_fails_is_told_and_leaves_the_pipeline_in_order(pg: str, taken: Connection) -> None:
    def full(event: history.Event) -> None:
        raise OSError("no space left")

    end = history.subscribe(full)
    try:
        with pytest.raises(psycopg.InternalError, match="no space left"):
            write(taken, "a", under=token(6))
    finally:
        end()
    assert nothing_changed(pg)
    write(taken, "a", under=token(6))


def test_where_it_cannot_be_late_it_is_waited_for(pg: str, taken: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused_at_once(connection: Connection) -> None:
        with pytest.raises(errors.StaleTokenError), connection.transaction():
            with late(connection, "a", under=token(4)):
                pytest.fail("the block began")

    refused_at_once(taken)  # no pipeline
    with taken.pipeline(), pytest.raises(errors.StaleTokenError), taken.transaction():
        fenced_write(LATE.on(taken), "a", effect=lambda handle: pytest.fail("it ran"), token=token(4))
    with taken.pipeline(), pytest.raises(errors.NotInTransactionError):
        with late(taken, "a", under=token(6)):
            pytest.fail("the block began")
    with sql_doors.engine(pg).begin() as connection, pytest.raises(errors.StaleTokenError):
        with late(connection, "a", under=token(4)):
            pytest.fail("the block began")
    monkeypatch.setattr(_psycopg, "CAN_BE_LATE", False)
    with taken.pipeline():
        refused_at_once(taken)
    assert nothing_changed(pg)
