"""The listener: wakes the claimer when a job was enqueued, and the heart when one was revoked.

A hint only; polling is the base.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduler._connect import Database, translated

PATIENCE = 60.0
"""Seconds until it is looked again whether there is still a pooler between."""


class Listener:
    """Waits on one connection for notifications. A connection that died is noticed and opened again by the loop."""

    def __init__(
        self,
        database: Database,
        channel: str,
        queues: tuple[str, ...],
        on_due: Callable[[], None],
        revoked_channel: str,
        on_revoked: Callable[[int], None],
        on_reconnect: Callable[[], None] = lambda: None,
    ) -> None:
        self._database = database
        self._channel = channel
        self._queues = queues
        self._on_due = on_due
        self._revoked_channel = revoked_channel
        self._on_revoked = on_revoked
        self._on_reconnect = on_reconnect
        self._listened = False
        self._stopping = False

    def run_once(self) -> float | None:
        """Listen until told to stop or the connection breaks."""
        with translated("listen"), self._database.connect("listener") as connection:
            if self._database.pooled:
                # A session that listens is somebody else's after the transaction.
                return PATIENCE
            connection.execute(f'listen "{self._channel}"')
            connection.execute(f'listen "{self._revoked_channel}"')
            if self._listened:
                self._on_reconnect()
            self._listened = True
            # Between the last look and the LISTEN, something may have come.
            self._on_due()
            while not self._stopping:
                for note in connection.notifies(timeout=1.0):
                    if note.channel == self._revoked_channel:
                        if note.payload.isdecimal():
                            self._on_revoked(int(note.payload))
                    elif note.payload in self._queues:
                        self._on_due()
                    if self._stopping:
                        break
                # A peer that vanished sends nothing; asking is the only way to notice.
                connection.execute("select 1")
        return None

    def stop(self) -> None:
        """Return within a second."""
        self._stopping = True
