"""Plans over SQLAlchemy: connections and sessions, and their asyncio twins through ``run_sync``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine, ExceptionContext, event, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from adapters._tx._errors import reraise
from adapters._tx._plan import BeforeCommit, Plan, Rows, Statement
from adapters._tx._ports import nothing_holds, run

T = TypeVar("T")
Bind: TypeAlias = Engine | Connection | AsyncEngine | AsyncConnection
"""What a Session can be bound to, and ``bind=`` can name."""

DIALECTS = ("postgresql", "sqlite", "mysql", "mariadb")
_IN_TRANSACTION = 2  # libpq PQTRANS_INTRANS, the same number in psycopg 3 and psycopg2


class SqlalchemyTx:
    """The transaction of a Connection or Session. Nothing is sent, begun or checked out before the first use."""

    def __init__(
        self, handle: Any, source: Connection | Session, bind: Bind | None, read_only: bool, tables: str
    ) -> None:
        self.handle = handle
        self._source = source
        self._bind = source if isinstance(source, Connection) else session_bind(source, bind)
        self.dialect = dialect_of(self._bind)
        self._read_only = read_only
        self._tables = tables
        self._connection: Connection | None = None
        self._outer: tuple[Any, Any] = (None, None)
        self._ends = 0
        self._inside: Any = None

    @property
    def downstream(self) -> str:
        """``postgresql:NAME`` or ``sqlite:FILE``. Asked for when there is something to say."""
        return downstream_of(self._bind)

    def execute(self, statement: Statement) -> Rows:
        """Execute a statement; see :class:`SyncTx`."""
        connection = self._connection or self._enter()
        if isinstance(statement, BeforeCommit):
            _before_commit(connection, statement)
            return []
        try:
            sql = statement.sql
            if not isinstance(sql, str) or not sql.startswith("pragma"):  # which needs no transaction
                self._take_write_lock(connection)
            ends = connection.info.get(_ENDS, 0) if self.dialect == "mysql" else None
            if statement.params is None:
                result = connection.exec_driver_sql(sql, execution_options=_AS_IT_IS)
            else:
                known = _text(sql) if isinstance(sql, str) else sql
                result = connection.execute(known, statement.params, execution_options=_NO_STREAM)
            if ends is not None and ends == self._ends:  # an end that is only now heard of came before this statement
                self._ends = connection.info.get(_ENDS, 0)
            return [tuple(row) for row in result] if result.returns_rows else []
        except SQLAlchemyError as exc:
            reraise(exc, self.downstream, self._tables)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A savepoint by ``begin_nested``, so that a Session forgets what it undid."""
        connection = self._connection or self._enter()
        try:
            self._take_write_lock(connection)
        except SQLAlchemyError as exc:
            reraise(exc, self.downstream, self._tables)
        outside, failed = self._inside, None
        try:
            with self._source.begin_nested() as self._inside:
                self._checked_out()  # a Session sends the SAVEPOINT only once its connection is asked for
                try:
                    yield
                    # Left without an error though it was rolled back inside: begin_nested() would pass over that.
                    if not self._inside.is_active:
                        why = "the savepoint was rolled back inside its block; let it go on"
                        raise nothing_holds(self.downstream, why)  # noqa: TRY301
                except BaseException as exc:
                    failed = exc
                    raise
                finally:
                    self._inside = outside
        except SQLAlchemyError as exc:
            # The savepoint went with the transaction; the error of rolling back to it says nothing.
            if failed is None or exc is failed or not self._ended_by_server(connection):
                raise
            raise failed from failed.__cause__

    def still_open(self) -> bool:
        """Whether the transaction and savepoints that the writes went to are still there; see :class:`SyncTx`."""
        root, nested = self._outer
        if self._connection is None or root is None or self._connection.closed or self._connection.invalidated:
            return False
        if not all(one.is_active for one in (root, nested, self._inside) if one is not None):
            return False
        raw = self._connection.connection.driver_connection
        if self.dialect == "sqlite":
            return bool(getattr(raw, "in_transaction", True))
        if self.dialect == "mysql":
            # Whatever has begun since.
            return not self._ended_by_server(self._connection) and _is_in_transaction(raw)
        # A COMMIT sent as text, or a statement that failed, is known to libpq and not to SQLAlchemy.
        status = getattr(getattr(raw, "info", None), "transaction_status", _IN_TRANSACTION)
        return bool(status == _IN_TRANSACTION)

    def flush(self) -> None:
        """Send a Session's pending changes."""
        if isinstance(self._source, Session):
            self._source.flush()

    def _ended_by_server(self, connection: Connection) -> bool:
        """Whether MariaDB or MySQL has ended it: as a deadlock's victim, or by a statement that commits."""
        root = self._outer[0]
        if root is not None and connection.info.get(_ENDED) is root:
            return True
        return self.dialect == "mysql" and bool(connection.info.get(_ENDS, 0) != self._ends)

    def _enter(self) -> Connection:
        connection = self._checked_out()
        if not self._read_only:
            if _is_autocommit(connection):
                raise nothing_holds(
                    self.downstream,
                    'its isolation level is "AUTOCOMMIT"; use a connection with another isolation level',
                )
            if not connection.in_transaction():
                connection.begin()  # what SQLAlchemy's autobegin does at the first statement
            self._outer = (connection.get_transaction(), connection.get_nested_transaction())
            if self.dialect == "mysql":
                if not event.contains(connection.engine, "handle_error", _note_deadlock):
                    event.listen(connection.engine, "handle_error", _note_deadlock)
                    event.listen(connection.engine, "after_cursor_execute", _note_end)
                connection.info[_OPEN] = _is_in_transaction(connection.connection.driver_connection)
                self._ends = connection.info.get(_ENDS, 0)
        self._connection = connection
        return connection

    def _checked_out(self) -> Connection:
        if isinstance(self._source, Session):
            connection = self._source.connection(bind_arguments={"bind": _sync(self._bind)})
        else:
            connection = self._source
        if connection.closed or connection.invalidated:
            raise nothing_holds(self.downstream, "the connection is closed; open one and begin a transaction")
        return connection

    def _take_write_lock(self, connection: Connection) -> None:
        """On SQLite begin with the database's one write lock.

        The driver begins late and deferred: a transaction that reads and then writes cannot wait for the lock, it
        fails; and a SAVEPOINT that is sent outside a transaction commits when it is released.
        """
        if self.dialect != "sqlite" or self._read_only:
            return
        if not getattr(connection.connection.driver_connection, "in_transaction", True):
            connection.exec_driver_sql("begin immediate")


