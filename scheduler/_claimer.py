"""The claimer: takes due jobs while there is room for them."""

from __future__ import annotations

from fencing import Lease, Token, history
from fencing._lease import lease_clock
from scheduler._claim import room
from scheduler._connect import Link
from scheduler._held import Held, Work
from scheduler._hooks import ClaimEvent
from scheduler._postgres import Claim
from scheduler._store import Claimed
from scheduler._tasks import Task


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
    ) -> None:
        self._link = link
        self._claim = claim
        self._work = work
        self._tasks = tasks
        self._owner = owner
        self._threads = threads
        self._batch = batch
        self._poll = poll
        self._shortest = min(task.lease for task in tasks.values())
        self._dry_at: int | None = None

    @property
    def dry(self) -> bool:
        """Whether a claim that was sent after the last settlement found nothing to do."""
        return self._dry_at == self._work.settled

    def run_once(self) -> float | None:
        """Claim once; return the seconds until it is worth another look."""
        work = self._work
        if work.draining:
            return None
        wanted = room(self._threads, len(work.waiting), work.running, work.per_second, self._batch, self._shortest)
        if not wanted:
            return self._poll
        # Before the claim is sent: the lease is counted from here, so our own deadline is never later than the
        # database's.
        sent, settled = lease_clock(), work.settled
        with self._link.use("claim") as connection:
            issuer, jobs = self._claim(connection, wanted)
        self._dry_at = None if jobs else settled
        if not jobs:
            return self._poll
        self._hand_over([self._hold(issuer, sent, claimed) for claimed in jobs])
        return 0 if len(jobs) == wanted else self._poll

    def _hold(self, issuer: str, sent: float, claimed: Claimed) -> Held:
        task = self._tasks[claimed.task]
        token = Token(claimed.token, issuer, claimed.lineage)
        lease = Lease(token, f"job/{claimed.id}", self._owner, deadline=sent + task.lease)
        if history.recording():
            history.emit(history.Event("claim", "done", self._owner, "scheduler", (lease.name,), str(token)))
        return Held(claimed, task, lease)

    def _hand_over(self, batch: list[Held]) -> None:
        work = self._work
        work.counts.claimed += len(batch)
        work.tallies.claimed([held.claimed for held in batch])
        if work.teller.wants(ClaimEvent):
            for held in batch:
                work.teller.tell(ClaimEvent(**held.facts, lag=held.claimed.lag))
        work.held.update((held.claimed.token, held) for held in batch)
        work.waiting.extend(batch)
        with work.arrived:
            work.arrived.notify(len(batch))
