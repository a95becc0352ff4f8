"""A kept connection for the statements that a relay sends for every few messages.

They are few, and always the same. So on PostgreSQL with psycopg they are prepared once and then go through libpq in
one call, which lets go of the interpreter once: a cursor costs five times as much, and while it works no other
connection of the relay does.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from adapters._tx import Plan, Rows, Statement, SyncTx, run, transaction_of, translate
from adapters.email._sql import TABLES

T = TypeVar("T")

_PARAMETER = re.compile(r"(?<![:\w\\]):(\w+)(?!:)")
_READ: Mapping[int, Callable[[bytes], Any]] = {16: b"t".__eq__, 20: int, 23: int}
"""PostgreSQL's bool, bigint and integer, as text; all else is text."""


class Line:
    """A connection that is kept for statements that are transactions by themselves: one way to the server for each.

    For one thread at a time.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None
        self._tx: SyncTx | None = None
        self._direct: _Direct | None = None

    def run(self, make: Callable[[str], Plan[T]]) -> T:
        """Run a plan of one statement, which commits with it.

        Raises what its statement raises; then it may have been committed or not, and the connection is replaced.
        """
        try:
            tx = self._tx or self._open()
            # The main thread must hear of signals while it waits, which libpq does not let it.
            if self._direct is not None and threading.current_thread() is not threading.main_thread():
                tx = cast(SyncTx, self._direct)
            return run(make(tx.dialect), tx)
        except BaseException:
            connection, self._connection, self._tx, self._direct = self._connection, None, None, None
            if connection is not None:
                connection.invalidate()
                connection.close()
            raise

    def close(self) -> None:
        """Give the connection back as it was."""
        connection, self._connection, self._tx = self._connection, None, None
        direct, self._direct = self._direct, None
        if connection is not None:
            try:
                if direct is not None:
                    connection.exec_driver_sql("reset plan_cache_mode")
                    for name in direct.prepared:
                        connection.exec_driver_sql(f"deallocate {name}")
            except SQLAlchemyError:
                connection.invalidate()
            connection.close()

    def _open(self) -> SyncTx:
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._connection = connection
        driver = connection.connection.driver_connection
        psycopg = connection.dialect.driver == "psycopg"
        # One plan for all, made once: planning takes longer than the statement. Where nothing is prepared (PgBouncer
        # in transaction mode) it would do nothing, and stick to somebody else's connection.
        if psycopg and getattr(driver, "prepare_threshold", None) is not None:
            connection.exec_driver_sql("set plan_cache_mode = force_generic_plan")
            self._direct = _Direct(driver)
        # psycopg itself where it is the driver: a statement goes out in a third of the time.
        target = driver if psycopg else connection
        self._tx = cast(SyncTx, transaction_of(target, read_only=True, tables=TABLES))
        return self._tx


class _Direct:
    """Statements whose parameters are texts, numbers and None, straight through libpq; part of a :class:`SyncTx`."""

    dialect = "postgresql"

    def __init__(self, driver: Any) -> None:
        self.prepared: dict[str, str] = {}
        """The names on the server, and which texts they stand for."""
        self._driver = driver
        self._pgconn = driver.pgconn
        self._encoding = driver.info.encoding
        self._names: dict[str, bytes] = {}

    @property
    def downstream(self) -> str:
        """``postgresql:NAME``."""
        return f"postgresql:{self._driver.info.dbname}"

    def execute(self, statement: Statement) -> Rows:
        """Execute a statement; see :class:`SyncTx`. Blocks in libpq, deaf to signals."""
        text, parameters = _positional(statement.sql)
        name = self._names.get(text) or self._prepare(text)
        params = statement.params
        result = self._checked(
            self._pgconn.exec_prepared(name, [self._written(params[parameter]) for parameter in parameters])
        )
        readers = [_READ.get(result.ftype(column), self._text) for column in range(result.nfields)]
        return [
            tuple(
                None if (value := result.get_value(row, column)) is None else read(value)
                for column, read in enumerate(readers)
            )
            for row in range(result.ntuples)
        ]

    def _prepare(self, text: str) -> bytes:
        name = f"fencing_outbox_{len(self.prepared)}"
        self._checked(self._pgconn.prepare(name.encode(), text.encode(self._encoding)))
        self.prepared[name] = text
        self._names[text] = name.encode()
        return self._names[text]

    def _checked(self, result: Any) -> Any:
        from psycopg import OperationalError, errors
        from psycopg.pq import DiagnosticField, ExecStatus

        if result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            return result
        state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode("ascii")
        said = self._text(result.error_message or self._pgconn.error_message).strip()
        try:
            kind = errors.lookup(state)
        except KeyError:
            kind = OperationalError  # the connection is lost: the server gave no code
        exc = kind(said)
        error = translate(exc, self.downstream, tables=TABLES)
        if error is None:
            raise exc
        raise error from exc

    def _written(self, value: Any) -> bytes | None:
        return None if value is None else str(value).encode(self._encoding)

    def _text(self, value: bytes) -> str:
        return value.decode(self._encoding, "replace")


@lru_cache(maxsize=64)
def _positional(sql: str) -> tuple[str, tuple[str, ...]]:
    """The text with ``$1`` for the first ``:name``, and the names in order."""
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    return _PARAMETER.sub(number, sql), tuple(names)
