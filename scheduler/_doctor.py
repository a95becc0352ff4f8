"""What in the scheduler's database would break a promise."""

from __future__ import annotations

import time
from collections.abc import Iterator

from psycopg.rows import dict_row

from fencing import Finding
from scheduler._connect import Connection
from scheduler._issuer import clock_floor, lock_state
from scheduler._migrate import check_migrated
from scheduler._sql import Statements
from scheduler.errors import IssuerError, NotMigratedError

MAX_SKEW = 2.0
"""Seconds by which the clocks of application and database may differ before it is worth a word."""

OLDEST_DUE = 60.0
"""Seconds that a due job may wait before it is worth a word."""


def diagnose(connection: Connection, statements: Statements) -> Iterator[Finding]:
    """Look at the schema, the issuer, durability, clocks and the state of the work; yield one finding per check."""
    where = f"scheduler {statements.schema!r} in {connection.info.dbname}"
    try:
        check_migrated(connection, statements)
    except NotMigratedError as exc:
        yield Finding(
            "migrations", "broken", where, str(exc), "nothing can be claimed or enqueued", "run `fencing migrate`"
        )
        return
    yield Finding("migrations", "ok", where, "every migration is applied")
    with connection.cursor(row_factory=dict_row) as cursor:
        health = cursor.execute(statements["health"]).fetchall()[0]
    yield from _durability(where, health)
    if health["standby"]:
        yield Finding(
            "primary",
            "broken",
            where,
            "this server is a standby",
            "no token can be issued here",
            "use the primary's address",
        )
        return
    yield _issuer(connection, statements, where)
    skew = health["clock"] - time.time()
    yield _limit("clock skew", where, abs(skew), MAX_SKEW, f"the database's clock is {skew:+.3f} s from this machine's")
    waited = health["oldest_due"] or 0.0
    yield _limit("oldest due job", where, waited, OLDEST_DUE, f"the oldest due job has waited {waited:.0f} s")
    yield from _work(where, health)


def _durability(where: str, health: dict[str, object]) -> Iterator[Finding]:
    for setting in ("fsync", "full_page_writes"):
        on = health[setting] == "on"
        yield Finding(
            setting,
            "ok" if on else "broken",
            where,
            f"{setting} = {health[setting]}",
            "" if on else "a crash of the machine may lose committed jobs and issued tokens",
            "" if on else f"set {setting} = on",
        )


def _issuer(connection: Connection, statements: Statements, where: str) -> Finding:
    with connection.transaction(force_rollback=True):
        state, clock_ms = lock_state(connection, statements)
    name = f"{state.name}, lineage {state.lineage}"
    if clock_ms << 11 < state.floor:
        return Finding(
            "issuer",
            "broken",
            where,
            f"{name}: the database's clock is behind the issuer's last change",
            "after another failover new tokens could lie below old ones",
            "set the server's clock, then run `fencing issuer bump`",
        )
    if state.current:
        return Finding("issuer", "ok", where, name)
    try:
        clock_floor(clock_ms, state.floor)
    except IssuerError as exc:
        return Finding("issuer", "broken", where, str(exc), "no token can be issued", "see `fencing issuer bump`")
    return Finding("issuer", "ok", where, f"{name}: the server has changed; the next claim begins a new lineage")


def _limit(check: str, where: str, value: float, limit: float, message: str) -> Finding:
    if value <= limit:
        return Finding(check, "ok", where, message)
    breaks = {
        "clock skew": "nothing is decided by this machine's clock, but people will read its logs wrongly",
        "oldest due job": "jobs run late",
    }[check]
    remedy = {
        "clock skew": "let both synchronise their clocks",
        "oldest due job": "start more workers, or workers that know the task of the waiting jobs",
    }[check]
    return Finding(check, "warning", where, message, breaks, remedy)


def _work(where: str, health: dict[str, object]) -> Iterator[Finding]:
    checks = {
        "expired": (
            "expired leases",
            "jobs whose lease ran out over a minute ago are not taken back",
            "start a worker that knows their tasks",
        ),
        "long_running": (
            "long-running jobs",
            "jobs claimed over an hour ago still renew their lease: they may be stuck",
            "look at them with `fencing jobs list --status leased`",
        ),
        "dead": ("dead jobs", "these jobs will not run again by themselves", "see `fencing jobs list --status dead`"),
        "late_schedules": (
            "late schedules",
            "occurrences due over five minutes ago have not become jobs",
            "start a worker; look for zone-data errors in its log",
        ),
    }
    for column, (check, breaks, remedy) in checks.items():
        count = health[column]
        if count:
            yield Finding(check, "warning", where, f"{count}", breaks, remedy)
        else:
            yield Finding(check, "ok", where, "none")
