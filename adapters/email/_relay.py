"""`Relay`: takes rows out of the outbox, hands them to a transport, and writes down what came of it."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Engine

from adapters.email._backoff import Backoff
from adapters.email._batch import BatchRun, Means, RelayCounts
from adapters.email._breaker import Breaker, BreakerState, Circuit, Pace
from adapters.email._claim import Claim
from adapters.email._claims import Batch, claim_plan, work_plan
from adapters.email._commits import Commits
from adapters.email._crew import Crew
from adapters.email._hold import Database, Hold
from adapters.email._lookups import doubts_plan, looked_up_plan
from adapters.email._order import sweep_plan, unpark_plan
from adapters.email._redirect import RedirectTransport
from adapters.email._settle import Through
from adapters.email._sql import check_dialect
from adapters.email._transport import LookUp, Outgoing, Transport, key_window, look_up_of
from fencing import LeaseSource, history
from fencing._lease import lease_clock, process_holder

_log = logging.getLogger(__name__)

_AHEAD = 2
"""Batches that a running relay has in hand: while one is served, the next is claimed."""

_LOOK_UPS = 5
"""Rows of which the provider is asked at a time."""


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """How a relay fares: its transport, its breaker, and why the server was of no use the last time, if it was not."""

    owner: str
    transport: str
    breaker: BreakerState
    unavailable: str
    waiting: int


class Relay:
    """Sends what is in the outbox. Any number of them, on any machines, may serve one table.

    ``leases`` gives the tokens: a scheduler, or any other :class:`fencing.LeaseSource`. Every batch is claimed under
    a new token, so a relay that was stopped and wakes up is refused: before anything leaves if it had not begun to
    send, else when it reports. ``batch`` rows are taken at a time, each for ``lease`` seconds, renewed meanwhile.
    ``connections`` of them are under way at once, each on a kept connection of its own. ``rate`` limits the messages
    a second that this relay hands to its transport. ``idle`` is how often, in seconds, an empty table is looked at.
    ``breaker`` says how long a server that is down is left alone. ``redirect_to`` sends everything to that one
    address instead (for staging).
    """

    def __init__(
        self,
        engine: Engine,
        transport: Transport,
        *,
        leases: LeaseSource,
        batch: int = 20,
        lease: float = 60.0,
        connections: int = 1,
        rate: float | None = None,
        name: str = "outbox",
        backoff: Backoff | None = None,
        breaker: Breaker | None = None,
        idle: float = 1.0,
        redirect_to: str = "",
    ) -> None:
        if not isinstance(engine, Engine):
            raise TypeError(
                f"engine is a SQLAlchemy Engine, not {type(engine).__name__}: a relay is a thread and takes a sync one"
            )
        check_dialect(engine.dialect.name)
        if not isinstance(leases, LeaseSource):
            raise TypeError(f"leases is a LeaseSource such as a Scheduler, not {type(leases).__name__}")
        for what, number, most in (("batch", batch, 1000), ("connections", connections, 100)):
            if type(number) is not int or not 1 <= number <= most:
                raise ValueError(f"{what} is a whole number from 1 to {most}, not {number!r}")
        if not lease > 0 or not idle > 0:
            raise ValueError(f"lease and idle are seconds above 0, not lease={lease!r}, idle={idle!r}")
        if rate is not None and not rate > 0:
            raise ValueError(f"rate is messages a second above 0, or None, not {rate!r}")
        if not name:
            raise ValueError("name is empty; it names the relay's lease")
        self._name = name
        self._identity = (0, "")
        self._database = Database(engine)
        self._transport: Transport = RedirectTransport(transport, redirect_to) if redirect_to else transport
        self._leases = leases
        self._batch = batch
        self._lease = lease
        self._connections = connections
        self._pace = Pace(rate)
        self._backoff = backoff or Backoff()
        self._circuit = Circuit(breaker or Breaker(first=idle, cap=max(60.0, idle)))
        self._through = Through(self._transport.name, key_window(self._transport))
        self._look_up = look_up_of(self._transport)
        self._idle = idle
        self._woken = threading.Event()
        self._fruitless = False
        self._turn = threading.Lock()
        self._unavailable = ""
        self._swept: str | None = None
        self._crew: Crew | None = None

    @property
    def owner(self) -> str:
        """This relay's name in the rows that it holds: host, process and a part that no other start has."""
        return f"{process_holder()}:{self._unique()}"

    def _unique(self) -> str:
        # Made in the process that uses it: a relay that was built before a fork must not be the same one in two
        # processes.
        if self._identity[0] != os.getpid():
            self._identity = (os.getpid(), uuid.uuid4().hex[:12])
        return self._identity[1]

    def status(self) -> RelayStatus:
        """How it fares at this moment, for metrics and health checks. Asks nobody."""
        crew = self._crew
        return RelayStatus(
            self.owner, self._through.name, self._circuit.state, self._unavailable, crew.waiting() if crew else 0
        )

    def wake(self) -> None:
        """Look at the table now instead of after ``idle`` seconds. May be called from any thread, and is never
        needed."""
        self._woken.set()

    def run_once(self) -> RelayCounts:
        """Claim one batch, hand it over, and return what became of it.

        Raises :class:`~fencing.errors.SchemaMissingError` without the tables, and what the database or ``leases``
        raises. A mail server that cannot be reached is no error: see ``RelayCounts.unavailable``. If the database goes
        away under it, what became of the messages in hand is offered to it for as long as the claim lasts, ``lease``
        seconds; what could not be written by then is logged, counted as lost, and uncertain later.
        """
        counts = RelayCounts()
        self._sweep()
        if not self._database.look(work_plan):
            return counts
        stop = threading.Event()
        commits = Commits(self._database, self._through, stop, settle_for=0.0)
        crew = Crew(self._transport, self._connections, self._pace, self._circuit, self._idle, stop)
        try:
            with self._claimed(commits, counts, 0, self._batch) as (run, batch):
                self._look_ups(run)
                crew.add(run, batch.rows)
                crew.serve_until(run, commits)
        finally:
            crew.close()
            commits.close()
        return counts

    def run(self, stop: threading.Event) -> None:
        """Serve the table until ``stop`` is set; then finish the messages in hand and give the rest back.

        Survives restarts of the database and of the mail server, with growing pauses. A service for
        ``Scheduler.add_service``.
        """
        commits = Commits(self._database, self._through, stop)
        self._crew = crew = Crew(self._transport, self._connections, self._pace, self._circuit, self._idle, stop)
        threading.Thread(target=self._wake_at, args=(stop, crew), name="outbox-stop", daemon=True).start()
        feeders = [
            threading.Thread(target=self._feed, args=(number, crew, commits, stop), name=f"outbox-claim-{number}")
            for number in range(_AHEAD)
        ]
        crew.start()
        for feeder in feeders:
            feeder.start()
        try:
            for feeder in feeders:
                feeder.join()
        finally:
            stop.set()
            crew.close()
            commits.close()
            self._crew = None

    def _wake_at(self, stop: threading.Event, crew: Crew) -> None:
        stop.wait()
        _log.info("outbox: the relay %s stops: it finishes what it has in hand and gives the rest back", self.owner)
        self._woken.set()
        crew.give_back()

    def _feed(self, number: int, crew: Crew, commits: Commits, stop: threading.Event) -> None:
        """Claim batch after batch, each once there is room for it; hold each until its last row is settled."""
        while not stop.is_set():
            counts = RelayCounts()
            try:
                self._feed_one(number, crew, commits, counts, stop)
            except Exception:  # noqa: BLE001 - whatever one batch met, the service goes on
                _log.exception("outbox: the relay %s could not work, and tries again", self.owner)
                self._circuit.fail()
                continue
            if counts.unavailable:
                self._unavailable = counts.unavailable
                _log.warning("outbox: %s, trying again later", counts.unavailable)
            elif counts.claimed > counts.released:  # what another batch's failure gave back says nothing of the server
                self._unavailable = ""
            if counts.refused:
                _log.warning(
                    "outbox: messages are due that were claimed under a newer token or another issuer; see diagnose()"
                )

    def _feed_one(self, number: int, crew: Crew, commits: Commits, counts: RelayCounts, stop: threading.Event) -> None:
        # One of the feeders claims at a time: the others wait for their batches, or here.
        self._turn.acquire()
        try:
            size = self._wait_for_work(crew, stop)
            if not size:
                return
            with self._claimed(commits, counts, number, size) as (run, batch):
                crew.add(run, batch.rows)
                self._turn.release()
                try:
                    self._look_ups(run)
                    run.finished.wait()
                finally:
                    self._turn.acquire()
                # What is due may not be taken by this relay: another issuer's, another transport's, another's turn.
                self._fruitless = not (
                    counts.claimed or counts.expired or counts.doubtful or counts.rescued or counts.looked_up
                )
        finally:
            self._turn.release()

    def _wait_for_work(self, crew: Crew, stop: threading.Event) -> int:
        """How many rows to claim now, once something is due and there is room for it; 0 if it is time to stop."""
        while not stop.is_set():
            if self._fruitless:
                self._fruitless = False
                self._woken.wait(self._idle)
            self._woken.clear()
            pause = self._circuit.remaining()
            if pause:
                stop.wait(pause)
                continue
            if not crew.wait_for_room(self._batch // 2):
                continue
            if stop.is_set():
                break
            self._sweep()
            if self._database.look(work_plan):
                # A half-open breaker is tried with one message.
                return 1 if self._circuit.state == "half-open" else self._pace.share(self._batch, self._lease / 2)
            self._woken.wait(self._idle)
        return 0

    def _sweep(self) -> None:
        swept = self._database.look(lambda _: sweep_plan(self._swept))
        self._swept = swept.last
        if swept.free:
            self._database.run(lambda dialect: unpark_plan(swept.free, dialect))

    @contextmanager
    def _claimed(
        self, commits: Commits, counts: RelayCounts, number: int, size: int
    ) -> Iterator[tuple[BatchRun, Batch]]:
        """A batch under a lease and a token of its own, renewed for the block."""
        with self._leases.lease(f"{self._name}/{self._unique()}/{number}", ttl=self._lease, wait=0) as lease:
            claim = Claim(self.owner, lease.token, self._lease)
            sent = lease_clock()
            began = time.monotonic_ns()
            batch = self._database.run(
                lambda dialect: claim_plan(claim, size, self._backoff.attempts, dialect, self._through.name)
            )
            hold = Hold(self._database, claim, lease, sent)
            _tell(claim, batch, began)
            counts.claimed = len(batch.rows)
            counts.expired = len(batch.expired)
            counts.doubtful = len(batch.doubtful)
            counts.rescued = len(batch.rescued)
            counts.refused = batch.refused
            means = Means(self._database, commits, self._through, self._look_up is not None, self._backoff)
            run = BatchRun(means, hold, counts, len(batch.rows))
            with hold.renewed():
                yield run, batch

    def _look_ups(self, run: BatchRun) -> None:
        look_up = self._look_up
        if look_up is None:
            return
        claim = run.hold.claim
        doubts = self._database.run(lambda dialect: doubts_plan(claim, self._through.name, _LOOK_UPS, dialect))
        for doubt in doubts:
            try:
                answer = look_up(Outgoing(doubt.mail_from, doubt.recipients, doubt.message, doubt.provider_key()))
            except Exception as exc:  # noqa: BLE001 - a provider that cannot be asked says nothing
                answer = LookUp("unknown", f"{type(exc).__name__}: {exc}")
            run.counts.looked_up += self._database.run(
                lambda dialect, doubt=doubt, answer=answer: looked_up_plan(claim, doubt, answer, dialect)  # type: ignore[misc]
            )


def _tell(claim: Claim, batch: Batch, began: int) -> None:
    if not history.recording():
        return
    token = str(claim.token)
    for row in batch.rescued:
        one = (f"outbox/{row.key}",)
        history.emit(history.Event("rescue", "done", claim.owner, "outbox", one, token, detail=row.state, began=began))
    if batch.rows:
        resources = tuple(f"outbox/{row.key}" for row in batch.rows)
        history.emit(history.Event("claim", "accepted", claim.owner, "outbox", resources, token, began=began))
    if batch.refused:
        detail = "rows are due that a newer token or another issuer has seen"
        history.emit(history.Event("claim", "refused", claim.owner, "outbox", (), token, detail=detail, began=began))
