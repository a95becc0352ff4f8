"""What a handler is given, and what `enqueue` returns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from fencing import Lease, Token
from scheduler._store import Claimed


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt of a job.

    ``args`` as enqueued; ``due_at`` (aware) when this attempt was due; ``attempt`` counts from 1; ``lease`` is this
    attempt's, with ``remaining()``, ``ensure()`` and ``lost``; ``nominal`` is the local time that a schedule's rule
    named (naive), None without a schedule. ``key`` names the job for idempotency over all its attempts and replays:
    the one it was enqueued with, or ``job/ID``.
    """

    id: int
    task: str
    args: Any
    due_at: datetime
    attempt: int
    lease: Lease
    key: str
    queue: str
    priority: int
    schedule: str | None
    nominal: datetime | None

    @property
    def token(self) -> Token:
        """The fencing token of this attempt: what ``fenced_write`` shows to the downstream."""
        return self.lease.token


def job_of(claimed: Claimed, lease: Lease) -> Job:
    """Return what a handler is given for a claimed job."""
    return Job(
        claimed.id,
        claimed.task,
        claimed.args,
        claimed.due_at,
        claimed.attempt,
        lease,
        claimed.key or f"job/{claimed.id}",
        claimed.queue,
        claimed.priority,
        claimed.schedule,
        claimed.nominal,
    )


class Enqueued(NamedTuple):
    """``created`` is False if a job with the same key was alive; ``id`` is then that job's."""

    created: bool
    id: int
