"""`RowGuard`: where a row is the resource, the mark is in it and is checked in the WHERE of the effect."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Table

from adapters._tx import AsyncTx, Plan, Rows, Statement, SyncTx, run
from adapters.sql._guard import SqlGuard, SqlTargetGuard, certain_transaction
from adapters.sql._limit import limited
from adapters.sql._marks import all_or_nothing, bounded, read_mark
from adapters.sql._options import Options
from adapters.sql._row import Row, mark_in, params_of
from adapters.sql._row_names import RowNames
from adapters.sql._row_options import RowOptions
from adapters.sql._rowmark import NAMES, RowStatements
from fencing import history
from fencing._law import Mark, OnMissing, judge, reject
from fencing._recorded import record, recorded
from fencing._registry import is_async
from fencing._token import Token
from fencing._write import resolve_token
from fencing.errors import ContentionError

Tx = SyncTx | AsyncTx
_SAVEPOINT = "fencing_row"


class RowGuard:
    """Fenced changes of single rows of ``table``, which has the columns of :func:`row_mark_columns`.

    The row is the resource: its mark is in it, and changing the row and checking the mark is one statement, nearly as
    fast as the bare one. The verdicts and errors are those of ``fenced_write``. Every change goes through
    :meth:`insert`, :meth:`update` and :meth:`delete`: a deleted row's mark is kept in ``fencing_mark`` and an insert
    looks there, so :func:`create_all` is needed too. A row without a mark yet (it was there before its columns were)
    is treated as a resource without one.

    ``resource``: the name of a row's resource from its key, for errors and for ``fencing_mark``; default
    ``TABLE/KEY``, the parts of a longer key joined by ``/``. ``key``: the reverse, the key from the name, for
    :meth:`on`; by default known where the names are and the key is of integers, texts and UUIDs. ``schema``,
    ``on_missing`` and ``lock_timeout`` as for :class:`SqlGuard`.

    Each method takes a target as ``fenced_write`` does: a connection or session in a transaction, or an Engine or
    sessionmaker, whose transactions are opened, committed and retried here. For an async one its result is to be
    awaited. ``key`` is the value of the primary key, a tuple for several columns, or a mapping by column name.
    ``token`` as for ``fenced_write``. A Session's pending changes are not flushed, and its objects are not refreshed.

    Raises ``ValueError`` for a table without a primary key or without the columns of the mark.
    """

    def __init__(
        self,
        table: Table,
        *,
        resource: Callable[[Mapping[str, Any]], str] | None = None,
        key: Callable[[str], Any] | None = None,
        schema: str | None = None,
        on_missing: OnMissing = "create",
        lock_timeout: float | None = 5.0,
    ) -> None:
        if not list(table.primary_key.columns):
            raise ValueError(f"RowGuard needs a primary key, which {table.fullname} does not have")
        missing = [name for name in NAMES if name not in table.c]
        if missing:
            raise ValueError(
                f"{table.fullname} has no columns {', '.join(missing)}: add those of adapters.sql.row_mark_columns()"
            )
        self._guard = SqlGuard(schema=schema, on_missing=on_missing, lock_timeout=lock_timeout)
        self._options: Options = self._guard._options
        self._named = SqlGuard(schema=schema, on_missing=on_missing, lock_timeout=lock_timeout)
        options = RowOptions(schema, on_missing, lock_timeout, None)
        options.rows = self
        self._named._options = options
        self.statements = self._sql = RowStatements(table)
        self.names = RowNames(table, self._sql.keys, resource, key)
        self._resource, self._key = self.names.resource, self.names.key
        self.table = self._table = table
        self._known: set[tuple[str, ...]] = set()

    def resource(self, key: Any) -> str:
        """Return the name of the row's resource."""
        return self._resource(self._key(key))

    def on(self, target: Any) -> SqlTargetGuard:
        """Return the guard of ``target`` in which the names of resources are those of rows, with the marks in them.

        For ``fenced_write()`` of several rows and of what hangs on them, ``raise_fence()``, a job's ``fences=``,
        ``read_mark()``, ``explain()``, ``list_marks()``, ``adopt()`` and ``fencing doctor --target MODULE:ATTRIBUTE``.
        A name that is no row's is a ``ValueError`` there. Marks in rows are never compacted: they go with the row.
        """
        return self._named.on(target)

    def raising(self, tx: Tx, key: Mapping[str, Any], token: Token, holder: str, *, making: bool) -> Plan[None]:
        """Raise the mark in the row, or the one that is kept for it, in the order of the guard's own statements."""
        row = Row(self._resource(key), key, token, holder, {}, makes=making)
        yield from self._update(tx, row)

    def reading(self, tx: Tx, key: Mapping[str, Any]) -> Plan[Mark | None]:
        """Read the mark in the row, or the one that is kept for it."""
        mark = yield from self.reading_row(key, lock=False)
        return mark or (yield from read_mark(self._options.dialect(tx.dialect), self._resource(key)))

    def reading_row(self, key: Mapping[str, Any], *, lock: bool) -> Plan[Mark | None]:
        """Read the mark in the row, if there is one."""
        keyed = {f"fencing_key_{column}": value for column, value in key.items()}
        return mark_in((yield Statement(self._sql.lock if lock else self._sql.look, keyed)))

    def setting(self, key: Mapping[str, Any], token: Token, holder: str) -> Plan[None]:
        """Set the mark in the row, which is locked, whatever it was."""
        yield Statement(self._sql.forced_change({}), Row("", key, token, holder, {}).params())

    def listing(self, prefix: str, limit: int) -> Plan[list[tuple[str, Mark]]]:
        """The marks in rows whose names begin with ``prefix``, in the order of the keys."""
        found: list[tuple[str, Mark]] = []
        place = 0
        while len(found) < limit:
            rows = yield Statement(self._sql.marked, {"fencing_limit": limit, "fencing_place": place})
            for row in rows:
                name = self._resource(self._key(dict(zip(self._sql.keys, row[4:], strict=True))))
                mark = mark_in([row[:4]])
                if mark is not None and name.startswith(prefix):
                    found.append((name, mark))
            if len(rows) < limit:
                break
            place += limit
        return found[:limit]

    def insert(self, target: Any, values: Mapping[str, Any], *, token: Any = None) -> Any:
        """Insert a row with its mark, judged by the mark that a deleted row of that key has left.

        Returns whether it was inserted: False if there is a row of that key, which then is left as it is but for its
        mark. ``values`` holds the whole primary key.
        """
        missing = [name for name in self._sql.keys if name not in values]
        if missing:
            raise ValueError(f"values= lacks {', '.join(missing)}: the row's key is what is fenced")
        self._check(values, but_keys=False)
        key = self._key({name: values[name] for name in self._sql.keys})
        return self._write(target, key, token, {**values, **key}, self._insert)

    def update(self, target: Any, key: Any, values: Mapping[str, Any], *, token: Any = None) -> Any:
        """Set columns of a row; a value may be an expression over the row's own columns (keep it: it is compiled once).

        One that reads other rows is a ``ValueError``: it would read them as they were before this waited for the row.
        Returns whether there was such a row.
        """
        names = tuple(values)
        if names not in self._known:
            self._check(values, but_keys=True)
            self._known.add(names)
        tx = certain_transaction(target)
        if tx is not None:
            return self._update_at_once(target, tx, self._key(key), values, token)
        return self._write(target, self._key(key), token, values, self._update)

    def delete(self, target: Any, key: Any, *, token: Any = None) -> Any:
        """Delete a row; its mark is kept in ``fencing_mark``. Returns whether there was such a row."""
        return self._write(target, self._key(key), token, {}, self._delete)

    def raise_fence(self, target: Any, key: Any, *, token: Any = None) -> Any:
        """Raise the row's mark without changing it, or the one kept in ``fencing_mark`` if there is no such row.

        ``fencing.raise_fence`` and a job's ``fences=`` do this if they are given :meth:`on` of a target. With the
        target itself they raise the one in ``fencing_mark``, and a change of a row that has a mark does not look there.
        """

        def plan(tx: Tx, row: Row) -> Plan[None]:
            yield from self._update(tx, row.making())

        return self._write(target, self._key(key), token, {}, plan, kind="raise")

    def read_mark(self, target: Any, key: Any) -> Any:
        """Return the row's mark or None: to look at, never to decide by. Its time is unknown for one in the row."""
        key = self._key(key)
        guard: Any = self._guard.on(target)
        return guard.look(lambda tx: self.reading(tx, key))

    def _write(
        self,
        target: Any,
        key: Mapping[str, Any],
        token: Any,
        values: Mapping[str, Any],
        plan: Callable[[Tx, Row], Plan[Any]],
        kind: Any = "write",
    ) -> Any:
        name = self._resource(key)
        guard: Any = self._guard.on(target)
        presented, holder = resolve_token(token)
        row = Row(name, key, presented, holder, values)
        if is_async(guard):
            return _awaited(guard, lambda tx: plan(tx, row), row, kind)
        try:
            with recorded(kind, guard, (name,), presented, holder):
                return guard.perform(lambda tx: plan(tx, row))
        except ContentionError as exc:
            row.name(exc)
            raise

    def _update_at_once(
        self, target: Any, tx: SyncTx, key: Mapping[str, Any], values: Mapping[str, Any], token: Any
    ) -> bool:
        """As :meth:`_write` with :meth:`_update`, over psycopg, without what one statement can do without.

        That it nearly always is. A plan, a guard and a block around it take as long as what psycopg does for it.
        """
        name = self._resource(key)
        presented, holder = resolve_token(token)
        began = time.monotonic_ns()
        error: BaseException | None = None
        try:
            change = self._sql.change("postgresql", values, self._options.lock_timeout_ms)
            if tx.execute(Statement(change, params_of(key, values, presented, holder))):
                return True
            return run(self._update_slowly(tx, Row(name, key, presented, holder, values)), tx)
        except BaseException as exc:
            error = exc
            if isinstance(exc, ContentionError):
                exc.resource, exc.presented = name, presented
            raise
        finally:
            if error is not None or history.recording():
                record("write", self._guard.on(target), (name,), presented, holder, began, error)

    def _change(self, tx: Tx, row: Row) -> Statement:
        return Statement(self._sql.change(tx.dialect, row.values, self._options.lock_timeout_ms), row.params())

    def _update(self, tx: Tx, row: Row) -> Plan[bool]:
        dialect = tx.dialect
        if dialect == "postgresql":
            if (yield self._change(tx, row)):  # it bounds itself
                return True
        elif dialect == "sqlite" and (yield from bounded(self._options.dialect(dialect), _send(self._change(tx, row)))):
            return True
        return (yield from self._update_slowly(tx, row))

    def _update_slowly(self, tx: Tx, row: Row) -> Plan[bool]:
        sql, limit_ms = self._options.dialect(tx.dialect), self._options.lock_timeout_ms
        return (yield from limited(sql, limit_ms, self._look_and_update(tx, row), lowered=True))

    def _look_and_update(self, tx: Tx, row: Row) -> Plan[bool]:
        """The row has no mark, is not there, or refuses; or the database has no trustworthy answer to an UPDATE."""
        rows = yield Statement(self._sql.lock, row.params())
        if not rows:
            # The mark is in fencing_mark, if there is one. Whoever makes the row holds that mark until it commits.
            yield from self._raise(tx, row)
            rows = yield Statement(self._sql.lock, row.params())
            if not rows:
                return False
        mark = mark_in(rows)
        if mark is None:
            yield from self._raise(tx, row)
            yield Statement(self._sql.first_change(row.values), row.params())
            return True
        self._judge(tx, row, mark)
        yield Statement(self._sql.forced_change(row.values), row.params())
        return True

    def _insert(self, tx: Tx, row: Row) -> Plan[bool]:
        def work() -> Plan[bool]:
            yield from self._options.guard(tx, row.write())
            # The look may be at an old snapshot, on MariaDB and MySQL: what it shows may have been deleted since.
            if (yield Statement(self._sql.look, row.params())) and (yield from self._update(tx, row.without_values())):
                return False
            yield Statement(self._sql.add(row.values), row.params())
            return True

        return (yield from all_or_nothing(work(), _SAVEPOINT))

    def _delete(self, tx: Tx, row: Row) -> Plan[bool]:
        def work() -> Plan[bool]:
            # The mark first, as an insert does: no deadlock by order. Where the row's own mark is evidence enough, the
            # one in fencing_mark need not be there.
            there = mark_in((yield Statement(self._sql.look, row.params()))) is not None
            yield from self._raise(tx, row, making=there)
            rows = yield Statement(self._sql.lock, row.params())
            if not rows:
                return False
            mark = mark_in(rows)
            if mark is not None:
                self._judge(tx, row, mark)
            yield Statement(self._sql.remove, row.params())
            return True

        sql = self._options.dialect(tx.dialect)
        return (yield from all_or_nothing(limited(sql, self._options.lock_timeout_ms, work()), _SAVEPOINT))

    def _raise(self, tx: Tx, row: Row, *, making: bool = False) -> Plan[None]:
        raise_marks = self._options.raise_fence if making or row.makes else self._options.guard
        yield from raise_marks(tx, row.write())

    def _judge(self, tx: Tx, row: Row, mark: Mark) -> None:
        verdict = judge(mark.token, row.token)
        if not verdict.accepted:
            reject(verdict, row.resource, row.token, mark, tx.downstream)

    def _check(self, values: Mapping[str, Any], *, but_keys: bool) -> None:
        for name in values:
            if name not in self._table.c:
                raise ValueError(f"{self._table.fullname} has no column {name!r}")
            if name in NAMES:
                raise ValueError(f"{name} is the guard's own column: it is set from the token")
            if but_keys and name in self._sql.keys:
                raise ValueError(
                    f"{name} is part of the row's key, and so of its resource: "
                    "insert the row anew and delete the old one"
                )


async def _awaited(guard: Any, make: Callable[[Tx], Plan[Any]], row: Row, kind: Any) -> Any:
    try:
        with recorded(kind, guard, (row.resource,), row.token, row.holder):
            return await guard.perform(make)
    except ContentionError as exc:
        row.name(exc)
        raise


def _send(statement: Statement) -> Plan[Rows]:
    return (yield statement)
