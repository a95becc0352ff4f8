"""What people do with jobs: cancel, bury, replay. Each act is audited in the transaction that does it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from scheduler._connect import Connection, Link
from scheduler._postgres import revoke
from scheduler._raiser import Raiser
from scheduler._sql import Statements
from scheduler._store import Revoked, Settlement
from scheduler._tasks import Task
from scheduler.errors import JobStateError, UnknownJobError

MAX_REASON = 2000
"""Characters of a reason."""

Ending = Literal["cancelled", "dead"]

_VERBS: dict[Ending, Literal["cancelled", "buried"]] = {"cancelled": "cancelled", "dead": "buried"}


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of the jobs that somebody wanted to end.

    ``waiting`` were ready. ``revoked`` have somebody who may be at work, and whose fences are due to be raised: those
    that were running, and those of ``waiting`` that a lease ran out of. ``others`` gives the state of each that was
    neither ready nor running, by id; an id that does not exist is in none of these.
    """

    waiting: list[int] = field(default_factory=list)
    revoked: list[Revoked] = field(default_factory=list)
    others: dict[int, str] = field(default_factory=dict)


def end(
    connection: Connection, statements: Statements, ids: Sequence[int], state: Ending, *, actor: str, reason: str
) -> Ended:
    """Cancel or bury jobs, running or waiting, in one transaction with the audit of it."""
    verb = _VERBS[state]
    with connection.transaction():
        # The decision is made on what is there once everybody who was about to change it has committed.
        found = connection.execute(statements["job_lock"], {"ids": sorted(set(ids))}).fetchall()
        ready = {number: token for number, status, token, *_ in found if status == "ready"}
        claimed = [number for number, token in ready.items() if token is not None]
        left: list[int] = []
        if claimed:
            left = [row[0] for row in connection.execute(statements["job_expired"], {"ids": claimed})]
        taken = [Settlement(number, ready[number], state, verb, reason=reason) for number in left]
        taken += [
            Settlement(number, token, state, verb, error=f"{verb} by {actor}: {reason}", reason=reason)
            for number, status, token, *_ in found
            if status == "leased"
        ]
        ended = Ended(others={number: status for number, status, *_ in found if status not in ("ready", "leased")})
        ended.revoked.extend(revoke(connection, statements, taken, actor))
        ended.waiting.extend(left)
        fresh = [number for number in ready if number not in left]
        if fresh:
            parameters = {"ids": fresh, "state": state, "reason": reason}
            ended.waiting.extend(row[0] for row in connection.execute(statements["withdraw"], parameters))
        befores = {
            number: {"status": status, "token": token, "owner": owner} for number, status, token, owner, *_ in found
        }
        afters: dict[int, dict[str, object]] = {number: {"status": state} for number in ended.waiting}
        afters.update({one.id: {"status": state, "token": one.token.value} for one in ended.revoked})
        tell(connection, statements, f"job {verb}", actor, reason, befores, afters)
    return ended


class Outside(NamedTuple):
    """What became of one job that was ended from outside.

    ``before`` is the state that it was in. ``fenced`` is whether an old holder's writes are over: True where it had
    none, or its fences are raised; False while these are still to be raised by a worker.
    """

    id: int
    before: str
    state: str
    fenced: bool


def end_one(
    link: Link,
    statements: Statements,
    job_id: int,
    state: Ending,
    *,
    actor: str,
    reason: str,
    tasks: Mapping[str, Task],
) -> Outside:
    """Cancel or bury one job and, if one of ``tasks`` is its own, raise its fences.

    Raises :class:`UnknownJobError` and :class:`JobStateError`.
    """
    checked_id(job_id)
    with link.use(f"end job {job_id}") as connection:
        ended = end(connection, statements, [job_id], state, actor=actor, reason=reason)
    if ended.revoked:
        tokens = {one.revoked for one in ended.revoked}
        raised = Raiser(link, statements, tasks, run_async=None).raise_fences(tokens)
        return Outside(job_id, "ready" if ended.waiting else "leased", state, raised == tokens)
    if ended.waiting:
        return Outside(job_id, "ready", state, True)
    if job_id in ended.others:
        raise JobStateError(f"job {job_id} is {ended.others[job_id]} already: it is neither waiting nor running")
    raise UnknownJobError(f"there is no job {job_id} in schema {statements.schema!r}")


def checked_id(job_id: object) -> int:
    """Return ``job_id`` if it can be one. ``TypeError`` otherwise, ``ValueError`` for one that is out of range."""
    if type(job_id) is not int:
        raise TypeError(f"a job is named by its id, a whole number, not {job_id!r}")
    if not 0 < job_id < 2**63:
        raise ValueError(f"a job's id is a whole number from 1, not {job_id}")
    return job_id


def checked_reason(reason: object) -> str:
    """Return the reason for an act, which the audit keeps. ``TypeError`` or ``ValueError`` if there is none."""
    if not isinstance(reason, str):
        raise TypeError(f"reason= is a text that the audit keeps, not {type(reason).__name__}")
    if not reason.strip() or "\x00" in reason or len(reason) > MAX_REASON:
        raise ValueError(f"reason= is 1 to {MAX_REASON} characters that the audit keeps, not {reason[:80]!r}")
    return reason


def tell(
    connection: Connection,
    statements: Statements,
    kind: str,
    actor: str,
    reason: str,
    befores: dict[int, dict[str, object]],
    afters: dict[int, dict[str, object]],
) -> None:
    """Write one line of the audit for each job in ``afters``."""
    lines = [
        {
            "actor": actor,
            "kind": kind,
            "subject": f"job/{number}",
            "reason": reason,
            "before": json.dumps(befores[number]),
            "after": json.dumps(after),
        }
        for number, after in sorted(afters.items())
    ]
    if lines:
        with connection.cursor() as cursor:
            cursor.executemany(statements["act"], lines)
