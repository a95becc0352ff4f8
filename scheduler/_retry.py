"""When a failed job runs again."""

from __future__ import annotations

import random
from dataclasses import dataclass

MAX_WAIT = 10 * 366 * 24 * 3600.0
"""The longest wait, in seconds: some ten years. Far longer ones are no time that PostgreSQL can store."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how soon: exponential backoff with full jitter.

    The wait before attempt n + 1 is drawn evenly from 0 to ``min(cap, base * 2**(n - 1))`` seconds, so that jobs
    which failed together do not come back together (M. Brooker, "Exponential Backoff And Jitter", AWS Architecture
    Blog 2015). ``max_attempts`` counts every start, also one whose lease ran out; a job that kills its worker each
    time ends ``dead`` too.

    Raises ``ValueError`` for ``max_attempts`` below 1, or a ``base`` or ``cap`` that is no wait.
    """

    max_attempts: int = 5
    base: float = 1.0
    cap: float = 3600.0

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or not 1 <= self.max_attempts <= 2**31 - 1:
            raise ValueError(f"Retry: max_attempts is a whole number from 1, not {self.max_attempts!r}")
        for name, value in (("base", self.base), ("cap", self.cap)):
            if not is_wait(value):
                raise ValueError(f"Retry: {name} is a number of seconds from 0 to {MAX_WAIT:.0f}, not {value!r}")

    def delay(self, attempt: int, rng: random.Random | None = None) -> float:
        """Seconds to wait after the given attempt (counted from 1) failed."""
        ceiling = min(self.cap, self.base * 2.0 ** min(attempt - 1, 64))
        return (rng or _RNG).uniform(0, ceiling)


def is_wait(value: object) -> bool:
    """Whether ``value`` is a number of seconds that a job can wait."""
    return isinstance(value, int | float) and 0 <= value <= MAX_WAIT


_RNG = random.Random()


@dataclass(frozen=True, slots=True)
class RetryIn:
    """Returned by a handler:

    this attempt failed, try again after ``seconds``. At ``max_attempts`` the job is dead all the same.
    """

    seconds: float
    reason: str = ""

    def __post_init__(self) -> None:
        if not is_wait(self.seconds):
            raise ValueError(f"RetryIn takes a number of seconds from 0 to {MAX_WAIT:.0f}, not {self.seconds!r}")
        if not isinstance(self.reason, str):
            raise TypeError(f"RetryIn: the reason is a text, not {type(self.reason).__name__}")


@dataclass(frozen=True, slots=True)
class Bury:
    """Returned by a handler: no attempt will ever succeed; the job is dead now, with ``reason``."""

    reason: str

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str) or not self.reason:
            raise TypeError(f"Bury takes a reason, a text that is not empty, not {self.reason!r}")
