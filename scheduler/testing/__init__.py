"""For the tests of applications: a clock that the test sets, a fresh schema, jobs run to the end, and assertions.

Everything talks to a real PostgreSQL. A test's own schema is thrown away afterwards; see
:mod:`scheduler.testing.pytest_plugin` for the fixtures.
"""

from scheduler.testing._asserts import (
    assert_dead,
    assert_enqueued,
    assert_idle,
    assert_not_enqueued,
    assert_ran,
    find_jobs,
)
from scheduler.testing._clock import Clock
from scheduler.testing._fresh import fresh
from scheduler.testing._run import run_until, run_until_idle

__all__ = [
    "Clock",
    "assert_dead",
    "assert_enqueued",
    "assert_idle",
    "assert_not_enqueued",
    "assert_ran",
    "find_jobs",
    "fresh",
    "run_until",
    "run_until_idle",
]
