"""The claimer: takes due jobs while there is room for them."""

from __future__ import annotations

import random
import time

from fencing import history
from fencing._lease import lease_clock
from scheduler._ahead import Ahead
from scheduler._claim import room
from scheduler._claiming import Claim
from scheduler._connect import Connection, Link
from scheduler._gate import BUSY, Gate
from scheduler._held import Held, JobLease, Work
from scheduler._hooks import ClaimEvent
from scheduler._store import Claimed, Outlook
from scheduler._tasks import Task

CONTENDED = 0.01
"""Seconds, at most, until a claim that met others at an exclusive value or a limited queue looks again. Where others
had all the turns, it is longer by the next factor for each time in a row, and :data:`SWEEP` at the most."""

NO_TURN = 4
"""Where many workers claim all the time, the few that have a turn keep the machine busy, and whoever
asks for one in vain takes time from them."""

GUARDED = 0.25
"""Seconds between two looks for exclusive jobs and queues with a limit while there are none."""

CROWD_PATIENCE = 4
"""So many times as long is it, and the same for the gate, in a crowd: the others look as well."""

PASS_ON = 0.05
"""Seconds between two times that a worker without room wakes the others, while there are exclusive jobs or queues with
a limit."""

SWEEP = 1.0
"""Seconds between two sweeps, which begin at the front, while there is always something to claim."""

SWEEP_SHARE = 20
"""A sweep that old snapshots have made slow (:data:`SLOW_SWEEP`) takes at most one of so many parts of the time."""

SLOW_SWEEP = 0.05
"""Seconds from which on a sweep is slow."""

LOOK_BACK = 1.0
"""Seconds by which a claim after a rest begins earlier: whoever was enqueued first may have been committed last."""


WAKE = 0.01
"""Seconds in which the threads that were woken should be done with a batch; when they are not, all are woken."""


