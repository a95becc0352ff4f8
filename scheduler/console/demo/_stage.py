"""What the demo runs on: a directory, two worker processes and real servers, all started at once.

Nothing heavy is imported here, so that the servers start while the rest of the demo is imported.
"""

from __future__ import annotations

import signal
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from scheduler.console.demo._given import Given
from scheduler.console.demo._process import PROGRAM, WorkerProcess
from scheduler.console.embedded import Postgres, Valkey
from scheduler.console.embedded._place import Place

if TYPE_CHECKING:
    from scheduler.console.embedded import SmtpSink


class StoryError(Exception):
    """The story cannot go on. The text says why, and what the workers said."""


class Stage:
    """Everything is started by ``with`` and gone after it, or with this process, however it ends.

    ``workers`` wait for orders. ``postgres``, ``valkey`` and ``sink`` are None for a server that was given; they
    answer after :meth:`wait`.
    """

    def __init__(self, given: Given) -> None:
        self.given = given
        self.postgres = None if given.dsn else Postgres()
        self.valkey = None if given.redis else Valkey()
        self.sink: SmtpSink | None = None
        self.workers: list[WorkerProcess] = []
        self._starts: list[Future[Any]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            # Its watchdog removes the directory, and kills the workers in it, also if this process is killed.
            place = Place("fencing-demo-", [PROGRAM], signal.SIGKILL)
            stack.callback(place.remove)
            servers = [server for server in (self.postgres, self.valkey) if server is not None]
            for server in servers:
                stack.callback(server.close)
            pool = stack.enter_context(ThreadPoolExecutor(max_workers=2))  # left first: no start is left half done
            self._starts = [pool.submit(server.start) for server in servers]
            for number in (1, 2):
                self.workers.append(stack.enter_context(closing(WorkerProcess(place.path, number))))
            if not self.given.smtp:
                from scheduler.console.embedded import SmtpSink  # heavy: while the others start

                self.sink = stack.enter_context(SmtpSink())
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def wait(self) -> None:
        """Return once the servers answer. Raises :class:`ServerUnavailableError` if one cannot be started."""
        for start in self._starts:
            start.result()
