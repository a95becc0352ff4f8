"""The limiter: ends attempts that are over their task's run-time limit.

A handler that does not come back renews its lease for ever; nothing in Python stops its thread. So its lease is taken
away as by a cancel: a new token, the declared fences raised, its settlement lost. Any worker that knows the task does
it, by the database's clock, so that it needs nothing from the one that hangs. The attempt counts as failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scheduler._connect import Link
from scheduler._held import Work
from scheduler._loop import log
from scheduler._postgres import revoke
from scheduler._sql import Statements
from scheduler._store import Revoked, Settlement
from scheduler._tasks import Task

BATCH = 100
"""How many attempts one sweep ends at most."""

REASON = "run-time limit"
"""The reason of a job that died of it."""


class Limiter:
    """Sweeps the running jobs of those tasks that have a limit."""

    def __init__(
        self,
        link: Link,
        statements: Statements,
        owner: str,
        tasks: Mapping[str, Task],
        work: Work,
        on_revoked: Callable[[int], None],
    ) -> None:
        """``on_revoked`` is told each token that was taken away, after the commit."""
        self._link = link
        self._statements = statements
        self._owner = owner
        self._limited = {name: task for name, task in tasks.items() if task.max_runtime is not None}
        self._limits = {name: task.max_runtime for name, task in self._limited.items() if task.max_runtime is not None}
        self._work = work
        self._on_revoked = on_revoked

    @property
    def interval(self) -> float | None:
        """Seconds between two sweeps, or None if no task has a limit."""
        return min(1.0, min(self._limits.values()) / 4) if self._limits else None

    def run_once(self) -> float | None:
        """Sweep once; at once again if the sweep was full."""
        if not self._limits:
            return None
        parameters = {"tasks": list(self._limits), "limits": list(self._limits.values()), "batch": BATCH}
        with self._link.use("end attempts over their limit") as connection, connection.transaction():
            found = connection.execute(self._statements["overrun"], parameters).fetchall()
            ended = revoke(connection, self._statements, [self._end(*row) for row in found], self._owner)
        for one in ended:
            self._tell(one)
        self._work.counts.overran += len(ended)
        self._work.tallies.ended((one.queue, one.task, "overran", None, False) for one in ended)
        return 0 if len(found) == BATCH else None

    def _end(self, number: int, token: int, attempt: int, max_attempts: int, name: str) -> Settlement:
        error = f"over its run-time limit of {self._limits[name]:g} s"
        if attempt >= max_attempts:
            return Settlement(number, token, "dead", "overran", error=error, reason=REASON)
        delay = self._limited[name].retry.delay(attempt)
        return Settlement(number, token, "ready", "overran", error=error, delay=delay)

    def _tell(self, one: Revoked) -> None:
        log.warning(
            "job %d (%s): over its run-time limit of %g s; taken away from %s",
            one.id,
            one.task,
            self._limits[one.task],
            one.owner,
            extra={"job": one.id, "task": one.task, "queue": one.queue, "owner": one.owner, "token": str(one.token)},
        )
        self._on_revoked(one.revoked)
