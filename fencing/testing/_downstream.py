"""`Downstream`: what the author of an adapter writes, so that the kit can prove the adapter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from enum import Enum
from typing import Any

from fencing._law import OnMissing
from fencing._token import Token


class Capability(Enum):
    """What a downstream can do. These, and never a product's name, decide which examples are run."""

    CREATE = 'a guard with on_missing="create": a first write makes the mark'
    REJECT = 'a guard with on_missing="reject": without a mark a write is refused (needs RAISE to make marks)'
    RAISE = "raising a mark without writing"
    SEVERAL = "several resources in one write, all or none"
    ATOMIC = "a block that raises leaves neither its values nor its mark"
    ROLLBACK = "a transaction of the caller's, whose rollback takes back values and marks"
    DELETE = "deleting a value"
    LOSE = "losing a mark beneath the guard, as in an eviction or a restore"
    COMPACT = "forgetting old marks, with a floor below which their resources stay closed"
    LOSE_REPLY = "losing the answer to a write, which is then found out or unknown"
    ONCE = "once=KEY: an effect applied at most once"
    REOPEN = "being closed and opened again with all that it held"
    THREADS = "being used by several threads at once, each in a transaction of its own"
    CONCURRENT = "a second transaction from the same thread while one is open, given up or judged within a second"


class Downstream(ABC):
    """One system under test: each resource protects one value, a text, and an adapter fences the writes to it.

    Any method that talks to the system may be a plain function or an ``async def`` one, and :meth:`transaction` may
    return either kind of context manager: the kit awaits what is awaitable, all of one example in one task of one
    event loop.
    """

    name: str
    """For reports."""

    capabilities: frozenset[Capability]
    """What it can do; at least one of ``CREATE`` and ``REJECT``."""

    @abstractmethod
    def fresh(self, on_missing: OnMissing) -> Awaitable[None] | None:
        """Make it empty, without values, marks and applied keys, with guards of that ``on_missing`` from now on.

        Called before every example, some hundred times: empty what is there, do not build a new system.
        """

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any] | AbstractAsyncContextManager[Any]:
        """Begin, and yield the target for ``fenced_write``: a guard, or what an installed adapter knows.

        What was written is there for all once the block ends; a block that raises is rolled back, as far as there is
        something to roll back.
        """

    @abstractmethod
    def write(self, handle: Any, resource: str, value: str) -> Awaitable[None] | None:
        """Set the resource's value through the handle that ``fenced_write`` gave, replacing what is there."""

    @abstractmethod
    def read(self, handle: Any, resource: str) -> Any:
        """Read the resource's value through the handle.

        Return the text or None, or a function without arguments that returns it once the block has ended (or something
        awaitable that gives either).
        """

    @abstractmethod
    def look(self, resource: str) -> Any:
        """Return the resource's value as anybody sees it from outside, None if it has none; may be awaitable."""

    def delete(self, handle: Any, resource: str) -> Awaitable[None] | None:
        """Remove the resource's value through the handle (``Capability.DELETE``)."""
        raise _without_method(self, Capability.DELETE)

    def lose(self, resource: str) -> Awaitable[None] | None:
        """Take the resource's mark away past the guard, its value not (``Capability.LOSE``)."""
        raise _without_method(self, Capability.LOSE)

    def compact(self, below: Token) -> Awaitable[None] | None:
        """Forget the marks of ``below``'s issuer that are older than it, and set the floor (``Capability.COMPACT``)."""
        raise _without_method(self, Capability.COMPACT)

    def losing_replies(self, times: int) -> AbstractContextManager[None] | AbstractAsyncContextManager[None]:
        """While it is open, what makes a write permanent is done and the answer to it lost (``Capability.LOSE_REPLY``).

        At most ``times`` times, so that an adapter which asks again may be answered. :meth:`transaction` raises
        :class:`~fencing.errors.OutcomeUnknownError` where the end stays unknown, whoever found that out.
        """
        raise _without_method(self, Capability.LOSE_REPLY)

    def reopen(self) -> Awaitable[None] | None:
        """Close the system and open it again with what it held (``Capability.REOPEN``)."""
        raise _without_method(self, Capability.REOPEN)

    def close(self) -> Awaitable[None] | None:
        """Let go of what belongs to this example, above all to its event loop. ``fresh()`` may follow."""
        return None

    def can(self, *wanted: Capability) -> bool:
        """Whether it can do all of these."""
        return self.capabilities.issuperset(wanted)

    @property
    def missing(self) -> tuple[Capability, ...]:
        """What it cannot do, and what is therefore not proved."""
        return tuple(one for one in Capability if one not in self.capabilities)


LACKING = " does not offer: "
"""What a skip says between the downstream's name and the capabilities."""

_METHODS = {
    Capability.DELETE: ("delete", "delete(handle, resource)"),
    Capability.LOSE: ("lose", "lose(resource)"),
    Capability.COMPACT: ("compact", "compact(below)"),
    Capability.LOSE_REPLY: ("losing_replies", "losing_replies(times)"),
    Capability.REOPEN: ("reopen", "reopen()"),
}
"""The capabilities that stand for a method of their own."""


def check_methods(downstream: Downstream) -> None:
    """Raise ``TypeError`` for a capability that is declared without its method."""
    for capability, (name, _) in _METHODS.items():
        if downstream.can(capability) and getattr(type(downstream), name) is getattr(Downstream, name):
            raise _without_method(downstream, capability)


def _without_method(downstream: Downstream, capability: Capability) -> TypeError:
    return TypeError(
        f"{type(downstream).__name__} ({downstream.name}) declares {capability} ({capability.value}) without its "
        f"method: write {_METHODS[capability][1]}, or leave {capability.name} out of its capabilities"
    )
