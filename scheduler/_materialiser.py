"""The materialiser: turns due occurrences into jobs, each at most once, however many of it run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import psycopg

from scheduler._catch_up import Planned, plan_catch_up
from scheduler._connect import Link
from scheduler._gate import tell_skipped
from scheduler._loop import log
from scheduler._occurrence import Occurrence
from scheduler._rezone import Outdated, rezone
from scheduler._schedule_store import materialise
from scheduler._schedules import far_after, stored_rule
from scheduler._sql import Run, Statements
from scheduler._zones import zone_data_version, zone_hash
from scheduler.errors import ScheduleError

HORIZON = 5.0
"""Seconds ahead of its due time that an occurrence becomes a job."""

BATCH = 200
"""Schedules a transaction."""

MOST = 500
"""Occurrences of one schedule a transaction; the rest follows in the next."""

AGAIN = 60.0
"""Seconds after which it is said again of a schedule that it is left alone for the same reason."""

T = TypeVar("T")


class Row(NamedTuple):
    """A due schedule, as ``schedules_due.sql`` returns it."""

    name: str
    definition: dict[str, Any]
    catch_up: Any
    catch_up_limit: int
    grace: float | None
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
    one transaction. Schedules that were computed from older zone data come first."""

    def __init__(
        self, link: Link, statements: Statements, actor: str = "materialiser", horizon: float = HORIZON
    ) -> None:
        self._link = link
        self._statements = statements
        self._actor = actor
        self._horizon = horizon
        self._without: list[str] = []
        self._said: dict[str, tuple[str, float]] = {}

    def run_once(self) -> float | None:
        """Materialise one batch of schedules; at once again if there may be more."""
        with self._link.use("materialise") as connection:
            run = Run(connection, self._statements)
            more = self._rezone(run) or self._batch(run)
        if not more:
            self._said = {name: self._said[name] for name in self._without}
            self._without = []
        return 0 if more else None

    def _rezone(self, run: Run) -> bool:
        version = zone_data_version()
        with run.connection.transaction():
            found = run("schedules_rezone", version=version, batch=BATCH, without=self._without)
            for row in map(Outdated._make, found):
                if self._able(row.name, lambda row=row: self._rezoned(run, row)):  # type: ignore[misc]
                    log.info("schedule %r: computed anew from zone data %s", row.name, version)
        return len(found) == BATCH

    def _rezoned(self, run: Run, row: Outdated) -> bool:
        with run.connection.transaction():  # a fault in one leaves the others as they are
            return rezone(run, row, self._actor)

    def _batch(self, run: Run, size: int = BATCH) -> bool:
        names: list[str] = []
        try:
            with run.connection.transaction():
                found = run("schedules_due", batch=size, horizon=self._horizon, without=self._without)
                names = [row[0] for row in found]
                plans = [
                    plan
                    for row in map(Row._make, found)
                    if (plan := self._able(row.name, lambda row=row: self._plan(row)))  # type: ignore[misc]
                ]
                if plans:
                    self._write(run, plans)
                    self._advance(run, plans)
                return len(found) == size or any(len(plan.planned) == MOST for plan in plans)
        except (psycopg.IntegrityError, psycopg.DataError) as exc:
            # The database refuses what one of them wants, such as a key that somebody has given to a job of his own.
            if len(names) == 1:
                self._leave(names[0], exc)
            for _ in names if len(names) > 1 else ():
                self._batch(run, 1)
            return True

    @staticmethod
    def _advance(run: Run, plans: list[Plan]) -> None:
        run(
            "schedules_advance",
            names=[plan.row.name for plan in plans],
            untils=[plan.until for plan in plans],
            nexts=[plan.next_at for plan in plans],
            zone_versions=[zone_data_version()] * len(plans),
            zone_hashes=[zone_hash(plan.row.definition["tz"]) for plan in plans],
        )

    def _able(self, name: str, work: Callable[[], T]) -> T | None:
        """Do something with a schedule, or leave it to processes that can, until the next round."""
        try:
            return work()
        except (psycopg.IntegrityError, psycopg.DataError) as exc:
            # What it wanted to write was rolled back to its savepoint: see _rezoned.
            self._leave(name, exc)
            return None
        except psycopg.Error:
            raise
        except Exception as exc:  # noqa: BLE001 - a fault in one schedule must not stop the others, whatever it is
            self._leave(name, exc)
            return None

    def _leave(self, name: str, exc: Exception) -> None:
        self._without.append(name)
        why, now = str(exc), time.monotonic()
        said, at = self._said.get(name, ("", float("-inf")))
        if said == why and now - at < AGAIN:
            return
        self._said[name] = why, now
        known = isinstance(exc, ScheduleError | psycopg.Error)
        log.error("schedule %r is left alone: %s", name, exc, exc_info=None if known else exc)

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
        self._check_zone(row)
        until = row.now + timedelta(seconds=self._horizon)
        rule = stored_rule(row.name, row.definition)
        # Some more than one transaction takes, so that which late ones are the newest is known before the first is
        # written; and the one after the horizon, for when the schedule is due again.
        occurrences: list[Occurrence] = []
        after: Occurrence | None = None
        for after in islice(rule.walk(row.materialised_until, far_after(rule, until)), MOST + row.catch_up_limit):
            if after.due_at > until:
                break
            occurrences.append(after)
            after = None
        grace = None if row.grace is None else timedelta(seconds=row.grace)
        planned = plan_catch_up(occurrences, row.now, row.catch_up, row.catch_up_limit, grace)[:MOST]
        if len(planned) == MOST:
            until = planned[-1].occurrence.due_at
            after = occurrences[MOST] if len(occurrences) > MOST else after
        return Plan(row, planned, until, after.due_at if after else None)

    def _write(self, run: Run, plans: list[Plan]) -> None:
        by_key = {
            (plan.row.name, planned.occurrence.key): planned.skipped for plan in plans for planned in plan.planned
        }
        skipped: dict[tuple[str, str], list[str]] = defaultdict(list)
        for name, key, state in materialise(run, [(plan.row.name, one) for plan in plans for one in plan.planned]):
            if state == "skipped":
                skipped[name, str(by_key[name, key])].append(key)
            else:
                log.info("schedule %r: occurrence %s %s", name, key, state)
        for (name, reason), keys in skipped.items():
            tell_skipped(run, name, self._actor, reason, keys)
