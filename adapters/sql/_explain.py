"""Marks as a person sees them: listed and explained, as plans that only read."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from adapters._tx import Plan, Statement
from adapters.sql._dialect import Dialect
from adapters.sql._marks import mark_of, read_floors
from fencing._explain import Explanation
from fencing._law import Mark
from fencing._refusals import Refusal, recent_refusals
from fencing._token import Token

Act = tuple[datetime, str, str, dict[str, Any]]
"""When (database clock), who, why, and the facts."""


def listing(sql: Dialect, prefix: str, limit: int) -> Plan[list[tuple[str, Mark]]]:
    """The marks of resources whose names begin with ``prefix``, by name."""
    rows = yield Statement(sql.list_marks, {"prefix": prefix, "after": "", "limit": limit})
    return [(row[0], mark_of(sql, row)) for row in rows]


def explaining(sql: Dialect, downstream: str, resource: str, in_row: Mark | None = None) -> Plan[Explanation]:
    """What is known of a resource: the mark, since when, whom it refused, and what people did.

    ``in_row``: the mark that stands in the data itself, before which one in ``fencing_mark`` does not count.
    """
    rows = yield Statement(sql.explain_one, {"resource": resource})
    acts = []
    if in_row is not None:
        acts.append("the mark is in the row itself, which says nothing of when it was set")
    elif rows:
        acts.append(f"under this token since {sql.moment(rows[0][6])}; the mark was raised {rows[0][7]} times")
    floors = yield from read_floors(sql, sql.look_at_floors, downstream)
    acts += [
        f"without a mark, tokens of {issuer} below {floor} are refused" for issuer, floor in sorted(floors.items())
    ]
    for at, actor, reason, detail in (yield from read_acts(sql, "adopt", resource)):
        before = f"{detail['issuer']}/{detail['lineage']}/{detail['value']}" if detail["issuer"] else "no mark"
        acts.append(f"{at} adopted by {actor}: {before} became {detail['to']}: {reason}")
    kept = [_refusal(downstream, resource, *act) for act in (yield from read_acts(sql, "refused", resource))]
    known = kept or recent_refusals(resource, downstream)
    mark = in_row or (mark_of(sql, rows[0]) if rows else None)
    return Explanation(downstream, resource, mark, tuple(known), tuple(acts))


def read_acts(
    sql: Dialect, kind: str, resource: str | None, limit: int = 20, *, decides: bool = False
) -> Plan[list[Act]]:
    """The newest acts of a kind, of one resource. ``decides``: as they are, whatever the transaction's snapshot."""
    # On PostgreSQL a stricter level meets the mark or the floor that came with such an act, which are locked.
    ending = " lock in share mode" if decides and sql.name == "mysql" else ""
    rows = yield Statement(sql.read_acts + ending, {"kind": kind, "resource": resource, "limit": limit})
    return [(sql.moment(at), actor, reason, json.loads(detail)) for at, actor, reason, detail in rows]


def _refusal(downstream: str, resource: str, at: datetime, presenter: str, _: str, detail: dict[str, Any]) -> Refusal:
    return Refusal(
        detail["kind"],
        downstream,
        resource,
        Token.parse(detail["presented"]),
        presenter,
        detail["mark"] and Token.parse(detail["mark"]),
        detail["holder"],
        None if detail["late"] is None else timedelta(seconds=detail["late"]),
        at,
    )
