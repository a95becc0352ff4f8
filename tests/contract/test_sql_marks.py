"""Marks as a person sees them: explained, listed, given to another issuer, compacted without reopening anything."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from support import sql_doors
from support.locks import blockers, wait_until_blocked
from support.sql_doors import ISOLATION, marks, token, with_isolation
from support.waiting import eventually

from adapters.sql import SqlGuard, adopt, compact, keep_refusals, metadata
from fencing import Token, errors, explain, fenced_write, list_marks, raise_fence


@pytest.fixture
def pg(bank: str) -> str:
    with psycopg.connect(bank, autocommit=True) as bare:
        bare.execute("update fencing_floor set floors = '{}'")
        bare.execute("truncate fencing_act")
    return sql_doors.empty(bank)


@pytest.fixture(params=["postgresql", "sqlite", "mysql"])
def address(request: pytest.FixtureRequest) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("pg"))
    if request.param == "mysql":
        address = sql_doors.empty_mysql(request.getfixturevalue("mariadb_bank"))
        with sql_doors.engine(address).begin() as connection:
            connection.execute(sa.text("update fencing_floor set floors = '{}'"))
        return address
    path: Path = request.getfixturevalue("tmp_path")
    address = f"sqlite:///{path / 'bank.db'}"
    sql_doors.prepare(address)
    return address


def refused(kind: type[Exception], address: str, resource: str, shown: Token) -> Any:
    before = marks(address)
    for call in (
        lambda: raise_fence(sql_doors.engine(address), resource, token=shown),
        lambda: raise_fence(sql_doors.engine(address), resource, f"{resource}/more", token=shown),
    ):
        with pytest.raises(kind) as caught:
            call()
        assert type(caught.value) is kind
    with sql_doors.engine(address).begin() as connection, pytest.raises(kind):
        raise_fence(connection, resource, token=shown)  # and who catches it commits
    assert marks(address) == before
    return caught.value


def test_a_compacted_resource_stays_closed_to_old_tokens(address: str) -> None:
    bind = sql_doors.engine(address)
    for number in range(1, 7):
        raise_fence(bind, f"r{number}", token=token(number))
    raise_fence(bind, "bank", token=token(2, issuer="bank"))
    assert compact(bind, token(4), idle=0, reason="yearly") == 3
    assert set(marks(address)) == {"r4", "r5", "r6", "bank"}
    for resource in ("r1", "r3", "never seen"):
        error = refused(errors.StaleTokenError, address, resource, token(3))
        assert (error.mark, error.presented) == (None, token(3))
        assert "floor 4" in str(error)
    raise_fence(bind, "r1", token=token(4))
    raise_fence(bind, "r5", token=token(5))
    raise_fence(bind, "other", token=token(1, issuer="bank"))
    assert compact(bind, token(2), idle=0) == 0  # a floor never falls
    refused(errors.StaleTokenError, address, "r2", token(3))


def test_marks_that_are_fresh_and_tokens_that_are_live_are_spared(address: str) -> None:
    bind = sql_doors.engine(address)
    raise_fence(bind, "a", token=token(1))
    assert compact(bind, token(5)) == 0
    assert compact(bind, token(5), idle=0) == 1
    with pytest.raises(ValueError, match="live"):
        compact(bind, token(9), live=[token(8)])
    assert compact(bind, token(9), live=[token(9), token(1, issuer="bank")], idle=0) == 0


def test_a_resource_goes_to_another_issuer_and_back_without_opening_to_old_tokens(address: str) -> None:
    bind = sql_doors.engine(address)
    raise_fence(bind, "a", token=token(50))
    refused(errors.IssuerMismatchError, address, "a", token(7, "l", "etcd"))
    adopt(bind, "a", token(7, "l", "etcd"), "moved to etcd")
    raise_fence(bind, "a", token=token(7, "l", "etcd"))
    refused(errors.IssuerMismatchError, address, "a", token(99))
    raise_fence(bind, "a", token=token(8, "l", "etcd"))
    with pytest.raises(ValueError, match="open it to older"):
        adopt(bind, "a", token(49), "back")
    assert adopt(bind, "a", "shop", "back") == token(50)
    refused(errors.StaleTokenError, address, "a", token(49))
    raise_fence(bind, "a", token=token(51))
    with pytest.raises(ValueError, match="open it to older"):
        adopt(bind, "a", token(7, "l", "etcd"), "and again")
    for reason in ("", " "):
        with pytest.raises(ValueError, match="reason"):
            adopt(bind, "a", "etcd", reason)
    assert [act for act in explain(bind, "a").acts if "back" in act]


def test_no_issuer_is_forgotten_however_often_a_resource_was_given_away(address: str) -> None:
    with sql_doors.engine(address).begin() as connection:
        raise_fence(connection, "a", token=token(50))
        for number in range(22):
            adopt(connection, "a", token(1, issuer=f"other-{number}"), "moved")
        with pytest.raises(ValueError, match="open it to older"):
            adopt(connection, "a", token(49), "back")


def test_an_adopted_mark_outlives_a_floor_that_knows_only_its_new_issuer(address: str) -> None:
    bind = sql_doors.engine(address)
    raise_fence(bind, "a", token=token(50))
    adopt(bind, "a", token(2, "l", "etcd"), "moved")
    assert compact(bind, token(100, "l", "etcd"), idle=0) == 0  # an old token of "shop" would be let in
    refused(errors.IssuerMismatchError, address, "a", token(49))
    compact(bind, token(51), idle=0)
    assert compact(bind, token(100, "l", "etcd"), idle=0) == 1
    refused(errors.StaleTokenError, address, "a", token(50))


@pytest.mark.parametrize("issuer", ["shop", "etcd"])
def test_a_compacted_resource_is_not_given_to_its_issuer_below_the_floor(address: str, issuer: str) -> None:
    """Whether it has no mark now or one of another issuer."""
    bind = sql_doors.engine(address)
    raise_fence(bind, "a", token=token(8))
    compact(bind, token(10), idle=0)
    if issuer == "etcd":
        raise_fence(bind, "a", token=token(3, "l", "etcd"))
    with sql_doors.engine(address).begin() as connection, pytest.raises(ValueError, match="compacted up to 10"):
        adopt(connection, "a", token(7), "back")
    adopt(bind, "a", "shop", "back")
    refused(errors.StaleTokenError, address, "a", token(7))
    raise_fence(bind, "a", token=token(10))


def test_a_resource_is_explained_with_those_whom_it_refused(address: str) -> None:
    bind = sql_doors.engine(address)
    end = keep_refusals(bind)
    try:
        raise_fence(bind, "a", token=token(9))
        raise_fence(bind, "a", token=token(9))
        with pytest.raises(errors.StaleTokenError) as caught:
            fenced_write(bind, "a", effect=lambda _: None, token=token(5))
        late = caught.value.late
        assert late is not None
        assert late.total_seconds() >= 0
        found = explain(bind, "a")
        assert found.mark.token == token(9)
        [refusal] = found.refusals
        assert (refusal.presented, refusal.mark, refusal.holder) == (token(5), token(9), found.mark.holder)
        assert abs((refusal.late - late).total_seconds()) < 0.001
        assert any("raised 2 times" in act for act in found.acts)
        assert "refused" in str(found)
    finally:
        end()
    assert explain(bind, "nobody").mark is None


def test_a_refusal_inside_a_transaction_is_kept_when_that_has_ended(address: str) -> None:
    """On SQLite nothing else can write before; the writer is not kept waiting for it."""
    patience = {"connect_args": {"timeout": 100}} if address.startswith("sqlite") else {}
    bind = sql_doors.engine(address, **patience)
    raise_fence(bind, "a", token=token(9))
    stop = keep_refusals(bind)
    began = time.monotonic()
    try:
        with pytest.raises(errors.StaleTokenError), bind.begin() as connection:
            raise_fence(connection, "a", token=token(5))
    finally:
        stop()
    assert time.monotonic() - began < 50
    kept = "select count(*) from fencing_act where kind = 'refused'"

    def written() -> bool:
        with bind.connect() as connection:
            return bool(connection.execute(sa.text(kept)).scalar_one())

    eventually(written, "the refusal is kept")


def test_marks_are_listed_by_name(address: str) -> None:
    bind = sql_doors.engine(address)
    raise_fence(bind, "b/1", "a/2", "a/1", "A/1", "a%", "ä/1", token=token(3))
    assert [name for name, _ in list_marks(bind)] == ["A/1", "a%", "a/1", "a/2", "b/1", "ä/1"]
    assert [name for name, mark in list_marks(bind, "a/") if mark.token == token(3)] == ["a/1", "a/2"]
    assert len(list_marks(bind, limit=2)) == 2

    async def work() -> list[Any]:
        twin = create_async_engine(sql_doors.async_url(address))
        found = list(await list_marks(twin, "b"))
        assert (await explain(twin, "b/1")).mark.token == token(3)
        assert await compact(twin, token(2), idle=0) == 0
        await twin.dispose()
        return found

    assert [name for name, _ in asyncio.run(work())] == ["b/1"]


def test_a_floor_that_is_not_there_refuses(address: str) -> None:
    bind = sql_doors.engine(address)
    raise_fence(bind, "there", token=token(1))
    floors = metadata.tables["fencing_floor"]
    with bind.begin() as connection:
        connection.execute(floors.delete())
    try:
        raise_fence(bind, "there", token=token(2))
        with pytest.raises(errors.SchemaMissingError, match="fencing_floor"):
            raise_fence(bind, "new", token=token(2))
        assert "new" not in marks(address)
        assert [one.severity for one in SqlGuard().on(bind).diagnose() if one.check == "sql.floor"] == ["broken"]
    finally:
        with bind.begin() as connection:
            connection.execute(floors.insert().values(one=1, floors="{}"))


def test_what_the_doctor_says_of_a_sound_database(address: str) -> None:
    raise_fence(sql_doors.engine(address), "a", token=token(7))
    found = list(SqlGuard().on(sql_doors.engine(address)).diagnose())
    assert [one for one in found if one.severity == "broken"] == []
    assert any("shop (1 marks, up to 7)" in one.message for one in found if one.check == "sql.issuers")


@pytest.mark.usefixtures("durable")
def test_the_doctor_sees_commits_that_a_crash_loses(pg: str) -> None:
    lazy = sql_doors.engine(f"{pg}?options=-c%20synchronous_commit%3Doff")
    assert [one.severity for one in SqlGuard().on(lazy).diagnose() if one.check == "sql.durability"] == ["warning"]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as threads:
        yield threads


@pytest.mark.parametrize("level", ISOLATION)
@pytest.mark.parametrize("resources", [("a",), ("a", "b")], ids=["one", "two"])
def test_a_mark_is_not_made_under_a_floor_that_is_being_set(
    pg: str, pool: ThreadPoolExecutor, level: str, resources: tuple[str, ...]
) -> None:
    """An old holder waits for the floor's row while marks are compacted, and then sees the new floor."""
    raise_fence(sql_doors.engine(pg), "a", token=token(9))
    late = psycopg.connect(with_isolation(pg, level), autocommit=True)

    def write() -> None:
        with late, late.transaction():
            late.execute("select count(*) from fencing_floor")  # the snapshot of the stricter levels
            raise_fence(late, *resources, token=token(5))

    with psycopg.connect(pg, autocommit=True) as bare, bare.transaction():
        assert compact(bare, token(10), idle=0) == 1
        older = pool.submit(write)
        wait_until_blocked(pg, late.info.backend_pid)
    stricter = (errors.StaleTokenError, errors.ContentionError)
    with pytest.raises(errors.StaleTokenError if level == "read committed" else stricter):
        older.result(60)
    assert marks(pg) == {}


