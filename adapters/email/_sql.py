"""What the two dialects say differently: the clock, the lock that skips, the shape of a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

TABLES = "adapters.email.create_all(bind)"
"""How the outbox's tables are made, for :class:`~fencing.errors.SchemaMissingError`."""

DIALECTS = ("postgresql", "sqlite")
"""Where the outbox can stand."""

IDLE_IN_TRANSACTION_MS = 20_000
"""A relay that is stopped between two statements of a short transaction hides its rows for at most this long."""

_SQLITE_NOW = "strftime('%Y-%m-%d %H:%M:%f000', 'now'{offset})"
_SQLITE_FORMAT = "%Y-%m-%d %H:%M:%S.%f"  # to read; strftime() writes a year before 1000 with fewer digits


def check_dialect(dialect: str) -> None:
    """Raise ``TypeError`` for a database in which the outbox cannot stand, before it says something misleading."""
    if dialect not in DIALECTS:
        raise TypeError(f"the outbox stands in PostgreSQL or SQLite, not in {dialect}; nothing was done")


def now(dialect: str) -> str:
    """The present by the database's clock, as one scalar subquery, so that an index condition can use it."""
    return "(select clock_timestamp())" if dialect == "postgresql" else _SQLITE_NOW.format(offset="")


def after(dialect: str, parameter: str) -> str:
    """The present plus ``:parameter`` seconds."""
    if dialect == "postgresql":
        return f"(select clock_timestamp() + make_interval(secs => cast(:{parameter} as double precision)))"
    return _SQLITE_NOW.format(offset=f", :{parameter} || ' seconds'")


def clock(dialect: str, *, durable: bool = False) -> str:
    """A one-row source for ``update … from … as clock``: ``at`` is one reading of the clock for the whole statement.

    On PostgreSQL it bounds how long this transaction may sit idle, and with ``durable`` makes its commit wait for the
    disk whatever the session's setting: what must not be forgotten by a crash of the server.
    """
    if dialect != "postgresql":
        return f"(select {now(dialect)} as at) as clock"
    settings = f"set_config('idle_in_transaction_session_timeout', '{IDLE_IN_TRANSACTION_MS}', true) as bounded"
    if durable:
        settings += (
            ", set_config('synchronous_commit', case when current_setting('synchronous_commit') in ('off', 'local')"
            " then 'on' else current_setting('synchronous_commit') end, true) as durable"
        )
    return f"(select clock_timestamp() as at, {settings}) as clock"


def one_of(dialect: str, select: str) -> str:
    """``id`` is one of those that ``select`` picks; rows that another relay has in hand are passed over.

    As an array on PostgreSQL: evaluated once, where ``in (… for update skip locked)`` may be run again for each row.
    SQLite has one writer at a time and nothing to skip.
    """
    return f"id = any(array({select} for update skip locked))" if dialect == "postgresql" else f"id in ({select})"


def in_list(name: str, values: Iterable[Any]) -> tuple[str, dict[str, Any]]:
    """``(:name0, :name1, …)`` and its parameters."""
    params = {f"{name}{number}": value for number, value in enumerate(values)}
    return "(" + ", ".join(f":{parameter}" for parameter in params) + ")", params


def among(dialect: str, parameter: str) -> str:
    """``= any(:parameter)`` for ids from :func:`ids`: one text however many there are, so that plans are kept."""
    if dialect == "postgresql":
        return f"= any(cast(:{parameter} as bigint[]))"
    return f"in (select value from json_each(:{parameter}))"


def ids(dialect: str, numbers: Iterable[int]) -> list[int] | str:
    """The value of a parameter of :func:`among`."""
    return list(numbers) if dialect == "postgresql" else json.dumps(list(numbers))


def pairs(dialect: str, told: Mapping[int, str]) -> tuple[str, dict[str, Any]]:
    """``told(id, reply)`` as a source of rows, and its parameters: one text however many there are."""
    if dialect == "postgresql":
        source = "unnest(cast(:numbers as bigint[]), cast(:replies as text[])) as told(id, reply)"
        return source, {"numbers": list(told), "replies": list(told.values())}
    source = (
        "(select json_extract(value, '$[0]') as id, json_extract(value, '$[1]') as reply from json_each(:told)) as told"
    )
    return source, {"told": json.dumps(list(told.items()))}


def clean(text: str) -> str:
    """A server's words as they can be stored and shown: without NUL, which PostgreSQL refuses, and other controls."""
    return "".join(" " if character < " " or "\x7f" <= character <= "\x9f" else character for character in text)[:2000]


def to_database(dialect: str, instant: datetime | None) -> datetime | str | None:
    """An aware time as the dialect stores it."""
    if instant is None or dialect == "postgresql":
        return instant
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def from_database(value: Any) -> datetime | None:
    """A stored time as an aware one in UTC."""
    if value is None:
        return None
    if isinstance(value, str):
        return datetime.strptime(value, _SQLITE_FORMAT).replace(tzinfo=UTC)
    return value.astimezone(UTC) if isinstance(value, datetime) else None