class AsyncSqlalchemyTx:
    """The transaction of an AsyncConnection or AsyncSession: the sync one, run by ``run_sync``."""

    def __init__(self, source: Any, sync: SqlalchemyTx) -> None:
        self._source = source
        self._sync = sync
        self.dialect = sync.dialect
        self.handle = sync.handle

    @property
    def downstream(self) -> str:
        """As :attr:`SqlalchemyTx.downstream`."""
        return self._sync.downstream

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan; see :class:`AsyncTx`."""
        result: T = await self._call(run, plan, self._sync)
        return result

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """As :meth:`SqlalchemyTx.savepoint`."""
        inner = self._sync.savepoint()
        await self._call(inner.__enter__)
        try:
            yield
        except BaseException as exc:
            await self._call(inner.__exit__, type(exc), exc, exc.__traceback__)
            raise
        await self._call(inner.__exit__, None, None, None)

    def still_open(self) -> bool:
        """As :meth:`SqlalchemyTx.still_open`."""
        return self._sync.still_open()

    async def flush(self) -> None:
        """Send a Session's pending changes."""
        await self._call(self._sync.flush)

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self._source.run_sync(lambda _: function(*args))


def sqlalchemy_tx(target: Any, bind: Bind | None, read_only: bool, tables: str) -> Any:
    """Return the transaction of a SQLAlchemy target, or None if it has none of its own (an Engine, a sessionmaker)."""
    source = target() if isinstance(target, scoped_session) else target
    if isinstance(source, Connection | Session):
        return SqlalchemyTx(target, source, bind, read_only, tables)
    if isinstance(source, async_scoped_session):
        source = source()
    if isinstance(source, AsyncSession):
        return AsyncSqlalchemyTx(source, SqlalchemyTx(target, source.sync_session, bind, read_only, tables))
    if isinstance(source, AsyncConnection):
        inner = source.sync_connection
        if inner is None:
            raise nothing_holds(
                "an AsyncConnection", "it was not started; use 'async with engine.begin() as connection'"
            )
        return AsyncSqlalchemyTx(source, SqlalchemyTx(target, inner, bind, read_only, tables))
    return None


def session_bind(session: Session, named: Bind | None) -> Engine | Connection:
    """Return the one bind whose database holds the marks. Raises ``TypeError`` if it is not clear which."""
    # Those of Session(binds={...}): SQLAlchemy 2.1 has a name for them, 2.0 a private one.
    several = getattr(session, "binds", getattr(session, "_Session__binds", None))
    routed = type(session).get_bind is not Session.get_bind or several is None
    binds = {id(one): one for one in (session.bind, *(several or {}).values()) if one is not None}
    if named is not None:
        chosen: Engine | Connection = _sync(named)
        if not routed and id(chosen) not in binds:
            raise TypeError(
                f"bind={named!r} is none of the session's binds, so its marks would not be in the session's transaction"
            )
        return chosen
    if routed or len(binds) != 1:
        what = "chooses its bind by itself (get_bind)" if routed else f"has {len(binds)} binds"
        raise TypeError(
            f"the session {what}, so which database's marks fence the write is not clear: "
            "name it, SqlGuard(bind=engine).on(session)"
        )
    only: Engine | Connection = next(iter(binds.values()))
    return only


