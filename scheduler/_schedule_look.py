"""Schedules, looked at: as they are stored, what the ledger has of them, and when they are due next."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal

from psycopg.rows import dict_row

from scheduler._connect import Connection
from scheduler._enqueue import checked_moment
from scheduler._occurrence import Occurrence
from scheduler._schedules import far_after, stored_rule
from scheduler._sql import Statements
from scheduler.errors import UnknownScheduleError


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule as the database has it.

    Attributes:
        state: ``active``; ``paused`` or ``deleted`` by a person; ``ended``: it is never due again.
        next_at: when it is due next, beyond what was put ahead already.
        release: the release of the application that put it there, None for a person.
        materialised_until: the cursor: up to here every occurrence is in the ledger, or was not to be made.
        begins_at: when its present definition began, or it was resumed. Nothing before is made but by a backfill.
        waiting: occurrences that wait for their turn, with overlap other than ``allow``.
        live: jobs of it that wait or run.
        definition: every option, as JSON.
    """

    name: str
    task: str
    args: Any
    queue: str
    priority: int
    max_attempts: int
    definition: dict[str, Any]
    catch_up: str
    overlap: str
    revision: int
    release: str | None
    state: Literal["active", "paused", "ended", "deleted"]
    next_at: datetime | None
    materialised_until: datetime
    begins_at: datetime
    zone_version: str
    created_at: datetime
    changed_at: datetime
    waiting: int
    live: int

    @property
    def expr(self) -> str:
        """The cron text."""
        return str(self.definition["expr"])

    @property
    def tz(self) -> str:
        """The zone."""
        return str(self.definition["tz"])

    def as_json(self) -> dict[str, Any]:
        """Every attribute, for JSON."""
        return {"expr": self.expr, "tz": self.tz} | {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True, slots=True)
class ScheduleStory:
    """A schedule, its newest occurrences as the ledger has them, and every act that concerned it."""

    schedule: StoredSchedule
    occurrences: list[dict[str, Any]]
    acts: list[dict[str, Any]]


def list_schedules(
    connection: Connection, statements: Statements, *, name: str | None = None, deleted: bool = False
) -> list[StoredSchedule]:
    """Return the schedules by name."""
    rows = _dicts(connection, statements["schedules_list"], {"name": name, "deleted": deleted})
    return [StoredSchedule(**row) for row in rows]


def show_schedule(connection: Connection, statements: Statements, name: str, most: int) -> ScheduleStory:
    """Return a schedule, also a deleted one, with its newest occurrences, up to ``most``, and its acts."""
    schedule = _one(connection, statements, name)
    return ScheduleStory(
        schedule,
        _dicts(connection, statements["ledger_latest"], {"name": name, "most": most}),
        _dicts(connection, statements["job_acts"], {"subject": f"schedule/{name}"}),
    )


def next_occurrences(
    connection: Connection, statements: Statements, name: str, count: int, after: datetime | None
) -> list[Occurrence]:
    """Return the next occurrences of a schedule as it is stored, paused or not, after now or ``after``."""
    if type(count) is not int or count < 1:
        raise ValueError(f"how many occurrences is a whole number from 1, not {count!r}")
    checked_moment(after, "after")
    schedule = _one(connection, statements, name)
    if schedule.state == "deleted":
        raise UnknownScheduleError(f"no schedule {name!r}: it was deleted, and is not due any more")
    rule = stored_rule(name, schedule.definition)
    now: datetime = connection.execute(statements.fill("select {schema}.clock()")).fetchall()[0][0]
    return rule.occurrences(after or now, far_after(rule, after or now), limit=count)


def _one(connection: Connection, statements: Statements, name: str) -> StoredSchedule:
    found = list_schedules(connection, statements, name=name, deleted=True)
    if not found:
        raise UnknownScheduleError(f"no schedule {name!r}; `fencing schedules list` names those that there are")
    return found[0]


def _dicts(connection: Connection, statement: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, parameters).fetchall()
