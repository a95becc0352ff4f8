"""What an operator should know about an outbox."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from sqlalchemy import Connection, Engine

from adapters._tx import Plan, Statement, SyncTx, run, transaction_of
from adapters.email._sql import TABLES, check_dialect, from_database, now
from adapters.email._states import HELD, OPEN, WAITING_PARTS, of_parts, sql_list
from fencing import Finding
from fencing.errors import SchemaMissingError

LATE_SECONDS = 900.0
"""A message that is due for longer: no relay runs, or the mail server takes nothing."""


def diagnose(bind: Engine | Connection) -> Iterable[Finding]:
    """Look at the outbox behind ``bind``: tables, uncertain rows, the oldest due one, relays that are gone, tokens
    without an order."""
    if isinstance(bind, Engine):
        with bind.connect() as connection:
            return diagnose(connection)
    tx = cast(SyncTx, transaction_of(bind, read_only=True, tables=TABLES))
    place = f"{tx.downstream}, outbox"
    try:
        check_dialect(tx.dialect)
    except TypeError as exc:
        return [Finding("outbox.tables", "broken", place, str(exc), "no message can be put or sent", "move it there")]
    try:
        facts = run(diagnose_plan(tx.dialect), tx)
    except SchemaMissingError as exc:
        return [Finding("outbox.tables", "broken", place, str(exc), "no message can be put or sent", f"run {TABLES}")]
    return [
        Finding("outbox.tables", "ok", place, "the tables are there"),
        _uncertain(place, facts),
        _waiting(place, facts),
        _abandoned(place, facts),
        _issuers(place, facts),
    ]


@dataclass(frozen=True, slots=True)
class _Facts:
    uncertain: int
    due: int
    waited: float
    abandoned: int
    issuers: tuple[str, ...]


def diagnose_plan(dialect: str) -> Plan[_Facts]:
    """The figures, from the partial indexes: what was sent is not read."""
    present = now(dialect)
    ((uncertain,),) = yield Statement("select count(*) from fencing_outbox where state = 'uncertain'")
    ((due, oldest, at),) = yield Statement(
        f"select count(*), min(due_at), {present} from fencing_outbox where {OPEN} and due_at <= {present}"
    )
    ((abandoned,),) = yield Statement(
        f"select count(*) from fencing_outbox where state in {sql_list(HELD)} and lease_until <= {present}"
    )
    issuers = yield Statement(
        f"select distinct issuer from ({of_parts('issuer', WAITING_PARTS)}) as waiting where issuer is not null"
    )
    since, looked = from_database(oldest), from_database(at)
    waited = (looked - since).total_seconds() if since and looked else 0.0
    return _Facts(uncertain, due, waited, abandoned, tuple(sorted(row[0] for row in issuers)))


def _uncertain(place: str, facts: _Facts) -> Finding:
    if not facts.uncertain:
        return Finding("outbox.uncertain", "ok", place, "of every message it is known whether it was sent")
    return Finding(
        "outbox.uncertain",
        "warning",
        place,
        f"{facts.uncertain} messages may or may not have been sent",
        "the policy hold keeps them back rather than send them twice, so some may never arrive",
        "find out at the mail server (by message_id) whether each was delivered",
    )


def _waiting(place: str, facts: _Facts) -> Finding:
    if facts.waited <= LATE_SECONDS:
        return Finding("outbox.due", "ok", place, f"{facts.due} messages are due, the oldest for {facts.waited:.0f} s")
    return Finding(
        "outbox.due",
        "warning",
        place,
        f"{facts.due} messages are due, the oldest for {facts.waited:.0f} s",
        "committed mail leaves late",
        "see that a relay runs, that it reaches the mail server, and that its tokens come from the issuer named below",
    )


def _abandoned(place: str, facts: _Facts) -> Finding:
    if not facts.abandoned:
        return Finding("outbox.leases", "ok", place, "no message is held by a relay that is gone")
    return Finding(
        "outbox.leases",
        "warning",
        place,
        f"{facts.abandoned} messages are held by a relay whose lease is over",
        "they wait, or are not yet shown as uncertain, until a relay runs",
        "start a relay",
    )


def _issuers(place: str, facts: _Facts) -> Finding:
    if len(facts.issuers) <= 1:
        named = facts.issuers[0] if facts.issuers else "none yet"
        return Finding("outbox.issuer", "ok", place, f"waiting messages were claimed under one issuer at most: {named}")
    return Finding(
        "outbox.issuer",
        "broken",
        place,
        f"waiting messages were claimed under several issuers: {', '.join(facts.issuers)}",
        "tokens of two issuers have no order, so a relay leaves the other's messages alone",
        "run a relay with each issuer until its messages are sent; if one is gone for good, cancel and requeue them",
    )
