"""The gate: decides which due occurrences run where a schedule minds overlap. Part of the claim.

A claimer asks it when it found nothing else to do, and now and then while it has. Whoever asks decides for all
schedules; the schedule's row lock makes it one decision at a time.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

import psycopg

from scheduler._acts import end
from scheduler._connect import Connection
from scheduler._loop import log
from scheduler._overlap import Decision, Live, Waiting, decide
from scheduler._schedule_store import tell
from scheduler._sql import Run, Statements
from scheduler._store import Outlook

BATCH = 200
"""Schedules a transaction."""

MOST = 1000
"""Occurrences of one schedule that are looked at together."""

LEFT = 60.0
"""Seconds for which a schedule is left alone after the database refused what it wants."""

BUSY = 0.05
"""Seconds until another look at a schedule that somebody else was working on."""


class Gate:
    """Used by one thread. ``every``: seconds between two looks while there is other work."""

    def __init__(self, statements: Statements, actor: str, every: float) -> None:
        self._statements = statements
        self._actor = actor
        self._every = every
        self._looked = float("-inf")
        self._more = False
        self._left: dict[str, float] = {}

    def due(self, patience: float = 1.0) -> bool:
        """Whether the last look was long enough ago, so many times as long as usual, or left something to the next."""
        return self._more or time.monotonic() - self._looked >= self._every * patience

    def look(self, connection: Connection, outlook: Outlook) -> float | None:
        """Decide about what is due by ``outlook``, which was just asked for; return the seconds until another look is
        worth it: 0 where something was admitted or more may be, None where nothing waits."""
        self._looked = time.monotonic()
        self._more = False
        if outlook.due:
            self._left = {name: until for name, until in self._left.items() if until > self._looked}
            found, decided = self._batch(Run(connection, self._statements), BATCH)
            self._more = decided == BATCH
            if decided:
                return 0
            if found:
                return BUSY
        return None if outlook.next_in is None else max(0.0, outlook.next_in)

    def _batch(self, run: Run, size: int) -> tuple[int, int]:
        """Decide about so many schedules; return how many there were, and how many were decided on or left alone."""
        names: dict[str, str] = {}
        try:
            with run.connection.transaction():
                found = run("overlap_due", batch=size, without=list(self._left))
                names = {name: overlap for name, overlap in found if overlap is not None}
                return len(found), self._decide(run, names) if names else 0
        except (psycopg.IntegrityError, psycopg.DataError) as exc:
            # The database refuses what one of them wants: the others must not wait for it.
            if len(names) == 1:
                (name,) = names
                log.error("schedule %r: what is due of it is left alone: %s", name, exc)
                self._left[name] = self._looked + LEFT
            for _ in names if len(names) > 1 else ():
                self._batch(run, 1)
            return len(names), len(names)

    def _decide(self, run: Run, names: dict[str, str]) -> int:
        """Decide about schedules; return about how many."""
        decisions: dict[str, Decision] = {}
        for name, ids, started, keys, backfilled in run("overlap_state", names=list(names), most=MOST):
            live = [Live(*pair) for pair in zip(ids, started, strict=True)]
            waiting = [Waiting(*pair) for pair in zip(keys, backfilled, strict=True)]
            decisions[name] = decide(names[name], live, waiting)  # type: ignore[arg-type]
        decisions = self._free(run, decisions)
        for name, decision in decisions.items():
            if decision.cancel:
                ended = end(
                    run.connection, self._statements, decision.cancel, "cancelled",
                    actor=self._actor, reason=f"schedule {name!r}: {decision.reason}",
                )  # fmt: skip
                cancelled = {*ended.waiting, *(one.id for one in ended.revoked)}
                log.info("schedule %r: cancelled %d jobs: %s", name, len(cancelled), decision.reason)
        self._skip(run, decisions)
        admitted = [(name, key) for name, decision in decisions.items() for key in decision.admit]
        if admitted:
            schedules, keys = zip(*admitted, strict=True)
            for name, key, _, _ in run("overlap_admit", schedules=list(schedules), keys=list(keys)):
                log.info("schedule %r: occurrence %s enqueued", name, key)
        return len(decisions)

    @staticmethod
    def _free(run: Run, decisions: dict[str, Decision]) -> dict[str, Decision]:
        """Leave what would cancel a job that somebody is just settling to the next look."""
        wanted = sorted(job for decision in decisions.values() for job in decision.cancel)
        free = {job for (job,) in run("job_lock_free", ids=wanted)} if wanted else set()
        return {name: decision for name, decision in decisions.items() if free.issuperset(decision.cancel)}

    def _skip(self, run: Run, decisions: dict[str, Decision]) -> None:
        skipped = [(name, key, one.reason) for name, one in decisions.items() for key in one.skip]
        if not skipped:
            return
        schedules, keys, reasons = zip(*skipped, strict=True)
        done: dict[str, list[str]] = defaultdict(list)
        for name, key in run("overlap_skip", schedules=list(schedules), keys=list(keys), reasons=list(reasons)):
            done[name].append(key)
        for name, gone in done.items():
            tell_skipped(run, name, self._actor, decisions[name].reason, gone)


def tell_skipped(run: Run, name: str, actor: str, reason: str, keys: Sequence[str]) -> None:
    """Log and audit occurrences that were skipped: one line for all, with the first and the last."""
    log.info("schedule %r: skipped %d occurrences, from %s: %s", name, len(keys), min(keys), reason)
    after = {"skipped": len(keys), "first": min(keys), "last": max(keys)}
    tell(run, name, "occurrences skipped", actor, reason, after=after)
