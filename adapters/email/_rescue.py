"""Cleaning up after relays that are gone."""

from __future__ import annotations

from dataclasses import dataclass

from adapters._tx import Plan, Statement
from adapters.email._claim import Claim, event_row
from adapters.email._order import wake_plan
from adapters.email._outcome import LOOK_AFTER
from adapters.email._sql import after, clock, now, one_of
from adapters.email._states import HELD, in_states, sql_list


@dataclass(frozen=True, slots=True)
class Rescued:
    """A row whose relay's lease was over: what became of it."""

    id: int
    key: str
    state: str


# Which messages in doubt their policy sends again by itself, as long as there are attempts. Whether the provider still
# compares the key is decided once more at the claim and before the hand-over.
_RESENT = "(policy = 'resend' or policy = 'keyed' and key_until > clock.at) and attempts + 1 < :max_attempts"


def rescue_plan(claim: Claim, batch: int, max_attempts: int, dialect: str) -> Plan[tuple[Rescued, ...]]:
    """Deal with rows whose lease is over: what was not handed over is tried again, of the rest nobody knows, and its
    policy decides.

    The end of the lease by the database's clock is all that counts: nothing is sent by this. It counts as an attempt,
    so that a message that kills its relay each time comes to an end.
    """
    left = (
        f"select id from fencing_outbox where state in {sql_list(HELD)} and lease_until <= {now(dialect)}"
        " order by lease_until limit :batch"
    )
    found = yield Statement(
        f"update fencing_outbox set state = case when state = 'dispatching' and {_RESENT} then 'pending'"
        " when state = 'dispatching' then 'uncertain' when attempts + 1 < :max_attempts then 'pending'"
        " when in_doubt then 'uncertain' else 'failed' end,"
        " in_doubt = in_doubt or state = 'dispatching',"
        " lookup_at = case when state = 'dispatching' and policy = 'reconcile'"
        f" then {after(dialect, 'look_after')} end,"
        " last_error = 'the relay ' || owner || case when state = 'dispatching' then :after_gate else :before_gate end,"
        f" attempts = attempts + 1, lease_until = null, updated_at = clock.at from {clock(dialect)}"
        f" where {one_of(dialect, left)} and {in_states(HELD)} returning id, key, state, last_error",
        {
            "batch": batch,
            "max_attempts": max_attempts,
            "look_after": LOOK_AFTER,
            "after_gate": " was gone after it began to hand over: it may or may not have been sent",
            "before_gate": " was gone before it handed anything over",
        },
    )
    for number, _, state, why in found:
        if state in _UNSERVED:
            yield Statement(
                f"update fencing_outbox_recipient set state = :state, updated_at = {now(dialect)}"
                f" where outbox_id = :id and state = 'pending'{_UNSERVED[state]}",
                {"id": number, "state": state},
            )
        yield event_row(number, "rescue", claim, state, why, dialect)
    yield from wake_plan([number for number, _, state, _ in found if state == "failed"], dialect)
    return tuple(Rescued(number, key, state) for number, key, state, _ in found)


# Which waiting recipients share the fate of their row. Of those that the last dispatch had deferred it is known that
# they got nothing.
_UNSERVED = {
    "failed": "",
    "uncertain": " and (deferred_by is null or deferred_by <> (select dispatch from fencing_outbox where id = :id))",
}
