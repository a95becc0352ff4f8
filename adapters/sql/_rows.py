"""`RowGuard`: where a row is the resource, the mark is in it and is checked in the WHERE of the effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Table

from adapters._tx import AsyncTx, Plan, Rows, Statement, SyncTx, run
from adapters.sql._guard import SqlGuard
from adapters.sql._limit import limited
from adapters.sql._marks import all_or_nothing, bounded, read_mark
from adapters.sql._open import OpenGuard
from adapters.sql._options import Options, Write
from adapters.sql._rowmark import NAMES, RowStatements
from fencing._law import Mark, OnMissing, check_resources, judge, reject
from fencing._registry import is_async
from fencing._token import Token
from fencing._write import recorded, resolve_token
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
    ``TABLE/KEY``, the parts of a longer key joined by ``/``. ``schema``, ``on_missing`` and ``lock_timeout`` as for
    :class:`SqlGuard`.

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
        self._sql = RowStatements(table)
        self._name = resource
        self._table = table
        self._prefix = f"{table.fullname}/"
        self._known: set[tuple[str, ...]] = set()

    def resource(self, key: Any) -> str:
        """Return the name of the row's resource."""
        return self._resource(self._key(key))

    def insert(self, target: Any, values: Mapping[str, Any], *, token: Any = None) -> Any:
        """Insert a row with its mark, judged by the mark that a deleted row of that key has left.

        Returns whether it was inserted: False if there is a row of that key, which then is left as it is but for its
        mark. ``values`` holds the whole primary key.
        """
        missing = [name for name in self._sql.keys if name not in values]
        if missing:
            raise ValueError(f"values= lacks {', '.join(missing)}: the row's key is what is fenced")
        self._check(values, but_keys=False)
        return self._write(target, {name: values[name] for name in self._sql.keys}, token, values, self._insert)

    def update(self, target: Any, key: Any, values: Mapping[str, Any], *, token: Any = None) -> Any:
        """Set columns of a row; a value may be an expression over the row's own columns (keep it: it is compiled once).

        Returns whether there was such a row.
        """
        names = tuple(values)
        if names not in self._known:
            self._check(values, but_keys=True)
            self._known.add(names)
        return self._write(target, self._key(key), token, values, self._update, changes=True)

    def delete(self, target: Any, key: Any, *, token: Any = None) -> Any:
        """Delete a row; its mark is kept in ``fencing_mark``. Returns whether there was such a row."""
        return self._write(target, self._key(key), token, {}, self._delete)

    def raise_fence(self, target: Any, key: Any, *, token: Any = None) -> Any:
        """Raise the row's mark without changing it, or the one kept in ``fencing_mark`` if there is no such row.

        ``fencing.raise_fence`` and a job's ``fences=`` do not do this: they raise the one in ``fencing_mark``, and a
        change of a row that has a mark does not look there.
        """

        def plan(tx: Tx, row: _Row) -> Plan[None]:
            yield from self._update(tx, row.making())

        return self._write(target, self._key(key), token, {}, plan, kind="raise")

    def read_mark(self, target: Any, key: Any) -> Any:
        """Return the row's mark or None: to look at, never to decide by. Its time is unknown for one in the row."""
        key = self._key(key)
        name = self._resource(key)
        keyed = {f"fencing_key_{column}": value for column, value in key.items()}

        def plan(tx: Tx) -> Plan[Mark | None]:
            mark = _mark((yield Statement(self._sql.look, keyed)))
            return mark or (yield from read_mark(self._options.dialect(tx.dialect), name))

        guard: Any = self._guard.on(target)
        return guard.look(plan)

    def _write(
        self,
        target: Any,
        key: Mapping[str, Any],
        token: Any,
        values: Mapping[str, Any],
        plan: Callable[[Tx, _Row], Plan[Any]],
        kind: Any = "write",
        changes: bool = False,
    ) -> Any:
        """``changes``: the plan is that of a change, whose first statement is the only one nearly always."""
        name = self._resource(key)
        guard: Any = self._guard.on(target)
        presented, holder = resolve_token(token)
        row = _Row(name, key, presented, holder, values)
        if is_async(guard):
            return _awaited(guard, lambda tx: plan(tx, row), row, kind)
        try:
            with recorded(kind, guard, (name,), presented, holder):
                if changes and type(guard) is OpenGuard:
                    tx = guard._tx()
                    if tx.dialect == "postgresql":  # without a plan, which takes as long as all the rest here
                        return bool(tx.execute(self._change(tx, row))) or run(self._update_slowly(tx, row), tx)
                return guard.perform(lambda tx: plan(tx, row))
        except ContentionError as exc:
            row.name(exc)
            raise

    def _change(self, tx: Tx, row: _Row) -> Statement:
        return Statement(self._sql.change(tx.dialect, row.values, self._options.lock_timeout_ms), row.params())

    def _update(self, tx: Tx, row: _Row) -> Plan[bool]:
        dialect = tx.dialect
        if dialect == "postgresql":
            if (yield self._change(tx, row)):  # it bounds itself
                return True
        elif dialect == "sqlite" and (yield from bounded(self._options.dialect(dialect), _send(self._change(tx, row)))):
            return True
        return (yield from self._update_slowly(tx, row))

    def _update_slowly(self, tx: Tx, row: _Row) -> Plan[bool]:
        sql, limit_ms = self._options.dialect(tx.dialect), self._options.lock_timeout_ms
        return (yield from limited(sql, limit_ms, self._look_and_update(tx, row), lowered=True))

    def _look_and_update(self, tx: Tx, row: _Row) -> Plan[bool]:
        """The row has no mark, is not there, or refuses; or the database has no trustworthy answer to an UPDATE."""
        rows = yield Statement(self._sql.lock, row.params())
        if not rows:
            # The mark is in fencing_mark, if there is one. Whoever makes the row holds that mark until it commits.
            yield from self._raise(tx, row)
            rows = yield Statement(self._sql.lock, row.params())
            if not rows:
                return False
        mark = _mark(rows)
        if mark is None:
            yield from self._raise(tx, row)
            yield Statement(self._sql.first_change(row.values), row.params())
            return True
        self._judge(tx, row, mark)
        yield Statement(self._sql.forced_change(row.values), row.params())
        return True

    def _insert(self, tx: Tx, row: _Row) -> Plan[bool]:
        def work() -> Plan[bool]:
            yield from self._options.guard(tx, row.write())
            # The look may be at an old snapshot, on MariaDB and MySQL: what it shows may have been deleted since.
            if (yield Statement(self._sql.look, row.params())) and (yield from self._update(tx, row.without_values())):
                return False
            yield Statement(self._sql.add(row.values), row.params())
            return True

        return (yield from all_or_nothing(work(), _SAVEPOINT))

    def _delete(self, tx: Tx, row: _Row) -> Plan[bool]:
        def work() -> Plan[bool]:
            # The mark first, as an insert does: no deadlock by order. Where the row's own mark is evidence enough, the
            # one in fencing_mark need not be there.
            there = _mark((yield Statement(self._sql.look, row.params()))) is not None
            yield from self._raise(tx, row, making=there)
            rows = yield Statement(self._sql.lock, row.params())
            if not rows:
                return False
            mark = _mark(rows)
            if mark is not None:
                self._judge(tx, row, mark)
            yield Statement(self._sql.remove, row.params())
            return True

        sql = self._options.dialect(tx.dialect)
        return (yield from all_or_nothing(limited(sql, self._options.lock_timeout_ms, work()), _SAVEPOINT))

    def _raise(self, tx: Tx, row: _Row, *, making: bool = False) -> Plan[None]:
        raise_marks = self._options.raise_fence if making or row.makes else self._options.guard
        yield from raise_marks(tx, row.write())

    def _judge(self, tx: Tx, row: _Row, mark: Mark) -> None:
        verdict = judge(mark.token, row.token)
        if not verdict.accepted:
            reject(verdict, row.resource, row.token, mark, tx.downstream)

    def _resource(self, key: Mapping[str, Any]) -> str:
        if self._name is not None:
            return check_resources((self._name(key),))[0]
        if len(key) == 1:
            (part,) = key.values()
            if type(part) is int:
                return f"{self._prefix}{part}"
        return check_resources((self._prefix + "/".join(str(key[name]) for name in self._sql.keys),))[0]

    def _key(self, key: Any) -> Mapping[str, Any]:
        names = self._sql.keys
        if type(key) is int and len(names) == 1:
            return {names[0]: key}
        if isinstance(key, Mapping):
            given = dict(key)
        else:
            parts = key if isinstance(key, tuple) else (key,)
            given = dict(zip(names, parts, strict=True)) if len(parts) == len(names) else {}
        if set(given) != set(names):
            raise ValueError(f"the key of {self._table.fullname} is {', '.join(names)}; it cannot be {key!r}")
        return given

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


