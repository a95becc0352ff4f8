"""What in a database's set-up would break a promise, as a plan that only reads."""

from __future__ import annotations

import time
from datetime import UTC

from adapters._tx import Plan, Statement
from adapters.sql._protect_list import list_protected
from fencing._findings import Finding

_TABLES = ("fencing_mark", "fencing_applied", "fencing_floor", "fencing_act", "fencing_horizon")
_OLDEST_SQLITE = (3, 35)
_MAX_SKEW = 2.0
"""Seconds by which the clocks of application and database may differ before it is worth a word."""
_CLOCKS = {
    "postgresql": "select cast(extract(epoch from clock_timestamp()) as double precision)",
    "mysql": "select unix_timestamp(sysdate(6))",
}
"""SQLite has the application's own."""


def diagnose(dialect: str, schema: str | None, downstream: str) -> Plan[list[Finding]]:
    """Return the findings for one database."""
    looks = {"postgresql": _postgresql, "sqlite": _sqlite, "mysql": _mysql}
    findings = yield from looks[dialect](schema, downstream)
    if dialect in _CLOCKS:
        sent = time.time()
        [(clock,)] = yield Statement(_CLOCKS[dialect])
        findings.append(clock_finding(downstream, float(clock), sent, time.time()))
    if not any(one.severity == "broken" for one in findings if one.check in ("sql.tables", "sql.privileges")):
        quote = "`" if dialect == "mysql" else '"'
        findings += yield from _floor(schema, downstream, quote)
        findings.append((yield from _horizon(schema, downstream, quote)))
        if dialect != "mysql":
            findings += yield from _protection(dialect, schema, downstream)
    return findings


def clock_finding(where: str, clock: float, sent: float, answered: float) -> Finding:
    """Compare the database's clock with this machine's, which asked at ``sent`` and had the answer at ``answered``."""
    skew = min(clock - sent, 0.0) or max(clock - answered, 0.0)  # anything in between may be right
    far = abs(skew) > _MAX_SKEW
    return Finding(
        "sql.clock",
        "warning" if far else "ok",
        where,
        f"the database's clock is {skew:+.3f} s from this machine's",
        "no write is judged by a clock; but people who compare the times of marks and refusals with logs are misled"
        if far
        else "",
        "let both synchronise their clocks" if far else "",
    )


def _floor(schema: str | None, where: str, quote: str) -> Plan[list[Finding]]:
    prefix = f"{quote}{schema}{quote}." if schema else ""
    rows = yield Statement(f"select count(*) from {prefix}fencing_floor")
    issuers = yield Statement(
        f"select issuer, count(*), max(value) from {prefix}fencing_mark group by issuer order by 1"
    )
    known = ", ".join(f"{issuer} ({count} marks, up to {value})" for issuer, count, value in issuers) or "none"
    found = [
        Finding("sql.issuers", "ok", where, f"issuers behind the marks: {known}; compare with what they issue now")
    ]
    if not rows[0][0]:
        found.append(
            Finding(
                "sql.floor",
                "broken",
                where,
                "fencing_floor has no row",
                "no mark can be made: nothing says which ones were compacted",
                f"insert into {prefix}fencing_floor (one, floors) values (1, '{{}}')",
            )
        )
    return found


def _horizon(schema: str | None, where: str, quote: str) -> Plan[Finding]:
    table = f"{quote}{schema}{quote}.fencing_horizon" if schema else "fencing_horizon"
    rows = yield Statement(f"select horizon from {table}")
    if not rows:
        return Finding(
            "sql.horizon",
            "broken",
            where,
            "fencing_horizon has no row",
            "no new once= key is taken: nothing says which records of applied effects were purged",
            f"insert into {table} (one) values (1)",
        )
    horizon = rows[0][0]
    if getattr(horizon, "tzinfo", None) is not None:
        horizon = horizon.astimezone(UTC).replace(tzinfo=None)
    return Finding(
        "sql.horizon",
        "ok",
        where,
        "nothing was purged of the records of once= keys; adapters.sql.purge_applied() keeps them few"
        if horizon is None
        else f"records of once= keys were purged: one without a record is refused to work from before {horizon} (UTC)",
    )


def _protection(dialect: str, schema: str | None, where: str) -> Plan[list[Finding]]:
    found = []
    for one in (yield from list_protected(dialect, schema)):
        gaps = "; ".join(one.gaps)
        found.append(
            Finding(
                "sql.protected",
                "broken" if gaps else "ok",
                where,
                f"{one.table} is protected by {one.resource}" + (f", but: {gaps}" if gaps else ""),
                "writes past the guard are not refused there" if gaps else "",
                f"adapters.sql.protect(bind, {one.table!r}, {one.resource!r}) again" if gaps else "",
            )
        )
    return found


