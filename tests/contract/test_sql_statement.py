"""Guard and effect in one statement: the guard's verdicts, and nothing read from before it waited."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support import sql_doors
from support.locks import wait_until_blocked
from support.sql_doors import Door, ledger, marks, token

from adapters.sql import SqlGuard, Written, create_all, fenced_statement
from fencing import errors, fenced_write, raise_fence

pytestmark = pytest.mark.filterwarnings("error::sqlalchemy.exc.SAWarning")

LEDGER = sa.Table(
    "ledger",
    sa.MetaData(),
    sa.Column("id", sa.String(600), primary_key=True),
    sa.Column("owner", sa.BigInteger, nullable=False),
)
OTHER = sa.Table("other", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("n", sa.Integer))
ADD = sa.insert(LEDGER).values(id=sa.bindparam("id"), owner=sa.bindparam("owner"))
SET = sa.update(LEDGER).where(LEDGER.c.id == sa.bindparam("key")).values(owner=sa.bindparam("to"))
MORE = sa.update(LEDGER).where(LEDGER.c.id == sa.bindparam("key"), LEDGER.c.owner > 0).values(owner=LEDGER.c.owner + 1)
DROP = sa.delete(LEDGER).where(LEDGER.c.id == sa.bindparam("key"))
DOORS = ("postgresql/psycopg", "postgresql/psycopg-async", "postgresql/connection", "postgresql/engine-async")
DOORS += ("postgresql/session", "sqlite/connection", "sqlite/engine-async")


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> Door:
    if request.param.startswith("postgresql"):
        return Door(request.param, request.getfixturevalue("pg"), SqlGuard())
    path: Path = request.getfixturevalue("tmp_path")
    address = f"sqlite:///{path / 'bank.db'}"
    sql_doors.prepare(address)
    return Door(request.param, address, SqlGuard())


def test_every_verdict(door: Door) -> None:
    def call(statement: Any, value: Any, **params: Any) -> Any:
        shown = token(value) if isinstance(value, int) else value
        return door._call(lambda target: fenced_statement(target, "a", statement, params, token=shown))

    assert call(ADD, 5, id="x", owner=1) == Written(1, [])
    assert call(ADD.returning(LEDGER.c.id), 5, id="y", owner=1) == Written(1, [("y",)])
    assert call(SET.returning(LEDGER.c.owner, LEDGER.c.id), 7, key="x", to=2) == Written(1, [(2, "x")])
    assert call(MORE, 7, key="x") == Written(1, [])
    assert call(DROP, 7, key="y") == Written(1, [])
    assert call(DROP.returning(LEDGER), 8, key="y") == Written(0, [])
    assert (ledger(door.address), marks(door.address)) == ({"x": 3}, {"a": "shop/line-a/8"})
    for stale, kind in (
        (7, errors.StaleTokenError),
        (token(8, "line-b"), errors.LineageConflictError),
        (token(9, issuer="bank"), errors.IssuerMismatchError),
    ):
        for statement, params in ((ADD, {"id": "z", "owner": 1}), (SET, {"key": "x", "to": 9}), (DROP, {"key": "x"})):
            with pytest.raises(kind) as caught:
                call(statement, stale, **params)
            assert caught.value.mark == token(8)
    assert (ledger(door.address), marks(door.address)) == ({"x": 3}, {"a": "shop/line-a/8"})


def test_without_a_mark_where_that_means_loss(door: Door) -> None:
    def call() -> Any:
        options = SqlGuard(on_missing="reject")
        return door._call(
            lambda t: fenced_statement(t, "a", ADD, {"id": "x", "owner": 1}, token=token(1), options=options)
        )

    with pytest.raises(errors.MarkMissingError):
        call()
    assert ledger(door.address) == {}
    door.raise_fence("a", token=token(1))
    assert call().count == 1


COUNT = sa.select(sa.func.count()).select_from(OTHER)
NUMBERED = sa.Table(
    "numbered",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("n", sa.Integer, default=COUNT.scalar_subquery(), onupdate=COUNT.scalar_subquery()),
    sa.Column("name", sa.String, default="none", onupdate=sa.func.now()),
)
NUMBERS = {
    "insert": sa.insert(NUMBERED).values(id=1),
    "update": sa.update(NUMBERED).where(NUMBERED.c.id == 1).values(name="x"),
}
READS = {
    "insert from select": sa.insert(LEDGER).from_select(["id", "owner"], sa.select(OTHER.c.id, OTHER.c.n)),
    "scalar subquery": ADD.values(owner=COUNT.scalar_subquery()),
    "exists": SET.where(sa.exists().where(OTHER.c.id == 1)),
    "update from": SET.where(LEDGER.c.owner == OTHER.c.n),
    "in (select)": DROP.where(LEDGER.c.owner.in_(sa.select(OTHER.c.id))),
    "text": SET.where(sa.text("owner = 1")),
    "literal column": SET.values(owner=sa.literal_column("(select 1)")),
    "not by key": sa.update(LEDGER).where(LEDGER.c.owner == 1).values(owner=2),
    "by key or else": sa.delete(LEDGER).where(sa.or_(LEDGER.c.id == "a", LEDGER.c.owner == 1)),
    "key of itself": sa.delete(LEDGER).where(LEDGER.c.id == LEDGER.c.id),
    "every row": sa.delete(LEDGER),
    "several rows": sa.insert(LEDGER).values([{"id": "a", "owner": 1}, {"id": "b", "owner": 1}]),
    "no values": sa.insert(LEDGER),
    "returning a count": SET.returning(COUNT.scalar_subquery()),
    "default": NUMBERS["insert"],
    "onupdate": NUMBERS["update"],
}


@pytest.mark.parametrize("name", READS)
def test_what_reads_other_rows_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"fenced_write|fenced_statement"):
        fenced_statement(sa.create_engine("sqlite://"), "a", READS[name], token=token(1))


def test_a_default_that_reads_other_rows_does_not_matter_where_it_is_not_used() -> None:
    engine = sa.create_engine("sqlite://")
    create_all(engine)
    NUMBERED.create(engine)
    assert fenced_statement(engine, "a", NUMBERS["insert"].values(n=7), token=token(1)).count == 1
    assert fenced_statement(engine, "a", NUMBERS["update"].values(n=8), token=token(1)).count == 1
    assert fenced_statement(engine, "a", sa.delete(NUMBERED).where(NUMBERED.c.id == 1), token=token(1)).count == 1


FILLED = sa.Table(
    "filled",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("scalar", sa.JSON, default=[1], onupdate=[2]),
    sa.Column("called", sa.String, default=lambda: "made", onupdate=lambda: "changed"),
    sa.Column("given", sa.String, default="unused", onupdate="unused"),
)


@pytest.mark.parametrize("kind", ["psycopg", "engine"])
def test_columns_that_are_not_named_have_the_defaults_of_python(pg: str, kind: str) -> None:
    with psycopg.connect(pg, autocommit=True) as bare:
        bare.execute("drop table if exists filled")
        bare.execute("create table filled (id int primary key, scalar json, called text, given text)")
        target = bare if kind == "psycopg" else sql_doors.engine(pg)
        for row in (1, 2):  # the second one is one statement with the guard
            add = sa.insert(FILLED).values(id=row, given="x")
            fenced_statement(target, "a", add, token=token(1))
        rows = bare.execute("select scalar, called, given from filled").fetchall()
        assert rows == [([1], "made", "x")] * 2
        change = sa.update(FILLED).where(FILLED.c.id == 1).values(given="y")
        fenced_statement(target, "a", change, token=token(1))
        assert bare.execute("select scalar, called, given from filled where id = 1").fetchone() == ([2], "changed", "y")


@pytest.mark.parametrize("kind", ["psycopg", "engine"])
def test_parameters_whose_value_or_number_is_known_only_as_it_is_sent(pg: str, kind: str) -> None:
    """Kept statements: what one sending has looked up or spelled out is not sent again with the next."""
    owner = [0]
    key = LEDGER.c.id == sa.bindparam("key")
    called = sa.update(LEDGER).where(key).values(owner=sa.bindparam("o", callable_=lambda: owner[0]))
    among = sa.update(LEDGER).where(key, LEDGER.c.owner.in_(sa.bindparam("among", expanding=True))).values(owner=8)
    listed = sa.update(LEDGER).where(key, LEDGER.c.owner.in_([8, 9])).values(owner=9)
    with psycopg.connect(pg, autocommit=True) as bare:
        target = bare if kind == "psycopg" else sql_doors.engine(pg)
        bare.execute("insert into ledger values ('a', 0)")
        for number in (1, 2, 3):
            owner[0] = number
            fenced_statement(target, "a", called, {"key": "a"}, token=token(1))
            assert ledger(pg) == {"a": number}
        for values, count in (([1], 0), ([2, 3], 1), ([2, 3], 0), ([], 0)):
            assert fenced_statement(target, "a", among, {"key": "a", "among": values}, token=token(1)).count == count
        assert fenced_statement(target, "a", listed, {"key": "a"}, token=token(1)).count == 1
    assert ledger(pg) == {"a": 9}


def test_a_default_that_needs_sqlalchemy_is_said(pg: str) -> None:
    table = sa.Table(
        "filled",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("called", sa.String, default=lambda context: str(context.get_current_parameters()["id"])),
    )
    with psycopg.connect(pg, autocommit=True) as bare, pytest.raises(TypeError, match="get_current_parameters"):
        fenced_statement(bare, "a", sa.insert(table).values(id=1), token=token(1))
    assert marks(pg) == {}


def test_what_cannot_be_looked_into_is_refused() -> None:
    for statement in ("delete from ledger", sa.text("delete from ledger"), sa.select(LEDGER)):
        with pytest.raises(TypeError, match=r"update\(\)"):
            fenced_statement(sa.create_engine("sqlite://"), "a", statement, token=token(1))


def test_on_a_connection_in_autocommit_the_statement_is_the_transaction(pg: str) -> None:
    with psycopg.connect(pg, autocommit=True) as bare:
        bare.execute("set lock_timeout = '77s'")
        assert fenced_statement(bare, "a", ADD, {"id": "x", "owner": 1}, token=token(5)).count == 1
        assert fenced_statement(bare, "a", SET, {"key": "x", "to": 2}, token=token(5)).count == 1
        with pytest.raises(errors.StaleTokenError):
            fenced_statement(bare, "a", SET, {"key": "x", "to": 3}, token=token(4))
        with bare.transaction(force_rollback=True):
            fenced_statement(bare, "a", SET, {"key": "x", "to": 4}, token=token(9))
        assert bare.execute("show lock_timeout").fetchone() == ("77s",)
    with psycopg.connect(pg) as implicit, pytest.raises(errors.NotInTransactionError):
        fenced_statement(implicit, "a", SET, {"key": "x", "to": 5}, token=token(9))
    assert (ledger(pg), marks(pg)) == ({"x": 2}, {"a": "shop/line-a/5"})


@pytest.mark.parametrize("existing", [True, False], ids=["one statement", "several"])
def test_a_lost_commit_of_its_own_transaction_is_unknown(pg_dsn: str, existing: bool) -> None:
    """The first write to a resource takes several statements, in a transaction that is made for them."""
    sql_doors.prepare(pg_dsn)
    bind = sql_doors.engine(pg_dsn)
    if existing:
        raise_fence(bind, "a", token=token(1))
    with bind.begin() as connection:
        connection.execute(
            sa.text("""create function die() returns trigger language plpgsql as
                'begin perform pg_terminate_backend(pg_backend_pid()); return null; end'""")
        )
        connection.execute(
            sa.text("""create constraint trigger die after insert on ledger deferrable initially deferred
                for each row execute function die()""")
        )
    with psycopg.connect(pg_dsn, autocommit=True) as bare, pytest.raises(errors.OutcomeUnknownError):
        fenced_statement(bare, "a", ADD, {"id": "x", "owner": 1}, token=token(5))

    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(pg_dsn, autocommit=True) as twin:
            await fenced_statement(twin, "a", ADD, {"id": "x", "owner": 1}, token=token(5))

    with pytest.raises(errors.OutcomeUnknownError):
        asyncio.run(work())


def test_in_the_callers_transaction_the_lock_timeout_is_as_it_was(pg: str) -> None:
    with psycopg.connect(pg, autocommit=True) as bare, bare.transaction():
        bare.execute("set local lock_timeout = '77s'")
        fenced_statement(bare, "a", ADD, {"id": "x", "owner": 1}, token=token(5))  # there is no mark
        assert bare.execute("show lock_timeout").fetchone() == ("77s",)
        for statement, key, count in ((SET, "x", 1), (SET, "no such row", 0), (DROP, "x", 1)):
            params = {"key": key, "to": 2} if statement is SET else {"key": key}
            assert fenced_statement(bare, "a", statement, params, token=token(5)).count == count
            assert bare.execute("show lock_timeout").fetchone() == ("77s",)
        with pytest.raises(errors.StaleTokenError):
            fenced_statement(bare, "a", SET, {"key": "x", "to": 3}, token=token(4))
        assert bare.execute("show lock_timeout").fetchone() == ("77s",)


def test_an_insert_that_a_trigger_swallows_is_not_sent_again(pg: str) -> None:
    raise_fence(sql_doors.engine(pg), "a", token=token(1))
    with psycopg.connect(pg, autocommit=True) as bare, bare.transaction(force_rollback=True):
        bare.execute("create temp table seen (id text)")
        bare.execute("""create function pg_temp.swallow() returns trigger language plpgsql as
            'begin insert into seen values (new.id); return null; end'""")
        bare.execute("create trigger swallow before insert on ledger for each row execute function pg_temp.swallow()")
        written = fenced_statement(bare, "a", ADD, {"id": "x", "owner": 1}, token=token(5))
        assert (written.count, bare.execute("select id from seen").fetchall()) == (0, [("x",)])


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


def second(pool: ThreadPoolExecutor, pg: str, statement: Any, params: dict[str, Any], value: int) -> Any:
    """Sends the statement on a thread and returns once it waits for a lock."""
    bare = psycopg.connect(pg, autocommit=True)

    def work() -> Any:
        with bare:
            return fenced_statement(bare, "a", statement, params, token=token(value))

    future = pool.submit(work)
    wait_until_blocked(pg, bare.info.backend_pid)
    return future


EARLIER: dict[str, tuple[Callable[[Any], Any], Any, dict[str, Any], dict[str, int]]] = {
    "it changes the row that is updated": (
        lambda tx: sql_doors.do(tx, sql_doors.PUT, id="x", owner=5), MORE, {"key": "x"}, {"x": 6},
    ),
    "it makes the row that is updated": (
        lambda tx: sql_doors.do(tx, sql_doors.PUT, id="new", owner=5), MORE, {"key": "new"}, {"x": 1, "new": 6},
    ),
    "it makes the row that is deleted": (
        lambda tx: sql_doors.do(tx, sql_doors.PUT, id="new", owner=5), DROP, {"key": "new"}, {"x": 1},
    ),
    "it deletes the row that is updated": (
        lambda tx: sql_doors.do(tx, "delete from ledger where id = :id", id="x"), MORE, {"key": "x"}, {},
    ),
    "it deletes the row that is inserted": (
        lambda tx: sql_doors.do(tx, "delete from ledger where id = :id", id="x"),
        ADD, {"id": "x", "owner": 9}, {"x": 9},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EARLIER)
def test_it_sees_what_was_committed_while_it_waited(pg: str, pool: ThreadPoolExecutor, name: str) -> None:
    write, statement, params, expected = EARLIER[name]
    fenced_write(
        sql_doors.engine(pg), "a", token=token(1), effect=lambda tx: sql_doors.do(tx, sql_doors.PUT, id="x", owner=1)
    )
    with psycopg.connect(pg, autocommit=True) as first, first.transaction():
        with fenced_write(first, "a", token=token(5)):
            write(first)
            newer = second(pool, pg, statement, params, 9)
    newer.result(60)
    assert (ledger(pg), marks(pg)) == (expected, {"a": "shop/line-a/9"})


def test_an_older_one_waits_and_is_refused(pg: str, pool: ThreadPoolExecutor) -> None:
    raise_fence(sql_doors.engine(pg), "a", token=token(1))
    with psycopg.connect(pg, autocommit=True) as first, first.transaction():
        raise_fence(first, "a", token=token(9))
        older = second(pool, pg, ADD, {"id": "x", "owner": 5}, 5)
    with pytest.raises(errors.StaleTokenError):
        older.result(60)
    assert ledger(pg) == {}


def test_it_waits_no_longer_than_the_lock_timeout(pg: str) -> None:
    raise_fence(sql_doors.engine(pg), "a", token=token(1))
    with psycopg.connect(pg, autocommit=True) as first, first.transaction():
        raise_fence(first, "a", token=token(2))
        with psycopg.connect(pg, autocommit=True) as bare, pytest.raises(errors.ContentionError) as caught:
            hasty = SqlGuard(lock_timeout=0.05)
            fenced_statement(bare, "a", ADD, {"id": "x", "owner": 5}, token=token(5), options=hasty)
    assert (caught.value.resource, caught.value.presented) == ("a", token(5))
