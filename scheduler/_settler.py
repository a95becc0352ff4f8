"""The settler: writes how attempts ended, in batches, and keeps what could not be written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from fencing import history
from scheduler._claim import MAX_BATCH
from scheduler._connect import Link
from scheduler._held import Held, Work
from scheduler._hooks import LoseEvent, SettleEvent
from scheduler._loop import log
from scheduler._postgres import settle
from scheduler._sql import Statements
from scheduler._store import Settled, Settlement
from scheduler.errors import ValueRefusedError

DELAY = 0.002
"""Seconds by which a small batch is put off while jobs end faster than that."""

FULL = 200
"""Settlements that are not put off."""


class Settler:
    """Takes what has ended, settles it in one statement, and says of each whether it was ours to settle."""

    def __init__(
        self, link: Link, statements: Statements, work: Work, owner: str, on_settled: Callable[[], None]
    ) -> None:
        self._link = link
        self._statements = statements
        self._work = work
        self._owner = owner
        self._on_settled = on_settled
        self._batch: list[Settlement] = []
        self._sent_at = 0

    def run_once(self) -> float | None:
        """Settle one batch.

        An error leaves the batch to be sent again; the database tells what it had already taken. A value that the
        database cannot store keeps only its own settlement from being written.
        """
        work = self._work
        if not self._batch:
            self._sent_at = 0
        work.ended_some.clear()
        while work.ended and len(self._batch) < MAX_BATCH:
            self._batch.append(work.ended.popleft())
        if not self._batch:
            self._link.open("settle")
            work.ended_some.wait(0.5)
            return 0
        if len(self._batch) < FULL and work.waiting and work.able(1) * DELAY >= 1:
            # More is about to end: a statement for a hundred costs hardly more than one for a few.
            time.sleep(DELAY)
            while work.ended and len(self._batch) < MAX_BATCH:
                self._batch.append(work.ended.popleft())
        try:
            self._settle(len(self._batch))
        except ValueRefusedError:
            while self._batch:
                try:
                    self._settle(1)
                except ValueRefusedError as exc:
                    self._give_up(self._batch.pop(0), exc)
        return 0

    def _settle(self, count: int) -> None:
        """Settle the first ``count`` of the batch."""
        # Sent again because the reply was lost, it may have been settled the first time: the record says since when.
        began = self._sent_at = self._sent_at or time.monotonic_ns()
        batch = self._batch[:count]
        with self._link.use("settle") as connection:
            answers = settle(connection, self._statements, self._owner, batch)
        self._batch = self._batch[count:]
        self._work.settled += 1
        counts, held_of = self._work.counts, self._work.held
        ended = [(one, answers[one.token], held_of.pop(one.token, None)) for one in batch]
        if history.recording() or self._work.teller.wants(SettleEvent) or Settled.LOST in answers.values():
            for settlement, answer, held in ended:
                self._record(settlement, answer, held, began)
        else:
            for outcome, times in Counter([one.outcome for one in batch]).items():
                setattr(counts, outcome, getattr(counts, outcome) + times)
        self._work.tallies.ended(
            [
                (
                    held.claimed.queue,
                    held.claimed.task,
                    None if answer is Settled.LOST else settlement.outcome,
                    held.ran,
                    held.refused,
                )
                for settlement, answer, held in ended
                if held is not None
            ]
        )
        self._work.measure(len(batch), [held.ran for _, _, held in ended if held is not None and held.ran is not None])
        self._on_settled()

    def _give_up(self, settlement: Settlement, exc: ValueRefusedError) -> None:
        """Let the lease run out, which counts as an attempt."""
        log.error("job %d: its %s cannot be written: %s", settlement.id, settlement.outcome, exc)
        self._work.held.pop(settlement.token, None)

    def _record(self, settlement: Settlement, answer: Settled, held: Held | None, began: int) -> None:
        counts = self._work.counts
        if answer is Settled.LOST:
            counts.lost += 1
            log.warning(
                "job %d: its %s under token %d was refused: the lease was lost and the job taken over or rescued",
                settlement.id,
                settlement.outcome,
                settlement.token,
                extra=held.log_fields if held is not None else {"job": settlement.id, "owner": self._owner},
            )
        else:
            setattr(counts, settlement.outcome, getattr(counts, settlement.outcome) + 1)
        if held is None:
            return
        if answer is Settled.LOST:
            held.lease.lose()
        self._tell(settlement, answer, held)
        if history.recording():
            history.emit(
                history.Event(
                    "settle",
                    "refused" if answer is Settled.LOST else "accepted",
                    self._owner,
                    "scheduler",
                    (held.lease.name,),
                    str(held.lease.token),
                    error="lost" if answer is Settled.LOST else "",
                    detail=settlement.outcome,
                    began=began,
                )
            )

    def _tell(self, settlement: Settlement, answer: Settled, held: Held) -> None:
        teller = self._work.teller
        if answer is Settled.LOST:
            if teller.wants(LoseEvent):
                teller.tell(LoseEvent(**held.facts, why=f"its {settlement.outcome} was refused"))
        elif teller.wants(SettleEvent):
            last = (settlement.error or "").strip().rpartition("\n")[2]
            teller.tell(SettleEvent(**held.facts, outcome=settlement.outcome, seconds=held.ran, error=last))
