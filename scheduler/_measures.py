"""What `app.measure()` returns, and the rules by which numbers become a judgement. Pure; `_measure.py` reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from scheduler._tally import Durations

KNOWN_FROM = 20
"""Runs of a task in the last hour from which its usual time is known."""

STUCK_FACTOR = 5.0
STUCK_LEAST = 60.0
STUCK_OTHERWISE = 3600.0
"""A job is stuck that has been running for :data:`STUCK_FACTOR` times what 99 of 100 runs of its task took in the last
hour, and :data:`STUCK_LEAST` seconds at the least; where that is not known, for :data:`STUCK_OTHERWISE` seconds."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Durations in seconds: how many, what half, 95 and 99 of 100 did not exceed, and the longest.

    Counted in ranges (1, 2, 5, 10, … milliseconds and so on) and interpolated within them. None where there were none.
    """

    count: int
    p50: float | None
    p95: float | None
    p99: float | None
    longest: float | None


@dataclass(frozen=True, slots=True)
class QueueMeasures:
    """One queue, over the window.

    Attributes:
        queue: its name.
        lag: from due to claimed, of the jobs that were claimed in the window.
        oldest_due: seconds since the oldest due job became due; 0 where none waits.
        due: how many jobs are due now, counted up to 1,000 for each task and priority, and of exclusive jobs up to 100
            for each of 1,000 values.
        acceptable_lag: in seconds, as the application stated it (``app.queue``), or None.
        lag_exceeded: whether the oldest due job or the 95th percentile of the lag is over that.
        running: jobs whose lease is live.
        expired: jobs whose lease has run out and that nobody has taken back yet.
        dead: how many of the newest 10,000 dead jobs are of this queue.
        claimed: claims in the window.
        per_second: settled attempts a second in the window.
        outcomes: how attempts ended in the window, by outcome (``completed``, ``retried``, ``dead``, ``expired``, …).
        refused: handlers in the window that ended because a downstream refused a write.
        lost: settlements in the window that were refused because the lease had gone to somebody else.
    """

    queue: str
    lag: Percentiles
    oldest_due: float
    due: int
    acceptable_lag: float | None
    lag_exceeded: bool
    running: int
    expired: int
    dead: int
    claimed: int
    per_second: float
    outcomes: Mapping[str, int]
    refused: int
    lost: int


@dataclass(frozen=True, slots=True)
class TaskMeasures:
    """One task in one queue: how long its handlers ran in the window, and how attempts ended."""

    task: str
    queue: str
    run: Percentiles
    outcomes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WorkerMeasures:
    """One worker that was seen in the last hour.

    ``silent``: seconds since it was seen (it tells every few seconds; much longer means that it died or is paused).
    ``clock_skew``: seconds by which the database's clock is ahead of the worker's.
    """

    owner: str
    started_at: datetime
    silent: float
    queues: tuple[str, ...]
    concurrency: int
    running: int
    clock_skew: float
    listen_reconnects: int


@dataclass(frozen=True, slots=True)
class StuckJob:
    """A job whose lease is renewed though it has been running for longer than is usual for its task, in seconds."""

    id: int
    task: str
    queue: str
    attempt: int
    owner: str
    token: int
    running: float


@dataclass(frozen=True, slots=True)
class Measures:
    """What the workers of one schema did in the last ``window`` seconds, and how things stand now.

    ``stuck`` holds up to 100 jobs, those that have been running longest first. ``clock_skew`` is the largest of the
    workers', in either direction.
    """

    at: datetime
    window: float
    queues: tuple[QueueMeasures, ...]
    tasks: tuple[TaskMeasures, ...]
    workers: tuple[WorkerMeasures, ...]
    stuck: tuple[StuckJob, ...]
    clock_skew: float

    def queue(self, name: str) -> QueueMeasures | None:
        """Return the measures of the queue, or None if nothing is known of it."""
        return next((one for one in self.queues if one.queue == name), None)


def percentiles(durations: Durations) -> Percentiles:
    """Return what is shown of some durations."""
    return Percentiles(
        durations.count,
        durations.percentile(0.5),
        durations.percentile(0.95),
        durations.percentile(0.99),
        durations.longest if durations.count else None,
    )


def lag_exceeded(acceptable: float | None, oldest_due: float, p95: float | None) -> bool:
    """Return whether a queue is later than was said to be acceptable."""
    return acceptable is not None and max(oldest_due, p95 or 0.0) > acceptable


def stuck_after(run: Durations) -> float:
    """Return after how many seconds a job of a task is stuck that usually runs for as long as ``run`` tells."""
    usual = run.percentile(0.99)
    if usual is None or run.count < KNOWN_FROM:
        return STUCK_OTHERWISE
    return max(STUCK_FACTOR * usual, STUCK_LEAST)


def largest(values: Iterable[float]) -> float:
    """Return the value that is furthest from 0, 0 where there are none."""
    return max(values, key=abs, default=0.0)
