"""What came of a run: the facts that were observed, whether they are as they should be, and how they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fencing import Token
from fencing.history import Event
from scheduler.console.demo._look import Attempt

DOORS = ("sql", "redis", "outbox", "completion")
"""The four writes of a handler, by where they go."""


def door_of(event: Event) -> str:
    """Which of the four an event is, or "" for none of them. A mail that is sent without an outbox is "mail"."""
    if event.kind == "settle":
        return "completion" if any(name.startswith("job/") for name in event.resources) else ""
    if event.kind == "send":
        return "mail"
    if event.kind not in ("write", "put"):
        return ""
    if any(name.startswith("outbox/") for name in event.resources):
        return "outbox"
    return "redis" if event.downstream.startswith("redis") else "sql"


def short(token: Token) -> str:
    """A token's last digits."""
    return f"…{token.value % 1000:03d}"


class Check(NamedTuple):
    """Something that must be seen, and whether it is. ``good``: whether that is good news."""

    text: str
    held: bool
    good: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The facts. ``late`` are the events of the paused worker's writes after it woke up; ``marks`` the values of the
    downstreams' marks; ``invoices`` and ``cached`` say under which token each was written."""

    fenced: bool
    paused: Token
    winner: Token
    late: Sequence[Event]
    invoices: Sequence[str]
    cached: str | None
    emails: int
    occurrences: int
    attempts: Sequence[Attempt]
    marks: Mapping[str, int | None]
    servers: Mapping[str, str]
    events: Sequence[Event]
    names: Mapping[str, str]

    @property
    def refused(self) -> dict[str, int]:
        """How many late writes each downstream refused."""
        return {
            door: sum(door_of(event) == door and event.outcome == "refused" for event in self.late) for door in DOORS
        }

    @property
    def cached_by(self) -> str:
        """Whose value the cache holds: ``winner``, ``paused``, ``other`` or ``nobody``."""
        if self.cached is None:
            return "nobody"
        return {str(self.winner): "winner", str(self.paused): "paused"}.get(self.cached, "other")

    @property
    def checks(self) -> list[Check]:
        """What must hold (without guards: the damage that must be seen), and whether it does."""
        first, last = Attempt(self.paused.value, "expired"), Attempt(self.winner.value, "completed")
        common = [
            Check("the second claim has the higher token", self.winner > self.paused),
            Check(
                f"one occurrence, one job: expired under {short(self.paused)}, completed under {short(self.winner)}",
                self.occurrences == 1
                and first in self.attempts
                and [one for one in self.attempts if one.outcome == "completed"] == [last],
            ),
        ]
        return common + (self._fenced_checks() if self.fenced else self._damage())

    @property
    def ok(self) -> bool:
        """Whether everything is as it should be."""
        return all(check.held for check in self.checks)

    @property
    def drawn(self) -> list[Event]:
        """The events of the picture: without the lease under which the relay claims a row, since the claim shows."""
        return [event for event in self.events if not any(name.startswith("lease/") for name in event.resources)]

    def as_json(self, seconds: float) -> dict[str, Any]:
        """The object that ``--json`` prints. ``seconds``: how long it took."""
        return {
            "ok": self.ok,
            "fenced": self.fenced,
            "seconds": round(seconds, 3),
            "tokens": {"paused": self.paused.value, "winner": self.winner.value},
            "refused": self.refused,
            "invoices": len(self.invoices),
            "redis_value_from": self.cached_by,
            "emails_received": self.emails,
            "occurrences": self.occurrences,
            "servers": dict(self.servers),
            "events": [event.as_json() for event in self.events],
        }

    def _fenced_checks(self) -> list[Check]:
        return [
            Check("one invoice, by worker B", list(self.invoices) == [str(self.winner)]),
            Check("the cache holds worker B's value", self.cached_by == "winner"),
            Check("one e-mail received", self.emails == 1),
            Check(
                "each late write of worker A was refused by its own downstream",
                self.refused == dict.fromkeys(DOORS, 1) and len(self.late) == len(DOORS),
            ),
            Check(
                f"every mark is worker B's {short(self.winner)}",
                all(mark == self.winner.value for mark in self.marks.values()),
            ),
        ]

    def _damage(self) -> list[Check]:
        both = {str(self.winner), str(self.paused)}
        return [
            Check(f"{len(self.invoices)} invoices for one month", both <= set(self.invoices), good=False),
            Check(
                "the cache holds the value of worker A, which had lost its lease",
                self.cached_by == "paused",
                good=False,
            ),
            Check(f"{self.emails} e-mails received", self.emails > 1, good=False),
            Check(
                "only the scheduler refused worker A: its completion, when all the rest had been done",
                self.refused == {**dict.fromkeys(DOORS, 0), "completion": 1},
            ),
        ]
