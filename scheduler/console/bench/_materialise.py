"""Schedules that are materialised, ledger, jobs and all, against croniter alone."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import psycopg
from croniter import croniter

from scheduler import Job, Scheduler, _schedule
from scheduler._connect import Database, Link
from scheduler._materialiser import Materialiser
from scheduler._sql import Statements
from scheduler.console.bench._frame import Servers

SCHEDULES = 10_000
OCCURRENCES = 10
SCHEMA = "fencing_bench_schedules"
ZONE = "Europe/Berlin"


def _rules(scale: float) -> list[str]:
    """Rules as an application with many customers has them: every few minutes, hourly, daily, on workdays, weekly and
    monthly, at all times of the day; several hundred of ten thousand are distinct."""
    found = []
    for n in range(max(6, int(SCHEDULES * scale))):
        minute, hour = n % 60, n // 7 % 24
        found.append(
            (
                "*/5 * * * *",
                f"{minute} * * * *",
                f"{minute} {hour} * * *",
                f"{minute} {hour} * * 1-5",
                f"{minute} {hour} * * {n % 7}",
                f"{minute} {hour} {n % 28 + 1} * *",
            )[n % 6]
        )
    return found


def _start() -> datetime:
    """Two years ago: everything is late, and is caught up."""
    return (datetime.now(UTC) - timedelta(days=730)).replace(minute=0, second=0, microsecond=0, tzinfo=None)


def base(_: Servers, scale: float) -> float:
    rules, start = _rules(scale), _start()
    began = time.perf_counter()
    for rule in rules:
        moments = croniter(rule, start, ret_type=datetime)
        for _number in range(OCCURRENCES):
            moments.get_next()
    return (time.perf_counter() - began) * 1e6 / len(rules)


@lru_cache(maxsize=1)
def _ends(scale: float, start: datetime) -> list[datetime]:
    """When each schedule ends so that it has as many occurrences as are asked for."""
    return [
        _schedule.Schedule(rule, tz=ZONE)
        .occurrences(start.replace(tzinfo=UTC), datetime.now(UTC), limit=OCCURRENCES)[-1]
        .due_at
        for rule in _rules(scale)
    ]


def ours(servers: Servers, scale: float) -> float:
    dsn, rules, start = servers.postgres, _rules(scale), _start()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"drop schema if exists {SCHEMA} cascade")
        app = Scheduler(dsn, schema=SCHEMA)
        app.migrate()
        app.task("no-op")(_no_op)
        for number, (rule, end) in enumerate(zip(rules, _ends(scale, start), strict=True)):
            app.schedule(f"schedule {number}", rule, tz=ZONE, task="no-op", end_at=end)
        app.sync_schedules()
        app.close()
        connection.execute(
            f"update {SCHEMA}.schedule set materialised_until = %(start)s, next_at = %(start)s",
            {"start": start.replace(tzinfo=UTC)},
        )
        connection.execute(f"vacuum analyze {SCHEMA}.schedule")
        connection.execute("checkpoint")
        for kept in (_schedule._parse, _schedule._enumerator, _schedule._next_day):
            kept.cache_clear()
        link = Link(Database(dsn), "materialise")
        materialiser = Materialiser(link, Statements(SCHEMA))
        began = time.perf_counter()
        while materialiser.run_once() == 0:
            pass
        elapsed = time.perf_counter() - began
        link.close()
        (jobs,) = connection.execute(f"select count(*) from {SCHEMA}.job").fetchone() or (0,)
        connection.execute(f"drop schema {SCHEMA} cascade")
    if jobs != OCCURRENCES * len(rules):
        raise RuntimeError(f"{jobs} jobs were made of {OCCURRENCES * len(rules)}: the figure would be worth nothing")
    return elapsed * 1e6 / len(rules)


def _no_op(job: Job) -> None:
    """Do nothing."""
