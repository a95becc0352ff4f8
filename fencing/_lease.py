"""The lease: a claim that ends by itself, and the token that came with it."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextvars import ContextVar
from datetime import datetime

from fencing._token import Token
from fencing.errors import AmbiguousLeaseError, LeaseLostError, NoLeaseError

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_gettime = time.clock_gettime


def lease_clock() -> float:
    """Seconds on the clock that leases are measured by: monotonic, and going on while the machine sleeps where it can.

    Wall clocks jump and ``CLOCK_MONOTONIC`` stands still in a suspend, in which the lease runs out all the same.
    """
    return _gettime(_CLOCK)


def process_holder() -> str:
    """A name for this process where a writer gave none: host and process id. For people to read, never compared."""
    return _holder or _name_process()


_holder = ""


def _name_process() -> str:
    global _holder
    _holder = f"{socket.gethostname()}:{os.getpid()}"
    return _holder


def _forked() -> None:
    global _holder
    _holder = ""


os.register_at_fork(after_in_child=_forked)  # rather than a getpid() on every write's way


class Lease:
    """A time-limited claim on ``name``, held by ``holder``, with the ``token`` that it was given.

    ``lost`` is a :class:`threading.Event`, set once the lease is known to be gone: wait on it or look at it. Nothing
    here stops a paused process; only the downstream that compares tokens can.

    ``began_at`` (aware): when the work began to exist that is done under the lease, the same for all its attempts and
    replays, by its issuer's clock: of a job, when it was enqueued. None of a named lease, which does not know.
    """

    began_at: datetime | None = None

    _ended: str | None = None
    _gone = False
    _why = ""
    _lost: threading.Event | None = None

    def __init__(self, token: Token, name: str, holder: str, *, deadline: float) -> None:
        """``deadline`` is a :func:`lease_clock` time, measured from *before* the claim was sent."""
        self.token = token
        self.name = name
        self.holder = holder
        self._deadline = deadline

    def __repr__(self) -> str:
        state = self._ended or ("lost" if self.is_lost else f"{self.remaining():.1f} s left")
        return f"<Lease {self.name!r} {self.token} of {self.holder}: {state}>"

    @property
    def lost(self) -> threading.Event:
        """Set once the lease is known to be gone."""
        # Made when somebody asks: most leases end before anybody does, and an Event costs as much as the rest of them.
        if self._lost is None:
            with _making_event:
                if self._lost is None:
                    self._lost = threading.Event()
            # After the assignment: whoever loses the lease sets _gone first and looks for the event then.
            if self._gone:
                self._lost.set()
        return self._lost

    @property
    def is_lost(self) -> bool:
        """Whether the lease is known to be gone."""
        return self._gone or (self._lost is not None and self._lost.is_set())

    @property
    def ended(self) -> bool:
        """Whether the holder itself settled or released it."""
        return self._ended is not None

    def remaining(self) -> float:
        """Seconds left by this machine's clock, 0 when it is over. A renewal in between makes it longer."""
        if self._ended or self.is_lost:
            return 0.0
        return max(0.0, self._deadline - lease_clock())

    def ensure(self) -> None:
        """Raise :class:`~fencing.errors.LeaseLostError` if the lease is over.

        A courtesy that saves work: it says nothing about the moment after, so a write must be fenced all the same.
        """
        self.ensure_not_ended()
        if self.expire_if_due():
            cause = f", {self._why}" if self._why else ""
            raise LeaseLostError(
                f"the lease on {self.name!r} ({self.token}) is lost{cause}: stop here; writes under it will be refused",
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
        if self._deadline <= _gettime(_CLOCK):
            self.lose()
        return self._gone or (self._lost is not None and self._lost.is_set())

    def lose(self, why: str = "") -> None:
        """For issuers: the lease is gone; set ``lost``. ``why``, where it is known, is shown by :meth:`ensure`."""
        # Before the flag: whoever sees that it is lost finds the cause.
        self._why = self._why or why
        self._gone = True
        if self._lost is not None:
            self._lost.set()

    def end(self, how: str) -> None:
        """For issuers: the holder ``settled`` or ``released`` the lease."""
        self._ended = how


_making_event = threading.Lock()
_held: ContextVar[tuple[Lease, ...]] = ContextVar("fencing_held_leases", default=())


class holding:
    """For issuers: make ``lease`` the one that :func:`current_lease` finds inside the block."""

    __slots__ = ("_before", "_lease", "_within")

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._before: tuple[Lease, ...] = ()
        self._within: tuple[Lease, ...] = ()

    def __enter__(self) -> Lease:
        self._before = _held.get()
        self._within = (*self._before, self._lease)
        _held.set(self._within)
        return self._lease

    def __exit__(self, *_: object) -> None:
        held = _held.get()
        if held is self._within:
            _held.set(self._before)
        else:
            # By identity, not back to what was before: two blocks need not end in the order in which they began.
            _held.set(tuple(lease for lease in held if lease is not self._lease))


def hold_alone(lease: Lease | None) -> None:
    """For issuers whose threads run one job after another: from now on ``lease`` is the only one that
    :func:`current_lease` finds on this thread. What an earlier job left behind is forgotten, and nothing has to be
    taken back: a lease that was settled refuses."""
    _held.set(() if lease is None else (lease,))


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
