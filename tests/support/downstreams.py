"""Our own adapters as the kit sees them: one small class for each way in."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
import redis.asyncio
import sqlalchemy as sa
import sqlalchemy.dialects.mysql
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from adapters._tx import retryable
from adapters.redis import RedisGuard, redis_key
from adapters.redis._keys import mark_key
from adapters.sql import SqlGuard, compact, create_all
from fencing import Token, errors
from fencing.testing import AsyncMemoryGuard, Capability, Downstream, MemoryDownstream, RecordingDownstream
from support.proxy import Proxy
from support.sql_doors import dialect

METADATA = sa.MetaData()
NAME = sa.Text().with_variant(sa.dialects.mysql.VARCHAR(512, charset="utf8mb4", collation="utf8mb4_nopad_bin"), "mysql")
VALUES = sa.Table("kit_value", METADATA, sa.Column("resource", NAME, primary_key=True), sa.Column("value", sa.Text))

# Two workers of an example are one thread: who waits for the other waits in vain, so not for long.
LOCK_TIMEOUT = 0.01
OPTIONS = f"options=-c%20lock_timeout%3D{LOCK_TIMEOUT * 1000:.0f}%20-c%20synchronous_commit%3Doff"

WRITE = "insert into kit_value values (:resource, :value) on conflict (resource) do update set value = excluded.value"
WRITES = dict.fromkeys(
    ("mysql", "mariadb"),
    "insert into kit_value values (:resource, :value) on duplicate key update value = values(value)",
)
READ = "select value from kit_value where resource = :resource"
DELETE = "delete from kit_value where resource = :resource"
LOSE = "delete from fencing_mark where resource = :resource"
EMPTY = (
    "delete from kit_value",
    "delete from fencing_mark",
    "delete from fencing_applied",
    "update fencing_floor set floors = '{}'",
)
FAR = frozenset({Capability.LOSE_REPLY})
"""Only where there is a network between."""


def sqlalchemy_url(place: str | Path, driver: str = "psycopg") -> str:
    """A database's address for SQLAlchemy; a path is SQLite. Nothing here is about surviving a crash of the server."""
    if isinstance(place, Path):
        return f"sqlite+{driver}:///{place}" if driver != "psycopg" else f"sqlite:///{place}"
    if place.startswith("mysql"):
        return place.replace("+pymysql:", "+asyncmy:") if driver == "asyncmy" else place
    return f"postgresql+psycopg{place.removeprefix('postgresql')}?{OPTIONS}"


class Far:
    """Another way to a server, on which the answers to some requests get lost when that is wanted."""

    def __init__(self, address: str, marker: bytes) -> None:
        self._address = address
        self._marker = marker
        self._proxy: Proxy | None = None
        self.lossy = False

    @property
    def address(self) -> str:
        """The server's, by this way."""
        parts = sa.make_url(self._address)
        if self._proxy is None:
            assert parts.port is not None
            self._proxy = Proxy(parts.port)
        return parts.set(host="127.0.0.1", port=self._proxy.port).render_as_string(hide_password=False)

    @contextlib.contextmanager
    def losing(self, times: int) -> Iterator[None]:
        """Lose so many answers."""
        assert self.address and self._proxy is not None
        self._proxy.lose_reply(self._marker, times)
        self.lossy = True
        try:
            yield
        finally:
            self.lossy = False
            self._proxy.forget()

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """A commit whose answer was lost is unknown: the transaction was the caller's, and so is its end."""
        try:
            yield
        except (sa.exc.OperationalError, psycopg.OperationalError) as exc:
            if not self.lossy:
                raise
            raise errors.OutcomeUnknownError("the answer to the commit was lost") from exc

    def close(self) -> None:
        """Close it."""
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None


def prepare(place: str | Path) -> None:
    """Make the tables."""
    engine = sa.create_engine(sqlalchemy_url(place))
    with engine.begin() as connection:
        create_all(connection)
        METADATA.create_all(connection)
    if isinstance(place, Path):
        with engine.connect() as connection:
            connection.exec_driver_sql("pragma journal_mode = wal")
    engine.dispose()


