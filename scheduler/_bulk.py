"""Many jobs at once: read page by page, checked, and written by COPY in binary. Pure but for :func:`copy_jobs`.

The driver would look at each value of each row. In the binary format a value is its length and its bytes: what is the
same for all rows is put together once, and nothing has to be escaped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from scheduler._connect import Connection
from scheduler._enqueue import PAGE_CHARACTERS, Row, checked_due
from scheduler._json import encoder, json_refusal, refuse_unstorable
from scheduler._sql import Statements
from scheduler._tasks import check_name

PAGE_ROWS = 1000
"""How many jobs are read, checked and sent at a time, fewer where their arguments are long: so much is held in memory,
however many jobs there are."""

SOON = timedelta(seconds=1)
"""Of jobs that are due later than this nobody is told: workers look ahead by themselves, more often."""

T = TypeVar("T")

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
_JSONB = 1

_length = struct.Struct(">i").pack
_columns = struct.Struct(">h").pack
_int4 = struct.Struct(">ii").pack
_timestamp = struct.Struct(">iq").pack
_json_head = struct.Struct(">iB").pack


class Page(NamedTuple):
    """Jobs that were read together. ``args`` is JSON text; the other columns are empty where :class:`Given` fixes the
    value for all."""

    args: list[str]
    dues: list[datetime | None]
    keys: list[str | None]
    exclusives: list[str | None]


class Given:
    """What bulk enqueuing was given: the arguments of each job, and the rest as one value or a function of them.

    Raises ``TypeError`` or ``ValueError`` for a fixed value that cannot be stored.
    """

    def __init__(
        self,
        task: str,
        args: Iterable[Any],
        due_at: datetime | Callable[[Any], datetime | None] | None = None,
        key: Callable[[Any], str | None] | None = None,
        exclusive: str | Callable[[Any], str | None] | None = None,
    ) -> None:
        self._task = task
        self._args = args
        self.due_of = due_at if callable(due_at) else None
        self.key_of = key
        self.exclusive_of = exclusive if callable(exclusive) else None
        self.due = None if callable(due_at) else checked_due(due_at)
        self.exclusive = None if callable(exclusive) else checked_exclusive(exclusive)

    @property
    def runs_code(self) -> bool:
        """Whether reading it runs code of the caller's, which may take its time, or enqueue something itself."""
        return not isinstance(self._args, list | tuple) or bool(self.due_of or self.exclusive_of or self.key_of)

    def pages(self) -> Iterator[Page]:
        """Read and check the jobs, no further ahead than a page.

        Raises ``TypeError`` or ``ValueError`` that names the place, as in ``args[3]: …``.
        """
        encode, due_of, key_of, exclusive_of = encoder(), self.due_of, self.key_of, self.exclusive_of
        page, size, start = Page([], [], [], []), 0, 0
        texts = page.args
        for number, one in enumerate(self._args):
            try:
                text = encode(one)
            except (TypeError, ValueError, RecursionError) as exc:
                raise TypeError(f"args[{number}]: {json_refusal(self._what, exc)}") from exc
            texts.append(text)
            size += len(text)
            if due_of is not None:
                page.dues.append(_placed(number, checked_due, due_of(one)))
            if key_of is not None:
                page.keys.append(_placed(number, checked_key, key_of(one)))
            if exclusive_of is not None:
                page.exclusives.append(_placed(number, checked_exclusive, exclusive_of(one)))
            if len(texts) == PAGE_ROWS or size >= PAGE_CHARACTERS:
                self._check(texts, start)
                yield page
                page, size, start = Page([], [], [], []), 0, number + 1
                texts = page.args
        if texts:
            self._check(texts, start)
            yield page

    def rows(self) -> list[Row]:
        """All jobs, as those statements take them that need to see all of them at once. Raises as :meth:`pages`."""
        rows: list[Row] = []
        for args, dues, keys, exclusives in self.pages():
            rest = (dues or [self.due] * len(args), keys or [None] * len(args))
            rows.extend(map(Row, args, *rest, exclusives or [self.exclusive] * len(args)))
        return rows

    @property
    def _what(self) -> str:
        return f"the arguments of {self._task!r}"

    def _check(self, texts: list[str], start: int) -> None:
        """Look at the page as one text, which costs next to nothing; at each of its texts only if that has
        something."""
        try:
            refuse_unstorable("".join(texts), self._what)
        except ValueError:
            for number, text in enumerate(texts, start):
                _placed(number, lambda one: refuse_unstorable(one, self._what), text)


