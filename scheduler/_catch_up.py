"""Which of a schedule's late occurrences still run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from scheduler._occurrence import Occurrence

CatchUp = Literal["none", "latest", "all"]
"""What to run of what was missed: nothing, the newest, or everything up to the limit."""


class Planned(NamedTuple):
    """An occurrence and why it is skipped; ``skipped`` is None for one that runs."""

    occurrence: Occurrence
    skipped: str | None


def plan_catch_up(
    occurrences: Sequence[Occurrence], now: datetime, policy: CatchUp, limit: int, grace: timedelta | None
) -> list[Planned]:
    """Say of each occurrence, in order, whether it becomes a job.

    Late is what was due more than ``grace`` before ``now`` (None: a minute). What is not late always runs. Of the
    late ones ``none`` runs nothing, ``latest`` the newest unless a later one runs anyway, ``all`` the newest
    ``limit``. The rest is skipped with the reason.
    """
    horizon = now - (timedelta(minutes=1) if grace is None else grace)
    late = [one for one in occurrences if one.due_at < horizon]
    kept = {"none": 0, "latest": int(len(late) == len(occurrences)), "all": limit}[policy]
    chosen = {one.key for one in late[max(0, len(late) - kept) :]} if kept else set()
    reason = "missed, over the catch-up limit" if policy == "all" else f"missed, catch-up is {policy!r}"
    return [Planned(one, None if one.due_at >= horizon or one.key in chosen else reason) for one in occurrences]
