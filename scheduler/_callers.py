"""The caller's connection, whatever it is: a plan's statements run there, in the transaction that it has open.

A plan is a generator that yields a statement's parameters, is sent the rows, and returns what it found out: one for
synchronous and asynchronous connections alike.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from fencing.errors import NotInTransactionError
from scheduler._connect import Connection, translate, translated

T = TypeVar("T")

Rows = Sequence[tuple[Any, ...]]
Plan = Generator[dict[str, Any], Rows, T]


def run_in_caller(connection: Any, text: str, plan: Plan[T]) -> T | Awaitable[T]:
    """Run the plan of a statement through any connection or session that speaks psycopg; awaitable for an async one.

    SQLAlchemy's are asked for the driver's name, not imported. Raises ``TypeError`` that names what cannot be used,
    :class:`~fencing.errors.NotInTransactionError` for a connection on which each statement commits by itself.
    """
    if isinstance(connection, psycopg.Connection):
        _refuse_autocommit(connection)
        return run_alone(connection, text, plan)
    if isinstance(connection, psycopg.AsyncConnection):
        _refuse_autocommit(connection)
        return _run_async(plan, lambda values: _rows_async(connection, text, values))
    libraries = {base.__module__.partition(".")[0] for base in type(connection).__mro__}
    if "sqlalchemy" not in libraries:
        raise TypeError(
            f"connection= takes a psycopg or SQLAlchemy connection or session, not {type(connection).__module__}."
            f"{type(connection).__qualname__}"
        )
    if callable(getattr(connection, "registry", None)):  # a scoped session, also an async one, stands for another
        connection = connection()
    if hasattr(connection, "run_sync"):

        async def in_caller() -> T:
            done: T = await connection.run_sync(lambda sync: _through_sqlalchemy(sync, text, plan))
            return done

        return in_caller()
    return _through_sqlalchemy(connection, text, plan)


def run_alone(connection: Connection, text: str, plan: Plan[T]) -> T:
    """Run the plan of a statement on a psycopg connection, in whatever transaction that has or has not."""
    return _run(plan, lambda values: _rows(connection, text, values))


def _through_sqlalchemy(connection: Any, text: str, plan: Plan[T]) -> T:
    # A Session is asked for its connection; a Connection has no such method. Both begin their transaction by
    # themselves.
    core = connection.connection() if callable(getattr(connection, "connection", None)) else connection
    if not hasattr(core, "exec_driver_sql"):
        raise TypeError(
            f"connection= takes a connection or session, not {type(connection).__qualname__}; open one first"
        )
    if core.dialect.driver != "psycopg":
        raise TypeError(
            f"connection= takes a connection over psycopg, not over {core.dialect.name}+{core.dialect.driver}: "
            "the job has to be "
            "written in the scheduler's own database"
        )
    if getattr(core.connection.dbapi_connection, "autocommit", False) is True:
        raise _no_transaction('its isolation level is "AUTOCOMMIT"; use a connection with another isolation level')

    def rows(values: dict[str, Any]) -> Rows:
        try:
            return [tuple(row) for row in core.exec_driver_sql(text, values).fetchall()]
        except Exception as exc:
            driver_error = getattr(exc, "orig", None)
            if isinstance(driver_error, psycopg.Error):
                raise translate(driver_error, "enqueue") from exc
            raise

    return _run(plan, rows)


def _refuse_autocommit(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Refuse a connection on which each statement commits by itself: the job would exist whatever the caller does."""
    if not connection.autocommit or connection.closed:
        return
    # In a pipeline the status lags behind what was queued; psycopg counts its blocks under a private name.
    blocks = getattr(connection, "_num_transactions", 0)
    if connection.pgconn.transaction_status == TransactionStatus.IDLE and not blocks:
        raise _no_transaction("it is in autocommit mode; use 'with connection.transaction():' around the writes")


def _no_transaction(why: str) -> NotInTransactionError:
    return NotInTransactionError(
        f"connection= puts the job into the caller's transaction, but this connection has none: {why}, "
        "or leave connection= away",
        downstream="scheduler",
    )


def _rows(connection: psycopg.Connection[Any], text: str, values: dict[str, Any]) -> Rows:
    with translated("enqueue"), _cursor(connection) as cursor:
        return cursor.execute(text, values).fetchall()


def _cursor(connection: psycopg.Connection[Any]) -> psycopg.Cursor[tuple[Any, ...]]:
    # A connection whose own cursors take no named parameters is given one that does.
    if issubclass(connection.cursor_factory, psycopg.RawCursor):
        return psycopg.Cursor(connection, row_factory=tuple_row)
    return connection.cursor(row_factory=tuple_row)


async def _rows_async(connection: psycopg.AsyncConnection[Any], text: str, values: dict[str, Any]) -> Rows:
    with translated("enqueue"):
        async with _cursor_async(connection) as cursor:
            return await (await cursor.execute(text, values)).fetchall()


def _cursor_async(connection: psycopg.AsyncConnection[Any]) -> psycopg.AsyncCursor[tuple[Any, ...]]:
    if issubclass(connection.cursor_factory, psycopg.AsyncRawCursor):
        return psycopg.AsyncCursor(connection, row_factory=tuple_row)
    return connection.cursor(row_factory=tuple_row)


def _run(plan: Plan[T], rows: Callable[[dict[str, Any]], Rows]) -> T:
    try:
        values = next(plan)
        while True:
            values = plan.send(rows(values))
    except StopIteration as done:
        answer: T = done.value
        return answer


async def _run_async(plan: Plan[T], rows: Callable[[dict[str, Any]], Awaitable[Rows]]) -> T:
    try:
        values = next(plan)
        while True:
            values = plan.send(await rows(values))
    except StopIteration as done:
        answer: T = done.value
        return answer
