"""Enqueuing: in the caller's transaction, whatever it holds, or in one of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Sequence
from datetime import datetime
from typing import Any, Literal, cast, get_args

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from fencing.errors import ContentionError, NotInTransactionError
from scheduler._connect import Connection, translate, translated
from scheduler._job import Enqueued
from scheduler._json import json_text
from scheduler._sql import Statements

_TRIES = 5

Unique = Literal["alive", "forever"]
"""For how long a key is unique: while a job with it is ``alive`` (ready or leased), or ``forever``."""

Plan = Generator[dict[str, Any], Sequence[tuple[Any, ...]], Enqueued]


def checked_args(task: str, args: object) -> str:
    """Return ``args`` as JSON text. Raises as :func:`json_text`."""
    return json_text(args, f"the arguments of {task!r}")


def checked_due(due_at: object) -> datetime | None:
    """Return ``due_at`` if it is an aware datetime or None. ``TypeError`` or ``ValueError`` otherwise."""
    return checked_moment(due_at, "due_at", " for now")


def checked_moment(moment: object, what: str, none: str = "") -> datetime | None:
    """Return ``moment`` if it is an aware datetime or None. ``what`` and ``none`` name it and its absence in errors."""
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        raise TypeError(f"{what}= takes an aware datetime or None{none}, not {type(moment).__name__}")
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise ValueError(f"{what}= has no time zone ({moment.isoformat()}): pass datetime.now(UTC) + … or give it one")
    return moment


def checked_priority(priority: object) -> int:
    """Return ``priority`` if it is a whole number that the column holds."""
    if type(priority) is not int or not -(2**31) <= priority < 2**31:
        raise ValueError(f"priority= is a whole number (higher runs first), not {priority!r}")
    return priority


def checked_unique(unique: object, key: object) -> Unique | None:
    """Return for how long the key is unique. ``ValueError`` if that is no choice, or there is no key."""
    if unique is None:
        return "alive" if key is not None else None
    if unique not in get_args(Unique):
        raise ValueError(f"unique= is one of {', '.join(map(repr, get_args(Unique)))}, not {unique!r}")
    if key is None:
        raise ValueError(f"unique={unique!r} says for how long a key is unique: pass key= too")
    return cast(Unique, unique)


def enqueue(
    connection: Any, statements: Statements, parameters: dict[str, Any], unique: Unique | None
) -> Enqueued | Awaitable[Enqueued]:
    """Enqueue through any connection or session that speaks psycopg; awaitable for an async one.

    SQLAlchemy's are asked for the driver's name, not imported. Raises ``TypeError`` that names what cannot be used.
    """
    text = _statement(statements, unique)
    if isinstance(connection, psycopg.Connection):
        _refuse_autocommit(connection)
        return _run(_plan(parameters), lambda values: _rows(connection, text, values))
    if isinstance(connection, psycopg.AsyncConnection):
        _refuse_autocommit(connection)
        return _run_async(_plan(parameters), lambda values: _rows_async(connection, text, values))
    libraries = {base.__module__.partition(".")[0] for base in type(connection).__mro__}
    if "sqlalchemy" not in libraries:
        raise TypeError(
            f"connection= takes a psycopg or SQLAlchemy connection or session, not {type(connection).__module__}."
            f"{type(connection).__qualname__}"
        )
    if hasattr(connection, "run_sync"):

        async def in_caller() -> Enqueued:
            enqueued: Enqueued = await connection.run_sync(lambda sync: _through_sqlalchemy(sync, text, parameters))
            return enqueued

        return in_caller()
    return _through_sqlalchemy(connection, text, parameters)


def enqueue_alone(
    connection: Connection, statements: Statements, parameters: dict[str, Any], unique: Unique | None
) -> Enqueued:
    """Enqueue through a connection of our own, in a transaction of its own."""
    text = _statement(statements, unique)
    return _run(_plan(parameters), lambda values: _rows(connection, text, values))


def _statement(statements: Statements, unique: Unique | None) -> str:
    return statements["enqueue_forever" if unique == "forever" else "enqueue"]


def _through_sqlalchemy(connection: Any, text: str, parameters: dict[str, Any]) -> Enqueued:
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

    def rows(values: dict[str, Any]) -> Sequence[tuple[Any, ...]]:
        try:
            return [tuple(row) for row in core.exec_driver_sql(text, values).fetchall()]
        except Exception as exc:
            driver_error = getattr(exc, "orig", None)
            if isinstance(driver_error, psycopg.Error):
                raise translate(driver_error, "enqueue") from exc
            raise

    return _run(_plan(parameters), rows)


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


def _plan(parameters: dict[str, Any]) -> Plan:
    for _ in range(_TRIES):
        rows = yield parameters
        if rows:
            return Enqueued(rows[0][1], rows[0][0])
        # The key's job was just committed or finished, and this statement's snapshot saw neither it nor its absence.
    raise ContentionError(
        f"jobs with the key {parameters['key']!r} come and go faster than they can be seen; try again"
    )


def _rows(connection: psycopg.Connection[Any], text: str, values: dict[str, Any]) -> Sequence[tuple[Any, ...]]:
    with translated("enqueue"), connection.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(text, values).fetchall()


async def _rows_async(
    connection: psycopg.AsyncConnection[Any], text: str, values: dict[str, Any]
) -> Sequence[tuple[Any, ...]]:
    with translated("enqueue"):
        async with connection.cursor(row_factory=tuple_row) as cursor:
            return await (await cursor.execute(text, values)).fetchall()


def _run(plan: Plan, rows: Any) -> Enqueued:
    try:
        values = next(plan)
        while True:
            values = plan.send(rows(values))
    except StopIteration as done:
        enqueued: Enqueued = done.value
        return enqueued


async def _run_async(plan: Plan, rows: Any) -> Enqueued:
    try:
        values = next(plan)
        while True:
            values = plan.send(await rows(values))
    except StopIteration as done:
        enqueued: Enqueued = done.value
        return enqueued
