"""Which rows a relay takes: the statements of looking, claiming, renewing and giving back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adapters._tx import Plan, Rows, Statement
from adapters.email._claim import MINE, Claim, event_row
from adapters.email._rescue import Rescued, rescue_plan
from adapters.email._sql import after, clock, in_list, now
from adapters.email._states import HELD, sources, sql_list

INLINE_BYTES = 262_144
"""A message up to this size comes with the claim; a larger one is read when it is sent, so that a batch never fills
the memory."""


@dataclass(frozen=True, slots=True)
class Row:
    """A claimed row. ``recipients`` are those still to be served; ``message`` is None for a large one."""

    id: int
    key: str
    mail_from: str
    attempts: int
    message: bytes | None
    recipients: tuple[str, ...]
    failed_before: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """What one claim brought. ``refused``: rows are due that this token may not take."""

    rows: tuple[Row, ...]
    expired: tuple[str, ...]
    rescued: tuple[Rescued, ...]
    refused: bool


# A claim needs a newer token than the row has seen, from the same issuer: a relay that drew its token, slept, and
# claims now is refused.
_ADMITTED = "(token is null or (issuer = :issuer and token < :token))"

# The priorities that have waiting rows, found by one index probe each: within a priority the index ends at the first
# row that is not due.
_LEVELS = """\
with recursive level(priority) as (
  select max(priority) from fencing_outbox where state = 'pending'
  union all
  select (select max(o.priority) from fencing_outbox o where o.state = 'pending' and o.priority < level.priority)
  from level where level.priority is not null
)"""


def work_plan(dialect: str) -> Plan[bool]:
    """Whether anything is due, or was left behind. A look that costs no token; the claim decides for itself."""
    # The least of each kind, not "does one exist": that is read at the end of an index whatever the statistics say.
    due = "(select min(o.due_at) from fencing_outbox o where o.state = 'pending' and o.priority = level.priority)"
    left = f"(select min(lease_until) from fencing_outbox where state in {sql_list(HELD)})"
    rows = yield Statement(
        f"{_LEVELS} select exists(select 1 from level where {due} <= {now(dialect)}) or {left} <= {now(dialect)}"
    )
    return bool(rows[0][0])


def claim_plan(claim: Claim, batch: int, max_attempts: int, dialect: str) -> Plan[Batch]:
    """Take up to ``batch`` due rows, after a bounded number of rows of relays that are gone was dealt with."""
    rescued = yield from rescue_plan(claim, batch, max_attempts, dialect)
    if dialect == "postgresql":
        due = (
            f"{_LEVELS} select due.id from level cross join lateral (select o.id from fencing_outbox o"
            f" where o.state = 'pending' and o.priority = level.priority and o.due_at <= {now(dialect)} and {_ADMITTED}"
            " order by o.due_at, o.id limit :batch for update skip locked) as due"
            " where level.priority is not null limit :batch"
        )
        picked = f"id = any(array({due}))"
    else:
        picked = (
            f"id in (select id from fencing_outbox where state = 'pending' and due_at <= {now(dialect)} and {_ADMITTED}"
            " order by priority desc, due_at, id limit :batch)"
        )
    taken = yield Statement(
        "update fencing_outbox set"
        " state = case when expires_at <= clock.at then 'expired' else 'claimed' end,"
        f" lease_until = case when expires_at <= clock.at then null else {after(dialect, 'lease')} end,"
        " owner = :owner, issuer = :issuer, lineage = :lineage, token = :token, updated_at = clock.at"
        f" from {clock(dialect)} where {picked} and state in {sql_list(sources('claim', 'claimed'))}"
        " returning id, key, state, mail_from, attempts, case when size <= :inline then message end, priority, due_at",
        {**claim.params(), "lease": claim.lease, "batch": batch, "inline": INLINE_BYTES},
    )
    taken.sort(key=lambda row: (-row[6], row[7], row[0]))
    expired = [row for row in taken if row[2] == "expired"]
    for row in expired:
        yield event_row(row[0], "claim", claim, "expired", "its expires_at passed before it was sent", dialect)
    claimed = [row for row in taken if row[2] == "claimed"]
    recipients = yield from _recipients([row[0] for row in claimed])
    refused = len(taken) < batch and (yield from _any_refused(claim, dialect))
    return Batch(
        tuple(
            Row(
                id=row[0],
                key=row[1],
                mail_from=row[3],
                attempts=row[4],
                message=None if row[5] is None else bytes(row[5]),
                recipients=tuple(
                    address for number, address, state in recipients if number == row[0] and state == "pending"
                ),
                failed_before=any(number == row[0] and state == "failed" for number, _, state in recipients),
            )
            for row in claimed
        ),
        tuple(row[1] for row in expired),
        rescued,
        refused,
    )


def renew_plan(claim: Claim, dialect: str) -> Plan[int]:
    """Extend the lease of every row still held under the claim; returns how many. A row that was taken over is not
    among them."""
    rows = yield Statement(
        f"update fencing_outbox set lease_until = {after(dialect, 'lease')} from {clock(dialect)}"
        f" where state in {sql_list(HELD)} and {MINE} returning id",
        {**claim.params(), "lease": claim.lease},
    )
    return len(rows)


def release_plan(claim: Claim, numbers: Sequence[int], dialect: str) -> Plan[int]:
    """Give rows back that were not begun; no attempt is counted. Returns how many were still held."""
    listed, params = in_list("id", numbers)
    rows = yield Statement(
        f"update fencing_outbox set state = 'pending', lease_until = null, updated_at = clock.at from {clock(dialect)}"
        f" where id in {listed} and state in {sql_list(sources('release', 'pending'))} and {MINE} returning id",
        {**claim.params(), **params},
    )
    return len(rows)


def message_plan(number: int) -> Plan[bytes]:
    """Read the bytes of a large message."""
    rows = yield Statement("select message from fencing_outbox where id = :id", {"id": number})
    return bytes(rows[0][0])


def _recipients(numbers: Sequence[int]) -> Plan[Rows]:
    if not numbers:
        return []
    listed, params = in_list("id", numbers)
    rows = yield Statement(
        f"select outbox_id, address, state from fencing_outbox_recipient where outbox_id in {listed}"
        " order by outbox_id, position",
        params,
    )
    return rows


def _any_refused(claim: Claim, dialect: str) -> Plan[bool]:
    """Whether rows are due that this token may not take. Looked for only when the claim came back with room left."""
    due = f"o.state = 'pending' and o.priority = level.priority and o.due_at <= {now(dialect)}"
    rows = yield Statement(
        f"{_LEVELS} select exists(select 1 from level where"
        f" (select o.id from fencing_outbox o where {due} and not {_ADMITTED} order by o.due_at limit 1) is not null)",
        {"issuer": claim.token.issuer, "token": claim.token.value},
    )
    return bool(rows[0][0])
