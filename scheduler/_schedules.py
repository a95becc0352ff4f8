"""Schedules as they are declared in code and as the database stores them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, get_args

from scheduler._catch_up import CatchUp
from scheduler._connect import Connection
from scheduler._schedule import Schedule
from scheduler._sql import Statements
from scheduler._zones import zone_data_version, zone_hash

FAR = timedelta(days=366 * 9)
"""How far ahead the next occurrence is looked for: past the longest wait for a 29 February."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A schedule as ``app.schedule()`` registered it: the rule, and the job that each occurrence becomes."""

    name: str
    rule: Schedule
    task: str
    args: Any
    queue: str
    priority: int
    max_attempts: int
    catch_up: CatchUp
    catch_up_limit: int
    grace: timedelta | None

    def __post_init__(self) -> None:
        if self.catch_up not in get_args(CatchUp):
            raise ValueError(f"schedule {self.name!r}: catch_up= is one of {get_args(CatchUp)}, not {self.catch_up!r}")
        if type(self.catch_up_limit) is not int or self.catch_up_limit < 1:
            raise ValueError(f"schedule {self.name!r}: catch_up_limit= is a whole number from 1")
        if self.grace is not None and (not isinstance(self.grace, timedelta) or self.grace < timedelta(0)):
            raise ValueError(f"schedule {self.name!r}: grace= is a timedelta from 0, or None for a minute")

    def parameters(self) -> dict[str, Any]:
        """The statement parameters that store it."""
        return {
            "name": self.name,
            "task": self.task,
            "args": json.dumps(self.args),
            "queue": self.queue,
            "priority": self.priority,
            "max_attempts": self.max_attempts,
            "definition": json.dumps(self.definition()),
            "catch_up": self.catch_up,
            "catch_up_limit": self.catch_up_limit,
            "grace": self.grace.total_seconds() if self.grace is not None else None,
            "zone_version": zone_data_version(),
            "zone_hash": zone_hash(self.rule.tz),
        }

    def definition(self) -> dict[str, Any]:
        """Everything that makes this schedule what it is, as JSON: equal definitions are the same schedule."""
        rule = self.rule
        return {
            "expr": rule.expr,
            "tz": rule.tz,
            "clock": rule.clock,
            "gap": rule.gap,
            "fold": rule.fold,
            "max_gap": rule.max_gap.total_seconds() if rule.max_gap is not None else None,
            "day_or": rule.day_or,
            "seconds": rule.seconds,
            "start_at": rule.start_at.isoformat() if rule.start_at else None,
            "end_at": rule.end_at.isoformat() if rule.end_at else None,
            "jitter": rule.jitter.total_seconds() if isinstance(rule.jitter, timedelta) else rule.jitter,
            "job": [self.task, self.args, self.queue, self.priority, self.max_attempts],
            "catch_up": [
                self.catch_up,
                self.catch_up_limit,
                self.grace.total_seconds() if self.grace is not None else None,
            ],
        }


def stored_rule(name: str, definition: dict[str, Any]) -> Schedule:
    """Return the rule of a stored definition."""
    max_gap = definition["max_gap"]
    return Schedule(
        definition["expr"],
        tz=definition["tz"],
        clock=definition["clock"],
        gap=definition["gap"],
        fold=definition["fold"],
        max_gap=timedelta(seconds=max_gap) if max_gap is not None else None,
        day_or=definition["day_or"],
        seconds=definition["seconds"],
        start_at=_moment(definition["start_at"]),
        end_at=_moment(definition["end_at"]),
        jitter=definition["jitter"],
        jitter_seed=name,
    )


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def next_after(rule: Schedule, moment: datetime) -> datetime | None:
    """Return when the rule is next due after ``moment``, or None if it has ended."""
    found = rule.occurrences(moment, moment + FAR, limit=1)
    return found[0].due_at if found else None


def store(connection: Connection, statements: Statements, declared: Declared, actor: str) -> str:
    """Store a declared schedule; return ``"added"``, ``"changed"`` or ``"unchanged"``.

    An equal definition changes nothing, whoever brings it. A new or changed one begins now: it never fires the past.
    A change is audited.
    """
    parameters = declared.parameters()
    with connection.transaction():
        row = connection.execute(statements["schedule_insert"], parameters).fetchone()
        if row is not None:
            _set_next(connection, statements, declared, row[0])
            _audit(connection, statements, declared, actor, "schedule added", None)
            return "added"
        before, same = connection.execute(statements["schedule_lock"], parameters).fetchall()[0]
        if same:
            return "unchanged"
        now, _ = connection.execute(statements["schedule_change"], parameters).fetchall()[0]
        _set_next(connection, statements, declared, now)
        _audit(connection, statements, declared, actor, "schedule changed", before)
        return "changed"


def _set_next(connection: Connection, statements: Statements, declared: Declared, now: datetime) -> None:
    connection.execute(
        statements["schedules_advance"],
        {
            "names": [declared.name],
            "untils": [now],
            "nexts": [next_after(stored_rule(declared.name, declared.definition()), now)],
            "zone_versions": [zone_data_version()],
            "zone_hashes": [zone_hash(declared.rule.tz)],
        },
    )


def _audit(
    connection: Connection, statements: Statements, declared: Declared, actor: str, kind: str, before: Any
) -> None:
    connection.execute(
        statements["act"],
        {
            "actor": actor,
            "kind": kind,
            "subject": f"schedule/{declared.name}",
            "reason": "registered by the application",
            "before": json.dumps(before) if before is not None else None,
            "after": json.dumps(declared.definition()),
        },
    )