@pytest.mark.parametrize("level", ISOLATION)
@pytest.mark.parametrize("issuer", ["shop", "etcd"])
def test_a_mark_that_is_made_while_its_resource_is_given_away_is_not_overwritten(
    pg: str, pool: ThreadPoolExecutor, level: str, issuer: str
) -> None:
    with psycopg.connect(with_isolation(pg, level), autocommit=True) as second:

        def work() -> None:
            with second.transaction():
                adopt(second, "a", token(5), "mine")

        with psycopg.connect(pg, autocommit=True) as first, first.transaction():
            raise_fence(first, "a", token=token(9, issuer=issuer))
            giving = pool.submit(work)
            wait_until_blocked(pg, second.info.backend_pid, by=first.info.backend_pid)
        with pytest.raises(errors.ContentionError):
            giving.result(60)
    assert marks(pg) == {"a": f"{issuer}/line-a/9"}


def test_compacting_gets_its_turn_while_marks_are_being_made(pg: str, pool: ThreadPoolExecutor) -> None:
    """Who makes a mark later waits behind it: where marks are made all the time it would wait for ever."""
    raise_fence(sql_doors.engine(pg), "idle", token=token(3))
    patient = SqlGuard(lock_timeout=60)
    with psycopg.connect(pg, autocommit=True) as first, psycopg.connect(pg, autocommit=True) as third:

        def later() -> None:
            with third.transaction():
                raise_fence(patient.on(third), "third", token=token(5))

        with sql_doors.engine(pg).connect() as second:
            pid = second.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
            with first.transaction():
                raise_fence(first, "first", token=token(5))
                compacting = pool.submit(compact, patient.on(second), token(4), idle=0)
                wait_until_blocked(pg, pid, by=first.info.backend_pid)
                late = pool.submit(later)
                eventually(lambda: late.done() or blockers(pg, third.info.backend_pid), "the third waits, or is done")
                assert not late.done()
            assert compacting.result(60) == 1
            second.commit()
        late.result(60)
    assert set(marks(pg)) == {"first", "third"}


def test_compacting_waits_for_who_is_making_a_mark_and_leaves_marks_in_use(pg: str, pool: ThreadPoolExecutor) -> None:
    raise_fence(sql_doors.engine(pg), "used", "idle", token=token(3))
    with psycopg.connect(pg, autocommit=True) as first, psycopg.connect(pg, autocommit=True) as second:
        with first.transaction():
            raise_fence(first, "new", token=token(4))
            raise_fence(first, "used", token=token(4))

            def work() -> int:
                with second.transaction():
                    return int(compact(second, token(10), idle=0))

            removed = pool.submit(work)
            wait_until_blocked(pg, second.info.backend_pid, by=first.info.backend_pid)
        assert removed.result(60) == 3
    raise_fence(sql_doors.engine(pg), "held", token=token(20))
    with psycopg.connect(pg, autocommit=True) as first, first.transaction():
        raise_fence(first, "held", token=token(21))
        assert compact(sql_doors.engine(pg), token(30), idle=0) == 0
    assert marks(pg) == {"held": "shop/line-a/21"}
