"""Marks as a person sees them: listed and explained, as plans that only read."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from adapters._tx import AsyncTx, Plan, Statement, SyncTx
from adapters.sql._dialect import Dialect
from adapters.sql._marks import mark_of, read_floors
from adapters.sql._options import Options
from fencing._explain import Explanation
from fencing._law import Mark
from fencing._refusals import Refusal, recent_refusals
from fencing._token import Token

Tx = SyncTx | AsyncTx
Act = tuple[datetime, str, str, dict[str, Any]]
"""When (database clock), who, why, and the facts."""


def listing(tx: Tx, options: Options, prefix: str, limit: int) -> Plan[list[tuple[str, Mark]]]:
    """The marks of resources whose names begin with ``prefix``, by name."""
    sql = options.dialect(tx.dialect)
    rows = yield Statement(sql.list_marks, {"prefix": prefix, "after": "", "limit": limit})
    return [(row[0], mark_of(sql, row)) for row in rows]


def explaining(tx: Tx, options: Options, resource: str) -> Plan[Explanation]:
    """What is known of a resource: the mark, since when, whom it refused, and what people did."""
    sql = options.dialect(tx.dialect)
    rows = yield Statement(sql.explain_one, {"resource": resource})
    acts = []
    if rows:
        acts.append(f"under this token since {sql.moment(rows[0][6])}; the mark was raised {rows[0][7]} times")
    floors = yield from read_floors(sql, sql.look_at_floors, tx.downstream)
    acts += [
        f"without a mark, tokens of {issuer} below {floor} are refused" for issuer, floor in sorted(floors.items())
    ]
    for at, actor, reason, detail in (yield from read_acts(sql, "adopt", resource)):
        before = f"{detail['issuer']}/{detail['lineage']}/{detail['value']}" if detail["issuer"] else "no mark"
        acts.append(f"{at} adopted by {actor}: {before} became {detail['to']}: {reason}")
    kept = [_refusal(tx, resource, *act) for act in (yield from read_acts(sql, "refused", resource))]
    known = kept or recent_refusals(resource, tx.downstream)
    mark = mark_of(sql, rows[0]) if rows else None
    return Explanation(tx.downstream, resource, mark, tuple(known), tuple(acts))


def read_acts(sql: Dialect, kind: str, resource: str | None, limit: int = 20) -> Plan[list[Act]]:
    """The newest acts of a kind, of one resource."""
    rows = yield Statement(sql.read_acts, {"kind": kind, "resource": resource, "limit": limit})
    return [(sql.moment(at), actor, reason, json.loads(detail)) for at, actor, reason, detail in rows]


def _refusal(tx: Tx, resource: str, at: datetime, presenter: str, _: str, detail: dict[str, Any]) -> Refusal:
    return Refusal(
        detail["kind"],
        tx.downstream,
        resource,
        Token.parse(detail["presented"]),
        presenter,
        detail["mark"] and Token.parse(detail["mark"]),
        detail["holder"],
        None if detail["late"] is None else timedelta(seconds=detail["late"]),
        at,
    )
