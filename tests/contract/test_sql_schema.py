"""The guard's tables: made by metadata or by DDL text, once, and found wanting by ``diagnose()``."""

import asyncio
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateTable
from support import sql_doors
from support.sql_doors import token
from support.waiting import eventually

from adapters.sql import SqlGuard, adopt, compact, create_all, ddl, metadata, tables
from fencing import Finding, errors, fenced_write, raise_fence, read_mark


@pytest.fixture(params=["postgresql", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("pg_dsn"))
    return f"sqlite:///{tmp_path / 'bank.db'}"


def works(address: str) -> bool:
    bind = sql_doors.engine(address)
    raise_fence(bind, "a", "b", token=token(5))
    return fenced_write(bind, "a", effect=lambda handle: 7, token=token(5), once="k") == 7


def test_create_all_takes_what_people_have_and_may_be_repeated(address: str) -> None:
    bind = sql_doors.engine(address)
    with bind.connect() as connection:
        create_all(connection)
        connection.rollback()
        # SQLite's driver commits DDL by itself.
        assert sa.inspect(connection).has_table("fencing_mark") == address.startswith("sqlite")
    with Session(bind) as session, session.begin():
        create_all(session)
    create_all(bind)

    async def work() -> None:
        twin = create_async_engine(sql_doors.async_url(address))
        async with twin.begin() as connection:
            await connection.run_sync(create_all)
        await twin.dispose()

    asyncio.run(work())
    assert works(address)


def test_create_all_takes_a_psycopg_connection(pg_dsn: str) -> None:
    with psycopg.connect(pg_dsn, autocommit=True) as bare:
        create_all(bare)
        create_all(bare)
    assert works(pg_dsn)


def test_create_all_refuses_anything_else(pg_dsn: str) -> None:
    for bind in ("postgresql://", None, object()):
        with pytest.raises(TypeError, match="create_all"):
            create_all(bind)

    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(pg_dsn) as bare:
            with pytest.raises(TypeError, match="create_all"):
                create_all(bare)

    asyncio.run(work())


def test_ten_processes_that_create_the_tables_at_once_do_not_collide(pg_dsn: str) -> None:
    with ThreadPoolExecutor(10) as threads:
        for done in [threads.submit(create_all, sql_doors.engine(pg_dsn)) for _ in range(10)]:
            done.result(60)
    assert works(pg_dsn)


def test_every_driver_of_a_database_makes_the_same_tables() -> None:
    drivers = (sa.make_url(f"postgresql+{driver}://").get_dialect()() for driver in ("psycopg", "asyncpg", "psycopg2"))
    first, *others = ([str(CreateTable(t).compile(dialect=d)) for t in metadata.sorted_tables] for d in drivers)
    assert "VARCHAR" not in "".join(first)
    assert others == [first] * len(others)


def test_the_ddl_text_makes_the_same_tables_as_the_metadata(address: str) -> None:
    bind = sql_doors.engine(address)
    dialect = address.partition(":")[0]

    def columns() -> dict[str, list[tuple[str, str, bool, str | None]]]:
        inspector = sa.inspect(bind)
        return {
            table: [
                (str(c["name"]), str(c["type"]), bool(c["nullable"]), getattr(c["type"], "collation", None))
                for c in inspector.get_columns(table)
            ]
            for table in inspector.get_table_names()
        }

    def options() -> list[str]:
        if dialect != "postgresql":
            return []
        with bind.connect() as connection:
            named = "select reloptions::text from pg_class where relname in ('fencing_mark', 'fencing_applied')"
            return list(connection.execute(sa.text(named)).scalars())

    create_all(bind)
    made = columns()
    assert options() == (["{fillfactor=70}"] * 2 if dialect == "postgresql" else [])
    metadata.drop_all(bind)
    with bind.begin() as connection:
        for statement in filter(str.strip, ddl(dialect).split(";")):
            connection.exec_driver_sql(statement)
    assert columns() == made
    assert options() == (["{fillfactor=70}"] * 2 if dialect == "postgresql" else [])
    assert set(made) == {"fencing_mark", "fencing_applied", "fencing_floor", "fencing_act", "fencing_horizon"}
    assert works(address)


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "1a", "a;b", "é", "x" * 64, "a.b"])
def test_a_schema_name_that_would_need_quoting_is_refused(name: str) -> None:
    for call in (tables, lambda schema: ddl("postgresql", schema), lambda schema: SqlGuard(schema=schema)):
        with pytest.raises(ValueError, match="schema="):
            call(name)
    with pytest.raises(TypeError, match="schema="):
        SqlGuard(schema=7)  # type: ignore[arg-type]


