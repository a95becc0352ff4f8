"""What each database is told, as one shape: the statements that the plans are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Dialect:
    """The statements of one dialect, for one schema and one lock timeout. Parameters are named ``:name``.

    The three that raise marks answer with numbers whose sum is how many marks moved. They decide as
    :func:`fencing._law.judge` does, in the database, with the mark's row locked until the transaction ends, also when
    the token is equal (a row that is only looked at can change before the commit, at every isolation level). A mark
    that did not move is read in the next statement, and judged by the law itself.
    """

    name: str
    raise_one: str
    """Raise the mark ``:resource``, making it if it is missing."""
    raise_many: str
    """Raise the marks ``:resources`` in their order, making those that are missing."""
    raise_existing: str
    """Raise those of the marks ``:resources`` that exist, locked in their order."""
    read_one: str
    """Read the mark ``:resource``: resource, issuer, lineage, value, holder, time."""
    read_refused: str
    """Read the marks ``:resources`` after one of them was not raised; the rows are locked by then."""
    claim_key: str
    """Insert ``:key`` with ``:fingerprint`` if it is not there, after whoever is inserting it; a row if inserted."""
    read_applied: str
    """Read the fingerprint and result of ``:key``."""
    store_result: str
    """Store ``:result`` for ``:key``."""
    names: Callable[[tuple[str, ...]], Any]
    """How several names are passed as the one parameter ``:resources``."""
    moment: Callable[[Any], datetime]
    """How a mark's time is read, aware."""
    busy_timeout_ms: int | None = None
    """SQLite only: the longest wait for its one write lock, in ms; elsewhere the statements bound their own waits."""
