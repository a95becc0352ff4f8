"""`LeaseSystem`: what the author of a :class:`~fencing.LeaseSource` writes, and the model of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fencing._lease import Lease, holding, lease_clock
from fencing._ports import LeaseSource
from fencing._token import Token
from fencing.errors import LeaseUnavailableError


class LeaseSystem(ABC):
    """One system under test that hands out named leases with tokens."""

    name: str
    """For reports."""

    @abstractmethod
    def fresh(self) -> None:
        """No lease is held from now on. The tokens go on: a system that forgot them would be refused everywhere."""

    @abstractmethod
    def source(self, owner: str) -> LeaseSource:
        """The source of one owner, a process say: the same for the same name."""

    @abstractmethod
    def run_out(self, name: str) -> None:
        """Let the lease end as if its time had passed, and nobody tell its holder."""

    def renew(self, owner: str) -> None:
        """Renew all that the owner believes to hold, as its process does now and then.

        What turns out to be another's by then is lost: its ``Lease`` must say so once this returns. Optional: a system
        that does not write it is not asked, and what a late renewal does is not proved.
        """
        raise TypeError(f"{type(self).__name__} ({self.name}) does not say how to renew: write renew(owner)")

    @property
    def renews(self) -> bool:
        """Whether it says how to renew."""
        return type(self).renew is not LeaseSystem.renew


@dataclass(slots=True)
class _Held:
    owner: str
    token: Token


class MemoryLeases(LeaseSystem):
    """The model: leases of one process, whose time passes when :meth:`run_out` says so."""

    name = "memory"

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._believed: dict[str, list[Lease]] = {}
        self._last = 0

    def fresh(self) -> None:
        """Forget who holds what."""
        self._held.clear()
        self._believed.clear()

    def source(self, owner: str) -> LeaseSource:
        """One owner's view."""
        return _Source(self, owner)

    def run_out(self, name: str) -> None:
        """It is free."""
        self._held.pop(name, None)

    def renew(self, owner: str) -> None:
        """Tell the owner of what it has lost; nothing here runs out by itself."""
        for lease in self._believed.get(owner, ()):
            if not self.holds(lease):
                lease.lose()

    def holds(self, lease: Lease) -> bool:
        """Whether it is still the lease's: by its token, since the same owner may have claimed again."""
        return lease.name in self._held and self._held[lease.name].token == lease.token

    def believes(self, lease: Lease) -> None:
        """Its holder renews it from now on, until it gives it back."""
        self._believed.setdefault(lease.holder, []).append(lease)

    def forget(self, lease: Lease) -> None:
        """Its holder renews it no more."""
        self._believed[lease.holder] = [one for one in self._believed.get(lease.holder, ()) if one is not lease]

    def acquire(self, name: str, owner: str) -> Token:
        """Take a free lease under a new token."""
        if name in self._held:
            raise LeaseUnavailableError(f"the lease {name!r} is held by {self._held[name].owner}")
        token = Token(self.next_value(name), "memory", "l1")
        self._held[name] = _Held(owner, token)
        return token

    def next_value(self, name: str) -> int:
        """A number that was never handed out."""
        self._last += 1
        return self._last

    def release(self, name: str, owner: str, token: Token) -> None:
        """Give it back, by its token: a holder that comes too late frees nobody else's."""
        if name in self._held and self._held[name].token == token:
            del self._held[name]


class _Source:
    """What :class:`MemoryLeases` is to one owner."""

    def __init__(self, leases: MemoryLeases, owner: str) -> None:
        self._leases = leases
        self._owner = owner

    @contextmanager
    def lease(self, name: str, *, ttl: float, wait: float = 0) -> Iterator[Lease]:
        """As :meth:`fencing.LeaseSource.lease`; waiting is of no use here."""
        token = self._leases.acquire(name, self._owner)
        lease = Lease(token, name, self._owner, deadline=lease_clock() + ttl)
        self._leases.believes(lease)
        try:
            with holding(lease):
                yield lease
        finally:
            lease.end("released")
            self._leases.forget(lease)
            self._leases.release(name, self._owner, token)