def test_the_metadata_reads_what_the_guard_wrote(address: str) -> None:
    bind = sql_doors.engine(address)
    create_all(bind)
    raise_fence(bind, "a", token=token(2**63 - 1))
    with bind.connect() as connection:
        row = connection.execute(sa.select(metadata.tables["fencing_mark"])).one()
    assert (row.resource, row.issuer, row.lineage, row.value) == ("a", "shop", "line-a", 2**63 - 1)
    mark = read_mark(bind, "a")
    assert mark.holder == row.holder
    assert mark.at == (row.marked_at if row.marked_at.tzinfo else row.marked_at.replace(tzinfo=UTC))
    assert abs(datetime.now(UTC) - mark.at) < timedelta(minutes=5)


def test_marks_are_rewritten_in_place(pg_dsn: str) -> None:
    """No index entry per write (HOT), so that a resource written a million times costs what it cost at first."""
    with psycopg.connect(pg_dsn, autocommit=True) as bare:
        create_all(bare)
        for value in range(1, 201):
            with bare.transaction():
                raise_fence(bare, "a", token=token(value))

    def counted() -> tuple[int, int, int] | None:
        # A session's counts are told at its end at the latest; PostgreSQL before 15 can't be made to tell them earlier.
        with psycopg.connect(pg_dsn) as bare:
            row = bare.execute(
                "select n_tup_upd, n_tup_hot_upd, pg_relation_size('fencing_mark_pkey')"
                " from pg_stat_user_tables where relname = 'fencing_mark'"
            ).fetchone()
        return row if row is not None and row[0] == 199 else None

    row = eventually(counted, "199 updates are counted")
    assert row is not None and row[1] > 190
    assert row[2] == 16384


def found(address: str, check: str, guard: SqlGuard | None = None) -> list[Finding]:
    findings = (guard or SqlGuard()).on(sql_doors.engine(address)).diagnose()
    assert not asyncio.iscoroutine(findings)
    return [finding for finding in findings if finding.check == check]


def severities(findings: list[Finding]) -> list[str]:
    for finding in findings:
        assert finding.where
        assert finding.message
    return [finding.severity for finding in findings]


def test_missing_tables_are_found(address: str) -> None:
    sql_doors.engine(address).connect().close()
    assert severities(found(address, "sql.tables")) == ["broken"] * 5
    create_all(sql_doors.engine(address))
    assert severities(found(address, "sql.tables")) == ["ok"] * 5
    assert (
        severities(found(address, "sql.tables", SqlGuard(schema="main" if "sqlite" in address else "public")))
        == ["ok"] * 5
    )


def test_an_application_that_may_idle_in_a_transaction_for_ever_is_found(pg_dsn: str) -> None:
    assert severities(found(pg_dsn, "sql.idle_in_transaction")) == ["warning"]
    limited = f"{pg_dsn}?options=-c%20idle_in_transaction_session_timeout%3D60s"
    assert severities(found(limited, "sql.idle_in_transaction")) == ["ok"]


