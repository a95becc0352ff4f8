"""The life of an outbox row, as data: the SQL of the relay derives its conditions from here.

SMTP has a phase without effect (``MAIL``, ``RCPT``) and one with (``DATA``). ``dispatching`` is committed between the
two, so a row that is found in it after its lease may or may not have been delivered, and one in ``claimed`` was not.
What happens to a message of which nobody knows is its policy's to say.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["pending", "claimed", "dispatching", "sent", "failed", "uncertain", "cancelled", "expired"]
RecipientState = Literal["pending", "sent", "failed", "uncertain"]

Policy = Literal["hold", "resend", "keyed", "reconcile"]
"""What happens to a message of which nobody knows whether it was sent.

``hold``: it waits for a person, as ``uncertain``. ``resend``: the same bytes are sent again, so it may arrive twice.
``keyed``: it is sent again under the same idempotency key, to the same provider and only inside the provider's window;
past it, or where the transport knows no keys, it is held. ``reconcile``: the provider is asked before anything is sent
again; where it cannot tell, it is held.
"""

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

UNFINISHED: tuple[State, ...] = ("pending", "claimed", "dispatching", "uncertain")
"""States in which a message still has its turn: a later one of the same ``order_key`` waits for it."""

ENDED_OTHERWISE: tuple[State, ...] = ("failed", "cancelled", "expired")
"""Ends that few messages have."""

FINISHED: tuple[State, ...] = ("sent", "failed", "cancelled", "expired")
"""States that only a person leaves."""


class Transition(NamedTuple):
    """One legal change: ``verb`` is who makes it, ``when`` says why, for people."""

    verb: str
    source: State
    target: State
    when: str


TRANSITIONS: tuple[Transition, ...] = (
    Transition("claim", "pending", "claimed", "due, and a relay takes it under a new token"),
    Transition("claim", "pending", "expired", "its expires_at passed before anything was sent"),
    Transition("claim", "pending", "uncertain", "an earlier hand-over is in doubt, and it may not be sent again"),
    Transition("release", "claimed", "pending", "given back untouched; no attempt counted"),
    Transition("dispatch", "claimed", "dispatching", "recipients accepted, the content follows next"),
    Transition("settle", "claimed", "pending", "refused for now before the content; tried again later"),
    Transition("settle", "claimed", "failed", "refused for good before the content, or out of attempts"),
    Transition("settle", "claimed", "uncertain", "refused or out of attempts, and an earlier hand-over is in doubt"),
    Transition("settle", "dispatching", "sent", "every recipient was accepted"),
    Transition("settle", "dispatching", "pending", "refused for now, or in doubt and the policy sends it again"),
    Transition("settle", "dispatching", "failed", "refused for good for at least one recipient, or out of attempts"),
    Transition("settle", "dispatching", "uncertain", "the content may be complete and no answer came"),
    Transition("rescue", "claimed", "pending", "the relay's lease ended before the content; counts as an attempt"),
    Transition("rescue", "claimed", "failed", "the relay's lease ended before the content, at the last attempt"),
    Transition("rescue", "claimed", "uncertain", "the same, and an earlier hand-over is in doubt"),
    Transition("rescue", "dispatching", "uncertain", "the relay's lease ended and nobody knows how far it came"),
    Transition("rescue", "dispatching", "pending", "the same, and the policy sends it again (resend, keyed)"),
    Transition("evidence", "uncertain", "sent", "the relay of this very hand-over came back: it was sent"),
    Transition("evidence", "uncertain", "pending", "the same: it was refused for now"),
    Transition("evidence", "uncertain", "failed", "the same: it was refused for good"),
    Transition("evidence", "pending", "sent", "the same, before its policy sent it again"),
    Transition("look_up", "uncertain", "sent", "the provider knows the message"),
    Transition("look_up", "uncertain", "pending", "the provider never got the message: it is sent again"),
    Transition("look_up", "uncertain", "failed", "the provider refused or could not deliver the message"),
    Transition("resolve", "uncertain", "sent", "a person found out that it was sent"),
    Transition("resolve", "uncertain", "pending", "a person found out that it was not: it is sent again"),
    Transition("resolve", "uncertain", "failed", "a person gives it up"),
    Transition("requeue", "claimed", "pending", "a person takes it from its relay, which is refused from now on"),
    Transition("requeue", "dispatching", "pending", "the same while it is handed over: it may arrive twice"),
    Transition("requeue", "sent", "pending", "a person wants it sent once more"),
    Transition("requeue", "failed", "pending", "a person has it tried again"),
    Transition("requeue", "uncertain", "pending", "a person has it sent though it may have been: it may arrive twice"),
    Transition("requeue", "cancelled", "pending", "a person wants it sent after all"),
    Transition("requeue", "expired", "pending", "a person wants it sent all the same; it has no end any more"),
    Transition("cancel", "pending", "cancelled", "a person stops it before it is sent"),
    Transition("cancel", "claimed", "cancelled", "the same; its relay is refused before the content"),
    Transition("cancel", "pending", "uncertain", "a person stops it, and an earlier hand-over is in doubt"),
    Transition("cancel", "claimed", "uncertain", "the same"),
)


def sources(verb: str, target: State) -> tuple[State, ...]:
    """The states from which ``verb`` may lead to ``target``. Raises ``ValueError`` if there are none."""
    found = tuple(change.source for change in TRANSITIONS if (change.verb, change.target) == (verb, target))
    if not found:
        raise ValueError(f"no outbox row becomes {target!r} by {verb!r}")
    return found


def targets(verb: str, source: State) -> tuple[State, ...]:
    """The states that ``verb`` may lead to from ``source``; none where it is not allowed."""
    return tuple(change.target for change in TRANSITIONS if (change.verb, change.source) == (verb, source))


OPEN = "state = 'pending' and not waits"
"""The condition of the claim's index: waiting for a relay, and not for another message of its order key."""

PARKED = "waits and state = 'pending'"
"""The condition of the index of those that wait for another message of their order key."""


def in_states(states: tuple[str, ...]) -> str:
    """The condition on the state of a row that is named by its id.

    ``nullif`` hides the column from the planner: a partial index on the state looks smaller to it than the primary
    key, and is not, because entries of rows that left the state stay in there until the next vacuum.
    """
    return f"nullif(state, '') in {sql_list(states)}"


def sql_list(values: tuple[str, ...]) -> str:
    """The values as an SQL list, ``('a', 'b')``. For the constants of this module only."""
    return "(" + ", ".join(f"'{value}'" for value in values) + ")"


_HELD = f"state in {sql_list(HELD)}"
WAITING_PARTS = (OPEN, PARKED, _HELD)
UNFINISHED_PARTS = (*WAITING_PARTS, "state = 'uncertain'")
"""What is not at its end, as the conditions of the partial indexes, each row in one of them: asked for at once, as
states, the whole table would be read."""


def of_parts(columns: str, parts: tuple[str, ...]) -> str:
    """Select the columns of the rows of these parts."""
    return " union all ".join(f"select {columns} from fencing_outbox where {part}" for part in parts)
