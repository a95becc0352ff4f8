"""What in the scheduler's database would break a promise."""

from __future__ import annotations

import time
from collections.abc import Iterator

from psycopg.rows import dict_row

from fencing import Finding
from scheduler._connect import Connection
from scheduler._issuer import SHIFT, clock_floor, lock_state
from scheduler._measure import measure
from scheduler._measures import Measures
from scheduler._migrate import check_migrated
from scheduler._sql import Statements
from scheduler.errors import IssuerError, NotMigratedError

MAX_SKEW = 2.0
"""Seconds by which the clocks of application and database may differ before it is worth a word."""

OLD_FLOOR = 300.0
"""Days since the issuer's last change after which it is worth a word: after 365 the next change needs a person."""

OLDEST_DUE = 60.0
"""Seconds that a due job may wait before it is worth a word, in a queue of which no acceptable lag was stated."""

OLD_TRANSACTION = 600.0
"""Seconds that a transaction may be open before it is worth a word."""

SILENT = 60.0
"""Seconds that a worker may be silent before it is worth a word."""


def diagnose(connection: Connection, statements: Statements) -> Iterator[Finding]:
    """Look at the schema, the issuer, durability, clocks and the state of the work; yield one finding per check."""
    where = f"scheduler {statements.schema!r} in {connection.info.dbname}"
    try:
        newer = check_migrated(connection, statements)
    except NotMigratedError as exc:
        yield Finding(
            "migrations", "broken", where, str(exc), "nothing can be claimed or enqueued", "run `fencing migrate`"
        )
        return
    yield _migrations(where, newer)
    with connection.cursor(row_factory=dict_row) as cursor:
        health = cursor.execute(statements["health"]).fetchall()[0]
    yield from _durability(where, health)
    yield _pooler(connection, where)
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
    if not health["real_clock"]:
        yield Finding(
            "clock",
            "broken",
            where,
            "a test has put its own clock in place of the schema's",
            "nothing becomes due and no lease runs out when it should",
            "call reset() on the test's Clock, or use another schema than the tests",
        )
    skew = health["clock"] - time.time()
    yield _skew(where, skew, "this machine's")
    yield _transactions(where, health["oldest_transaction"])
    measures = measure(connection, statements, 300)
    yield from _queues(where, measures)
    yield from _workers(where, measures)
    yield from _work(where, health, measures)


def _migrations(where: str, newer: list[str]) -> Finding:
    if not newer:
        return Finding("migrations", "ok", where, "every migration is applied")
    return Finding(
        "migrations",
        "warning",
        where,
        f"of newer code, which this one does not know: {', '.join(newer)}",
        "this code was not written for these tables",
        "install the release that made them here too, or finish the upgrade",
    )


def _pooler(connection: Connection, where: str) -> Finding:
    if connection.prepare_threshold is not None:
        return Finding("pooler", "ok", where, "a direct connection")
    return Finding(
        "pooler",
        "warning",
        where,
        "behind a pooler such as PgBouncer: no LISTEN, no prepared statements",
        "due jobs are found by polling, and each claim costs more",
        "give workers a direct connection where that is too slow; nothing else is lost",
    )


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
        (_, newest) = connection.execute(statements["issued"]).fetchall()[0]
        if newest < state.floor:
            return Finding(
                "issuer",
                "broken",
                where,
                f"{name}: the sequence was set back: it stands at {newest}, and this lineage began at {state.floor}",
                "new tokens are lower than those before, and repeat numbers that were given out",
                "fencing issuer bump --reason 'the sequence was set back'",
            )
        days = (clock_ms - (state.floor >> SHIFT)) / 86_400_000
        if days <= OLD_FLOOR:
            return Finding("issuer", "ok", where, name)
        return Finding(
            "issuer",
            "warning",
            where,
            f"{name}: it last changed {days:.0f} days ago",
            "after more than a year a changed server, also a restarted one, issues no token until a person has checked "
            "its clock",
            "check the server's clock, then run `fencing issuer bump --reason 'clock checked'`",
        )
    try:
        clock_floor(clock_ms, state.floor)
    except IssuerError as exc:
        return Finding("issuer", "broken", where, str(exc), "no token can be issued", "see `fencing issuer bump`")
    return Finding("issuer", "ok", where, f"{name}: the server has changed; the next claim begins a new lineage")