class Claimer:
    """Claims a batch, hands it whole to the threads, and looks again at once as long as there is something."""

    def __init__(
        self,
        link: Link,
        claim: Claim,
        work: Work,
        tasks: dict[str, Task],
        owner: str,
        threads: int,
        batch: int,
        poll: float,
        gate: Gate,
    ) -> None:
        self._link = link
        self._claim = claim
        self._work = work
        self._tasks = tasks
        self._owner = owner
        self._threads = threads
        self._batch = batch
        self._poll = poll
        self._gate = gate
        self._shortest = min(task.lease for task in tasks.values())
        self._dry_at: int | None = None
        self._front_at = 0
        self._guarded_at = float("-inf")
        self._passed_on = 0
        self._passed_on_at = float("-inf")
        self._swept_at = float("-inf")
        self._sweep_pause = 0.0
        self._ahead = Ahead(poll)
        self._full = False
        self._in_vain = 0.0
        self._woken_at: float | None = None
        self.eager = False
        """Whether to sweep whenever there seems to be nothing, however slow that is: somebody waits for the end."""

    @property
    def dry(self) -> bool:
        """Whether a claim that was sent after the last settlement found nothing to do."""
        return self._dry_at == self._work.settled

    def run_once(self) -> float | None:
        """Claim once; return the seconds until it is worth another look."""
        wait = self._run_once()
        if self._woken_at is None or wait is None:
            return wait
        if not self._work.waiting:
            self._woken_at = None
        elif lease_clock() - self._woken_at >= WAKE:
            self._woken_at = None
            with self._work.arrived:
                self._work.arrived.notify_all()
        else:
            return min(wait, WAKE)
        return wait

    def _run_once(self) -> float | None:
        work = self._work
        if work.draining:
            return None
        able = work.able(self._threads)
        wanted = room(self._threads, len(work.waiting), work.running, able, self._batch, self._shortest)
        if not wanted:
            # What is due while every thread is busy is decided all the same: some policies drop it.
            wait = self._pass_on()
            return min(wait, self._decide()) if self._gate.due() else wait
        # Before the claim is sent: the lease is counted from here, so our own deadline is never later than the
        # database's.
        began, sent, settled = time.monotonic_ns(), lease_clock(), work.settled
        expected = self._ahead.expected(sent)
        patience = CROWD_PATIENCE if self._claim.crowded else 1
        guarded = self._claim.waiting or self._gate.due(patience) or sent - self._guarded_at >= GUARDED * patience
        sweep = sent - self._swept_at >= max(SWEEP, self._sweep_pause)
        self._claim.outlook = None
        if self._claim.at_front:
            self._front_at = settled
        with self._link.use("claim") as connection:
            jobs = self._claim_some(connection, wanted, guarded or sweep, sweep)
            rested = lease_clock() - self._swept_at >= self._sweep_pause
            if not jobs and not sweep and not self._claim.again and rested:
                # What that passed over is looked for before the worker rests. Not twice in a run through the exclusive
                # values: the second would begin the next one, and the worker would never rest.
                sweep = True
                jobs = self._claim_some(connection, wanted, not guarded, True, ask=self._claim.outlook is None)
        if self._claim.refused:
            self._full = False
            # Whoever has the turns decides on overlap, too, and looks for what is exclusive.
            return random.uniform(0, min(CONTENDED * NO_TURN**self._claim.refused, SWEEP))
        again = self._claim.again
        self._full = len(jobs) == wanted
        batch = self._held(jobs, sent)
        if history.recording():
            self._record(batch, began)
        self._hand_over(batch)
        resting = not jobs and not again
        wait = self._decide(self._claim.outlook) if resting or self._gate.due(patience) else self._poll
        self._ahead.looked(expected, bool(jobs))
        ready = min(wait, self._ahead.wait(lease_clock()))
        # What the run through the exclusive values passed before something was settled may be free since.
        self._dry_at = self._front_at if sweep and resting and wait > BUSY else None
        if self._full:
            return 0
        # Somebody may hold one job's row locked for as long as he likes: what was seen and could not be had is no
        # reason to ask without end. Among exclusive values a look further on is worth it.
        in_vain = again and not jobs and not self._claim.waiting
        self._in_vain = min(2 * max(self._in_vain, CONTENDED), GUARDED) if in_vain else 0.0
        if again:
            return min(ready, random.uniform(0, max(self._in_vain, CONTENDED)))
        return ready if sweep else min(ready, max(GUARDED, self._sweep_pause))

    def sweep_soon(self) -> None:
        """Begin the next claim at the front: something was put back there."""
        self._swept_at = float("-inf")

    def _claim_some(
        self, connection: Connection, wanted: int, guarded: bool, sweep: bool, ask: bool = True
    ) -> list[Claimed]:
        began, back = lease_clock(), 0.0 if self._full else LOOK_BACK
        found = self._claim(connection, wanted, guarded=guarded, sweep=sweep, back=back, ask=ask)
        if self._claim.refused:
            return found
        if guarded:
            self._guarded_at = began
        if sweep:
            self._ahead.saw(self._claim.next_at)
            self._swept_at = lease_clock()
            took = self._swept_at - began
            self._sweep_pause = took * SWEEP_SHARE if took >= SLOW_SWEEP and not self.eager else 0.0
        return found

    def _pass_on(self) -> float:
        """Without room for more: wake the others where what ended since may have freed an exclusive value or a place in
        a queue. Return the seconds until that may be worth it again."""
        if not self._claim.waiting or self._passed_on == self._work.settled:
            return self._poll
        now = lease_clock()
        left = self._passed_on_at + PASS_ON - now
        if left > 0:
            return min(left, self._poll)
        with self._link.use("wake other workers") as connection:
            # Counted before it is sent: what is settled meanwhile is passed on the next time.
            self._passed_on, self._passed_on_at = self._work.settled, now
            self._claim.pass_on(connection)
        return self._poll

    def _decide(self, outlook: Outlook | None = None) -> float:
        """Let the gate decide, by what was asked beside a claim if anything was; return the seconds until the next
        claim: 0 where that may find something now."""
        with self._link.use("decide on overlap") as connection:
            wait = self._gate.look(connection, outlook or self._claim.look(connection))
        return self._poll if wait is None else min(wait, self._poll)

    def _held(self, jobs: list[Claimed], sent: float) -> list[Held]:
        tasks, owner = self._tasks, self._owner
        return [
            Held(claimed, task, JobLease(claimed, owner, sent + task.lease))
            for claimed in jobs
            for task in (tasks[claimed.task],)
        ]

    def _record(self, batch: list[Held], began: int) -> None:
        for held in batch:
            name, token = held.lease.name, str(held.lease.token)
            history.emit(history.Event("claim", "done", self._owner, "scheduler", (name,), token, began=began))

    def _hand_over(self, batch: list[Held]) -> None:
        if not batch:
            return
        work = self._work
        work.counts.claimed += len(batch)
        work.tallies.claimed([held.claimed for held in batch])
        if work.teller.wants(ClaimEvent):
            for held in batch:
                work.teller.tell(ClaimEvent(**held.facts, lag=held.claimed.lag))
        work.held.update({held.claimed.token: held for held in batch})
        work.waiting.extend(batch)
        # Quick jobs are done by a thread or two before the others have woken up and found out whose turn it is.
        wake = min(len(batch), self._threads, 1 + int(len(batch) / max(1.0, work.able(self._threads) * WAKE)))
        self._woken_at = lease_clock() if wake < min(len(batch), self._threads) else None
        with work.arrived:
            work.arrived.notify(wake)
