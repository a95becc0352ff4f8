"""What each database is told, as one shape: the statements that the plans are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Dialect:
    """The statements of one dialect, for one schema and one lock timeout. Parameters are named ``:name``.

    The three that raise marks answer with rows of two numbers; their sums are how many marks moved, and how many of
    those were made. They decide as
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
    """Read the marks ``:resources`` after one of them was not raised; the rows are locked by then. And the time."""
    unmake_one: str
    """Remove the mark ``:resource`` that this transaction has made, and that a floor does not allow."""
    read_floors: str
    """Read the floors, so that they cannot be raised before this transaction ends. Sent after the mark was made."""
    look_at_floors: str
    """Read the floors to show them."""
    queue_for_floors: str
    """PostgreSQL only: wait in turn for everybody who has read the floors so. To wait for their row is no turn: who
    comes later shares it with those who have it, and the one who waits for all of them never gets it."""
    lock_floors: str
    """Read the floors, after everybody who has read them so; nobody reads them before this transaction ends."""
    store_floors: str
    """Store ``:floors``."""
    compact: str
    """Remove marks of ``:issuer`` below ``:floor`` that nobody holds, that were not raised for ``:idle`` seconds, and
    whose resource was not taken over from an issuer whose floor does not cover it; resources."""
    adopt: str
    """Give the mark ``:resource`` to another issuer, whatever it was. It permits no write to a protected table."""
    list_marks: str
    """The marks after ``:after`` by name, ``:limit`` of them, whose names begin with ``:prefix``: as ``read_one``."""
    explain_one: str
    """As ``read_one``, and since when the token, and how often raised."""
    insert_act: str
    """Record an act: ``:kind :resource :actor :reason :detail``."""
    read_acts: str
    """Acts of ``:kind`` for ``:resource``, the newest first, ``:limit`` of them: time, actor, reason, detail."""
    open_unfenced: str
    """Record that this transaction writes unfenced, which is what permits it."""
    close_unfenced: str
    """Withdraw the permission."""
    claim_key: str
    """Insert ``:key`` with ``:fingerprint`` if it is not there, after whoever is inserting it; a row if inserted."""
    read_horizon: str
    """Read the moment before which records of applied effects were purged, as it is after the statement before.

    Where the snapshot is the whole transaction's, the row is locked too, and a purge since the snapshot an error.
    """
    read_applied: str
    """Read the fingerprint and result of ``:key``."""
    store_result: str
    """Store ``:result`` for ``:key``; a row if it is there, but on MariaDB and MySQL."""
    show_applied: str
    """Read ``:key`` for a person: fingerprint, result, issuer, lineage, value, holder, when applied, when begun."""
    look_at_horizon: str
    """Read the horizon to show it, and the time."""
    lock_horizon: str
    """Read the horizon and the time; one purge at a time."""
    store_horizon: str
    """Store ``:horizon``."""
    page_applied: str
    """The last of the ``:batch`` keys after ``:after``, and how many they are."""
    purge_applied: str
    """Remove the records after ``:after`` up to ``:last`` of effects that were applied before ``:applied`` and whose
    work is not known to have begun at ``:before`` or later; a row each. On MariaDB and MySQL their keys, locked."""
    remove_applied: str
    """Remove the record of ``:key``: only where ``purge_applied`` does not."""
    count_applied: str
    """How many ``purge_applied`` would remove of all, and how many there are."""
    names: Callable[[tuple[str, ...]], Any]
    """How several names are passed as the one parameter ``:resources``."""
    moment: Callable[[Any], datetime]
    """How a mark's time is read, aware."""
    written: Callable[[datetime | None], Any]
    """How an aware time is passed as a parameter."""
    close: str | None = None
    """Not on PostgreSQL, which can name a transaction: take the sign of this one off a mark, before the commit. In the
    driver's own parameter style, one parameter. Statements that raise marks then answer with the sign and the name too.
    """
    busy_timeout_ms: int | None = None
    """SQLite only: the longest wait for its one write lock, in ms; elsewhere the statements bound their own waits."""