class SqlDownstream(Downstream):
    """A database through SQLAlchemy: ``begin`` makes the transaction whose connection or session is the target."""

    def __init__(
        self,
        name: str,
        place: str | Path,
        begin: Callable[[sa.Engine], Any] = sa.Engine.begin,
        **options: Any,
    ) -> None:
        self.name = name
        self.capabilities = frozenset(Capability) - (FAR if isinstance(place, Path) else frozenset())
        self._begin = begin
        self._guard = SqlGuard()
        prepare(place)
        self._engine = sa.create_engine(sqlalchemy_url(place), connect_args=_local(place), **options)
        _do_not_sync(self._engine)
        self._far = Far(sqlalchemy_url(place), b"COMMIT")
        self._options = options
        self._far_engine: sa.Engine | None = None

    def fresh(self, on_missing: Any) -> None:
        self._guard = SqlGuard(on_missing=on_missing, lock_timeout=LOCK_TIMEOUT)
        with self._engine.begin() as connection:
            for statement in EMPTY:
                connection.exec_driver_sql(statement)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        engine = self._far_engine if self._far.lossy and self._far_engine is not None else self._engine
        with self._far.told(), retryable(self.name), self._begin(engine) as target:
            yield self._guard.on(target)

    @contextlib.contextmanager
    def losing_replies(self, times: int) -> Iterator[None]:
        if self._far_engine is None:
            self._far_engine = sa.create_engine(self._far.address, poolclass=NullPool, **self._options)
        with self._far.losing(times):
            yield

    def compact(self, below: Token) -> None:
        compact(self._guard.on(self._engine), below, idle=0)

    def write(self, handle: Any, resource: str, value: str) -> None:
        handle.execute(sa.text(WRITES.get(dialect(handle), WRITE)), {"resource": resource, "value": value})

    def read(self, handle: Any, resource: str) -> Any:
        return handle.execute(sa.text(READ), {"resource": resource}).scalar()

    def delete(self, handle: Any, resource: str) -> None:
        handle.execute(sa.text(DELETE), {"resource": resource})

    def look(self, resource: str) -> Any:
        with self._engine.connect() as connection:
            return self.read(connection, resource)

    def lose(self, resource: str) -> None:
        with self._engine.begin() as connection:
            connection.execute(sa.text(LOSE), {"resource": resource})

    def reopen(self) -> None:
        self._engine.dispose()

    def dispose(self) -> None:
        self._engine.dispose()
        self._far.close()


def begin_session(engine: sa.Engine) -> Any:
    """A transaction of a Session."""
    return sessionmaker(engine).begin()


class AsyncSqlDownstream(Downstream):
    """The same for asyncio."""

    def __init__(
        self,
        name: str,
        place: str | Path,
        begin: Callable[[AsyncEngine], Any] = AsyncEngine.begin,
        driver: str = "psycopg",
    ) -> None:
        self.name = name
        self.capabilities = (
            frozenset(Capability) - {Capability.THREADS} - (FAR if isinstance(place, Path) else frozenset())
        )
        self._begin = begin
        self._guard = SqlGuard()
        prepare(place)
        self._engine = create_async_engine(sqlalchemy_url(place, driver), connect_args=_local(place))
        _do_not_sync(self._engine.sync_engine)
        self._far = Far(sqlalchemy_url(place, driver), b"COMMIT")

    async def fresh(self, on_missing: Any) -> None:
        self._guard = SqlGuard(on_missing=on_missing, lock_timeout=LOCK_TIMEOUT)
        async with self._engine.begin() as connection:
            for statement in EMPTY:
                await connection.exec_driver_sql(statement)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        engine = create_async_engine(self._far.address, poolclass=NullPool) if self._far.lossy else self._engine
        with self._far.told(), retryable(self.name):
            async with self._begin(engine) as target:
                yield self._guard.on(target)

    @contextlib.contextmanager
    def losing_replies(self, times: int) -> Iterator[None]:
        with self._far.losing(times):
            yield

    async def compact(self, below: Token) -> None:
        await compact(self._guard.on(self._engine), below, idle=0)

    async def write(self, handle: Any, resource: str, value: str) -> None:
        await handle.execute(sa.text(WRITES.get(dialect(handle), WRITE)), {"resource": resource, "value": value})

    async def read(self, handle: Any, resource: str) -> Any:
        return (await handle.execute(sa.text(READ), {"resource": resource})).scalar()

    async def delete(self, handle: Any, resource: str) -> None:
        await handle.execute(sa.text(DELETE), {"resource": resource})

    async def look(self, resource: str) -> Any:
        async with self._engine.connect() as connection:
            return await self.read(connection, resource)

    async def lose(self, resource: str) -> None:
        async with self._engine.begin() as connection:
            await connection.execute(sa.text(LOSE), {"resource": resource})

    async def reopen(self) -> None:
        await self._engine.dispose()

    async def close(self) -> None:
        await self._engine.dispose()

    def dispose(self) -> None:
        """Its connections belong to an event loop, and are closed with the example."""
        self._far.close()