def _skew(where: str, skew: float, whose: str) -> Finding:
    message = f"the database's clock is {skew:+.3f} s from {whose}"
    if abs(skew) <= MAX_SKEW:
        return Finding("clock skew", "ok", where, message)
    breaks = "nothing is decided by that clock, but people will read its logs wrongly"
    return Finding("clock skew", "warning", where, message, breaks, "let both synchronise their clocks")


def _transactions(where: str, oldest: float) -> Finding:
    if oldest <= OLD_TRANSACTION:
        return Finding("open transactions", "ok", where, f"none for longer than {OLD_TRANSACTION / 60:.0f} minutes")
    return Finding(
        "open transactions",
        "warning",
        where,
        f"the oldest has been open for {oldest / 60:.0f} minutes",
        "what it might still read cannot be cleared away: the tables grow, and claims step over more and more",
        "find it in pg_stat_activity (xact_start) or pg_prepared_xacts and end it; "
        "set idle_in_transaction_session_timeout",
    )


def _queues(where: str, measures: Measures) -> Iterator[Finding]:
    for queue in measures.queues:
        check = f"lag of queue {queue.queue!r}"
        limit = queue.acceptable_lag or OLDEST_DUE
        said = f"the oldest due job has waited {queue.oldest_due:.0f} s"
        if queue.acceptable_lag is not None:
            said += f"; 95 of 100 jobs waited up to {queue.lag.p95 or 0.0:.1f} s; {limit:g} s are acceptable"
        if queue.lag_exceeded or queue.oldest_due > limit:
            remedy = "start more workers, or workers that know the tasks of the waiting jobs; see `fencing metrics`"
            yield Finding(check, "warning", where, said, "jobs run late", remedy)
        else:
            yield Finding(check, "ok", where, said)


def _workers(where: str, measures: Measures) -> Iterator[Finding]:
    for worker in measures.workers:
        if worker.silent > SILENT:
            yield Finding(
                f"worker {worker.owner}",
                "warning",
                where,
                f"not heard of for {worker.silent:.0f} s, and it did not say that it stops",
                "it was killed, is paused or cannot reach the database; what it held is taken over",
                "look at the machine; if it was killed the row goes away within the hour",
            )
        elif abs(worker.clock_skew) > MAX_SKEW:
            yield _skew(where, worker.clock_skew, f"that of worker {worker.owner}")


def _work(where: str, health: dict[str, object], measures: Measures) -> Iterator[Finding]:
    stuck = ", ".join(str(job.id) for job in measures.stuck[:10])
    found = {
        **health,
        "stuck": f"{len(measures.stuck)} (jobs {stuck})" if stuck else 0,
        "dead": sum(queue.dead for queue in measures.queues),
    }
    checks = {
        "expired": (
            "expired leases",
            "jobs whose lease ran out over a minute ago are not taken back",
            "start a worker that knows their tasks",
        ),
        "stuck": (
            "stuck jobs",
            "these jobs renew their lease but run far longer than is usual for their task, or for over an hour",
            "look at them with `fencing jobs show`, and at their workers",
        ),
        "dead": ("dead jobs", "these jobs will not run again by themselves", "see `fencing dead list`"),
        "unfenced": (
            "fences of revoked jobs",
            "these jobs were taken from their holders over a minute ago, who can still write to what they fence",
            "start a worker that knows their tasks; `fencing jobs show` says what keeps them from being raised",
        ),
        "late_schedules": (
            "late schedules",
            "occurrences due over five minutes ago have not become jobs",
            "start a worker; look for zone-data errors in its log",
        ),
    }
    for column, (check, breaks, remedy) in checks.items():
        count = found[column]
        if count:
            yield Finding(check, "warning", where, f"{count}", breaks, remedy)
        else:
            yield Finding(check, "ok", where, "none")
