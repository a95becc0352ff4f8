"""What keeps a relay from a server that wants nothing: a circuit breaker, and a limit on the rate."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import Literal

BreakerState = Literal["closed", "open", "half-open"]
"""``closed``: messages flow. ``open``: the server is left alone, and nothing is claimed. ``half-open``: one message
tries it."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """How long a server that is down is left alone, in seconds.

    After the first fruitless batch for ``first`` seconds, then twice as long each time up to ``cap``, each pause cut
    at random to between a half and the whole. While it is open nothing is claimed, so no attempt is counted and
    another relay may serve the rows.
    """

    first: float = 1.0
    cap: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.cap:
            raise ValueError(f"a breaker needs 0 < first <= cap, not {self!r}")

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many fruitless batches in a row."""
        ceiling = min(self.cap, self.first * 2.0 ** min(failures - 1, 32))
        return ceiling * random.uniform(0.5, 1.0)


class Circuit:
    """The breaker of one relay. For any number of threads."""

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker
        self._lock = threading.Lock()
        self._failures = 0
        self._until = 0.0

    @property
    def state(self) -> BreakerState:
        """What it lets through at this moment."""
        if not self._failures:
            return "closed"
        return "open" if time.monotonic() < self._until else "half-open"

    def remaining(self) -> float:
        """Seconds for which nothing may be claimed."""
        return max(0.0, self._until - time.monotonic()) if self._failures else 0.0

    def fail(self) -> None:
        """A batch found the server, or the database, of no use. Several at once count as one."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._failures += 1
                self._until = time.monotonic() + self._breaker.pause(self._failures)

    def succeed(self) -> None:
        """The server took part in a conversation: all is well."""
        with self._lock:
            self._failures = 0
            self._until = 0.0


class Pace:
    """At most ``rate`` messages a second, evenly, with up to a second's worth saved up."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._next = time.monotonic()

    def wait(self, stop: threading.Event) -> None:
        """Wait for the turn of the next message, or for ``stop``."""
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            turn = max(self._next, now - 1.0)
            self._next = turn + 1.0 / self._rate
        if turn > now:
            stop.wait(turn - now)

    def share(self, batch: int, seconds: float) -> int:
        """How many of ``batch`` rows can be handed over in ``seconds``; at least one."""
        return batch if self._rate is None else max(1, min(batch, int(self._rate * seconds)))
