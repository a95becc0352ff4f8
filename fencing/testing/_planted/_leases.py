"""Lease systems that are wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from fencing._lease import Lease
from fencing._token import Token
from fencing.errors import LeaseUnavailableError
from fencing.testing._leases import MemoryLeases, _Held
from fencing.testing._planted._bug import PlantedBug


class ReleasesByOwner(MemoryLeases):
    """Whoever gives a lease back frees it if the holder has the same name."""

    def release(self, name: str, owner: str, token: Token) -> None:
        """A thread that comes late frees what its own process has claimed again."""
        if name in self._held and self._held[name].owner == owner:
            del self._held[name]


class ReleasesByName(MemoryLeases):
    """Whoever gives a lease back frees it."""

    def release(self, name: str, owner: str, token: Token) -> None:
        """A late one takes the lease away from whoever holds it by now."""
        self._held.pop(name, None)


class CountsWhatIsHeld(MemoryLeases):
    """The next number is one more than there are rows."""

    def next_value(self, name: str) -> int:
        """``count() + 1``."""
        return len(self._held) + 1


class KeepsTheOwnersToken(MemoryLeases):
    """An owner that claims again is given the token that it had."""

    def __init__(self) -> None:
        super().__init__()
        self._given: dict[tuple[str, str], Token] = {}

    def acquire(self, name: str, owner: str) -> Token:
        """The old pause is forgotten: a thread that slept through it still writes."""
        fresh = super().acquire(name, owner)
        token = self._given.setdefault((name, owner), fresh)
        self._held[name].token = token
        return token


class AdmitsItsOwnOwner(MemoryLeases):
    """The holder's own process is given the lease a second time."""

    def acquire(self, name: str, owner: str) -> Token:
        """Two threads of one process hold it at once."""
        if name in self._held and self._held[name].owner == owner:
            self._held.pop(name)
        elif name in self._held:
            raise LeaseUnavailableError(f"the lease {name!r} is held")
        return super().acquire(name, owner)


class RenewsByOwner(MemoryLeases):
    """A late renewal counts if the holder has the same name."""

    def holds(self, lease: Lease) -> bool:
        """A thread that slept through the pause goes on beside the one that its own process has started since."""
        return lease.name in self._held and self._held[lease.name].owner == lease.holder


class RenewalRevives(MemoryLeases):
    """A renewal writes the lease, whatever has become of it meanwhile."""

    def holds(self, lease: Lease) -> bool:
        """Taken back from whoever has it."""
        self._held[lease.name] = _Held(lease.holder, lease.token)
        return True


def _bug(name: str, seen_at: str, make: Callable[[], MemoryLeases]) -> PlantedBug:
    return PlantedBug(name, seen_at, "leases", ("leases",), lambda: nullcontext(make()))


LEASE_BUGS: tuple[PlantedBug, ...] = (
    _bug("release by owner", "fencekit (measured)", ReleasesByOwner),
    _bug("release by name", "a lock deleted by its key", ReleasesByName),
    _bug("count() + 1", "StarRocks #12138", CountsWhatIsHeld),
    _bug("same owner, same token", "oban #862, goatbeat", KeepsTheOwnersToken),
    _bug("held twice by one owner", "oban #862", AdmitsItsOwnOwner),
    _bug("renewal by owner", "fencekit (measured), for a release", RenewsByOwner),
    _bug("a renewal revives", "fawkes #164", RenewalRevives),
)
"""Faults of whoever hands out leases."""
