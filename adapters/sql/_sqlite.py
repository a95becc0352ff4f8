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
    columns = "resource, issuer, lineage, value, holder, marked_at"
    token = f":issuer, :lineage, :value, :holder, {_NOW}"
    upsert = """on conflict (resource) do update
        set lineage = excluded.lineage, value = excluded.value, holder = excluded.holder, marked_at = excluded.marked_at
        where m.issuer = excluded.issuer
            and (m.value < excluded.value or (m.value = excluded.value and m.lineage = excluded.lineage))
        returning 1"""
    among = "in (select value from json_each(:resources))"
    return Dialect(
        name="sqlite",
        raise_one=f"insert into {mark} as m ({columns}) values (:resource, {token}) {upsert}",
        # "where true": without it the parser takes "on conflict" for the condition of a join.
        raise_many=f"""insert into {mark} as m ({columns})
            select n.value, {token} from json_each(:resources) as n where true {upsert}""",
        raise_existing=f"""update {mark} set lineage = :lineage, value = :value, holder = :holder, marked_at = {_NOW}
            where resource {among} and issuer = :issuer
                and (value < :value or (value = :value and lineage = :lineage))
            returning 1""",
        read_one=f"select {columns} from {mark} where resource = :resource",
        read_refused=f"select {columns} from {mark} where resource {among}",
        claim_key=f"""insert into {applied} ("key", fingerprint, issuer, lineage, value, holder, applied_at)
            values (:key, :fingerprint, {token}) on conflict ("key") do nothing returning 1""",
        read_applied=f'select fingerprint, result from {applied} where "key" = :key',
        store_result=f'update {applied} set result = :result where "key" = :key',
        names=_names,
        moment=_moment,
        busy_timeout_ms=lock_timeout_ms,
    )


def _names(resources: tuple[str, ...]) -> str:
    return json.dumps(resources)


def _moment(value: Any) -> datetime:
    return datetime.fromisoformat(value).replace(tzinfo=UTC)
