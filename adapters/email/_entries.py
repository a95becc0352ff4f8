"""What people see of the outbox's rows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from adapters._tx import Plan, Statement
from adapters.email._sql import from_database
from adapters.email._states import STATES, State


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the outbox, for people: without the message itself. ``attempts`` are those that the server or a crash
    ended."""

    id: int
    key: str
    state: State
    priority: int
    due_at: datetime | None
    expires_at: datetime | None
    attempts: int
    owner: str | None
    last_error: str | None
    message_id: str
    created_at: datetime | None
    updated_at: datetime | None


_COLUMNS = tuple(field.name for field in fields(Entry))


def list_plan(state: State | None, limit: int) -> Plan[list[Entry]]:
    """The newest rows, of one state if given."""
    where = "" if state is None else "where state = :state "
    rows = yield Statement(
        f"select {', '.join(_COLUMNS)} from fencing_outbox {where}order by id desc limit :limit",
        {"state": state, "limit": limit} if state else {"limit": limit},
    )
    return [_entry(dict(zip(_COLUMNS, row, strict=True))) for row in rows]


def counts_plan() -> Plan[dict[State, int]]:
    """How many rows are in each state, also where there are none."""
    rows = yield Statement("select state, count(*) from fencing_outbox group by state")
    found: dict[State, int] = dict.fromkeys(STATES, 0)
    found.update((state, count) for state, count in rows)
    return found


def _entry(row: dict[str, Any]) -> Entry:
    times = {name: from_database(value) for name, value in row.items() if name.endswith("_at")}
    return Entry(**{**row, **times})
