"""PostgreSQL's lock timeout around one statement, as parts of it, or around several, as statements of their own."""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy import CTE, Text, column, text

from adapters._tx import Plan, Statement
from adapters.sql._dialect import Dialect
from adapters.sql._marks import bounded
from fencing.errors import FencingError

T = TypeVar("T")

RESTORE = "set_config('lock_timeout', (select before from fencing_limited), true)"
"""Takes the setting back: to be evaluated after the last wait, in a statement that has :func:`limit` as its CTE."""
LIMITED = "(select now from fencing_limited) is not null"
"""A condition that is evaluated before anything else in its statement."""


def lowered(milliseconds: int | None) -> str:
    """A select list of the setting as it was and as it is now; a caller's stricter one stays."""
    now = "current_setting('lock_timeout')"
    if milliseconds is None:
        return f"{now} as before, {now} as now"
    return f"""{now} as before, set_config('lock_timeout', case
        when {now} = '0' or cast({now} as interval) > interval '{milliseconds} milliseconds'
        then '{milliseconds}ms' else {now} end, true) as now"""


def limit(milliseconds: int | None) -> CTE:
    """The CTE that lowers the setting: evaluated once, for what it calls is volatile."""
    made = text(f"select {lowered(milliseconds)}").columns(column("before", Text), column("now", Text))
    return made.cte("fencing_limited")


def limited(sql: Dialect, milliseconds: int | None, plan: Plan[T]) -> Plan[T]:
    """Run ``plan`` with each wait for a row bounded; the caller's setting is as it was afterwards.

    Statements of their own: for the ways that are not taken often.
    """
    if sql.name != "postgresql":
        return (yield from bounded(sql, plan))
    [(before, _)] = yield Statement(f"select {lowered(milliseconds)}")
    try:
        result = yield from plan
    except (FencingError, ValueError) as exc:
        if exc.__cause__ is None:  # a verdict; after an error of the database its transaction takes the setting back
            yield _restored(before)
        raise
    yield _restored(before)
    return result


def _restored(before: Any) -> Statement:
    return Statement("select set_config('lock_timeout', :before, true)", {"before": before})