def begin_async_session(engine: AsyncEngine) -> Any:
    """A transaction of an AsyncSession."""
    return async_sessionmaker(engine).begin()


class PsycopgDownstream(Downstream):
    """PostgreSQL through psycopg's own connections."""

    name = "PostgreSQL, psycopg"
    capabilities = frozenset(Capability)

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._guard = SqlGuard()
        self._idle: list[psycopg.Connection[Any]] = []
        self._far = Far(dsn, b"COMMIT")
        prepare(dsn)

    def fresh(self, on_missing: Any) -> None:
        self._guard = SqlGuard(on_missing=on_missing, lock_timeout=LOCK_TIMEOUT)
        with self._connection() as connection, connection.transaction():
            for statement in EMPTY:
                connection.execute(statement.encode())

    @contextlib.contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        try:
            connection = self._idle.pop()
        except IndexError:  # asked for, not looked at before: several threads take connections at once
            connection = psycopg.connect(f"{self.dsn}?{OPTIONS}", autocommit=True)
        try:
            yield connection
        finally:
            self._idle.append(connection)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        door = self._connection
        if self._far.lossy:
            door = lambda: psycopg.connect(f"{self._far.address}?{OPTIONS}", autocommit=True)  # noqa: E731
        with self._far.told(), retryable(self.name), door() as connection, connection.transaction():
            yield self._guard.on(connection)

    @contextlib.contextmanager
    def losing_replies(self, times: int) -> Iterator[None]:
        with self._far.losing(times):
            yield

    def compact(self, below: Token) -> None:
        with self._connection() as connection, connection.transaction():
            compact(self._guard.on(connection), below, idle=0)

    def write(self, handle: Any, resource: str, value: str) -> None:
        handle.execute(_pyformat(WRITE), {"resource": resource, "value": value})

    def read(self, handle: Any, resource: str) -> Any:
        row = handle.execute(_pyformat(READ), {"resource": resource}).fetchone()
        return row and row[0]

    def delete(self, handle: Any, resource: str) -> None:
        handle.execute(_pyformat(DELETE), {"resource": resource})

    def look(self, resource: str) -> Any:
        with self._connection() as connection:
            return self.read(connection, resource)

    def lose(self, resource: str) -> None:
        with self._connection() as connection:
            connection.execute(_pyformat(LOSE), {"resource": resource})

    def reopen(self) -> None:
        self.dispose()

    def dispose(self) -> None:
        while self._idle:
            self._idle.pop().close()
        self._far.close()


class AsyncPsycopgDownstream(Downstream):
    """PostgreSQL through psycopg's own asynchronous connections."""

    name = "PostgreSQL, psycopg, async"
    capabilities = frozenset(Capability) - {Capability.THREADS}

    def __init__(self, dsn: str) -> None:
        self._dsn = f"{dsn}?{OPTIONS}"
        self._far = Far(dsn, b"COMMIT")
        self._guard = SqlGuard()
        self._idle: list[psycopg.AsyncConnection[Any]] = []
        prepare(dsn)

    async def fresh(self, on_missing: Any) -> None:
        self._guard = SqlGuard(on_missing=on_missing, lock_timeout=LOCK_TIMEOUT)
        async with self._connection() as connection, connection.transaction():
            for statement in EMPTY:
                await connection.execute(statement.encode())

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        if self._idle:
            connection = self._idle.pop()
        else:
            connection = await psycopg.AsyncConnection.connect(self._dsn, autocommit=True)
        try:
            yield connection
        finally:
            self._idle.append(connection)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        with self._far.told(), retryable(self.name):
            if self._far.lossy:
                far = await psycopg.AsyncConnection.connect(f"{self._far.address}?{OPTIONS}", autocommit=True)
                async with far, far.transaction():
                    yield self._guard.on(far)
                return
            async with self._connection() as connection, connection.transaction():
                yield self._guard.on(connection)

    @contextlib.contextmanager
    def losing_replies(self, times: int) -> Iterator[None]:
        with self._far.losing(times):
            yield

    async def compact(self, below: Token) -> None:
        async with self._connection() as connection, connection.transaction():
            await compact(self._guard.on(connection), below, idle=0)

    async def write(self, handle: Any, resource: str, value: str) -> None:
        await handle.execute(_pyformat(WRITE), {"resource": resource, "value": value})

    async def read(self, handle: Any, resource: str) -> Any:
        row = await (await handle.execute(_pyformat(READ), {"resource": resource})).fetchone()
        return row and row[0]

    async def delete(self, handle: Any, resource: str) -> None:
        await handle.execute(_pyformat(DELETE), {"resource": resource})

    async def look(self, resource: str) -> Any:
        async with self._connection() as connection:
            return await self.read(connection, resource)

    async def lose(self, resource: str) -> None:
        async with self._connection() as connection:
            await connection.execute(_pyformat(LOSE), {"resource": resource})

    async def reopen(self) -> None:
        await self.close()

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()

    def dispose(self) -> None:
        """Its connections belong to an event loop, and are closed with the example."""
        self._far.close()


