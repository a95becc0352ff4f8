"""Raising and reading marks, as plans."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from adapters._tx import AsyncTx, BeforeCommit, Plan, Rows, Statement, SyncTx
from adapters.sql._dialect import Dialect
from fencing._law import Mark, OnMissing, judge, reject
from fencing._token import Token
from fencing.errors import ContentionError, FencingError, SchemaMissingError, StaleTokenError

T = TypeVar("T")
Tx = SyncTx | AsyncTx
"""Asked for its name only when there is something to say."""

_TAKE_WRITE_LOCK = Statement("select 1")


def token_params(token: Token, holder: str) -> dict[str, Any]:
    """Return the parameters that say whose token it is."""
    return {"issuer": token.issuer, "lineage": token.lineage, "value": token.value, "holder": holder}


def raise_marks(
    sql: Dialect, resources: tuple[str, ...], token: Token, holder: str, on_missing: OnMissing, tx: Tx
) -> Plan[None]:
    """Raise all marks or none, and keep them locked until the transaction or savepoint ends.

    Raises the law's refusal of the first resource (in order) that refuses, and ``ContentionError`` if a mark's holder
    kept it locked for longer than the lock timeout or, under REPEATABLE READ and SERIALIZABLE, if it moved since the
    snapshot.
    """
    if sql.name == "mysql":
        work = _raise_each
    elif len(resources) == 1 and on_missing == "create":
        if sql.busy_timeout_ms is None:  # PostgreSQL bounds its waits itself: one generator for the most frequent case
            return _raise_one(sql, resources, token, holder, on_missing, tx)
        work = _raise_one
    else:
        work = _raise_all
    return _bounded_and_named(sql, work, resources, token, holder, on_missing, tx)


def _bounded_and_named(
    sql: Dialect,
    work: Callable[..., Plan[None]],
    resources: tuple[str, ...],
    token: Token,
    holder: str,
    on_missing: OnMissing,
    tx: Tx,
) -> Plan[None]:
    try:
        yield from bounded(sql, work(sql, resources, token, holder, on_missing, tx))
    except ContentionError as exc:
        exc.resource = resources[0] if len(resources) == 1 else None
        exc.presented = token
        raise


def one_mark(sql: Dialect, resource: str, token: Token, holder: str) -> Statement:
    """Raise one mark, making it if it is missing; :func:`after_one` says what its answer means."""
    params = {
        "resource": resource,
        "issuer": token.issuer,
        "lineage": token.lineage,
        "value": token.value,
        "holder": holder,
    }
    return Statement(sql.raise_one, params)


def after_one(
    sql: Dialect, rows: Rows, resources: tuple[str, ...], token: Token, on_missing: OnMissing, tx: Tx
) -> Plan[None]:
    """What is left to do when the statement that raises one mark was answered."""
    if not rows:
        yield from _refuse(sql, resources, token, on_missing, tx)
    if sql.close is not None:
        yield from _close_at_commit(sql, rows)
    if rows[0][1]:
        try:
            yield from _check_floor(sql, resources, token, tx)
        except StaleTokenError:
            # For a caller who catches it and commits.
            yield Statement(sql.unmake_one, {"resource": resources[0]})
            raise


def _raise_one(
    sql: Dialect, resources: tuple[str, ...], token: Token, holder: str, on_missing: OnMissing, tx: Tx
) -> Plan[None]:
    try:
        rows = yield one_mark(sql, resources[0], token, holder)
        yield from after_one(sql, rows, resources, token, on_missing, tx)
    except ContentionError as exc:
        exc.resource, exc.presented = resources[0], token
        raise


def _raise_each(
    sql: Dialect, resources: tuple[str, ...], token: Token, holder: str, on_missing: OnMissing, tx: Tx
) -> Plan[None]:
    """Where the verdict is read from the row itself, mark by mark, in their order."""
    statement = sql.raise_one if on_missing == "create" else sql.raise_existing

    def each() -> Plan[None]:
        for resource in resources:
            yield Statement(statement, {"resource": resource, **token_params(token, holder)})
            rows = yield Statement(sql.read_refused, {"resource": resource})
            mark = mark_of(sql, rows[0]) if rows else None
            if mark is not None and mark.token == token:
                if rows[0][7] == 1:
                    yield from _check_floor(sql, (resource,), token, tx)
                continue
            floor = 0 if mark else (yield from _look_at_floor(sql, token, tx))
            verdict = judge(mark.token if mark else None, token, on_missing, floor)
            if verdict.accepted:
                raise moved(tx.downstream, (resource,))
            reject(verdict, resource, token, mark, tx.downstream, floor, late=_late(sql, mark, rows))

    yield from all_or_nothing(each())


def _raise_all(
    sql: Dialect, resources: tuple[str, ...], token: Token, holder: str, on_missing: OnMissing, tx: Tx
) -> Plan[None]:
    # Takes back the marks that were raised before the one that refused, also for a caller who catches the refusal and
    # commits.
    yield from all_or_nothing(_raise_several(sql, resources, token, holder, on_missing, tx))


def _raise_several(
    sql: Dialect, resources: tuple[str, ...], token: Token, holder: str, on_missing: OnMissing, tx: Tx
) -> Plan[None]:
    statement = sql.raise_many if on_missing == "create" else sql.raise_existing
    rows = yield Statement(statement, {"resources": sql.names(resources), **token_params(token, holder)})
    if _sum(rows, 0) != len(resources):
        yield from _refuse(sql, resources, token, on_missing, tx)
    if sql.close is not None:
        yield from _close_at_commit(sql, rows)
    if _sum(rows, 1):
        yield from _check_floor(sql, resources, token, tx)


def _close_at_commit(sql: Dialect, rows: Rows) -> Plan[None]:
    """Where a protected table's triggers look for a mark of this transaction: take the sign back as it ends."""
    for _, _, marked, resource in rows:
        if marked:
            yield BeforeCommit(sql.close, (resource,))


