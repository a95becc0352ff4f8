"""Plans over psycopg 3 connections, sync and async."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache, partial
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from adapters._tx._errors import SQL_TABLES, reraise
from adapters._tx._late import CAN_BE_LATE, Late, Naming, late_cursor
from adapters._tx._plan import Plan, Rows, Statement, encoded, to_pyformat
from adapters._tx._ports import nothing_holds

T = TypeVar("T")
# Plain numbers: each write compares them.
_OFF = int(PipelineStatus.OFF)
_IDLE, _INTRANS, _INERROR = map(int, (TransactionStatus.IDLE, TransactionStatus.INTRANS, TransactionStatus.INERROR))
_HOW = "use 'with connection.transaction():' around the write"


class _PsycopgBase:
    """What needs no round trip, the same for both."""

    __slots__ = ("_entered", "_level", "_read_only", "_tables", "handle")
    dialect = "postgresql"
    certain = True
    """Whether every target of the type has a guard: there is no dialect or bind that could be refused."""

    def __init__(self, handle: Any, read_only: bool = False, tables: str = SQL_TABLES) -> None:
        self.handle = handle
        self._read_only = read_only
        self._tables = tables
        self._level = 0
        self._entered = False

    @property
    def downstream(self) -> str:
        """``postgresql:NAME``. Asked for when there is something to say."""
        try:
            return f"postgresql:{self.handle.info.dbname}"
        except psycopg.OperationalError:  # a closed connection has forgotten it
            return "postgresql"

    def still_open(self) -> bool:
        """Whether the transaction block and savepoint of the first use are still there; see :class:`SyncTx`."""
        handle = self.handle
        if not self._entered or _open_blocks(handle) < self._level:
            return False
        pgconn = handle.pgconn
        # In a pipeline the status lags behind what was queued; a block cannot be left in there without its end being
        # queued too.
        return bool(pgconn.transaction_status == _INTRANS or (pgconn.pipeline_status != _OFF and not handle.closed))

    def _enter(self) -> None:
        """Refuse a connection without an open ``transaction()`` block, before anything is sent."""
        handle = self.handle
        status = handle.pgconn.transaction_status
        self._level = _open_blocks(handle)
        if status == _INTRANS and self._level:  # nearly always
            self._entered = True
            return
        if handle.closed:
            raise nothing_holds(self.downstream, f"the connection is closed; open one and {_HOW}")
        if status == _INERROR:
            raise nothing_holds(
                self.downstream, "an earlier statement failed; leave the transaction block and begin again"
            )
        if not self._read_only and (self._level == 0 or (status == _IDLE and not self._pipelined())):
            raise nothing_holds(self.downstream, _HOW)
        self._entered = True

    def _pipelined(self) -> bool:
        return bool(self.handle.pgconn.pipeline_status != _OFF)


class PsycopgTx(_PsycopgBase):
    """The transaction of a psycopg Connection."""

    __slots__ = ()

    def execute(self, statement: Statement) -> Rows:
        """Execute a statement; see :class:`SyncTx`."""
        if not self._entered:
            self._enter()
        if self.handle.pgconn.pipeline_status != _OFF:
            return self._in_pipeline(statement)
        try:
            # A cursor of our own: the connection's row and cursor factories are the caller's.
            cursor: Any = psycopg.Cursor(self.handle, row_factory=tuple_row)
            cursor.execute(*_native(statement))
            result = cursor.pgresult
            return cursor.fetchall() if result is not None and result.nfields else []
        except psycopg.Error as exc:
            reraise(exc, self.downstream, self._tables)

    def _in_pipeline(self, statement: Statement) -> Rows:
        """Send it behind what is queued and wait for its answer, in one round trip: the pipeline goes on."""
        cursor = _OwnCursor(self.handle, row_factory=tuple_row)
        try:
            cursor.ask(*_native(statement))
            try:
                return cursor.fetchall()
            except psycopg.ProgrammingError:
                if cursor.pgresult is None or _has_rows(cursor):
                    raise
                return []  # there is nothing to fetch, but it was waited for
        except psycopg.Error as exc:
            with suppress(psycopg.Error), self.handle.pipeline():
                pass  # its end syncs; until then everything that is sent is skipped, a rollback to a savepoint too
            if exc is not cursor.error:
                raise  # an error of the caller's own queued statements is the caller's, not ours to translate
            reraise(exc, self.downstream, self._tables)

    def send_late(self, statement: Statement, name: Naming) -> Late | None:
        """Queue a statement in a pipeline and do not wait; None, and nothing sent, where there is no pipeline."""
        if not self._entered:
            self._enter()
        if not (CAN_BE_LATE and self._pipelined()):
            return None
        late = Late(name)
        late_cursor(self.handle, late).execute(*_native(statement))
        return late

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A nested ``transaction()`` block; see :class:`SyncTx`."""
        if not self._entered:
            self._enter()
        rollback: psycopg.Rollback | None = None
        with self.handle.transaction():
            self._level += 1
            try:
                yield
            except psycopg.Rollback as exc:
                rollback = exc
                raise
            finally:
                self._level -= 1
        if rollback is not None:  # it was meant for the caller's block; ours has swallowed it
            raise rollback

    def flush(self) -> None:
        """A connection has nothing pending."""


