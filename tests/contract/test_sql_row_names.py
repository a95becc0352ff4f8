"""Rows by the names of their resources: fences, several at once, another issuer, looking at them, the doctor."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from support import sql_doors
from support.jobs import installed_beside
from support.locks import wait_until_blocked
from support.sql_doors import token

from adapters.sql import RowGuard, SqlGuard, adopt, compact, create_all, protect, row_mark_columns, unprotect
from fencing import Token, errors, explain, fenced_write, list_marks, raise_fence, read_mark
from scheduler import Job, Retry
from scheduler.console.embedded import Postgres

METADATA = sa.MetaData()
ACCOUNT = sa.Table(
    "account",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("balance", sa.BigInteger, nullable=False),
    *row_mark_columns(),
)
SEAT = sa.Table(
    "seat",
    METADATA,
    sa.Column("hall", sa.String(20), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    *row_mark_columns(),
)
ACCOUNTS = RowGuard(ACCOUNT)
NAMES = ("account/1", "account/2")


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


@pytest.fixture
def pg(bank: str) -> str:
    with psycopg.connect(bank, autocommit=True) as bare:
        bare.execute("truncate account, seat, fencing_mark, fencing_act, fencing_applied")
        bare.execute("update fencing_floor set floors = '{}'")
    return bank


@pytest.fixture(params=["postgresql", "sqlite", "mysql"])
def address(request: pytest.FixtureRequest) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("pg"))
    if request.param == "mysql":
        address = sql_doors.empty_mysql(request.getfixturevalue("mariadb_bank"))
        prepare(address)
        with sql_doors.engine(address).begin() as connection:
            connection.execute(sa.delete(ACCOUNT))
            connection.execute(sa.text("update fencing_floor set floors = '{}'"))
        return address
    path: Path = request.getfixturevalue("tmp_path")
    address = f"sqlite:///{path / 'bank.db'}"
    prepare(address)
    return address


def rows(address: str) -> dict[int, tuple[int, str | None]]:
    """Balance and mark of each row, read past the guard."""
    with sql_doors.engine(address).connect() as connection:
        return {
            row.id: (row.balance, row.fence_issuer and f"{row.fence_issuer}/{row.fence_lineage}/{row.fence_value}")
            for row in connection.execute(sa.select(ACCOUNT))
        }


def opened(address: str, value: int = 5) -> sa.Engine:
    bind = sql_doors.engine(address)
    for number in (1, 2):
        assert ACCOUNTS.insert(bind, {"id": number, "balance": 0}, token=token(value))
    return bind


def move(connection: Any) -> str:
    connection.execute(sa.update(ACCOUNT).values(balance=ACCOUNT.c.balance + 1))
    return "moved"


def test_several_rows_are_raised_together_or_not_at_all(address: str) -> None:
    bind = opened(address)
    ACCOUNTS.raise_fence(bind, 2, token=token(9))
    before = rows(address)
    with bind.begin() as connection, pytest.raises(errors.StaleTokenError) as caught:
        fenced_write(ACCOUNTS.on(connection), *NAMES, effect=move, token=token(7))  # who catches it commits
    assert (caught.value.resource, caught.value.mark) == ("account/2", token(9))
    assert rows(address) == before
    assert fenced_write(ACCOUNTS.on(bind), *NAMES, effect=move, token=token(9)) == "moved"
    with bind.begin() as connection, fenced_write(ACCOUNTS.on(connection), *NAMES, token=token(10)) as tx:
        move(tx)
    assert rows(address) == dict.fromkeys((1, 2), (2, "shop/line-a/10"))
    with bind.begin() as connection, fenced_write(ACCOUNTS.on(connection), "account/1", token=token(11)):
        pass
    assert rows(address)[1] == (2, "shop/line-a/11")
    for number in (1, 2):
        with pytest.raises(errors.StaleTokenError):
            ACCOUNTS.update(bind, number, {"balance": 0}, token=token(9))


def test_once_over_rows(address: str) -> None:
    bind = opened(address)
    for value in (6, 7):
        assert fenced_write(ACCOUNTS.on(bind), *NAMES, effect=move, token=token(value), once="m") == "moved"
    assert rows(address) == dict.fromkeys((1, 2), (1, "shop/line-a/7"))


def test_a_fence_by_name_is_raised_where_a_change_looks(address: str) -> None:
    bind = opened(address)
    raise_fence(ACCOUNTS.on(bind), "account/1", token=token(9))
    with pytest.raises(errors.StaleTokenError):
        ACCOUNTS.update(bind, 1, {"balance": 7}, token=token(8))
    assert read_mark(ACCOUNTS.on(bind), "account/1").token == token(9)
    raise_fence(ACCOUNTS.on(bind), "account/3", token=token(9))  # of a row that is still to come
    with pytest.raises(errors.StaleTokenError):
        ACCOUNTS.insert(bind, {"id": 3, "balance": 7}, token=token(8))
    assert read_mark(ACCOUNTS.on(bind), "account/3").token == token(9)


def test_through_an_async_engine(address: str) -> None:
    opened(address)

    async def effect(connection: Any) -> None:
        await connection.execute(sa.update(ACCOUNT).values(balance=8))

    async def work() -> tuple[Any, ...]:
        bind = create_async_engine(sql_doors.async_url(address), poolclass=NullPool)
        try:
            guard = ACCOUNTS.on(bind)
            await fenced_write(guard, *NAMES, effect=effect, token=token(6))
            await raise_fence(guard, "account/1", token=token(7))
            await adopt(guard, "account/2", Token(3, "etcd", "c"), "moved")
            return await read_mark(guard, "account/1"), await list_marks(guard), await explain(guard, "account/2")
        finally:
            await bind.dispose()

    mark, listed, explained = asyncio.run(work())
    assert (mark.token, [name for name, _ in listed]) == (token(7), list(NAMES))
    assert explained.mark.token == Token(3, "etcd", "c")
    assert rows(address) == {1: (8, "shop/line-a/7"), 2: (8, "etcd/c/3")}


def test_a_row_is_given_to_another_issuer(address: str) -> None:
    bind = opened(address)
    etcd = Token(3, "etcd", "c")
    ACCOUNTS.update(bind, 2, {"balance": 0}, token=token(8))
    with pytest.raises(ValueError, match="older"):  # what is kept from the insert is not what the row has seen
        adopt(ACCOUNTS.on(bind), "account/2", token(7), "back")
    with pytest.raises(errors.IssuerMismatchError):
        ACCOUNTS.update(bind, 1, {"balance": 7}, token=etcd)
    adopt(ACCOUNTS.on(bind), "account/1", etcd, "moved to etcd")
    assert ACCOUNTS.update(bind, 1, {"balance": 7}, token=etcd)
    with pytest.raises(errors.IssuerMismatchError):
        ACCOUNTS.update(bind, 1, {"balance": 8}, token=token(99))
    assert rows(address)[1] == (7, "etcd/c/3")
    with pytest.raises(ValueError, match="older"):  # back, but not below where it was
        adopt(ACCOUNTS.on(bind), "account/1", token(4), "back")
    adopt(ACCOUNTS.on(bind), "account/1", "shop", "back")
    with pytest.raises(errors.StaleTokenError):
        ACCOUNTS.update(bind, 1, {"balance": 9}, token=token(4))
    assert ACCOUNTS.update(bind, 1, {"balance": 9}, token=token(6))
    assert ACCOUNTS.delete(bind, 1, token=token(7))  # what is kept of it was given away too
    with pytest.raises(errors.StaleTokenError):
        ACCOUNTS.insert(bind, {"id": 1, "balance": 0}, token=token(6))
    told = str(explain(ACCOUNTS.on(bind), "account/1"))
    assert "moved to etcd" in told
    assert "back" in told


def test_a_row_without_a_mark_and_one_that_is_not_there_are_given_away_too(address: str) -> None:
    bind = sql_doors.engine(address)
    with bind.begin() as connection:
        connection.execute(sa.insert(ACCOUNT).values(id=1, balance=0))
    for name, number in (("account/1", 1), ("account/2", 2)):
        raise_fence(bind, name, token=token(5))  # what is kept for it
        adopt(ACCOUNTS.on(bind), name, Token(3, "etcd", "c"), "moved")
        with pytest.raises(errors.IssuerMismatchError):
            ACCOUNTS.raise_fence(bind, number, token=token(9))
    assert ACCOUNTS.update(bind, 1, {"balance": 1}, token=Token(3, "etcd", "c"))
    assert ACCOUNTS.insert(bind, {"id": 2, "balance": 2}, token=Token(4, "etcd", "c"))


def test_what_is_listed_and_explained(address: str) -> None:
    bind = opened(address)
    ACCOUNTS.insert(bind, {"id": 10, "balance": 0}, token=token(6))
    ACCOUNTS.update(bind, 10, {"balance": 1}, token=token(8))
    ACCOUNTS.delete(bind, 2, token=token(7))
    raise_fence(bind, "other/1", "account/x", token=token(5))
    listed = [(name, mark.token.value) for name, mark in list_marks(ACCOUNTS.on(bind))]
    assert listed == [("account/1", 5), ("account/10", 8), ("account/2", 7)]
    assert [name for name, _ in list_marks(ACCOUNTS.on(bind), "account/1", limit=1)] == ["account/1"]
    assert [name for name, _ in list_marks(ACCOUNTS.on(bind), "account/10")] == ["account/10"]
    assert "in the row itself" in str(explain(ACCOUNTS.on(bind), "account/10"))
    assert explain(ACCOUNTS.on(bind), "account/10").mark.token == token(8)
    assert explain(ACCOUNTS.on(bind), "account/2").mark.token == token(7)


def test_compacting_leaves_what_is_in_rows(address: str) -> None:
    bind = opened(address)
    ACCOUNTS.update(bind, 1, {"balance": 1}, token=token(9))
    ACCOUNTS.delete(bind, 2, token=token(7))
    assert compact(bind, token(8), idle=0) == 2  # what was kept from the inserts
    assert dict(list_marks(ACCOUNTS.on(bind))).keys() == {"account/1"}
    with pytest.raises(errors.StaleTokenError):
        ACCOUNTS.update(bind, 1, {"balance": 2}, token=token(8))
    with pytest.raises(errors.StaleTokenError):
        ACCOUNTS.insert(bind, {"id": 2, "balance": 2}, token=token(7))
    assert ACCOUNTS.insert(bind, {"id": 2, "balance": 2}, token=token(8))


@pytest.mark.parametrize(
    "name", ["account/", "account/x", "account/07", "account/1/2", "seat/1", "ccount/1", "account"]
)
def test_a_name_that_is_no_rows_is_refused(pg: str, name: str) -> None:
    bind = opened(pg)
    before = rows(pg)
    for call in (
        lambda: raise_fence(ACCOUNTS.on(bind), name, token=token(9)),
        lambda: fenced_write(ACCOUNTS.on(bind), "account/1", name, effect=move, token=token(9)),
        lambda: read_mark(ACCOUNTS.on(bind), name),
        lambda: explain(ACCOUNTS.on(bind), name),
        lambda: adopt(ACCOUNTS.on(bind), name, "etcd", "why"),
    ):
        with pytest.raises(ValueError, match="account"):
            call()
    assert rows(pg) == before


def test_longer_keys_and_names_of_ones_own(pg: str) -> None:
    bind = sql_doors.engine(pg)
    seats = RowGuard(SEAT)
    seats.insert(bind, {"hall": "a b", "number": 7}, token=token(5))
    raise_fence(seats.on(bind), "seat/a b/7", token=token(6))
    assert [name for name, _ in list_marks(seats.on(bind))] == ["seat/a b/7"]
    with pytest.raises(ValueError, match="names no row"):
        raise_fence(seats.on(bind), "seat/a/b/7", token=token(7))
    own = RowGuard(SEAT, resource=lambda key: f"{key['number']}@{key['hall']}")
    with pytest.raises(ValueError, match="key="):
        raise_fence(own.on(bind), "7@a b", token=token(7))
    told = RowGuard(
        SEAT,
        resource=lambda key: f"{key['number']}@{key['hall']}",
        key=lambda name: (name.partition("@")[2], int(name.partition("@")[0])),
    )
    raise_fence(told.on(bind), "7@a b", token=token(7))
    assert read_mark(told.on(bind), "7@a b").token == token(7)
    ticket = sa.Table("ticket", sa.MetaData(), sa.Column("id", sa.Uuid, primary_key=True), *row_mark_columns())
    number = UUID(int=7)
    assert RowGuard(ticket).names.key_of(f"ticket/{number}") == {"id": number}
    day = sa.Table("day", sa.MetaData(), sa.Column("day", sa.Date, primary_key=True), *row_mark_columns())
    with pytest.raises(TypeError, match="key="):
        RowGuard(day).names.key_of("day/2026-11-30")


def test_a_row_has_one_name_however_its_key_is_spelt(address: str) -> None:
    bind = sql_doors.engine(address)
    for number, other in ((7, "07"), (8, Decimal("8.0")), (9, "9")):
        assert ACCOUNTS.insert(bind, {"id": number, "balance": 0}, token=token(5))
        assert ACCOUNTS.delete(bind, other, token=token(6))
        with pytest.raises(errors.StaleTokenError):
            ACCOUNTS.insert(bind, {"id": other, "balance": 0}, token=token(5))
        with pytest.raises(errors.StaleTokenError):
            ACCOUNTS.insert(bind, {"id": number, "balance": 0}, token=token(5))
    for bad in ("seven", 7.5, float("inf"), None, [7]):
        with pytest.raises(ValueError, match=r"account\.id cannot be"):
            ACCOUNTS.update(bind, bad, {"balance": 1}, token=token(7))


def test_uuids_and_times_have_one_spelling() -> None:
    def names(kind: Any, *keys: Any) -> set[str]:
        table = sa.Table("t", sa.MetaData(), sa.Column("id", kind, primary_key=True), *row_mark_columns())
        return {RowGuard(table).resource(key) for key in keys}

    one = UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")
    spelt = (str(one), str(one).upper(), one.hex, f"{{{one}}}")
    assert names(sa.Uuid(), one, *spelt) == {f"t/{one}"}
    assert names(sa.Uuid(as_uuid=False), *spelt) == {f"t/{one}"}
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert names(sa.DateTime(timezone=True), noon, noon.astimezone(timezone(timedelta(hours=3)))) == {f"t/{noon}"}
    assert names(sa.DateTime(), noon.replace(tzinfo=None)) == {"t/2026-01-01 12:00:00"}


def test_what_the_doctor_says_of_rows(address: str) -> None:
    bind = opened(address)
    with bind.begin() as connection:
        connection.execute(sa.insert(ACCOUNT).values(id=3, balance=0))

    def said(guard: RowGuard = ACCOUNTS) -> list[tuple[str, str]]:
        return [(one.severity, one.message) for one in guard.on(bind).diagnose() if one.check == "sql.row_marks"]

    [(severity, message)] = said()
    assert severity == "ok"
    assert "shop (2, up to 5)" in message
    assert "rows without a mark: 1" in message
    raise_fence(bind, "account/1", token=token(9))  # by the name alone: a change of the row does not look there
    assert [severity for severity, _ in said()] == ["ok", "warning"]
    assert "'account/1'" in said()[1][1]
    raise_fence(ACCOUNTS.on(bind), "account/1", token=token(9))
    assert [severity for severity, _ in said()] == ["ok"]
    if not address.startswith("mysql"):
        protect(bind, "account", "'account/' || id")
        assert [severity for severity, _ in said()] == ["ok", "broken"]
        unprotect(bind, "account")
    lacking = sa.Table("ledger_of", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), *row_mark_columns())
    assert [severity for severity, _ in said(RowGuard(lacking))] == ["broken"]


def test_two_writers_of_the_same_rows_in_another_order_do_not_block_each_other_for_ever(pg: str) -> None:
    bind = opened(pg)
    guard = RowGuard(ACCOUNT, lock_timeout=60)
    with bind.connect() as first, bind.connect() as second, ThreadPoolExecutor(1) as pool:
        fenced_write(guard.on(first), "account/2", "account/1", effect=move, token=token(6))
        pid = second.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
        late = pool.submit(fenced_write, guard.on(second), "account/1", "account/2", effect=move, token=token(6))
        wait_until_blocked(pg, pid)
        first.commit()
        assert late.result(60) == "moved"
        second.commit()
    assert rows(pg) == dict.fromkeys((1, 2), (2, "shop/line-a/6"))


def test_the_fences_of_a_job_are_raised_in_its_rows(pg: str) -> None:
    bind = opened(pg, 1)
    with bind.begin() as connection:
        connection.execute(sa.update(ACCOUNT).values(fence_value=None, fence_issuer=None, fence_lineage=None))
        connection.execute(sa.text("truncate fencing_mark"))
    seen = []
    with installed_beside(pg) as (app, _):

        @app.task("pay", retry=Retry(max_attempts=1), fences=lambda job: [(ACCOUNTS.on(bind), *NAMES)])
        def pay(job: Job) -> None:
            seen.append([read_mark(ACCOUNTS.on(bind), name).token == job.token for name in NAMES])
            older = Token(job.token.value - 1, job.token.issuer, job.token.lineage)
            with pytest.raises(errors.StaleTokenError):
                ACCOUNTS.update(bind, 1, {"balance": 7}, token=older)
            assert ACCOUNTS.update(bind, 1, {"balance": 8})

        app.enqueue("pay")
        assert app.run_until_idle().completed == 1
    assert seen == [[True, True]]
    assert {number: balance for number, (balance, _) in rows(pg).items()} == {1: 8, 2: 0}


def test_a_guard_of_options_is_kept(pg: str) -> None:
    strict = RowGuard(ACCOUNT, on_missing="reject")
    bind = sql_doors.engine(pg)
    with pytest.raises(errors.MarkMissingError):
        fenced_write(strict.on(bind), "account/5", effect=move, token=token(5))
    raise_fence(strict.on(bind), "account/5", token=token(5))
    assert fenced_write(strict.on(bind), "account/5", effect=move, token=token(5)) == "moved"
    assert isinstance(SqlGuard().on(bind), type(strict.on(bind)))
