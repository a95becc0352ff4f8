"""What happens to the workers, of which the downstream knows nothing."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from fencing.testing._machine._base import (
    Base,
    Names,
    awake,
    claims,
    dispensable,
    free_jobs,
    leased_jobs,
    name_sets,
    one_of,
    servers,
)
from fencing.testing._workers import Claim


class Meanwhile(Base):
    """Claims, leases that run out, pauses, crashes, and a failover of the issuer."""

    @precondition(lambda self: self.workers.can_claim)
    @rule(worker=awake, job=free_jobs, server=servers, gap=st.sampled_from((1, 1, 1, 10)))
    def claim(self, worker: str, job: str, server: str, gap: int) -> None:
        """A worker takes a free job, or one whose lease has run out, with a new token of that server."""
        self.workers.claim(worker, job, server, gap)

    @precondition(lambda self: self.workers.leased_jobs and self.workers.servers)
    @rule(worker=awake, job=leased_jobs, server=servers, writes=st.none() | name_sets)
    def take_over(self, worker: str, job: str, server: str, writes: Names | None) -> None:
        """A lease runs out, and a worker, the same or another one, claims the job at once, and perhaps writes."""
        claim = self.workers.take_over(worker, job, server)
        if writes:
            self.compared_write(claim, writes, self.values(claim, writes))

    @precondition(lambda self: self.workers.leased_jobs)
    @rule(job=leased_jobs)
    def lease_runs_out(self, job: str) -> None:
        """Its holder does not notice."""
        self.workers.expire(job)

    @precondition(lambda self: self.workers.dispensable)
    @rule(worker=dispensable)
    def pause(self, worker: str) -> None:
        """The worker does nothing until it wakes, and does not know that it stood still."""
        self.workers.pause(worker)

    @precondition(lambda self: self.workers.paused)
    @rule(worker=one_of(lambda machine: sorted(machine.workers.paused)))
    def wake(self, worker: str) -> None:
        """The worker goes on where it was."""
        self.workers.wake(worker)

    @precondition(lambda self: self.workers.dispensable)
    @rule(worker=dispensable)
    def crash(self, worker: str) -> None:
        """The worker is gone with all that it held, whatever it had raised or written; its leases are still there."""
        self.workers.crash(worker)

    @precondition(lambda self: len(self.workers.usable) > 1)
    @rule(claim=claims)
    def finish(self, claim: Claim) -> None:
        """The worker gives its lease back, if it still has it."""
        self.workers.finish(claim)

    @precondition(lambda self: self.workers.can_fail_over)
    @rule(behind=st.none() | st.integers(0, 2))
    def issuer_fails_over(self, behind: int | None) -> None:
        """A standby of the issuer begins to hand out tokens under a new lineage, and the old server does not stop.

        It lags: numbers that were handed out before come again. Or (None) it begins above a floor.
        """
        self.workers.fail_over(behind)