class AsyncMemoryDownstream(MemoryDownstream):
    """The model guard through the asynchronous port, which has no ``apply`` and so no ``once=``."""

    name = "memory, async"
    capabilities = MemoryDownstream.capabilities - {Capability.ONCE}

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        with super().transaction() as guard:
            yield AsyncMemoryGuard(guard)


REDIS = frozenset(Capability) - {Capability.ROLLBACK, Capability.ONCE, Capability.COMPACT}


class RedisDownstream(Downstream):
    """Redis or Valkey through a blocking client."""

    name = "Valkey"
    capabilities = REDIS

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, decode_responses=True)
        self._guard: Any = RedisGuard(self._client)
        self._far = Far(url, b"EVALSHA")
        self._far_client: redis.Redis | None = None
        self._far_guard: Any = None

    def fresh(self, on_missing: Any) -> None:
        self._client.flushdb()
        self._guard = RedisGuard(self._client, on_missing=on_missing)
        self._far_client = self._far_client or redis.Redis.from_url(self._far.address, decode_responses=True)
        self._far_guard = RedisGuard(self._far_client, on_missing=on_missing)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        yield self._far_guard if self._far.lossy else self._guard

    @contextlib.contextmanager
    def losing_replies(self, times: int) -> Iterator[None]:
        with self._far.losing(times):
            yield

    def write(self, handle: Any, resource: str, value: str) -> None:
        handle.set(redis_key(resource, "value"), value)

    def read(self, handle: Any, resource: str) -> Any:
        reply = handle.get(redis_key(resource, "value"))
        return lambda: reply.value

    def delete(self, handle: Any, resource: str) -> None:
        handle.delete(redis_key(resource, "value"))

    def look(self, resource: str) -> Any:
        return self._client.get(redis_key(resource, "value"))

    def lose(self, resource: str) -> None:
        self._client.delete(mark_key(resource))

    def reopen(self) -> None:
        self._client.connection_pool.disconnect()

    def dispose(self) -> None:
        self._client.close()
        if self._far_client is not None:
            self._far_client.close()
        self._far.close()


class AsyncRedisDownstream(Downstream):
    """Redis or Valkey through an asyncio client."""

    name = "Valkey, async"
    capabilities = REDIS - {Capability.THREADS}

    def __init__(self, url: str) -> None:
        self._client: Any = redis.asyncio.Redis.from_url(url, decode_responses=True)
        self._guard: Any = RedisGuard(self._client)
        self._far = Far(url, b"EVALSHA")
        self._far_client: Any = redis.asyncio.Redis.from_url(self._far.address, decode_responses=True)
        self._far_guard: Any = None

    async def fresh(self, on_missing: Any) -> None:
        await self._client.flushdb()
        self._guard = RedisGuard(self._client, on_missing=on_missing)
        self._far_guard = RedisGuard(self._far_client, on_missing=on_missing)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        yield self._far_guard if self._far.lossy else self._guard

    @contextlib.contextmanager
    def losing_replies(self, times: int) -> Iterator[None]:
        with self._far.losing(times):
            yield

    def write(self, handle: Any, resource: str, value: str) -> None:
        handle.set(redis_key(resource, "value"), value)

    def read(self, handle: Any, resource: str) -> Any:
        reply = handle.get(redis_key(resource, "value"))
        return lambda: reply.value

    def delete(self, handle: Any, resource: str) -> None:
        handle.delete(redis_key(resource, "value"))

    def look(self, resource: str) -> Any:
        return self._client.get(redis_key(resource, "value"))

    async def lose(self, resource: str) -> None:
        await self._client.delete(mark_key(resource))

    async def reopen(self) -> None:
        await self._client.connection_pool.disconnect()

    async def close(self) -> None:
        await self._client.aclose()
        await self._far_client.aclose()

    def dispose(self) -> None:
        """Its connections belong to an event loop, and are closed with the example."""
        self._far.close()


