"""What people see of the outbox's rows: lists, one row in full, and figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from adapters._tx import Plan, Rows, Statement
from adapters.email._sql import from_database, now
from adapters.email._states import (
    ENDED_OTHERWISE,
    HELD,
    OPEN,
    PARKED,
    STATES,
    UNFINISHED_PARTS,
    Policy,
    RecipientState,
    State,
    of_parts,
    sql_list,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the outbox, for people: without the message itself.

    ``attempts`` are those that the server or a crash ended. ``in_doubt``: an earlier hand-over may have sent it.
    ``transport``: through which it was handed over last, None where that surely did nothing; ``dispatch``: under which
    token.
    """

    id: int
    key: str
    state: State
    priority: int
    due_at: datetime | None
    expires_at: datetime | None
    policy: Policy
    tenant: str | None
    order_key: str | None
    attempts: int
    in_doubt: bool
    owner: str | None
    transport: str | None
    dispatch: str | None
    last_error: str | None
    mail_from: str
    message_id: str
    size: int
    created_at: datetime | None
    updated_at: datetime | None


@dataclass(frozen=True, slots=True)
class RecipientEntry:
    """One recipient of a message, with the server's last answer about it."""

    address: str
    state: RecipientState
    reply: str | None
    updated_at: datetime | None


@dataclass(frozen=True, slots=True)
class EventEntry:
    """One line of the audit. ``outcome`` is the state that it led to; ``lost`` and ``late`` changed nothing."""

    id: int
    at: datetime | None
    kind: str
    actor: str
    token: str | None
    dispatch: str | None
    outcome: str
    detail: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Details:
    """One message with its recipients, in the envelope's order, and its audit, oldest first."""

    entry: Entry
    recipients: tuple[RecipientEntry, ...]
    events: tuple[EventEntry, ...]


@dataclass(frozen=True, slots=True)
class Stats:
    """Figures about what is not finished. Times are seconds by the database's clock, 0 where there is nothing.

    ``due`` of the ``pending`` ones could leave now, the oldest since ``oldest_due_seconds``; ``parked`` ones wait for
    another one of their order key. ``over_lease`` of the
    held ones belong to a relay that is gone. ``in_doubt``: pending ones that an earlier hand-over may have sent.
    ``by_transport`` counts what was handed over through each and is not finished.
    """

    pending: int
    parked: int
    due: int
    oldest_due_seconds: float
    claimed: int
    dispatching: int
    over_lease: int
    uncertain: int
    oldest_uncertain_seconds: float
    in_doubt: int
    by_transport: Mapping[str, Mapping[State, int]]


