"""Which rows a relay takes: the statements of looking, claiming and renewing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adapters._tx import Plan, Statement
from adapters.email._claim import MINE, Claim, event_row
from adapters.email._order import wake_plan
from adapters.email._rescue import Rescued, rescue_plan
from adapters.email._sql import after, among, clock, from_database, ids, now, one_of
from adapters.email._states import HELD, UNFINISHED, Policy, in_states, sources, sql_list

INLINE_BYTES = 262_144
"""A message up to this size comes with the claim; a larger one is read when it is sent, so that a batch never fills
the memory."""


@dataclass(frozen=True, slots=True)
class Row:
    """A claimed row. ``recipients`` are those still to be served; ``message`` is None for a large one. ``sending``
    tells this message, and how often a person had it sent anew, from all others. ``expires_in``: seconds from the
    claim, or None. ``transport``: through which it was handed over last."""

    id: int
    key: str
    mail_from: str
    attempts: int
    message: bytes | None
    recipients: tuple[str, ...]
    failed_before: bool
    policy: Policy
    in_doubt: bool
    sending: str
    expires_in: float | None
    transport: str | None

    def provider_key(self) -> str:
        """The name of this sending to a provider; see :class:`~adapters.email._transport.Outgoing`."""
        return provider_key(self.sending, self.recipients)


def sending_of(number: int, key: str, generation: int, created_at: Any) -> str:
    """What tells a message, and how often a person had it sent anew, from all others: the same for every relay, in
    whatever time zone its session gives times."""
    return f"{number} {key} {generation} {from_database(created_at)}"


def provider_key(sending: str, recipients: tuple[str, ...]) -> str:
    """The name of a sending to these recipients, the same at every repetition: 64 hexadecimal digits."""
    return hashlib.sha256("\0".join((sending, *recipients)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Batch:
    """What one claim brought. ``doubtful``: may have been sent earlier, and may not be sent again. ``refused``: rows
    are due that this token may not take."""

    rows: tuple[Row, ...]
    expired: tuple[str, ...]
    doubtful: tuple[str, ...]
    rescued: tuple[Rescued, ...]
    refused: bool


# A claim needs a newer token than the row has seen, from the same issuer: a relay that drew its token, slept, and
# claims now is refused.
# An owner is missing where a person acted since: that opens the row to another issuer, the first one may be gone.
_ADMITTED = (
    "(o.token is null or (o.issuer = :issuer and o.token < :token) or (o.owner is null and o.issuer <> :issuer))"
)

# Of an order key only the oldest message that is not at its end. Those that wait for it are out of the index by then,
# all but a few (see _order.py), so this is asked about rows that are taken. The two
# columns are compared as one, so that the primary key is no way to answer it: that could read the whole table.
_TURN = (
    "(o.order_key is null or not exists (select 1 from fencing_outbox e where e.order_key = o.order_key"
    f" and e.order_key is not null and e.state in {sql_list(UNFINISHED)}"
    " and (e.order_key, e.id) < (o.order_key, o.id)))"
)

# From the claim, whose reading of the clock is in updated_at by then.
_EXPIRES_IN = {
    "postgresql": "cast(extract(epoch from expires_at - updated_at) as double precision)",
    "sqlite": "(julianday(expires_at) - julianday(updated_at)) * 86400",
}

# The priorities that have waiting rows, found by one index probe each: within a priority the index ends at the first
# row that is not due.
_LEVELS = """\
with recursive level(priority) as (
  select max(priority) from fencing_outbox where state = 'pending' and not waits
  union all
  select (select max(o.priority) from fencing_outbox o
          where o.state = 'pending' and not o.waits and o.priority < level.priority)
  from level where level.priority is not null
)"""


def work_plan(dialect: str) -> Plan[bool]:
    """Whether anything is due, or was left behind. A look that costs no token; the claim decides for itself."""
    # The least of each kind, not "does one exist": that is read at the end of an index whatever the statistics say.
    due = (
        "(select min(o.due_at) from fencing_outbox o"
        " where o.state = 'pending' and not o.waits and o.priority = level.priority)"
    )
    left = f"(select min(lease_until) from fencing_outbox where state in {sql_list(HELD)})"
    asked = "(select min(lookup_at) from fencing_outbox where state = 'uncertain')"
    present = now(dialect)
    rows = yield Statement(
        f"{_LEVELS} select exists(select 1 from level where {due} <= {present})"
        f" or coalesce({left} <= {present}, false) or coalesce({asked} <= {present}, false)"
    )
    return bool(rows[0][0])


def claim_plan(claim: Claim, batch: int, max_attempts: int, dialect: str, transport: str = "") -> Plan[Batch]:
    """Take up to ``batch`` due rows, after a bounded number of rows of relays that are gone was dealt with.

    A row in doubt whose provider knows its key is left to a relay with that ``transport``. One that expired, or whose
    provider forgot the key meanwhile, may not be sent again and is uncertain.
    """
    if dialect == "postgresql":
        # However common an order key is, reading the whole table is no way to find out about one message's turn.
        yield Statement("select set_config('enable_seqscan', 'off', true)")
    rescued = yield from rescue_plan(claim, batch, max_attempts, dialect)
    present = now(dialect)
    # Most rows are in no doubt: that is looked at first.
    ours = (
        "(not o.in_doubt or o.policy <> 'keyed' or o.key_until is null or o.transport = :transport"
        f" or o.key_until <= {present})"
    )
    admitted = f"{_ADMITTED} and {_TURN} and {ours}"
    if dialect == "postgresql":
        due = (
            f"{_LEVELS} select due.id from level cross join lateral (select o.id from fencing_outbox o"
            f" where o.state = 'pending' and not o.waits and o.priority = level.priority and o.due_at <= {present}"
            f" and {admitted}"
            " order by o.due_at, o.id limit :batch for update skip locked) as due"
            " where level.priority is not null limit :batch"
        )
        picked = f"id = any(array({due}))"
    else:
        picked = (
            "id in (select o.id from fencing_outbox o where o.state = 'pending' and not o.waits"
            f" and o.due_at <= {present} and {admitted} order by o.priority desc, o.due_at, o.id limit :batch)"
        )
    forgotten = "in_doubt and policy = 'keyed' and key_until <= clock.at"
    over = f"(coalesce(expires_at <= clock.at, false) or coalesce({forgotten}, false))"
    taken = yield Statement(
        "update fencing_outbox set"
        f" state = case when {over} and in_doubt then 'uncertain' when {over} then 'expired' else 'claimed' end,"
        f" lease_until = case when {over} then null else {after(dialect, 'lease')} end,"
        " owner = :owner, issuer = :issuer, lineage = :lineage, token = :token, updated_at = clock.at"
        f" from {clock(dialect)} where {picked} and {in_states(sources('claim', 'claimed'))}"
        " returning id, key, state, mail_from, attempts, case when size <= :inline then message end, priority, due_at,"
        f" policy, in_doubt, generation, created_at, {_EXPIRES_IN[dialect]}, transport",
        {**claim.params(), "lease": claim.lease, "batch": batch, "inline": INLINE_BYTES, "transport": transport},
    )
    taken.sort(key=lambda row: (-row[6], row[7], row[0]))
    expired = [row for row in taken if row[2] == "expired"]
    for row in expired:
        yield event_row(row[0], "claim", claim, "expired", "its expires_at passed before it was sent", dialect)
    yield from wake_plan([row[0] for row in expired], dialect)
    doubtful = [row for row in taken if row[2] == "uncertain"]
    for row in doubtful:
        yield Statement(
            f"update fencing_outbox_recipient set state = 'uncertain', updated_at = {present}"
            " where outbox_id = :id and state = 'pending'",
            {"id": row[0]},
        )
        why = "it may have been sent, and it is too late to send it again"
        yield event_row(row[0], "claim", claim, "uncertain", why, dialect)
    claimed = [row for row in taken if row[2] == "claimed"]
    recipients = yield from _recipients([row[0] for row in claimed], dialect)
    refused = len(taken) < batch and (yield from _any_refused(claim, dialect))
    return Batch(
        tuple(
            Row(
                id=row[0],
                key=row[1],
                mail_from=row[3],
                attempts=row[4],
                message=None if row[5] is None else bytes(row[5]),
                recipients=tuple(address for address, state in recipients[row[0]] if state == "pending"),
                failed_before=any(state == "failed" for _, state in recipients[row[0]]),
                policy=row[8],
                in_doubt=bool(row[9]),
                sending=sending_of(row[0], row[1], row[10], row[11]),
                expires_in=row[12],
                transport=row[13],
            )
            for row in claimed
        ),
        tuple(row[1] for row in expired),
        tuple(row[1] for row in doubtful),
        rescued,
        refused,
    )


def renew_plan(claim: Claim, dialect: str) -> Plan[int]:
    """Extend the lease of every row still held under the claim; returns how many. A row that was taken over is not
    among them."""
    # Rows that are being written at this moment are passed over: a hand-over extends its lease itself.
    mine = f"select id from fencing_outbox where state in {sql_list(HELD)} and {MINE}"
    rows = yield Statement(
        f"update fencing_outbox set lease_until = {after(dialect, 'lease')} from {clock(dialect)}"
        f" where {one_of(dialect, mine)} and {in_states(HELD)} and {MINE} returning id",
        {**claim.params(), "lease": claim.lease},
    )
    return len(rows)


def message_plan(number: int) -> Plan[bytes]:
    """Read the bytes of a large message. A row that is gone has none: the gate will say so."""
    rows = yield Statement("select message from fencing_outbox where id = :id", {"id": number})
    return bytes(rows[0][0]) if rows and rows[0][0] is not None else b""


def _recipients(numbers: Sequence[int], dialect: str) -> Plan[dict[int, list[tuple[str, str]]]]:
    found: dict[int, list[tuple[str, str]]] = {number: [] for number in numbers}
    if numbers:
        rows = yield Statement(
            "select outbox_id, address, state from fencing_outbox_recipient"
            f" where outbox_id {among(dialect, 'ids')} order by outbox_id, position",
            {"ids": ids(dialect, numbers)},
        )
        for number, address, state in rows:
            found[number].append((address, state))
    return found


def _any_refused(claim: Claim, dialect: str) -> Plan[bool]:
    """Whether rows are due that this token may not take. Looked for only when the claim came back with room left."""
    due = f"o.state = 'pending' and not o.waits and o.priority = level.priority and o.due_at <= {now(dialect)}"
    rows = yield Statement(
        f"{_LEVELS} select exists(select 1 from level where"
        f" (select o.id from fencing_outbox o where {due} and not {_ADMITTED} order by o.due_at limit 1) is not null)",
        {"issuer": claim.token.issuer, "token": claim.token.value},
    )
    return bool(rows[0][0])
