"""Waiting for a state that a server reaches by itself and can only be asked about."""

import time
from collections.abc import Callable


def wait_until(reached: Callable[[], object], what: str, timeout: float) -> None:
    """Asks until the answer is true; ``TimeoutError`` with ``what`` when it is not so after ``timeout`` seconds."""
    give_up = time.monotonic() + timeout
    while not reached():
        if time.monotonic() > give_up:
            raise TimeoutError(f"not within {timeout:g} s: {what}")
        time.sleep(0.01)
