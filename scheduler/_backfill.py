"""Backfill: occurrences of the past that a person asks for, each still at most once."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from scheduler._catch_up import Planned
from scheduler._occurrence import Occurrence
from scheduler._retention import Retention
from scheduler._schedule_store import Row, lock_live, materialise, refuse_older_zone, tell
from scheduler._schedules import stored_rule
from scheduler._sql import Run
from scheduler.errors import LedgerHorizonError

MOST = 10_000
"""Occurrences of one call."""

LEDGER_KEPT = Retention().occurrences or timedelta.max
"""How far back the ledger is taken to know what ran, unless it was pruned later than that: the usual retention."""


class Backfilled(NamedTuple):
    """An occurrence in the window of a backfill.

    ``state``: ``enqueued`` or ``waiting`` (for its turn) for one that is new, ``present`` for one that the ledger has
    had before and that is left alone.
    """

    occurrence: Occurrence
    state: str


def backfill(
    run: Run, name: str, start: datetime, end: datetime, *, force: bool, dry_run: bool, actor: str, reason: str
) -> list[Backfilled]:
    """Make what the schedule, as it is now, asks for after ``start`` and not after ``end``, and the ledger has not.

    Raises :class:`LedgerHorizonError` for a window that reaches back before what the ledger is sure to know, unless
    ``force``; ``ValueError`` for one that ends in the future or has more than :data:`MOST` occurrences.
    """
    with run.connection.transaction():
        row = lock_live(run, name)
        _check(row, name, start, end, force)
        refuse_older_zone(row)
        rule = stored_rule(name, row.definition)
        found = rule.occurrences(start, end, limit=MOST + 1)
        if len(found) > MOST:
            raise ValueError(
                f"schedule {name!r} has more than {MOST:,} occurrences from {start} to {end}: take a part at a time"
            )
        if dry_run:
            there = {key for (key,) in run("ledger_has", name=name, keys=[one.key for one in found])}
            made = "enqueued" if row.definition["overlap"] == "allow" else "waiting"
            return [Backfilled(one, "present" if one.key in there else made) for one in found]
        states = {
            key: state
            for _, key, state in materialise(run, [(name, Planned(one, None)) for one in found], backfilled=True)
        }
        after = {"start": start.isoformat(), "end": end.isoformat(), "made": len(states), "force": force}
        tell(run, name, "schedule backfilled", actor, reason, after=after)
        return [Backfilled(one, states.get(one.key, "present")) for one in found]


def _check(row: Row, name: str, start: datetime, end: datetime, force: bool) -> None:
    for what, moment in (("start", start), ("end", end)):
        if not isinstance(moment, datetime) or moment.utcoffset() is None:
            raise ValueError(f"{what} is an aware datetime, with its zone or offset, not {moment!r}")
    if start >= end:
        raise ValueError(f"the window is empty: it starts at {start} and ends at {end}")
    if end > row.now:
        raise ValueError(f"the window ends at {end}, and it is {row.now}: what is still to come is made by itself")
    sure = row.now - LEDGER_KEPT
    horizon = max(row.ledger_from or sure, sure)
    if start < horizon and not force:
        raise LedgerHorizonError(
            f"schedule {name!r}: the ledger is sure to know what ran from {horizon} on, and the window starts at "
            f"{start}: what ran before may run again. Start later, or ask with force",
            horizon,
        )
