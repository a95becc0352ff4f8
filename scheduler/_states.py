"""What a job can be and what can become of it: the one place that SQL, the model and the docs take it from."""

from __future__ import annotations

from typing import Literal, get_args

State = Literal["ready", "leased", "completed", "dead", "cancelled"]
"""``ready``:

waiting for its due time or a worker. ``leased``: a worker holds it. The others are final, but a person can replay what
is ``dead`` or ``cancelled``.
"""

OwnOutcome = Literal["completed", "retried", "dead", "yielded", "returned"]
"""How an attempt ends by its holder's own word.

``yielded``: another live holder had the resource, not counted as an attempt. ``returned``: given back unstarted when
the worker stopped, not counted either.
"""

Outcome = Literal[OwnOutcome, "expired", "cancelled", "buried", "overran"]
"""How an attempt ended.

``expired``: its lease ran out. The last three took the lease away from outside: ``cancelled`` and ``buried`` by a
person or a schedule, ``overran`` at the task's run-time limit.
"""

STATES: tuple[State, ...] = get_args(State)
OWN_OUTCOMES: tuple[OwnOutcome, ...] = get_args(OwnOutcome)
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
FINAL: frozenset[State] = frozenset({"completed", "dead", "cancelled"})

TRANSITIONS: dict[tuple[State, State], str] = {
    ("ready", "leased"): "claim",
    ("ready", "cancelled"): "cancel",
    ("ready", "dead"): "bury",
    ("leased", "completed"): "settle: the handler returned",
    ("leased", "ready"): "settle: retry, yield or return; rescue; run-time limit",
    ("leased", "dead"): "settle: attempts used up or buried; rescue or run-time limit of the last attempt; bury",
    ("leased", "cancelled"): "cancel",
    ("dead", "ready"): "replay",
    ("cancelled", "ready"): "replay",
}
"""Every legal change, and the verb that makes it."""
