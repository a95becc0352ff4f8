"""What one worker holds between a claim and the settlement of it."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fencing import Lease
from scheduler._hooks import Teller
from scheduler._store import Claimed, Settlement
from scheduler._tally import Tallies

if TYPE_CHECKING:
    from scheduler._tasks import Task


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

    def measure(self, settled: int) -> None:
        """Learn the present rate from the settler's progress."""
        self._finished += settled
        elapsed = time.monotonic() - self._since
        if elapsed >= 0.05:
            now = self._finished / elapsed
            self._rate = now if not self._rate else 0.5 * self._rate + 0.5 * now
            self._finished, self._since = 0, time.monotonic()

    @property
    def per_second(self) -> float:
        """Jobs settled a second, lately."""
        return self._rate
