"""`protect()`: the database itself refuses writes to a table outside a fenced one, whatever code they come from."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import TracebackType
from typing import Any

from sqlalchemy import Column, Table

from adapters._tx import AsyncTx, BeforeCommit, Plan, Rows, Statement, SyncTx
from adapters.sql import _triggers as triggers
from adapters.sql._guard import SqlGuard
from adapters.sql._protect_list import Protected, list_protected
from adapters.sql._schema import check_schema
from fencing._lease import process_holder
from fencing.errors import FencingError

Tx = SyncTx | AsyncTx


def protect(bind: Any, table: Any, resource: Any, *, schema: str | None = None) -> Any:
    """Let the database refuse every INSERT, UPDATE, DELETE and TRUNCATE of ``table`` outside a fenced write.

    ``table``: a ``Table`` of SQLAlchemy or a name (``SCHEMA.NAME`` too). ``resource``: a column, or an SQL expression
    over the row's columns, that gives the name of the row's resource, for example ``"'invoice/' || id"``. A row may be
    written only in a transaction that has raised the mark of that resource: by ``fenced_write``, ``raise_fence`` or
    ``fenced_statement``, not by a ``RowGuard``, whose marks are in the rows. Of a row that changes its resource, both.
    ``schema``: where the guard's tables are.

    Against mistakes, not malice: it holds for any code, ORM or console and for superusers too, but who may alter the
    table may drop its triggers. PostgreSQL: triggers that always fire; a partitioned table is covered with all its
    partitions, also later ones (but their TRUNCATE: protect it again, ``fencing doctor`` says where). SQLite: the sign
    of a fenced write ends with a commit or rollback of SQLAlchemy; a COMMIT sent as text leaves it until the next one,
    and a row that ``INSERT OR REPLACE`` pushes out is not asked for.
    May be repeated, with another expression too. Recorded. ``bind`` as for ``create_all``, or an async one (awaitable);
    a connection of psycopg in a ``transaction()``.

    Raises ``ValueError`` for a table that is not there or cannot be protected, and the database's own error for what is
    no expression over a row's columns: a name that it does not have, an aggregate.
    """
    name, expression = _table_name(table), _expression(resource)

    def plan(tx: Tx) -> Plan[None]:
        _check_dialect(tx, "protect")
        if tx.dialect == "postgresql":
            yield from _protect_postgresql(tx, name, expression, schema)
        else:
            yield from _protect_sqlite(tx, name, expression, schema)
        yield from _record(tx, schema, "protect", name, expression)

    return _perform(bind, schema, plan)


def unprotect(bind: Any, table: Any, *, schema: str | None = None) -> Any:
    """Take the protection off a table. Recorded. Nothing happens if it was not protected."""
    name = _table_name(table)

    def plan(tx: Tx) -> Plan[None]:
        _check_dialect(tx, "unprotect")
        if tx.dialect == "postgresql":
            yield from _unprotect_postgresql(tx, name)
        else:
            yield from _drop_sqlite(name, schema)
            yield from _say_protecting(schema)
        yield from _record(tx, schema, "unprotect", name, "")

    return _perform(bind, schema, plan)


def protected(bind: Any, *, schema: str | None = None) -> Any:
    """Return the protected tables, a list of :class:`Protected` (awaitable for an async bind)."""

    def plan(tx: Tx) -> Plan[list[Protected]]:
        _check_dialect(tx, "protected")
        return (yield from list_protected(tx.dialect, schema))

    guard: Any = SqlGuard(schema=check_schema(schema)).on(bind)
    return guard.look(plan)


def unfenced(target: Any, reason: str, *, schema: str | None = None) -> Unfenced:
    """A block in which ``target`` may write to protected tables outside fenced writes: for migrations and repairs.

    ``with unfenced(connection, "backfill of 2026"):`` (``async with`` for an async target). The permission is a row
    in ``fencing_act`` with who, why, when and until when: it is in the caller's transaction, ends with the block, and
    stays as a record once that commits. Other transactions are not touched.

    Raises ``ValueError`` without a reason, ``NotInTransactionError`` where nothing would end it.
    """
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError("unfenced() needs a reason: it is what the record says")
    return Unfenced(SqlGuard(schema=schema), target, reason)


class Unfenced:
    """See :func:`unfenced`."""

    def __init__(self, options: SqlGuard, target: Any, reason: str) -> None:
        guard: Any = options.on(target)
        if not hasattr(guard, "in_callers_transaction"):
            raise TypeError("unfenced() takes a connection or session in a transaction: the permission ends with it")
        self._guard = guard
        self._options = options._options
        self._reason = reason

    def _begin(self, tx: Tx) -> Plan[None]:
        _check_dialect(tx, "unfenced")
        sql = self._options.dialect(tx.dialect)
        yield Statement(sql.open_unfenced, {"actor": process_holder(), "reason": self._reason})
        if tx.dialect != "postgresql":
            yield BeforeCommit(sql.close_unfenced, ())

    def _end(self, tx: Tx) -> Plan[None]:
        yield Statement(self._options.dialect(tx.dialect).close_unfenced)

    def __enter__(self) -> None:
        self._guard.perform(self._begin)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._guard.perform(self._end)
        except FencingError:
            if kind is None:  # else the transaction failed, and the permission with it
                raise

    async def __aenter__(self) -> None:
        await self._guard.perform(self._begin)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._guard.perform(self._end)
        except FencingError:
            if kind is None:
                raise


def _check_dialect(tx: Tx, function: str) -> None:
    if tx.dialect == "mysql":
        raise TypeError(f"{function}() is for PostgreSQL and SQLite: {tx.downstream} cannot protect a table")


def _perform(bind: Any, schema: str | None, plan: Callable[[Tx], Plan[Any]]) -> Any:
    guard: Any = SqlGuard(schema=check_schema(schema)).on(bind)
    return guard.perform(plan)


def _table_name(table: Any) -> str:
    if isinstance(table, Table):
        return ".".join(filter(None, (table.schema, table.name)))
    if not isinstance(table, str) or not table:
        raise TypeError(f"protect() takes a Table or the name of one, not {table!r}")
    return table


def _expression(resource: Any) -> str:
    if isinstance(resource, Column):
        return triggers.quoted(resource.name)
    if not isinstance(resource, str) or not resource.strip():
        raise TypeError(f"resource= takes a column or an SQL expression over the row's columns, not {resource!r}")
    for part in ("*/", "/*", "$fencing$", "--", ";"):
        if part in resource:
            raise ValueError(f"resource= takes one SQL expression without {part!r}, not {resource!r}")
    return resource.strip()


def _record(tx: Tx, schema: str | None, kind: str, table: str, detail: str) -> Plan[None]:
    sql = SqlGuard(schema=schema)._options.dialect(tx.dialect)
    facts = {"kind": kind, "resource": table, "actor": process_holder(), "reason": "", "detail": detail}
    yield Statement(sql.insert_act, facts)


# By its exact name: to_regclass() fails on a name that would need quotes, on older servers.
_FIND = """select c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.relispartition
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.relname = cast(:table as text)
        and (n.nspname = cast(:space as text) or (cast(:space as text) is null and pg_table_is_visible(c.oid)))"""
_PARTITIONS = """select n.nspname, c.relname from pg_partition_tree(cast(cast(:oid as bigint) as regclass)) p
    join pg_class c on c.oid = p.relid join pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('r', 'p') order by p.level, n.nspname, c.relname"""


# The functions that the triggers of a table and its partitions run.
_FUNCTIONS = """select distinct t.tgfoid::bigint from pg_trigger t
    where (t.tgrelid = cast(:oid as bigint)
            or t.tgrelid in (select p.relid from pg_partition_tree(cast(cast(:oid as bigint) as regclass)) p))
        and starts_with(t.tgname, :prefix)"""
_IDLE = """select n.nspname, p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace
    where p.oid = cast(:oid as bigint) and not exists (select from pg_trigger t where t.tgfoid = p.oid)"""


def _find(tx: Tx, name: str) -> Plan[tuple[Any, ...]]:
    space, _, table = name.rpartition(".")
    rows = yield Statement(_FIND, {"space": space or None, "table": table})
    if not rows:
        raise ValueError(f"{tx.downstream}: there is no table {name}; nothing was changed")
    return rows[0]


def _protect_postgresql(tx: Tx, name: str, expression: str, schema: str | None) -> Plan[None]:
    oid, space, table, kind, partition = yield from _find(tx, name)
    if kind not in ("r", "p"):
        raise ValueError(f"{tx.downstream}: {name} is no table but of the kind {kind!r}; protect the tables behind it")
    if partition:
        raise ValueError(f"{tx.downstream}: {name} is a partition; protect the partitioned table, which covers it")
    _, marks, *_ = yield from _find(tx, f"{schema}.fencing_mark" if schema else "fencing_mark")
    full = f"{triggers.quoted(space)}.{triggers.quoted(table)}"
    yield Statement(f"lock table only {full} in access exclusive mode", None)
    yield Statement(triggers.trial(f"only {full}", expression), None)
    before = yield Statement(_FUNCTIONS, {"oid": oid, "prefix": triggers.PREFIX})
    function = f"{triggers.quoted(marks)}.{triggers.new_name()}"
    yield Statement(triggers.postgresql_function(function, triggers.quoted(marks), expression), None)
    for sql in triggers.postgresql_triggers(full, function, partitioned=kind == "p"):
        yield Statement(sql, None)
    rows = yield Statement(_PARTITIONS, {"oid": oid})
    for one_space, one in rows or [(space, table)]:
        part = f"{triggers.quoted(one_space)}.{triggers.quoted(one)}"
        for sql in triggers.postgresql_truncate(part, function):
            yield Statement(sql, None)
        if kind == "p":  # the clones of the row trigger keep the mode that they were made with
            yield Statement(f"alter table {part} enable always trigger {triggers.PREFIX}rows", None)
    yield from _drop_idle(before)


def _unprotect_postgresql(tx: Tx, name: str) -> Plan[None]:
    oid, space, table, *_ = yield from _find(tx, name)
    before = yield Statement(_FUNCTIONS, {"oid": oid, "prefix": triggers.PREFIX})
    rows = yield Statement(_PARTITIONS, {"oid": oid})
    for one_space, one in rows or [(space, table)]:
        part = f"{triggers.quoted(one_space)}.{triggers.quoted(one)}"
        yield Statement(f"drop trigger if exists {triggers.PREFIX}truncate on {part}", None)
    for sql in triggers.postgresql_drops(f"{triggers.quoted(space)}.{triggers.quoted(table)}"):
        yield Statement(sql, None)
    yield from _drop_idle(before)


def _drop_idle(functions: Rows) -> Plan[None]:
    for (oid,) in functions:
        for space, name in (yield Statement(_IDLE, {"oid": oid})):
            yield Statement(f"drop function {triggers.quoted(space)}.{triggers.quoted(name)}()", None)


_ONE_NAME = re.compile(r'"[^"`]+"')


def _protect_sqlite(tx: Tx, name: str, expression: str, schema: str | None) -> Plan[None]:
    rows = yield Statement(f"pragma {_prefix(schema)}table_info({triggers.quoted(name)})", None)
    if not rows:
        raise ValueError(f"{tx.downstream}: there is no table {name}; nothing was changed")
    # Of "name" SQLite makes a text where there is no such column; of `name` never.
    tried = expression.replace('"', "`") if _ONE_NAME.fullmatch(expression) else expression
    yield Statement(triggers.trial(f"{_prefix(schema)}{triggers.quoted(name)}", tried), None)
    yield from _drop_sqlite(name, schema)
    for sql in triggers.sqlite_triggers(schema, name, [row[1] for row in rows], expression):
        yield Statement(sql, None)
    yield from _say_protecting(schema)


def _drop_sqlite(name: str, schema: str | None) -> Plan[None]:
    rows = yield Statement(
        f"""select name from {_prefix(schema)}sqlite_master where type = 'trigger' and tbl_name = :table collate nocase
            and name glob '{triggers.PREFIX}*'""",
        {"table": name},
    )
    for (one,) in rows:
        yield Statement(f"drop trigger {_prefix(schema)}{triggers.quoted(one)}", None)


def _say_protecting(schema: str | None) -> Plan[None]:
    prefix = _prefix(schema)
    yield Statement(
        f"""update {prefix}fencing_floor set protecting = (select max(1) from {prefix}sqlite_master
            where type = 'trigger' and name glob '{triggers.PREFIX}*')"""
    )


def _prefix(schema: str | None) -> str:
    return f'"{schema}".' if schema else ""
