"""The issuer: tokens that never repeat and never fall, whatever happens to the server below.

A sequence alone repeats numbers after ``kill -9`` with asynchronous commit, on a promoted standby, after a restored
backup. So the issuer remembers what the server was when it last issued (:func:`identity` in the schema). When that
differs, the sequence is moved above everything that any server with this data can have issued: to the clock's
milliseconds since 2025 times 2048, which claims at less than 2,048 a millisecond never overtake. A new lineage tells
apart what two such servers issue in the same instant.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler._connect import Connection
from scheduler._sql import Statements
from scheduler.errors import IssuerError, NotMigratedError

SHIFT = 11
"""A floor is milliseconds since 2025-01-01 shifted left by this: room for 2,048 tokens a millisecond."""

LIMIT = 2**53
"""Tokens stay below this, so that they survive systems which keep numbers as doubles."""

_YEAR_MS = 366 * 24 * 3600 * 1000
BUMP = 2**31
"""How far ``fencing issuer bump`` moves at the least."""


@dataclass(frozen=True, slots=True)
class IssuerState:
    """What the issuer's row says, and what the server says now."""

    name: str
    lineage: str
    identity: str
    live_identity: str
    floor: int

    @property
    def current(self) -> bool:
        """Whether tokens may be issued under this lineage."""
        return self.identity == self.live_identity


def clock_floor(clock_ms: int, floor: int) -> int:
    """Return the first token of a lineage that begins at ``clock_ms`` (milliseconds since 2025-01-01, by the
    database's clock).

    Raises :class:`IssuerError` for a clock more than a year past the last change (a wrong clock would use up the
    numbers for good) or beyond the range.
    """
    seed = max(clock_ms, 0) << SHIFT
    if seed >= LIMIT:
        raise IssuerError("the database's clock is beyond the year 2164, or wrong: no token can be issued from it")
    if floor and seed > floor + (_YEAR_MS << SHIFT):
        raise IssuerError(
            "the database's clock is more than a year past the issuer's last change. If the clock is right, run "
            "`fencing issuer bump --reason 'clock checked'`; if not, set the clock first: "
            "a wrong floor cannot be taken back"
        )
    return seed


def not_installed() -> NotMigratedError:
    """Return the error for a schema whose issuer has no row."""
    return NotMigratedError("the issuer was never installed; run `fencing migrate`")


def restless() -> IssuerError:
    """Return the error for an issuer that found another server each time it was asked."""
    return IssuerError(
        "the issuer's identity changed three times in a row: is the server restarting? No token was issued"
    )


def lock_state(connection: Connection, statements: Statements) -> tuple[IssuerState, int]:
    """Read the issuer under its lock; return it and the database's clock in milliseconds since 2025-01-01."""
    row = connection.execute(statements["issuer_lock"]).fetchone()
    if row is None:
        raise not_installed()
    name, lineage, identity, live, floor, clock_ms = row
    return IssuerState(name, lineage, identity, live, floor), clock_ms


def ensure_current(connection: Connection, statements: Statements) -> bool:
    """Begin a new lineage if the server is not what it was; return whether that was needed.

    Read again under the lock: of many claimers that notice at once, one makes the change.
    """
    with connection.transaction():
        state, clock_ms = lock_state(connection, statements)
        if state.current:
            return False
        change(connection, statements, clock_floor(clock_ms, state.floor))
        return True


def change(connection: Connection, statements: Statements, floor: int, above: int = 1) -> int:
    """Write a new lineage whose tokens start at ``floor``, or ``above`` the sequence's last, and return where it
    starts."""
    row = connection.execute(statements["issuer_change"], {"floor": floor, "above": above}).fetchone()
    if row is None:
        raise not_installed()
    return int(row[1])
