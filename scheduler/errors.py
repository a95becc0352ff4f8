"""The scheduler's own errors.

What a wrong argument raises is a ``ValueError``; everything that concerns a token, a lease or a fence is in
:mod:`fencing.errors`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fencing.errors import FencingError

__all__ = [
    "DatabaseError",
    "DatabaseUnavailableError",
    "IssuerError",
    "JobStateError",
    "LedgerHorizonError",
    "NotMigratedError",
    "ScheduleError",
    "UnknownJobError",
    "UnknownScheduleError",
    "UnknownTaskError",
    "ValueRefusedError",
]

_AROUND = 60  # characters shown before and after the place in a long text


class ScheduleError(ValueError):
    """A schedule that cannot be accepted, with the place of the mistake.

    The message says what is wrong and what to write instead, and shows the text with a line of carets under the place.

    Attributes:
        expr: the text that was refused: a cron rule, a zone's name, or an option's value.
        field: which part of the schedule it is (``"minute"``, ``"day-of-week"``, ``"tz"``, ``"gap"``, …), or ``None``
            when the mistake is in the text as a whole.
        position: where the mistake begins in ``expr``, in characters from 0.
    """

    def __init__(self, problem: str, *, expr: str, field: str | None = None, position: int = 0, length: int = 1):
        self.expr = expr
        self.field = field
        self.position = position
        where = f"{field}: " if field else ""
        super().__init__(f"{where}{problem}\n{_underlined(expr, position, length)}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Crosses processes as it is: the message is finished, and __init__ would want the parts of it.
        return _remade, (type(self), self.args, self.__dict__)


def _remade(kind: type[ScheduleError], args: tuple[Any, ...], facts: dict[str, Any]) -> ScheduleError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


def _underlined(text: str, position: int, length: int) -> str:
    """Two indented lines: the text, and carets under ``length`` characters from ``position``."""
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    left = max(0, position - _AROUND)
    right = position + max(length, 1) + _AROUND
    head = "…" if left else ""
    tail = "…" if right < len(shown) else ""
    carets = "^" * max(1, min(length, len(shown) - position))
    return f"    {head}{shown[left:right]}{tail}\n    {' ' * (len(head) + position - left)}{carets}"


class UnknownTaskError(ValueError):
    """A task of that name was never registered with this scheduler."""


class UnknownJobError(ValueError):
    """There is no job of that number: it never was, or its retention time is over."""


class JobStateError(ValueError):
    """A job is not in a state from which that can be done with it. Nothing was changed."""


class UnknownScheduleError(ValueError):
    """There is no schedule of that name in the database."""


class LedgerHorizonError(ValueError):
    """A backfill reaches back to where the ledger may no longer say what ran. Ask with ``force`` to do it all the same.

    Attributes:
        horizon: the first moment from which the ledger is whole.
    """

    def __init__(self, message: str, horizon: datetime):
        super().__init__(message, horizon)
        self.horizon = horizon

    def __str__(self) -> str:
        return str(self.args[0])


class DatabaseError(FencingError):
    """The scheduler's database refused a statement. The cause is the driver's error."""


class DatabaseUnavailableError(DatabaseError):
    """The scheduler's database cannot be reached, or the connection was lost in the middle of a statement.

    For a single statement that was sent, the outcome is unknown: a claim whose reply was lost runs out and is
    rescued, a settlement may be sent again.
    """


class ValueRefusedError(DatabaseError):
    """The database cannot store a value: sent again, it would be refused again."""


class NotMigratedError(DatabaseError):
    """The scheduler's tables are missing or older than this code. ``fencing migrate`` makes them."""


class IssuerError(FencingError):
    """The issuer cannot give a token that is surely higher than every earlier one; it gives none."""