def _mysql(schema: str | None, where: str) -> Plan[list[Finding]]:
    rows = yield Statement(
        "select table_name, engine from information_schema.tables where table_schema = coalesce(:schema, database())",
        {"schema": schema},
    )
    engines = {name.lower(): engine for name, engine in rows}
    findings = [_table(where, name, name in engines) for name in _TABLES]
    for name in _TABLES:
        if engines.get(name, "InnoDB") != "InnoDB":
            findings.append(
                Finding(
                    "sql.engine",
                    "broken",
                    where,
                    f"{name} is a table of the engine {engines[name]}",
                    "it has no transactions and no row locks: what a refused write left stays, and marks are not held",
                    f"alter table {name} engine = InnoDB",
                )
            )
    [(isolation, flush, wait, version)] = yield Statement(
        "select @@transaction_isolation, @@innodb_flush_log_at_trx_commit, @@innodb_lock_wait_timeout, version()"
        if (yield Statement("show variables like 'transaction_isolation'"))
        else "select @@tx_isolation, @@innodb_flush_log_at_trx_commit, @@innodb_lock_wait_timeout, version()"
    )
    findings.append(
        Finding(
            "sql.isolation",
            "ok",
            where,
            f"{version}, isolation level {isolation}: the mark is always read as it is, but under REPEATABLE READ a "
            "plain SELECT in the block shows what was there when the transaction began",
        )
    )
    findings.append(_durability(where, "innodb_flush_log_at_trx_commit", str(flush), str(flush) == "1", "1"))
    findings.append(
        Finding(
            "sql.rowcount",
            "ok",
            where,
            "the guard reads its verdict from the mark's row; the number of rows that this server reports for an "
            "upsert or a repeated write says nothing",
        )
    )
    findings.append(
        Finding(
            "sql.lock_timeout", "ok", where, f"innodb_lock_wait_timeout is {wait} s; the guard lowers it for itself"
        )
    )
    return findings


def _durability(where: str, setting: str, value: str, durable: bool, wanted: str) -> Finding:
    return Finding(
        "sql.durability",
        "ok" if durable else "warning",
        where,
        f"{setting} is {value}",
        ""
        if durable
        else "a crash of the server loses the last commits, effects and marks together: a job that its scheduler has "
        "recorded as completed may have lost its effect",
        "" if durable else f"{setting} = {wanted} for the application's role",
    )


def _postgresql(schema: str | None, where: str) -> Plan[list[Finding]]:
    prefix = f'"{schema}".' if schema else ""
    rows = yield Statement(
        """select n.name, c.relpersistence::text, has_table_privilege(c.oid, 'select')
                and has_table_privilege(c.oid, 'insert') and has_table_privilege(c.oid, 'update'),
                has_table_privilege(c.oid, 'delete')
            from unnest(cast(:names as text[])) with ordinality as n (name, place)
            left join pg_class c on c.oid = to_regclass(cast(:prefix as text) || n.name)
            order by n.place""",
        {"names": list(_TABLES), "prefix": prefix},
    )
    findings = [_table(where, name, persistence is not None) for name, persistence, *_ in rows]
    for name, persistence, writable, deletable in rows:
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
        if name == "fencing_mark" and deletable is False:
            findings.append(
                Finding(
                    "sql.privileges",
                    "broken",
                    where,
                    f"this role may not delete from {name}",
                    "a token below a floor is refused with the database's error and not with StaleTokenError: the mark "
                    "that it has made cannot be taken back by itself",
                    f"grant delete on {prefix}{name} to the application's role",
                )
            )
    findings += yield from _sequence(prefix, where)
    [(idle, isolation, standby, synchronous, fsync, pages)] = yield Statement(
        """select current_setting('idle_in_transaction_session_timeout'),
            current_setting('default_transaction_isolation'), pg_is_in_recovery(),
            current_setting('synchronous_commit'), current_setting('fsync'), current_setting('full_page_writes')"""
    )
    findings.append(_idle_timeout(where, idle))
    findings.append(_isolation(where, isolation))
    findings.append(_durability(where, "synchronous_commit", synchronous, synchronous != "off", "on"))
    for setting, value in (("fsync", fsync), ("full_page_writes", pages)):
        if value == "off":
            findings.append(_durability(where, setting, value, False, "on"))
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


def _sequence(prefix: str, where: str) -> Plan[list[Finding]]:
    """Whether this role may record acts, whose numbers come from a sequence."""
    rows = yield Statement(
        """select s.name from (select case when to_regclass(cast(:prefix as text) || 'fencing_act') is not null
                    then pg_get_serial_sequence(cast(:prefix as text) || 'fencing_act', 'id') end as name) as s
            where not has_sequence_privilege(s.name, 'usage')""",
        {"prefix": prefix},
    )
    return [
        Finding(
            "sql.privileges",
            "warning",
            where,
            f"this role may not use {sequence}",
            "adopt(), compact(), purge_applied(), unfenced() and keep_refusals() fail: they write into fencing_act",
            f"grant usage on sequence {sequence} to the role that does so",
        )
        for (sequence,) in rows
    ]


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
