"""The materialiser: turns due occurrences into jobs, each at most once, however many of it run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

from scheduler._catch_up import Planned, plan_catch_up
from scheduler._connect import Connection, Link
from scheduler._loop import log
from scheduler._schedules import next_after, stored_rule
from scheduler._sql import Statements
from scheduler._zones import zone_data_version, zone_hash

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


class Materialiser:
    """Locks the schedules that are due, asks each for its occurrences up to the horizon and writes ledger and jobs in
    one transaction."""

    def __init__(self, link: Link, statements: Statements, horizon: float = HORIZON) -> None:
        self._link = link
        self._statements = statements
        self._horizon = horizon

    def run_once(self) -> float | None:
        """Materialise one batch of schedules; at once again if there may be more."""
        with self._link.use("materialise") as connection:
            return 0 if self._batch(connection) else None

    def _batch(self, connection: Connection) -> bool:
        with connection.transaction():
            found = connection.execute(
                self._statements["schedules_due"], {"batch": BATCH, "horizon": self._horizon}
            ).fetchall()
            rows = [row for row in map(Row._make, found) if self._knows_zone(row)]
            if not rows:
                return False
            plans = [self._plan(row) for row in rows]
            self._write(connection, rows, [planned for planned, _ in plans])
            connection.execute(
                self._statements["schedules_advance"],
                {
                    "names": [row.name for row in rows],
                    "untils": [until for _, until in plans],
                    "nexts": [
                        next_after(stored_rule(row.name, row.definition), until)
                        for row, (_, until) in zip(rows, plans, strict=True)
                    ],
                    "zone_versions": [zone_data_version()] * len(rows),
                    "zone_hashes": [zone_hash(row.definition["tz"]) for row in rows],
                },
            )
            return len(found) == BATCH or any(len(planned) == MOST for planned, _ in plans)

    @staticmethod
    def _knows_zone(row: Row) -> bool:
        """Refuse to compute from older zone data than the schedule was computed from:

        other processes would disagree.
        """
        if row.zone_hash == zone_hash(row.definition["tz"]) or row.zone_version <= zone_data_version():
            return True
        log.error(
            "schedule %r was computed from zone data %s, this process has %s and leaves it alone: "
            "update the tzdata package",
            row.name,
            row.zone_version,
            zone_data_version(),
        )
        return False

    def _plan(self, row: Row) -> tuple[list[Planned], Any]:
        """Return what becomes of each occurrence up to the horizon, and where the cursor moves."""
        until = row.now + timedelta(seconds=self._horizon)
        rule = stored_rule(row.name, row.definition)
        # Some more than one transaction takes, so that which late ones are the newest is known before the first is
        # written.
        occurrences = rule.occurrences(row.materialised_until, until, limit=MOST + row.catch_up_limit)
        grace = None if row.grace is None else timedelta(seconds=row.grace)
        planned = plan_catch_up(occurrences, row.now, row.catch_up, row.catch_up_limit, grace)[:MOST]
        return planned, planned[-1].occurrence.due_at if len(planned) == MOST else until

    def _write(self, connection: Connection, rows: list[Row], plans: list[list[Planned]]) -> None:
        flat = [(row.name, planned) for row, plan in zip(rows, plans, strict=True) for planned in plan]
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
