"""The guard's two tables: as SQLAlchemy metadata, as DDL text, and how they are made."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    MetaData,
    Table,
    Text,
    event,
    func,
    select,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateTable

_SCHEMA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)
_DIALECTS = ("postgresql", "sqlite")

# Names compare by bytes on every database, as Python's sorted() does: the order in which all guards take their locks.
_NAME = Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
# Room on each page for the next version of a row: marks are rewritten by each write, and so stay off the index (HOT).
# As a statement of its own: SQLAlchemy 2.0 has no word for it in a Table.
_ROOM = "alter table {} set (fillfactor = 70)"


def check_schema(schema: str | None) -> str | None:
    """Return the schema's name. Raises ``ValueError`` for one that would need quoting, ``TypeError`` for no text."""
    if schema is None:
        return None
    if not isinstance(schema, str):
        raise TypeError(f"schema= takes the name of a schema, not {type(schema).__name__}")
    if not _SCHEMA_NAME.fullmatch(schema):
        raise ValueError(f"schema= takes a name of letters, digits and _ (at most 63, no digit first), not {schema!r}")
    return schema


def tables(schema: str | None = None) -> MetaData:
    """Return metadata with ``fencing_mark`` and ``fencing_applied`` in ``schema``, for Alembic or one's own queries.

    ``fencing_mark``: one row per resource, its newest token, who brought it and when (by the database's clock).
    ``fencing_applied``: one row per ``once=`` key: what the key stands for, the JSON result, and under which token it
    was applied.
    """
    made = MetaData(schema=check_schema(schema))
    Table(
        "fencing_mark",
        made,
        Column("resource", _NAME, primary_key=True),
        *_token_columns(),
        Column("marked_at", DateTime(timezone=True), nullable=False),
        sqlite_with_rowid=False,
    )
    Table(
        "fencing_applied",
        made,
        Column("key", _NAME, primary_key=True),
        Column("fingerprint", Text, nullable=False),
        # Empty only while the effect runs, in the transaction that runs it.
        Column("result", Text),
        *_token_columns(),
        Column("applied_at", DateTime(timezone=True), nullable=False),
        sqlite_with_rowid=False,
    )
    for table in made.tables.values():
        room = DDL(_ROOM.format("%(fullname)s"))  # type: ignore[no-untyped-call]
        event.listen(table, "after_create", room.execute_if(dialect="postgresql"))
    return made


def _token_columns() -> list[Column[Any]]:
    return [
        Column("issuer", Text, nullable=False),
        Column("lineage", Text, nullable=False),
        Column("value", BigInteger, nullable=False),
        Column("holder", Text, nullable=False),
    ]


metadata = tables()
"""The tables in the connection's default schema."""


def ddl(dialect: str, schema: str | None = None) -> str:
    """Return the statements that create the tables, each ended by a semicolon, for ``"postgresql"`` or ``"sqlite"``.

    Raises ``ValueError`` for another dialect.
    """
    if dialect not in _DIALECTS:
        raise ValueError(f"there is DDL for {' and '.join(_DIALECTS)}, not for {dialect!r}")
    known = make_url(f"{dialect}://").get_dialect()()
    made: list[str] = []
    for table in tables(schema).sorted_tables:
        made.append(str(CreateTable(table, if_not_exists=True).compile(dialect=known)).strip())
        if dialect == "postgresql":
            made.append(_ROOM.format(known.identifier_preparer.format_table(table)))
    return "".join(f"{one};\n" for one in made)


def create_all(bind: Any, schema: str | None = None) -> None:
    """Create the tables that are missing, in ``schema`` (which must exist) or the connection's default one.

    ``bind``: a SQLAlchemy Engine (committed at once), Connection or Session (in the caller's transaction), or a psycopg
    Connection (in the transaction that is open there, else committed at once). An async one of SQLAlchemy runs it:
    ``await connection.run_sync(create_all)``. May be called by many processes at once; on SQLite the driver commits
    DDL by itself. Raises ``TypeError`` for any other bind.
    """
    if isinstance(bind, Engine):
        with bind.begin() as connection:
            _create(connection, schema)
    elif isinstance(bind, Connection):
        _create(bind, schema)
    elif isinstance(bind, Session):
        _create(bind.connection(), schema)
    elif callable(getattr(bind, "transaction", None)) and not _is_async(bind):
        with bind.transaction():
            bind.execute(f"select pg_advisory_xact_lock({_LOCK})")
            bind.execute(ddl("postgresql", schema))
    else:
        raise TypeError(
            "create_all() takes an Engine, Connection or Session of SQLAlchemy or a Connection of psycopg, not "
            f"{type(bind).__qualname__}; for an async one: await connection.run_sync(create_all)"
        )


# Two "create table if not exists" at once can collide in PostgreSQL's catalog. Any number will do if all take the same.
_LOCK = 0x66656E63696E67


def _create(connection: Connection, schema: str | None) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    tables(schema).create_all(connection)


def _is_async(bind: Any) -> bool:
    return hasattr(bind, "__aenter__")
