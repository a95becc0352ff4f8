"""A clock that the test sets: the one by which the scheduler decides everything, of one schema, for every process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Self

import psycopg

from scheduler._app import Scheduler

_MICROSECOND = timedelta(microseconds=1)


class Clock:
    """The clock of an application's schema, to be set by a test.

    It is held in the database, so that every process and connection which uses the schema sees the same. As a context
    manager it goes back to the real clock at the end. While it is set, ``fencing doctor`` calls the schema broken:
    never use it on one that does real work.

    A worker counts its own deadlines by its machine's clock: a clock that is set moves what is due and which leases
    the database takes for expired, and never makes a running handler late.
    """

    def __init__(self, app: Scheduler) -> None:
        self._app = app

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reset()

    def now(self) -> datetime:
        """What the clock shows (aware)."""
        return self._read()[0]

    def set(self, moment: datetime) -> None:
        """Let it show ``moment`` (aware) now, and go on from there."""
        moment = _aware(moment)
        real = self._read()[1]
        self._put(_apart(moment - real))

    def freeze(self, moment: datetime | None = None) -> None:
        """Let it stand still at ``moment`` (aware), or where it is."""
        moment = self.now() if moment is None else _aware(moment)
        self._put(f"timestamptz '{moment.isoformat()}'")

    def advance(self, by: timedelta | float) -> None:
        """Put it forward by so much (or seconds); one that stands still goes on standing."""
        now, real, source = self._read()
        moment = now + (by if isinstance(by, timedelta) else timedelta(seconds=by))
        if "clock_timestamp" in source:
            self._put(_apart(moment - real))
        else:
            self.freeze(moment)

    def reset(self) -> None:
        """Go back to the real clock."""
        self._put("clock_timestamp()")

    def _read(self) -> tuple[datetime, datetime, str]:
        with self._app._here().link.use("read the test's clock") as connection:
            text = self._app._statements.fill(
                "select {schema}.clock(), clock_timestamp(), prosrc"
                " from pg_proc where oid = to_regprocedure({clock_literal})"
            )
            now, real, source = connection.execute(text).fetchall()[0]
            # In UTC: arithmetic within another zone is done on its wall clock.
            return now.astimezone(UTC), real.astimezone(UTC), source

    def _put(self, expression: str) -> None:
        with self._app._here().link.use("set the test's clock") as connection, connection.transaction():
            put_clock(connection, self._app._statements.schema, expression)


def put_clock(connection: psycopg.Connection[Any], schema: str, expression: str) -> None:
    """Make an SQL expression the clock of a schema. Two that do it at once take turns."""
    body = f"select {expression}".replace("'", "''")
    connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 11))", (f"fencing clock:{schema}",))
    function = f'"{schema}".clock() returns timestamptz language sql volatile'
    connection.execute(f"create or replace function {function} as '{body}'".encode())


def _apart(by: timedelta) -> str:
    """The real clock, moved. PostgreSQL before 15 reads no field of an interval beyond 32 bits: so many times one."""
    return f"clock_timestamp() + {by // _MICROSECOND} * interval '1 microsecond'"


def _aware(moment: datetime) -> datetime:
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise ValueError(f"a test's clock is set to an aware datetime, not {moment!r}")
    return moment.astimezone(UTC)
