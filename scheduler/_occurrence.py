"""One run that a schedule asks for, and the key that makes it one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

__all__ = ["Occurrence", "elapsed_key", "wall_key"]


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One run of a schedule.

    Attributes:
        due_at: when it is due, aware, in UTC, jitter included.
        nominal: the local time that the rule names, naive, in the schedule's zone (in a gap, no clock ever shows it).
        fold: 1 if ``nominal`` happens twice and the second time is meant, else 0.
        merged: how many nominal times of the rule fell on this instant, 1 as a rule. More than one at the end of a gap,
            where ``nominal`` is the earliest of them.
        key: names the occurrence within its schedule for ever: whoever computes it, with whatever window or jitter.
    """

    due_at: datetime
    nominal: datetime
    fold: int
    merged: int
    key: str


def wall_key(zone: str, nominal: datetime, fold: int) -> str:
    """The key under wall time: unique per zone, nominal local time and fold.

    It holds no instant, so that an occurrence whose instant moves with new zone data remains the same occurrence.
    """
    return f"{nominal.isoformat(timespec='seconds')}[{zone}]/{fold}"


def elapsed_key(instant: datetime) -> str:
    """The key under elapsed time: unique per due instant (naive, in UTC, before jitter)."""
    return f"{instant.isoformat(timespec='seconds')}Z"
