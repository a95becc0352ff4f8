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


@dataclass(slots=True)
class _Held:
    owner: str
    token: Token


class MemoryLeases(LeaseSystem):
    """The model: leases of one process, whose time passes when :meth:`run_out` says so."""

    name = "memory"

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._last = 0

    def fresh(self) -> None:
        """Forget who holds what."""
        self._held.clear()

    def source(self, owner: str) -> LeaseSource:
        """One owner's view."""
        return _Source(self, owner)

    def run_out(self, name: str) -> None:
        """It is free."""
        self._held.pop(name, None)

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
        try:
            with holding(lease):
                yield lease
        finally:
            lease.end("released")
            self._leases.release(name, self._owner, token)
