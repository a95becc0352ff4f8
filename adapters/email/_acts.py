"""What people do to a message: find out, send again, stop, purge. Each act names who and why, and stands in the audit.

An act is one compare-and-set in the caller's transaction: the row is locked, its state decides what is allowed
(:data:`~adapters.email._states.TRANSITIONS`), and a relay that held it is refused from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from adapters._tx import Plan, Statement
from adapters.email._order import wake_plan
from adapters.email._sql import among, clock, ids, now
from adapters.email._states import FINISHED, State, sql_list, targets
from fencing.errors import FencingError

Resolution = Literal["sent", "not-sent", "failed"]
"""What a person found out about an uncertain message: it was sent; it was not, so send it; it was not, and give up."""


class UnknownMessageError(FencingError):
    """There is no message under this key. Attribute: ``key``."""

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message, resource=f"outbox/{key}", downstream="outbox")
        self.key = key


class ActRefusedError(FencingError):
    """The message is in a state in which this act makes no sense, or would be a lie; nothing was changed.

    Attributes: ``key``, ``state``.
    """

    def __init__(self, message: str, *, key: str, state: State) -> None:
        super().__init__(message, resource=f"outbox/{key}", downstream="outbox")
        self.key = key
        self.state = state


@dataclass(frozen=True, slots=True)
class Act:
    """What an act did. ``warning``: what the person should know, or empty."""

    key: str
    id: int
    before: State
    after: State
    warning: str


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge took, or would take (``dry_run``). ``more``: pass it as ``start`` to go on; None at the end."""

    rows: int
    bytes: int
    more: int | None


@dataclass(frozen=True, slots=True)
class _Found:
    id: int
    key: str
    state: State
    in_doubt: bool
    purged: bool
    owner: str | None
    dispatch: str | None


def resolve_plan(key: str, resolution: Resolution, actor: str, reason: str, dialect: str) -> Plan[Act]:
    """End the doubt about an uncertain message."""
    row = yield from _locked(key, dialect)
    if row.state != "uncertain":
        raise ActRefusedError(
            f"outbox: the message {key!r} is {row.state}, not uncertain: there is nothing to resolve. "
            "Use requeue to have it sent again",
            key=key,
            state=row.state,
        )
    left, recipient = {
        "sent": (("uncertain",), "sent"),
        "not-sent": (("uncertain",), "pending"),
        "failed": (("uncertain", "pending"), "failed"),
    }[resolution]
    yield Statement(
        f"update fencing_outbox_recipient set state = :state, updated_at = {now(dialect)}"
        f" where outbox_id = :id and state in {sql_list(left)}",
        {"id": row.id, "state": recipient},
    )
    found = yield Statement("select state from fencing_outbox_recipient where outbox_id = :id", {"id": row.id})
    states = {state for (state,) in found}
    # Recipients that were refused for now are served next, whatever became of the others.
    after: State = "pending" if "pending" in states else "failed" if "failed" in states else "sent"
    warning = ""
    if after == "pending":
        _needs_bytes(row)
        warning = yield from _late_evidence(row)
    row = replace(row, in_doubt=False)
    yield from _change(row, "resolve", after, actor, reason, f"resolved as {resolution}", warning, dialect)
    return Act(key, row.id, row.state, after, warning)


def requeue_plan(key: str, actor: str, reason: str, dialect: str) -> Plan[Act]:
    """Have a message sent (again), from any state but ``pending``."""
    row = yield from _locked(key, dialect)
    _allowed("requeue", row, "pending", "it is waiting to be sent already")
    _needs_bytes(row)
    warning = {
        "dispatching": f"{row.owner} is handing it over at this moment: it may arrive twice",
        "uncertain": "it may have been sent already: it may arrive twice",
        "sent": "it was sent already: it will arrive once more",
    }.get(row.state, "")
    # It makes no claim about what was handed over: if this sending is refused, the earlier one may have arrived.
    doubt = row.in_doubt or row.state in ("dispatching", "uncertain")
    if doubt and not warning:
        warning = "an earlier hand-over may have sent it: it may arrive twice"
    if row.state != "sent":
        warning = "; ".join(told for told in (warning, (yield from _late_evidence(row))) if told)
    present = now(dialect)
    served = "" if row.state == "sent" else " and state <> 'sent'"
    yield Statement(
        f"update fencing_outbox_recipient set state = 'pending', deferred_by = null, updated_at = {present}"
        f" where outbox_id = :id{served}",
        {"id": row.id},
    )
    row = replace(row, in_doubt=doubt)
    yield from _change(row, "requeue", "pending", actor, reason, f"it was {row.state}", warning, dialect)
    return Act(key, row.id, row.state, "pending", warning)


def cancel_plan(key: str, actor: str, reason: str, dialect: str) -> Plan[Act]:
    """Stop a message that was not handed over. One of which an earlier hand-over is in doubt becomes uncertain."""
    row = yield from _locked(key, dialect)
    why = {
        "dispatching": "it is being handed over at this moment, which nothing can call back",
        "uncertain": "it may have been sent: use resolve",
    }.get(row.state, "it is at its end already")
    after: State = "uncertain" if row.in_doubt else "cancelled"
    _allowed("cancel", row, after, why)
    warning = "an earlier hand-over may have sent it: it is uncertain now" if row.in_doubt else ""
    if row.in_doubt:
        yield Statement(
            f"update fencing_outbox_recipient set state = 'uncertain', updated_at = {now(dialect)}"
            " where outbox_id = :id and state = 'pending'",
            {"id": row.id},
        )
    yield from _change(row, "cancel", after, actor, reason, f"it was {row.state}", warning, dialect)
    return Act(key, row.id, row.state, after, warning)


