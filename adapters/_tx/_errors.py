"""The one place where drivers' errors become the toolkit's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from fencing.errors import (
    ContentionError,
    FencingError,
    NotInTransactionError,
    OutcomeUnknownError,
    SchemaMissingError,
)

SQL_TABLES = "adapters.sql.create_all(bind)"
"""How the guard's tables are made, for :class:`SchemaMissingError`."""

# PostgreSQL, appendix A: what a transaction meets because of another one, after which nothing of it is left.
_CONFLICTS = {
    "40001": "it could not be serialized with a concurrent transaction",
    "40P01": "it was the victim of a deadlock",
    "55P03": "the lock timeout was over while another transaction held the row",
}
_CANCELLED = "57014"
_IN_FAILED_TRANSACTION = "25P02"
_UNDEFINED_TABLE = "42P01"

# MariaDB's and MySQL's numbers: what a transaction meets because of another one. A deadlock ends it, the others a
# statement.
_MYSQL_CONFLICTS = {
    1205: "the lock wait timeout was over while another transaction held the row",
    1213: "it was the victim of a deadlock",
    1020: "the row has changed since the transaction's snapshot",
    3572: "another transaction held the row",
}
_MYSQL_NO_TABLE = 1146
# Of a connection that ends, or of the client: whether a commit was done is not known.
_MYSQL_LOST = frozenset({1053, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 3169, *range(2000, 2100)})

# SQLite result codes; an extended code carries its primary code in the low byte.
_SQLITE_BUSY = 5
_SQLITE_LOCKED = 6
_SQLITE_IOERR = 10


def translate(
    exc: BaseException, downstream: str, *, tables: str = SQL_TABLES, cancelled_is_contention: bool = True
) -> FencingError | None:
    """Return what a driver's error means here, or None if it has no meaning of ours and should pass as it is.

    Takes errors of psycopg and sqlite3, bare or wrapped by SQLAlchemy (and of any DB-API driver that tells an
    SQLSTATE). A connection lost before a commit was sent is not translated: nothing was written, and the driver's own
    error says what happened. ``cancelled_is_contention``: whether a cancelled statement (``statement_timeout``, while
    it waited for a mark) counts as contention.
    """
    cause = _driver_error(exc)
    state = _sqlstate(cause)
    if state in _CONFLICTS:
        return _contention(downstream, _CONFLICTS[state])
    if state == _CANCELLED and cancelled_is_contention:
        return _contention(downstream, "its statement was cancelled, by statement_timeout or by request")
    if state == _IN_FAILED_TRANSACTION:
        return NotInTransactionError(
            f"{downstream}: an earlier statement failed and with it the transaction; nothing was written. "
            "Roll it back (or to a savepoint) and begin again",
            downstream=downstream,
        )
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in (_SQLITE_BUSY, _SQLITE_LOCKED):
        return _contention(downstream, f"SQLite answered {getattr(cause, 'sqlite_errorname', 'SQLITE_BUSY')}: {cause}")
    number = _mysql_number(cause)
    if number in _MYSQL_CONFLICTS:
        return _contention(downstream, _MYSQL_CONFLICTS[number])
    if (
        state == _UNDEFINED_TABLE
        or number == _MYSQL_NO_TABLE
        or (code is not None and str(cause).startswith("no such table"))
    ):
        detail = str(cause).strip().splitlines()[0]
        return SchemaMissingError(
            f"{downstream}: {detail}; nothing was written. Create the tables with {tables}", downstream=downstream
        )
    return None


def translate_commit(exc: BaseException, downstream: str) -> FencingError | None:
    """Return what an error *of a commit that we sent* means: contention, unknown, or None where the server said no.

    A commit whose answer was lost may have happened. Only an SQLSTATE that the server sends instead of committing
    proves that it did not: not those of a lost or closing connection (classes 08 and 57P), nor 40003 (*statement
    completion unknown*).
    """
    known = translate(exc, downstream, cancelled_is_contention=False)
    if known is not None:
        return known
    cause = _driver_error(exc)
    state = _sqlstate(cause)
    code = getattr(cause, "sqlite_errorcode", None)
    number = _mysql_number(cause)
    if number:
        refused = number not in _MYSQL_LOST
    elif state is not None:
        refused = not state.startswith(("08", "57P")) and state != "40003"
    else:
        refused = code is not None and code & 0xFF != _SQLITE_IOERR
    if refused or not _is_driver_error(cause):
        return None
    return OutcomeUnknownError(
        f"{downstream}: the answer to the commit was lost ({cause}): the write may or may not have been applied. "
        "Look before you write again, or use once=KEY and repeat the call",
        downstream=downstream,
    )


def reraise(exc: Exception, downstream: str, tables: str) -> NoReturn:
    """Raise what the error of a statement of ours means, or the error itself. Call it where the error is caught."""
    error = translate(exc, downstream, tables=tables)
    if error is None:
        raise exc
    raise error from exc


@contextmanager
def retryable(downstream: str) -> Iterator[None]:
    """Name the contention that ended a transaction *of our own*, whoever's statement met it; all else passes unchanged.

    A cancelled statement may have been cancelled by a person, so it is no reason to run the whole again.
    """
    try:
        yield
    except FencingError:
        raise
    except Exception as exc:
        error = translate(exc, downstream, cancelled_is_contention=False)
        if not isinstance(error, ContentionError):
            raise
        raise error from exc


class committing:
    """A block that names what an error of our own commit means; see :func:`translate_commit`.

    ``named``: asked for its ``downstream`` when there is something to say.
    """

    __slots__ = ("_named",)

    def __init__(self, named: Any) -> None:
        self._named = named

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: Any) -> None:
        if exc is not None and isinstance(exc, Exception):
            error = translate_commit(exc, self._named.downstream)
            if error is not None:
                raise error from exc


def _contention(downstream: str, why: str) -> ContentionError:
    return ContentionError(
        f"{downstream}: the transaction met another one: {why}. Nothing was written; roll back and try again",
        downstream=downstream,
    )


def _driver_error(exc: BaseException) -> BaseException:
    orig = getattr(exc, "orig", None)
    return orig if isinstance(orig, BaseException) else exc


def _sqlstate(cause: BaseException) -> str | None:
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return state if isinstance(state, str) else None


def _mysql_number(cause: BaseException) -> int:
    """The error's number if PyMySQL or asyncmy raised it, else 0."""
    if not type(cause).__module__.startswith(("pymysql", "asyncmy")) or not cause.args:
        return 0
    number = cause.args[0]
    return number if isinstance(number, int) else 0


def _is_driver_error(cause: BaseException) -> bool:
    """Whether a DB-API driver raised it: PEP 249 names the classes, so a class ``Error`` in the MRO says so."""
    return any(kind.__name__ == "Error" for kind in type(cause).__mro__)