def checked_key(value: object) -> str | None:
    """Return ``value`` if it can be a key, or is None. ``TypeError`` or ``ValueError`` otherwise."""
    return None if value is None else check_name("key", value, most=500)


def checked_exclusive(value: object) -> str | None:
    """Return ``value`` if it can be an exclusive value, or is None. ``TypeError`` or ``ValueError`` otherwise."""
    return None if value is None else check_name("exclusive value", value, most=500)


def _placed(number: int, check: Callable[[Any], T], value: object) -> T:
    try:
        return check(value)
    except TypeError as exc:
        raise TypeError(f"args[{number}]: {exc}") from exc
    except ValueError as exc:
        raise ValueError(f"args[{number}]: {exc}") from exc


class Lines:
    """The lines of COPY, in binary, for what one call enqueues at ``now``. ``columns`` names what each line holds."""

    def __init__(self, fixed: Mapping[str, Any], given: Given, trace: str | None, now: datetime) -> None:
        same = {
            "queue": _text(fixed["queue"]),
            "task": _text(fixed["task"]),
            "priority": _int4(4, fixed["priority"]),
            "max_attempts": _int4(4, fixed["max_attempts"]),
            "created_at": _instant(now),
        }
        if trace is not None:
            same["trace"] = _jsonb(trace.encode())
        if given.due_of is None:
            same["due_at"] = _instant(given.due or now)
        if given.exclusive is not None:
            same["exclusive"] = _text(given.exclusive)
        own = ["args", *(["due_at"] if given.due_of else []), *(["exclusive"] if given.exclusive_of else [])]
        self.columns = (*same, *own)
        self._before = b"".join((_columns(len(self.columns)), *same.values()))
        self._now = now

    def of(self, page: Page) -> bytes:
        """Return the page's lines."""
        args = map(str.encode, page.args)
        if not page.dues and not page.exclusives:
            before = self._before
            return b"".join([part for one in args for part in (before, _json_head(len(one) + 1, _JSONB), one)])
        after = map(b"".join, zip(*self._own(page), strict=True))
        return b"".join([self._before + _jsonb(one) + rest for one, rest in zip(args, after, strict=True)])

    def _own(self, page: Page) -> Iterator[list[bytes]]:
        if page.dues:
            yield [_instant(due or self._now) for due in page.dues]
        if page.exclusives:
            yield [_NULL if value is None else _text(value) for value in page.exclusives]


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _length(len(encoded)) + encoded


def _jsonb(text: bytes) -> bytes:
    return _json_head(len(text) + 1, _JSONB) + text


def _instant(moment: datetime) -> bytes:
    return _timestamp(8, (moment - _EPOCH) // _MICROSECOND)


def copy_jobs(
    connection: Connection,
    statements: Statements,
    fixed: Mapping[str, Any],
    given: Given,
    pages: Iterable[Page],
    trace: str | None,
) -> int:
    """Write jobs by COPY, all or none; return how many. ``fixed`` holds what is the same for all of them.

    While the server takes in one page, the next is read: ``pages`` may be a generator, and what it raises undoes all.
    """
    made = 0
    with connection.transaction():
        # In binary, which no date style of the session's changes.
        clock = connection.execute(statements.fill("select {schema}.clock()"), binary=True)
        now = clock.fetchall()[0][0]
        lines = Lines(fixed, given, trace, now)
        text = f"copy {{schema}}.job ({', '.join(lines.columns)}) from stdin (format binary)"
        soon = now + SOON
        due = given.due_of is None and (given.due is None or given.due <= soon)
        with connection.cursor().copy(statements.fill(text)) as copy:
            copy.write(_HEADER)
            for page in pages:
                copy.write(lines.of(page))
                made += len(page.args)
                due = due or any(one is None or one <= soon for one in page.dues)
            copy.write(_TRAILER)
        if due:
            connection.execute("select pg_notify(%s, %s)", (statements.channel, fixed["queue"]))
    return made
