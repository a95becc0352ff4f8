"""The rescuer: takes back jobs whose lease ran out. Every worker has one; recovery needs no leader."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fencing import Token, history
from scheduler._connect import Link
from scheduler._held import Counts
from scheduler._loop import log
from scheduler._postgres import RESCUE_BATCH, rescue
from scheduler._sql import Statements


class Rescuer:
    """Sweeps the queues and tasks that this worker can run itself; what it does not know stays visible and is never
    dropped."""

    def __init__(
        self,
        link: Link,
        statements: Statements,
        queues: Sequence[str],
        tasks: Sequence[str],
        counts: Counts,
        on_rescued: Callable[[], None],
    ) -> None:
        self._link = link
        self._statements = statements
        self._queues = queues
        self._tasks = tasks
        self._counts = counts
        self._on_rescued = on_rescued

    def run_once(self) -> float | None:
        """Sweep once; at once again if the sweep was full."""
        with self._link.use("rescue") as connection:
            rescued = rescue(connection, self._statements, self._queues, self._tasks)
        for job in rescued:
            log.warning(
                "job %d (%s): the lease of %s ran out in attempt %d; now %s",
                job.id,
                job.task,
                job.owner,
                job.attempt,
                job.state,
            )
            if history.recording():
                token = str(Token(job.token, job.issuer, job.lineage))
                one = (f"job/{job.id}",)
                history.emit(history.Event("rescue", "done", job.owner, "scheduler", one, token, detail=job.state))
        self._counts.rescued += len(rescued)
        if rescued:
            self._on_rescued()
        return 0 if len(rescued) == RESCUE_BATCH else None
