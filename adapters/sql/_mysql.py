"""The statements for MariaDB 10.6 and newer and MySQL 8, on InnoDB."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from adapters.sql._dialect import Dialect

_NOW = "utc_timestamp(6)"
_PASSES = """issuer = values(issuer)
        and (value < values(value) or (value = values(value) and lineage = values(lineage)))"""


@lru_cache(maxsize=64)
def mysql(schema: str | None, lock_timeout_ms: int | None) -> Dialect:
    """Build the statements. ``schema`` is the name of another database of the server.

    One statement raises a mark, the next one reads its row, locked: neither a count of rows nor an INSERT's answer can
    be trusted here (an upsert reports one row for a stale write, and a driver none for a repeated one). Never a locking
    read first: a mark that is not there would be a gap, and thirty writers in one gap are thirty deadlocks.
    """
    prefix = f"`{schema}`." if schema else ""
    mark, applied = f"{prefix}fencing_mark", f"{prefix}fencing_applied"
    floor, act, horizon = f"{prefix}fencing_floor", f"{prefix}fencing_act", f"{prefix}fencing_horizon"
    name = "cast(:resource as binary)"
    columns = "convert(resource using utf8mb4), issuer, lineage, value, holder, marked_at"
    into = "resource, issuer, lineage, value, holder, marked_at, since, raised"
    row = f"{name}, :issuer, :lineage, :value, :holder, {_NOW}, {_NOW}, 1"
    # Assigned from left to right, each seeing what was assigned before: what the condition reads comes last.
    upsert = f"""on duplicate key update
            since = if(issuer = values(issuer) and value < values(value), values(since), since),
            holder = if({_PASSES}, values(holder), holder),
            marked_at = if({_PASSES}, values(marked_at), marked_at),
            raised = if({_PASSES}, raised + 1, raised),
            lineage = if(issuer = values(issuer) and value < values(value), values(lineage), lineage),
            value = if(issuer = values(issuer) and value < values(value), values(value), value)"""
    # A locking read, as of the marks: at an old snapshot a mark would go whose act it does not show.
    taken_over = f"""select 1 from {act} as a where a.kind = 'adopt' and a.resource = m.resource
        and cast(json_value(a.detail, '$.value') as signed) >= coalesce((select cast(json_unquote(json_extract(
            f.floors, concat('$."', json_value(a.detail, '$.issuer'), '"'))) as signed) from {floor} as f), 0)
        lock in share mode"""
    return Dialect(
        name="mysql",
        raise_one=f"insert into {mark} ({into}) values ({row}) {upsert}",
        raise_many="",
        raise_existing=f"""update {mark} set
                since = if(value < :value, {_NOW}, since), holder = :holder, marked_at = {_NOW}, raised = raised + 1,
                lineage = :lineage, value = :value
            where resource = {name} and issuer = :issuer
                and (value < :value or (value = :value and lineage = :lineage))""",
        read_one=f"select {columns} from {mark} where resource = {name}",
        read_refused=f"select {columns}, {_NOW}, raised from {mark} where resource = {name} for update",
        unmake_one=f"delete from {mark} where resource = {name}",
        read_floors=f"select floors from {floor} lock in share mode",
        look_at_floors=f"select floors from {floor}",
        queue_for_floors="",
        lock_floors=f"select floors from {floor} for update",
        store_floors=f"update {floor} set floors = :floors",
        compact=f"""select convert(m.resource using utf8mb4) from {mark} as m
            where m.issuer = :issuer and m.value < :floor
                and m.marked_at <= {_NOW} - interval cast(:idle * 1000000 as signed) microsecond
                and not exists ({taken_over}) for update skip locked""",
        adopt=f"""insert into {mark} ({into}) values ({row}) on duplicate key update issuer = values(issuer),
            lineage = values(lineage), value = values(value), holder = values(holder), marked_at = values(marked_at),
            since = values(since), raised = raised + 1""",
        list_marks=f"""select {columns} from {mark}
            where resource > cast(:after as binary)
                and left(resource, length(cast(:prefix as binary))) = cast(:prefix as binary)
            order by resource limit :limit""",
        explain_one=f"select {columns}, since, raised from {mark} where resource = {name}",
        insert_act=f"""insert into {act} (kind, resource, actor, reason, detail, at)
            values (:kind, {name}, :actor, :reason, :detail, {_NOW})""",
        read_acts=f"""select at, actor, reason, detail from {act}
            where kind = :kind and (:resource is null or resource = {name}) order by id desc limit :limit""",
        open_unfenced="",
        close_unfenced="",
        claim_key=f"""insert into {applied}
                (`key`, fingerprint, claim, began_at, issuer, lineage, value, holder, applied_at)
            values (cast(:key as binary), :fingerprint, :claim, :began, :issuer, :lineage, :value, :holder, {_NOW})
            on duplicate key update claim = claim""",
        # A locking read shows what is committed, whatever the transaction's snapshot.
        read_horizon=f"select horizon from {horizon} lock in share mode",
        read_applied=f"select fingerprint, result, claim from {applied} where `key` = cast(:key as binary) for update",
        store_result=f"update {applied} set result = :result where `key` = cast(:key as binary)",
        show_applied=f"""select fingerprint, result, issuer, lineage, value, holder, applied_at, began_at from {applied}
            where `key` = cast(:key as binary)""",
        look_at_horizon=f"select horizon, {_NOW} from {horizon}",
        lock_horizon=f"select horizon, {_NOW} from {horizon} for update",
        store_horizon=f"update {horizon} set horizon = :horizon",
        page_applied=f"""select convert(max(`key`) using utf8mb4), count(*) from (
                select `key` from {applied} where `key` > cast(:after as binary) order by `key` limit :batch
            ) page""",
        # Never waits for a writer, who may be waiting for the horizon.
        purge_applied=f"""select convert(`key` using utf8mb4) from {applied}
            where `key` > cast(:after as binary) and `key` <= cast(:last as binary) and {_OLD}
            for update skip locked""",
        remove_applied=f"delete from {applied} where `key` = cast(:key as binary)",
        count_applied=f"select coalesce(sum({_OLD}), 0), count(*) from {applied}",
        names=list,
        moment=_moment,
        written=_written,
        busy_timeout_ms=lock_timeout_ms,
    )


def _moment(value: Any) -> datetime:
    moment: datetime = value
    return moment.replace(tzinfo=UTC)


def _written(value: datetime | None) -> datetime | None:
    return None if value is None else value.astimezone(UTC).replace(tzinfo=None)


_OLD = "applied_at < :applied and (began_at is null or began_at < :before)"