def purge_plan(
    older_than: float,
    what: Literal["bodies", "rows"],
    states: tuple[State, ...],
    start: int,
    limit: int,
    dry_run: bool,
    actor: str,
    reason: str,
    dialect: str,
) -> Plan[Purged]:
    """Take the bytes of finished messages, or their rows, up to ``limit`` of them with an id above ``start``."""
    if dialect == "postgresql":
        before = "(select clock_timestamp() - make_interval(secs => cast(:age as double precision)))"
        lock = " for update"
    else:
        before, lock = "strftime('%Y-%m-%d %H:%M:%f000', 'now', '-' || :age || ' seconds')", ""
    filled = " and message is not null" if what == "bodies" else ""
    rows = yield Statement(
        "select id, case when message is null then 0 else size end from fencing_outbox where id > :start"
        f" and state in {sql_list(states)} and updated_at <= {before}{filled} order by id limit :limit"
        + ("" if dry_run else lock),
        {"start": start, "age": older_than, "limit": limit},
    )
    purged = Purged(len(rows), sum(size for _, size in rows), rows[-1][0] if len(rows) == limit else None)
    if dry_run or not rows:
        return purged
    listed = {"ids": ids(dialect, (number for number, _ in rows))}
    yield Statement(
        "insert into fencing_outbox_event (outbox_id, at, kind, actor, outcome, detail, reason) select id,"
        f" {now(dialect)}, 'purge', :actor, state, :detail || key, :reason from fencing_outbox"
        f" where id {among(dialect, 'ids')}",
        {**listed, "actor": actor, "reason": reason, "detail": f"the {what} of "},
    )
    if what == "bodies":
        yield Statement(f"update fencing_outbox set message = null where id {among(dialect, 'ids')}", listed)
    else:
        # By hand, because SQLite follows foreign keys only where it is told to.
        yield Statement(f"delete from fencing_outbox_recipient where outbox_id {among(dialect, 'ids')}", listed)
        yield Statement(f"delete from fencing_outbox where id {among(dialect, 'ids')}", listed)
    return purged


def _locked(key: str, dialect: str) -> Plan[_Found]:
    rows = yield Statement(
        "select id, key, state, in_doubt, message is null, owner, dispatch from fencing_outbox where key = :key"
        + (" for update" if dialect == "postgresql" else ""),
        {"key": key},
    )
    if not rows:
        raise UnknownMessageError(f"outbox: there is no message under the key {key!r}; nothing was changed", key=key)
    number, found, state, in_doubt, purged, owner, dispatch = rows[0]
    return _Found(number, found, state, bool(in_doubt), bool(purged), owner, dispatch)


def _allowed(verb: str, row: _Found, after: State, why: str) -> None:
    if after not in targets(verb, row.state):
        raise ActRefusedError(
            f"outbox: {verb} is refused for the message {row.key!r}, which is {row.state}: {why}. Nothing was changed",
            key=row.key,
            state=row.state,
        )


def _needs_bytes(row: _Found) -> None:
    if row.purged:
        raise ActRefusedError(
            f"outbox: the message {row.key!r} cannot be sent again: its bytes were purged. Put it under another key",
            key=row.key,
            state=row.state,
        )


def _late_evidence(row: _Found) -> Plan[str]:
    """What relays reported about hand-overs after the row had been taken from them."""
    rows = yield Statement(
        "select at, detail from fencing_outbox_event where outbox_id = :id and kind = 'evidence' and outcome = 'late'"
        " order by id desc limit 1",
        {"id": row.id},
    )
    return f"a relay that had lost it reported later: {rows[0][1]}" if rows else ""


def _change(
    row: _Found, verb: str, after: State, actor: str, reason: str, detail: str, warning: str, dialect: str
) -> Plan[None]:
    # Without an owner no relay's claim matches the row any more; the token stays, so that an older one is refused.
    parts = [
        "state = :after",
        "lease_until = null",
        "owner = null",
        "lookup_at = null",
        "waits = false",
        "updated_at = clock.at",
    ]
    parts.append(f"in_doubt = {'true' if row.in_doubt else 'false'}")
    if after == "pending":
        # A person's will: no provider's window is in its way.
        parts += ["key_until = null", "due_at = clock.at", "attempts = 0", "lookups = 0"]
        if row.state in FINISHED:
            # Another sending: under the key of the old one the provider would take it for a repetition.
            parts.append("generation = generation + 1")
        parts.append("expires_at = case when expires_at > clock.at then expires_at end")
    told = f"{detail}; {warning}" if warning else detail
    params: dict[str, Any] = {"id": row.id, "after": after}
    yield Statement(f"update fencing_outbox set {', '.join(parts)} from {clock(dialect)} where id = :id", params)
    yield Statement(
        "insert into fencing_outbox_event (outbox_id, at, kind, actor, dispatch, outcome, detail, reason)"
        f" values (:id, {now(dialect)}, :kind, :actor, :dispatch, :after, :told, :reason)",
        {**params, "kind": verb, "actor": actor, "dispatch": row.dispatch, "told": told, "reason": reason},
    )
    if after in FINISHED:
        yield from wake_plan([row.id], dialect)
