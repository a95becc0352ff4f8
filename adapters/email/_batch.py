"""One batch of a relay: row by row through the transport, each with the two writes around its hand-over."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from adapters.email._backoff import Backoff
from adapters.email._claims import Row, message_plan, release_plan
from adapters.email._hold import Database, Hold
from adapters.email._outcome import Settlement, conclude, untouched
from adapters.email._settle import Settled, dispatch_plan, settle_plan
from adapters.email._transport import Answer, Delivery, GateClosed, Outgoing, Session, TransportUnavailable
from fencing import history
from fencing._lease import lease_clock

_log = logging.getLogger(__name__)

_SETTLE_FOR = 600.0
"""Seconds for which a known result is offered to a database that does not answer. Nobody can take the row over in
that time either."""


@dataclass(slots=True)
class RelayCounts:
    """What one run did, in rows. ``unavailable`` says why the server was of no use, if it was not.

    ``claimed`` of this run; of them ``sent``, ``retried`` (pending again, later), ``failed``, ``uncertain``,
    ``released`` (given back untouched) and ``lost`` (taken over meanwhile: this relay's word was refused). Besides:
    ``expired`` before they were sent, and ``rescued`` from relays that were gone. ``refused``: rows were due that
    another issuer or a newer token had seen.
    """

    claimed: int = 0
    sent: int = 0
    retried: int = 0
    failed: int = 0
    uncertain: int = 0
    released: int = 0
    lost: int = 0
    expired: int = 0
    rescued: int = 0
    refused: bool = False
    unavailable: str = ""


class _Handover:
    """The gate of one row, and how far it came."""

    def __init__(self, batch: BatchRun, row: Row) -> None:
        self.dispatch = uuid.uuid4().hex
        self.open = False
        self.lost = False
        self.refused: Mapping[str, Answer] = {}
        self._batch = batch
        self._row = row

    def __call__(self, refused: Mapping[str, Answer]) -> None:
        hold = self._batch.hold
        self.refused = dict(refused)
        try:
            mine = self._batch.database.run(
                lambda dialect: dispatch_plan(hold.claim, self._row.id, self.dispatch, refused, dialect)
            )
        except Exception as exc:
            raise GateClosed(f"'dispatching' could not be committed: {exc}") from exc
        if not mine:
            self.lost = True
            raise GateClosed("the row was taken over")
        if hold.remaining() <= 0:
            raise GateClosed("the lease ended before the content")
        self.open = True


class BatchRun:
    """The rows of one claim, on their way through one session."""

    def __init__(
        self,
        database: Database,
        hold: Hold,
        session: Session,
        transport_name: str,
        backoff: Backoff,
        counts: RelayCounts,
        stop: threading.Event,
    ) -> None:
        self.database = database
        self.hold = hold
        self._session = session
        self._transport_name = transport_name
        self._backoff = backoff
        self._counts = counts
        self._stop = stop

    def serve(self, rows: tuple[Row, ...]) -> None:
        """Hand over each row. What was not begun, for whatever reason, is given back."""
        waiting = list(rows)
        broken = 0
        try:
            while waiting and not self._stop.is_set() and self.hold.remaining() > 0 and broken < 2:
                delivery = self._serve(waiting[0])
                waiting.pop(0)
                # A server that hangs up on one message may mean that message; on two in a row, itself.
                broken = broken + 1 if delivery is not None and delivery.free else 0
            if broken >= 2:
                self._counts.unavailable = "the server closed the connection twice in a row"
        except TransportUnavailable as exc:
            self._counts.unavailable = str(exc)
            self._tell_send(waiting[0], "failed", str(exc))
        finally:
            self._release(waiting)

    def _serve(self, row: Row) -> Delivery | None:
        handover = _Handover(self, row)
        began = time.monotonic_ns()
        delivery: Delivery | None = None
        try:
            delivery = self._deliver(row, handover)
        except GateClosed as exc:
            self._tell_send(row, "refused", str(exc), began)
            if handover.lost:
                self._counts.lost += 1
                return None
            end = untouched(None, str(exc))
        else:
            fates = {answer.fate for answer in delivery.answers.values()}
            outcome: history.Outcome = (
                "unknown" if "uncertain" in fates else "accepted" if "sent" in fates else "failed"
            )
            end = conclude(delivery, attempts=row.attempts, failed_before=row.failed_before, backoff=self._backoff)
            self._tell_send(row, outcome, "" if outcome == "accepted" else end.detail, began)
        self._count(end, self._settle(row, handover.dispatch, end))
        return delivery

    def _deliver(self, row: Row, handover: _Handover) -> Delivery:
        try:
            message = row.message if row.message is not None else self.database.look(lambda _: message_plan(row.id))
            return self._session.deliver(Outgoing(row.mail_from, row.recipients, message), handover)
        except (GateClosed, TransportUnavailable):
            raise
        except Exception as exc:  # noqa: BLE001 - a transport's own fault
            # A transport's own fault. After the gate nobody knows what it did; before it, nothing. One such message
            # stops no other.
            _log.exception("outbox: the transport failed on the message %r", row.key)
            text = f"{type(exc).__name__}: {exc}"
            if not handover.open:
                return Delivery(dict.fromkeys(row.recipients, Answer("deferred", text)))
            return Delivery({**dict.fromkeys(row.recipients, Answer("uncertain", text)), **handover.refused})

    def _settle(self, row: Row, dispatch: str, end: Settlement) -> Settled:
        """Write the end, and go on offering it while the database is away: it is the only record of what happened."""
        give_up = lease_clock() + max(self.hold.remaining(), _SETTLE_FOR)
        pause = 0.05
        while True:
            try:
                settled = self.database.run(
                    lambda dialect: settle_plan(self.hold.claim, row.id, dispatch, end, dialect)
                )
            except Exception as exc:
                if lease_clock() > give_up or (self._stop.is_set() and self.hold.remaining() <= 0):
                    raise
                _log.warning(
                    "outbox: the end of %r (%s) could not be written, trying again: %s", row.key, end.target, exc
                )
                time.sleep(pause)
                pause = min(pause * 2, 5.0)
                continue
            self._emit("settle", settled, row, "outbox", end.target if settled == "done" else end.detail)
            return settled

    def _release(self, rows: list[Row]) -> None:
        if not rows:
            return
        numbers = [row.id for row in rows]
        try:
            self._counts.released += self.database.run(lambda dialect: release_plan(self.hold.claim, numbers, dialect))
        except Exception as exc:  # noqa: BLE001 - nothing depends on it: their lease gives them back
            _log.warning("outbox: %d rows could not be given back and wait for their lease to end: %s", len(rows), exc)

    def _count(self, end: Settlement, settled: Settled) -> None:
        counts = self._counts
        if settled == "lost":
            counts.lost += 1
        elif end.target == "sent":
            counts.sent += 1
        elif end.target == "failed":
            counts.failed += 1
        elif end.target == "uncertain":
            counts.uncertain += 1
        elif end.delay is None:
            counts.released += 1
        else:
            counts.retried += 1

    def _tell_send(self, row: Row, outcome: history.Outcome, detail: str, began: int | None = None) -> None:
        self._emit("send", outcome, row, self._transport_name, detail, began)

    def _emit(
        self,
        kind: history.Kind,
        outcome: history.Outcome,
        row: Row,
        downstream: str,
        detail: str,
        began: int | None = None,
    ) -> None:
        if history.recording():
            claim = self.hold.claim
            event = history.Event(
                kind,
                outcome,
                claim.owner,
                downstream,
                (f"outbox/{row.key}",),
                str(claim.token),
                detail=detail,
                began=began or time.monotonic_ns(),
            )
            history.emit(event)
