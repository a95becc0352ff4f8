"""One loop for every service: run once, wait, run again; survive what the database does meanwhile."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from fencing.errors import FencingError

log = logging.getLogger("scheduler")

MAX_BACKOFF = 5.0
"""The most seconds between two tries of a service that keeps failing."""


class Loop:
    """A thread that calls ``run_once`` until it is told to stop.

    ``run_once`` returns the seconds to wait before the next run, or None for ``interval``; :meth:`wake` cuts the wait
    short. An exception is logged and the service goes on after a growing, jittered wait of at most ``max_backoff``
    seconds: a restart of the server in the middle of a sweep ends no loop.
    """

    def __init__(
        self, name: str, run_once: Callable[[], float | None], interval: float, max_backoff: float = MAX_BACKOFF
    ) -> None:
        self.name = name
        self._run_once = run_once
        self._interval = interval
        self._max_backoff = max_backoff
        self._wake = threading.Event()
        self._stopping = False
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name=f"fencing-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Run again now, or right after the present run."""
        self._wake.set()

    def stop(self, timeout: float | None = None) -> None:
        """End after the present run and wait for that, at most ``timeout`` seconds."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    @property
    def failing(self) -> bool:
        """Whether the last run ended in an error."""
        return self._failures > 0

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                wait = self._run_once()
                if self._failures:
                    log.info("%s: recovered after %d failures", self.name, self._failures)
                self._failures = 0
            except Exception as exc:  # whatever one run meets, the service goes on
                self._failures += 1
                wait = min(self._max_backoff, 0.05 * 2.0 ** min(self._failures, 10)) * random.uniform(0.5, 1.0)
                # The expected kinds are one line; anything else is a fault of ours and shows where.
                log.warning(
                    "%s failed (%d in a row), again in %.1f s: %s",
                    self.name,
                    self._failures,
                    wait,
                    exc,
                    exc_info=None if isinstance(exc, FencingError) else exc,
                )
            if not self._stopping:
                self._wake.wait(self._interval if wait is None else wait)
