"""What one process counts of its own work, in memory, and how durations are counted."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

BOUNDS: tuple[float, ...] = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0),
    *(1_000.0, 2_000.0, 5_000.0, 10_000.0, 20_000.0, 50_000.0, 100_000.0),
)
"""Upper bounds, in seconds, of the ranges in which durations are counted; a last range is for what is longer."""


@dataclass(slots=True)
class Durations:
    """How many durations fell into each range, their sum and the longest, in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0
    longest: float = 0.0

    def observe(self, seconds: Sequence[float]) -> None:
        """Count some. What seems to have taken less than nothing, since a clock was set, took nothing."""
        if not seconds:
            return
        if min(seconds) < 0:
            seconds = [max(one, 0.0) for one in seconds]
        counts = self.counts
        if len(seconds) < len(BOUNDS):
            for one in seconds:
                counts[bisect_left(BOUNDS, one)] += 1
        else:
            # Of many, how many lie under each bound: a look for each bound instead of one for each of them.
            ordered, below = sorted(seconds), 0
            for number, bound in enumerate(BOUNDS):
                under = bisect_right(ordered, bound, below)
                counts[number] += under - below
                below = under
                if below == len(ordered):
                    break
            counts[-1] += len(ordered) - below
        self.total += sum(seconds)
        self.longest = max(self.longest, *seconds)

    def add(self, counts: Iterable[int], total: float, longest: float) -> None:
        """Add what was counted elsewhere."""
        self.counts = [mine + other for mine, other in zip(self.counts, counts, strict=True)]
        self.total += total
        self.longest = max(self.longest, longest)

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def percentile(self, share: float) -> float | None:
        """Return the duration that ``share`` (0 to 1) of all do not exceed, None where there were none.

        Interpolated within its range, so off by less than the range's width; never above the longest.
        """
        wanted = share * self.count
        if not wanted:
            return None
        below = 0
        for number, count in enumerate(self.counts):
            if count and below + count >= wanted:
                lower = BOUNDS[number - 1] if number else 0.0
                upper = BOUNDS[number] if number < len(BOUNDS) else self.longest
                return min(lower + (upper - lower) * (wanted - below) / count, self.longest)
            below += count
        return self.longest


@dataclass(slots=True)
class Tally:
    """What happened to the jobs of one task in one queue.

    ``refused``: handlers that ended because a downstream refused a write. ``lost``: settlements that were refused
    because the lease had gone to somebody else.
    """

    claimed: int = 0
    lag: Durations = field(default_factory=Durations)
    run: Durations = field(default_factory=Durations)
    outcomes: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    lost: int = 0

    def add(self, other: Tally) -> None:
        """Add another tally to this one."""
        self.claimed += other.claimed
        self.lag.add(other.lag.counts, other.lag.total, other.lag.longest)
        self.run.add(other.run.counts, other.run.total, other.run.longest)
        self.outcomes.update(other.outcomes)
        self.refused += other.refused
        self.lost += other.lost


Kind = tuple[str, str]
"""A queue and a task."""


class Tallies:
    """The tallies of one process, by queue and task, shared by its threads.

    What comes in is kept apart until :meth:`gather` adds it to the sums since the process began and to those of the
    present minute, so that whoever counts waits for nobody who reads. ``minute`` is the one that was written last;
    ``writing`` is held by whoever gathers and writes: the workers of one process share these and their rows.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fresh: dict[Kind, Tally] = {}
        self._sums: dict[Kind, Tally] = {}
        self._minute: dict[Kind, Tally] = {}
        self.writing = threading.Lock()
        self.listen_reconnects = 0
        self.minute: datetime | None = None

    def claimed(self, jobs: Sequence[Any]) -> None:
        """Count claimed jobs (with ``queue``, ``task`` and ``lag`` in seconds)."""
        lags: dict[Kind, list[float]] = {}
        last, some = None, list[float]()
        for job in jobs:
            kind = (job.queue, job.task)
            if kind != last:
                last, some = kind, lags.setdefault(kind, [])
            some.append(job.lag)
        with self._lock:
            for kind, seconds in lags.items():
                tally = self._of(kind)
                tally.claimed += len(seconds)
                tally.lag.observe(seconds)

    def ended(self, ends: Iterable[tuple[str, str, str | None, float | None, bool]]) -> None:
        """Count attempts that ended: (queue, task, outcome or None if the settlement was lost, seconds that the handler
        ran or None, whether a downstream had refused a write)."""
        groups: dict[tuple[str, str, str | None, bool], list[float | None]] = {}
        last, runs = None, list[float | None]()
        for queue, task, outcome, ran, refused in ends:
            group = (queue, task, outcome, refused)
            if group != last:
                last, runs = group, groups.setdefault(group, [])
            runs.append(ran)
        with self._lock:
            for (queue, task, outcome, refused), runs in groups.items():
                tally = self._of((queue, task))
                if outcome is None:
                    tally.lost += len(runs)
                else:
                    tally.outcomes[outcome] += len(runs)
                tally.run.observe([ran for ran in runs if ran is not None])
                if refused:
                    tally.refused += len(runs)

    def gather(self) -> dict[Kind, Tally]:
        """Return those of the present minute; they are not changed afterwards but by the next call."""
        with self._lock:
            fresh, self._fresh = self._fresh, {}
            for sums in (self._sums, self._minute):
                for kind, tally in fresh.items():
                    sums.setdefault(kind, Tally()).add(tally)
            return dict(self._minute)

    def sums(self) -> dict[Kind, Tally]:
        """Return those since the process began: a copy, which takes nothing away from what :meth:`gather` finds."""
        found: dict[Kind, Tally] = {}
        with self._lock:
            for part in (self._sums, self._fresh):
                for kind, tally in part.items():
                    found.setdefault(kind, Tally()).add(tally)
        return found

    def next_minute(self) -> None:
        """Begin another minute."""
        with self._lock:
            self._minute = {}

    def _of(self, kind: Kind) -> Tally:
        tally = self._fresh.get(kind)
        if tally is None:
            tally = self._fresh[kind] = Tally()
        return tally
