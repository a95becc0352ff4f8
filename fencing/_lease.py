"""The lease: a claim that ends by itself, and the token that came with it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fencing._token import Token
from fencing.errors import AmbiguousLeaseError, LeaseLostError, NoLeaseError

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_clock() -> float:
    """Seconds on the clock that leases are measured by: monotonic, and going on while the machine sleeps where it can.

    Wall clocks jump and ``CLOCK_MONOTONIC`` stands still in a suspend, in which the lease runs out all the same.
    """
    return time.clock_gettime(_CLOCK)


def process_holder() -> str:
    """A name for this process where a writer gave none: host and process id. For people to read, never compared."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Lease:
    """A time-limited claim on ``name``, held by ``holder``, with the ``token`` that it was given.

    ``lost`` is a :class:`threading.Event`, set once the lease is known to be gone: wait on it or look at it. Nothing
    here stops a paused process; only the downstream that compares tokens can.
    """

    def __init__(self, token: Token, name: str, holder: str, *, deadline: float) -> None:
        """``deadline`` is a :func:`lease_clock` time, measured from *before* the claim was sent."""
        self.token = token
        self.name = name
        self.holder = holder
        self.lost = threading.Event()
        self._deadline = deadline
        self._ended: str | None = None

    def __repr__(self) -> str:
        state = self._ended or ("lost" if self.lost.is_set() else f"{self.remaining():.1f} s left")
        return f"<Lease {self.name!r} {self.token} of {self.holder}: {state}>"

    @property
    def ended(self) -> bool:
        """Whether the holder itself settled or released it."""
        return self._ended is not None

    def remaining(self) -> float:
        """Seconds left by this machine's clock, 0 when it is over. A renewal in between makes it longer."""
        if self._ended or self.lost.is_set():
            return 0.0
        return max(0.0, self._deadline - lease_clock())

    def ensure(self) -> None:
        """Raise :class:`~fencing.errors.LeaseLostError` if the lease is over.

        A courtesy that saves work: it says nothing about the moment after, so a write must be fenced all the same.
        """
        self.ensure_not_ended()
        if self.lost.is_set() or self._deadline <= lease_clock():
            self.lost.set()
            raise LeaseLostError(
                f"the lease on {self.name!r} ({self.token}) is lost: stop here; writes under it will be refused",
                presented=self.token,
                holder=self.holder,
            )

    def ensure_not_ended(self) -> None:
        """Raise :class:`~fencing.errors.LeaseLostError` if the holder itself settled or released the lease.

        The clock has no say here: only the downstream judges a write. But a thread that outlived its job must not
        write on.
        """
        if self._ended:
            raise LeaseLostError(
                f"the lease on {self.name!r} ({self.token}) was {self._ended}: nothing may be written under it",
                presented=self.token,
                holder=self.holder,
            )

    def extend(self, deadline: float) -> None:
        """For issuers: the renewal was confirmed; a deadline never moves back."""
        self._deadline = max(self._deadline, deadline)

    def expire_if_due(self) -> bool:
        """For issuers: set ``lost`` if the deadline has passed; return whether the lease is lost."""
        if self._deadline <= lease_clock():
            self.lost.set()
        return self.lost.is_set()

    def end(self, how: str) -> None:
        """For issuers: the holder ``settled`` or ``released`` the lease."""
        self._ended = how


_held: ContextVar[tuple[Lease, ...]] = ContextVar("fencing_held_leases", default=())


@contextmanager
def holding(lease: Lease) -> Iterator[Lease]:
    """For issuers: make ``lease`` the one that :func:`current_lease` finds inside the block."""
    reset = _held.set((*_held.get(), lease))
    try:
        yield lease
    finally:
        _held.reset(reset)


def current_lease() -> Lease:
    """Return the lease of the running job or ``with app.lease(...)`` block.

    Raises :class:`~fencing.errors.NoLeaseError` outside of any (a thread pool inherits none) and
    :class:`~fencing.errors.AmbiguousLeaseError` in a lease inside a job, where nobody but the caller knows which is
    meant.
    """
    held = _held.get()
    if not held:
        raise NoLeaseError(
            "no job or lease runs here (a thread pool does not inherit its caller's): pass token=job or token=lease"
        )
    if len(held) > 1:
        names = ", ".join(repr(lease.name) for lease in held)
        raise AmbiguousLeaseError(f"several leases are held here ({names}): say which one with token=")
    return held[0]


def inherited_lease() -> Lease | None:
    """The one lease held here, or None where there is none. Raises ``AmbiguousLeaseError`` where there are several."""
    return current_lease() if _held.get() else None
