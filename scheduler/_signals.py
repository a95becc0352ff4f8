"""How a worker on the main thread hears that it is to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any, Self


class Signals:
    """While inside, the first SIGTERM or SIGINT is noted, the second abandons what still runs.

    A signal's handler runs in the main thread wherever that is, perhaps inside a lock: so it takes none, and sets no
    :class:`threading.Event`, which has one.
    """

    def __init__(self, abandon: Callable[[], None]) -> None:
        self.arrived = False
        self._abandon = abandon
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, _: object) -> None:
        if self.arrived:
            self._abandon()
        self.arrived = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
