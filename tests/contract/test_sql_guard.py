"""The SQL guard keeps the law through every kind of connection, on real databases, at every isolation level."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support import sql_doors
from support.sql_doors import DOORS, ISOLATION, POSTGRESQL, Door, ledger, marks, token

from adapters.sql import SqlGuard
from fencing import Token, errors, fenced_write, raise_fence, read_mark
from fencing.testing import MemoryGuard


def address_of(name: str, request: pytest.FixtureRequest) -> str:
    if name.startswith("postgresql"):
        return str(request.getfixturevalue("pg"))
    if name.startswith("mysql"):
        return sql_doors.empty_mysql(request.getfixturevalue("mariadb_bank"))
    path: Path = request.getfixturevalue("tmp_path")
    address = f"sqlite:///{path / 'bank.db'}"
    sql_doors.prepare(address)
    return address


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    yield Door(request.param, address_of(request.param, request), SqlGuard())


@pytest.fixture(params=["postgresql", "sqlite", "mysql"])
def address(request: pytest.FixtureRequest) -> str:
    return address_of(request.param, request)


def refused(kind: type[errors.FenceRejected], door: Door, *resources: str, token: Token) -> errors.FenceRejected:
    """The write is refused and changes nothing, neither the data nor any mark."""
    before = ledger(door.address), marks(door.address)
    with pytest.raises(kind) as caught:
        door.write(*resources, token=token)
    assert type(caught.value) is kind
    assert (ledger(door.address), marks(door.address)) == before
    return caught.value


def every_verdict(door: Door) -> None:
    door.write("invoice/1", token=token(10))
    door.write("invoice/1", token=token(10))
    door.write("invoice/1", token=token(12))
    assert ledger(door.address) == {"invoice/1": 12}
    assert marks(door.address) == {"invoice/1": "shop/line-a/12"}

    error = refused(errors.StaleTokenError, door, "invoice/1", token=token(11))
    assert (error.resource, error.presented, error.mark) == ("invoice/1", token(11), token(12))
    assert error.holder
    assert error.downstream
    assert error.downstream.startswith(("postgresql:test_", "sqlite:/", "mysql:test_"))
    refused(errors.StaleTokenError, door, "invoice/1", token=token(11, "line-b"))
    refused(errors.LineageConflictError, door, "invoice/1", token=token(12, "line-b"))
    for value in (1, 12, 10**9):
        refused(errors.IssuerMismatchError, door, "invoice/1", token=token(value, issuer="bank"))

    door.write("invoice/1", token=token(13, "line-b"))
    mark = door.mark("invoice/1")
    assert mark is not None
    assert mark.token == token(13, "line-b")
    assert mark.at is not None
    assert mark.at.tzinfo is not None
    assert door.mark("invoice/2") is None

    door.raise_fence("invoice/1", "invoice/2", token=token(20))
    for resource in ("invoice/1", "invoice/2"):
        refused(errors.StaleTokenError, door, resource, token=token(19))


def test_every_verdict(door: Door) -> None:
    every_verdict(door)


@pytest.mark.parametrize("level", ISOLATION[1:])
@pytest.mark.parametrize("name", POSTGRESQL)
def test_every_verdict_at_stricter_isolation(name: str, level: str, pg: str) -> None:
    every_verdict(Door(name, sql_doors.with_isolation(pg, level), SqlGuard()))


def test_a_write_without_a_mark_is_refused_where_missing_marks_mean_loss(door: Door) -> None:
    door.options = SqlGuard(on_missing="reject")
    error = refused(errors.MarkMissingError, door, "a", token=token(5))
    assert (error.mark, error.holder, error.presented) == (None, None, token(5))
    door.raise_fence("a", token=token(5))
    door.write("a", token=token(5))
    door.write("a", token=token(6))
    assert marks(door.address) == {"a": "shop/line-a/6"}
    refused(errors.StaleTokenError, door, "a", token=token(5))
    refused(errors.LineageConflictError, door, "a", token=token(6, "line-b"))
    refused(errors.IssuerMismatchError, door, "a", token=token(7, issuer="bank"))
    refused(errors.MarkMissingError, door, "a", "b", token=token(7))


def test_tokens_are_compared_as_whole_numbers_of_64_bits(address: str) -> None:
    door = Door(f"{re.split('[:+]', address)[0]}/connection", address, SqlGuard())
    edges = (2**53 - 1, 2**53, 2**53 + 1, 2**62, 2**63 - 2, 2**63 - 1)
    for before, value in zip((1, *edges), edges, strict=False):
        door.write("a", token=token(value))
        refused(errors.StaleTokenError, door, "a", token=token(before))
        refused(errors.LineageConflictError, door, "a", token=token(value, "line-b"))
        mark = door.mark("a")
        assert mark is not None
        assert mark.token.value == value


NAMES = [
    "it's",
    'say "no"',
    "100%",
    "%s %(resource)s %%",
    ":resource :x ::text",
    "a:b/c?d=e&f",
    "back\\slash \\:x",
    "{curly} $1 $$",
    "Ünïcödé/🦔",
    "日本語" * 56,
    "x" * 512,
    " lead and trail ",
    "tab\tand\nnewline",
    "'; drop table ledger; --",
    "[]",
    '["a"]',
]


def test_any_name_is_a_resource(address: str) -> None:
    for kind in ("psycopg", "connection") if address.startswith("postgresql") else ("connection",):
        door = Door(f"{re.split('[:+]', address)[0]}/{kind}", address, SqlGuard())
        for name in NAMES:
            door.write(name, token=token(5))
            assert ledger(address)[name] == 5
            refused(errors.StaleTokenError, door, name, token=token(4))
        door.write(*NAMES, token=token(6))
        refused(errors.StaleTokenError, door, *NAMES, token=token(5))
        assert marks(address) == dict.fromkeys(NAMES, "shop/line-a/6")
        with sql_doors.engine(address).begin() as connection:
            connection.execute(sa.text("delete from fencing_mark"))


@pytest.mark.parametrize("name", ["", "a\x00b", "x" * 513, "é" * 257, "\ud800"])
def test_an_impossible_name_is_refused_and_nothing_is_written(door: Door, name: str) -> None:
    with pytest.raises(ValueError, match="resource"):
        door.write(name, token=token(5), id="a", owner=5)
    assert (ledger(door.address), marks(door.address)) == ({}, {})


def test_several_resources_all_or_none_also_for_who_catches_the_refusal_and_commits(address: str) -> None:
    guards = (SqlGuard(), SqlGuard(on_missing="reject"))
    raise_fence(sql_doors.engine(address), "a", "b", "c", token=token(1))
    raise_fence(sql_doors.engine(address), "b", token=token(9))
    for guard in guards:
        with sql_doors.engine(address).begin() as connection:
            with pytest.raises(errors.StaleTokenError) as caught:
                with fenced_write(guard.on(connection), "c", "b", "a", token=token(5)):
                    pytest.fail("the block must not run")
            assert caught.value.resource == "b"
            sql_doors.do(connection, sql_doors.PUT, id="unfenced", owner=0)
        assert marks(address) == {"a": "shop/line-a/1", "b": "shop/line-a/9", "c": "shop/line-a/1"}
        assert ledger(address) == {"unfenced": 0}


def test_the_first_resource_in_order_that_refuses_is_named(address: str) -> None:
    bind = sql_doors.engine(address)
    raise_fence(bind, "b", token=token(9))
    raise_fence(bind, "c", token=token(9, issuer="bank"))
    with pytest.raises(errors.StaleTokenError) as caught:
        raise_fence(bind, "c", "b", "a", token=token(5))
    assert caught.value.resource == "b"


def test_deleting_the_data_keeps_the_mark(door: Door) -> None:
    door.write("a", token=token(5))
    door.write("a", token=token(5), sql="delete from ledger where id = :id", id="a")
    assert ledger(door.address) == {}
    refused(errors.StaleTokenError, door, "a", token=token(4))


def test_a_rolled_back_raise_leaves_no_phantom_mark(address: str) -> None:
    bind = sql_doors.engine(address)
    with bind.connect() as connection:
        raise_fence(connection, "a", token=token(9))
        connection.rollback()
    assert marks(address) == {}
    with bind.begin() as connection:
        raise_fence(connection, "a", token=token(1))
        savepoint = connection.begin_nested()
        raise_fence(connection, "a", "b", token=token(9))
        savepoint.rollback()
        with fenced_write(connection, "a", token=token(2)):
            pass
    assert marks(address) == {"a": "shop/line-a/2"}


def test_it_answers_as_the_model_does(address: str) -> None:
    """A thousand random calls, each answered by the model guard and by the database alike."""
    draw = random.Random(20261025)
    bind = sql_doors.engine(address)
    model = {"create": MemoryGuard(), "reject": MemoryGuard("reject")}
    model["reject"]._marks = model["create"]._marks  # one set of marks, as in the database
    tried = 100 if address.startswith("mysql") else 1000 if address.startswith("sqlite") else 300
    for _ in range(tried):
        names = tuple(draw.sample("abcd", draw.choice((1, 1, 2, 3))))
        shown = Token(draw.randint(1, 6), draw.choice(("shop", "shop", "shop", "bank")), draw.choice("xy"))
        mode = draw.choice(("create", "create", "reject"))
        writes = draw.random() < 0.8
        answers = []
        for target in (model[mode], SqlGuard(on_missing=mode).on(bind)):
            try:
                if writes:
                    fenced_write(target, *names, effect=lambda handle: None, token=shown)
                else:
                    raise_fence(target, *names, token=shown)
            except errors.FenceRejected as exc:
                answers.append((type(exc), exc.resource, exc.mark))
            else:
                answers.append((None, None, None))
        assert answers[0] == answers[1], (names, str(shown), mode, writes)
        # The model puts a new dictionary in place when it takes a write back.
        shared = model[mode]._marks
        model["create"]._marks = model["reject"]._marks = shared
    for name in "abcd":
        mine, theirs = read_mark(model["create"], name), read_mark(bind, name)
        assert (mine and mine.token) == (theirs and theirs.token)