def all_or_nothing(plan: Plan[T], name: str = "fencing_marks") -> Plan[T]:
    """Run ``plan`` in a savepoint, which takes back what it wrote if it refuses.

    One inside another has another ``name``: on MariaDB a second savepoint of a name removes the first.
    """
    yield Statement(f"savepoint {name}")
    try:
        result = yield from plan
    except (FencingError, ValueError) as refused:
        try:
            yield Statement(f"rollback to savepoint {name}")
            yield Statement(f"release savepoint {name}")
        except Exception:
            # MariaDB and MySQL end the whole transaction of a deadlock's victim, and the savepoint with it.
            if not isinstance(refused, ContentionError):
                raise
        raise
    yield Statement(f"release savepoint {name}")
    return result


def _refuse(sql: Dialect, resources: tuple[str, ...], token: Token, on_missing: OnMissing, tx: Tx) -> Plan[None]:
    rows = yield Statement(sql.read_refused, {"resources": sql.names(resources)})
    found = {row[0]: row for row in rows}
    for resource in resources:
        mark = mark_of(sql, found[resource]) if resource in found else None
        if mark is not None and mark.token == token and found[resource][7] == 1:
            mark = None  # made by the statement that did not pass
        floor = 0 if mark else (yield from _look_at_floor(sql, token, tx))
        verdict = judge(mark.token if mark else None, token, "create" if resource in found else on_missing, floor)
        if not verdict.accepted:
            reject(verdict, resource, token, mark, tx.downstream, floor, late=_late(sql, mark, rows))
    # The statement did not pass and the law does not refuse: the mark was made or removed between the two statements.
    raise moved(tx.downstream, resources)


def moved(downstream: str, resources: tuple[str, ...]) -> ContentionError:
    """What to raise where a mark was made or removed between two statements that look at it."""
    return ContentionError(
        f"{downstream}: a mark of {', '.join(map(repr, resources))} came or went while it was looked at. "
        "Nothing was written; roll back and try again",
        downstream=downstream,
    )


