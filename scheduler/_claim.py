"""How many jobs to claim, and how long a job that yields stays away. Pure."""

from __future__ import annotations

import random

MAX_BATCH = 500
"""The most that one claim takes: what the settling statements' array look-ups stay small for."""

LOOKAHEAD = 0.25
"""Seconds of work to hold ready. A job that waits here cannot run elsewhere, and its lease is running."""


def room(threads: int, waiting: int, running: int, per_second: float, batch: int, shortest_lease: float) -> int:
    """Return how many jobs a worker should claim now; 0 means it has enough.

    Enough to keep every thread busy for :data:`LOOKAHEAD` seconds at the rate (``per_second``, all threads together) at
    which they would run what there was lately, a tenth of the shortest lease at the most, and never fewer than the idle
    threads: slow jobs are claimed one per thread, fast ones in whole batches.
    """
    ahead = int(per_second * min(LOOKAHEAD, shortest_lease / 10))
    wanted = max(threads - running, ahead) - waiting
    # Half a batch at least, or a fast worker would claim a trickle after each settled job.
    if waiting and wanted < min(ahead, batch) // 2:
        return 0
    return max(0, min(wanted, batch, MAX_BATCH))


LIVE_HOLDER = 2.0
"""Seconds that a job stays away at most after it met another live holder of a resource."""

STUCK_HOLDER = 30.0
"""The same where it could not even look: a holder that was stopped in the middle of its transaction stays for long, and
each try takes a thread for the guard's lock timeout."""


def yield_delay(yields: int, rng: random.Random | None = None, most: float = LIVE_HOLDER) -> float:
    """Return the seconds that a job stays away when it gives way for the ``yields``-th time (from 0)."""
    ceiling = min(most, 0.05 * 2.0 ** min(yields, 16))
    return (rng or _RNG).uniform(ceiling / 2, ceiling)


_RNG = random.Random()
