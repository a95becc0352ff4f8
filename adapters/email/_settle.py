"""The two writes around a hand-over: `dispatching` before it, and how it ended after it. Each only if the claim is
still the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from adapters._tx import Plan, Statement
from adapters.email._claim import MINE, Claim, event_row
from adapters.email._outcome import Settlement
from adapters.email._sql import after, clock, in_list, now
from adapters.email._states import RecipientState, sources, sql_list
from adapters.email._transport import Answer

Settled = Literal["done", "lost"]
"""``lost``: the row is not this claim's any more. Nothing was changed; what the relay knew stands in the audit."""


def dispatch_plan(claim: Claim, number: int, dispatch: str, refused: Mapping[str, Answer], dialect: str) -> Plan[bool]:
    """Commit that the content follows next. ``False``: the row was taken over, and nothing may be handed over.

    The commit waits for the disk: a crash that forgot it would let the message be sent again. What the server said
    about the recipients is kept with it, so that it is known of whom nothing is known if the relay ends here.
    """
    rows = yield Statement(
        "update fencing_outbox set state = 'dispatching', dispatch = :dispatch,"
        f" lease_until = {after(dialect, 'lease')}, updated_at = clock.at from {clock(dialect, durable=True)}"
        f" where id = :id and state in {sql_list(sources('dispatch', 'dispatching'))} and {MINE} returning id",
        {**claim.params(), "id": number, "dispatch": dispatch, "lease": claim.lease},
    )
    if not rows:
        yield event_row(
            number,
            "dispatch",
            claim,
            "lost",
            "taken over before the content: nothing was sent",
            dialect,
            dispatch=dispatch,
        )
        return False
    for address, answer in refused.items():
        state: RecipientState = "failed" if answer.fate == "rejected" else "pending"
        yield Statement(
            "update fencing_outbox_recipient set state = :state, reply = :reply, deferred_by = :dispatch,"
            f" updated_at = {now(dialect)} where outbox_id = :id and address = :address",
            {"state": state, "reply": answer.reply, "dispatch": dispatch, "id": number, "address": address},
        )
    return True


def settle_plan(claim: Claim, number: int, dispatch: str | None, end: Settlement, dialect: str) -> Plan[Settled]:
    """Write how it ended. May be asked again when the answer was lost: what is settled already by this claim stays,
    and is ``done``."""
    params: dict[str, Any] = {
        **claim.params(),
        "id": number,
        "target": end.target,
        "cost": end.cost,
        "detail": end.detail,
    }
    due = ""
    if end.delay is not None:
        due = f" due_at = {after(dialect, 'delay')},"
        params["delay"] = end.delay
    rows = yield Statement(
        f"update fencing_outbox set state = :target, attempts = attempts + :cost,{due} lease_until = null, last_error ="
        f" {'null' if end.target == 'sent' else ':detail'}, updated_at = clock.at from {clock(dialect)}"
        f" where id = :id and state in {sql_list(sources('settle', end.target))} and {MINE} returning id",
        params,
    )
    if rows:
        yield from _settle_recipients(number, end, dialect)
        yield event_row(number, "settle", claim, end.target, end.detail, dialect, dispatch=dispatch)
        return "done"
    found = yield Statement(
        f"select count(*) from fencing_outbox where id = :id and state = :target and {MINE}",
        {**claim.params(), "id": number, "target": end.target},
    )
    if found[0][0]:
        return "done"
    what = f"the row was taken over; this relay would have said {end.target}: {end.detail}"
    yield event_row(number, "settle", claim, "lost", what, dialect, dispatch=dispatch)
    return "lost"


def _settle_recipients(number: int, end: Settlement, dialect: str) -> Plan[None]:
    groups: dict[tuple[RecipientState, str], list[str]] = {}
    for address, told in end.recipients.items():
        groups.setdefault(told, []).append(address)
    for (state, reply), addresses in groups.items():
        listed, params = in_list("a", addresses)
        yield Statement(
            f"update fencing_outbox_recipient set state = :state, reply = :reply, updated_at = {now(dialect)}"
            f" where outbox_id = :id and address in {listed}",
            {"state": state, "reply": reply, "id": number, **params},
        )
