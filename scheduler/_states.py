"""What a job can be and what can become of it: the one place that SQL, the model and the docs take it from."""

from __future__ import annotations

from typing import Literal, get_args

State = Literal["ready", "leased", "completed", "dead", "cancelled"]
"""``ready``:

waiting for its due time or a worker. ``leased``: a worker holds it. The others are final, but ``dead`` can be
replayed.
"""

Outcome = Literal["completed", "retried", "dead", "expired", "yielded", "returned", "cancelled"]
"""How an attempt ended.

``expired``: its lease ran out. ``yielded``: another live holder had the resource, not counted as an attempt.
``returned``: given back unstarted when the worker stopped, not counted either.
"""

STATES: tuple[State, ...] = get_args(State)
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
FINAL: frozenset[State] = frozenset({"completed", "dead", "cancelled"})

TRANSITIONS: dict[tuple[State, State], str] = {
    ("ready", "leased"): "claim",
    ("ready", "cancelled"): "cancel",
    ("leased", "completed"): "settle: the handler returned",
    ("leased", "ready"): "settle: retry, yield or return; rescue",
    ("leased", "dead"): "settle: attempts used up or buried; rescue of the last attempt",
    ("leased", "cancelled"): "cancel",
    ("dead", "ready"): "replay",
}
"""Every legal change, and the verb that makes it."""
