"""What a checker says, and the steps of which it says it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fencing._token import Token
from fencing.history._events import Event

Rule = Literal[
    "stale write accepted",
    "refused without cause",
    "two issuers on one resource",
    "two lineages with one number",
    "token repeated",
    "token fell",
    "settled by an older holder",
    "settled twice",
    "accepted write lost",
    "effect doubled",
    "refused write landed",
    "stale effect landed",
]
"""Which promise a violation breaks."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: where, in words, and the fewest events that show it, in their order."""

    rule: Rule
    downstream: str
    resource: str
    text: str
    events: tuple[Event, ...]

    def __str__(self) -> str:
        return f"{self.rule}: {self.resource!r} in {self.downstream}: {self.text}"


MakeViolation = Callable[..., Violation]
"""``(rule, text, *events)``: a violation of the resource that is looked at."""

ACCEPTED = ("accepted", "repeated")
DONE = (*ACCEPTED, "done")


@dataclass(frozen=True, slots=True)
class Step:
    """An event that has a token."""

    event: Event
    token: Token

    @property
    def value(self) -> int:
        return self.token.value

    @property
    def began(self) -> int:
        return self.event.began

    @property
    def ended(self) -> int:
        return self.event.ended


def possible(event: Event) -> bool:
    return event.outcome in (*ACCEPTED, "unknown")


def sure(event: Event) -> bool:
    return event.outcome in ACCEPTED and not event.pending


def value_of(event: Event) -> int:
    return Token.parse(event.token).value
