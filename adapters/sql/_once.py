"""``once=KEY``: an effect applied at most once for its key, as plans around the effect."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from adapters._tx import Plan, Rows, Statement
from adapters.sql._dialect import Dialect
from adapters.sql._marks import token_params
from fencing._token import Token
from fencing.errors import (
    ContentionError,
    KeyConflictError,
    KeyExpiredError,
    NotInTransactionError,
    SchemaMissingError,
)

MAX_KEY_BYTES = 512
"""The longest key, in bytes of UTF-8: it is a primary key."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The key was applied before, with this result."""

    result: Any


def check_key(once: str, fingerprint: str | None) -> None:
    """Raise ``ValueError`` for a key or fingerprint that a table cannot hold."""
    for name, text in (("once", once), ("fingerprint", fingerprint or "")):
        if "\x00" in text:
            raise ValueError(f"{name}= holds a NUL character, which PostgreSQL cannot store: {text[:80]!r}")
        try:
            size = len(text.encode("utf-8"))
        except UnicodeEncodeError as exc:
            raise ValueError(f"{name}= is not encodable as UTF-8: {text[:80]!r}") from exc
        if name == "once" and size > MAX_KEY_BYTES:
            raise ValueError(f"once= has at most {MAX_KEY_BYTES} bytes of UTF-8, this one {size}: {text[:60]!r}…")


def claim_key(
    sql: Dialect,
    key: str,
    fingerprint: str | None,
    resources: tuple[str, ...],
    token: Token,
    holder: str,
    began_at: datetime | None,
    downstream: str,
) -> Plan[Applied | None]:
    """Claim the key before the effect runs, so that a concurrent caller waits for it instead of running the effect too.

    Returns :class:`Applied` if the effect must not run. Raises ``KeyConflictError`` if the key stands for something
    else, and ``KeyExpiredError`` if there is no record of it and the work is older than the records.
    """
    meaning = fingerprint or json.dumps(resources)
    params = {"key": key, "fingerprint": meaning, "began": sql.written(began_at), **token_params(token, holder)}
    if sql.name == "mysql":
        params["claim"] = secrets.token_hex(8)
    if (yield Statement(sql.claim_key, params)):
        yield from _check_horizon(sql, key, began_at, downstream)
        return None
    rows = yield Statement(sql.read_applied, {"key": key})
    if sql.name == "mysql" and rows and rows[0][2] == params["claim"]:
        yield from _check_horizon(sql, key, began_at, downstream)
        return None
    if not rows:
        raise ContentionError(
            f"{downstream}: the key {key!r} was removed while it was looked at. "
            "Nothing was written; roll back and try again",
            downstream=downstream,
        )
    known, result = rows[0][:2]
    if known != meaning:
        raise KeyConflictError(
            f"{downstream}: the key {key!r} was applied for {known}, now it comes with {meaning}: use another key",
            key=key,
            differs="fingerprint",
            downstream=downstream,
        )
    if result is None:
        raise KeyConflictError(
            f"{downstream}: the key {key!r} has a record without a result: its effect is running in this very "
            "transaction (an effect cannot contain itself), or has committed by itself. Look at what it wrote: "
            "what is to be done anew takes another key",
            key=key,
            differs="still running",
            downstream=downstream,
        )
    return Applied(json.loads(result))


def _check_horizon(sql: Dialect, key: str, began_at: datetime | None, downstream: str) -> Plan[None]:
    """Refuse a key without a record if its record may have been purged.

    In a statement of its own, after the key was claimed: the claim waits for a purge that is removing the key's record,
    and this one sees the horizon which that has set.
    """
    horizon = read_moment(sql, (yield Statement(sql.read_horizon)), downstream)
    if horizon is None or (began_at is not None and began_at >= horizon):
        return
    age = "nobody says when its work began" if began_at is None else f"its work began at {began_at.isoformat()}"
    advice = (
        "Say when it began: by began_at=, or by passing the job as token="
        if began_at is None
        else "Look whether it was applied; what is to be done anew is new work: enqueue it again"
    )
    raise KeyExpiredError(
        f"{downstream}: there is no record of the key {key!r}, but those of work from before {horizon.isoformat()} "
        f"were purged, and {age}: it may have been applied. Nothing was written, and the effect was not run. {advice}",
        key=key,
        began_at=began_at,
        horizon=horizon,
        downstream=downstream,
    )


def read_moment(sql: Dialect, rows: Rows, downstream: str) -> datetime | None:
    """Return the horizon that a statement has read, None if nothing was ever purged."""
    if not rows:
        raise SchemaMissingError(
            f"{downstream}: fencing_horizon has no row, so nothing says which records of applied effects were purged; "
            "nothing was written. adapters.sql.create_all(bind) makes it with the table; after another way of making "
            "the tables: insert into fencing_horizon (one) values (1)",
            downstream=downstream,
        )
    return None if rows[0][0] is None else sql.moment(rows[0][0])


def dump_result(key: str, result: Any) -> str:
    """Return the result as JSON text. Raises ``TypeError`` for one that JSON cannot hold."""
    try:
        return json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise TypeError(
            f"the effect of once={key!r} returned something that JSON cannot hold ({exc}), so it could not be "
            "returned again; nothing was written. Return plain data, or None"
        ) from exc


def store_result(sql: Dialect, key: str, text: str, downstream: str) -> Plan[Any]:
    """Store the result in the claimed row; return it as every later call will see it.

    Raises ``NotInTransactionError`` if the row is gone: the effect has rolled back, in SQL text that no driver sees.
    """
    rows = yield Statement(sql.store_result, {"key": key, "result": text})
    if sql.name == "mysql":
        rows = yield Statement(sql.read_applied, {"key": key})
    if not rows:
        raise NotInTransactionError(
            f"{downstream}: the effect of the key {key!r} has rolled back its transaction, and the key and the fence "
            "with it; what it wrote after that is not kept. Do not end the transaction inside the effect",
            downstream=downstream,
        )
    return json.loads(text)
