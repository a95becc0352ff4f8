"""What in a database's set-up would break a promise, as a plan that only reads."""

from __future__ import annotations

from adapters._tx import Plan, Statement
from fencing._findings import Finding

_TABLES = ("fencing_mark", "fencing_applied", "fencing_floor", "fencing_act")
_OLDEST_SQLITE = (3, 35)


def diagnose(dialect: str, schema: str | None, downstream: str) -> Plan[list[Finding]]:
    """Return the findings for one database."""
    return (yield from (_postgresql if dialect == "postgresql" else _sqlite)(schema, downstream))


def _postgresql(schema: str | None, where: str) -> Plan[list[Finding]]:
    prefix = f'"{schema}".' if schema else ""
    rows = yield Statement(
        """select n.name, c.relpersistence::text, has_table_privilege(c.oid, 'select')
                and has_table_privilege(c.oid, 'insert') and has_table_privilege(c.oid, 'update')
            from unnest(cast(:names as text[])) with ordinality as n (name, place)
            left join pg_class c on c.oid = to_regclass(cast(:prefix as text) || n.name)
            order by n.place""",
        {"names": list(_TABLES), "prefix": prefix},
    )
    findings = [_table(where, name, persistence is not None) for name, persistence, _ in rows]
    for name, persistence, writable in rows:
        if persistence == "u":
            findings.append(
                Finding(
                    "sql.logged",
                    "broken",
                    where,
                    f"{name} is an unlogged table",
                    "a crash of the server empties it, and a mark that is gone lets an older token write (promise 1)",
                    f"alter table {prefix}{name} set logged",
                )
            )
        if persistence is not None and not writable:
            findings.append(
                Finding(
                    "sql.privileges",
                    "broken",
                    where,
                    f"this role may not select, insert and update {name}",
                    "every fenced write fails",
                    f"grant select, insert, update on {prefix}{name} to the application's role",
                )
            )
    [(idle, isolation, standby)] = yield Statement(
        "select current_setting('idle_in_transaction_session_timeout'), "
        "current_setting('default_transaction_isolation'), pg_is_in_recovery()"
    )
    findings.append(_idle_timeout(where, idle))
    findings.append(_isolation(where, isolation))
    if standby:
        findings.append(
            Finding(
                "sql.primary",
                "broken",
                where,
                "this server is a standby",
                "marks cannot be raised here, and reading them decides nothing",
                "connect to the primary, for example with target_session_attrs=read-write",
            )
        )
    return findings


def _sqlite(schema: str | None, where: str) -> Plan[list[Finding]]:
    prefix = f'"{schema}".' if schema else ""
    rows = yield Statement(f"select name from {prefix}sqlite_master where type = 'table'")
    present = {name for (name,) in rows}
    findings = [_table(where, name, name in present) for name in _TABLES]
    [(version,)] = yield Statement("select sqlite_version()")
    old = tuple(map(int, version.split(".")[:2])) < _OLDEST_SQLITE
    findings.append(
        Finding(
            "sql.version",
            "broken" if old else "ok",
            where,
            f"SQLite {version}",
            "statements with RETURNING fail, so no fenced write can be made" if old else "",
            "use a Python that comes with SQLite 3.35 or newer" if old else "",
        )
    )
    [(journal,)] = yield Statement(f"pragma {prefix}journal_mode")
    unsafe = journal == "off"
    findings.append(
        Finding(
            "sql.journal",
            "broken" if unsafe else "ok",
            where,
            f"journal_mode is {journal}",
            "nothing can be rolled back: what a refused or failed write left stays" if unsafe else "",
            "pragma journal_mode = wal" if unsafe else "",
        )
    )
    [(busy,)] = yield Statement("pragma busy_timeout")
    findings.append(
        Finding(
            "sql.busy_timeout",
            "ok" if busy else "warning",
            where,
            f"busy_timeout is {busy} ms",
            "" if busy else "two writers at once: one fails with ContentionError at once instead of waiting its turn",
            "" if busy else "connect with a timeout, for example connect_args={'timeout': 5}",
        )
    )
    return findings


def _table(where: str, name: str, present: bool) -> Finding:
    return Finding(
        "sql.tables",
        "ok" if present else "broken",
        where,
        f"{name} {'is there' if present else 'is missing'}",
        "" if present else "fenced writes fail with SchemaMissingError",
        "" if present else "adapters.sql.create_all(bind), or a migration with the text of adapters.sql.ddl(dialect)",
    )


def _idle_timeout(where: str, idle: str) -> Finding:
    unset = idle == "0"
    return Finding(
        "sql.idle_in_transaction",
        "warning" if unset else "ok",
        where,
        f"idle_in_transaction_session_timeout is {'off' if unset else idle}",
        "a holder that is stopped inside its transaction keeps its marks locked: each newer holder waits for its lock "
        "timeout and fails with ContentionError, until the stopped one's connection is closed"
        if unset
        else "",
        "alter role <application> set idle_in_transaction_session_timeout = '60s'" if unset else "",
    )


def _isolation(where: str, isolation: str) -> Finding:
    meaning = (
        "a writer waits for the mark and is then judged"
        if isolation == "read committed"
        else "a mark that moved since the snapshot is a ContentionError, to be tried again in a new transaction"
    )
    return Finding("sql.isolation", "ok", where, f"default_transaction_isolation is {isolation}: {meaning}")
