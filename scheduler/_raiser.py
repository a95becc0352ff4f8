"""The raiser: raises the fences of jobs that were taken away from their holders.

A holder that was revoked can be paused, or never hear of it. So the token that was drawn for its job is shown to the
job's declared resources by somebody else: at once by whoever revoked it, if that process knows the task, and by any
worker that does until it is done. Which are still to be raised is written down with the revocation itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fencing import Lease, Token, raise_fence
from fencing.errors import StaleTokenError
from scheduler._connect import Link
from scheduler._job import Job
from scheduler._json import storable
from scheduler._loop import log
from scheduler._sql import Statements
from scheduler._store import Claimed
from scheduler._tasks import Task, declared_fences

BATCH = 20
"""How many revocations one sweep takes at most: raising one may wait for a paused holder's open transaction."""

MAX_DELAY = 60.0
"""The most seconds between two tries of one that cannot be raised."""


class Raiser:
    """Raises what is open, one revocation at a time; one that fails waits for its next try and blocks no other."""

    def __init__(
        self,
        link: Link,
        statements: Statements,
        tasks: Mapping[str, Task],
        run_async: Callable[[Any], Any] | None,
    ) -> None:
        """``run_async`` runs an awaitable to its end; None where there is no loop to run it on: then it is left to
        the workers."""
        self._link = link
        self._statements = statements
        self._tasks = tasks
        self._run_async = run_async

    def run_once(self) -> float | None:
        """Raise a batch of what is open and of tasks that this process knows; at once again if it was full."""
        with self._link.use("look for revocations") as connection:
            parameters = {"tasks": list(self._tasks), "batch": BATCH}
            due = [row[0] for row in connection.execute(self._statements["revocations_due"], parameters)]
        if due:
            self.raise_fences(due)
        return 0 if len(due) == BATCH else None

    def raise_fences(self, revoked: Iterable[int]) -> set[int]:
        """Raise the fences of these revoked tokens' jobs; return those that are raised now."""
        with self._link.use("look at revocations") as connection:
            statement = self._statements["revocations_open"]
            rows = connection.execute(statement, {"revoked": list(revoked)}).fetchall()
        raised = set()
        for issuer, token, tries, actor, *job in rows:
            claimed = Claimed(*job)
            if claimed.task not in self._tasks:
                continue
            error: str | None = None
            delay = 0.0
            try:
                self._raise_one(self._tasks[claimed.task], claimed, issuer, actor)
                raised.add(token)
            except _LeftToWorkersError:
                error = "its fences are asynchronous: left to the workers"
            except Exception as exc:  # noqa: BLE001 - whatever a target raises, the others are raised
                delay = min(MAX_DELAY, 2.0 ** min(tries, 10))
                error = storable(repr(exc), 1000)
                log.warning(
                    "job %d was revoked by %s, but its fences are not raised yet, again in %.0f s: %s",
                    claimed.id,
                    actor,
                    delay,
                    error,
                )
            with self._link.use("note raised fences") as connection:
                parameters = {"revoked": token, "error": error, "delay": delay}
                connection.execute(self._statements["revocation_raised"], parameters)
        return raised

    def _raise_one(self, task: Task, claimed: Claimed, issuer: str, actor: str) -> None:
        if task.fences is None:
            return
        token = Token(claimed.token, issuer, claimed.lineage)
        lease = Lease(token, f"job/{claimed.id}", f"revoked by {actor}", deadline=0.0)
        lease.began_at = claimed.created_at
        job = Job(claimed, lease)
        for target, resources in declared_fences(task.name, self._awaited(task.fences(job))):
            try:
                self._awaited(raise_fence(target, *resources, token=job))
            except StaleTokenError:
                continue  # a newer holder is there already: the old one is shut out all the same

    def _awaited(self, value: Any) -> Any:
        if not inspect.isawaitable(value):
            return value
        if self._run_async is None:
            if inspect.iscoroutine(value):
                value.close()
            raise _LeftToWorkersError
        return self._run_async(value)


class _LeftToWorkersError(Exception):
    """There is no event loop here that the task's asynchronous clients could belong to."""