@pytest.mark.parametrize("level", sql_doors.ISOLATION)
def test_what_the_isolation_level_means_is_told(pg_dsn: str, level: str) -> None:
    (finding,) = found(sql_doors.with_isolation(pg_dsn, level), "sql.isolation")
    assert level in finding.message
    assert ("ContentionError" in finding.message) == (level != "read committed")


@pytest.mark.parametrize("database", ["pg_dsn", "mariadb_bank"])
def test_a_clock_that_differs_from_this_machines_is_found(
    request: pytest.FixtureRequest, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = request.getfixturevalue(database)
    assert severities(found(address, "sql.clock")) == ["ok"]
    right = time.time
    for wrong in (3600, -3600):
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda by=wrong: right() + by)
            (finding,) = found(address, "sql.clock")
        assert finding.severity == "warning"
        told = re.search(r"clock is ([-+][\d.]+) s from", finding.message)
        assert told is not None
        assert abs(float(told[1]) + wrong) < 60


def test_unlogged_tables_are_found(pg_dsn: str) -> None:
    create_all(sql_doors.engine(pg_dsn))
    assert found(pg_dsn, "sql.logged") == []
    with psycopg.connect(pg_dsn, autocommit=True) as bare:
        bare.execute("alter table fencing_mark set unlogged")
    assert severities(found(pg_dsn, "sql.logged")) == ["broken"]


@pytest.fixture
def application(pg_dsn: str) -> Iterator[str]:
    """The database as a role without privileges sees it."""
    with psycopg.connect(pg_dsn, autocommit=True) as bare:
        bare.execute("create role fencing_application login")
        yield pg_dsn.replace("postgres@", "fencing_application@")
        bare.execute("drop owned by fencing_application; drop role fencing_application")


def test_missing_privileges_are_found(pg_dsn: str, application: str) -> None:
    create_all(sql_doors.engine(pg_dsn))
    said: list[list[str]] = []
    while wanted := found(application, "sql.privileges"):
        said.append(severities(wanted))
        with psycopg.connect(pg_dsn, autocommit=True) as bare:
            for one in wanted:
                assert one.remedy.startswith("grant ")
                bare.execute(f"{one.remedy.partition(' to the ')[0]} to fencing_application".encode())
    assert said == [["broken"] * 6 + ["warning"]]
    assert works(application)
    bind = sql_doors.engine(application)
    adopt(bind, "a", token(1, issuer="other"), "may be recorded")
    compact(bind, token(10), idle=0)
    with pytest.raises(errors.StaleTokenError, match="floor 10"):
        raise_fence(bind, "new", token=token(9))


def test_what_sqlite_is_set_to_is_told(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path / 'bank.db'}"
    create_all(sql_doors.engine(address))
    for check in ("sql.version", "sql.journal", "sql.busy_timeout"):
        assert severities(found(address, check)) == ["ok"]
    bind = sql_doors.engine(address, connect_args={"timeout": 0})
    sa.event.listen(bind, "connect", lambda raw, _: raw.execute("pragma journal_mode = off"))
    findings = {finding.check: finding.severity for finding in SqlGuard().on(bind).diagnose()}  # type: ignore[union-attr]
    assert (findings["sql.journal"], findings["sql.busy_timeout"]) == ("broken", "warning")


def test_every_kind_of_target_can_be_diagnosed(address: str) -> None:
    sql_doors.prepare(address)
    names = sql_doors.POSTGRESQL if address.startswith("postgresql") else sql_doors.SQLITE
    for name in names:
        door = sql_doors.Door(name, address, SqlGuard())
        if door.is_async:

            async def work(door: sql_doors.Door = door) -> list[Finding]:
                async with door.opened_async() as target:
                    return list(await door.options.on(target).adiagnose())  # type: ignore[union-attr]

            findings = asyncio.run(work())
        else:
            with door.opened() as target:
                findings = list(door.options.on(target).diagnose())  # type: ignore[union-attr]
        assert findings
        assert "broken" not in severities(findings)
