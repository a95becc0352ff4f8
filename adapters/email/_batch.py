"""The rows of one claim, on their way through sessions: each with the two writes around its hand-over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from adapters.email._backoff import Backoff
from adapters.email._claims import Row, message_plan
from adapters.email._commits import Commits, End
from adapters.email._hold import Database, Hold
from adapters.email._outcome import Rules, Settlement, conclude, too_late, untouched
from adapters.email._settle import Gated, Settled, Through, release_plan
from adapters.email._transport import Answer, Delivery, GateClosed, Outgoing, Session, TransportUnavailable
from fencing import history
from fencing._lease import lease_clock

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class RelayCounts:
    """What one run did, in rows. ``unavailable`` says why the server was of no use, if it was not.

    ``claimed`` of this run; of them ``sent``, ``retried`` (pending again, later), ``failed``, ``uncertain``,
    ``released`` (given back untouched) and ``lost`` (taken over meanwhile: this relay's word was refused; of those,
    ``evidence`` ended a doubt all the same). Besides: ``expired`` before they were sent, ``rescued`` from relays that
    were gone, ``looked_up`` at the provider, and ``doubtful``: too late to be sent again. ``refused``: rows were due
    that another issuer or a newer token had seen.
    """

    claimed: int = 0
    sent: int = 0
    retried: int = 0
    failed: int = 0
    uncertain: int = 0
    released: int = 0
    lost: int = 0
    evidence: int = 0
    expired: int = 0
    doubtful: int = 0
    rescued: int = 0
    looked_up: int = 0
    refused: bool = False
    unavailable: str = ""


@dataclass(frozen=True, slots=True)
class Means:
    """What the batches of a relay share."""

    database: Database
    commits: Commits
    through: Through
    can_look_up: bool
    backoff: Backoff


class _Handover:
    """The gate of one row, and how far it came."""

    def __init__(self, batch: BatchRun, row: Row) -> None:
        self.answer: Gated | None = None
        self.open = False
        self.refused: Mapping[str, Answer] = {}
        self._batch = batch
        self._row = row

    def __call__(self, refused: Mapping[str, Answer]) -> None:
        batch = self._batch
        self.refused = dict(refused)
        self._check_end()
        try:
            self.answer = batch.means.commits.gate(batch.hold.claim, self._row.id, refused)
        except Exception as exc:
            raise GateClosed(f"'dispatching' could not be committed: {exc}") from exc
        if self.answer == "lost":
            raise GateClosed("the row was taken over")
        if self.answer == "late":
            raise GateClosed("it may have been sent, and the provider would not take it for a repetition any more")
        if batch.hold.remaining() <= 0:
            raise GateClosed("the lease ended before the content")
        self._check_end()
        self.open = True

    def _check_end(self) -> None:
        # Given back, and the next claim decides by the database's clock what becomes of it.
        expires_in = self._row.expires_in
        if expires_in is not None and lease_clock() >= self._batch.hold.since + expires_in:
            raise GateClosed("its expires_at passed before the content")


class BatchRun:
    """The rows of one claim; sessions on any threads serve them."""

    def __init__(self, means: Means, hold: Hold, counts: RelayCounts, rows: int) -> None:
        self.means = means
        self.hold = hold
        self.counts = counts
        self.finished = threading.Event()
        self._left = rows
        self._lock = threading.Lock()
        if not rows:
            self.finished.set()

    def serve(self, row: Row, session: Session) -> Delivery | None:
        """Hand over one row. Raises :class:`TransportUnavailable` if nothing was begun: release it then."""
        handover = _Handover(self, row)
        began = time.monotonic_ns()
        delivery: Delivery | None = None
        try:
            delivery = self._deliver(row, session, handover)
        except TransportUnavailable as exc:
            self._tell_send(row, "failed", str(exc), began)
            if not handover.open:
                raise
            end = untouched(None, str(exc), in_doubt=row.in_doubt)
            delivery = Delivery({}, free=True)
        except GateClosed as exc:
            self._tell_send(row, "refused", str(exc), began)
            if handover.answer == "lost":
                self._done(1, lost=1)
                return None
            late = handover.answer == "late"
            end = too_late(str(exc), row.recipients) if late else untouched(None, str(exc), in_doubt=row.in_doubt)
        else:
            fates = {answer.fate for answer in delivery.answers.values()}
            outcome: history.Outcome = (
                "unknown" if "uncertain" in fates else "accepted" if "sent" in fates else "failed"
            )
            end = self._conclude(row, delivery)
            self._tell_send(row, outcome, "" if outcome == "accepted" else end.detail, began)
        self._settle(row, end, opened=handover.open)
        return delivery

    def release(self, rows: Iterable[Row]) -> None:
        """Give back what was not begun."""
        numbers = [row.id for row in rows]
        if not numbers:
            return
        released = 0
        try:
            released = self.means.database.run(lambda dialect: release_plan(self.hold.claim, numbers, dialect))
        except Exception as exc:  # noqa: BLE001 - nothing depends on it: their lease gives them back
            _log.warning(
                "outbox: %d rows could not be given back and wait for their lease to end: %s", len(numbers), exc
            )
        self._done(len(numbers), released=released)

    def _deliver(self, row: Row, session: Session, handover: _Handover) -> Delivery:
        try:
            message = row.message
            if message is None:
                message = self.means.database.look(lambda _: message_plan(row.id))
            mail = Outgoing(row.mail_from, row.recipients, message, row.provider_key(), self._again(row))
            with self.means.commits.delivery():
                return _complete(session.deliver(mail, handover), row, handover)
        except (GateClosed, TransportUnavailable):
            raise
        except Exception as exc:  # noqa: BLE001 - a transport's own fault
            # After the gate nobody knows what it did; before it, nothing. One such message stops no other.
            _log.exception("outbox: the transport failed on the message %r", row.key)
            text = f"{type(exc).__name__}: {exc}"
            if not handover.open:
                return Delivery(dict.fromkeys(row.recipients, Answer("deferred", text)))
            return Delivery({**dict.fromkeys(row.recipients, Answer("uncertain", text)), **handover.refused})

    def _again(self, row: Row) -> bool:
        return row.in_doubt and row.transport == self.means.through.name

    def _conclude(self, row: Row, delivery: Delivery) -> Settlement:
        means = self.means
        rules = Rules(row.policy, row.in_doubt, means.through.key_window, means.can_look_up, self._again(row))
        return conclude(
            delivery,
            attempts=row.attempts,
            failed_before=row.failed_before,
            backoff=means.backoff,
            rules=rules,
        )

    def _settle(self, row: Row, end: Settlement, *, opened: bool) -> None:
        began = time.monotonic_ns()

        def written(settled: Settled) -> None:
            outcome: history.Outcome = "lost" if settled == "evidence" else settled
            self._emit("settle", outcome, row, "outbox", _said(end, settled), began)
            if end.target == "uncertain" and settled == "done":
                _log.warning("outbox: nobody knows whether the message %r was sent: %s", row.key, end.detail)
            self._count(end, settled)

        self.means.commits.end(End(self.hold.claim, row.id, end, opened, self.hold.remaining, written))

    def _count(self, end: Settlement, settled: Settled) -> None:
        if settled == "evidence":
            self._done(1, lost=1, evidence=1)
        elif settled == "lost":
            self._done(1, lost=1)
        elif end.target == "pending":
            self._done(1, **{"released" if end.delay is None else "retried": 1})
        else:
            self._done(1, **{end.target: 1})

    def _done(self, rows: int, **counts: int) -> None:
        with self._lock:
            for name, number in counts.items():
                setattr(self.counts, name, getattr(self.counts, name) + number)
            self._left -= rows
            if self._left <= 0:
                self.finished.set()

    def _tell_send(self, row: Row, outcome: history.Outcome, detail: str, began: int) -> None:
        self._emit("send", outcome, row, self.means.through.name, detail, began)

    def _emit(
        self,
        kind: history.Kind,
        outcome: history.Outcome,
        row: Row,
        downstream: str,
        detail: str,
        began: int,
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
                began=began,
            )
            history.emit(event)


def _said(end: Settlement, settled: Settled) -> str:
    return end.target if settled == "done" else end.detail


def _complete(delivery: Delivery, row: Row, handover: _Handover) -> Delivery:
    """A transport that forgot a recipient does not know about it."""
    missing = [address for address in row.recipients if address not in delivery.answers]
    if not missing:
        return delivery
    fate = Answer("uncertain" if handover.open else "deferred", "the transport gave no answer for this recipient")
    answers = {**dict.fromkeys(missing, fate), **delivery.answers}
    return Delivery(answers, free=delivery.free, held=delivery.held, retry_after=delivery.retry_after)
