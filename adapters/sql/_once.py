"""``once=KEY``: an effect applied at most once for its key, as plans around the effect."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any

from adapters._tx import Plan, Statement
from adapters.sql._dialect import Dialect
from adapters.sql._marks import token_params
from fencing._token import Token
from fencing.errors import ContentionError, KeyConflictError, NotInTransactionError

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
    downstream: str,
) -> Plan[Applied | None]:
    """Claim the key before the effect runs, so that a concurrent caller waits for it instead of running the effect too.

    Returns :class:`Applied` if the effect must not run. Raises ``KeyConflictError`` if the key stands for something
    else.
    """
    meaning = fingerprint or json.dumps(resources)
    params = {"key": key, "fingerprint": meaning, **token_params(token, holder)}
    if sql.name == "mysql":
        params["claim"] = secrets.token_hex(8)
    if (yield Statement(sql.claim_key, params)):
        return None
    rows = yield Statement(sql.read_applied, {"key": key})
    if sql.name == "mysql" and rows and rows[0][2] == params["claim"]:
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
            f"{downstream}: the effect of the key {key!r} is running in this very transaction: "
            "an effect cannot contain itself",
            key=key,
            differs="still running",
            downstream=downstream,
        )
    return Applied(json.loads(result))


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
