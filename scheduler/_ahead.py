"""When to look for the next job that is known to become due. Pure; the times are those of one clock, in seconds."""

from __future__ import annotations

AGAIN = 0.01
"""Seconds until another look where one of the known jobs became due: only the first of them was known."""

FIRST = 0.004
"""Seconds by which a worker that came for nothing comes later the next time; twice as many each time after that."""

_NEVER = float("inf")


class Ahead:
    """Of many idle workers that know of the same job one gets it. The others come later the next time, at most
    ``most`` seconds, until they get one: or all of them would ask for each job."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._at = _NEVER
        self._behind = 0.0

    def saw(self, at: float) -> None:
        """The next job that is not due yet will be at ``at``; infinity if there is none."""
        self._at = at

    def expected(self, now: float) -> bool:
        """Whether a look at ``now`` is for a job that was known."""
        return self._at <= now

    def looked(self, expected: bool, found: bool) -> None:
        """Take what a look came to, whether or not it was for a job that was known."""
        if found:
            self._behind = 0.0
        elif expected:
            self._behind = min(self._most, max(FIRST, 2 * self._behind))

    def wait(self, now: float) -> float:
        """Return the seconds until a look is worth it; infinity if nothing is known."""
        left = self._at + self._behind - now
        if left > 0:
            return left
        self._at = _NEVER
        return AGAIN
