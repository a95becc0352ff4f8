"""The guard's tables: as SQLAlchemy metadata, as DDL text, and how they are made."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    Column,
    Connection,
    DateTime,
    Dialect,
    Engine,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    Text,
    TypeDecorator,
    event,
    func,
    select,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateIndex, CreateTable

_MYSQL = ("mysql", "mariadb")
_SCHEMA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)
_DIALECTS = ("postgresql", "sqlite", "mariadb", "mysql")


# Names compare by bytes on every database, as Python's sorted() does: the order in which all guards take their locks.
# On MariaDB and MySQL as bytes indeed: their collations pad or fold, or are not there on the other one.
class _Name(TypeDecorator[str]):
    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        if dialect.name == "postgresql":
            return postgresql.TEXT(collation="C")  # as it is: psycopg's dialect would make a VARCHAR of it
        return dialect.type_descriptor(mysql.VARBINARY(512) if dialect.name in _MYSQL else Text())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return value.encode() if value is not None and dialect.name in _MYSQL else value

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return value.decode() if isinstance(value, bytes) else value


ORIGIN = Text().with_variant(mysql.VARCHAR(64, charset="ascii", collation="ascii_bin"), *_MYSQL)
_WORD = Text().with_variant(mysql.VARCHAR(16, charset="ascii"), *_MYSQL)
FREE = Text().with_variant(mysql.LONGTEXT(charset="utf8mb4"), *_MYSQL)
_MOMENT = DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), *_MYSQL)
# Room on each page for the next version of a row: marks are rewritten by each write, and so stay off the index (HOT).
# As a statement of its own: SQLAlchemy 2.0 has no word for it in a Table.
_ROOM = "alter table {} set (fillfactor = 70)"
_ROOMY = ("fencing_mark", "fencing_applied")
_FILL_FLOOR = {
    "postgresql": "insert into {} (one, floors) values (1, '{{}}') on conflict do nothing",
    "sqlite": "insert or ignore into {} (one, floors) values (1, '{{}}')",
    "mysql": "insert ignore into {} (one, floors) values (1, '{{}}')",
}
_FILL_FLOOR["mariadb"] = _FILL_FLOOR["mysql"]
_FILL_HORIZON = {
    name: text.replace("(one, floors) values (1, '{{}}')", "(one) values (1)") for name, text in _FILL_FLOOR.items()
}
_FILLED = {"fencing_floor": _FILL_FLOOR, "fencing_horizon": _FILL_HORIZON}
"""The tables of one row, which must be there."""


def check_schema(schema: str | None) -> str | None:
    """Return the schema's name. Raises ``ValueError`` for one that would need quoting, ``TypeError`` for no text."""
    if schema is None:
        return None
    if not isinstance(schema, str):
        raise TypeError(f"schema= takes the name of a schema, not {type(schema).__name__}")
    if not _SCHEMA_NAME.fullmatch(schema):
        raise ValueError(f"schema= takes a name of letters, digits and _ (at most 63, no digit first), not {schema!r}")
    return schema


def _fill(table: Table, connection: Connection, **_: Any) -> None:
    full = connection.dialect.identifier_preparer.format_table(table)
    connection.exec_driver_sql(_FILLED[table.name][connection.dialect.name].format(full))


