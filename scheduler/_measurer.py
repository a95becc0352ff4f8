"""The measurer: writes what this worker counted, and watches the lag of its queues."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime

from scheduler._connect import Connection, Link
from scheduler._held import Work
from scheduler._hooks import LagEvent
from scheduler._loop import log
from scheduler._measure import acceptable_lags, oldest_due
from scheduler._measures import lag_exceeded
from scheduler._sql import Statements
from scheduler._tally import Kind, Tallies, Tally

TICK = 5.0
"""Seconds between two writes; so much of what a worker counted is missing when it is killed."""


class Measurer:
    """Writes a worker's tallies of the present minute, over those it wrote before, and that it is alive."""

    def __init__(
        self,
        link: Link,
        statements: Statements,
        work: Work,
        tallies: Tallies,
        owner: str,
        queues: Sequence[str],
        concurrency: int,
    ) -> None:
        self._link = link
        self._statements = statements
        self._work = work
        self._tallies = tallies
        self._owner = owner
        self._queues = list(queues)
        self._concurrency = concurrency
        self._late: set[str] = set()
        self.clock_skew = 0.0
        self._ended = False

    def run_once(self) -> float | None:
        """Write once, and look whether the lag is acceptable."""
        with self._link.use("measure") as connection:
            if self._ended:
                return None
            self._write(connection)
            acceptable = acceptable_lags(connection, self._statements)
            watched = [queue for queue in self._queues if queue in acceptable]
            if watched or self._late:
                due = oldest_due(connection, self._statements)
                for queue in {*watched, *self._late}:
                    self._judge(queue, due.get(queue, (0.0, 0))[0], acceptable.get(queue))
        return None

    def end(self) -> None:
        """Write for the last time: this worker is no longer there."""
        with self._link.use("measure") as connection:
            self._write(connection)
            connection.execute(self._statements["measure_end"], {"owner": self._owner})
            self._ended = True

    def _write(self, connection: Connection) -> None:
        with self._tallies.writing:
            minute = self._tallies.gather()
            began = time.time()
            row = connection.execute(
                self._statements["measure_write"],
                {
                    "owner": self._owner,
                    "queues": self._queues,
                    "concurrency": self._concurrency,
                    "running": self._work.running,
                    "clock_skew": self.clock_skew,
                    "listen_reconnects": self._tallies.listen_reconnects,
                    "minute": self._tallies.minute,
                    "tallies": _as_json(minute),
                },
            ).fetchall()[0]
            present: datetime = row[0]
            if self._tallies.minute not in (None, present):
                self._tallies.next_minute()
            self._tallies.minute = present
        # The server's answer lies somewhere between question and reply; half way is off by half of that at most.
        self.clock_skew = row[1] - (began + time.time()) / 2

    def _judge(self, queue: str, lag: float, acceptable: float | None) -> None:
        exceeded = lag_exceeded(acceptable, lag, None)
        if exceeded == (queue in self._late):
            return
        (self._late.add if exceeded else self._late.discard)(queue)
        if acceptable is None:
            return
        said = "is over" if exceeded else "is under"
        log.warning(
            "queue %r: its oldest due job has waited %.1f s, which %s the acceptable lag of %g s",
            queue,
            lag,
            said,
            acceptable,
            extra={"queue": queue},
        )
        self._work.teller.tell(LagEvent(queue, lag, acceptable, exceeded))


def _as_json(tallies: dict[Kind, Tally]) -> str:
    return json.dumps(
        [
            {
                "queue": queue,
                "task": task,
                "claimed": tally.claimed,
                "lag": tally.lag.counts,
                "lag_sum": tally.lag.total,
                "lag_most": tally.lag.longest,
                "run": tally.run.counts,
                "run_sum": tally.run.total,
                "run_most": tally.run.longest,
                "outcomes": tally.outcomes,
                "refused": tally.refused,
                "lost": tally.lost,
            }
            for (queue, task), tally in tallies.items()
        ]
    )