def _look_at_floor(sql: Dialect, token: Token, tx: Tx) -> Plan[int]:
    """The floor under which a missing mark was compacted and not lost, to say which."""
    floors = yield from read_floors(sql, sql.look_at_floors, tx.downstream)
    return floors.get(token.issuer, 0)


def _check_floor(sql: Dialect, resources: tuple[str, ...], token: Token, tx: Tx) -> Plan[None]:
    """Refuse a token that made a mark below the floor: what was compacted may have seen a newer one.

    In a statement of its own, after the mark was made: one that waited on a mark while it was compacted sees an old
    floor.
    """
    floors = yield from read_floors(sql, sql.read_floors, tx.downstream)
    floor = floors.get(token.issuer, 0)
    verdict = judge(None, token, "create", floor)
    if not verdict.accepted:
        reject(verdict, resources[0], token, None, tx.downstream, floor)


def read_floors(sql: Dialect, statement: str, downstream: str) -> Plan[dict[str, int]]:
    """Return the floor of each issuer that has one. Raises ``SchemaMissingError`` if the row is not there."""
    rows = yield Statement(statement)
    if not rows:
        raise SchemaMissingError(
            f"{downstream}: fencing_floor has no row, so nothing says which marks were compacted; nothing was written. "
            "adapters.sql.create_all(bind) makes it with the table; after another way of making the tables: "
            "insert into fencing_floor (one, floors) values (1, '{}')",
            downstream=downstream,
        )
    found: dict[str, int] = json.loads(rows[0][0])
    return found


def read_mark(sql: Dialect, resource: str) -> Plan[Mark | None]:
    """Return the mark or None."""
    rows = yield Statement(sql.read_one, {"resource": resource})
    return mark_of(sql, rows[0]) if rows else None


def take_write_lock(sql: Dialect) -> Plan[None]:
    """On SQLite take the write lock, waiting no longer than the lock timeout; nothing elsewhere."""
    if sql.name == "sqlite":
        yield from bounded(sql, _select_one())


def _select_one() -> Plan[None]:
    # Any statement will do: the transaction begins with the write lock.
    yield _TAKE_WRITE_LOCK


def bounded(sql: Dialect, plan: Plan[T]) -> Plan[T]:
    """Run ``plan`` with the wait for a lock lowered to the lock timeout; a caller's shorter one stays.

    By a setting of the connection on SQLite (its busy timeout) and MariaDB (in whole seconds); PostgreSQL's statements
    do it by themselves.
    """
    limit = sql.busy_timeout_ms
    if limit is None:
        return (yield from plan)
    read, write, unit = _WAITS[sql.name]
    before = int((yield Statement(read))[0][0])
    if before <= limit // unit:
        return (yield from plan)
    yield Statement(write.format(limit // unit), None)
    try:
        result = yield from plan
    except Exception:
        with suppress(Exception):  # a connection that is gone has no setting
            yield Statement(write.format(before), None)
        raise
    yield Statement(write.format(before), None)
    return result


_WAITS = {
    "sqlite": ("pragma busy_timeout", "pragma busy_timeout = {}", 1),
    "mysql": ("select @@innodb_lock_wait_timeout", "set innodb_lock_wait_timeout = {}", 1000),
}


def _late(sql: Dialect, mark: Mark | None, rows: Rows) -> timedelta | None:
    """How long before now the mark was set, by the database's clock."""
    if mark is None or mark.at is None:
        return None
    return sql.moment(rows[0][6]) - mark.at


def _sum(rows: Rows, column: int) -> int:
    return sum(int(row[column]) for row in rows)


def mark_of(sql: Dialect, row: tuple[Any, ...]) -> Mark:
    _, issuer, lineage, value, holder, at = row[:6]
    return Mark(Token(value, issuer, lineage), holder, sql.moment(at))
