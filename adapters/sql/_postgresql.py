"""The statements for PostgreSQL 13 and newer."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any

from adapters.sql._dialect import Dialect

_SAVED = "'fencing.lock_timeout'"


@lru_cache(maxsize=64)
def postgresql(schema: str | None, lock_timeout_ms: int | None) -> Dialect:
    """Build the statements. ``lock_timeout_ms`` bounds each wait for a row; None leaves the caller's own setting alone.

    The bound is set and taken back inside the statement that waits: no round trip of its own, and the caller's setting
    is as it was afterwards. A caller's stricter setting stays. If the statement fails, its (sub)transaction takes the
    setting back.
    """
    prefix = f'"{schema}".' if schema else ""
    mark, applied = f"{prefix}fencing_mark", f"{prefix}fencing_applied"
    if lock_timeout_ms is None:
        lower, restore, restore_last = "''", "null", "null"
    else:
        # The inner call saves the caller's value, and its result is the value, so that saving comes first for certain.
        lower = f"""set_config('lock_timeout', case
            when set_config({_SAVED}, current_setting('lock_timeout'), true) = '0'
                or cast(current_setting('lock_timeout') as interval) > interval '{lock_timeout_ms} milliseconds'
            then '{lock_timeout_ms}ms' else current_setting('lock_timeout') end, true)"""
        restore = f"set_config('lock_timeout', current_setting({_SAVED}), true)"
        # Asks for "limited" first: with no row to wait for, nothing else would have, and there were nothing saved.
        restore_last = f"""set_config('lock_timeout',
            case when (select now from limited) is not null then current_setting({_SAVED}) end, true)"""

    token = """cast(:issuer as text), cast(:lineage as text), cast(:value as bigint), cast(:holder as text),
        clock_timestamp()"""
    upsert = """on conflict (resource) do update
        set lineage = excluded.lineage, value = excluded.value, holder = excluded.holder, marked_at = excluded.marked_at
        where m.issuer = excluded.issuer
            and (m.value < excluded.value or (m.value = excluded.value and m.lineage = excluded.lineage))"""
    columns = "resource, issuer, lineage, value, holder, marked_at"
    return Dialect(
        name="postgresql",
        # Refused, it returns no row and so takes nothing back: read_refused does.
        raise_one=f"""insert into {mark} as m ({columns})
            select cast(:resource as text), {token} where {lower} is not null
            {upsert} returning 1, {restore}""",
        # The count makes the last expression come after the last row, and so after the last wait.
        raise_many=f"""with limited as materialized (select {lower} as now), raised as (
                insert into {mark} as m ({columns})
                select n.resource, {token}
                from limited cross join unnest(cast(:resources as text[])) with ordinality as n (resource, place)
                order by n.place
                {upsert} returning 1
            ) select count(*), {restore_last} from raised""",
        raise_existing=f"""with limited as materialized (select {lower} as now), locked as materialized (
                select m.resource from limited cross join {mark} as m
                where m.resource = any (cast(:resources as text[]))
                order by m.resource for update of m
            ), raised as (
                update {mark} as m
                set lineage = cast(:lineage as text), value = cast(:value as bigint), holder = cast(:holder as text),
                    marked_at = clock_timestamp()
                from locked as l
                where m.resource = l.resource and m.issuer = cast(:issuer as text)
                    and (m.value < cast(:value as bigint)
                        or (m.value = cast(:value as bigint) and m.lineage = cast(:lineage as text)))
                returning 1
            ) select count(*), {restore_last} from raised""",
        read_one=f"select {columns} from {mark} where resource = cast(:resource as text)",
        read_refused=f"""select {columns}, {restore} from {mark}
            where resource = any (cast(:resources as text[]))""",
        claim_key=f"""insert into {applied} (key, fingerprint, issuer, lineage, value, holder, applied_at)
            select cast(:key as text), cast(:fingerprint as text), {token} where {lower} is not null
            on conflict (key) do nothing returning 1, {restore}""",
        read_applied=f"select fingerprint, result, {restore} from {applied} where key = cast(:key as text)",
        store_result=f"update {applied} set result = cast(:result as text) where key = cast(:key as text)",
        names=list,
        moment=_moment,
    )


def _moment(value: Any) -> datetime:
    moment: datetime = value
    return moment
