"""A mark in the guarded row: the verdicts and errors of the guard, on every kind of connection."""

import asyncio
import random
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support import sql_doors
from support.locks import wait_until_blocked
from support.sql_doors import ISOLATION, Door, marks, token, with_isolation

from adapters.sql import RowGuard, SqlGuard, create_all, row_mark_columns
from fencing import Token, errors, raise_fence
from fencing.testing import MemoryGuard
from scheduler.console.embedded import Postgres

METADATA = sa.MetaData()
ACCOUNT = sa.Table(
    "account",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("balance", sa.BigInteger, nullable=False),
    sa.Column("note", sa.JSON),
    *row_mark_columns(),
)
SEAT = sa.Table(
    "seat",
    METADATA,
    sa.Column("hall", sa.String(20), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("taken_by", sa.String(20)),
    *row_mark_columns(),
)
ACCOUNTS = RowGuard(ACCOUNT)
ONE_MORE = ACCOUNT.c.balance + 1
DOORS = ("postgresql/psycopg", "postgresql/connection", "postgresql/engine-async", "postgresql/psycopg-async")
DOORS += ("postgresql/session", "sqlite/connection", "sqlite/engine", "sqlite/connection-async")


@pytest.fixture(scope="module")
def bank(postgres: Postgres, pg_names: Iterator[str]) -> Iterator[str]:
    name = next(pg_names)
    address = postgres.create_database(name)
    prepare(address)
    yield address
    postgres.drop_database(name)


def prepare(address: str) -> None:
    with sql_doors.engine(address).begin() as connection:
        create_all(connection)
        METADATA.create_all(connection)


def address_of(name: str, request: pytest.FixtureRequest) -> str:
    if name.startswith("postgresql"):
        address = str(request.getfixturevalue("bank"))
        with psycopg.connect(address, autocommit=True) as bare:
            bare.execute("truncate account, seat, fencing_mark")
        return address
    path: Path = request.getfixturevalue("tmp_path")
    address = f"sqlite:///{path / 'bank.db'}"
    prepare(address)
    return address


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> Door:
    return Door(request.param, address_of(request.param, request), SqlGuard())


@pytest.fixture(params=["postgresql", "sqlite"])
def address(request: pytest.FixtureRequest) -> str:
    return address_of(request.param, request)


def rows(address: str) -> dict[int, tuple[int, str | None]]:
    with sql_doors.engine(address).connect() as connection:
        found = connection.execute(sa.select(ACCOUNT))
        return {
            row.id: (
                row.balance,
                row.fence_value and str(Token(row.fence_value, row.fence_issuer, row.fence_lineage)),
            )
            for row in found
        }


def refused(kind: type[Exception], door: Door, call: Any) -> Any:
    before = rows(door.address), marks(door.address)
    with pytest.raises(kind) as caught:
        door._call(call)
    assert type(caught.value) is kind
    assert (rows(door.address), marks(door.address)) == before
    return caught.value


def test_every_verdict_of_the_guard(door: Door) -> None:
    assert door._call(lambda tx: ACCOUNTS.insert(tx, {"id": 1, "balance": 0, "note": {"a": [1]}}, token=token(10)))
    assert door._call(lambda tx: ACCOUNTS.update(tx, 1, {"balance": ONE_MORE}, token=token(10)))
    assert door._call(lambda tx: ACCOUNTS.update(tx, 1, {"balance": ONE_MORE, "note": {"ä": None}}, token=token(12)))
    assert rows(door.address) == {1: (2, "shop/line-a/12")}
    with sql_doors.engine(door.address).connect() as connection:
        assert connection.execute(sa.select(ACCOUNT.c.note)).scalar_one() == {"ä": None}
    mark = door._call(lambda tx: ACCOUNTS.read_mark(tx, 1))
    assert (mark.token, bool(mark.holder), mark.at) == (token(12), True, None)

    for stale, kind in (
        (token(11), errors.StaleTokenError),
        (token(12, "line-b"), errors.LineageConflictError),
        (token(13, issuer="bank"), errors.IssuerMismatchError),
    ):
        change = {"balance": 0}
        error = refused(kind, door, lambda tx, t=stale, c=change: ACCOUNTS.update(tx, 1, c, token=t))
        assert (error.resource, error.presented, error.mark) == ("account/1", stale, token(12))
        assert error.holder == mark.holder
        assert error.downstream.startswith(("postgresql:test_", "sqlite:/"))
        refused(kind, door, lambda tx, t=stale: ACCOUNTS.delete(tx, 1, token=t))
        refused(kind, door, lambda tx, t=stale: ACCOUNTS.insert(tx, {"id": 1, "balance": 9}, token=t))
        refused(kind, door, lambda tx, t=stale: ACCOUNTS.raise_fence(tx, 1, token=t))

    door._call(lambda tx: ACCOUNTS.raise_fence(tx, 1, token=token(20)))
    refused(errors.StaleTokenError, door, lambda tx: ACCOUNTS.update(tx, 1, {"balance": 0}, token=token(19)))
    assert rows(door.address) == {1: (2, "shop/line-a/20")}


def test_a_deleted_row_leaves_its_mark_and_an_insert_looks_there(door: Door) -> None:
    door._call(lambda tx: ACCOUNTS.insert(tx, {"id": 1, "balance": 5}, token=token(5)))
    door._call(lambda tx: ACCOUNTS.update(tx, 1, {"balance": 6}, token=token(8)))
    assert door._call(lambda tx: ACCOUNTS.delete(tx, 1, token=token(9)))
    assert (rows(door.address), marks(door.address)) == ({}, {"account/1": "shop/line-a/9"})
    refused(errors.StaleTokenError, door, lambda tx: ACCOUNTS.insert(tx, {"id": 1, "balance": 5}, token=token(8)))
    refused(errors.StaleTokenError, door, lambda tx: ACCOUNTS.update(tx, 1, {"balance": 5}, token=token(8)))
    refused(errors.StaleTokenError, door, lambda tx: ACCOUNTS.delete(tx, 1, token=token(8)))
    assert not door._call(lambda tx: ACCOUNTS.update(tx, 1, {"balance": 5}, token=token(9)))
    assert not door._call(lambda tx: ACCOUNTS.delete(tx, 1, token=token(9)))
    assert door._call(lambda tx: ACCOUNTS.insert(tx, {"id": 1, "balance": 5}, token=token(9)))
    assert not door._call(lambda tx: ACCOUNTS.insert(tx, {"id": 1, "balance": 7}, token=token(11)))
    assert rows(door.address) == {1: (5, "shop/line-a/11")}
    refused(errors.StaleTokenError, door, lambda tx: ACCOUNTS.update(tx, 1, {"balance": 5}, token=token(10)))


def test_a_row_from_before_its_columns_is_a_resource_without_a_mark(address: str) -> None:
    bind = sql_doors.engine(address)
    with bind.begin() as connection:
        connection.execute(
            ACCOUNT.insert(), [{"id": 1, "balance": 5}, {"id": 2, "balance": 5}, {"id": 3, "balance": 1}]
        )
    strict = RowGuard(ACCOUNT, on_missing="reject")
    for call in (
        lambda: strict.update(bind, 1, {"balance": 6}, token=token(5)),
        lambda: strict.delete(bind, 1, token=token(5)),
    ):
        with pytest.raises(errors.MarkMissingError):
            call()
    raise_fence(bind, ACCOUNTS.resource(1), token=token(9))
    for call in (ACCOUNTS, strict):
        with pytest.raises(errors.StaleTokenError):
            call.update(bind, 1, {"balance": 6}, token=token(8))
    assert ACCOUNTS.update(bind, 1, {"balance": ONE_MORE}, token=token(9))
    assert ACCOUNTS.update(bind, 2, {"balance": 7}, token=token(3))
    strict.raise_fence(bind, 3, token=token(2))
    assert strict.update(bind, 3, {"balance": 2}, token=token(2))
    assert strict.delete(bind, 3, token=token(2))
    assert rows(address) == {1: (6, "shop/line-a/9"), 2: (7, "shop/line-a/3")}


def test_it_answers_as_the_model_does(address: str) -> None:
    """Random changes of two rows, each judged by the model guard and by the database alike."""
    draw = random.Random(20261129)
    bind = sql_doors.engine(address)
    model = MemoryGuard()
    for _ in range(150):
        key = draw.choice((1, 2))
        shown = Token(draw.randint(1, 6), draw.choice(("shop", "shop", "shop", "bank")), draw.choice("xy"))
        call = draw.choice(
            (
                lambda: ACCOUNTS.update(bind, key, {"balance": ONE_MORE}, token=shown),  # noqa: B023
                lambda: ACCOUNTS.insert(bind, {"id": key, "balance": 1}, token=shown),  # noqa: B023
                lambda: ACCOUNTS.delete(bind, key, token=shown),  # noqa: B023
                lambda: ACCOUNTS.raise_fence(bind, key, token=shown),  # noqa: B023
            )
        )
        answers = []
        for one in (lambda: model.raise_fence((f"account/{key}",), shown, "m"), call):  # noqa: B023
            try:
                one()
                answers.append((None, None))
            except errors.FenceRejected as exc:
                answers.append((type(exc), exc.mark))
        assert answers[0] == answers[1], (key, str(shown))


def test_a_rolled_back_change_leaves_nothing(address: str) -> None:
    with sql_doors.engine(address).connect() as connection:
        ACCOUNTS.insert(connection, {"id": 1, "balance": 5}, token=token(5))
        connection.commit()
        ACCOUNTS.update(connection, 1, {"balance": 6}, token=token(9))
        ACCOUNTS.delete(connection, 1, token=token(9))
        connection.rollback()
    assert rows(address) == {1: (5, "shop/line-a/5")}
    assert ACCOUNTS.update(sql_doors.engine(address), 1, {"balance": 7}, token=token(6))


def test_who_catches_the_refusal_and_commits_has_written_nothing(address: str) -> None:
    ACCOUNTS.insert(sql_doors.engine(address), {"id": 1, "balance": 5}, token=token(5))
    before = marks(address)
    with sql_doors.engine(address).begin() as connection:
        for call in (
            lambda: ACCOUNTS.delete(connection, 1, token=token(4)),
            lambda: ACCOUNTS.insert(connection, {"id": 1, "balance": 1}, token=token(4)),
            lambda: ACCOUNTS.update(connection, 1, {"balance": 1}, token=token(4)),
        ):
            with pytest.raises(errors.StaleTokenError):
                call()
    assert (rows(address), marks(address)) == ({1: (5, "shop/line-a/5")}, before)


def test_the_key_is_the_resource(address: str) -> None:
    bind = sql_doors.engine(address)
    seats = RowGuard(SEAT)
    assert seats.insert(bind, {"hall": "A", "number": 7, "taken_by": None}, token=token(5))
    for key in (("A", 7), {"number": 7, "hall": "A"}):
        assert seats.update(bind, key, {"taken_by": "ann"}, token=token(5))
        assert seats.resource(key) == "seat/A/7"
    named = RowGuard(SEAT, resource=lambda key: f"hall {key['hall']}, {key['number']}")
    with pytest.raises(errors.StaleTokenError) as caught:
        named.update(bind, ("A", 7), {"taken_by": "bob"}, token=token(4))
    assert caught.value.resource == "hall A, 7"
    for key in (7, ("A",), ("A", 7, 1), {"hall": "A"}):
        with pytest.raises(ValueError, match="hall, number"):
            seats.update(bind, key, {"taken_by": "x"}, token=token(9))


def test_what_a_row_guard_cannot_do_is_refused() -> None:
    bare = sa.Table("bare", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    with pytest.raises(ValueError, match="row_mark_columns"):
        RowGuard(bare)
    with pytest.raises(ValueError, match="primary key"):
        RowGuard(sa.Table("bare", sa.MetaData(), sa.Column("id", sa.Integer), *row_mark_columns()))
    bind = sa.create_engine("sqlite://")
    for values, what in (({"nope": 1}, "nope"), ({"fence_value": 1}, "own column"), ({"id": 2}, "key")):
        with pytest.raises(ValueError, match=what):
            ACCOUNTS.update(bind, 1, values, token=token(1))
    seats = sa.select(sa.func.count()).select_from(SEAT).scalar_subquery()
    for number in (seats, ACCOUNT.c.balance + seats, SEAT.c.number, sa.literal_column("(select 1)")):
        with pytest.raises(ValueError, match=r"RowGuard\.update\(\) cannot take what reads other rows"):
            ACCOUNTS.statements.change("postgresql", {"balance": number}, None)
    with pytest.raises(ValueError, match="lacks id"):
        ACCOUNTS.insert(bind, {"balance": 1}, token=token(1))


# Races on PostgreSQL, ordered by lock waits.


@pytest.fixture
def pg(request: pytest.FixtureRequest) -> str:
    address = address_of("postgresql", request)
    ACCOUNTS.insert(sql_doors.engine(address), {"id": 1, "balance": 0}, token=token(1))
    return address


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def second(pool: ThreadPoolExecutor, address: str, call: Any) -> "Future[Any]":
    """Makes a change on a thread, in a transaction of its own, and returns once it waits for a lock."""
    bare = psycopg.connect(address, autocommit=True)

    def work() -> Any:
        with bare, bare.transaction():
            return call(bare)

    future = pool.submit(work)
    wait_until_blocked(address.partition("?")[0], bare.info.backend_pid)
    return future


CHANGES = {
    "update": lambda tx, t: ACCOUNTS.update(tx, 1, {"balance": t.value}, token=t),
    "delete": lambda tx, t: ACCOUNTS.delete(tx, 1, token=t),
    "insert": lambda tx, t: ACCOUNTS.insert(tx, {"id": 1, "balance": t.value}, token=t),
    "raise": lambda tx, t: ACCOUNTS.raise_fence(tx, 1, token=t),
}


@pytest.mark.parametrize("level", ISOLATION)
@pytest.mark.parametrize("earlier", ["update", "delete", "raise"])
@pytest.mark.parametrize("later", ["update", "delete", "raise"])
def test_who_comes_second_waits_and_is_then_judged(
    pg: str, pool: ThreadPoolExecutor, earlier: str, later: str, level: str
) -> None:
    with psycopg.connect(pg, autocommit=True) as first, first.transaction():
        CHANGES[earlier](first, token(9))
        stale = second(pool, with_isolation(pg, level), lambda tx: CHANGES[later](tx, token(5)))
    with pytest.raises(
        errors.StaleTokenError if level == "read committed" else (errors.StaleTokenError, errors.ContentionError)
    ):
        stale.result(60)
    assert rows(pg).get(1, (0,))[0] == (9 if earlier == "update" else 0)


@pytest.mark.parametrize("later", ["update", "insert", "delete"])
def test_a_newer_holder_waits_for_an_older_one_and_goes_on(pg: str, pool: ThreadPoolExecutor, later: str) -> None:
    CHANGES["delete"](sql_doors.engine(pg), token(2))
    with psycopg.connect(pg, autocommit=True) as first, first.transaction():
        CHANGES["insert"](first, token(5))
        newer = second(pool, pg, lambda tx: CHANGES[later](tx, token(9)))
    newer.result(60)
    expected = {"update": {1: (9, "shop/line-a/9")}, "insert": {1: (5, "shop/line-a/9")}, "delete": {}}
    assert rows(pg) == expected[later]
    with pytest.raises(errors.StaleTokenError):
        CHANGES["update"](sql_doors.engine(pg), token(5))


def test_it_waits_no_longer_than_the_lock_timeout_and_leaves_the_setting_alone(pg: str) -> None:
    hasty = RowGuard(ACCOUNT, lock_timeout=0.05)
    with psycopg.connect(pg, autocommit=True) as first, first.transaction():
        ACCOUNTS.update(first, 1, {"balance": 9}, token=token(9))
        for call in (hasty.update, hasty.delete):
            with psycopg.connect(pg, autocommit=True) as bare, pytest.raises(errors.ContentionError) as caught:
                with bare.transaction():
                    call(bare, 1, *([{"balance": 1}] if call == hasty.update else []), token=token(10))
            assert (caught.value.resource, caught.value.presented) == ("account/1", token(10))
    with psycopg.connect(pg, autocommit=True) as bare, bare.transaction():
        bare.execute("set local lock_timeout = '77s'")
        hasty.update(bare, 1, {"balance": 1}, token=token(10))
        with pytest.raises(errors.StaleTokenError):
            hasty.update(bare, 1, {"balance": 1}, token=token(9))
        hasty.delete(bare, 1, token=token(10))
        hasty.insert(bare, {"id": 1, "balance": 1}, token=token(10))
        assert bare.execute("show lock_timeout").fetchone() == ("77s",)


def test_after_a_wait_the_lock_timeout_is_as_it_was(pg: str, pool: ThreadPoolExecutor) -> None:
    def change(tx: Any) -> Any:
        ACCOUNTS.update(tx, 1, {"balance": 10}, token=token(10))
        return tx.execute("show lock_timeout").fetchone()

    with psycopg.connect(pg, autocommit=True) as first, first.transaction():
        ACCOUNTS.update(first, 1, {"balance": 9}, token=token(9))
        newer = second(pool, pg, change)
    assert newer.result(20) == ("0",)
    assert rows(pg)[1] == (10, "shop/line-a/10")


def test_an_async_target_is_awaited(address: str) -> None:
    async def work() -> None:
        async with Door(f"{address.partition(':')[0]}/connection-async", address, SqlGuard()).opened_async() as tx:
            assert await ACCOUNTS.insert(tx, {"id": 3, "balance": 1}, token=token(1))
            mark = await ACCOUNTS.read_mark(tx, 3)
            assert mark.token == token(1)

    asyncio.run(work())
