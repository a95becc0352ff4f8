"""What a handler is given, and what `enqueue` returns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from fencing import Lease, Token


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


class Enqueued(NamedTuple):
    """``created`` is False if a job with the same key was alive; ``id`` is then that job's."""

    created: bool
    id: int
