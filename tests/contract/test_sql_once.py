"""``once=KEY``: an effect in a database is applied exactly once, over all attempts, replays and holders."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session
from support import sql_doors
from support.sql_doors import DOORS, PUT, Door, do, ledger, marks, token

from adapters.sql import SqlGuard, metadata
from fencing import errors, fenced_write

APPLIED = metadata.tables["fencing_applied"]
ADD = "insert into ledger (id, owner) values (:id, 1) on conflict (id) do update set owner = ledger.owner + 1"


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    yield Door(request.param, address_of(request.param, request), SqlGuard())


@pytest.fixture(params=["postgresql", "sqlite", "mysql"])
def address(request: pytest.FixtureRequest) -> str:
    return address_of(request.param, request)


def address_of(name: str, request: pytest.FixtureRequest) -> str:
    if name.startswith("postgresql"):
        return str(request.getfixturevalue("pg"))
    if name.startswith("mysql"):
        return sql_doors.empty_mysql(request.getfixturevalue("mariadb_bank"))
    path: Path = request.getfixturevalue("tmp_path")
    address = f"sqlite:///{path / 'bank.db'}"
    sql_doors.prepare(address)
    return address


def applied(address: str) -> dict[str, Any]:
    with sql_doors.engine(address).connect() as connection:
        rows = connection.execute(sa.select(APPLIED.c.key, APPLIED.c.result))
        return {row.key: json.loads(row.result) for row in rows}


class Effect:
    """Adds one to ``ledger[name]`` and returns what it was told to."""

    def __init__(self, result: Any = None, name: str = "count") -> None:
        self.calls = 0
        self.result = result
        self.name = name

    def __call__(self, handle: Any) -> Any:
        self.calls += 1
        done = do(handle, ADD, id=self.name)
        return self.later(done) if asyncio.iscoroutine(done) else self.answer()

    async def later(self, done: Any) -> Any:
        await done
        return self.answer()

    def answer(self) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def test_it_is_applied_once_and_its_result_is_returned_again(door: Door) -> None:
    effect = Effect({"total": 12, 1: [None, True, "ä\x00\ud83e"]})
    round_trip = {"total": 12, "1": [None, True, "ä\x00\ud83e"]}
    for value in (5, 5, 6, 9):  # attempts, a new holder, a replay
        assert door.apply("a", token=token(value), effect=effect, once="pay/42") == round_trip
    assert (effect.calls, ledger(door.address)) == (1, {"count": 1})
    assert marks(door.address) == {"a": "shop/line-a/9"}
    assert door.apply("a", token=token(9), effect=effect, once="pay/43") == round_trip
    assert (effect.calls, ledger(door.address)) == (2, {"count": 2})


def test_the_token_comes_first_also_for_a_key_that_was_applied(door: Door) -> None:
    effect = Effect("done")
    door.apply("a", token=token(9), effect=effect, once="k")
    for stale, kind in (
        (token(8), errors.StaleTokenError),
        (token(9, "line-b"), errors.LineageConflictError),
        (token(10, issuer="bank"), errors.IssuerMismatchError),
    ):
        for key in ("k", "new"):
            with pytest.raises(kind):
                door.apply("a", token=stale, effect=effect, once=key)
    assert (effect.calls, ledger(door.address), applied(door.address)) == (1, {"count": 1}, {"k": "done"})


def test_a_key_stands_for_one_thing(door: Door) -> None:
    effect = Effect(1)
    door.apply("a", "b", token=token(5), effect=effect, once="k")
    assert door.apply("b", "a", token=token(5), effect=effect, once="k") == 1  # the order does not matter
    with pytest.raises(errors.KeyConflictError) as caught:
        door.apply("a", token=token(6), effect=effect, once="k")
    assert (caught.value.key, caught.value.differs) == ("k", "fingerprint")
    door.apply("a", token=token(6), effect=effect, once="other", fingerprint="v1")
    assert door.apply("z", token=token(6), effect=effect, once="other", fingerprint="v1") == 1
    with pytest.raises(errors.KeyConflictError):
        door.apply("a", token=token(6), effect=effect, once="other", fingerprint="v2")
    assert (effect.calls, ledger(door.address)) == (2, {"count": 2})


class Boom(Exception):
    pass


def test_a_failed_effect_leaves_nothing_and_may_come_again(door: Door) -> None:
    failing = Effect(Boom())
    with pytest.raises(Boom):
        door.apply("a", token=token(5), effect=failing, once="k")
    assert (ledger(door.address), applied(door.address), marks(door.address)) == ({}, {}, {})
    assert door.apply("a", token=token(5), effect=Effect("done"), once="k") == "done"
    assert (ledger(door.address), applied(door.address)) == ({"count": 1}, {"k": "done"})


@pytest.mark.parametrize("result", [object(), float("nan"), float("inf"), {1j: 1}, b"bytes", {"a": {1, 2}}], ids=repr)
def test_a_result_that_json_cannot_hold_is_refused_and_nothing_remains(address: str, result: Any) -> None:
    effect = Effect(result)
    bind = sql_doors.engine(address)
    with pytest.raises(TypeError, match="JSON"):
        fenced_write(bind, "a", effect=effect, token=token(5), once="k")
    with bind.begin() as connection:  # also for who catches it and commits
        with pytest.raises(TypeError, match="JSON"):
            fenced_write(connection, "a", effect=effect, token=token(5), once="k")
        do(connection, PUT, id="unfenced", owner=0)
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(TypeError, match="JSON"):
        fenced_write(bind, "a", effect=Effect(loop), token=token(5), once="k")
    assert (ledger(address), applied(address), marks(address)) == ({"unfenced": 0}, {}, {})


@pytest.mark.parametrize(
    "door", [name for name in DOORS if "engine" not in name and "maker" not in name], indirect=True
)
def test_who_catches_the_failure_and_commits_keeps_only_what_was_his(door: Door) -> None:
    def with_caught_failure(handle: Any) -> None:
        do(handle, PUT, id="before", owner=1)
        with pytest.raises(Boom):
            fenced_write(handle, "a", effect=Effect(Boom()), token=token(5), once="k")
        do(handle, PUT, id="after", owner=1)

    async def with_caught_failure_async(handle: Any) -> None:
        await do(handle, PUT, id="before", owner=1)
        with pytest.raises(Boom):
            await fenced_write(handle, "a", effect=Effect(Boom()), token=token(5), once="k")
        await do(handle, PUT, id="after", owner=1)

    if door.is_async:

        async def work() -> None:
            async with door.opened_async() as target:
                await with_caught_failure_async(target)

        asyncio.run(work())
    else:
        with door.opened() as target:
            with_caught_failure(target)
    assert (ledger(door.address), applied(door.address), marks(door.address)) == ({"before": 1, "after": 1}, {}, {})


def test_it_lives_and_dies_with_the_callers_transaction(address: str) -> None:
    effect = Effect(7)
    with sql_doors.engine(address).connect() as connection:
        assert fenced_write(connection, "a", effect=effect, token=token(5), once="k") == 7
        assert fenced_write(connection, "a", effect=effect, token=token(5), once="k") == 7
        connection.rollback()
    assert (effect.calls, ledger(address), applied(address), marks(address)) == (1, {}, {}, {})


def test_an_effect_cannot_contain_itself(address: str) -> None:
    def again(handle: Any) -> None:
        fenced_write(handle, "a", effect=lambda inner: pytest.fail("must not run"), token=token(5), once="k")

    with pytest.raises(errors.KeyConflictError, match="itself"):
        fenced_write(sql_doors.engine(address), "a", effect=again, token=token(5), once="k")
    assert applied(address) == {}


def test_an_effect_that_committed_by_itself_is_never_run_again(address: str) -> None:
    def commit(connection: sa.Connection) -> None:
        do(connection, ADD, id="count")
        connection.commit()

    bind = sql_doors.engine(address)
    with pytest.raises(errors.NotInTransactionError):
        fenced_write(bind, "a", effect=commit, token=token(5), once="k")
    with pytest.raises(errors.KeyConflictError, match="committed by itself"):
        fenced_write(bind, "a", effect=lambda handle: pytest.fail("must not run"), token=token(6), once="k")
    assert ledger(address) == {"count": 1}


def test_an_effect_may_contain_another(address: str) -> None:
    inner = Effect("inner", "inner")

    def outer(handle: Any) -> Any:
        return [fenced_write(handle, "b", effect=inner, token=token(5), once="inner") for _ in range(2)]

    assert fenced_write(sql_doors.engine(address), "a", effect=outer, token=token(5), once="outer") == [
        "inner",
        "inner",
    ]
    assert applied(address) == {"inner": "inner", "outer": ["inner", "inner"]}


def test_an_effect_that_rolls_back_its_own_savepoint_is_told(address: str) -> None:
    def undo(handle: Any) -> None:
        (handle.get_nested_transaction()).rollback()

    bind = sql_doors.engine(address)
    for target in (bind.connect(), Session(bind)):
        with target, pytest.raises(errors.NotInTransactionError):
            fenced_write(target, "a", effect=undo, token=token(5), once="k")
    assert applied(address) == {}


@pytest.mark.parametrize("key", ["", "a\x00b", "k" * 513, "\ud800", 7, b"k"])
def test_an_impossible_key_is_refused_and_nothing_is_written(address: str, key: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="once="):
        fenced_write(sql_doors.engine(address), "a", effect=Effect(), token=token(5), once=key)
    with pytest.raises(ValueError, match="fingerprint="):
        fenced_write(sql_doors.engine(address), "a", effect=Effect(), token=token(5), once="k", fingerprint="a\x00")
    assert (ledger(address), marks(address)) == ({}, {})


@pytest.mark.parametrize("key", ["it's", "%s %(key)s", ":key", "🦔" * 128, "k" * 512])
def test_any_text_is_a_key(address: str, key: str) -> None:
    effect = Effect("x")
    for _ in range(2):
        fenced_write(sql_doors.engine(address), "a", effect=effect, token=token(5), once=key)
    assert (effect.calls, applied(address)) == (1, {key: "x"})


def test_who_applied_it_is_written_down(address: str) -> None:
    fenced_write(sql_doors.engine(address), "a", effect=Effect("x"), token=token(5), once="k")
    with sql_doors.engine(address).connect() as connection:
        row = connection.execute(
            sa.text("select issuer, lineage, value, holder, applied_at from fencing_applied")
        ).one()
    assert tuple(row)[:3] == ("shop", "line-a", 5)
    assert row.holder
    assert row.applied_at


def test_an_effect_that_rolls_back_in_sql_text_is_told(address: str) -> None:
    """The key and the fence went with it, so what came after must not stay."""

    def effect(connection: sa.Connection) -> None:
        do(connection, "rollback")
        do(connection, PUT, id="a", owner=1)

    with pytest.raises(errors.NotInTransactionError, match=r"'k'|inside the fenced block"):
        fenced_write(sql_doors.engine(address), "a", effect=effect, once="k", token=token(1))
    assert (ledger(address), marks(address), applied(address)) == ({}, {}, {})


@pytest.mark.parametrize("level", sql_doors.ISOLATION[1:])
def test_at_stricter_isolation(pg: str, level: str) -> None:
    effect = Effect("x")
    with psycopg.connect(sql_doors.with_isolation(pg, level), autocommit=True) as bare:
        for _ in range(2):
            with bare.transaction():
                assert fenced_write(bare, "a", effect=effect, token=token(5), once="k") == "x"
    assert (effect.calls, ledger(pg)) == (1, {"count": 1})
