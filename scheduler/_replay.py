"""Replaying: a person lets dead or cancelled jobs run again.

A replayed job keeps its key, so that effects under ``once=job.key`` stay applied once; its attempts are counted anew,
its tokens go on rising. Each replay is a line of the audit, written in the transaction that does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import dict_row

from scheduler._acts import checked_id, tell
from scheduler._connect import Connection, Link
from scheduler._enqueue import checked_moment
from scheduler._sql import Statements
from scheduler._tasks import check_name
from scheduler.errors import JobStateError, UnknownJobError

BATCH = 100
"""How many jobs one transaction of a bulk replay takes."""


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Which dead jobs are meant: all conditions that are given hold.

    ``ids``: only these. ``error``: a text that the reason or the last error contains, in this case of letters.
    ``since``: aware; died then or later.
    """

    task: str | None = None
    queue: str | None = None
    error: str | None = None
    since: datetime | None = None
    ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for what, name in (("task", self.task), ("queue", self.queue)):
            if name is not None:
                check_name(what, name)
        if self.error is not None and (not isinstance(self.error, str) or not self.error or "\x00" in self.error):
            raise ValueError(f"error= takes a text that the error contains, not {self.error!r}")
        checked_moment(self.since, "since")
        for number in self.ids or ():
            checked_id(number)

    def parameters(self) -> dict[str, Any]:
        """The conditions as the statement takes them."""
        return {"task": self.task, "queue": self.queue, "error": self.error, "since": self.since} | {
            "ids": list(self.ids) if self.ids is not None else None
        }


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did. ``ids`` are ready again; ``skipped`` says why others are not, by id."""

    ids: list[int] = field(default_factory=list)
    skipped: dict[int, str] = field(default_factory=dict)


def list_dead(
    connection: Connection, statements: Statements, which: DeadFilter, *, most: int, after: int = 0
) -> list[dict[str, Any]]:
    """Return up to ``most`` dead jobs with numbers above ``after``, in the order of these."""
    with connection.cursor(row_factory=dict_row) as cursor:
        parameters = {**which.parameters(), "most": most, "after": after}
        return cursor.execute(statements["dead_list"], parameters).fetchall()


def replay(connection: Connection, statements: Statements, ids: Sequence[int], *, actor: str, reason: str) -> Replayed:
    """Replay jobs in one transaction with the audit of it. What cannot be replayed is skipped, and said why."""
    try:
        with connection.transaction():
            return _replay_together(connection, statements, ids, actor, reason)
    except psycopg.errors.UniqueViolation:
        # Two of them have one key, or somebody enqueued it just now.
        if len(ids) == 1:
            return Replayed(skipped={ids[0]: _KEY_ALIVE})
    replayed = Replayed()
    for number in ids:
        one = replay(connection, statements, [number], actor=actor, reason=reason)
        replayed.ids.extend(one.ids)
        replayed.skipped.update(one.skipped)
    return replayed


_KEY_ALIVE = "a job with its key is alive: two would run side by side"


def _replay_together(
    connection: Connection, statements: Statements, ids: Sequence[int], actor: str, reason: str
) -> Replayed:
    locked = connection.execute(statements["job_lock"], {"ids": sorted(set(ids))}).fetchall()
    found = {number: (status, attempt) for number, status, _, _, attempt, _ in locked}
    again = sorted(row[0] for row in connection.execute(statements["replay"], {"ids": list(found)}))
    befores: dict[int, dict[str, object]] = {
        number: {"status": found[number][0], "attempt": found[number][1]} for number in again
    }
    afters: dict[int, dict[str, object]] = {number: {"status": "ready", "attempt": 0} for number in again}
    tell(connection, statements, "job replayed", actor, reason, befores, afters)
    skipped = {
        number: _KEY_ALIVE if status in ("dead", "cancelled") else f"it is {status}"
        for number, (status, _) in found.items()
        if number not in afters
    }
    return Replayed(again, skipped | {number: "there is no such job" for number in ids if number not in found})


def replay_one(link: Link, statements: Statements, job_id: int, *, actor: str, reason: str) -> None:
    """Replay one job. Raises :class:`UnknownJobError` or :class:`JobStateError` where that cannot be."""
    checked_id(job_id)
    with link.use(f"replay job {job_id}") as connection:
        replayed = replay(connection, statements, [job_id], actor=actor, reason=reason)
    why = replayed.skipped.get(job_id)
    if why == "there is no such job":
        raise UnknownJobError(f"there is no job {job_id} in schema {statements.schema!r}")
    if why is not None:
        raise JobStateError(f"job {job_id} cannot be replayed: {why}")


def replay_dead(
    link: Link,
    statements: Statements,
    which: DeadFilter,
    *,
    actor: str,
    reason: str,
    dry_run: bool = False,
    limit: int | None = None,
) -> Replayed:
    """Replay the dead jobs that ``which`` means, at most ``limit``, in batches that are each all or none.

    Each is looked at once, in the order of their numbers: one that dies again meanwhile stays dead. ``dry_run``
    changes nothing and returns those that it would have tried.
    """
    total = Replayed()
    for ids in _batches(link, statements, which, limit):
        if dry_run:
            total.ids.extend(ids)
            continue
        with link.use("replay dead jobs") as connection:
            done = replay(connection, statements, ids, actor=actor, reason=reason)
        total.ids.extend(done.ids)
        total.skipped.update(done.skipped)
    looked_at = {*total.ids, *total.skipped}
    for number in which.ids or ():
        if number not in looked_at and limit is None:
            total.skipped[number] = "it is not dead, or does not fit the other conditions"
    return total


def _batches(link: Link, statements: Statements, which: DeadFilter, limit: int | None) -> Iterator[list[int]]:
    after, left = 0, limit
    while left is None or left > 0:
        most = BATCH if left is None else min(BATCH, left)
        with link.use("look for dead jobs") as connection:
            ids = [job["id"] for job in list_dead(connection, statements, which, most=most, after=after)]
        if ids:
            yield ids
        if len(ids) < most:
            return
        after = ids[-1]
        left = None if left is None else left - len(ids)
