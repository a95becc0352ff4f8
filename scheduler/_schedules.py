"""Schedules as they are declared in code, and the same as JSON, as the database stores them. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, get_args

from scheduler._catch_up import CatchUp
from scheduler._dst import Fold, Gap
from scheduler._overlap import Overlap
from scheduler._schedule import Clock, Schedule
from scheduler._zones import zone_data_version, zone_hash

FAR = timedelta(days=366 * 50)
"""How far ahead the next occurrence is looked for: past the longest wait, for a 29 February on a given weekday."""

MAX_LIMIT = 2**31 - 1
MAX_GRACE = timedelta(days=36_525)

_LONGEST_GAP = timedelta(days=2)  # no clock has jumped so far
_LAST = datetime(9900, 1, 1, tzinfo=UTC)  # of the calendar that a Schedule knows


class RuleOptions(TypedDict, total=False):
    """What a schedule may say besides its rule and its job. The meanings are those of :class:`Schedule`, of
    :func:`~scheduler._catch_up.plan_catch_up` and of :data:`~scheduler._overlap.Overlap`."""

    queue: str
    priority: int
    clock: Clock
    gap: Gap
    fold: Fold
    max_gap: timedelta | None
    day_or: bool
    seconds: bool
    catch_up: CatchUp
    catch_up_limit: int
    grace: timedelta | None
    overlap: Overlap
    start_at: datetime | None
    end_at: datetime | None
    jitter: timedelta | float


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
    catch_up: CatchUp = "all"
    catch_up_limit: int = 100
    grace: timedelta | None = None
    overlap: Overlap = "allow"

    def __post_init__(self) -> None:
        if self.catch_up not in get_args(CatchUp):
            raise ValueError(f"schedule {self.name!r}: catch_up= is one of {get_args(CatchUp)}, not {self.catch_up!r}")
        if type(self.catch_up_limit) is not int or not 1 <= self.catch_up_limit <= MAX_LIMIT:
            raise ValueError(f"schedule {self.name!r}: catch_up_limit= is a whole number from 1 to {MAX_LIMIT:,}")
        if self.grace is not None and not (
            isinstance(self.grace, timedelta) and timedelta(0) <= self.grace <= MAX_GRACE
        ):
            raise ValueError(
                f"schedule {self.name!r}: grace= is a timedelta from 0 to {MAX_GRACE.days:,} days, or None for a minute"
            )
        if self.overlap not in get_args(Overlap):
            raise ValueError(f"schedule {self.name!r}: overlap= is one of {get_args(Overlap)}, not {self.overlap!r}")

    def columns(self) -> dict[str, Any]:
        """What the database stores, by column, as JSON."""
        return {
            "name": self.name,
            "task": self.task,
            "args": self.args,
            "queue": self.queue,
            "priority": self.priority,
            "max_attempts": self.max_attempts,
            "definition": self.definition(),
            "catch_up": self.catch_up,
            "catch_up_limit": self.catch_up_limit,
            "grace": self.grace.total_seconds() if self.grace is not None else None,
            "overlap": self.overlap,
            "zone_version": zone_data_version(),
            "zone_hash": zone_hash(self.rule.tz),
        }

    def parameters(self) -> dict[str, Any]:
        """The same as parameters of a statement: JSON columns as text."""
        return self.columns() | {"args": json.dumps(self.args), "definition": self.text}

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
            "overlap": self.overlap,
        }

    @property
    def text(self) -> str:
        """The definition as JSON text."""
        return json.dumps(self.definition())


def stored_rule(name: str, definition: dict[str, Any]) -> Schedule:
    """Return the rule of a stored definition."""
    max_gap = definition["max_gap"]
    return Schedule(
        definition["expr"],
        tz=definition["tz"],
        clock=definition["clock"],
        gap=definition["gap"],
        fold=definition["fold"],
        # No more than it takes: timedelta.max as a number of seconds is beyond itself.
        max_gap=timedelta(seconds=min(max_gap, _LONGEST_GAP.total_seconds())) if max_gap is not None else None,
        day_or=definition["day_or"],
        seconds=definition["seconds"],
        start_at=_moment(definition["start_at"]),
        end_at=_moment(definition["end_at"]),
        jitter=definition["jitter"],
        jitter_seed=name,
    )


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def far_after(rule: Schedule, moment: datetime) -> datetime:
    """Return up to when the rule's next occurrence is looked for: long after it begins."""
    begins = moment if rule.start_at is None else max(moment, rule.start_at)
    return min(begins, _LAST - FAR) + FAR


def next_after(rule: Schedule, moment: datetime) -> datetime | None:
    """Return when the rule is next due after ``moment``, or None if it has ended."""
    found = rule.occurrences(moment, far_after(rule, moment), limit=1)
    return found[0].due_at if found else None


def release_of(declared: Iterable[Declared]) -> str:
    """Return the name of the release that declares these schedules: the same for equal definitions, whoever asks."""
    # As JSON keeps it, whatever order or kind of keys Python had.
    lines = sorted(json.dumps([one.name, json.loads(one.text)], sort_keys=True) for one in declared)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
