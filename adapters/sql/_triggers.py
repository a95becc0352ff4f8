"""The triggers of a protected table, as texts: what they ask, and how they are made, found and dropped."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence

from adapters.sql._postgresql import TX

SQLSTATE = "FENCE"
"""What PostgreSQL says of a write outside a fenced one."""
PREFIX = "fencing_protect_"

_SAYS = re.compile(r"/\* resource: (.*?) \*/", re.DOTALL)


def quoted(name: str) -> str:
    """An identifier, quoted."""
    return '"' + name.replace('"', '""') + '"'


def resource_in(text: str) -> str:
    """The expression that a trigger's text was made with."""
    found = _SAYS.search(text)
    return found.group(1) if found else ""


def _note(expression: str) -> str:
    return f"/* resource: {expression} */"


def trial(table: str, expression: str) -> str:
    """A statement that changes and reads nothing, and fails for what is no expression over a row of the table.

    Without it every later write would fail. In a WHERE, for there no aggregate is allowed, which would be one resource
    for all rows of a statement.
    """
    return f"select 1 from {table} where cast(({expression}) as text) is null limit 0"


def new_name() -> str:
    """A name that nothing has: a table can be renamed, and another one take its name."""
    return PREFIX + secrets.token_hex(8)


def postgresql_function(function: str, marks: str, expression: str) -> str:
    """The trigger function. ``function`` and the schema ``marks`` are quoted names.

    A mark of this transaction is one whose row this transaction wrote, also in a savepoint, which takes it back when
    it is rolled back. The time is looked at too, of a permission as well: a transaction of another cluster (a dump that
    was restored) may have had the same number.
    """
    # A scalar subquery is always looked up by the key. A join would be planned for the first statement of a session,
    # and the plan kept: after one that changed many rows, each later one would read all marks.
    unfenced = f"""not coalesce((select m.tx = {TX} and m.marked_at >= transaction_timestamp()
                from {marks}.fencing_mark as m where m.resource = r.resource), false)"""
    rows = {
        "UPDATE": "(select * from fencing_old union all select * from fencing_new) as fencing_rows",
        "INSERT": "fencing_new",
        "DELETE": "fencing_old",
    }
    row = {
        "UPDATE": "(select old.* union all select new.*) as fencing_rows",
        "INSERT": "(select new.*) as fencing_rows",
        "DELETE": "(select old.*) as fencing_rows",
    }

    def look(source: str) -> str:
        return f"""select coalesce(r.resource, '(none: the expression is null)') into missed
            from (select cast(({expression}) as text) as resource from {source}) as r
            where {unfenced} limit 1;"""

    branches = "\n    els".join(
        f"if tg_op = '{name}' then\n        if tg_level = 'STATEMENT' then {look(rows[name])}\n"
        f"        else {look(row[name])}\n        end if;"
        for name in rows
    )
    whole = look("only TABLE").replace(" into missed", "").rstrip(";")
    whole = whole.replace("%", "%%").replace("only TABLE", "only %s").replace("'", "''")
    # No more than what must be done for a fenced write before the first return.
    return f"""create or replace function {function}() returns trigger language plpgsql as $fencing$
#variable_conflict use_column
{_note(expression)}
declare
    missed text;
begin
    {branches}
    else
        execute format('{whole}', cast(tg_relid as regclass)) into missed;
    end if;
    if missed is null then
        return null;
    end if;
    if not exists (select from {marks}.fencing_act as a
            where a.kind = 'unfenced' and a.tx = {TX} and a.ended_at is null
                and a.at >= transaction_timestamp()) then
        raise exception '% of %.% outside a fenced write of the resource %',
                tg_op, tg_table_schema, tg_table_name, missed
            using errcode = '{SQLSTATE}', detail = 'The table is protected by adapters.sql.protect().',
                hint = 'Write inside fenced_write(); for a migration: with unfenced(connection, reason).';
    end if;
    return null;
end $fencing$"""


def postgresql_triggers(table: str, function: str, *, partitioned: bool) -> Iterator[str]:
    """The statements that put the triggers on a table (quoted name), each to be sent alone.

    Statement triggers see all rows of a statement in one table. Those of a partitioned table do not fire for a
    statement on a partition, and are not on a partition that comes later; row triggers are.
    """
    yield from postgresql_drops(table)
    run = f"execute function {function}()"
    if partitioned:
        yield f"create trigger {PREFIX}rows after insert or update or delete on {table} for each row {run}"
        yield f"alter table {table} enable always trigger {PREFIX}rows"
        return
    for event, tables in (
        ("insert", "new table as fencing_new"),
        ("update", "old table as fencing_old new table as fencing_new"),
        ("delete", "old table as fencing_old"),
    ):
        name = PREFIX + event
        yield f"create trigger {name} after {event} on {table} referencing {tables} for each statement {run}"
        yield f"alter table {table} enable always trigger {name}"


def postgresql_truncate(table: str, function: str) -> Iterator[str]:
    """The trigger against TRUNCATE, which each partition needs for itself."""
    yield f"drop trigger if exists {PREFIX}truncate on {table}"
    yield f"create trigger {PREFIX}truncate before truncate on {table} for each statement execute function {function}()"
    yield f"alter table {table} enable always trigger {PREFIX}truncate"


def postgresql_drops(table: str) -> Iterator[str]:
    """The statements that take the triggers off a table, but for TRUNCATE's."""
    for event in ("rows", "insert", "update", "delete"):
        yield f"drop trigger if exists {PREFIX}{event} on {table}"


def sqlite_triggers(schema: str | None, table: str, columns: Sequence[str], expression: str) -> Iterator[str]:
    """The statements that put the triggers on a table. After the change: before it, a new row has no rowid yet."""
    prefix = f"{quoted(schema)}." if schema else ""
    key = new_name().removeprefix(PREFIX)
    for event, sides in (("insert", ("new",)), ("update", ("old", "new")), ("delete", ("old",))):
        fenced = " and ".join(
            f"exists (select 1 from fencing_mark where tx = 1 and resource = {_of(side, columns, expression)})"
            for side in sides
        )
        yield f"""create trigger {prefix}{quoted(f"{PREFIX}{event}_{key}")} after {event} on {quoted(table)}
when not ({fenced}) and not exists (select 1 from fencing_act where kind = 'unfenced' and tx = 1 and ended_at is null)
begin
    select raise(abort, '{event} of {table.replace("'", "''")} outside a fenced write: the table is protected by \
adapters.sql.protect(); write inside fenced_write(), for a migration: with unfenced(connection, reason)');
    {_note(expression)}
end"""


def _of(side: str, columns: Sequence[str], expression: str) -> str:
    shown = ", ".join(f"{side}.{quoted(name)} as {quoted(name)}" for name in columns)
    return f"(select cast(({expression}) as text) from (select {shown}))"
