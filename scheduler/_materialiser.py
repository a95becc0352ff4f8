"""The materialiser: turns due occurrences into jobs, each at most once, however many of it run."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from scheduler._catch_up import Planned, plan_catch_up
from scheduler._connect import Connection, Link
from scheduler._loop import log
from scheduler._schedules import next_after, stored_rule
from scheduler._sql import Statements
from scheduler._zones import zone_data_version, zone_hash
from scheduler.errors import ScheduleError

HORIZON = 5.0
"""Seconds ahead of its due time that an occurrence becomes a job."""

BATCH = 50
"""Schedules a transaction."""

MOST = 1000
"""Occurrences of one schedule a transaction; the rest follows in the next."""


class Row(NamedTuple):
    """A due schedule, as ``schedules_due.sql`` returns it."""

    name: str
    task: str
    args: Any
    queue: str
    priority: int
    max_attempts: int
    definition: dict[str, Any]
    catch_up: Any
    catch_up_limit: int
    grace: float | None
    revision: int
    materialised_until: Any
    zone_version: str
    zone_hash: str
    now: Any


class Plan(NamedTuple):
    """What becomes of a schedule: its occurrences, where its cursor moves, and when it is due again."""

    row: Row
    planned: list[Planned]
    until: datetime
    next_at: datetime | None


class Materialiser:
    """Locks the schedules that are due, asks each for its occurrences up to the horizon and writes ledger and jobs in
    one transaction."""

    def __init__(self, link: Link, statements: Statements, horizon: float = HORIZON) -> None:
        self._link = link
        self._statements = statements
        self._horizon = horizon
        self._without: list[str] = []

    def run_once(self) -> float | None:
        """Materialise one batch of schedules; at once again if there may be more."""
        with self._link.use("materialise") as connection:
            return 0 if self._batch(connection) else None

    def _batch(self, connection: Connection) -> bool:
        with connection.transaction():
            found = connection.execute(
                self._statements["schedules_due"],
                {"batch": BATCH, "horizon": self._horizon, "without": self._without},
            ).fetchall()
            plans = [plan for row in map(Row._make, found) if (plan := self._plan_if_able(row))]
            more = len(found) == BATCH or any(len(plan.planned) == MOST for plan in plans)
            if not more:
                self._without = []
            if plans:
                self._write(connection, plans)
                connection.execute(
                    self._statements["schedules_advance"],
                    {
                        "names": [plan.row.name for plan in plans],
                        "untils": [plan.until for plan in plans],
                        "nexts": [plan.next_at for plan in plans],
                        "zone_versions": [zone_data_version()] * len(plans),
                        "zone_hashes": [zone_hash(plan.row.definition["tz"]) for plan in plans],
                    },
                )
            return more

    def _plan_if_able(self, row: Row) -> Plan | None:
        """Plan a schedule, or leave it to processes that can, until the next round."""
        try:
            self._check_zone(row)
            return self._plan(row)
        except Exception as exc:  # noqa: BLE001 - a fault in one schedule must not stop the others, whatever it is
            known = isinstance(exc, ScheduleError)
            log.error("schedule %r is left alone: %s", row.name, exc, exc_info=None if known else exc)
            self._without.append(row.name)
            return None

    @staticmethod
    def _check_zone(row: Row) -> None:
        """Refuse zone data older than what the schedule was computed from: other processes would disagree."""
        if row.zone_hash != zone_hash(row.definition["tz"]) and row.zone_version > zone_data_version():
            raise ScheduleError(
                f"the schedule was computed from zone data {row.zone_version}, this process has {zone_data_version()}: "
                "update the tzdata package",
                expr=row.definition["tz"],
                field="tz",
            )

    def _plan(self, row: Row) -> Plan:
        """Say what becomes of each occurrence up to the horizon, and where the cursor moves."""
        until = row.now + timedelta(seconds=self._horizon)
        rule = stored_rule(row.name, row.definition)
        # Some more than one transaction takes, so that which late ones are the newest is known before the first is
        # written.
        occurrences = rule.occurrences(row.materialised_until, until, limit=MOST + row.catch_up_limit)
        grace = None if row.grace is None else timedelta(seconds=row.grace)
        planned = plan_catch_up(occurrences, row.now, row.catch_up, row.catch_up_limit, grace)[:MOST]
        if len(planned) == MOST:
            until = planned[-1].occurrence.due_at
        return Plan(row, planned, until, next_after(rule, until))

    def _write(self, connection: Connection, plans: list[Plan]) -> None:
        flat = [(plan.row.name, planned) for plan in plans for planned in plan.planned]
        if not flat:
            return
        fresh = connection.execute(
            self._statements["materialise"],
            {
                "schedules": [name for name, _ in flat],
                "keys": [planned.occurrence.key for _, planned in flat],
                "dues": [planned.occurrence.due_at for _, planned in flat],
                "nominals": [planned.occurrence.nominal for _, planned in flat],
                "reasons": [planned.skipped for _, planned in flat],
            },
        ).fetchall()
        for schedule, key, state, _ in fresh:
            log.info("schedule %r: occurrence %s %s", schedule, key, state)