def tables(schema: str | None = None) -> MetaData:
    """Return metadata with the guard's tables in ``schema``, for Alembic or one's own queries.

    ``fencing_mark``: one row per resource, its newest token, who brought it and when (by the database's clock).
    ``fencing_floor``: one row, which must be there (Alembic does not make it): the floors that ``compact()`` set.
    ``fencing_act``: what persons did past the guard: adopted a resource, wrote unfenced, compacted; and refusals kept.
    ``fencing_applied``: one row per ``once=`` key: what the key stands for, the JSON result, and under which token it
    was applied, when, and when its work began, if somebody said.
    ``fencing_horizon``: one row, as in ``fencing_floor``: the moment before which records of applied effects were
    purged.
    """
    made = MetaData(schema=check_schema(schema))
    Table(
        "fencing_mark",
        made,
        Column("resource", _Name, primary_key=True),
        *_token_columns(),
        Column("marked_at", _MOMENT, nullable=False),
        Column("since", _MOMENT, nullable=False),
        # How often the mark was raised, by writes too. It is 1 in the transaction that made the mark, and only there.
        Column("raised", BigInteger, nullable=False),
        # The transaction that raised it last: what the triggers of a protected table look for.
        Column("tx", BigInteger),
        sqlite_with_rowid=False,
    )
    floor = Table(
        "fencing_floor",
        made,
        Column("one", SmallInteger, primary_key=True, autoincrement=False),
        # Of each issuer: the value below which a resource without a mark is refused. JSON.
        Column("floors", FREE, nullable=False),
        # 1 where a table is protected, on databases that cannot name a transaction: the guard then says which it is.
        Column("protecting", SmallInteger),
    )
    Table(
        "fencing_act",
        made,
        Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
        Column("kind", _WORD, nullable=False),
        Column("resource", _Name),
        Column("actor", FREE, nullable=False),
        Column("reason", FREE, nullable=False),
        Column("detail", FREE, nullable=False),
        Column("at", _MOMENT, nullable=False),
        Column("tx", BigInteger),
        Column("ended_at", _MOMENT),
        Index("fencing_act_kind", "kind", "tx"),
    )
    Table(
        "fencing_applied",
        made,
        Column("key", _Name, primary_key=True),
        Column("fingerprint", FREE, nullable=False),
        # Empty only while the effect runs, in the transaction that runs it.
        Column("result", FREE),
        # Which claim made the row, where the database cannot say whether it inserted it (MariaDB, MySQL).
        Column("claim", _WORD),
        *_token_columns(),
        Column("applied_at", _MOMENT, nullable=False),
        Column("began_at", _MOMENT),
        sqlite_with_rowid=False,
    )
    horizon = Table(
        "fencing_horizon",
        made,
        Column("one", SmallInteger, primary_key=True, autoincrement=False),
        # Empty: nothing was ever purged. It never goes back.
        Column("horizon", _MOMENT),
    )
    for name in _ROOMY:
        room = DDL(_ROOM.format("%(fullname)s"))  # type: ignore[no-untyped-call]
        event.listen(made.tables[_full(name, schema)], "after_create", room.execute_if(dialect="postgresql"))
    for one in (floor, horizon):
        event.listen(one, "after_create", _fill)
    return made


def _full(name: str, schema: str | None) -> str:
    return f"{schema}.{name}" if schema else name


def _token_columns() -> list[Column[Any]]:
    return [
        Column("issuer", ORIGIN, nullable=False),
        Column("lineage", ORIGIN, nullable=False),
        Column("value", BigInteger, nullable=False),
        Column("holder", FREE, nullable=False),
    ]


metadata = tables()
"""The tables in the connection's default schema."""


def ddl(dialect: str, schema: str | None = None) -> str:
    """Return the statements that create the tables, each ended by a semicolon.

    ``dialect``: ``"postgresql"``, ``"sqlite"``, ``"mariadb"`` or ``"mysql"``.

    Raises ``ValueError`` for another dialect.
    """
    if dialect not in _DIALECTS:
        raise ValueError(f"there is DDL for {' and '.join(_DIALECTS)}, not for {dialect!r}")
    known = make_url(f"{dialect}://").get_dialect()()
    made: list[str] = []
    for table in tables(schema).sorted_tables:
        made.append(str(CreateTable(table, if_not_exists=True).compile(dialect=known)).strip())
        made += [
            str(CreateIndex(index, if_not_exists=dialect != "mysql").compile(dialect=known)).strip()
            for index in table.indexes
        ]
        full = known.identifier_preparer.format_table(table)
        if dialect == "postgresql" and table.name in _ROOMY:
            made.append(_ROOM.format(full))
        if table.name in _FILLED:
            made.append(_FILLED[table.name][dialect].format(full))
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
    made = tables(schema)
    made.create_all(connection)
    # Also where the table was there: SQLite's driver commits DDL by itself, and may have committed nothing else.
    for name in _FILLED:
        _fill(made.tables[_full(name, schema)], connection)


def _is_async(bind: Any) -> bool:
    return hasattr(bind, "__aenter__")
