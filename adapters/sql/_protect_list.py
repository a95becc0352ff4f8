"""Which tables are protected, and what is missing of it."""

from __future__ import annotations

from dataclasses import dataclass

from adapters._tx import Plan, Statement
from adapters.sql import _triggers as triggers


@dataclass(frozen=True, slots=True)
class Protected:
    """A protected table: ``SCHEMA.NAME`` (``NAME`` on SQLite), the expression of its resource, and what lacks triggers.

    ``gaps``: partitions without the trigger against TRUNCATE, and triggers that somebody disabled: protect it again.
    And a table that it inherits from and that is not protected: a statement on that asks for no trigger here.
    """

    table: str
    resource: str
    gaps: tuple[str, ...] = ()


def list_protected(dialect: str, schema: str | None) -> Plan[list[Protected]]:
    """Return the protected tables."""
    return (yield from _list_postgresql() if dialect == "postgresql" else _list_sqlite(schema))


# Of each table with one of our triggers: its root, the function's text, and which of those that it needs do not fire.
_LIST = """with ours as (
    select t.tgrelid, t.tgname::text as name, t.tgenabled::text as mode, p.prosrc as source, c.relname, n.nspname,
        c.relkind, coalesce(pg_partition_root(t.tgrelid), t.tgrelid) as root
    from pg_trigger t join pg_proc p on p.oid = t.tgfoid
        join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace
    where starts_with(t.tgname, 'fencing_protect_'))
select n.nspname || '.' || c.relname, max(o.source),
    array(select r.nspname || '.' || r.relname || ' (' || r.name || ' is disabled)' from ours r
        where r.root = o.root and r.mode <> 'A' order by 1)
    || array(select cast(p.relid as text) || ' (no trigger against TRUNCATE)' from pg_partition_tree(o.root) p
        join pg_class k on k.oid = p.relid and k.relkind in ('r', 'p')
        where not exists (select from ours r where r.tgrelid = p.relid and r.name = 'fencing_protect_truncate')
        order by 1)
    || array(select needed || ' is missing' from unnest(case when c.relkind = 'p' then array['fencing_protect_rows']
            else array['fencing_protect_insert', 'fencing_protect_update', 'fencing_protect_delete',
                'fencing_protect_truncate'] end) as needed
        where not exists (select from ours r where r.tgrelid = o.root and r.name = needed) order by 1)
    || array(select cast(i.inhparent as regclass) || ' is its parent and not protected: statements on that pass by'
        from pg_inherits i where i.inhrelid = o.root
        and not exists (select from ours r where r.tgrelid = i.inhparent) order by 1)
from ours o join pg_class c on c.oid = o.root join pg_namespace n on n.oid = c.relnamespace
group by o.root, n.nspname, c.relname, c.relkind order by 1"""


def _list_postgresql() -> Plan[list[Protected]]:
    rows = yield Statement(_LIST)
    return [Protected(table, triggers.resource_in(source), tuple(gaps)) for table, source, gaps in rows]


def _list_sqlite(schema: str | None) -> Plan[list[Protected]]:
    rows = yield Statement(
        f"""select tbl_name, max(sql), group_concat(name) from {_prefix(schema)}sqlite_master
            where type = 'trigger' and name glob '{triggers.PREFIX}*' group by tbl_name order by tbl_name"""
    )
    found = []
    for table, source, names in rows:
        needed = [triggers.PREFIX + event for event in ("insert", "update", "delete")]
        gaps = tuple(f"{one} is missing" for one in needed if f",{one}_" not in f",{names}")
        found.append(Protected(table, triggers.resource_in(source), gaps))
    return found


def _prefix(schema: str | None) -> str:
    return f'"{schema}".' if schema else ""