class AsyncPsycopgTx(_PsycopgBase):
    """The transaction of a psycopg AsyncConnection."""

    __slots__ = ()

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan; see :class:`AsyncTx`."""
        try:
            statement = next(plan)
            while True:
                try:
                    rows = await self._execute(statement)
                except Exception as exc:  # noqa: BLE001 - thrown into the plan, which raises it again
                    statement = plan.throw(exc)
                else:
                    statement = plan.send(rows)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            plan.close()

    async def _execute(self, statement: Statement) -> Rows:
        if not self._entered:
            self._enter()
        if self._pipelined():
            return await self._in_pipeline(statement)
        try:
            cursor: Any = psycopg.AsyncCursor(self.handle, row_factory=tuple_row)
            await cursor.execute(*_native(statement))
            return await cursor.fetchall() if _has_rows(cursor) else []
        except psycopg.Error as exc:
            reraise(exc, self.downstream, self._tables)

    async def _in_pipeline(self, statement: Statement) -> Rows:
        """As :meth:`PsycopgTx._in_pipeline`."""
        cursor = _AsyncOwnCursor(self.handle, row_factory=tuple_row)
        try:
            await cursor.ask(*_native(statement))
            try:
                return await cursor.fetchall()
            except psycopg.ProgrammingError:
                if cursor.pgresult is None or _has_rows(cursor):
                    raise
                return []
        except psycopg.Error as exc:
            with suppress(psycopg.Error):
                async with self.handle.pipeline():
                    pass
            if exc is not cursor.error:
                raise
            reraise(exc, self.downstream, self._tables)

    async def send_late(self, statement: Statement, name: Naming) -> Late | None:
        """As :meth:`PsycopgTx.send_late`."""
        if not self._entered:
            self._enter()
        if not (CAN_BE_LATE and self._pipelined()):
            return None
        late = Late(name)
        await late_cursor(self.handle, late).execute(*_native(statement))
        return late

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """A nested ``transaction()`` block; see :class:`AsyncTx`."""
        if not self._entered:
            self._enter()
        rollback: psycopg.Rollback | None = None
        async with self.handle.transaction():
            self._level += 1
            try:
                yield
            except psycopg.Rollback as exc:
                rollback = exc
                raise
            finally:
                self._level -= 1
        if rollback is not None:
            raise rollback

    async def flush(self) -> None:
        """A connection has nothing pending."""


class _Knowing:
    """A cursor that remembers the error of its own statement, whoever meets it: in a pipeline others wait too.

    psycopg looks at each answer under a private name. Where that is gone, no error counts as its own, and those of a
    guard in a pipeline come out as psycopg's.
    """

    error: BaseException | None = None

    def _check_results(self, results: Any) -> None:
        try:
            super()._check_results(results)  # type: ignore[misc]
        except psycopg.Error as exc:
            self.error = exc
            raise


class _Asking(_Knowing):
    """One that sends what is queued in a pipeline, its statement and the request to answer it in one packet.

    psycopg sends a packet for each of them, and looks each time whether it can: a dozen system calls for a guard, and a
    server that wakes for each. It works under private names. Where one is gone, psycopg does it in its own way.
    """

    def _ask_gen(self, query: Text, params: Any) -> Any:
        cursor: Any = self
        connection = cursor.connection
        pipeline = connection._pipeline
        yield from cursor._start_query(query)
        yield from cursor._maybe_prepare_gen(cursor._convert_query(query, params))
        queue = pipeline.command_queue
        commands = (*queue, connection.pgconn.send_flush_request)
        queue.clear()
        queue.append(partial(_run_all, commands))
        yield from pipeline._communicate_gen()
        yield from pipeline._fetch_gen(flush=False)
        yield from connection._prepared.maintain_gen(connection)


def _run_all(commands: Iterable[Callable[[], Any]]) -> None:
    for command in commands:
        command()


class _OwnCursor(_Asking, psycopg.Cursor[tuple[Any, ...]]):
    """One for a Connection."""

    def ask(self, query: Text, params: Any) -> None:
        """Execute in a pipeline and wait for the answer, an error too."""
        if not _can_ask(self.connection):
            self.execute(query, params)  # who fetches waits
            return
        with self.connection.lock:
            self.connection.wait(self._ask_gen(query, params))


class _AsyncOwnCursor(_Asking, psycopg.AsyncCursor[tuple[Any, ...]]):
    """One for an AsyncConnection."""

    async def ask(self, query: Text, params: Any) -> None:
        """As :meth:`_OwnCursor.ask`."""
        if not _can_ask(self.connection):
            await self.execute(query, params)
            return
        async with self.connection.lock:
            await self.connection.wait(self._ask_gen(query, params))


def _can_ask(connection: Any) -> bool:
    pipeline = getattr(connection, "_pipeline", None)
    return _HAS_NAMES and hasattr(pipeline, "command_queue") and hasattr(pipeline, "_fetch_gen")


_HAS_NAMES = all(hasattr(psycopg.Cursor, name) for name in ("_start_query", "_convert_query", "_maybe_prepare_gen"))


def psycopg_tx(target: Any, bind: Any, read_only: bool, tables: str) -> Any:
    """Return the transaction of a psycopg target, or None if it is none. It has but one bind."""
    if isinstance(target, psycopg.Connection):
        return PsycopgTx(target, read_only, tables)
    if isinstance(target, psycopg.AsyncConnection):
        return AsyncPsycopgTx(target, read_only, tables)
    return None


Text: TypeAlias = str | bytes


@lru_cache(maxsize=512)
def _text(sql: str) -> Text:
    return encoded(to_pyformat(sql))


def _native(statement: Statement) -> tuple[Text, Mapping[str, Any] | None]:
    """The text and the parameters as psycopg takes them."""
    global _compiled
    sql, params = statement.sql, statement.params
    if params is None:
        return sql, None
    if isinstance(sql, str):
        return _text(sql), params
    if _compiled is None:
        from adapters._tx._compile import compiled  # SQLAlchemy is there: who made the construct has loaded it

        _compiled = compiled
    return _compiled(sql, params)


_compiled: Callable[[Any, Mapping[str, Any]], tuple[Text, Mapping[str, Any]]] | None = None


def _has_rows(cursor: Any) -> bool:
    # As "description" says, without making a description of each column.
    result = cursor.pgresult
    return result is not None and result.nfields > 0


def _open_blocks(connection: Any) -> int:
    """How many ``transaction()`` blocks are open.

    psycopg counts them under a private name. Where that is gone, an open transaction counts as one block.
    """
    count = getattr(connection, "_num_transactions", None)
    if count is None:
        return int(connection.pgconn.transaction_status != _IDLE)
    return int(count)
