"""Statements of our own that are queued in a psycopg pipeline and not waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from fencing.errors import FencingError, NotInTransactionError

Naming = Callable[[BaseException], FencingError | None]

CAN_BE_LATE = hasattr(psycopg.Cursor, "_check_results") and hasattr(psycopg.AsyncCursor, "_check_results")
"""psycopg looks at each answer under a private name. Where that is gone, every statement is waited for."""

_FOLLOWS = (psycopg.errors.PipelineAborted, psycopg.errors.InFailedSqlTransaction, NotInTransactionError)
"""What statements meet that come after one that failed."""


class Late:
    """The answer to such a statement. Whoever waits for anything behind it, or for the pipeline's end, brings it in."""

    __slots__ = ("_name", "_then", "error", "is_known")

    def __init__(self, name: Naming) -> None:
        """``name``: which error of ours an error of the driver is."""
        self._name = name
        self._then: Callable[[BaseException | None], None] | None = None
        self.error: BaseException | None = None
        self.is_known = False

    def then(self, call: Callable[[BaseException | None], None]) -> None:
        """Call with the error, or None, once it is known."""
        if self.is_known:
            call(self.error)
        else:
            self._then = call

    def raise_for(self, error: BaseException | None) -> None:
        """Raise the error if it is known and ``error``, which ended the block, is none or no more than follows."""
        if self.error is not None and (error is None or isinstance(error, _FOLLOWS)):
            raise self.error

    def fail(self, exc: psycopg.Error) -> psycopg.Error:
        """Return what to raise in place of the driver's error."""
        known = self._name(exc)
        error = exc if known is None else _as_both(known, exc)
        self.settle(error)
        return error

    def settle(self, error: psycopg.Error | None = None) -> None:
        """It is known. Raises nothing but errors of psycopg's, which loses its place among the answers otherwise."""
        self.error = error
        self.is_known = True
        then, self._then = self._then, None
        if then is not None:
            try:
                then(error)
            except Exception as exc:  # noqa: BLE001 - raised again, as one that psycopg knows
                raise psycopg.InternalError(f"a fenced write could not be recorded: {exc}") from (error or exc)


class _Late:
    """A cursor whose answer is late."""

    late: Late

    def _check_results(self, results: Any) -> None:
        try:
            super()._check_results(results)  # type: ignore[misc]
        except psycopg.Error as exc:
            error = self.late.fail(exc)
            if error is exc:
                raise
            raise error from exc
        self.late.settle()


class _LateCursor(_Late, psycopg.Cursor[tuple[Any, ...]]):
    pass


class _AsyncLateCursor(_Late, psycopg.AsyncCursor[tuple[Any, ...]]):
    pass


def late_cursor(connection: Any, late: Late) -> Any:
    """A cursor of the connection that tells ``late`` what is answered."""
    kind = _AsyncLateCursor if isinstance(connection, psycopg.AsyncConnection) else _LateCursor
    cursor = kind(connection, row_factory=tuple_row)
    cursor.late = late
    return cursor


class _Both(psycopg.Error):
    """An error of ours that psycopg carries: it reads on to the end of its pipeline after no other."""

    def __reduce__(self) -> Any:
        kind = type(self).__bases__[0]
        facts = {name: value for name, value in self.__dict__.items() if name not in _PSYCOPGS}
        return _rebuilt, (kind, self.args[0], facts)


_PSYCOPGS = frozenset(vars(psycopg.Error())) | {"sqlstate"}


def _rebuilt(kind: type[FencingError], message: str, facts: dict[str, Any]) -> FencingError:
    error = kind.__new__(kind, message)
    error.__dict__.update(facts)
    return error


_classes: dict[type[FencingError], type[Any]] = {}


def _class_of_both(kind: type[FencingError]) -> type[Any]:
    if kind not in _classes:
        body = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__reduce__": _Both.__reduce__}
        _classes[kind] = type(kind.__name__, (kind, _Both), body)
    return _classes[kind]


def _as_both(error: FencingError, exc: psycopg.Error) -> psycopg.Error:
    kind = _class_of_both(type(error))
    both: psycopg.Error = kind.__new__(kind, *error.args)
    both.__dict__.update(vars(exc), sqlstate=exc.sqlstate)
    both.__dict__.update(vars(error))
    return both
