"""`reconcile`: asking the provider about messages of which nobody knows whether they were sent."""

from __future__ import annotations

from dataclasses import dataclass

from adapters._tx import Plan, Statement
from adapters.email._claim import MINE, Claim, event_row
from adapters.email._claims import provider_key, sending_of
from adapters.email._order import wake_plan
from adapters.email._outcome import LOOK_AFTER
from adapters.email._sql import after, among, clean, clock, ids, now, one_of
from adapters.email._states import FINISHED, RecipientState, State, in_states, sources
from adapters.email._transport import LookUp

LOOKS = 10
"""So often a provider is asked about one message, with growing pauses (over some 17 hours), before it is left to a
person alone."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A row to be looked up: the hand-over in doubt, and what is needed to name it to the provider."""

    id: int
    key: str
    dispatch: str
    looks: int
    mail_from: str
    recipients: tuple[str, ...]
    message: bytes
    sending: str

    def provider_key(self) -> str:
        """The name of the sending to a provider; the one of the hand-over that is in doubt."""
        return provider_key(self.sending, self.recipients)


def doubts_plan(claim: Claim, transport: str, batch: int, dialect: str) -> Plan[list[Doubt]]:
    """Take up to ``batch`` uncertain rows whose look-up is due. They stay uncertain; the next look-up of another relay
    waits for the length of a lease."""
    due = (
        f"select id from fencing_outbox where state = 'uncertain' and lookup_at <= {now(dialect)}"
        " and transport = :transport and (token is null or (issuer = :issuer and token < :token))"
        " order by lookup_at limit :batch"
    )
    rows = yield Statement(
        f"update fencing_outbox set lookup_at = {after(dialect, 'lease')}, lookups = lookups + 1, owner = :owner,"
        f" issuer = :issuer, lineage = :lineage, token = :token from {clock(dialect)}"
        f" where {one_of(dialect, due)} and {in_states(('uncertain',))} and message is not null"
        " returning id, key, dispatch, lookups, mail_from, message, generation, created_at",
        {**claim.params(), "lease": claim.lease, "batch": batch, "transport": transport},
    )
    recipients: dict[int, list[str]] = {row[0]: [] for row in rows}
    if rows:
        served = yield Statement(
            "select outbox_id, address from fencing_outbox_recipient"
            f" where outbox_id {among(dialect, 'ids')} and state = 'uncertain' order by outbox_id, position",
            {"ids": ids(dialect, recipients)},
        )
        for number, address in served:
            recipients[number].append(address)
    return [
        Doubt(
            id=row[0],
            key=row[1],
            dispatch=row[2],
            looks=row[3],
            mail_from=row[4],
            recipients=tuple(recipients[row[0]]),
            message=bytes(row[5]),
            sending=sending_of(row[0], row[1], row[6], row[7]),
        )
        for row in rows
    ]


_MEANING: dict[str, tuple[State, RecipientState]] = {
    "sent": ("sent", "sent"),
    "failed": ("failed", "failed"),
    "absent": ("pending", "pending"),
}


def looked_up_plan(claim: Claim, doubt: Doubt, answer: LookUp, dialect: str) -> Plan[bool]:
    """Write what the provider said, if the row is still uncertain about the same hand-over; returns whether it was."""
    mine = f"id = :id and {in_states(('uncertain',))} and dispatch = :dispatch and {MINE}"
    params = {**claim.params(), "id": doubt.id, "dispatch": doubt.dispatch}
    told = clean(f"the provider says {answer.found}: {answer.reply}")
    if answer.found not in _MEANING:
        again = "null" if doubt.looks >= LOOKS else after(dialect, "pause")
        rows = yield Statement(
            f"update fencing_outbox set lookup_at = {again} from {clock(dialect)} where {mine} returning id",
            {**params, **({} if again == "null" else {"pause": LOOK_AFTER * 2.0 ** (doubt.looks - 1)})},
        )
        if rows and again == "null":
            yield event_row(doubt.id, "look_up", claim, "uncertain", told, dialect, dispatch=doubt.dispatch)
        return bool(rows)
    target, served = _MEANING[answer.found]
    assert "uncertain" in sources("look_up", target)
    left = yield Statement(
        "select count(*), count(case when state = 'pending' then 1 end), count(case when state = 'failed' then 1 end)"
        " from fencing_outbox_recipient where outbox_id = :id and state <> 'uncertain'",
        {"id": doubt.id},
    )
    _, pending, failed = left[0]
    # Recipients that were refused for now are served next, whatever became of the others.
    state: State = "pending" if pending or target == "pending" else "failed" if failed else target
    rows = yield Statement(
        "update fencing_outbox set state = :target, in_doubt = false, lookup_at = null, due_at = clock.at,"
        f" last_error = :told, updated_at = clock.at from {clock(dialect)} where {mine} returning id",
        {**params, "target": state, "told": None if state == "sent" else told},
    )
    if not rows:
        return False
    yield Statement(
        f"update fencing_outbox_recipient set state = :state, reply = :told, updated_at = {now(dialect)}"
        " where outbox_id = :id and state = 'uncertain'",
        {"id": doubt.id, "state": served, "told": told},
    )
    yield event_row(doubt.id, "look_up", claim, state, told, dialect, dispatch=doubt.dispatch)
    if state in FINISHED:
        yield from wake_plan([doubt.id], dialect)
    return True
