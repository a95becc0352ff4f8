"""When a message is tried again. The next time is written into its row: ten relays do not try ten times as fast."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential, with full jitter above a floor; all in seconds.

    The delay after attempt n is ``minimum`` plus a random part of ``base * 2**(n - 1)``, that at most ``cap``; after
    ``attempts`` attempts the message has failed. The defaults outlast greylisting (RFC 6647 §4: a minute to a day)
    and give up after some 4.5 days (RFC 5321 §4.5.4.1 asks for 4 to 5).
    """

    minimum: float = 60.0
    base: float = 240.0
    cap: float = 14_400.0
    attempts: int = 60

    def __post_init__(self) -> None:
        if self.minimum <= 0 or self.base < 0 or self.cap < 0 or self.attempts < 1:
            raise ValueError(f"a backoff needs minimum > 0, base and cap >= 0, attempts >= 1; not {self!r}")

    def delay(self, attempt: int) -> float:
        """Seconds until the next attempt, after ``attempt`` of them (from 0, where none counted)."""
        ceiling = min(self.cap, self.base * 2.0 ** min(max(attempt - 1, 0), 64))
        return self.minimum + random.uniform(0.0, ceiling)  # spreads load; nothing secret hangs on it

    def exhausted(self, attempts: int) -> bool:
        """Whether ``attempts`` were the last."""
        return attempts >= self.attempts
