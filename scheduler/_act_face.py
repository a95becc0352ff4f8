"""The part of `Scheduler` that looks at single jobs, ends them from outside and replays them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Protocol

from scheduler._acts import Ending, Outside, checked_reason, end_one
from scheduler._connect import Link
from scheduler._record import JobRecord, read_job, wait_for_result
from scheduler._replay import DeadFilter, Replayed, replay_dead, replay_one
from scheduler._sql import Statements
from scheduler._tasks import Task, check_name


class _Here(Protocol):
    owner: str
    link: Link


class ActFace(ABC):
    """The methods that concern single jobs after they were enqueued; :class:`Scheduler` has the rest."""

    _statements: Statements
    _tasks: dict[str, Task]

    @abstractmethod
    def _here(self) -> _Here:
        """What belongs to this process."""

    def cancel(self, job_id: int, *, reason: str, actor: str | None = None) -> Outside:
        """End a job as ``cancelled``, whether it waits or runs; return what it was.

        A running job is taken from its holder: its lease is lost (``job.lease.lost``, ``ensure()`` raises with the
        cause), its settlement is refused, and its declared fences (``fences=``) are raised to a token that is drawn
        for this, so that its writes end. They are raised before this returns where this process knows the task;
        otherwise, or where a downstream does not answer, by the workers; this waits a while for a holder that is inside
        its transaction. Nothing interrupts the handler itself. The same for a job that waits again since the lease of a
        holder ran out, who may still be at work.

        ``reason`` and ``actor`` (default: this process) are kept in the audit. Raises :class:`UnknownJobError` where
        there is no such job, :class:`JobStateError` where it has ended already.
        """
        return self._end(job_id, "cancelled", reason, actor)

    def bury(self, job_id: int, *, reason: str, actor: str | None = None) -> Outside:
        """End a job as ``dead`` from outside; everything else is as in :meth:`cancel`.

        A dead job shows up in ``fencing dead list`` and can be replayed.
        """
        return self._end(job_id, "dead", reason, actor)

    def replay(self, job_id: int, *, reason: str, actor: str | None = None) -> None:
        """Let a dead or cancelled job run again, now.

        It keeps its key, so that effects under ``once=job.key`` stay applied once; its attempts are counted anew, its
        tokens go on rising. Raises :class:`UnknownJobError`, and :class:`JobStateError` where it is neither dead nor
        cancelled or a job with its key is alive.
        """
        here = self._here()
        replay_one(here.link, self._statements, job_id, actor=self._actor(actor), reason=checked_reason(reason))

    def replay_dead(
        self,
        *,
        reason: str,
        actor: str | None = None,
        ids: Iterable[int] | None = None,
        task: str | None = None,
        queue: str | None = None,
        error: str | None = None,
        since: datetime | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> Replayed:
        """Replay the dead jobs that fit every condition given: their ids, task, queue, a text that their reason or
        last error contains, died since then (aware); at most ``limit``.

        ``dry_run`` changes nothing and returns which would have been tried. Those whose key is alive are skipped, and
        said why.
        """
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ValueError(f"limit= is None or a whole number from 1, not {limit!r}")
        return replay_dead(
            self._here().link,
            self._statements,
            DeadFilter(task, queue, error, since, tuple(ids) if ids is not None else None),
            actor=self._actor(actor),
            reason=checked_reason(reason),
            dry_run=dry_run,
            limit=limit,
        )

    def job(self, job_id: int) -> JobRecord:
        """Return what the database knows of a job: its state, its result, its last error, …

        Raises :class:`UnknownJobError` where there is none of that number.
        """
        with self._here().link.use(f"look at job {job_id}") as connection:
            return read_job(connection, self._statements, job_id)

    def result(self, job_id: int, *, wait: float = 0.0) -> Any:
        """Return what the handler returned, once the job is completed; ``wait``: seconds to wait for that.

        Raises :class:`JobStateError` if it is dead or cancelled, ``TimeoutError`` if it has not ended when the wait
        is over, :class:`UnknownJobError` if there is no such job (any more: see ``retention=``).
        """
        return wait_for_result(lambda: self.job(job_id), wait)

    def _actor(self, actor: str | None) -> str:
        return check_name("actor", actor if actor is not None else self._here().owner)

    def _end(self, job_id: int, state: Ending, reason: str, actor: str | None) -> Outside:
        here = self._here()
        return end_one(
            here.link,
            self._statements,
            job_id,
            state,
            actor=self._actor(actor),
            reason=checked_reason(reason),
            tasks=self._tasks,
        )