def dialect_of(bind: Bind) -> str:
    """Return the dialect's name, for MariaDB MySQL's. Raises ``TypeError`` naming one that has no guard."""
    name = bind.dialect.name
    if name not in DIALECTS:
        raise TypeError(f"no SQL guard for the dialect {name!r}; there is one for {' and '.join(DIALECTS)}")
    return "mysql" if name == "mariadb" else name


def downstream_of(bind: Bind) -> str:
    """Return ``dialect:database``, without host, user or secrets."""
    url = (bind if isinstance(bind, Engine | AsyncEngine) else bind.engine).url
    place = (url.database or "").partition("?")[0]
    if url.get_backend_name() == "sqlite":
        return f"sqlite:{place or ':memory:'}"
    return f"{url.get_backend_name()}:{place}" if place else url.get_backend_name()


def _sync(bind: Any) -> Any:
    if isinstance(bind, AsyncEngine):
        return bind.sync_engine
    if isinstance(bind, AsyncConnection):
        if bind.sync_connection is None:
            raise TypeError("bind= names an AsyncConnection that was not started")
        return bind.sync_connection
    return bind


def _is_autocommit(connection: Connection) -> bool:
    level = connection.get_execution_options().get("isolation_level")
    if level is None:
        # create_engine(isolation_level=...) has no public accessor.
        level = getattr(connection.dialect, "_on_connect_isolation_level", None)
    if isinstance(level, str) and level.upper() == "AUTOCOMMIT":
        return True
    # Set on the driver's connection itself, behind SQLAlchemy's back. sqlite3's -1 is its legacy mode, which has
    # transactions. PyMySQL and asyncmy know it from the server's last word.
    if connection.dialect.name in _MYSQL:
        return bool(getattr(connection.connection.driver_connection, "get_autocommit", bool)())
    return getattr(connection.connection.dbapi_connection, "autocommit", False) is True


# A caller's streaming options on the connection would make a server-side cursor of the statement, which cannot write.
_NO_STREAM: dict[str, Any] = {"stream_results": False, "yield_per": None}

_MYSQL = ("mysql", "mariadb")
_MYSQL_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS of the protocol
_DEADLOCK = 1213
_ENDED = "fencing.ended"


def _note_deadlock(context: ExceptionContext) -> None:
    """Remember that MariaDB or MySQL has rolled back the whole transaction, and not the statement alone."""
    cause: Any = context.original_exception
    if context.connection is not None and cause.args and cause.args[0] == _DEADLOCK:
        context.connection.info[_ENDED] = context.connection.get_transaction()


_ENDS = "fencing.ends"
_OPEN = "fencing.open"


def _note_end(connection: Connection, *_: Any) -> None:
    """Count how often a statement of MariaDB or MySQL has ended the transaction that was open before it: DDL commits.

    The next one begins another transaction, which looks the same, and holds no fence.
    """
    info, is_open = connection.info, _is_in_transaction(connection.connection.driver_connection)
    if info.get(_OPEN) and not is_open:
        info[_ENDS] = info.get(_ENDS, 0) + 1
    info[_OPEN] = is_open


def _is_in_transaction(raw: Any) -> bool:
    """As the server said in its last answer, if the driver tells: asyncmy passes over the answer that it is not."""
    return bool(getattr(raw, "server_status", _MYSQL_IN_TRANSACTION) & _MYSQL_IN_TRANSACTION)


_AS_IT_IS: dict[str, Any] = {**_NO_STREAM, "no_parameters": True}
_PENDING = "fencing.before_commit"


def _before_commit(connection: Connection, statement: BeforeCommit) -> None:
    """Keep what is to be executed before the commit. What a rollback leaves behind is executed before the next one."""
    connection.info.setdefault(_PENDING, []).append(statement)
    if not event.contains(connection, "commit", _execute_pending):
        event.listen(connection, "commit", _execute_pending)


def _execute_pending(connection: Connection) -> None:
    # Not through the Connection, which is about to commit.
    cursor = connection.connection.cursor()
    try:
        for statement in connection.info.pop(_PENDING, []):
            cursor.execute(statement.sql, statement.params)
    finally:
        cursor.close()


_text = lru_cache(maxsize=512)(text)
