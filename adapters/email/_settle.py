"""The two writes around a hand-over: `dispatching` before it, and how it ended after it. Each only if the claim is
still the same; what a relay learned that had lost its row is evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from adapters._tx import Plan, Statement
from adapters.email._claim import MINE, Claim, event_row
from adapters.email._order import NEXT, wake_plan
from adapters.email._outcome import Settlement
from adapters.email._sql import after, among, clean, clock, ids, in_list, now, one_of, pairs
from adapters.email._states import FINISHED, RecipientState, in_states, sources
from adapters.email._transport import Answer

Settled = Literal["done", "lost", "evidence"]
"""``lost``: the row is not this claim's any more. Nothing was changed; what the relay knew stands in the audit.
``evidence``: the same, but the row was in doubt about this very hand-over, and the doubt is over."""

Gated = Literal["open", "lost", "late"]
"""The answer to a relay that wants to hand over. ``lost``: the row was taken over. ``late``: it is in doubt, and the
provider would not take it for a repetition any more. In both cases nothing may be handed over."""


@dataclass(frozen=True, slots=True)
class Through:
    """Through which transport, and for how many seconds its provider compares the key of a hand-over."""

    name: str = ""
    key_window: float | None = None


# A message in doubt goes under its key to the provider that compares it; after a person's act, to whom it may.
_REPEATED = (
    "(not in_doubt or policy <> 'keyed' or key_until is null or (transport = :transport and key_until > clock.at))"
)


def dispatch_plan(
    claim: Claim,
    rows: Mapping[int, Mapping[str, Answer]],
    dialect: str,
    through: Through = Through(),
) -> Plan[dict[int, Gated]]:
    """Commit that the content of these rows follows next; ``rows`` are ids with the recipients refused so far.

    The commit waits for the disk: a crash that forgot it would let a message be sent again. What the server said
    about the recipients is kept with it, so that it is known of whom nothing is known if the relay ends here.
    """
    dispatch = str(claim.token)  # with the id it is unique: a row is handed over at most once under a token
    numbers = {"ids": ids(dialect, rows)}
    opened = yield Statement(
        "update fencing_outbox set state = 'dispatching', dispatch = :dispatch, transport = :transport,"
        f" key_until = coalesce(case when in_doubt then key_until end, {after(dialect, 'window')}),"
        f" lease_until = {after(dialect, 'lease')}, updated_at = clock.at from {clock(dialect, durable=True)}"
        f" where id {among(dialect, 'ids')} and {in_states(sources('dispatch', 'dispatching'))} and {MINE}"
        f" and {_REPEATED} returning id",
        {
            **claim.params(),
            **numbers,
            "dispatch": dispatch,
            "transport": through.name,
            "window": through.key_window,
            "lease": claim.lease,
        },
    )
    answers: dict[int, Gated] = {number: "open" for (number,) in opened}
    if len(answers) < len(rows):
        claimed = in_states(sources("dispatch", "dispatching"))
        mine = yield Statement(
            f"select id from fencing_outbox where id {among(dialect, 'ids')} and {claimed} and {MINE}",
            {**claim.params(), **numbers},
        )
        answers = {**dict.fromkeys(rows, "lost"), **{number: "late" for (number,) in mine}, **answers}
    for number, answer in answers.items():
        if answer == "lost":
            told = "taken over before the content: nothing was sent"
            yield event_row(number, "dispatch", claim, "lost", told, dialect, dispatch=dispatch)
        elif answer == "open" and rows[number]:
            yield from _keep_refusals(number, rows[number], dispatch, dialect)
    return answers


def _keep_refusals(number: int, refused: Mapping[str, Answer], dispatch: str, dialect: str) -> Plan[None]:
    for address, answer in refused.items():
        state: RecipientState = "failed" if answer.fate == "rejected" else "pending"
        yield Statement(
            "update fencing_outbox_recipient set state = :state, reply = :reply, deferred_by = :dispatch,"
            f" updated_at = {now(dialect)} where outbox_id = :id and address = :address",
            {"state": state, "reply": clean(answer.reply), "dispatch": dispatch, "id": number, "address": address},
        )


def sent_plan(claim: Claim, ends: Mapping[int, Settlement], dialect: str) -> Plan[set[int]]:
    """Write that these rows were sent, all at once; returns those that were still the claim's. The others need
    :func:`settle_plan` each."""
    rows = yield Statement(
        "update fencing_outbox set state = 'sent', attempts = attempts + 1, lease_until = null, last_error = null,"
        f" in_doubt = false, updated_at = clock.at from {clock(dialect)}"
        f" where id {among(dialect, 'ids')} and {in_states(sources('settle', 'sent'))} and {MINE} returning id",
        {**claim.params(), "ids": ids(dialect, ends)},
    )
    written = {number for (number,) in rows}
    if not written:
        return written
    told = {number: clean(next(iter(ends[number].recipients.values()))[1]) for number in sorted(written)}
    source, params = pairs(dialect, told)
    params["ids"] = ids(dialect, told)
    yield Statement(
        f"update fencing_outbox_recipient set state = 'sent', reply = told.reply, updated_at = {now(dialect)}"
        f" from {source} where outbox_id {among(dialect, 'ids')} and outbox_id = told.id and state = 'pending'",
        params,
    )
    yield Statement(
        "insert into fencing_outbox_event (outbox_id, at, kind, actor, token, dispatch, outcome, detail)"
        f" select told.id, {now(dialect)}, 'settle', :actor, :dispatch, :dispatch, 'sent', told.reply from {source}",
        {**params, "actor": claim.owner, "dispatch": str(claim.token)},
    )
    yield from wake_plan(sorted(written), dialect)
    return written


def group_plan(
    claim: Claim, ends: Mapping[int, Settlement], gates: Sequence[int], through: Through
) -> Plan[tuple[set[int], set[int]]]:
    """The writes of a busy moment as one statement of PostgreSQL: what :func:`sent_plan` does for ``ends``, and
    :func:`dispatch_plan` for ``gates`` without refusals. One way to the server and one commit for all of them.

    Returns the ids that were written and those that are open; of the others nothing was written: they were taken over,
    or somebody's open transaction has them. Locks the rows of the claim, passing over those that are locked, and the
    next one of their order keys. Uses the primary keys.
    """
    params: dict[str, Any] = {**claim.params(), "dispatch": str(claim.token)}
    # As text: drivers take longer to make arrays of Python's lists than the server to read them.
    if ends:
        told = {number: clean(next(iter(end.recipients.values()))[1]) for number, end in sorted(ends.items())}
        params |= {"ids": _array(told), "replies": "\x1f".join(told.values())}
    if gates:
        opening = {"transport": through.name, "window": through.key_window, "lease": claim.lease}
        params |= {"gates": _array(sorted(gates)), **opening}
    rows = yield Statement(_group(bool(ends), bool(gates)), params)
    return {number for number, sent in rows if sent}, {number for number, sent in rows if not sent}


@cache
def _group(ends: bool, gates: bool) -> str:
    """The text; without the parts that have nothing to do, which cost the server the most."""
    if not ends:
        return f"{_OPENED}, false"
    if not gates:
        return f"with {_SETTLED} select id, true from done"
    return f"with {_SETTLED}, opened as ({_OPENED}) select id, true from done union all select id, false from opened"


def _free(parameter: str) -> str:
    return one_of("postgresql", f"select id from fencing_outbox where id = any(cast(:{parameter} as bigint[]))")


_PRESENT = now("postgresql")
_TOLD = "unnest(cast(:ids as bigint[]), string_to_array(:replies, chr(31))) as told(id, reply)"
_SETTLED = (
    "done as (update fencing_outbox set state = 'sent', attempts = attempts + 1, lease_until = null,"
    f" last_error = null, in_doubt = false, updated_at = {_PRESENT} where {_free('ids')}"
    f" and {in_states(sources('settle', 'sent'))} and {MINE} returning id, order_key),"
    " woken as (update fencing_outbox set waits = false where id in"
    f" (select {NEXT} from done d where d.order_key is not null)),"
    f" served as (update fencing_outbox_recipient set state = 'sent', reply = told.reply, updated_at = {_PRESENT}"
    f" from {_TOLD} where outbox_id = any(cast(:ids as bigint[])) and outbox_id = told.id"
    " and state = 'pending' and outbox_id in (select id from done)),"
    " noted as (insert into fencing_outbox_event (outbox_id, at, kind, actor, token, dispatch, outcome, detail)"
    f" select told.id, {_PRESENT}, 'settle', :owner, :dispatch, :dispatch, 'sent', told.reply"
    f" from {_TOLD} where told.id in (select id from done))"
)
_OPENED = (
    "update fencing_outbox set state = 'dispatching', dispatch = :dispatch, transport = :transport,"
    f" key_until = coalesce(case when in_doubt then key_until end, {after('postgresql', 'window')}),"
    f" lease_until = {after('postgresql', 'lease')}, updated_at = clock.at"
    f" from {clock('postgresql', durable=True)} where {_free('gates')}"
    f" and {in_states(sources('dispatch', 'dispatching'))} and {MINE}"
    f" and {_REPEATED} returning id"
)


def _array(numbers: Iterable[int]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"


def is_plain(end: Settlement) -> bool:
    """Whether :func:`sent_plan` can write it: sent to everybody with one answer."""
    return end.target == "sent" and end.cost == 1 and len({reply for _, reply in end.recipients.values()}) == 1


def settle_plan(claim: Claim, number: int, end: Settlement, dialect: str, *, opened: bool = True) -> Plan[Settled]:
    """Write how it ended. May be asked again when the answer was lost: what is settled already by this claim stays,
    and is ``done``. ``opened``: whether the content could leave at all."""
    detail = clean(end.detail)
    dispatch = str(claim.token) if opened else None
    rows = yield from _write(claim, number, end, dialect, f"{_from('settle', end)} and {MINE}", claim.params())
    if rows:
        yield from _settle_recipients(number, end, dialect)
        yield event_row(number, "settle", claim, end.target, detail, dialect, dispatch=dispatch)
        yield from _wake(number, end, dialect)
        return "done"
    found = yield Statement(
        # Not the row's state: a rescue may have brought it there, without what this relay knows.
        "select count(*) from fencing_outbox_event where outbox_id = :id and kind = 'settle' and token = :token"
        " and outcome = :target",
        {"id": number, "token": str(claim.token), "target": end.target},
    )
    if found[0][0]:
        return "done"
    if not opened:
        what = f"the row was taken over; this relay would have said {end.target}: {detail}"
        yield event_row(number, "settle", claim, "lost", what, dialect)
        return "lost"
    return (yield from _evidence(claim, number, end, detail, dialect))


def _evidence(claim: Claim, number: int, end: Settlement, detail: str, dialect: str) -> Plan[Settled]:
    """What is known about a hand-over whose row was taken over: kept, and used if the doubt is about this one."""
    dispatch = str(claim.token)
    if end.target != "uncertain" and not end.in_doubt:
        end = replace(end, cost=0)  # whoever took the row over counted this attempt
        condition = f"{_from('evidence', end)} and dispatch = :dispatch and in_doubt and not {_REQUEUED}"
        if end.target not in FINISHED:
            condition += f" and not {_STOPPED}"
        rows = yield from _write(claim, number, end, dialect, condition, {"dispatch": dispatch})
        if rows:
            yield from _settle_recipients(number, end, dialect)
            yield event_row(number, "evidence", claim, end.target, detail, dialect, dispatch=dispatch)
            yield from _wake(number, end, dialect)
            return "evidence"
    what = f"{end.target}: {detail}"
    yield event_row(number, "evidence", claim, "late", what, dialect, dispatch=dispatch)
    return "lost"


# A person wants it sent, whatever became of this hand-over.
_REQUEUED = (
    "(state = 'pending' and exists(select 1 from fencing_outbox_event e where e.outbox_id = fencing_outbox.id"
    " and e.kind = 'requeue' and e.dispatch = :dispatch))"
)
# A person stopped it while it was in doubt: that it did not leave is no reason to send it then.
_STOPPED = (
    "exists(select 1 from fencing_outbox_event e where e.outbox_id = fencing_outbox.id and e.kind = 'cancel'"
    " and e.dispatch = :dispatch)"
)


def _wake(number: int, end: Settlement, dialect: str) -> Plan[None]:
    if end.target in FINISHED:
        yield from wake_plan([number], dialect)


def _from(verb: str, end: Settlement) -> str:
    return f"{in_states(sources(verb, end.target))}"


def _write(
    claim: Claim, number: int, end: Settlement, dialect: str, condition: str, params: Mapping[str, Any]
) -> Plan[list[Any]]:
    values: dict[str, Any] = {**params, "id": number, "target": end.target, "cost": end.cost}
    due = ""
    if end.target != "sent":
        values["detail"] = clean(end.detail)
    if end.delay is not None:
        due = f" due_at = {after(dialect, 'delay')},"
        values["delay"] = end.delay
    if end.look_up is not None:
        due += f" lookup_at = {after(dialect, 'look_up')},"
        values["look_up"] = end.look_up
    if end.elsewhere:
        # Else the same answer to a person's requeue would be taken for a word about this hand-over.
        due += " transport = null,"
    rows = yield Statement(
        f"update fencing_outbox set state = :target, attempts = attempts + :cost,{due} lease_until = null, last_error ="
        f" {'null' if end.target == 'sent' else ':detail'}, in_doubt = {'true' if end.in_doubt else 'false'},"
        f" updated_at = clock.at from {clock(dialect)} where id = :id and {condition} returning id",
        values,
    )
    return rows


def _settle_recipients(number: int, end: Settlement, dialect: str) -> Plan[None]:
    groups: dict[tuple[RecipientState, str], list[str]] = {}
    for address, told in end.recipients.items():
        groups.setdefault(told, []).append(address)
    for (state, reply), addresses in groups.items():
        listed, params = in_list("a", addresses)
        yield Statement(
            f"update fencing_outbox_recipient set state = :state, reply = :reply, updated_at = {now(dialect)}"
            f" where outbox_id = :id and address in {listed}",
            {"state": state, "reply": clean(reply), "id": number, **params},
        )


def release_plan(claim: Claim, numbers: Sequence[int], dialect: str) -> Plan[int]:
    """Give rows back that were not begun; no attempt is counted. Returns how many were still held."""
    rows = yield Statement(
        f"update fencing_outbox set state = 'pending', lease_until = null, updated_at = clock.at from {clock(dialect)}"
        f" where id {among(dialect, 'ids')} and {in_states(sources('release', 'pending'))} and {MINE}"
        " returning id",
        {**claim.params(), "ids": ids(dialect, numbers)},
    )
    return len(rows)
