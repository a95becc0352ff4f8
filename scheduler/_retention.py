"""How long what is over is kept. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta

from scheduler._retry import MAX_WAIT

LEAST_OCCURRENCES = timedelta(hours=48)
"""The ledger is looked back in when new zone data resolves occurrences anew, and by people."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long rows are kept after they are over; None: for ever.

    ``completed``, ``cancelled`` and ``dead``: jobs that ended so, with their attempts, from their end on. ``acts``:
    the audit of what people and schedules did. ``occurrences``: the ledger, from the due time on, at least 48 hours;
    a row also waits until its schedule's cursor has passed it, so that its occurrence is never made again.

    Never pruned: waiting and running jobs, jobs whose fences are still to be raised, and keys that are unique for
    ever. Raises ``TypeError`` or ``ValueError`` for what is no such time.
    """

    completed: timedelta | None = timedelta(days=7)
    cancelled: timedelta | None = timedelta(days=7)
    dead: timedelta | None = timedelta(days=90)
    acts: timedelta | None = timedelta(days=365)
    occurrences: timedelta | None = timedelta(days=90)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if not isinstance(value, timedelta):
                raise TypeError(f"Retention: {field.name}= takes a timedelta or None, not {type(value).__name__}")
            least = LEAST_OCCURRENCES if field.name == "occurrences" else timedelta(0)
            if not least <= value <= timedelta(seconds=MAX_WAIT):
                raise ValueError(f"Retention: {field.name}= is from {least} to some ten years, or None, not {value}")

    @property
    def states(self) -> dict[str, float]:
        """Seconds by final state, of those that are ever pruned."""
        kept = {"completed": self.completed, "cancelled": self.cancelled, "dead": self.dead}
        return {state: time.total_seconds() for state, time in kept.items() if time is not None}
