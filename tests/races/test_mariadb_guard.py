"""Two connections at one mark of MariaDB, ordered by the locks that they wait for."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from support import sql_doors
from support.mariadb import MariaDB
from support.sql_doors import PUT, do, ledger, marks, token

from adapters.sql import (
    RowGuard,
    SqlGuard,
    adopt,
    compact,
    fenced_statement,
    protect,
    protected,
    row_mark_columns,
    unfenced,
    unprotect,
)
from fencing import Token, errors, fenced_write, raise_fence

PUT_MANY = "insert into ledger values (:id, 1)"
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
ACCOUNT = sa.Table(
    "account",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("balance", sa.BigInteger, nullable=False),
    *row_mark_columns(),
)


@pytest.fixture
def bank(mariadb_bank: str) -> str:
    return sql_doors.empty_mysql(mariadb_bank)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(30) as threads:
        yield threads


def bind(address: str, level: str = "REPEATABLE READ") -> sa.Engine:
    return sql_doors.engine(address, isolation_level=level)


@contextmanager
def holder(address: str, *resources: str, token: Token) -> Iterator[sa.Connection]:
    """A transaction that has raised the marks and is still open."""
    with sql_doors.engine(address).connect() as connection:
        raise_fence(connection, *resources, token=token)
        yield connection


def waiting(pool: ThreadPoolExecutor, server: MariaDB, address: str, level: str, call: Any) -> "Future[Any]":
    """Makes a write on a thread, in a transaction of its own, and returns once it waits for a lock."""
    known, number = threading.Event(), []

    def work() -> Any:
        with bind(address, level).begin() as connection:
            number.append(connection.execute(sa.text("select connection_id()")).scalar_one())
            known.set()
            return call(connection)

    future = pool.submit(work)
    assert known.wait(60)
    server.wait_until_blocked("the second one waits for a lock", number[0])
    return future


def put(connection: Any, value: Token) -> None:
    with fenced_write(SqlGuard(lock_timeout=60).on(connection), "a", token=value):
        do(connection, PUT, id="a", owner=value.value)


ANSWERS = [
    pytest.param(token(9), token(5), errors.StaleTokenError, id="stale"),
    pytest.param(token(9), token(9, "line-b"), errors.LineageConflictError, id="lineage"),
    pytest.param(token(9, issuer="bank"), token(99), errors.IssuerMismatchError, id="issuer"),
    pytest.param(token(9), token(9), None, id="repeated"),
    pytest.param(token(9), token(10), None, id="advanced"),
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("existing", [True, False], ids=["mark there", "first write"])
@pytest.mark.parametrize(("first", "second", "error"), ANSWERS)
def test_who_comes_second_waits_and_is_then_judged_by_what_was_committed(
    bank: str,
    mariadb: MariaDB,
    pool: ThreadPoolExecutor,
    level: str,
    existing: bool,
    first: Token,
    second: Token,
    error: type[Exception] | None,
) -> None:
    if existing:
        raise_fence(sql_doors.engine(bank), "a", token=Token(1, first.issuer, "line-a"))
    with holder(bank, "a", token=first) as open_transaction:
        later = waiting(pool, mariadb, bank, level, lambda tx: put(tx, second))
        open_transaction.commit()
    if error is None:
        later.result(60)
        assert (ledger(bank), marks(bank)) == ({"a": second.value}, {"a": str(second)})
    else:
        with pytest.raises(error):
            later.result(60)
        assert (ledger(bank), marks(bank)) == ({}, {"a": str(first)})


@pytest.mark.parametrize("existing", [True, False], ids=["mark there", "first write"])
def test_a_raise_that_is_rolled_back_is_no_evidence(
    bank: str, mariadb: MariaDB, pool: ThreadPoolExecutor, existing: bool
) -> None:
    if existing:
        raise_fence(sql_doors.engine(bank), "a", token=token(1))
    with holder(bank, "a", token=token(9)) as open_transaction:
        later = waiting(pool, mariadb, bank, "REPEATABLE READ", lambda tx: put(tx, token(5)))
        open_transaction.rollback()
        later.result(60)
    assert (ledger(bank), marks(bank)) == ({"a": 5}, {"a": "shop/line-a/5"})


@pytest.mark.parametrize("level", LEVELS)
def test_an_old_snapshot_does_not_hide_a_newer_mark(bank: str, level: str) -> None:
    raise_fence(sql_doors.engine(bank), "a", token=token(5))
    with bind(bank, level).connect() as connection:
        if level != "SERIALIZABLE":  # where this very look would lock the row
            connection.execute(sa.text("select count(*) from fencing_mark"))
        raise_fence(sql_doors.engine(bank), "a", token=token(9))
        with pytest.raises(errors.StaleTokenError):
            put(connection, token(5))
    assert ledger(bank) == {}


def test_an_old_snapshot_does_not_hide_to_whom_a_resource_was_given(bank: str) -> None:
    """What a person decides by is read as it is: else a resource would be opened to old tokens of an issuer."""
    etcd = token(50, "l", "etcd")
    raise_fence(sql_doors.engine(bank), "a", "b", token=etcd)
    with bind(bank).connect() as connection:
        connection.execute(sa.text("select count(*) from fencing_act"))
        for resource in ("a", "b"):
            adopt(sql_doors.engine(bank), resource, token(10), "moved")
        with pytest.raises(ValueError, match="open it to older"):
            adopt(connection, "a", token(3, "l", "etcd"), "and back")
        assert compact(connection, token(20), idle=0) == 0
    assert marks(bank) == {"a": "shop/line-a/10", "b": "shop/line-a/10"}


@pytest.mark.parametrize("level", LEVELS)
def test_thirty_first_writes_at_once_neither_deadlock_nor_pass_each_other(
    bank: str, pool: ThreadPoolExecutor, level: str
) -> None:
    start = threading.Barrier(30)
    engine = bind(bank, level)

    def write(value: int) -> bool:
        start.wait(60)
        try:
            with engine.begin() as connection:
                put(connection, token(value))
        except errors.StaleTokenError:
            return False
        return True

    written = list(pool.map(write, range(1, 31)))
    assert written[-1]
    assert (ledger(bank), marks(bank)) == ({"a": 30}, {"a": "shop/line-a/30"})


def test_it_waits_no_longer_than_the_lock_timeout_and_leaves_the_setting_alone(bank: str) -> None:
    hasty = SqlGuard(lock_timeout=0.5)
    with holder(bank, "a", token=token(1)), sql_doors.engine(bank).connect() as connection:
        with pytest.raises(errors.ContentionError) as caught:
            fenced_write(hasty.on(connection), "a", effect=lambda _: None, token=token(5))
        assert (caught.value.resource, caught.value.presented) == ("a", token(5))
        assert connection.execute(sa.text("select @@innodb_lock_wait_timeout")).scalar() == 60
        fenced_write(hasty.on(connection), "b", effect=lambda _: None, token=token(5))
        assert connection.execute(sa.text("select @@innodb_lock_wait_timeout")).scalar() == 60


def test_a_deadlock_inside_the_block_ends_the_fence_also_for_who_catches_it(
    bank: str, mariadb: MariaDB, pool: ThreadPoolExecutor
) -> None:
    """The server has rolled the whole transaction back: what comes after it is not fenced."""
    raise_fence(sql_doors.engine(bank), "mine", token=token(1))
    with sql_doors.engine(bank).begin() as connection:
        for name in ("x", "y"):
            do(connection, PUT, id=name, owner=0)
    other = sql_doors.engine(bank).connect()
    other.execute(sa.text("insert into ledger values ('heavy1', 1), ('heavy2', 1), ('heavy3', 1)"))
    do(other, "update ledger set owner = 1 where id = :id", id="x")
    with sql_doors.engine(bank).connect() as connection, pytest.raises(errors.NotInTransactionError):
        with fenced_write(connection, "mine", token=token(5)):
            do(connection, "update ledger set owner = 2 where id = :id", id="y")
            number = other.execute(sa.text("select connection_id()")).scalar_one()
            crossing = pool.submit(do, other, "update ledger set owner = 1 where id = :id", id="y")
            mariadb.wait_until_blocked("the other one waits", number)
            with pytest.raises(sa.exc.OperationalError, match="1213"):
                do(connection, "update ledger set owner = 2 where id = :id", id="x")
            crossing.result(60)
            do(connection, PUT, id="unfenced", owner=9)
    other.rollback()
    other.close()
    assert marks(bank) == {"mine": "shop/line-a/1"}
    assert "unfenced" not in ledger(bank)


def test_a_deadlock_of_marks_is_contention_though_it_took_the_savepoint(
    bank: str, mariadb: MariaDB, pool: ThreadPoolExecutor
) -> None:
    raise_fence(sql_doors.engine(bank), "a", "b", token=token(1))
    with holder(bank, "b", token=token(2)) as heavy:
        heavy.execute(sa.text("insert into ledger values ('heavy1', 1), ('heavy2', 1), ('heavy3', 1)"))

        def crossing(connection: sa.Connection) -> None:
            raise_fence(connection, "a", token=token(3))
            raise_fence(connection, "b", token=token(3))

        light = waiting(pool, mariadb, bank, "REPEATABLE READ", crossing)
        raise_fence(heavy, "a", token=token(2))
        with pytest.raises(errors.ContentionError) as caught:
            light.result(60)
        assert (caught.value.resource, caught.value.presented) == ("b", token(3))
        heavy.commit()
    assert set(marks(bank).values()) == {"shop/line-a/2"}


def test_a_deadlock_of_an_effect_with_a_key_is_told_as_it_is(
    bank: str, mariadb: MariaDB, pool: ThreadPoolExecutor
) -> None:
    with sql_doors.engine(bank).begin() as connection:
        for name in ("x", "y"):
            do(connection, PUT, id=name, owner=0)
    with sql_doors.engine(bank).connect() as heavy:
        heavy.execute(sa.text(PUT_MANY), [{"id": f"heavy{number}"} for number in range(100)])
        do(heavy, PUT, id="x", owner=1)

        def effect(connection: sa.Connection) -> None:
            do(connection, PUT, id="y", owner=2)
            do(connection, PUT, id="x", owner=2)

        def work(connection: sa.Connection) -> None:
            fenced_write(connection, "a", effect=effect, token=token(5), once="k")

        light = waiting(pool, mariadb, bank, "REPEATABLE READ", work)
        do(heavy, PUT, id="y", owner=1)
        with pytest.raises(sa.exc.OperationalError, match="1213"):
            light.result(60)
        heavy.rollback()
    assert marks(bank) == {}


def test_an_effect_on_an_engine_is_run_again_after_contention_of_its_own(bank: str) -> None:
    tries = []

    def effect(connection: sa.Connection) -> int:
        tries.append(1)
        if len(tries) < 3:
            raise sa.exc.OperationalError("update", {}, pymysql.err.OperationalError(1213, "Deadlock found"))
        do(connection, PUT, id="a", owner=5)
        return len(tries)

    assert fenced_write(sql_doors.engine(bank), "a", effect=effect, token=token(5), once="k") == 3
    assert fenced_write(sql_doors.engine(bank), "a", effect=effect, token=token(6), once="k") == 3
    assert ledger(bank) == {"a": 5}


def test_the_same_key_at_once_is_applied_once(bank: str, pool: ThreadPoolExecutor) -> None:
    start = threading.Barrier(8)

    def apply(_: int) -> object:
        start.wait(60)
        add = "insert into ledger values ('n', 1) on duplicate key update owner = owner + 1"
        return fenced_write(
            sql_doors.engine(bank), "a", effect=lambda tx: do(tx, add) and "done", token=token(5), once="k"
        )

    assert set(pool.map(apply, range(8))) == {"done"}
    assert ledger(bank) == {"n": 1}


def test_a_mark_in_the_row(bank: str) -> None:
    engine = sql_doors.engine(bank)
    ACCOUNT.drop(engine, checkfirst=True)
    ACCOUNT.create(engine)
    rows = RowGuard(ACCOUNT)
    more = {"balance": ACCOUNT.c.balance + 1}
    assert rows.insert(engine, {"id": 1, "balance": 0}, token=token(5))
    assert rows.update(engine, 1, more, token=token(5))
    assert rows.update(engine, 1, more, token=token(7))
    for call in (
        lambda: rows.update(engine, 1, more, token=token(6)),
        lambda: rows.delete(engine, 1, token=token(6)),
        lambda: rows.insert(engine, {"id": 1, "balance": 0}, token=token(6)),
    ):
        with pytest.raises(errors.StaleTokenError):
            call()
    with engine.connect() as connection:
        assert connection.execute(sa.select(ACCOUNT.c.balance)).scalar_one() == 2
    assert rows.delete(engine, 1, token=token(8))
    with pytest.raises(errors.StaleTokenError):
        rows.insert(engine, {"id": 1, "balance": 0}, token=token(7))


def test_a_row_that_only_an_old_snapshot_shows_is_inserted(bank: str) -> None:
    engine = sql_doors.engine(bank)
    ACCOUNT.drop(engine, checkfirst=True)
    ACCOUNT.create(engine)
    rows = RowGuard(ACCOUNT)
    rows.insert(engine, {"id": 1, "balance": 0}, token=token(5))
    with engine.begin() as connection:
        assert connection.execute(sa.select(ACCOUNT.c.balance)).scalar_one() == 0
        rows.delete(engine, 1, token=token(5))
        assert rows.insert(connection, {"id": 1, "balance": 7}, token=token(6))
    with engine.connect() as connection:
        assert connection.execute(sa.select(ACCOUNT.c.balance)).scalar_one() == 7


def test_what_it_cannot_do_is_said(bank: str) -> None:
    add = sa.insert(ACCOUNT).values(id=1, balance=0)
    with pytest.raises(TypeError, match="fenced_write"):
        fenced_statement(sql_doors.engine(bank), "a", add, token=token(1))
    with sql_doors.engine(bank, isolation_level="AUTOCOMMIT").connect() as connection:
        with pytest.raises(errors.NotInTransactionError):
            put(connection, token(1))
    for function in (protected, lambda one: unprotect(one, "ledger"), lambda one: protect(one, "ledger", "id")):
        with pytest.raises(TypeError, match="is for PostgreSQL and SQLite"):
            function(sql_doors.engine(bank))
    with sql_doors.engine(bank).begin() as connection, pytest.raises(TypeError, match="is for PostgreSQL and SQLite"):
        with unfenced(connection, "no table is protected here"):
            pass


@pytest.mark.parametrize("sql", ["create table passing (n integer)", "truncate table ledger", "commit"])
@pytest.mark.parametrize("key", [None, "k"])
def test_a_statement_that_commits_ends_the_fence_whatever_comes_after_it(bank: str, sql: str, key: str | None) -> None:
    def effect(connection: sa.Connection) -> None:
        do(connection, sql)
        raise_fence(sql_doors.engine(bank), "a", token=token(9))
        do(connection, PUT, id="a", owner=5)

    try:
        with sql_doors.engine(bank).connect() as connection:
            do(connection, "select * from ledger")
            with pytest.raises(errors.NotInTransactionError):
                fenced_write(connection, "a", effect=effect, token=token(5), once=key)
            connection.rollback()
            # What ended before the block is no matter.
            do(connection, PUT, id="b", owner=1)
            do(connection, "analyze table ledger")
            with fenced_write(connection, "b", token=token(5)):
                do(connection, PUT, id="b", owner=2)
            connection.commit()
            with fenced_write(connection, "b", token=token(5)):
                do(connection, PUT, id="b", owner=3)
            connection.commit()
    finally:
        with sql_doors.engine(bank).begin() as connection:
            do(connection, "drop table if exists passing")
    assert ledger(bank) == {"b": 3}


def test_autocommit_of_the_drivers_own_is_refused(bank: str) -> None:
    address = f"{bank}&autocommit=true"
    with sql_doors.engine(address).connect() as connection, pytest.raises(errors.NotInTransactionError):
        put(connection, token(1))

    async def work() -> None:
        twin = create_async_engine(sql_doors.async_url(address))
        async with twin.connect() as connection:
            with pytest.raises(errors.NotInTransactionError):
                await raise_fence(connection, "a", token=token(1))
        await twin.dispose()

    asyncio.run(work())
    assert marks(bank) == {}