def _do_not_sync(engine: sa.Engine) -> None:
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", lambda connection, _: connection.execute("pragma synchronous = off"))


def _local(place: str | Path) -> dict[str, Any]:
    return {"timeout": 5} if isinstance(place, Path) else {}


def _pyformat(sql: str) -> bytes:
    return sql.replace(":resource", "%(resource)s").replace(":value", "%(value)s").encode()


MEMORY: dict[str, Callable[[], Any]] = {
    "memory": MemoryDownstream,
    "memory-async": AsyncMemoryDownstream,
    "memory-recording": RecordingDownstream,
}
SQLITE: dict[str, Callable[[Path], Any]] = {
    "sqlite-connection": lambda file: SqlDownstream("SQLite, Connection", file),
    "sqlite-session": lambda file: SqlDownstream("SQLite, Session", file, begin_session),
    "sqlite-async": lambda file: AsyncSqlDownstream("SQLite, AsyncConnection", file, driver="aiosqlite"),
}
POSTGRESQL: dict[str, Callable[[str], Any]] = {
    "postgresql-connection": lambda dsn: SqlDownstream("PostgreSQL, Connection", dsn),
    "postgresql-session": lambda dsn: SqlDownstream("PostgreSQL, Session", dsn, begin_session),
    "postgresql-psycopg": PsycopgDownstream,
    "postgresql-async-connection": lambda dsn: AsyncSqlDownstream("PostgreSQL, AsyncConnection", dsn),
    "postgresql-async-session": lambda dsn: AsyncSqlDownstream("PostgreSQL, AsyncSession", dsn, begin_async_session),
    "postgresql-async-psycopg": AsyncPsycopgDownstream,
}
# At the stricter isolation levels too, for the state machine.
STRICTER: dict[str, Callable[[str], Any]] = {
    f"postgresql {level}": lambda dsn, level=level: SqlDownstream(f"PostgreSQL, {level}", dsn, isolation_level=level)
    for level in ("REPEATABLE READ", "SERIALIZABLE")
}
MYSQL: dict[str, Callable[[str], Any]] = {
    "mysql-connection": lambda url: SqlDownstream("MariaDB, Connection", url),
    "mysql-async-session": lambda url: AsyncSqlDownstream("MariaDB, AsyncSession", url, begin_async_session, "asyncmy"),
}
MYSQL_LEVELS: dict[str, Callable[[str], Any]] = {
    f"mysql {level}": lambda url, level=level: SqlDownstream(f"MariaDB, {level}", url, isolation_level=level)
    for level in ("READ COMMITTED", "SERIALIZABLE")
}
VALKEY: dict[str, Callable[[str], Any]] = {"valkey": RedisDownstream, "valkey-async": AsyncRedisDownstream}
NAMES = (*MEMORY, *SQLITE, *POSTGRESQL, *VALKEY, *MYSQL)


@contextlib.contextmanager
def downstream(name: str, request: pytest.FixtureRequest, directory: Path) -> Iterator[Downstream]:
    """One of them, on a server of the run that is started only if it is needed, and a database of its own."""
    if name in MEMORY:
        yield MEMORY[name]()
        return
    with contextlib.ExitStack() as stack:
        if name in SQLITE:
            made = SQLITE[name](directory / f"{name}.db")
        elif name in VALKEY:
            made = VALKEY[name](request.getfixturevalue("valkey").url)
        else:
            makers = {**POSTGRESQL, **STRICTER, **MYSQL, **MYSQL_LEVELS}
            kind = "mariadb" if name.startswith("mysql") else "postgres"
            server, database = request.getfixturevalue(kind), next(request.getfixturevalue("pg_names"))
            stack.callback(server.drop_database, database)
            made = makers[name](server.create_database(database))
        stack.callback(made.dispose)
        yield made
