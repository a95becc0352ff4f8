"""Enqueuing: in the caller's transaction, whatever it holds, or in one of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal, NamedTuple, cast, get_args

from fencing.errors import ContentionError
from scheduler._callers import Plan, run_alone, run_in_caller
from scheduler._connect import Connection
from scheduler._job import Enqueued
from scheduler._json import json_text
from scheduler._sql import Statements

_TRIES = 5

Unique = Literal["alive", "forever"]
"""For how long a key is unique: while a job with it is ``alive`` (ready or leased), or ``forever``."""

PAGE = 1000
"""How many jobs one statement enqueues at most."""

PAGE_CHARACTERS = 1 << 22
"""It ends early when their arguments are this long together: a thousand large ones would be more than it can take."""


# A day from what Python can hold: the server shows a moment in its own zone, and one that the driver cannot read there
# would fail each claim that finds it, when that is committed already, with all that it took.
_FIRST = datetime(1, 1, 2, tzinfo=UTC)
_LAST = datetime(9999, 12, 30, tzinfo=UTC)


class Row(NamedTuple):
    """What differs between jobs that are enqueued together. ``args`` is JSON text."""

    args: str
    due_at: datetime | None
    key: str | None
    exclusive: str | None


def checked_args(task: str, args: object) -> str:
    """Return ``args`` as JSON text. Raises as :func:`json_text`."""
    return json_text(args, f"the arguments of {task!r}")


def checked_due(due_at: object) -> datetime | None:
    """Return ``due_at`` if it is an aware datetime or None. ``TypeError`` or ``ValueError`` otherwise."""
    return checked_moment(due_at, "due_at", " for now")


def checked_moment(moment: object, what: str, none: str = "") -> datetime | None:
    """Return ``moment`` if it is an aware datetime or None. ``what`` and ``none`` name it and its absence in errors."""
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        raise TypeError(f"{what}= takes an aware datetime or None{none}, not {type(moment).__name__}")
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise ValueError(f"{what}= has no time zone ({moment.isoformat()}): pass datetime.now(UTC) + … or give it one")
    if not _FIRST <= moment <= _LAST:
        raise ValueError(f"{what}= is a moment from 0001-01-02 to 9999-12-30 in UTC, not {moment.isoformat()}")
    return moment


def checked_priority(priority: object) -> int:
    """Return ``priority`` if it is a whole number that the column holds."""
    if type(priority) is not int or not -(2**31) <= priority < 2**31:
        raise ValueError(f"priority= is a whole number (higher runs first), not {priority!r}")
    return priority


def checked_unique(unique: object, key: object) -> Unique | None:
    """Return for how long the key is unique. ``ValueError`` if that is no choice, or there is no key."""
    if unique is None:
        return "alive" if key is not None else None
    if unique not in get_args(Unique):
        raise ValueError(f"unique= is one of {', '.join(map(repr, get_args(Unique)))}, not {unique!r}")
    if key is None:
        raise ValueError(f"unique={unique!r} says for how long a key is unique: pass key= too")
    return cast(Unique, unique)


def enqueue(
    connection: Any, statements: Statements, parameters: dict[str, Any], unique: Unique | None
) -> Enqueued | Awaitable[Enqueued]:
    """Enqueue a job in the caller's transaction; awaitable for an async connection. Raises as
    :func:`run_in_caller`."""
    return run_in_caller(connection, _statement(statements, "enqueue", unique), _plan(parameters))


def enqueue_alone(
    connection: Connection, statements: Statements, parameters: dict[str, Any], unique: Unique | None
) -> Enqueued:
    """Enqueue through a connection of our own, in a transaction of its own."""
    return run_alone(connection, _statement(statements, "enqueue", unique), _plan(parameters))


def enqueue_many(
    connection: Any, statements: Statements, parameters: dict[str, Any], rows: Iterable[Row], unique: Unique | None
) -> int | Awaitable[int]:
    """Enqueue many jobs in the caller's transaction, as :func:`enqueue`; return how many were made."""
    return run_in_caller(connection, _statement(statements, "enqueue_many", unique), _plan_many(parameters, rows))


def enqueue_many_alone(
    connection: Connection, statements: Statements, parameters: dict[str, Any], rows: Iterable[Row], unique: Unique
) -> int:
    """Enqueue many jobs through a connection of our own, all or none."""
    with connection.transaction():
        text = _statement(statements, "enqueue_many", unique)
        return run_alone(connection, text, _plan_many(parameters, rows))


def _statement(statements: Statements, name: str, unique: Unique | None) -> str:
    return statements[f"{name}_forever" if unique == "forever" else name]


def _plan(parameters: dict[str, Any]) -> Plan[Enqueued]:
    for _ in range(_TRIES):
        rows = yield parameters
        if rows:
            return Enqueued(rows[0][1], rows[0][0])
        # The key's job was just committed or finished, and this statement's snapshot saw neither it nor its absence.
    raise ContentionError(
        f"jobs with the key {parameters['key']!r} come and go faster than they can be seen; try again"
    )


def _plan_many(parameters: dict[str, Any], rows: Iterable[Row]) -> Plan[int]:
    # In the order of the keys over all pages, too: two callers that bring the same keys wait for each other in turn.
    left, made = iter(sorted(rows, key=lambda row: row.key or "")), 0
    while page := _page(left):
        args, dues, keys, exclusives = (list(column) for column in zip(*page, strict=True))
        answer = yield {**parameters, "args": args, "dues": dues, "keys": keys, "exclusives": exclusives}
        made += answer[0][0]
    return made


def _page(left: Iterator[Row]) -> list[Row]:
    page, size = [], 0
    for row in islice(left, PAGE):
        page.append(row)
        size += len(row.args)
        if size >= PAGE_CHARACTERS:
            break
    return page
