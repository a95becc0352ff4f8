"""PostgreSQL's lock timeout around several statements, as statements of their own."""

from __future__ import annotations

from typing import TypeVar

from adapters._tx import Plan, Statement
from adapters.sql._dialect import Dialect
from adapters.sql._marks import bounded
from adapters.sql._postgresql import RESTORING, SAVED, lowering
from fencing.errors import FencingError

T = TypeVar("T")


def limited(sql: Dialect, milliseconds: int | None, plan: Plan[T], *, lowered: bool = False) -> Plan[T]:
    """Run ``plan`` with each wait for a row bounded; the caller's setting is as it was afterwards.

    ``lowered``: the statement before this one has lowered it. Statements of their own: for the ways that are not taken
    often.
    """
    if sql.name != "postgresql":
        return (yield from bounded(sql, plan))
    if milliseconds is None:
        return (yield from plan)
    # To be taken back to what is known here: the plan's own statements save theirs in the same place.
    before = SAVED if lowered else "current_setting('lock_timeout')"
    [(saved, _)] = yield Statement(f"select {before}, {'null' if lowered else lowering(milliseconds)}")
    back = Statement("select set_config('lock_timeout', :before, true)", {"before": saved})
    try:
        result = yield from plan
    except (FencingError, ValueError) as exc:
        if exc.__cause__ is None:  # a verdict; after an error of the database its transaction takes the setting back
            yield back
        raise
    yield back
    return result


def restored() -> Plan[None]:
    """Take back what the statement before this one has lowered."""
    yield Statement(f"select {RESTORING}")