class _Row:
    """One change of one row."""

    __slots__ = ("holder", "key", "makes", "resource", "token", "values")

    def __init__(
        self,
        resource: str,
        key: Mapping[str, Any],
        token: Token,
        holder: str,
        values: Mapping[str, Any],
        makes: bool = False,
    ) -> None:
        self.resource = resource
        self.key = key
        self.token = token
        self.holder = holder
        self.values = values
        self.makes = makes

    def name(self, exc: ContentionError) -> None:
        """Give a contention its facts."""
        exc.resource, exc.presented = self.resource, self.token

    def write(self) -> Write:
        """What it is to ``fencing_mark``."""
        return Write((self.resource,), self.token, self.holder)

    def without_values(self) -> _Row:
        """The same row, whose mark alone is raised."""
        return _Row(self.resource, self.key, self.token, self.holder, {})

    def making(self) -> _Row:
        """The same row, whose mark is made if it is missing, whatever ``on_missing`` says."""
        return _Row(self.resource, self.key, self.token, self.holder, self.values, makes=True)

    def params(self) -> dict[str, Any]:
        """What its statements are sent with."""
        token = self.token
        made: dict[str, Any] = {
            "fencing_issuer": token.issuer,
            "fencing_lineage": token.lineage,
            "fencing_value": token.value,
            "fencing_holder": self.holder,
        }
        for name, value in self.key.items():
            made[f"fencing_key_{name}"] = value
        for name, value in self.values.items():
            made[f"fencing_set_{name}"] = value
        return made


async def _awaited(guard: Any, make: Callable[[Tx], Plan[Any]], row: _Row, kind: Any) -> Any:
    try:
        with recorded(kind, guard, (row.resource,), row.token, row.holder):
            return await guard.perform(make)
    except ContentionError as exc:
        row.name(exc)
        raise


def _send(statement: Statement) -> Plan[Rows]:
    return (yield statement)


def _mark(rows: Rows) -> Mark | None:
    if not rows or rows[0][2] is None:
        return None
    issuer, lineage, value, holder = rows[0]
    return Mark(Token(value, issuer, lineage), holder or "", None)
