"""What becomes of an occurrence that is due while an earlier one of its schedule is not over. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Overlap = Literal["skip", "buffer_one", "buffer_all", "allow", "cancel_other"]
"""``allow``: it runs beside it. ``skip``: it does not run. ``buffer_one``: it runs afterwards, unless one waits
already. ``buffer_all``: it runs afterwards, each in its turn. ``cancel_other``: the earlier one is cancelled.
"""


class Live(NamedTuple):
    """A job of a schedule that is not over. ``started``: claimed before; it runs now, or waits to run again."""

    id: int
    started: bool


class Waiting(NamedTuple):
    """A due occurrence that waits for the decision. A backfilled one was asked for by a person: no policy drops it
    while it waits."""

    key: str
    backfilled: bool


class Decision(NamedTuple):
    """What to do now: these occurrences become jobs, these are skipped, these jobs are cancelled first."""

    admit: list[str]
    skip: list[str]
    cancel: list[int]
    reason: str = ""


def decide(overlap: Overlap, live: Sequence[Live], waiting: Sequence[Waiting]) -> Decision:
    """Decide about the due occurrences of one schedule, in the order of their due times.

    A job that waits for its retry counts as running. One that was never claimed does not: as long as nobody has
    begun, nothing overlaps, and nothing is decided.
    """
    if overlap == "allow":
        return Decision([one.key for one in waiting], [], [])
    regular = [one.key for one in waiting if not one.backfilled]
    if overlap == "cancel_other" and regular:
        # The newest takes the place of whatever is not over, and of those that would have been cancelled at once.
        return Decision(regular[-1:], regular[:-1], [job.id for job in live], "a later occurrence took its place")
    if not live:
        return Decision([waiting[0].key] if waiting else [], [], [])
    if any(job.started for job in live):
        if overlap == "skip":
            return Decision([], regular, [], "an earlier occurrence was still running")
        if overlap == "buffer_one":
            return Decision([], regular[1:], [], "an earlier occurrence was still running and another one waited")
    return Decision([], [], [])
