"""Every kind of connection, session and engine that a fenced SQL write can go through, behind one face: a door."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from adapters.sql import SqlGuard, create_all
from fencing import Mark, Token, fenced_write, raise_fence, read_mark
from scheduler.console.embedded import Postgres

PUT = "insert into ledger (id, owner) values (:id, :owner) on conflict (id) do update set owner = excluded.owner"
ISOLATION = ("read committed", "repeatable read", "serializable")
ALIKE = ("psycopg", "connection", "session", "scoped", "engine", "sessionmaker")
POSTGRESQL = tuple(
    f"postgresql/{name}{twin}" for name in ALIKE for twin in ("", "-async") if name + twin != "scoped-async"
)
SQLITE = tuple(name.replace("postgresql", "sqlite") for name in POSTGRESQL if "psycopg" not in name)
# MariaDB through PyMySQL and asyncmy.
MYSQL = ("mysql/connection", "mysql/session", "mysql/engine", "mysql/sessionmaker-async")
DOORS = POSTGRESQL + SQLITE + MYSQL


def token(value: int, lineage: str = "line-a", issuer: str = "shop") -> Token:
    return Token(value, issuer, lineage)


def sync_url(address: str) -> str:
    return re.sub(r"^postgresql://", "postgresql+psycopg://", address)


def async_url(address: str) -> str:
    return sync_url(address).replace("sqlite://", "sqlite+aiosqlite://").replace("+pymysql:", "+asyncmy:")


def with_isolation(address: str, level: str) -> str:
    """The same database, with another default isolation level for each connection."""
    escaped = level.replace(" ", "\\ ")
    setting = f"-c default_transaction_isolation={escaped}"
    return f"{address}?options={quote(setting)}"


def prepare(address: str) -> None:
    """Creates the guard's tables and the ledger that the tests write to."""
    with engine(address).begin() as connection:
        create_all(connection)
        words = " collate utf8mb4_bin" if address.startswith("mysql") else ""
        connection.execute(sa.text(f"create table ledger (id varchar(600){words} primary key, owner bigint not null)"))


@contextmanager
def postgresql_bank(server: Postgres, name: str) -> Iterator[str]:
    """A PostgreSQL database with the tables, to be shared by tests that call :func:`empty` first."""
    address = server.create_database(name)
    try:
        prepare(address)
        yield address
    finally:
        server.drop_database(name)


def empty(address: str) -> str:
    """Empties a shared PostgreSQL database, whatever an earlier test left open in it."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"
        )
        connection.execute("truncate ledger, fencing_mark, fencing_applied")
        connection.execute("update fencing_horizon set horizon = null")
    return address


@lru_cache(maxsize=16)
def _mysql_engine(address: str) -> sa.Engine:
    # One for all: each new one asks the server five questions first.
    return sa.create_engine(address, poolclass=NullPool)


def empty_mysql(address: str) -> str:
    """Empties a shared MariaDB database, whatever an earlier test left open in it."""
    with engine(address, isolation_level="AUTOCOMMIT").connect() as connection:
        others = "select id from information_schema.processlist where db = database() and id <> connection_id()"
        for number in connection.execute(sa.text(others)).scalars():
            with contextlib.suppress(sa.exc.DBAPIError):  # it has gone by itself
                connection.execute(sa.text(f"kill {number}"))
        for table in ("ledger", "fencing_mark", "fencing_applied", "fencing_act"):
            connection.execute(sa.text(f"delete from {table}"))
        connection.execute(sa.text("update fencing_horizon set horizon = null"))
    return address


def engine(address: str, **options: Any) -> sa.Engine:
    if address.startswith("mysql") and not options:
        return _mysql_engine(address)
    return sa.create_engine(sync_url(address), poolclass=NullPool, **options)


def do(handle: Any, sql: str, **params: Any) -> Any:
    """Executes on whatever handle the door gave; a coroutine for an async one."""
    if isinstance(handle, psycopg.Connection | psycopg.AsyncConnection):
        return handle.execute(re.sub(r":(\w+)", r"%(\1)s", sql), params)
    if "on conflict" in sql and dialect(handle) in ("mysql", "mariadb"):
        sql = sql.replace("on conflict (id) do update set", "on duplicate key update").replace(
            "excluded.owner", "values(owner)"
        )
    return handle.execute(sa.text(sql), params)


def dialect(handle: Any) -> str:
    """The name of the database's dialect."""
    bind = handle if hasattr(handle, "dialect") else handle.get_bind()
    return str(bind.dialect.name)


