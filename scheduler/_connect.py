"""Connections to the scheduler's database, their settings, and the one place where the driver's errors are
translated."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.types.json import set_json_loads
except ImportError as exc:  # it is installed with us, the C library under it is not
    raise ImportError(
        "scheduler cannot load psycopg, which needs PostgreSQL's libpq: pip install 'psycopg[binary]', or install the "
        "system's (Debian: libpq5)",
        name=exc.name,
    ) from exc

from fencing.errors import ContentionError
from scheduler._json import json_value
from scheduler._loop import log
from scheduler.errors import DatabaseError, DatabaseUnavailableError, NotMigratedError, ValueRefusedError

Connection = psycopg.Connection[tuple[Any, ...]]

_CONTENTION = ("40001", "40P01", "55P03")
_UNAVAILABLE_CLASSES = ("08", "57P")
_MISSING = ("42P01", "3F000", "42883", "42703")

# A cut network must be noticed within seconds, or a lease is held by a worker that cannot renew it and does not know.
_NETWORK = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}

# A worker that is stopped inside a transaction must not hide its rows from the others (a shorter time that the role or
# the database states stays). What waited for a lock reads again what is there then. A token must not leave before it is
# durable: synchronous_commit is raised where it was weaker.
_SETTINGS = """
select set_config('idle_in_transaction_session_timeout', case
        when current_setting('idle_in_transaction_session_timeout')::interval between '1 ms' and '10 s'
        then current_setting('idle_in_transaction_session_timeout') else '10s' end, %(local)s),
    set_config('jit', 'off', %(local)s), set_config('default_transaction_isolation', 'read committed', %(local)s),
    set_config('datestyle', 'ISO', %(local)s),
    set_config('synchronous_commit', case when current_setting('synchronous_commit') = 'remote_apply'
        then 'remote_apply' else 'on' end, %(local)s)
"""

# Plans are part of the contract: generic (the parameters of the hot statements say nothing about the data) and in the
# order of the indexes, whatever the statistics say right after a bulk load or before the first ANALYZE. A claim that
# believed its range to be small read and sorted all of it.
_HOT_ROLES = ("claim", "settle", "heart", "rescue", "look-up", "measure", "limit", "prune")
_HOT_SETTINGS = f"""{_SETTINGS},
    set_config('plan_cache_mode', 'force_generic_plan', %(local)s), set_config('enable_seqscan', 'off', %(local)s),
    set_config('enable_bitmapscan', 'off', %(local)s), set_config('enable_sort', 'off', %(local)s),
    set_config('enable_incremental_sort', 'off', %(local)s)
"""


def normalise_dsn(dsn: str | None) -> str:
    """Return libpq text for ``dsn`` or, where it is None, for ``$FENCING_DSN``.

    Takes libpq's own text or URL, and SQLAlchemy's ``postgresql+psycopg://``. Raises ``ValueError`` for anything else.
    """
    text = dsn if dsn is not None else os.environ.get("FENCING_DSN", "")
    if not text:
        raise ValueError(
            "no database: pass dsn= (--dsn) or set FENCING_DSN, for example postgresql://user@host/database"
        )
    scheme, separator, rest = text.partition("://")
    if separator:
        driver = scheme.partition("+")[2]
        if scheme.partition("+")[0] not in ("postgresql", "postgres") or driver not in ("", "psycopg"):
            raise ValueError(f"the scheduler keeps its tables in PostgreSQL through psycopg, not {scheme!r}")
        text = f"postgresql://{rest}"
    try:
        conninfo_to_dict(text)
    except psycopg.ProgrammingError as exc:
        raise ValueError(f"not a connection string that libpq can read: {str(exc).strip()}") from exc
    return text


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn the driver's errors into ours, ``from`` them. ``doing`` says what was tried."""
    try:
        yield
    except psycopg.Error as exc:
        raise translate(exc, doing) from exc
    except UnicodeEncodeError as exc:
        raise ValueRefusedError(f"{doing}: half of a surrogate pair is no text ({exc})") from exc


def translate(exc: psycopg.Error, doing: str) -> ContentionError | DatabaseError:
    """Return our error for the driver's."""
    # The driver's class says it, and where its release is older than the server and has none, the server's answer does.
    state = exc.sqlstate or exc.diag.sqlstate or ""
    text = str(exc).strip() or type(exc).__name__
    if state in _CONTENTION:
        return ContentionError(f"{doing}: {text}", downstream="scheduler")
    if state in _MISSING:
        # The driver's text goes on with an excerpt of the statement: of no use to whoever has to migrate.
        first = text.partition("\n")[0]
        return NotMigratedError(f"{doing}: {first}; run `fencing migrate` for this database and schema")
    if state == "42501":  # insufficient_privilege; the excerpt of the statement is of no use here either
        first = text.partition("\n")[0]
        if "append-only" in first:  # a trigger of ours, which no grant gets past
            return DatabaseError(f"{doing}: {first}")
        remedy = (
            "migrate as a role that may create and own the schema"
            if doing == "migrate"
            else "its owner can grant what `fencing migrate --print-grants --role NAME` prints"
        )
        return DatabaseError(f"{doing}: {first}; {remedy}")
    lost = isinstance(exc, psycopg.OperationalError | psycopg.InterfaceError) and not state
    # A standby that is asked for the issuer's identity, by what only reads, does not say that it is read-only.
    standby = state == "55000" and "recovery" in text
    if lost or standby or state.startswith(_UNAVAILABLE_CLASSES) or state in ("25P03", "25P04", "25006", "53300"):
        return DatabaseUnavailableError(f"{doing}: {text}")
    if isinstance(exc, psycopg.DataError) or state.startswith("54"):
        return ValueRefusedError(f"{doing}: {text}")
    return DatabaseError(f"{doing}: {text}")


