"""The guard that a pipeline need not wait for: PostgreSQL fails the statement itself where the law refuses.

What is queued behind a statement that failed is skipped by the server, and its transaction or savepoint is aborted. So
nobody has to know the verdict before more is sent. What refused stands in the error's message: as the input of a cast
that cannot succeed, in ASCII, which the server quotes as it is in every language and encoding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from adapters._tx import Statement, translate
from adapters.sql._marks import Tx, moved
from adapters.sql._postgresql import SAVED, TX, limits, lowering
from fencing._law import Mark, OnMissing, judge, reject
from fencing._token import Token
from fencing.errors import ContentionError, FencingError, SchemaMissingError

_SAID = re.compile(r"fencing refuses:([0-9a-f]+)")


def _refusing(facts: str) -> str:
    """An expression that fails and says what the JSON expression ``facts`` is."""
    return f"cast('fencing refuses:' || encode(convert_to(cast({facts} as text), 'UTF8'), 'hex') as boolean)"


@lru_cache(maxsize=64)
def _statements(schema: str | None, lock_timeout_ms: int | None) -> tuple[str, str, str]:
    """Raise one mark, several, or several that must be there; all of them, or fail."""
    prefix = f'"{schema}".' if schema else ""
    mark, floor = f"{prefix}fencing_mark", f"{prefix}fencing_floor"
    limited, restored = limits(lock_timeout_ms)
    if lock_timeout_ms is None:
        lower, restored_last = "''", "null"
    else:
        lower = lowering(lock_timeout_ms)
        restored_last = f"""set_config('lock_timeout',
            case when (select now from limited) is not null then {SAVED} end, true)"""
    into = "resource, issuer, lineage, value, holder, marked_at, since, raised, tx"
    row = f"""cast(:issuer as text), cast(:lineage as text), cast(:value as bigint), cast(:holder as text),
        clock_timestamp(), clock_timestamp(), 1, {TX}"""
    # Of the row itself, locked, as it is now: no snapshot of the statement's has a part in it.
    seen = (
        "json_build_array('mark', m.resource, m.issuer, m.lineage, m.value, m.holder, m.marked_at, clock_timestamp())"
    )
    passes = f"""case when m.issuer = cast(:issuer as text)
            and (m.value < cast(:value as bigint)
                or (m.value = cast(:value as bigint) and m.lineage = cast(:lineage as text)))
        then true else {_refusing(seen)} end"""
    upsert = f"""on conflict (resource) do update
        set lineage = excluded.lineage, value = excluded.value, holder = excluded.holder,
            marked_at = excluded.marked_at,
            since = case when m.value < excluded.value then excluded.since else m.since end,
            raised = m.raised + 1, tx = excluded.tx
        where {passes}"""
    of_issuer = "cast(cast(f.floors as jsonb) ->> cast(:issuer as text) as bigint)"
    # For a mark that this statement has made. A row that is locked is read as it is after the wait: a floor that was
    # raised since the statement began counts.
    floor_passes = f"""case when m.raised = 1 then coalesce((
            select case when coalesce({of_issuer}, 0) <= cast(:value as bigint) then true
                else {_refusing(f"json_build_array('floor', m.resource, {of_issuer})")} end
            from {floor} as f for share), {_refusing("json_build_array('no floor', m.resource)")}) end"""
    # What keeps a row from being written (a trigger, a policy) is no permission.
    all_written = f"""case when count(*) < {{}} then {_refusing("json_build_array('moved', count(*))")} end"""
    one = f"""with raised as (
            insert into {mark} as m ({into}) select cast(:resource as text), {row} where {limited}
            {upsert} returning {floor_passes}, {restored}
        ) select {all_written.format(1)} from raised"""
    names = "cast(:resources as text[])"
    several = f"""with limited as materialized (select {lower} as now), raised as (
            insert into {mark} as m ({into}) select n.resource, {row}
            from limited cross join unnest({names}) with ordinality as n (resource, place)
            order by n.place
            {upsert} returning {floor_passes} as passed
        ) select {all_written.format(f"cardinality({names})")}, count(passed), {restored_last} from raised"""
    missing = f"""json_build_array('floor',
        (select n.resource from unnest({names}) with ordinality as n (resource, place)
            where n.resource not in (select resource from raised) order by n.place limit 1),
        (select {of_issuer} from {floor} as f for share))"""
    # Judged are the rows that were locked and no others: a plan may ask a condition on the table itself of every mark
    # that there is, and this one fails.
    existing = f"""with limited as materialized (select {lower} as now), locked as materialized (
            select m.* from limited cross join {mark} as m
            where m.resource = any ({names})
            order by m.resource for update of m
        ), raised as (
            update {mark} as t
            set lineage = cast(:lineage as text), value = cast(:value as bigint), holder = cast(:holder as text),
                marked_at = clock_timestamp(), raised = m.raised + 1, tx = {TX},
                since = case when m.value < cast(:value as bigint) then clock_timestamp() else m.since end
            from locked as m where t.resource = m.resource and {passes}
            returning t.resource
        ) select case when count(*) < cardinality({names}) then {_refusing(missing)} end, {restored_last} from raised"""
    return one, several, existing


def late_guard(
    schema: str | None,
    lock_timeout_ms: int | None,
    resources: tuple[str, ...],
    token: Token,
    holder: str,
    on_missing: OnMissing,
) -> Statement:
    """Raise the marks, or fail; :func:`naming` says what a failure means."""
    one, several, existing = _statements(schema, lock_timeout_ms)
    params: dict[str, Any] = {
        "issuer": token.issuer,
        "lineage": token.lineage,
        "value": token.value,
        "holder": holder,
    }
    if on_missing == "create" and len(resources) == 1:
        return Statement(one, {**params, "resource": resources[0]})
    return Statement(several if on_missing == "create" else existing, {**params, "resources": list(resources)})


def naming(
    tx: Tx, resources: tuple[str, ...], token: Token, on_missing: OnMissing
) -> Callable[[BaseException], FencingError | None]:
    """Return what says which error of ours an error of the statement is; None for one that means nothing here."""

    def name(exc: BaseException) -> FencingError | None:
        said = _SAID.search(str(exc))
        if said is None:
            error = translate(exc, tx.downstream)
        else:
            try:
                _refuse(json.loads(bytes.fromhex(said[1])), resources, token, on_missing, tx.downstream)
            except FencingError as refusal:
                error = refusal
        if isinstance(error, ContentionError):
            error.resource, error.presented = error.resource or resources[0], token
        return error

    return name


def _refuse(
    facts: list[Any], resources: tuple[str, ...], token: Token, on_missing: OnMissing, downstream: str
) -> NoReturn:
    what, *rest = facts
    if what == "no floor":
        raise SchemaMissingError(
            f"{downstream}: fencing_floor has no row, so nothing says which marks were compacted; nothing was written. "
            "adapters.sql.create_all(bind) makes it with the table",
            downstream=downstream,
        )
    if what == "floor":
        resource, floor = rest[0], rest[1] or 0
        reject(judge(None, token, on_missing, floor), resource, token, None, downstream, floor)
    if what == "mark":
        resource, issuer, lineage, value, holder, at, now = rest
        since = datetime.fromisoformat(at)
        mark = Mark(Token(value, issuer, lineage), holder, since)
        reject(judge(mark.token, token), resource, token, mark, downstream, late=datetime.fromisoformat(now) - since)
    raise moved(downstream, resources)
