"""Waiting for a state that cannot tell when it is reached."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(predicate: Callable[[], T], what: str, timeout: float = 60, pause: float = 0.01) -> T:
    """Returns the predicate's answer once it is true; fails with ``what`` after ``timeout`` seconds.

    The failure shows the last answer, so return what was seen, not only whether it was right.
    """
    give_up = time.monotonic() + timeout
    while True:
        answer = predicate()
        if answer:
            return answer
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {timeout:g} s: {what} (last seen: {answer!r})")
        time.sleep(pause)