@dataclass
class Door:
    """One kind of target on one database. Each call opens it anew, and commits."""

    name: str
    address: str
    options: SqlGuard

    @property
    def kind(self) -> str:
        return self.name.partition("/")[2].removesuffix("-async")

    @property
    def is_async(self) -> bool:
        return self.name.endswith("-async")

    @property
    def is_own(self) -> bool:
        """Whether the target opens and commits its transactions by itself."""
        return self.kind in ("engine", "sessionmaker")

    def write(self, *resources: str, token: Token, sql: str = PUT, **params: Any) -> None:
        """A fenced write of ``ledger[resource] = token`` in the ``with`` form (or in the only one there is)."""
        params = params or {"id": resources[0], "owner": token.value}
        if self.is_own:
            self.apply(*resources, token=token, effect=lambda handle: do(handle, sql, **params))
        elif self.is_async:

            async def work() -> None:
                async with self.opened_async() as target:
                    async with fenced_write(self.options.on(target), *resources, token=token) as handle:
                        await do(handle, sql, **params)

            asyncio.run(work())
        else:
            with self.opened() as target:
                with fenced_write(self.options.on(target), *resources, token=token) as handle:
                    do(handle, sql, **params)

    def apply(self, *resources: str, token: Token, effect: Callable[[Any], Any], **once: Any) -> Any:
        """The effect form. ``effect`` may return a coroutine for an async door, or not."""
        if not self.is_async:
            with self.opened() as target:
                return fenced_write(self.options.on(target), *resources, effect=effect, token=token, **once)

        async def awaited(handle: Any) -> Any:
            result = effect(handle)
            return await result if asyncio.iscoroutine(result) else result

        async def work() -> Any:
            async with self.opened_async() as target:
                return await fenced_write(self.options.on(target), *resources, effect=awaited, token=token, **once)

        return asyncio.run(work())

    def raise_fence(self, *resources: str, token: Token) -> None:
        self._call(lambda target: raise_fence(self.options.on(target), *resources, token=token))

    def mark(self, resource: str) -> Mark | None:
        found: Mark | None = self._call(lambda target: read_mark(self.options.on(target), resource))
        return found

    def _call(self, function: Callable[[Any], Any]) -> Any:
        if not self.is_async:
            with self.opened() as target:
                return function(target)

        async def work() -> Any:
            async with self.opened_async() as target:
                return await function(target)

        return asyncio.run(work())

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """The sync target, in a transaction that is committed at the end."""
        if self.kind == "psycopg":
            with psycopg.connect(self.address, autocommit=True) as connection, connection.transaction():
                yield connection
            return
        bind = engine(self.address)
        if self.kind == "engine":
            yield bind
        elif self.kind == "sessionmaker":
            yield sessionmaker(bind)
        elif self.kind == "connection":
            with bind.begin() as connection:
                yield connection
        elif self.kind == "session":
            with Session(bind) as session, session.begin():
                yield session
        else:
            scoped = scoped_session(sessionmaker(bind))
            try:
                yield scoped
                scoped.commit()
            finally:
                scoped.remove()

    @asynccontextmanager
    async def opened_async(self) -> AsyncIterator[Any]:
        """The async target, in a transaction that is committed at the end."""
        if self.kind == "psycopg":
            async with await psycopg.AsyncConnection.connect(self.address, autocommit=True) as connection:
                async with connection.transaction():
                    yield connection
            return
        bind = create_async_engine(async_url(self.address), poolclass=NullPool)
        try:
            if self.kind == "engine":
                yield bind
            elif self.kind == "sessionmaker":
                yield async_sessionmaker(bind)
            elif self.kind == "connection":
                async with bind.begin() as connection:
                    yield connection
            else:
                async with AsyncSession(bind) as session, session.begin():
                    yield session
        finally:
            await bind.dispose()


def ledger(address: str) -> dict[str, int]:
    """What the ledger holds, read past every guard."""
    with engine(address).connect() as connection:
        return {row.id: row.owner for row in connection.execute(sa.text("select id, owner from ledger"))}


def marks(address: str) -> dict[str, str]:
    """The marks as text, read past every guard."""
    with engine(address).connect() as connection:
        rows = connection.execute(sa.text("select resource, issuer, lineage, value from fencing_mark"))
        return {_text(row.resource): str(Token(row.value, row.issuer, row.lineage)) for row in rows}


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
