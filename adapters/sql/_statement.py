"""`fenced_statement()`: guard and effect in one statement."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from adapters._tx import AsyncTx, Plan, Rows, Statement, SyncTx, committing
from adapters.sql._guard import SqlGuard
from adapters.sql._limit import restored
from adapters.sql._one import Effect, effect_of, one_statement
from adapters.sql._options import Options, Write
from fencing._law import check_resources
from fencing._recorded import recorded
from fencing._registry import is_async
from fencing._write import resolve_token
from fencing.errors import ContentionError

T = TypeVar("T")
Tx = SyncTx | AsyncTx


@dataclass(frozen=True, slots=True)
class Written:
    """What a fenced statement did: ``count`` rows changed, and the ``rows`` of its RETURNING as plain tuples."""

    count: int
    rows: list[tuple[Any, ...]]


def fenced_statement(
    target: Any,
    resource: str,
    statement: Any,
    params: Mapping[str, Any] | None = None,
    /,
    *,
    token: Any = None,
    options: SqlGuard | None = None,
) -> Any:
    """Execute ``statement`` if no newer token has been seen for ``resource``: on PostgreSQL both in one round trip.

    ``statement``: an ``update()`` or ``delete()`` of SQLAlchemy Core whose WHERE compares the whole primary key with
    values, or an ``insert()`` of one row's ``values()``; RETURNING is welcome. What reads other rows is refused with
    ``ValueError``: in one statement with the guard it would read them as they were before the guard waited. Keep the
    statement (module level, ``bindparam``): it is looked into and compiled once.
    ``target``: as for ``fenced_write``, an Engine or sessionmaker too. A psycopg connection in autocommit needs no
    ``transaction()``: the statement is one.
    ``params``: values of its named parameters. ``options``: where the marks are and how long to wait.

    The first write to a resource, a refused one, and one that finds no row take further statements; on SQLite
    all do. MariaDB and MySQL have no answer that says what a statement did: ``TypeError``. Returns :class:`Written`
    (awaitable for an async target). Raises as ``fenced_write``.
    """
    (name,) = check_resources((resource,))
    effect = effect_of(statement)
    sql_guard = options or _DEFAULT
    guard: Any = sql_guard.on(target)
    presented, holder = resolve_token(token)
    write = Write((name,), presented, holder)
    values = dict(params) if params else {}

    def make(tx: Tx) -> Plan[Written]:
        return _plan(sql_guard._options, tx, write, effect, values)

    one = _one(sql_guard._options, write, effect, values) if _commits_by_itself(target) else None
    if is_async(guard):
        return _awaited(target, guard, make, write, effect, one)
    try:
        with recorded("write", guard, write.resources, presented, holder):
            if one is None:
                return guard.perform(make)
            with committing(guard):
                found = _read(effect, guard.send(one))
            if found is not None:
                return found
            with _transaction(target, guard):
                return guard.perform(make)
    except ContentionError as exc:
        _name(exc, write)
        raise


async def _awaited(target: Any, guard: Any, make: Any, write: Write, effect: Effect, one: Statement | None) -> Written:
    try:
        with recorded("write", guard, write.resources, write.token, write.holder):
            if one is not None:
                with committing(guard):
                    found = _read(effect, await guard.look(lambda _: _send(one)))
                if found is not None:
                    return found
                async with _transaction_async(target, guard):
                    found = await guard.perform(make)
            else:
                found = await guard.perform(make)
            written: Written = found
        return written
    except ContentionError as exc:
        _name(exc, write)
        raise


def _commits_by_itself(target: Any) -> bool:
    """Whether it is psycopg's connection in autocommit: one statement is a transaction there."""
    psycopg = sys.modules.get("psycopg")
    if psycopg is None or not isinstance(target, psycopg.Connection | psycopg.AsyncConnection):
        return False
    idle = target.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
    return bool(target.autocommit and idle and target.pgconn.pipeline_status == psycopg.pq.PipelineStatus.OFF)


@contextmanager
def _transaction(target: Any, guard: Any) -> Iterator[None]:
    """A transaction of ours on the caller's connection: an error of its commit is named."""
    block = target.transaction()
    block.__enter__()
    try:
        yield
    except BaseException as exc:
        block.__exit__(type(exc), exc, exc.__traceback__)
        raise
    with committing(guard):
        block.__exit__(None, None, None)


@asynccontextmanager
async def _transaction_async(target: Any, guard: Any) -> AsyncIterator[None]:
    block = target.transaction()
    await block.__aenter__()
    try:
        yield
    except BaseException as exc:
        await block.__aexit__(type(exc), exc, exc.__traceback__)
        raise
    with committing(guard):
        await block.__aexit__(None, None, None)


def _name(exc: ContentionError, write: Write) -> None:
    """Give a contention its facts."""
    exc.resource, exc.presented = write.resources[0], write.token


def _send(statement: Statement) -> Plan[Rows]:
    return (yield statement)


def _plan(options: Options, tx: Tx, write: Write, effect: Effect, values: dict[str, Any]) -> Plan[Written]:
    if tx.dialect == "mysql":
        raise TypeError(
            "fenced_statement() is for PostgreSQL and SQLite, whose statements say what they did; use fenced_write()"
        )
    if tx.dialect == "postgresql":
        found = _read(effect, (yield _one(options, write, effect, values)))
        if found is not None:
            return found
        if options.lock_timeout_ms is not None:
            yield from restored()
    yield from options.guard(tx, write)
    return _written(effect, (yield Statement(effect.plain, values)))


def _one(options: Options, write: Write, effect: Effect, values: dict[str, Any]) -> Statement:
    marks = {
        "fencing_resource": write.resources[0],
        "fencing_issuer": write.token.issuer,
        "fencing_lineage": write.token.lineage,
        "fencing_value": write.token.value,
        "fencing_holder": write.holder,
    }
    return Statement(one_statement(effect, options.schema, options.lock_timeout_ms), {**values, **marks})


def _read(effect: Effect, rows: Rows) -> Written | None:
    """What one statement did; None where guard and effect are to be sent one after the other.

    So if there was no mark, or it refuses. And if by the snapshot there was no row to change: it may have been made
    while the guard waited.
    """
    if not rows:
        return None
    if effect.adds:
        rows = [row[1:] for row in rows if row[0] is not None]
    return _written(effect, rows)


def _written(effect: Effect, rows: Rows) -> Written:
    return Written(len(rows), rows if effect.returns else [])


_DEFAULT = SqlGuard()
