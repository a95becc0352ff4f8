"""The relay's own database work, and the thread that keeps a claim alive while a server takes its time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

from sqlalchemy import Engine

from adapters._tx import Plan, SyncTx, committing, run, transaction_of
from adapters.email._claim import Claim
from adapters.email._claims import renew_plan
from adapters.email._line import Line
from adapters.email._sql import TABLES
from fencing import Lease
from fencing._lease import lease_clock

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Database:
    """Runs each plan in a short transaction of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(self, make: Callable[[str], Plan[T]]) -> T:
        """Run the plan that ``make(dialect)`` returns, and commit.

        Raises the translated errors of its statements, and :class:`~fencing.errors.OutcomeUnknownError` if the
        commit's answer was lost.
        """
        with self._engine.connect() as connection:
            tx = cast(SyncTx, transaction_of(connection, tables=TABLES))
            result = run(make(tx.dialect), tx)
            with committing(tx):
                connection.commit()
            return result

    def line(self) -> Line:
        """A kept connection of its own."""
        return Line(self._engine)

    @property
    def dialect(self) -> str:
        """The name of the dialect."""
        return self._engine.dialect.name

    def look(self, make: Callable[[str], Plan[T]]) -> T:
        """Run a plan that only reads."""
        with self._engine.connect() as connection:
            tx = cast(SyncTx, transaction_of(connection, read_only=True, tables=TABLES))
            return run(make(tx.dialect), tx)


class Hold:
    """How long this relay may trust its claim: both the lease that gave the token and the rows' own leases must last.

    Measured from before a claim or renewal was sent, so never later than the database's idea of it. ``since`` is when
    the claim was sent, by :func:`lease_clock`.
    """

    def __init__(self, database: Database, claim: Claim, lease: Lease, since: float) -> None:
        self.claim = claim
        self.since = since
        self._database = database
        self._lease = lease
        self._deadline = since + claim.lease

    def remaining(self) -> float:
        """Seconds left, 0 when it is over."""
        return max(0.0, min(self._lease.remaining(), self._deadline - lease_clock()))

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the rows' leases at a third of their length, on a thread of its own, for the block."""
        done = threading.Event()
        thread = threading.Thread(target=self._renew, args=(done,), name="outbox-renewal", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _renew(self, done: threading.Event) -> None:
        pause = self.claim.lease / 3
        while not done.wait(pause):
            sent = lease_clock()
            try:
                held = self._database.run(lambda dialect: renew_plan(self.claim, dialect))
            except Exception as exc:  # noqa: BLE001 - whatever it met, the lease goes on until its deadline
                _log.warning("outbox: the leases of %s could not be renewed, trying again: %s", self.claim.owner, exc)
                pause = min(1.0, self.claim.lease / 10)
                continue
            pause = self.claim.lease / 3
            if held:
                self._deadline = max(self._deadline, sent + self.claim.lease)
