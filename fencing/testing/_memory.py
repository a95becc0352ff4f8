"""The model guard: the law over a dictionary. Every real adapter must answer as this one does."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any

from fencing._findings import Finding
from fencing._law import Mark, OnMissing, judge, reject
from fencing._token import Token
from fencing.errors import KeyConflictError


class MemoryStore:
    """The handle of a :class:`MemoryGuard`: a dictionary of values that a refused or failed write leaves as it was."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def write(self, key: str, value: Any) -> None:
        """Set ``key``."""
        self.values[key] = value

    def read(self, key: str) -> Any:
        """Return what ``key`` holds, or None."""
        return self.values.get(key)

    def delete(self, key: str) -> None:
        """Forget ``key``. The resource's mark stays."""
        self.values.pop(key, None)


class MemoryGuard:
    """A guard over a dictionary:

    transactional, for one process, with ``once=``. The reference, and a fake for users' tests.
    """

    downstream = "memory"

    def __init__(self, on_missing: OnMissing = "create") -> None:
        self.store = MemoryStore()
        self._on_missing = on_missing
        self._marks: dict[str, Mark] = {}
        self._applied: dict[str, tuple[str, str]] = {}
        self._floors: dict[str, int] = {}
        self._lock = threading.RLock()

    def _admit(self, resources: tuple[str, ...], token: Token, holder: str, on_missing: OnMissing) -> None:
        for resource in resources:
            mark = self._marks.get(resource)
            verdict = judge(mark.token if mark else None, token, on_missing, self._floors.get(token.issuer, 0))
            if not verdict.accepted:
                reject(verdict, resource, token, mark, self.downstream)
            self._marks[resource] = Mark(token, holder, datetime.now(UTC))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            before = dict(self._marks), dict(self.store.values), dict(self._applied)
            try:
                yield
            except BaseException:
                self._marks, self.store.values, self._applied = before
                raise

    @contextmanager
    def open(self, resources: tuple[str, ...], token: Token, holder: str) -> Iterator[MemoryStore]:
        """Admit the token to all resources or none, and yield the store; an exception in the block undoes it."""
        with self._transaction():
            self._admit(resources, token, holder, self._on_missing)
            yield self.store

    def apply(
        self,
        resources: tuple[str, ...],
        token: Token,
        holder: str,
        effect: Callable[[MemoryStore], Any],
        once: str | None,
        fingerprint: str | None,
        began_at: datetime | None = None,
    ) -> Any:
        """Run the effect; with ``once``, only if the key was not applied before."""
        with self.open(resources, token, holder) as store:
            if once is None:
                return effect(store)
            meaning = fingerprint or json.dumps(resources)
            if once in self._applied:
                known, result = self._applied[once]
                if known != meaning:
                    raise KeyConflictError(
                        f"the key {once!r} was applied for {known}, now it comes with {meaning}: use another key",
                        key=once,
                        differs="fingerprint",
                        downstream=self.downstream,
                    )
                return json.loads(result)
            result = _dumped(once, effect(store))
            self._applied[once] = (meaning, result)
            return json.loads(result)

    def raise_fence(self, resources: tuple[str, ...], token: Token, holder: str) -> None:
        """Raise the marks, making those that are missing."""
        with self._transaction():
            self._admit(resources, token, holder, "create")

    def read_mark(self, resource: str) -> Mark | None:
        """Return the mark."""
        return self._marks.get(resource)

    def compact(self, below: Token) -> int:
        """Forget the marks of ``below``'s issuer that are older; without a mark its tokens are refused below the floor.

        Returns how many they were.
        """
        with self._lock:
            self._floors[below.issuer] = max(below.value, self._floors.get(below.issuer, 0))
            old = [
                name
                for name, mark in self._marks.items()
                if mark.token.issuer == below.issuer and mark.token.value < below.value
            ]
            for name in old:
                del self._marks[name]
            return len(old)

    def diagnose(self) -> list[Finding]:
        """A dictionary has nothing to misconfigure."""
        return []


def _dumped(once: str, result: Any) -> str:
    try:
        return json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise TypeError(
            f"the effect of once={once!r} returned something that JSON cannot hold ({exc}), so it could not be "
            "returned again; nothing was written. Return plain data, or None"
        ) from exc


class AsyncMemoryGuard:
    """:class:`MemoryGuard` for asyncio:

    the same rules through the other port. A block must not await while others write.
    """

    downstream = "memory"

    def __init__(self, inner: MemoryGuard) -> None:
        self.inner = inner

    @asynccontextmanager
    async def aopen(self, resources: tuple[str, ...], token: Token, holder: str) -> AsyncIterator[MemoryStore]:
        """As :meth:`MemoryGuard.open`."""
        with self.inner.open(resources, token, holder) as store:
            yield store

    async def araise_fence(self, resources: tuple[str, ...], token: Token, holder: str) -> None:
        """As :meth:`MemoryGuard.raise_fence`."""
        self.inner.raise_fence(resources, token, holder)

    async def aread_mark(self, resource: str) -> Mark | None:
        """As :meth:`MemoryGuard.read_mark`."""
        return self.inner.read_mark(resource)

    async def adiagnose(self) -> list[Finding]:
        """A dictionary has nothing to misconfigure."""
        return []
