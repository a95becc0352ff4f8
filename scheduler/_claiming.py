"""The claim of one worker: which statement it sends, and what it remembers between two of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from fencing._lease import lease_clock
from scheduler._connect import Connection
from scheduler._issuer import ensure_current, not_installed, restless
from scheduler._lanes import Found, Lanes
from scheduler._sql import Statements
from scheduler._store import Claimed, Outlook

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
        raise restless()

    def _asked(self, connection: Connection) -> Outlook | None:
        """The same, None where the issuer had to begin a new lineage first."""
        row = connection.execute(self._statements["outlook"], self._pairs).fetchone()
        if row is None:
            raise not_installed()
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
                raise not_installed()
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
        raise restless()

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
        raise restless()


_BY_TOKEN = itemgetter(Claimed._fields.index("token"))
