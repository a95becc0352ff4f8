"""What a handler is given, and what `enqueue` returns."""

from __future__ import annotations

from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

from fencing import Lease, Token
from scheduler._store import Claimed


def _of_the_claim(name: str, meaning: str) -> Any:
    return property(attrgetter(f"_claimed.{name}"), doc=meaning)


_UNREAD = object()


class Job:
    """One attempt of a job; read-only.

    ``args`` as enqueued; ``due_at`` (aware) when this attempt was due; ``attempt`` counts from 1; ``lease`` is this
    attempt's, with ``remaining()``, ``ensure()`` and ``lost``; ``created_at`` (aware) when it was enqueued;
    ``nominal`` is the local time that a schedule's rule named (naive), None without a schedule. ``key`` names the job
    for idempotency over all its attempts and replays: the one it was enqueued with, or ``job/ID``.
    """

    # Made for every attempt: a view of what the claim returned costs less than a copy of it.
    __slots__ = ("_args", "_claimed", "_lease")

    def __init__(self, claimed: Claimed, lease: Lease) -> None:
        self._claimed = claimed
        self._lease = lease
        self._args: Any = _UNREAD

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.task!r}, attempt {self.attempt}, token {self.token}>"

    id: int = _of_the_claim("id", "The job's number.")
    task: str = _of_the_claim("task", "The name of its task.")

    @property
    def args(self) -> Any:
        """What it was enqueued with."""
        # Read when somebody asks, and once: what a handler changes in it stays changed for the rest of the attempt.
        if self._args is _UNREAD:
            self._args = self._claimed.args
        return self._args

    due_at: datetime = _of_the_claim("due_at", "When this attempt was due; aware.")
    created_at: datetime = _of_the_claim(
        "created_at", "When it was enqueued; aware. The same for all its attempts and replays."
    )
    attempt: int = _of_the_claim("attempt", "The number of this attempt, from 1.")
    queue: str = _of_the_claim("queue", "Its queue.")
    priority: int = _of_the_claim("priority", "Its priority; higher runs first.")
    schedule: str | None = _of_the_claim("schedule", "The schedule that it comes from, or None.")
    nominal: datetime | None = _of_the_claim(
        "nominal", "The local time that the schedule's rule named (naive), or None."
    )

    @property
    def key(self) -> str:
        """The key that it was enqueued with, or ``job/ID``."""
        return self._claimed.key or f"job/{self._claimed.id}"

    @property
    def lease(self) -> Lease:
        """The lease of this attempt."""
        return self._lease

    @property
    def token(self) -> Token:
        """The fencing token of this attempt: what ``fenced_write`` shows to the downstream."""
        return self._lease.token


class Enqueued(NamedTuple):
    """``created`` is False if a job with the same key was alive; ``id`` is then that job's."""

    created: bool
    id: int