class Database:
    """Where the scheduler's tables are, and how to get a connection there."""

    def __init__(self, dsn: str | None, pooled: bool | None = None) -> None:
        """``pooled``: whether a pooler is on the way there that gives a session to others after each transaction; None
        means that it is found out at each connection."""
        if not isinstance(pooled, bool | None):
            raise TypeError(f"pooled= takes True, False or None, not {pooled!r}")
        self._dsn = dsn
        self._stated = pooled
        self.pooled = bool(pooled)
        """Whether a pooler is on the way there, as far as is known."""
        self._said = False

    @property
    def conninfo(self) -> str:
        """The connection string with the network settings that it does not name itself.

        The driver reads JSON as UTF-8, whatever the connection speaks; so it speaks that, and the server converts.
        """
        text = normalise_dsn(self._dsn)
        named = conninfo_to_dict(text)
        network = {key: value for key, value in _NETWORK.items() if key not in named}
        return make_conninfo(text, **network, client_encoding="UTF8")

    def connect(self, role: str) -> Connection:
        """Open a connection in autocommit mode; ``role`` shows in ``pg_stat_activity``.

        Behind a pooler a session is somebody else's after each transaction: nothing is set or prepared in it then, and
        :func:`begun` sets what a transaction needs.
        """
        with translated(f"connect ({role})"):
            connection = psycopg.connect(
                self.conninfo, autocommit=True, prepare_threshold=None, application_name=f"fencing {role}"
            )
            try:
                set_json_loads(json_value, connection)
                if _pooled(connection) if self._stated is None else self._stated:
                    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
                    self.pooled = True
                    self._say_pooled(role)
                else:
                    connection.prepare_threshold = 0
                    connection.execute(_settings(role), {"local": False})
            except BaseException:
                connection.close()
                raise
        return connection

    def _say_pooled(self, role: str) -> None:
        # Once, and where it costs something: who only enqueues, or asks something by hand, does as well behind it.
        if role == "claim" and not self._said:
            self._said = True
            log.warning(
                "behind a pooler such as PgBouncer: no LISTEN and no prepared statements; due jobs are found by "
                "polling. Give workers a direct connection where that is too slow"
            )


def _settings(role: str) -> str:
    return _HOT_SETTINGS if role in _HOT_ROLES else _SETTINGS


def _pooled(connection: Connection) -> bool:
    """Whether a pooler is between: it tells its clients a process id of its own making, for their cancel requests."""
    row = connection.execute("select pg_backend_pid()").fetchone()
    return row is not None and row[0] != connection.info.backend_pid


@contextmanager
def begun(connection: Connection, role: str) -> Iterator[None]:
    """Where nothing can be set for a session, do the block in one transaction with its settings; else just do it."""
    if connection.prepare_threshold is not None:
        yield
        return
    with connection.transaction():
        connection.execute(_settings(role), {"local": True})
        yield


def _hung_up(connection: Connection) -> bool:
    """Whether the server ended the session while nothing was asked of it, as a restart does.

    Found out before anything is sent, it costs nobody an error.
    """
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    try:
        while poll.poll(0):
            connection.pgconn.consume_input()
    except psycopg.OperationalError:
        return True
    return False


class Link:
    """One connection that is opened when it is needed and again after it broke. Used by one thread at a time."""

    def __init__(self, database: Database, role: str) -> None:
        self._database = database
        self._role = role
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    @contextmanager
    def use(self, doing: str) -> Iterator[Connection]:
        """Yield the connection. Errors are translated; a connection that they left unusable is closed."""
        with self._lock:
            connection = self._connection
            if connection is None or connection.closed or _hung_up(connection):
                self._drop()
                connection = self._connection = self._database.connect(self._role)
            try:
                with translated(doing), begun(connection, self._role):
                    yield connection
            except BaseException:
                # Whatever went wrong, a connection whose state is in doubt is worth less than a new one.
                if connection.closed or connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    self._drop()
                raise

    def open(self, doing: str) -> None:
        """Open the connection if there is none: whoever needs it next need not wait for that."""
        if self._connection is None:
            with self.use(doing):
                pass

    def another(self) -> Link:
        """Return a link of its own to the same place, for what would hold this one too long. To be closed."""
        return Link(self._database, self._role)

    def close(self) -> None:
        """Close the connection, if there is one."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
