"""What one worker holds between a claim and the settlement of it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fencing import Lease
from fencing._token import issued
from scheduler._hooks import Teller
from scheduler._store import Claimed, Settlement
from scheduler._tally import Tallies

if TYPE_CHECKING:
    from scheduler._tasks import Task

RATE_OVER = 0.05
"""Seconds over which the rate is measured."""

SHORTEST = 1e-5
"""Seconds that a job takes at least, whatever its handler does."""


class JobLease(Lease):
    """The lease of a claimed job.

    Its name and its token as such are made when somebody asks: few handlers of short jobs do, and both together cost
    more than the rest of it.
    """

    def __init__(self, claimed: Claimed, holder: str, deadline: float) -> None:
        self._claimed = claimed
        self.holder = holder
        self.began_at = claimed.created_at
        self._deadline = deadline

    def __getattr__(self, name: str) -> Any:
        # Asked only for what is not there yet.
        if name == "token":
            claimed = self._claimed
            self.token = issued(claimed.token, claimed.issuer, claimed.lineage)
            return self.token
        if name == "name":
            self.name = f"job/{self._claimed.id}"
            return self.name
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@dataclass(slots=True)
class Held:
    """A claimed job, its task and its lease.

    ``started`` is a monotonic time while its handler runs, ``ran`` the seconds that it took; ``refused``: a downstream
    refused a write of the handler's.
    """

    claimed: Claimed
    task: Task
    lease: Lease
    started: float | None = None
    reported: float = 0.0
    ran: float | None = None
    refused: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        """What an event tells of the job that it is about."""
        claimed, lease = self.claimed, self.lease
        return {
            "job": claimed.id,
            "task": claimed.task,
            "queue": claimed.queue,
            "attempt": claimed.attempt,
            "token": lease.token,
            "owner": lease.holder,
        }

    @property
    def log_fields(self) -> dict[str, Any]:
        """The same for a log record's ``extra=``, the token as text."""
        return {**self.facts, "token": str(self.lease.token)}


@dataclass(slots=True)
class Counts:
    """What a worker did. ``lost``: settlements that were refused because somebody else had taken the job over."""

    claimed: int = 0
    completed: int = 0
    retried: int = 0
    dead: int = 0
    yielded: int = 0
    returned: int = 0
    rescued: int = 0
    overran: int = 0
    lost: int = 0


@dataclass(slots=True)
class Work:
    """The worker's shared state: waiting → running → ended → settled.

    The two deques are popped and appended without a lock (each operation is atomic); ``arrived`` and ``ended_some``
    only wake whoever sleeps. ``held`` keeps every job by token until its settlement is confirmed, so that its lease
    is renewed for so long. ``settled`` counts the batches that were settled: a handler may have enqueued something
    before each of them. ``doubted``: tokens that are said to be revoked; the heart asks.
    """

    waiting: deque[Held] = field(default_factory=deque)
    ended: deque[Settlement] = field(default_factory=deque)
    held: dict[int, Held] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    arrived: threading.Condition = field(default_factory=threading.Condition)
    ended_some: threading.Event = field(default_factory=threading.Event)
    doubted: set[int] = field(default_factory=set)
    teller: Teller = field(default_factory=Teller)
    tallies: Tallies = field(default_factory=Tallies)
    draining: bool = False
    settled: int = 0
    _finished: int = 0
    _rate: float = 0.0
    _runs: int = 0
    _ran: float = 0.0
    _each: float | None = None
    _since: float = field(default_factory=time.monotonic)

    @property
    def running(self) -> int:
        """How many jobs are neither waiting for a thread nor settled."""
        return max(0, len(self.held) - len(self.waiting))

    def take_doubted(self) -> set[int]:
        """Return the doubted tokens, and doubt them no longer."""
        doubted, self.doubted = self.doubted, set()
        return doubted

    def finish(self, settlement: Settlement) -> None:
        """Hand an attempt that ended to the settler."""
        self.ended.append(settlement)
        if not self.ended_some.is_set():
            self.ended_some.set()

    def measure(self, settled: int, runs: Sequence[float]) -> None:
        """Learn the present rate from the settler's progress, and from the seconds that handlers ran how long one
        takes."""
        self._finished += settled
        self._runs, self._ran = self._runs + len(runs), self._ran + sum(runs)
        elapsed = time.monotonic() - self._since
        over = elapsed >= RATE_OVER
        if self._runs and (over or self._each is None):
            # What takes longer is believed at once, what is quicker by and by.
            each, before = self._ran / self._runs, self._each
            self._each = each if before is None else max(each, 0.5 * before + 0.5 * each)
            self._runs, self._ran = 0, 0.0
        if over:
            now = self._finished / elapsed
            self._rate = now if not self._rate else 0.5 * self._rate + 0.5 * now
            self._finished, self._since = 0, time.monotonic()

    def able(self, threads: int) -> float:
        """Jobs a second that so many threads would run if there were always some, as far as is known.

        Not what they did run: where claims and settlements are slow, since many workers meet, or the worker was idle,
        a worker that claimed for that rate would claim ever less.
        """
        return self._rate if self._each is None else max(self._rate, threads / max(self._each, SHORTEST))
