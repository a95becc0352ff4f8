"""Naive local times to instants: what a wall clock's jumps do to a rule.

A local time is compared with its zone at fold 0 and fold 1 (PEP 495). Equal offsets: the time happens once. A smaller
offset at fold 1: the clock went back and the time happens twice (a *fold*). A larger one: the clock went forward over
the time and it never happens (a *gap*). All other arithmetic is in UTC: an *instant* here is a naive datetime in UTC.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from heapq import heappop, heappush
from typing import Final, Literal, NamedTuple

__all__ = ["ELAPSED", "Clock", "Fold", "Gap", "Moment", "Policy", "earliest_local", "latest_local", "moments"]

Clock = Literal["auto", "wall", "elapsed"]
Gap = Literal["after", "shift", "skip"]
Fold = Literal["first", "second", "both"]

_DAY: Final = timedelta(hours=24)  # an offset, and so a jump of the clock between two offsets seen so far, is below it
_PROBE: Final = timedelta(hours=26)
_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Policy:
    """What becomes of a local time that does not happen once.

    Attributes:
        gap: ``after``: the first instant after the gap; ``shift``: as far after it as the time lies within it
            (02:30 becomes 03:30); ``skip``: nothing.
        fold: ``first``, ``second`` or ``both`` of the two instants.
        max_gap: times in a longer gap (a skipped day) give nothing; ``None`` sets no bound.
    """

    gap: Gap
    fold: Fold
    max_gap: timedelta | None


ELAPSED: Final = Policy(gap="skip", fold="both", max_gap=None)
"""A rule that follows elapsed time: every instant at which the wall clock shows a matching time, and no other."""


class Moment(NamedTuple):
    """An instant, and how many local times fell on it: ``nominal``, with its fold, is the earliest of them."""

    instant: datetime
    nominal: datetime
    fold: int
    merged: int


def moments(nominals: Iterable[datetime], zone: tzinfo, policy: Policy) -> Iterator[Moment]:
    """Resolve ascending naive local times: one moment an instant, in ascending order, as lazily as the order allows.

    Around a jump a later local time may have an earlier instant, so instants wait until none can come before them.
    """
    waiting: list[tuple[datetime, datetime, int]] = []
    for nominal in nominals:
        first, second = _offsets(nominal, zone)
        if first == second and not waiting:
            yield Moment(nominal - first, nominal, 0, 1)
            continue
        for instant, fold in _instants(nominal, first, second, zone, policy):
            heappush(waiting, (instant, nominal, fold))
        if first >= second:  # in a gap, local times still to come may have this very instant
            yield from _release(waiting, nominal - first)
    yield from _release(waiting, datetime.max)


def earliest_local(instant: datetime, zone: tzinfo) -> datetime:
    """A local time below every one that :func:`moments` may resolve to an instant after the given one.

    Only offsets in effect near the instant can matter, and the nearest two changes in the zone data are a week apart,
    so that three probes see every one.
    """
    return instant + min(_offset_at(instant + near, zone) for near in (-_PROBE, timedelta(), _PROBE))


def latest_local(instant: datetime) -> datetime:
    """A local time above every one that :func:`moments` may resolve to the given instant or an earlier one."""
    return instant + _DAY


def _offsets(nominal: datetime, zone: tzinfo) -> tuple[timedelta, timedelta]:
    first = zone.utcoffset(nominal)
    second = zone.utcoffset(nominal.replace(fold=1))
    assert first is not None and second is not None
    return first, second


def _instants(
    nominal: datetime, first: timedelta, second: timedelta, zone: tzinfo, policy: Policy
) -> Iterator[tuple[datetime, int]]:
    """The instants of one local time, each with the fold that names it."""
    if first >= second:
        if first == second or policy.fold != "second":
            yield nominal - first, 0
        if first > second and policy.fold != "first":
            yield nominal - second, 1
    elif policy.max_gap is None or second - first <= policy.max_gap:
        if policy.gap == "shift":
            yield nominal - first, 0
        elif policy.gap == "after":
            yield _jump(nominal - second, nominal - first, zone), 0


def _jump(before: datetime, after: datetime, zone: tzinfo) -> datetime:
    """The instant in (``before``, ``after``] at which the zone's offset changes, to the second."""
    old = _offset_at(before, zone)
    seconds = range((after - before) // _SECOND)
    return before + _SECOND * bisect_left(seconds, True, key=lambda s: _offset_at(before + _SECOND * s, zone) != old)


def _offset_at(instant: datetime, zone: tzinfo) -> timedelta:
    offset = instant.replace(tzinfo=UTC).astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def _release(waiting: list[tuple[datetime, datetime, int]], until: datetime) -> Iterator[Moment]:
    """Take what is due at ``until`` or before off the heap, merging what fell on one instant."""
    while waiting and waiting[0][0] <= until:
        instant, nominal, fold = heappop(waiting)
        merged = 1
        while waiting and waiting[0][0] == instant:
            heappop(waiting)
            merged += 1
        yield Moment(instant, nominal, fold, merged)
