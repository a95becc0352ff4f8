"""The model guards as downstreams: the kit's own example, and what the planted bugs are planted in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fencing._law import OnMissing
from fencing._token import Token
from fencing.errors import OutcomeUnknownError
from fencing.testing._downstream import Capability, Downstream
from fencing.testing._memory import MemoryGuard, MemoryStore

MakeGuard = Callable[[OnMissing], MemoryGuard]


class MemoryDownstream(Downstream):
    """A :class:`MemoryGuard` whose transactions are the caller's, one at a time: its lock is a thread's."""

    name = "memory"
    capabilities = frozenset(Capability) - {Capability.REOPEN, Capability.CONCURRENT}

    def __init__(self, make: MakeGuard = MemoryGuard) -> None:
        self._make = make
        self.guard = make("create")
        self._replies_to_lose = 0

    def fresh(self, on_missing: OnMissing) -> None:
        """A new dictionary."""
        self.guard = self._make(on_missing)

    @contextmanager
    def transaction(self) -> Iterator[MemoryGuard]:
        """Take everything back if the block raises."""
        with self.guard._transaction():
            yield self.guard
        self._answer()

    def write(self, handle: Any, resource: str, value: str) -> None:
        """Set it."""
        handle.write(resource, value)

    def read(self, handle: Any, resource: str) -> Any:
        """Read it."""
        return handle.read(resource)

    def delete(self, handle: Any, resource: str) -> None:
        """Remove it."""
        handle.delete(resource)

    def lose(self, resource: str) -> None:
        """Forget its mark."""
        self.guard._marks.pop(resource, None)

    def compact(self, below: Token) -> None:
        """As :meth:`MemoryGuard.compact`."""
        self.guard.compact(below)

    @contextmanager
    def losing_replies(self, times: int) -> Iterator[None]:
        """The end of a transaction is not told."""
        self._replies_to_lose = times
        try:
            yield
        finally:
            self._replies_to_lose = 0

    def _answer(self) -> None:
        if self._replies_to_lose:
            self._replies_to_lose -= 1
            raise OutcomeUnknownError("the answer was lost", downstream=self.name)

    def look(self, resource: str) -> str | None:
        """Read it past the guard."""
        found: str | None = self.guard.store.read(resource)
        return found


class Tape:
    """A handle that records what is to be done to a store once the block has ended."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._steps: list[Callable[[], None]] = []

    def write(self, key: str, value: Any) -> None:
        """Record a write."""
        self._steps.append(lambda: self._store.write(key, value))

    def delete(self, key: str) -> None:
        """Record a removal."""
        self._steps.append(lambda: self._store.delete(key))

    def read(self, key: str) -> Callable[[], Any]:
        """Record a read; what it found is known once the block has ended."""
        found: list[Any] = []
        self._steps.append(lambda: found.append(self._store.read(key)))
        return lambda: found[0]

    def play(self) -> None:
        """Do what was recorded."""
        for step in self._steps:
            step()


class RecordingGuard(MemoryGuard):
    """A :class:`MemoryGuard` that judges when the block ends, and does then what it recorded: the way of Redis."""

    @contextmanager
    def open(self, resources: tuple[str, ...], token: Token, holder: str) -> Iterator[Any]:
        """Yield a :class:`Tape`; admit the token and play it in one step."""
        tape = Tape(self.store)
        yield tape
        with self._transaction():
            self._admit(resources, token, holder, self._on_missing)
            tape.play()


class RecordingDownstream(MemoryDownstream):
    """A :class:`RecordingGuard`: several workers' blocks may be open at once, with no transaction around them."""

    name = "recording memory"
    capabilities = frozenset(Capability) - {Capability.REOPEN, Capability.ROLLBACK, Capability.ONCE}

    def __init__(self, make: MakeGuard = RecordingGuard) -> None:
        super().__init__(make)

    @contextmanager
    def transaction(self) -> Iterator[MemoryGuard]:
        """Nothing surrounds a write."""
        yield self.guard
        self._answer()
