"""A protected table: the database refuses what comes past the guard, whatever code it comes from."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from support import sql_doors
from support.sql_doors import Door, ledger, token

from adapters.sql import (
    SqlGuard,
    adopt,
    create_all,
    fenced_statement,
    metadata,
    protect,
    protected,
    unfenced,
    unprotect,
)
from fencing import errors, fenced_write, raise_fence
from scheduler.console.embedded import Postgres

PUT = "insert into ledger (id, owner) values (:id, :owner)"
ACTS = metadata.tables["fencing_act"]


@pytest.fixture(scope="module")
def bank(postgres: Postgres, pg_names: Iterator[str]) -> Iterator[str]:
    with sql_doors.postgresql_bank(postgres, next(pg_names)) as address:
        protect(sql_doors.engine(address), "ledger", "id")
        yield address


@pytest.fixture
def pg(bank: str) -> str:
    with psycopg.connect(bank, autocommit=True) as bare, bare.transaction():
        with unfenced(bare, "between two tests"):
            bare.execute("truncate ledger, fencing_mark")
    return bank


@pytest.fixture
def lite(tmp_path: Path) -> str:
    address = f"sqlite:///{tmp_path / 'bank.db'}"
    sql_doors.prepare(address)
    protect(sql_doors.engine(address), "ledger", "id")
    return address


@pytest.fixture(params=["postgresql", "sqlite"])
def address(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("pg" if request.param == "postgresql" else "lite"))


def refused(address: str, sql: str, **params: Any) -> None:
    with pytest.raises(DBAPIError, match="outside a fenced write"), sql_doors.engine(address).begin() as connection:
        connection.execute(sa.text(sql), params)


def test_a_write_outside_a_fenced_one_fails_whoever_sends_it(address: str) -> None:
    refused(address, PUT, id="a", owner=1)
    fenced_write(
        sql_doors.engine(address), "a", effect=lambda tx: sql_doors.do(tx, PUT, id="a", owner=1), token=token(5)
    )
    for sql in ("update ledger set owner = 2", "delete from ledger", "update ledger set id = 'b' where id = 'a'"):
        refused(address, sql)
    assert ledger(address) == {"a": 1}


@pytest.mark.parametrize("name", sql_doors.DOORS)
def test_fenced_writes_of_every_kind_pass(name: str, request: pytest.FixtureRequest) -> None:
    address = str(request.getfixturevalue("pg" if name.startswith("postgresql") else "lite"))
    door = Door(name, address, SqlGuard())
    for _ in range(2):
        door.write("a", token=token(5))
        door.write("b", "c", token=token(5))
    assert ledger(address) == {"a": 5, "b": 5}
    refused(address, "delete from ledger")


def test_the_row_must_be_of_the_resource_that_is_fenced(address: str) -> None:
    bind = sql_doors.engine(address)
    raise_fence(bind, "b", token=token(5))
    fenced_write(bind, "a", effect=lambda tx: sql_doors.do(tx, PUT, id="a", owner=1), token=token(5))
    for resource, sql in (
        ("a", "insert into ledger (id, owner) values ('b', 1)"),
        ("a", "update ledger set id = 'b' where id = 'a'"),
        ("b", "update ledger set id = 'b' where id = 'a'"),
        ("b", "delete from ledger where id = 'a'"),
    ):
        with pytest.raises(DBAPIError, match="outside a fenced write"):
            fenced_write(bind, resource, effect=lambda tx, sql=sql: sql_doors.do(tx, sql), token=token(5))
    assert ledger(address) == {"a": 1}
    fenced_write(bind, "a", "b", effect=lambda tx: sql_doors.do(tx, "update ledger set id = 'b'"), token=token(5))
    assert ledger(address) == {"b": 1}


def test_the_sign_ends_with_the_transaction(address: str) -> None:
    with sql_doors.engine(address).connect() as connection:
        with fenced_write(connection, "a", token=token(5)):
            sql_doors.do(connection, PUT, id="a", owner=1)
        sql_doors.do(connection, "update ledger set owner = 2")  # the fence lasts until the commit
        connection.commit()
        with pytest.raises(DBAPIError, match="outside a fenced write"):
            sql_doors.do(connection, "update ledger set owner = 3")
        connection.rollback()
        raise_fence(connection, "a", token=token(6))
        connection.rollback()
        with pytest.raises(DBAPIError, match="outside a fenced write"):
            sql_doors.do(connection, "update ledger set owner = 3")
        connection.rollback()
    with Session(sql_doors.engine(address)) as session:
        with session.begin(), fenced_write(session, "a", token=token(7)):
            sql_doors.do(session, "update ledger set owner = 4")
        with session.begin(), pytest.raises(DBAPIError):
            sql_doors.do(session, "update ledger set owner = 5")
    assert ledger(address) == {"a": 4}


def test_the_sign_ends_with_a_savepoint_that_is_rolled_back(address: str) -> None:
    with sql_doors.engine(address).begin() as connection:
        raise_fence(connection, "b", token=token(1))
        savepoint = connection.begin_nested()
        raise_fence(connection, "a", token=token(5))
        savepoint.rollback()
        attempt = connection.begin_nested()
        with pytest.raises(DBAPIError, match="outside a fenced write"):
            sql_doors.do(connection, PUT, id="a", owner=1)
        attempt.rollback()
        kept = connection.begin_nested()
        raise_fence(connection, "a", token=token(6))
        kept.commit()
        sql_doors.do(connection, PUT, id="a", owner=1)
    assert ledger(address) == {"a": 1}


def test_another_transaction_is_not_permitted_by_a_fence_elsewhere(pg: str) -> None:
    with psycopg.connect(pg, autocommit=True) as first, first.transaction():
        raise_fence(first, "a", token=token(5))
        refused(pg, PUT, id="a", owner=1)


def test_a_fence_that_another_transaction_committed_meanwhile_permits_nothing(pg: str) -> None:
    with psycopg.connect(pg, autocommit=True) as bare, pytest.raises(psycopg.DatabaseError, match="outside a fenced"):
        with bare.transaction():
            bare.execute("select 1")
            raise_fence(sql_doors.engine(pg), "a", token=token(5))
            bare.execute("insert into ledger values ('a', 1)")


def test_a_resource_that_was_given_away_is_not_open_to_writes_outside_a_fenced_one(address: str) -> None:
    bind = sql_doors.engine(address)
    raise_fence(bind, "b", token=token(5, issuer="before"))
    for resource in ("new", "b"):
        adopt(bind, resource, token(5), "moved")
        refused(address, PUT, id=resource, owner=1)
        with pytest.raises(DBAPIError, match="outside a fenced write"), bind.begin() as connection:
            adopt(connection, resource, token(6), "moved")
            sql_doors.do(connection, PUT, id=resource, owner=1)
        fenced_write(
            bind,
            resource,
            effect=lambda tx, resource=resource: sql_doors.do(tx, PUT, id=resource, owner=1),
            token=token(7),
        )
    assert ledger(address) == {"b": 1, "new": 1}


def test_a_permission_is_explicit_recorded_and_ends_with_its_block(address: str) -> None:
    with sql_doors.engine(address).begin() as connection:
        with unfenced(connection, "import of the old books"):
            sql_doors.do(connection, PUT, id="old", owner=0)
        attempt = connection.begin_nested()
        with pytest.raises(DBAPIError, match="outside a fenced write"):
            sql_doors.do(connection, "delete from ledger")
        attempt.rollback()
    refused(address, "delete from ledger")
    with sql_doors.engine(address).connect() as connection:
        row = connection.execute(
            sa.select(ACTS).where(ACTS.c.kind == "unfenced", ACTS.c.reason == "import of the old books")
        ).one()
        assert row.actor
        assert row.ended_at >= row.at
    with sql_doors.engine(address).connect() as connection:
        with unfenced(connection, "rolled back"):
            sql_doors.do(connection, "delete from ledger")
        connection.rollback()
    assert ledger(address) == {"old": 0}


def test_a_permission_needs_a_reason_and_a_transaction(address: str) -> None:
    bind = sql_doors.engine(address)
    for reason in ("", " ", None):
        with pytest.raises(ValueError, match="reason"):
            unfenced(bind, reason)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="connection or session"):
        unfenced(bind, "x")


def test_a_permission_ends_with_its_block_also_by_an_error_and_when_async(address: str) -> None:
    async def work() -> None:
        twin = create_async_engine(sql_doors.async_url(address))
        async with twin.begin() as connection:
            try:
                async with unfenced(connection, "x"):
                    await connection.execute(sa.text(PUT), {"id": "a", "owner": 1})
                    {}["x"]
            except KeyError:
                pass
            with pytest.raises(DBAPIError, match="outside a fenced write"):
                async with connection.begin_nested():
                    await connection.execute(sa.text("delete from ledger"))
        await twin.dispose()

    asyncio.run(work())
    assert ledger(address) == {"a": 1}


def test_what_is_protected_is_listed_and_can_be_freed(address: str) -> None:
    bind = sql_doors.engine(address)
    name = "public.ledger" if address.startswith("postgresql") else "ledger"
    try:
        assert [(one.table, one.resource, one.gaps) for one in protected(bind)] == [(name, "id", ())]
        protect(bind, "ledger", "'ledger/' || id")
        assert [(one.resource, one.gaps) for one in protected(bind)] == [("'ledger/' || id", ())]
        with pytest.raises(DBAPIError):
            fenced_write(bind, "a", effect=lambda tx: sql_doors.do(tx, PUT, id="a", owner=1), token=token(1))
        fenced_write(bind, "ledger/a", effect=lambda tx: sql_doors.do(tx, PUT, id="a", owner=1), token=token(1))
        unprotect(bind, "ledger")
        unprotect(bind, "ledger")
        assert protected(bind) == []
        with bind.begin() as connection:
            sql_doors.do(connection, "delete from ledger")
        with bind.connect() as connection:
            assert "unprotect" in connection.execute(sa.select(ACTS.c.kind)).scalars().all()
    finally:
        protect(bind, "ledger", "id")


def test_a_table_that_took_the_name_of_another_takes_nothing_of_its_protection(address: str) -> None:
    bind = sql_doors.engine(address)
    place = "public." if address.startswith("postgresql") else ""

    def found() -> dict[str, str]:
        return {one.table.removeprefix(place): one.resource for one in protected(bind) if not one.gaps}

    with bind.begin() as connection:
        connection.execute(sa.text("alter table ledger rename to ledger_2026"))
        connection.execute(sa.text("create table ledger (id text primary key, owner integer)"))
    try:
        protect(bind, "ledger", "'ledger/' || id")
        assert found() == {"ledger": "'ledger/' || id", "ledger_2026": "id"}
        refused(address, "insert into ledger_2026 (id, owner) values ('a', 1)")
        unprotect(bind, "ledger")
        assert found() == {"ledger_2026": "id"}
        refused(address, "insert into ledger_2026 (id, owner) values ('a', 1)")
    finally:
        with bind.begin() as connection:
            connection.execute(sa.text("drop table ledger"))
            connection.execute(sa.text("alter table ledger_2026 rename to ledger"))


def test_protecting_again_leaves_no_function_behind(pg: str) -> None:
    bind = sql_doors.engine(pg)

    def functions() -> int:
        with bind.connect() as connection:
            asked = sa.text("select count(*) from pg_proc where starts_with(proname, 'fencing_protect_')")
            return int(connection.execute(asked).scalar_one())

    before = functions()
    protect(bind, "ledger", "id")
    assert functions() == before
    unprotect(bind, "ledger")
    try:
        assert functions() == before - 1
    finally:
        protect(bind, "ledger", "id")


@pytest.mark.parametrize("bad", ["id; drop table ledger", "id -- x", "id /* x */", ""])
def test_an_expression_is_one_expression(bad: str) -> None:
    with pytest.raises((ValueError, TypeError), match="resource="):
        protect(sa.create_engine("sqlite://"), "ledger", bad)


@pytest.mark.parametrize("bad", ["no_such_column", '"no_such_column"', "max(id)", "row_number() over ()", "id ||"])
def test_an_expression_that_the_rows_do_not_have_is_refused_at_once(address: str, bad: str) -> None:
    bind = sql_doors.engine(address)
    with pytest.raises(DBAPIError):
        protect(bind, "ledger", bad)
    assert [one.resource for one in protected(bind)] == ["id"]
    fenced_write(bind, "a", effect=lambda tx: sql_doors.do(tx, PUT, id="a", owner=1), token=token(5))


def test_what_is_not_there_cannot_be_protected(address: str) -> None:
    with pytest.raises(ValueError, match="no table nowhere"):
        protect(sql_doors.engine(address), "nowhere", "id")


# PostgreSQL alone.


def outside(pg: str, sql: str) -> None:
    with psycopg.connect(pg, autocommit=True) as bare, pytest.raises(psycopg.DatabaseError) as caught:
        bare.execute(sql.encode())
    assert caught.value.sqlstate == "FENCE"
    assert caught.value.diag.message_hint


def test_statements_of_all_kinds_and_of_many_rows(pg: str) -> None:
    outside(pg, "insert into ledger select i::text, 1 from generate_series(1, 100) i")
    outside(pg, "with w as (insert into ledger values ('w', 1) returning *) select * from w")
    outside(pg, "set session_replication_role = replica; insert into ledger values ('r', 1)")
    outside(pg, "do $$ begin insert into ledger values ('d', 1); end $$")
    with psycopg.connect(pg, autocommit=True) as bare, pytest.raises(psycopg.DatabaseError):
        with bare.cursor().copy("copy ledger from stdin") as copy:
            copy.write(b"c\t1\n")
    names = [f"n{number}" for number in range(50)]
    with psycopg.connect(pg, autocommit=True) as bare, bare.transaction(), fenced_write(bare, *names, token=token(5)):
        bare.execute("insert into ledger select unnest(%s::text[]), 1", [names])
        bare.execute("update ledger set owner = 2")
    assert set(ledger(pg).values()) == {2}
    outside(pg, "merge into ledger l using (select 1) s on l.id = 'n1' when matched then update set owner = 3"
            if server_version(pg) >= 150000 else "update ledger set owner = 3")  # fmt: skip


def server_version(pg: str) -> int:
    with psycopg.connect(pg) as bare:
        return bare.info.server_version


def test_truncate(pg: str) -> None:
    fenced_write(
        sql_doors.engine(pg),
        "a",
        "b",
        effect=lambda tx: [sql_doors.do(tx, PUT, id=i, owner=1) for i in "ab"],
        token=token(5),
    )
    outside(pg, "truncate ledger")
    bind = sql_doors.engine(pg)
    with pytest.raises(DBAPIError, match="outside a fenced write"):
        fenced_write(bind, "a", effect=lambda tx: sql_doors.do(tx, "truncate ledger"), token=token(5))
    fenced_write(bind, "a", "b", effect=lambda tx: sql_doors.do(tx, "truncate ledger"), token=token(5))
    assert ledger(pg) == {}


@contextmanager
def partitioned(pg: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(pg, autocommit=True) as bare:
        bare.execute("create table part (id text, day int) partition by range (day)")
        bare.execute("create table part_1 partition of part for values from (1) to (10)")
        bare.execute("create table part_2 partition of part for values from (10) to (20) partition by list (day)")
        bare.execute("create table part_2_10 partition of part_2 for values in (10)")
        protect(sql_doors.engine(pg), "part", "'part/' || id")
        try:
            yield bare
        finally:
            unprotect(sql_doors.engine(pg), "part")
            bare.execute("drop table part")


def test_partitions_are_covered_also_later_ones(pg: str) -> None:
    with partitioned(pg) as bare:
        bare.execute("create table part_3 partition of part for values from (30) to (40)")
        bare.execute("create table part_4 (id text, day int)")
        bare.execute("insert into part_4 values ('x', 50)")
        bare.execute("alter table part attach partition part_4 for values from (40) to (60)")
        for table, day in (
            ("part", 1),
            ("part_1", 1),
            ("part_2", 10),
            ("part_2_10", 10),
            ("part_3", 30),
            ("part_4", 41),
        ):
            outside(pg, f"insert into {table} values ('a', {day})")
            outside(pg, f"set session_replication_role = replica; insert into {table} values ('a', {day})")
        outside(pg, "update part_4 set day = 55")
        outside(pg, "delete from part")
        bind = sql_doors.engine(pg)
        put = "insert into part values ('a', 1), ('a', 10), ('a', 30)"
        fenced_write(bind, "part/a", effect=lambda tx: sql_doors.do(tx, put), token=token(1))
        outside(pg, "truncate part_2_10")
        outside(pg, "truncate part")
        move = "update part set day = 41 where day = 1"
        outside(pg, move)
        fenced_write(bind, "part/a", effect=lambda tx: sql_doors.do(tx, move), token=token(1))
        [found] = [one for one in protected(bind) if one.table == "public.part"]
        assert [gap.partition(" ")[0] for gap in found.gaps] == ["part_3", "part_4"]
        protect(bind, "part", "'part/' || id")
        assert [one.gaps for one in protected(bind) if one.table == "public.part"] == [()]
        with pytest.raises(ValueError, match="partition"):
            protect(bind, "part_1", "id")


def test_a_row_of_a_partition_that_changes_its_resource_needs_both(pg: str) -> None:
    with partitioned(pg):
        bind = sql_doors.engine(pg)
        fenced_write(
            bind, "part/a", effect=lambda tx: sql_doors.do(tx, "insert into part values ('a', 1)"), token=token(1)
        )
        change = "update part set id = 'b'"
        for resource in ("part/a", "part/b"):
            with pytest.raises(DBAPIError, match="outside a fenced write"):
                fenced_write(bind, resource, effect=lambda tx: sql_doors.do(tx, change), token=token(1))
        fenced_write(bind, "part/a", "part/b", effect=lambda tx: sql_doors.do(tx, change), token=token(1))


def test_a_sign_of_another_clusters_transaction_with_the_same_number_permits_nothing(pg: str) -> None:
    """As a dump that was restored brings it along."""
    raise_fence(sql_doors.engine(pg), "a", token=token(5))
    with psycopg.connect(pg, autocommit=True) as restored, psycopg.connect(pg, autocommit=True) as bare:
        for sign in (
            "update fencing_mark set tx = %s, marked_at = now() - interval '1 day'",
            """insert into fencing_act (kind, actor, reason, detail, at, tx)
                values ('unfenced', 'x', 'x', '{}', now() - interval '1 day', %s)""",
        ):
            with pytest.raises(psycopg.DatabaseError, match="outside a fenced write"), bare.transaction():
                number = bare.execute("select pg_current_xact_id()::text::bigint").fetchone()
                restored.execute(sign.encode(), number)
                bare.execute("insert into ledger values ('a', 1)")


def test_a_parent_that_is_not_protected_is_a_gap(pg_dsn: str) -> None:
    bind = sql_doors.engine(pg_dsn)
    create_all(bind)
    with psycopg.connect(pg_dsn, autocommit=True) as bare:
        bare.execute("create table parent (id int, n int); create table child () inherits (parent)")
        protect(bind, "child", "'row/' || id")
        fenced_write(
            bind, "row/1", token=token(1), effect=lambda tx: tx.execute(sa.text("insert into child values (1)"))
        )
        (found,) = protected(bind)
        assert [gap.split()[0] for gap in found.gaps] == ["parent"]
        bare.execute("update parent set n = 1")  # this is the gap
        protect(bind, "parent", "'row/' || id")
        assert [one.gaps for one in protected(bind)] == [(), ()]
        outside(pg_dsn, "update parent set n = 2")


@pytest.mark.parametrize("column", ["missed", "tg_op", "found", "fencing_old"])
def test_a_column_may_have_any_name(pg: str, column: str) -> None:
    bind = sql_doors.engine(pg)
    with bind.begin() as connection:
        connection.execute(sa.text(f"create table named ({column} text)"))
    try:
        protect(bind, "named", column)
        for sql in ("insert into named values ('a')", f"update named set {column} = 'a'", "delete from named"):
            fenced_write(bind, "a", effect=lambda tx, sql=sql: sql_doors.do(tx, sql), token=token(1))
        outside(pg, "insert into named values ('a')")
    finally:
        with bind.begin() as connection:
            connection.execute(sa.text("drop table named"))


def test_a_trigger_that_somebody_disabled_is_seen(pg: str) -> None:
    bind = sql_doors.engine(pg)
    with psycopg.connect(pg, autocommit=True) as bare:
        bare.execute("alter table ledger disable trigger fencing_protect_update")
        bare.execute("drop trigger fencing_protect_delete on ledger")
        [found] = protected(bind)
        assert [gap.split()[0] for gap in found.gaps] == ["public.ledger", "fencing_protect_delete"]
    protect(bind, "ledger", "id")
    assert protected(bind)[0].gaps == ()


def test_a_view_is_not_protected(pg: str) -> None:
    with psycopg.connect(pg, autocommit=True) as bare:
        bare.execute("create or replace view seen as select * from ledger")
    with pytest.raises(ValueError, match="no table but"):
        protect(sql_doors.engine(pg), "seen", "id")


def test_the_guards_tables_may_be_in_a_schema_of_their_own(pg_dsn: str) -> None:
    bind = sql_doors.engine(pg_dsn)
    with bind.begin() as connection:
        connection.execute(sa.text('create schema fences; create schema "My Shop"'))
        connection.execute(sa.text('create table "My Shop"."The Ledger" (id text, owner bigint)'))
    create_all(bind, "fences")
    table = sa.Table(
        "The Ledger",
        sa.MetaData(),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("owner", sa.Integer),
        schema="My Shop",
    )
    protect(bind, table, table.c.id, schema="fences")
    guard = SqlGuard(schema="fences")
    add = sa.insert(table).values(id="a", owner=1)
    with pytest.raises(DBAPIError), bind.begin() as connection:
        connection.execute(add)
    fenced_statement(bind, "a", add, token=token(1), options=guard)
    fenced_statement(
        bind, "a", sa.update(table).where(table.c.id == "a").values(owner=2), token=token(1), options=guard
    )
    assert [one.table for one in protected(bind, schema="fences")] == ["My Shop.The Ledger"]
    unprotect(bind, table, schema="fences")
    assert protected(bind, schema="fences") == []


def test_a_refused_holder_has_no_permission(pg: str) -> None:
    raise_fence(sql_doors.engine(pg), "a", token=token(9))
    with psycopg.connect(pg, autocommit=True) as bare, bare.transaction():
        with pytest.raises(errors.StaleTokenError), fenced_write(bare, "a", token=token(5)):
            pass
        with pytest.raises(psycopg.DatabaseError, match="outside a fenced write"), bare.transaction():
            bare.execute("insert into ledger values ('a', 1)")
