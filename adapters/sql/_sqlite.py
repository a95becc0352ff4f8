"""The statements for SQLite 3.35 and newer."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from adapters.sql._dialect import Dialect

_NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now')"


@lru_cache(maxsize=64)
def sqlite(schema: str | None, lock_timeout_ms: int | None) -> Dialect:
    """Build the statements. ``schema`` is the name of an attached database.

    There are no row locks: each statement that writes holds the database's one write lock, and the plan bounds the
    wait for it.
    """
    prefix = f'"{schema}".' if schema else ""
    mark, applied = f"{prefix}fencing_mark", f"{prefix}fencing_applied"
    floor, act, horizon = f"{prefix}fencing_floor", f"{prefix}fencing_act", f"{prefix}fencing_horizon"
    columns = "resource, issuer, lineage, value, holder, marked_at"
    token = f":issuer, :lineage, :value, :holder, {_NOW}"
    # Set only where a trigger asks for it: the commit takes it back, with a statement of its own.
    asked = f"(select protecting from {floor})"
    row = f"{token}, {_NOW}, 1, {asked}"
    into = f"{columns}, since, raised, tx"
    upsert = """on conflict (resource) do update
        set lineage = excluded.lineage, value = excluded.value, holder = excluded.holder,
            marked_at = excluded.marked_at,
            since = case when m.value < excluded.value then excluded.since else m.since end,
            raised = m.raised + 1, tx = excluded.tx
        where m.issuer = excluded.issuer
            and (m.value < excluded.value or (m.value = excluded.value and m.lineage = excluded.lineage))
        returning 1, raised = 1, tx, resource"""
    taken_over = f"""select 1 from {act} as a where a.kind = 'adopt' and a.resource = m.resource
        and json_extract(a.detail, '$.value') >= coalesce((select json_extract(f.floors,
            '$."' || json_extract(a.detail, '$.issuer') || '"') from {floor} as f), 0)"""
    among = "in (select value from json_each(:resources))"
    return Dialect(
        name="sqlite",
        raise_one=f"insert into {mark} as m ({into}) values (:resource, {row}) {upsert}",
        # "where true": without it the parser takes "on conflict" for the condition of a join.
        raise_many=f"""insert into {mark} as m ({into})
            select n.value, {row} from json_each(:resources) as n where true {upsert}""",
        raise_existing=f"""update {mark} set lineage = :lineage, value = :value, holder = :holder, marked_at = {_NOW},
                since = case when value < :value then {_NOW} else since end, raised = raised + 1, tx = {asked}
            where resource {among} and issuer = :issuer
                and (value < :value or (value = :value and lineage = :lineage))
            returning 1, 0, tx, resource""",
        read_one=f"select {columns} from {mark} where resource = :resource",
        read_refused=f"select {columns}, {_NOW}, raised from {mark} where resource {among}",
        unmake_one=f"delete from {mark} where resource = :resource",
        read_floors=f"select floors from {floor}",
        look_at_floors=f"select floors from {floor}",
        queue_for_floors="",
        lock_floors=f"select floors from {floor}",
        store_floors=f"update {floor} set floors = :floors",
        compact=f"""delete from {mark} as m where m.issuer = :issuer and m.value < :floor
                and m.marked_at <= strftime('%Y-%m-%d %H:%M:%f', 'now', '-' || :idle || ' seconds')
                and not exists ({taken_over})
            returning resource""",
        adopt=f"""insert into {mark} as m ({into}) values (:resource, {token}, {_NOW}, 1, null)
            on conflict (resource) do update set issuer = excluded.issuer, lineage = excluded.lineage,
                value = excluded.value, holder = excluded.holder, marked_at = excluded.marked_at,
                since = excluded.since, raised = m.raised + 1, tx = null""",
        list_marks=f"""select {columns} from {mark}
            where resource > :after and substr(resource, 1, length(:prefix)) = :prefix
            order by resource limit :limit""",
        explain_one=f"select {columns}, since, raised from {mark} where resource = :resource",
        insert_act=f"""insert into {act} (kind, resource, actor, reason, detail, at)
            values (:kind, :resource, :actor, :reason, :detail, {_NOW})""",
        read_acts=f"""select at, actor, reason, detail from {act}
            where kind = :kind and (:resource is null or resource = :resource) order by id desc limit :limit""",
        open_unfenced=f"""insert into {act} (kind, actor, reason, detail, at, tx)
            values ('unfenced', :actor, :reason, '{{}}', {_NOW}, 1)""",
        close_unfenced=f"""update {act} set ended_at = {_NOW}, tx = null where kind = 'unfenced' and tx = 1""",
        claim_key=f"""insert into {applied} ("key", fingerprint, began_at, issuer, lineage, value, holder, applied_at)
            values (:key, :fingerprint, :began, {token}) on conflict ("key") do nothing returning 1""",
        read_horizon=f"select horizon from {horizon}",
        read_applied=f'select fingerprint, result from {applied} where "key" = :key',
        store_result=f'update {applied} set result = :result where "key" = :key returning 1',
        show_applied=f"""select fingerprint, result, issuer, lineage, value, holder, applied_at, began_at from {applied}
            where "key" = :key""",
        look_at_horizon=f"select horizon, {_NOW} from {horizon}",
        lock_horizon=f"select horizon, {_NOW} from {horizon}",
        store_horizon=f"update {horizon} set horizon = :horizon",
        page_applied=f"""select max("key"), count(*) from (
                select "key" from {applied} where "key" > :after order by "key" limit :batch
            )""",
        purge_applied=f'delete from {applied} where "key" > :after and "key" <= :last and {_OLD} returning 1',
        remove_applied="",
        count_applied=f"select coalesce(sum({_OLD}), 0), count(*) from {applied}",
        names=_names,
        moment=_moment,
        written=_written,
        close=f"update {mark} set tx = null where resource = ?",
        busy_timeout_ms=lock_timeout_ms,
    )


def _names(resources: tuple[str, ...]) -> str:
    return json.dumps(resources)


def _written(value: datetime | None) -> str | None:
    # As the database writes it, but to the microsecond: what is text is compared as text.
    return None if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


_OLD = "applied_at < :applied and (began_at is null or began_at < :before)"


def _moment(value: Any) -> datetime:
    return datetime.fromisoformat(value).replace(tzinfo=UTC)