def _columns(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


_ENTRY, _RECIPIENT, _EVENT = _columns(Entry), _columns(RecipientEntry), _columns(EventEntry)


# As constants, and in the words of the partial indexes: what is rare is not looked for among all that was sent.
_OF_STATE: dict[State, str] = {
    **{state: f"state = '{state}'" for state in STATES},
    "pending": f"({OPEN} or {PARKED})",
    **{state: f"state = '{state}' and state in {sql_list(HELD)}" for state in HELD},
    **{state: f"state = '{state}' and state in {sql_list(ENDED_OTHERWISE)}" for state in ENDED_OTHERWISE},
}


def list_plan(
    state: State | None,
    limit: int,
    *,
    tenant: str | None = None,
    order_key: str | None = None,
    before: int | None = None,
) -> Plan[list[Entry]]:
    """The newest rows, of one state, tenant or order key if given, and older than the row ``before``."""
    given = {"tenant": tenant, "order_key": order_key}
    wanted = {name: value for name, value in given.items() if value is not None}
    conditions = [f"{name} = :{name}" for name in wanted]
    params: dict[str, Any] = {**wanted, "limit": limit}
    if state is not None:
        conditions.append(_OF_STATE[state])
    if before is not None:
        conditions.append("id < :before")
        params["before"] = before
    where = f"where {' and '.join(conditions)} " if conditions else ""
    rows = yield Statement(
        f"select {', '.join(_ENTRY)} from fencing_outbox {where}order by id desc limit :limit", params
    )
    return [Entry(**_named(_ENTRY, row)) for row in rows]


def show_plan(key: str) -> Plan[Details | None]:
    """One message in full, or None."""
    rows = yield Statement(f"select {', '.join(_ENTRY)} from fencing_outbox where key = :key", {"key": key})
    if not rows:
        return None
    entry = Entry(**_named(_ENTRY, rows[0]))
    recipients = yield Statement(
        f"select {', '.join(_RECIPIENT)} from fencing_outbox_recipient where outbox_id = :id order by position",
        {"id": entry.id},
    )
    events = yield Statement(
        f"select {', '.join(_EVENT)} from fencing_outbox_event where outbox_id = :id order by id", {"id": entry.id}
    )
    return Details(
        entry,
        tuple(RecipientEntry(**_named(_RECIPIENT, row)) for row in recipients),
        tuple(EventEntry(**_named(_EVENT, row)) for row in events),
    )


def bytes_plan(key: str) -> Plan[bytes | None]:
    """The frozen bytes under the key; None if there are none (any more)."""
    rows = yield Statement("select message from fencing_outbox where key = :key", {"key": key})
    return bytes(rows[0][0]) if rows and rows[0][0] is not None else None


def counts_plan() -> Plan[dict[State, int]]:
    """How many rows are in each state, also where there are none."""
    rows = yield Statement("select state, count(*) from fencing_outbox group by state")
    found: dict[State, int] = dict.fromkeys(STATES, 0)
    found.update((state, count) for state, count in rows)
    return found


def stats_plan(dialect: str) -> Plan[Stats]:
    """Figures from the partial indexes: what was sent is not read."""
    present = now(dialect)
    pending = yield Statement(
        f"select count(*), count(case when due_at <= {present} then 1 end), min(due_at), {present},"
        f" count(case when in_doubt then 1 end) from fencing_outbox where {OPEN}"
    )
    parked = yield Statement(f"select count(*) from fencing_outbox where {PARKED}")
    held: Rows = yield Statement(
        f"select state, count(*), count(case when lease_until <= {present} then 1 end) from fencing_outbox"
        f" where state in {sql_list(HELD)} group by state"
    )
    uncertain = yield Statement("select count(*), min(updated_at) from fencing_outbox where state = 'uncertain'")
    through = yield Statement(
        f"select transport, state, count(*) from ({of_parts('transport, state', UNFINISHED_PARTS)}) as unfinished"
        " where transport is not null group by transport, state"
    )
    total, due, oldest, at, in_doubt = pending[0]
    counted = {state: (count, late) for state, count, late in held}
    by_transport: dict[str, dict[State, int]] = {}
    for transport, state, count in through:
        by_transport.setdefault(transport, {})[state] = count
    return Stats(
        pending=total + parked[0][0],
        parked=parked[0][0],
        due=due,
        oldest_due_seconds=_since(oldest, at) if due else 0.0,
        claimed=counted.get("claimed", (0, 0))[0],
        dispatching=counted.get("dispatching", (0, 0))[0],
        over_lease=sum(late for _, late in counted.values()),
        uncertain=uncertain[0][0],
        oldest_uncertain_seconds=_since(uncertain[0][1], at),
        in_doubt=in_doubt,
        by_transport=by_transport,
    )


def _since(earlier: Any, later: Any) -> float:
    start, end = from_database(earlier), from_database(later)
    return max(0.0, (end - start).total_seconds()) if start and end else 0.0


def _named(columns: tuple[str, ...], row: tuple[Any, ...]) -> dict[str, Any]:
    named = dict(zip(columns, row, strict=True))
    for name, value in named.items():
        if name == "at" or name.endswith("_at"):
            named[name] = from_database(value)
        elif name == "in_doubt":
            named[name] = bool(value)
    return named
