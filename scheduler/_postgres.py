"""The scheduler's statements as functions over a connection.

Nothing here decides; that is in the SQL and in the pure modules.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from fencing import Token
from fencing._lease import lease_clock
from scheduler._connect import Connection
from scheduler._issuer import ensure_current
from scheduler._lanes import Found, Lanes
from scheduler._sql import Statements
from scheduler._store import Claimed, Outlook, Rescued, Revoked, Settled, Settlement, Taken
from scheduler.errors import IssuerError, NotMigratedError

RESCUE_BATCH = 100
"""How many expired leases one sweep takes back at most."""


CROWD = 10
"""After so many claims with a turn in a row there seems to be no crowd any more."""

REFUSALS = 20
"""After so many claims without a turn the next one does without: a lock that is not ours stops no worker."""


class Claim:
    """The claim of one worker, for its queues and tasks."""

    VALUES = 200
    """How many exclusive values of each queue and task one guarded claim looks at."""

    def __init__(self, statements: Statements, owner: str, queues: Sequence[str], leases: Mapping[str, float]) -> None:
        """``leases`` gives the lease in seconds of each task that the worker knows."""
        self._statements = statements
        self._plain = statements.claim(guarded=False)
        self._guarded = statements.claim(guarded=True)
        self._single = statements["claim_lane"]
        self._lanes = Lanes(queues, list(leases))
        self._leases = leases
        self._owner = owner
        # The lease of each task; the one of all of them, where it is the same, saves looking it up for each job.
        each = [float(seconds) for seconds in leases.values()]
        self._each = {"tasks": list(leases), "leases": each, "lease": each[0] if len(set(each)) == 1 else None}
        self._pairs = {"queues": list(queues), "tasks": list(leases)}
        self._after = ""
        self._some_due = False
        # Where others have locked what is first, a claim looks further, up to so many batches.
        self._wider = 1
        self.waiting = False
        """Whether there were exclusive jobs or queues with a limit when that was last looked at."""
        self.next_at = float("inf")
        """When the next job that was not due at the last sweep will be, by :func:`lease_clock`."""
        self.refused = 0
        """How many claims in a row came to nothing because others had all the turns."""
        self._alone = CROWD
        self.again = False
        """Whether the last claim could not see everything that it may take: another one at once may find more."""
        self.outlook: Outlook | None = None
        """What was asked last beside a claim; None where nothing was since this was set to None."""

    @property
    def at_front(self) -> bool:
        """Whether the next guarded claim begins with the first of the exclusive values, or goes on after some."""
        return not self._after

    def _look_ahead(self, connection: Connection) -> bool:
        """Find out what waits, and when the next job will be due; return whether there may be anything to claim."""
        whole = self._lanes.at_top
        rows = connection.execute(self._statements["lanes"], self._lanes.search()).fetchall()
        # From when the answer is here: a little too late finds the job, a little too early finds nothing.
        here = lease_clock()
        found = [Found._make(row) for row in rows if row[2] is not None]
        self._lanes.found(found, here)
        self._waits(len(found) < len(rows))
        self.next_at = min([here + row[-1] for row in rows if row[-1] is not None], default=float("inf"))
        self._some_due = any(one.due for one in found)
        # Of a part of the priorities nothing may be due, while something of another one is.
        return self.waiting or self._some_due or not (whole and self._lanes.at_top)

    def look(self, connection: Connection) -> Outlook:
        """Ask what there is beside jobs that a claim would find; it is kept in :attr:`outlook`, too."""
        for _ in range(3):
            found = self._asked(connection)
            if found is not None:
                return found
        raise _restless()

    def _asked(self, connection: Connection) -> Outlook | None:
        """The same, None where the issuer had to begin a new lineage first."""
        row = connection.execute(self._statements["outlook"], self._pairs).fetchone()
        if row is None:
            raise _not_installed()
        if not row[0]:
            ensure_current(connection, self._statements)
            return None
        self.outlook = found = Outlook(*row[1:])
        self._waits(found.guarded)
        return found

    def _waits(self, waiting: bool) -> None:
        self.waiting = waiting
        if not waiting:
            self._after = ""

    def pass_on(self, connection: Connection) -> None:
        """Wake the other workers of these queues."""
        connection.execute(self._statements["pass_on"], {"queues": self._pairs["queues"]})

    def __call__(
        self,
        connection: Connection,
        batch: int,
        *,
        guarded: bool = True,
        sweep: bool = True,
        back: float = 0.0,
        ask: bool = True,
    ) -> list[Claimed]:
        """Return up to ``batch`` jobs, their tokens rising.

        The tokens are durable when this returns. Without ``guarded``, exclusive jobs and queues with a limit are
        passed over; with it, it is looked first whether there are any. Without ``sweep``, it begins where the last
        claim ended, or ``back`` seconds before now. Without ``ask``, a turn was free a moment ago.
        """
        # Whether to claim without a turn: none was free for so long that something else must hold them.
        anyway = self.refused >= REFUSALS
        if anyway:
            self._turn(True)
        elif ask and (sweep or self.crowded) and not self._has_turn(connection):
            self.again = True
            return []
        if sweep:
            if not self._look_ahead(connection):
                # Nothing is due at all: a claim, and the question why it found nothing, would say the same.
                self.again = False
                return []
        elif guarded and not self.waiting:
            self.look(connection)
        guarded = guarded and self.waiting
        parameters = {"batch": batch, "back": back, "anyway": anyway, "owner": self._owner}
        now = lease_clock()
        lane = None if guarded else self._lanes.single(now, bounded=not sweep)
        if lane is not None:
            parameters |= {**lane, "lease": float(self._leases[lane["task"]])}
            return self._plainly(connection, self._single, parameters, sweep)
        parameters |= {**self._each, "peek": batch * self._wider, **self._lanes.parameters(now, bounded=not sweep)}
        if not guarded:
            return self._plainly(connection, self._plain, parameters, sweep)
        parameters |= {"queues": self._pairs["queues"], "values": self.VALUES, "after": self._after}
        for _ in range(3):
            rows = connection.execute(self._guarded, parameters).fetchall()
            if not rows:
                raise _not_installed()
            current, free, met_others, contended, waiting, last = rows[0][:6]
            if current:
                self._turn(free)
                self._meets(met_others)
                self.again = met_others or contended or last is not None or not free
                if free:
                    self.waiting, self._after = waiting, last or ""
                jobs = [Claimed._make(row[6:]) for row in rows if row[6] is not None]
                self._lanes.claimed(jobs, swept_all=sweep and len(jobs) == batch)
                return jobs
            ensure_current(connection, self._statements)
        raise _restless()

    @property
    def crowded(self) -> bool:
        """Whether there are so many other workers that one of the last claims came to nothing for want of a turn."""
        return self._alone < CROWD

    def _turn(self, free: bool) -> None:
        if free:
            self.refused = 0
            self._alone += 1
        else:
            self.refused += 1
            self._alone = 0

    def _has_turn(self, connection: Connection) -> bool:
        """Ask for a turn alone, before what would be many times as dear and in vain without one."""
        ((free,),) = connection.execute(self._statements["turn"]).fetchall()
        if free:
            self.refused = 0
        else:
            self._turn(False)
        return bool(free)

    def _meets(self, others: bool) -> None:
        self._wider = min(self._wider * 2, 16) if others else 1

    def _plainly(self, connection: Connection, text: str, parameters: dict[str, Any], sweep: bool) -> list[Claimed]:
        """Claim nothing that needs the guarded claim."""
        several = text is self._plain
        for _ in range(3):
            rows = connection.execute(text, parameters, binary=True).fetchall()
            if rows:
                self._turn(True)
                self.again = False
                if several:
                    seen = rows[0][-1]
                    rows = [row[:-1] for row in rows]
                    self.again = seen is not None and seen > len(rows)
                    self._meets(self.again)
                jobs = list(map(Claimed._make, rows))
                jobs.sort(key=_BY_TOKEN)
                # Of one lane the last has come farthest.
                self._lanes.claimed(
                    jobs if several else jobs[-1:], swept_all=sweep and len(jobs) == parameters["batch"]
                )
                return jobs
            outlook = self._asked(connection)
            if outlook is not None:
                free = outlook.free or parameters["anyway"]
                self._turn(free)
                # What was due a moment ago others are claiming, perhaps all of a lane, while another one has more.
                met_others = several and sweep and self._some_due and not self.waiting
                self._meets(met_others)
                self.again = not free or met_others
                return []
        raise _restless()


_BY_TOKEN = itemgetter(Claimed._fields.index("token"))


def _not_installed() -> NotMigratedError:
    return NotMigratedError("the issuer was never installed; run `fencing migrate`")


def _restless() -> IssuerError:
    return IssuerError(
        "the issuer's identity changed three times in a row: is the server restarting? No token was issued"
    )


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
            raise NotMigratedError("the issuer was never installed; run `fencing migrate`")
        issuer = rows[0][1]
        if rows[0][0]:
            return [
                Revoked(number, task, queue, Token(token, issuer, lineage), revoked, owner)
                for _, _, number, task, queue, token, lineage, revoked, owner, _ in rows
                if number is not None
            ]
        ensure_current(connection, statements)
    raise _restless()


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
            raise NotMigratedError("the issuer was never installed; run `fencing migrate`")
        if row[0]:
            return Taken._make(row[1:])
        ensure_current(connection, statements)
    raise _restless()


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
