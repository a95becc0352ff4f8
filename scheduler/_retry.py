"""When a failed job runs again."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how soon: exponential backoff with full jitter.

    The wait before attempt n + 1 is drawn evenly from 0 to ``min(cap, base * 2**(n - 1))`` seconds, so that jobs
    which failed together do not come back together (M. Brooker, "Exponential Backoff And Jitter", AWS Architecture
    Blog 2015). ``max_attempts`` counts every start, also one whose lease ran out; a job that kills its worker each
    time ends ``dead`` too.

    Raises ``ValueError`` for ``max_attempts`` below 1 or a ``base`` or ``cap`` that is negative or no number.
    """

    max_attempts: int = 5
    base: float = 1.0
    cap: float = 3600.0

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or not 1 <= self.max_attempts <= 2**31 - 1:
            raise ValueError(f"Retry: max_attempts is a whole number from 1, not {self.max_attempts!r}")
        for name, value in (("base", self.base), ("cap", self.cap)):
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise ValueError(f"Retry: {name} is a number of seconds from 0, not {value!r}")

    def delay(self, attempt: int, rng: random.Random | None = None) -> float:
        """Seconds to wait after the given attempt (counted from 1) failed."""
        ceiling = min(self.cap, self.base * 2.0 ** min(attempt - 1, 64))
        return (rng or _RNG).uniform(0, ceiling)


_RNG = random.Random()


@dataclass(frozen=True, slots=True)
class RetryIn:
    """Returned by a handler:

    this attempt failed, try again after ``seconds``. At ``max_attempts`` the job is dead all the same.
    """

    seconds: float
    reason: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.seconds, int | float) or not math.isfinite(self.seconds) or self.seconds < 0:
            raise ValueError(f"RetryIn takes a number of seconds from 0, not {self.seconds!r}")


@dataclass(frozen=True, slots=True)
class Bury:
    """Returned by a handler: no attempt will ever succeed; the job is dead now, with ``reason``."""

    reason: str
