"""The life of an outbox row, as data: the SQL of the relay derives its conditions from here.

SMTP has a phase without effect (``MAIL``, ``RCPT``) and one with (``DATA``). ``dispatching`` is committed between the
two, so a row that is found in it after its lease may or may not have been delivered, and one in ``claimed`` was not.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["pending", "claimed", "dispatching", "sent", "failed", "uncertain", "cancelled", "expired"]
RecipientState = Literal["pending", "sent", "failed", "uncertain"]

STATES: tuple[State, ...] = (
    "pending",
    "claimed",
    "dispatching",
    "sent",
    "failed",
    "uncertain",
    "cancelled",
    "expired",
)
RECIPIENT_STATES: tuple[RecipientState, ...] = ("pending", "sent", "failed", "uncertain")

HELD: tuple[State, ...] = ("claimed", "dispatching")
"""States in which a relay owns the row for the length of a lease."""


class Transition(NamedTuple):
    """One legal change: ``verb`` is who makes it, ``when`` says why, for people."""

    verb: str
    source: State
    target: State
    when: str


TRANSITIONS: tuple[Transition, ...] = (
    Transition("claim", "pending", "claimed", "due, and a relay takes it under a new token"),
    Transition("claim", "pending", "expired", "its expires_at passed before anything was sent"),
    Transition("release", "claimed", "pending", "given back untouched; no attempt counted"),
    Transition("dispatch", "claimed", "dispatching", "recipients accepted, the content follows next"),
    Transition("settle", "claimed", "pending", "refused for now before the content; tried again later"),
    Transition("settle", "claimed", "failed", "refused for good before the content, or out of attempts"),
    Transition("settle", "dispatching", "sent", "every recipient was accepted"),
    Transition("settle", "dispatching", "pending", "refused for now, or some recipients still to be served"),
    Transition("settle", "dispatching", "failed", "refused for good for at least one recipient, or out of attempts"),
    Transition("settle", "dispatching", "uncertain", "the content may be complete and no answer came"),
    Transition("rescue", "claimed", "pending", "the relay's lease ended before the content; counts as an attempt"),
    Transition("rescue", "claimed", "failed", "the relay's lease ended before the content, at the last attempt"),
    Transition("rescue", "dispatching", "uncertain", "the relay's lease ended and nobody knows how far it came"),
)


def sources(verb: str, target: State) -> tuple[State, ...]:
    """The states from which ``verb`` may lead to ``target``. Raises ``ValueError`` if there are none."""
    found = tuple(change.source for change in TRANSITIONS if (change.verb, change.target) == (verb, target))
    if not found:
        raise ValueError(f"no outbox row becomes {target!r} by {verb!r}")
    return found


def sql_list(values: tuple[str, ...]) -> str:
    """The values as an SQL list, ``('a', 'b')``. For the constants of this module only."""
    return "(" + ", ".join(f"'{value}'" for value in values) + ")"
