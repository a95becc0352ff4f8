"""`Relay`: takes rows out of the outbox, hands them to a transport, and writes down what came of it."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import uuid

from sqlalchemy import Engine

from adapters.email._backoff import Backoff
from adapters.email._batch import BatchRun, RelayCounts
from adapters.email._claim import Claim
from adapters.email._claims import Batch, claim_plan, work_plan
from adapters.email._hold import Database, Hold
from adapters.email._transport import Session, Transport
from fencing import LeaseSource, history
from fencing._lease import lease_clock, process_holder

_log = logging.getLogger(__name__)

_MAX_PAUSE = 60.0
"""The longest pause, in seconds, of a relay whose server or database does not answer."""


class Relay:
    """Sends what is in the outbox. Any number of them, on any machines, may serve one table.

    ``leases`` gives the tokens: a scheduler, or any other :class:`fencing.LeaseSource`. Every batch is claimed under
    a new token, so a relay that was stopped and wakes up is refused: before anything leaves if it had not begun to
    send, else when it reports. ``batch`` rows are taken at a time, each for ``lease`` seconds, renewed meanwhile.
    ``idle`` is how often, in seconds, an empty table is looked at.
    """

    def __init__(
        self,
        engine: Engine,
        transport: Transport,
        *,
        leases: LeaseSource,
        batch: int = 20,
        lease: float = 60.0,
        name: str = "outbox",
        backoff: Backoff | None = None,
        idle: float = 1.0,
    ) -> None:
        if not isinstance(engine, Engine):
            raise TypeError(
                f"engine is a SQLAlchemy Engine, not {type(engine).__name__}: a relay is a thread and takes a sync one"
            )
        if not isinstance(leases, LeaseSource):
            raise TypeError(f"leases is a LeaseSource such as a Scheduler, not {type(leases).__name__}")
        if type(batch) is not int or not 1 <= batch <= 1000:
            raise ValueError(f"batch is a number of rows from 1 to 1000, not {batch!r}")
        if not lease > 0 or not idle > 0:
            raise ValueError(f"lease and idle are seconds above 0, not lease={lease!r}, idle={idle!r}")
        if not name:
            raise ValueError("name is empty; it names the relay's lease")
        self._name = name
        self._identity = (0, "")
        self._database = Database(engine)
        self._transport = transport
        self._leases = leases
        self._batch = batch
        self._lease = lease
        self._backoff = backoff or Backoff()
        self._idle = idle
        self._woken = threading.Event()

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

    def wake(self) -> None:
        """Look at the table now instead of after ``idle`` seconds. May be called from any thread, and is never
        needed."""
        self._woken.set()

    def run_once(self) -> RelayCounts:
        """Claim one batch, hand it over, and return what became of it.

        Raises :class:`~fencing.errors.SchemaMissingError` without the tables, and what the database or ``leases``
        raises. A mail server that cannot be reached is no error: see ``RelayCounts.unavailable``.
        """
        session = self._transport.session()
        try:
            return self._run_batch(session, threading.Event())
        finally:
            session.close()

    def run(self, stop: threading.Event) -> None:
        """Serve the table until ``stop`` is set; then finish the message in hand and give the rest of the batch back.

        Survives restarts of the database and of the mail server, with growing pauses. A service for
        ``Scheduler.add_service``.
        """
        threading.Thread(target=self._wake_at, args=(stop,), name="outbox-stop", daemon=True).start()
        session = self._transport.session()
        failures = 0
        try:
            while not stop.is_set():
                self._woken.clear()
                counts = self._try_batch(session, stop)
                if counts is None or counts.unavailable:
                    failures += 1
                    ceiling = min(_MAX_PAUSE, self._idle * 2.0 ** min(failures, 16))
                    stop.wait(ceiling * random.uniform(0.5, 1.0))
                    continue
                failures = 0
                if counts.claimed < self._batch and not stop.is_set():
                    session.close()  # a server would, too, after a while
                    self._woken.wait(self._idle)
        finally:
            session.close()

    def _wake_at(self, stop: threading.Event) -> None:
        stop.wait()
        self._woken.set()

    def _try_batch(self, session: Session, stop: threading.Event) -> RelayCounts | None:
        try:
            counts = self._run_batch(session, stop)
        except Exception:  # noqa: BLE001 - whatever one batch met, the service goes on
            _log.exception("outbox: the relay %s could not work, and tries again", self.owner)
            return None
        if counts.unavailable:
            _log.warning("outbox: %s, trying again later", counts.unavailable)
        if counts.refused:
            _log.warning(
                "outbox: messages are due that were claimed under a newer token or another issuer; see diagnose()"
            )
        return counts

    def _run_batch(self, session: Session, stop: threading.Event) -> RelayCounts:
        counts = RelayCounts()
        if not self._database.look(work_plan):
            return counts
        with self._leases.lease(f"{self._name}/{self._unique()}", ttl=self._lease, wait=0) as lease:
            claim = Claim(self.owner, lease.token, self._lease)
            sent = lease_clock()
            began = time.monotonic_ns()
            batch = self._database.run(lambda dialect: claim_plan(claim, self._batch, self._backoff.attempts, dialect))
            hold = Hold(self._database, claim, lease, sent + self._lease)
            _tell(claim, batch, began)
            counts.claimed = len(batch.rows)
            counts.expired = len(batch.expired)
            counts.rescued = len(batch.rescued)
            counts.refused = batch.refused
            if batch.rows:
                with hold.renewed():
                    BatchRun(self._database, hold, session, self._transport.name, self._backoff, counts, stop).serve(
                        batch.rows
                    )
        return counts


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
