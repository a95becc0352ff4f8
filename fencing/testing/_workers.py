"""Workers, their leases and the issuers' servers, as the state machine plays them: no downstream is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fencing._token import MAX_VALUE, Token
from fencing.testing._harness import Writer

NAMES = ("ada", "bob", "cyd")
JOBS = ("nightly", "import", "bill")
FLOOR = 4
"""By how much an issuer that has failed over begins above what was handed out."""

FIRST_SERVERS = ("shop/l1", "shop/l1", "shop/l1", "shop/l2", "depot/l1")
"""Who handed out the first tokens: mostly the old server of ``shop``, sometimes one that believes to lead it too."""


@dataclass(frozen=True, slots=True)
class Claim(Writer):
    """A worker's belief that it holds a job. It may be wrong by now."""

    job: str

    def __repr__(self) -> str:
        return f"{self.holder} ({self.job}, {self.token})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # Hypothesis would spell out the fields, over three lines


@dataclass(slots=True)
class Server:
    """A server that believes to lead an issuer, and the last number that it handed out."""

    issuer: str
    lineage: str
    last: int

    @property
    def name(self) -> str:
        """Issuer and lineage."""
        return f"{self.issuer}/{self.lineage}"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a worker read, and whether the fence of that resource had been raised to its token before."""

    resource: str
    value: str | None
    raised: bool


class Workers:
    """Who is awake, who believes to hold what, which leases live, and who hands out the numbers."""

    def __init__(self, base: int) -> None:
        servers = (Server("shop", "l1", base), Server("shop", "l2", base), Server("depot", "l1", base))
        self._servers = {server.name: server for server in servers}
        self._claims: dict[str, list[Claim]] = {name: [] for name in NAMES}
        self._leases: dict[str, Claim] = {}
        self._readings: dict[Claim, Reading] = {}
        self.paused: set[str] = set()

    @property
    def awake(self) -> list[str]:
        """Workers that run."""
        return [name for name in NAMES if name not in self.paused]

    @property
    def usable(self) -> list[Claim]:
        """What the running workers believe to hold; never empty."""
        return [claim for name in self.awake for claim in self._claims[name]]

    @property
    def dispensable(self) -> list[str]:
        """Running workers that hold something and are not the only ones: if nobody can write, nothing is shown."""
        holding = [name for name in self.awake if self._claims[name]]
        return holding if len(holding) > 1 else []

    @property
    def readers(self) -> list[Claim]:
        """Those of them that have read something."""
        return [claim for claim in self.usable if claim in self._readings]

    @property
    def leased_jobs(self) -> list[str]:
        """Jobs with a lease that lives."""
        return [job for job in JOBS if job in self._leases]

    @property
    def free_jobs(self) -> list[str]:
        """Jobs that can be claimed."""
        return [job for job in JOBS if job not in self._leases]

    @property
    def servers(self) -> list[str]:
        """Servers that can hand out a number; the other issuer's comes up less often."""
        able = [name for name, one in self._servers.items() if one.last < MAX_VALUE]
        shop = [name for name in able if name.startswith("shop/")]
        return [*shop, *able]

    @property
    def can_claim(self) -> bool:
        """Whether anybody could claim anything."""
        return bool(self.free_jobs and self.awake and self.servers)

    @property
    def can_fail_over(self) -> bool:
        """One failover in an example shows all that there is."""
        return "shop/l3" not in self._servers

    def claim(self, worker: str, job: str, server: str, gap: int) -> Claim:
        """Give the job to the worker, with a number of that server."""
        source = self._servers[server]
        source.last = min(source.last + gap, MAX_VALUE)
        made = Claim(worker, Token(source.last, source.issuer, source.lineage), job)
        self._leases[job] = made
        self._claims[worker].append(made)
        return made

    def take_over(self, worker: str, job: str, server: str) -> Claim:
        """The lease is over, if there is one, and the worker claims the job."""
        self._leases.pop(job, None)
        return self.claim(worker, job, server, 1)

    def succeed(self, claim: Claim) -> Claim:
        """The next running worker takes the job over, by the same server; the same claim if that has no number left."""
        server = f"{claim.token.issuer}/{claim.token.lineage}"
        if server not in self.servers:
            return claim
        after = self.awake.index(claim.holder) + 1
        return self.take_over(self.awake[after % len(self.awake)], claim.job, server)

    def expire(self, job: str) -> None:
        """The lease is over; whoever held it goes on believing."""
        del self._leases[job]

    def pause(self, worker: str) -> None:
        """Stop it."""
        self.paused.add(worker)

    def wake(self, worker: str) -> None:
        """Let it go on."""
        self.paused.discard(worker)

    def crash(self, worker: str) -> None:
        """It forgets everything; its leases must run out."""
        for claim in self._claims[worker]:
            self._readings.pop(claim, None)
        self._claims[worker] = []

    def finish(self, claim: Claim) -> None:
        """It gives the job back, by its token: that frees nobody else's lease."""
        self._claims[claim.holder].remove(claim)
        self._readings.pop(claim, None)
        if self._leases.get(claim.job) == claim:
            del self._leases[claim.job]

    def fail_over(self, behind: int | None) -> None:
        """Another server leads the issuer ``shop`` too, from a number that may lie ``behind`` the old one's last.

        None: from a floor above all that was handed out, as the scheduler's issuer does after a change of servers.
        """
        old = [server.last for server in self._servers.values() if server.issuer == "shop"]
        last = self._servers["shop/l1"].last - behind if behind is not None else max(old) + FLOOR
        self._servers["shop/l3"] = Server("shop", "l3", min(max(last, 0), MAX_VALUE))

    def remember(self, claim: Claim, resource: str, value: str | None, *, raised: bool) -> None:
        """The worker keeps what it read."""
        self._readings[claim] = Reading(resource, value, raised)

    def forget_raised(self, resource: str) -> None:
        """The mark was lost: to have raised the fence before means nothing any more."""
        for claim, reading in self._readings.items():
            if reading.resource == resource:
                self._readings[claim] = replace(reading, raised=False)

    def recall(self, claim: Claim) -> Reading:
        """What it had read; it is used once."""
        return self._readings.pop(claim)
