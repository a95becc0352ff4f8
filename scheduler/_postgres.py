"""The scheduler's statements as functions over a connection.

Nothing here decides; that is in the SQL and in the pure modules.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from fencing import Token
from scheduler._connect import Connection
from scheduler._issuer import ensure_current, not_installed, restless
from scheduler._sql import Statements
from scheduler._store import Rescued, Revoked, Settled, Settlement, Taken

RESCUE_BATCH = 100
"""How many expired leases one sweep takes back at most."""


def settle(
    connection: Connection, statements: Statements, owner: str, settlements: Sequence[Settlement]
) -> dict[int, Settled]:
    """Settle a batch in one transaction; return what became of each, by token.

    May be asked again after a lost reply.
    """
    # In one order for whoever takes several rows (renew does the same), so that no two wait for each other.
    settlements = sorted(settlements, key=_BY_ID)
    completed = [one for one in settlements if one.state == "completed"]
    others = [one for one in settlements if one.state != "completed"]
    found: set[int] = set()
    with connection.transaction() if completed and others else _Nothing():
        if completed:
            parameters = {**_who(owner, completed), "results": _results(completed)}
            found.update([row[0] for row in connection.execute(statements["complete"], parameters).fetchall()])
        if others:
            parameters = {**_who(owner, others), "ends": _ends(others)}
            found.update([row[0] for row in connection.execute(statements["settle"], parameters).fetchall()])
    answers = dict.fromkeys(found, Settled.OK)
    if len(found) < len(settlements):
        missing = [one for one in settlements if one.token not in found]
        before = {row[0] for row in connection.execute(statements["settled_before"], _who(owner, missing))}
        answers.update({one.token: Settled.BEFORE if one.token in before else Settled.LOST for one in missing})
    return answers


_BY_ID = attrgetter("id", "token")


def _who(owner: str, settlements: Sequence[Settlement]) -> dict[str, Any]:
    ids, tokens = _array([one.id for one in settlements]), _array([one.token for one in settlements])
    return {"owner": owner, "ids": ids, "tokens": tokens}


def _array(numbers: Sequence[int]) -> str:
    """Whole numbers as the server reads an array: the driver would ask each of them for its type."""
    return "{" + ",".join(map(str, numbers)) + "}"


def _results(settlements: Sequence[Settlement]) -> str | None:
    """The results that there are, as one JSON object by token; its values are JSON text already."""
    parts = [f'"{one.token}":{one.result}' for one in settlements if one.result is not None]
    return "{" + ",".join(parts) + "}" if parts else None


def _ends(settlements: Sequence[Settlement]) -> str:
    return json.dumps(
        {
            str(one.token): {
                "state": one.state,
                "outcome": one.outcome,
                "uncounted": one.uncounted,
                "yielded": int(one.outcome == "yielded"),
                "delay": one.delay,
                "error": one.error,
                "reason": one.reason,
            }
            for one in settlements
        }
    )


def revoke(
    connection: Connection, statements: Statements, settlements: Sequence[Settlement], actor: str
) -> list[Revoked]:
    """Take jobs away from their holders, in the caller's transaction, which has locked them (``job_lock``): running
    ones, and such that wait again since a lease ran out.

    Each settlement names a job, the token that it has now, and where it goes; its outcome is one that no holder gives
    itself (``cancelled``, ``buried``, ``overran``), or the old holder would take it for its own. A job that is missing
    in the answer no longer has that token, or has ended. After the commit the caller raises the fences, or leaves that
    to the workers: see :mod:`scheduler._raiser`.
    """
    if not settlements:
        return []
    parameters = {**_who(actor, settlements), "actor": actor, "ends": _ends(settlements)}
    for _ in range(3):
        rows = connection.execute(statements["revoke"], parameters).fetchall()
        if not rows:
            raise not_installed()
        issuer = rows[0][1]
        if rows[0][0]:
            return [
                Revoked(number, task, queue, Token(token, issuer, lineage), revoked, owner)
                for _, _, number, task, queue, token, lineage, revoked, owner, _ in rows
                if number is not None
            ]
        ensure_current(connection, statements)
    raise restless()


class _Nothing:
    """Stands in for a transaction where a single statement is one by itself."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def renew(
    connection: Connection, statements: Statements, owner: str, leases: Sequence[tuple[int, int, float]]
) -> dict[int, bool]:
    """Extend the leases of jobs, given as (id, token, seconds); return by token what is still held: True where it was
    extended, False where nothing is known because somebody else has locked the row."""
    ids, tokens, seconds = (list(column) for column in zip(*sorted(leases), strict=True))
    parameters = {"owner": owner, "ids": ids, "tokens": tokens, "leases": seconds}
    return {row[0]: row[1] for row in connection.execute(statements["renew"], parameters)}


def rescue(
    connection: Connection, statements: Statements, queues: Sequence[str], tasks: Sequence[str]
) -> list[Rescued]:
    """Take back jobs whose lease ran out, of the queues and tasks that this worker can run."""
    parameters = {"batch": RESCUE_BATCH, "queues": list(queues), "tasks": list(tasks)}
    return [Rescued._make(row) for row in connection.execute(statements["rescue"], parameters)]


def acquire_lease(connection: Connection, statements: Statements, owner: str, name: str, ttl: float) -> Taken:
    """Try to take a named lease for ``ttl`` seconds. The token is durable when this returns."""
    parameters = {"owner": owner, "name": name, "ttl": ttl}
    for _ in range(3):
        row = connection.execute(statements["lease_acquire"], parameters).fetchone()
        if row is None:
            raise not_installed()
        if row[0]:
            return Taken._make(row[1:])
        ensure_current(connection, statements)
    raise restless()


def renew_leases(
    connection: Connection, statements: Statements, owner: str, leases: Sequence[tuple[str, int, float]]
) -> dict[int, bool]:
    """Extend named leases, given as (name, token, seconds); the answer is as that of :func:`renew`."""
    names, tokens, seconds = (list(column) for column in zip(*leases, strict=True))
    parameters = {"owner": owner, "names": names, "tokens": tokens, "leases": seconds}
    return {row[0]: row[1] for row in connection.execute(statements["lease_renew"], parameters)}


def release_lease(connection: Connection, statements: Statements, owner: str, name: str, token: int) -> bool:
    """Give a named lease back; return whether it was still held."""
    parameters = {"owner": owner, "name": name, "token": token}
    return connection.execute(statements["lease_release"], parameters).fetchone() is not None


def forget_lease(connection: Connection, statements: Statements, owner: str, name: str) -> None:
    """Give a named lease back whose token nobody knows, if it is the owner's."""
    connection.execute(statements["lease_forget"], {"owner": owner, "name": name})


def live_tokens(connection: Connection, statements: Statements, tokens: Sequence[int]) -> set[int]:
    """Return which of the tokens belong to a lease of this scheduler that has not run out."""
    return {row[0] for row in connection.execute(statements["live_tokens"], {"tokens": list(tokens)})}


def why_revoked(connection: Connection, statements: Statements, tokens: Sequence[int]) -> dict[int, str]:
    """Return, of tokens whose lease is lost, why those were taken away that somebody took away."""
    rows = connection.execute(statements["revocations_why"], {"tokens": list(tokens)})
    return {token: f"{outcome} by {actor}: {reason}" for token, outcome, actor, reason in rows}
