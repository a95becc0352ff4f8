"""The connections of a relay: threads that take rows from one queue, each with a session of its own."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable

from adapters.email._batch import BatchRun
from adapters.email._breaker import Circuit, Pace
from adapters.email._claims import Row
from adapters.email._commits import Commits
from adapters.email._transport import Session, Transport, TransportUnavailable

_log = logging.getLogger(__name__)

_KEPT = 30.0
"""Seconds for which a connection without work is kept."""


class Crew:
    """The rows that were claimed and not begun, and who serves them."""

    def __init__(
        self, transport: Transport, connections: int, pace: Pace, circuit: Circuit, idle: float, stop: threading.Event
    ) -> None:
        self._transport = transport
        self._connections = connections
        self._pace = pace
        self._circuit = circuit
        self._idle = idle
        self._stop = stop
        self._rows: deque[tuple[BatchRun, Row]] = deque()
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._room = threading.Condition(lock)  # who claims is woken once a batch, not once a row
        self._low: int | None = None
        self._closed = False
        self._threads: list[threading.Thread] = []

    def waiting(self) -> int:
        """How many rows are claimed and not begun."""
        return len(self._rows)

    def add(self, run: BatchRun, rows: Iterable[Row]) -> None:
        """Put a batch behind the others."""
        with self._changed:
            self._rows.extend((run, row) for row in rows)
            self._changed.notify_all()
        if self._stop.is_set():
            self.give_back()  # whoever would have served them may have gone already

    def wait_for_room(self, low: int) -> bool:
        """Wait a moment until at most ``low`` rows wait; whether that is so."""
        with self._room:
            self._low = low
            found = self._room.wait_for(lambda: len(self._rows) <= low, 1.0)
            self._low = None
            return found

    def start(self) -> None:
        """Open the threads of a running relay."""
        self._threads = [
            threading.Thread(target=self._serve, name=f"outbox-connection-{number}")
            for number in range(self._connections)
        ]
        for thread in self._threads:
            thread.start()

    def serve_until(self, run: BatchRun, commits: Commits) -> None:
        """Serve the batch, the calling thread being one of the connections, until its last row is settled."""
        self._threads = [
            threading.Thread(target=self._serve, args=(True,), name=f"outbox-connection-{number}")
            for number in range(1, min(self._connections, len(self._rows)))
        ]
        for thread in self._threads:
            thread.start()
        try:
            self._serve(True)
        finally:
            self.give_back()
            for thread in self._threads:
                thread.join()
            commits.flush()
        run.finished.wait()

    def close(self) -> None:
        """Let the threads finish the message in hand, and give everything else back."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self.give_back()

    def _serve(self, once: bool = False) -> None:
        session = self._transport.session()
        broken = 0
        try:
            while (found := self._next(session, once)) is not None:
                run, row = found
                self._pace.wait(self._stop)  # with a message in hand: turns are not saved up by who has nothing to do
                if self._stop.is_set() or run.hold.remaining() <= 0:
                    run.release((row,))
                    continue
                try:
                    delivery = run.serve(row, session)
                except TransportUnavailable as exc:
                    self._give_up(run, str(exc), (row,))
                    continue
                except BaseException:
                    run.release((row,))
                    raise
                # A server that hangs up on one message may mean that message; on two in a row, itself.
                broken = broken + 1 if delivery is not None and delivery.free else 0
                if broken >= 2:
                    broken = 0
                    self._give_up(run, "the server turned two messages away in a row", ())
                elif not broken:
                    self._circuit.succeed()
        finally:
            _close(session)

    def _next(self, session: Session, once: bool) -> tuple[BatchRun, Row] | None:
        kept = _KEPT
        while True:
            with self._changed:
                if self._stop.is_set() or self._closed:
                    break
                if self._rows:
                    found = self._rows.popleft()
                    if len(self._rows) == self._low:
                        self._room.notify_all()
                    return found
                if once:
                    return None
                arrived = self._changed.wait_for(lambda: self._rows or self._closed or self._stop.is_set(), 0.5)
            if not arrived:
                kept -= 0.5
                if kept == 0:
                    _close(session)
        self.give_back()
        return None

    def _give_up(self, run: BatchRun, why: str, rows: tuple[Row, ...]) -> None:
        """The server is of no use: give back everything that waits for it."""
        run.counts.unavailable = why
        self._circuit.fail()
        run.release(rows)
        self.give_back()

    def give_back(self) -> None:
        """Give back what was not begun: whoever could serve it may be waiting for an answer for a long time."""
        with self._changed:
            rows = list(self._rows)
            self._rows.clear()
            self._room.notify_all()
        for run in dict.fromkeys(run for run, _ in rows):
            run.release([row for owner, row in rows if owner is run])


def _close(session: Session) -> None:
    try:
        session.close()
    except Exception:  # noqa: BLE001 - a goodbye that fails must not end the thread
        _log.exception("outbox: a session could not be closed")
