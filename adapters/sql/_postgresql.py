"""The statements for PostgreSQL 13 and newer."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any

from adapters.sql._dialect import Dialect

TX = "cast(cast(pg_current_xact_id() as text) as bigint)"
"""The transaction, also inside its savepoints. Numbers are not used again in the life of a cluster."""
SAVED = "current_setting('fencing.lock_timeout')"
"""The lock timeout as it was before :func:`lowering`."""
RESTORING = f"set_config('lock_timeout', {SAVED}, true)"


def lowering(milliseconds: int) -> str:
    """An expression that lowers the lock timeout and is never null; a caller's stricter one stays.

    The inner call saves the caller's value, and its result is the value, so that saving comes first for certain.
    """
    return f"""set_config('lock_timeout', case
            when set_config('fencing.lock_timeout', current_setting('lock_timeout'), true) = '0'
                or cast(current_setting('lock_timeout') as interval) > interval '{milliseconds} milliseconds'
            then '{milliseconds}ms' else current_setting('lock_timeout') end, true)"""


def limits(milliseconds: int | None) -> tuple[str, str]:
    """A condition that is evaluated once, before the rows of its statement, and what takes its effect back.

    The latter is for RETURNING, which comes after the last wait, and is never null. With no row nothing is taken back.
    """
    if milliseconds is None:
        return "true", "text ''"
    return f"(select {lowering(milliseconds)}) is not null", RESTORING


def move(schema: str | None, lock_timeout_ms: int | None) -> str:
    """The UPDATE that raises a mark that is there, as part of a statement; one row if it did."""
    mark = f'"{schema}".fencing_mark' if schema else "fencing_mark"
    limited, restored = limits(lock_timeout_ms)
    return f"""update {mark} as m
        set lineage = cast(:fencing_lineage as text), value = cast(:fencing_value as bigint),
            holder = cast(:fencing_holder as text), marked_at = clock_timestamp(), raised = m.raised + 1, tx = {TX},
            since = case when m.value < cast(:fencing_value as bigint) then clock_timestamp() else m.since end
        where {limited}
            and m.resource = cast(:fencing_resource as text) and m.issuer = cast(:fencing_issuer as text)
            and (m.value < cast(:fencing_value as bigint)
                or (m.value = cast(:fencing_value as bigint) and m.lineage = cast(:fencing_lineage as text)))
        returning {restored} as restored"""


@lru_cache(maxsize=64)
def postgresql(schema: str | None, lock_timeout_ms: int | None) -> Dialect:
    """Build the statements. ``lock_timeout_ms`` bounds each wait for a row; None leaves the caller's own setting alone.

    The bound is set and taken back inside the statement that waits: no round trip of its own, and the caller's setting
    is as it was afterwards. A caller's stricter setting stays. If the statement fails, its (sub)transaction takes the
    setting back.
    """
    prefix = f'"{schema}".' if schema else ""
    mark, applied = f"{prefix}fencing_mark", f"{prefix}fencing_applied"
    floor, act, horizon = f"{prefix}fencing_floor", f"{prefix}fencing_act", f"{prefix}fencing_horizon"
    if lock_timeout_ms is None:
        lower, restore, restore_last = "''", "null", "null"
    else:
        lower, restore = lowering(lock_timeout_ms), RESTORING
        # Asks for "limited" first: with no row to wait for, nothing else would have, and there were nothing saved.
        restore_last = f"""set_config('lock_timeout',
            case when (select now from limited) is not null then {SAVED} end, true)"""

    token = """cast(:issuer as text), cast(:lineage as text), cast(:value as bigint), cast(:holder as text),
        clock_timestamp()"""
    row = f"{token}, clock_timestamp(), 1, {TX}"
    upsert = """on conflict (resource) do update
        set lineage = excluded.lineage, value = excluded.value, holder = excluded.holder,
            marked_at = excluded.marked_at,
            since = case when m.value < excluded.value then excluded.since else m.since end,
            raised = m.raised + 1, tx = excluded.tx
        where m.issuer = excluded.issuer
            and (m.value < excluded.value or (m.value = excluded.value and m.lineage = excluded.lineage))"""
    columns = "resource, issuer, lineage, value, holder, marked_at"
    into = f"{columns}, since, raised, tx"
    made = "(m.raised = 1)::int"
    restored_made = made if restore == "null" else f"case when {restore} is not null then {made} end"
    taken_over = f"""select from {act} as a where a.kind = 'adopt' and a.resource = m.resource
        and (a.detail::jsonb ->> 'value')::bigint
            >= coalesce((select (f.floors::jsonb ->> (a.detail::jsonb ->> 'issuer'))::bigint from {floor} as f), 0)"""
    return Dialect(
        name="postgresql",
        # Refused, it returns no row and so takes nothing back: read_refused does.
        raise_one=f"""insert into {mark} as m ({into})
            select cast(:resource as text), {row} where {lower} is not null
            {upsert} returning 1, {restored_made}""",
        # The count makes the last expression come after the last row, and so after the last wait.
        raise_many=f"""with limited as materialized (select {lower} as now), raised as (
                insert into {mark} as m ({into})
                select n.resource, {row}
                from limited cross join unnest(cast(:resources as text[])) with ordinality as n (resource, place)
                order by n.place
                {upsert} returning {made} as made
            ) select count(*), coalesce(sum(made), 0), {restore_last} from raised""",
        raise_existing=f"""with limited as materialized (select {lower} as now), locked as materialized (
                select m.resource from limited cross join {mark} as m
                where m.resource = any (cast(:resources as text[]))
                order by m.resource for update of m
            ), raised as (
                update {mark} as m
                set lineage = cast(:lineage as text), value = cast(:value as bigint), holder = cast(:holder as text),
                    marked_at = clock_timestamp(), raised = m.raised + 1, tx = {TX},
                    since = case when m.value < cast(:value as bigint) then clock_timestamp() else m.since end
                from locked as l
                where m.resource = l.resource and m.issuer = cast(:issuer as text)
                    and (m.value < cast(:value as bigint)
                        or (m.value = cast(:value as bigint) and m.lineage = cast(:lineage as text)))
                returning 1
            ) select count(*), 0, {restore_last} from raised""",
        read_one=f"select {columns} from {mark} where resource = cast(:resource as text)",
        read_refused=f"""select {columns}, clock_timestamp(), raised, {restore} from {mark}
            where resource = any (cast(:resources as text[]))""",
        unmake_one=f"delete from {mark} where resource = cast(:resource as text)",
        # A new statement sees the floor that was committed while the one before it waited; FOR SHARE keeps it.
        read_floors=f"select floors from {floor} for share",
        look_at_floors=f"select floors from {floor}",
        queue_for_floors=f"lock table {floor} in exclusive mode",
        lock_floors=f"select floors from {floor} for update",
        store_floors=f"update {floor} set floors = cast(:floors as text)",
        # A mark that is locked is in use. A holder may wait for the floor's row: waiting for him would be a deadlock.
        compact=f"""delete from {mark} where resource = any (array(
                select m.resource from {mark} as m
                where m.issuer = cast(:issuer as text) and m.value < cast(:floor as bigint)
                    and m.marked_at <= clock_timestamp() - make_interval(secs => cast(:idle as double precision))
                    and not exists ({taken_over})
                for update of m skip locked
            )) returning resource""",
        adopt=f"""insert into {mark} as m ({into}) select cast(:resource as text), {token}, clock_timestamp(), 1, null
            on conflict (resource) do update set issuer = excluded.issuer, lineage = excluded.lineage,
                value = excluded.value, holder = excluded.holder, marked_at = excluded.marked_at,
                since = excluded.since, raised = m.raised + 1, tx = null""",
        list_marks=f"""select {columns} from {mark}
            where resource > cast(:after as text) and starts_with(resource, cast(:prefix as text))
            order by resource limit cast(:limit as integer)""",
        explain_one=f"select {columns}, since, raised from {mark} where resource = cast(:resource as text)",
        insert_act=f"""insert into {act} (kind, resource, actor, reason, detail, at, tx)
            select cast(:kind as text), cast(:resource as text), cast(:actor as text), cast(:reason as text),
                cast(:detail as text), clock_timestamp(), {TX}""",
        read_acts=f"""select at, actor, reason, detail from {act}
            where kind = cast(:kind as text) and (cast(:resource as text) is null or resource = cast(:resource as text))
            order by id desc limit cast(:limit as integer)""",
        open_unfenced=f"""insert into {act} (kind, actor, reason, detail, at, tx)
            select 'unfenced', cast(:actor as text), cast(:reason as text), '{{}}', clock_timestamp(), {TX}""",
        close_unfenced=f"""update {act} set ended_at = clock_timestamp()
            where kind = 'unfenced' and tx = {TX} and ended_at is null""",
        claim_key=f"""insert into {applied} (key, fingerprint, began_at, issuer, lineage, value, holder, applied_at)
            select cast(:key as text), cast(:fingerprint as text), cast(:began as timestamptz), {token}
            where {lower} is not null
            on conflict (key) do nothing returning 1, {restore}""",
        # Under READ COMMITTED a new statement sees what was committed before, and no lock makes writers take turns with
        # purges; under a stricter level only a lock notices that the row has changed since the snapshot.
        read_horizon=f"""with kept as materialized (
                select horizon from {horizon}
                where current_setting('transaction_isolation') <> 'read committed' for share
            ) select horizon from kept union all
            select horizon from {horizon} where current_setting('transaction_isolation') = 'read committed'""",
        read_applied=f"select fingerprint, result, {restore} from {applied} where key = cast(:key as text)",
        store_result=f"""update {applied} set result = cast(:result as text) where key = cast(:key as text)
            returning 1""",
        show_applied=f"""select fingerprint, result, issuer, lineage, value, holder, applied_at, began_at from {applied}
            where key = cast(:key as text)""",
        look_at_horizon=f"select horizon, clock_timestamp() from {horizon}",
        lock_horizon=f"select horizon, clock_timestamp() from {horizon} for update",
        store_horizon=f"update {horizon} set horizon = cast(:horizon as timestamptz)",
        page_applied=f"""select max(key), count(*) from (
                select key from {applied} where key > cast(:after as text) order by key limit cast(:batch as bigint)
            ) page""",
        purge_applied=f"""delete from {applied}
            where key > cast(:after as text) and key <= cast(:last as text) and {_OLD} returning 1""",
        remove_applied="",
        count_applied=f"select count(*) filter (where {_OLD}), count(*) from {applied}",
        names=list,
        moment=_moment,
        written=_written,
    )


def _moment(value: Any) -> datetime:
    moment: datetime = value
    return moment


def _written(value: datetime | None) -> datetime | None:
    return value


_OLD = """applied_at < cast(:applied as timestamptz)
    and (began_at is null or began_at < cast(:before as timestamptz))"""
