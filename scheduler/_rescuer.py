"""The rescuer: takes back jobs whose lease ran out. Every worker has one; recovery needs no leader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fencing import Token, history
from scheduler._connect import Link
from scheduler._held import Work
from scheduler._hooks import RescueEvent
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
        work: Work,
        on_rescued: Callable[[], None],
    ) -> None:
        self._link = link
        self._statements = statements
        self._queues = queues
        self._tasks = tasks
        self._work = work
        self._on_rescued = on_rescued

    def run_once(self) -> float | None:
        """Sweep once; at once again if the sweep was full."""
        with self._link.use("rescue") as connection:
            rescued = rescue(connection, self._statements, self._queues, self._tasks)
        for job in rescued:
            fields: dict[str, Any] = {
                "job": job.id,
                "task": job.task,
                "queue": job.queue,
                "attempt": job.attempt,
                "token": Token(job.token, job.issuer, job.lineage),
                "owner": job.owner,
            }
            if self._work.teller.wants(RescueEvent):
                self._work.teller.tell(RescueEvent(**fields, state=job.state))
            log.warning(
                "job %d (%s): the lease of %s ran out in attempt %d; now %s",
                job.id,
                job.task,
                job.owner,
                job.attempt,
                job.state,
                extra={**fields, "token": str(fields["token"])},
            )
            if history.recording():
                token = str(fields["token"])
                one = (f"job/{job.id}",)
                history.emit(history.Event("rescue", "done", job.owner, "scheduler", one, token, detail=job.state))
        self._work.counts.rescued += len(rescued)
        self._work.tallies.ended((job.queue, job.task, "expired", None, False) for job in rescued)
        if rescued:
            self._on_rescued()
        return 0 if len(rescued) == RESCUE_BATCH else None
