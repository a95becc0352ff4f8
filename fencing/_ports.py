"""The ports: what an adapter offers (`Guard`, `AsyncGuard`) and what an issuer offers (`LeaseSource`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from typing import Any, Protocol, TypeVar, runtime_checkable

from fencing._findings import Finding
from fencing._law import Mark
from fencing._lease import Lease
from fencing._token import Token

H_co = TypeVar("H_co", covariant=True)


@runtime_checkable
class Guard(Protocol[H_co]):
    """A downstream that enforces the law. ``resources`` come checked, without repeats and sorted.

    ``open`` raises the marks (or refuses) and yields the handle through which the caller writes; check and write are
    one atomic step. A guard may also have ``apply(resources, token, holder, effect, once, fingerprint, began_at)``,
    which runs the effect form itself: to open, commit and retry a transaction, or to keep ``once=``. One whose writes
    hold only if the caller's transaction commits says so by ``in_callers_transaction = True``, for the event record.
    """

    @property
    def downstream(self) -> str:
        """A short name for messages: which system, which place."""

    def open(self, resources: tuple[str, ...], token: Token, holder: str) -> AbstractContextManager[H_co]:
        """Show ``token`` to each resource and yield the handle. Raises :class:`~fencing.errors.FenceRejected`."""

    def raise_fence(self, resources: tuple[str, ...], token: Token, holder: str) -> None:
        """Raise the marks without writing, making those that are missing."""

    def read_mark(self, resource: str) -> Mark | None:
        """Return the resource's mark: to look at, never to decide a write by."""

    def diagnose(self) -> Iterable[Finding]:
        """Say what in this downstream's set-up would break a promise."""


@runtime_checkable
class AsyncGuard(Protocol[H_co]):
    """The same for asyncio. Other method names, so that no class is both. ``aapply`` as ``Guard.apply``."""

    @property
    def downstream(self) -> str:
        """A short name for messages: which system, which place."""

    def aopen(self, resources: tuple[str, ...], token: Token, holder: str) -> AbstractAsyncContextManager[H_co]:
        """Show ``token`` to each resource and yield the handle."""

    async def araise_fence(self, resources: tuple[str, ...], token: Token, holder: str) -> None:
        """Raise the marks without writing, making those that are missing."""

    async def aread_mark(self, resource: str) -> Mark | None:
        """Return the resource's mark."""

    async def adiagnose(self) -> Iterable[Finding]:
        """Say what in this downstream's set-up would break a promise."""


@runtime_checkable
class AppliesEffects(Protocol):
    """The optional part of a :class:`Guard`: it runs the effect form itself."""

    def apply(
        self,
        resources: tuple[str, ...],
        token: Token,
        holder: str,
        effect: Callable[[Any], Any],
        once: str | None,
        fingerprint: str | None,
        began_at: datetime | None = None,
    ) -> Any:
        """Run ``effect(handle)`` under the fence; with ``once``, at most once for that key. Return what it returned.

        With ``once``, a result that JSON cannot hold, NaN among them, is a ``TypeError``, and nothing is written.
        ``began_at``: when the work that the key names began to exist; only for who forgets keys.
        """


@runtime_checkable
class AppliesEffectsAsync(Protocol):
    """The optional part of an :class:`AsyncGuard`."""

    async def aapply(
        self,
        resources: tuple[str, ...],
        token: Token,
        holder: str,
        effect: Callable[[Any], Any],
        once: str | None,
        fingerprint: str | None,
        began_at: datetime | None = None,
    ) -> Any:
        """Await ``effect(handle)`` under the fence; with ``once``, at most once for that key."""


class PendingVerdict(Protocol):
    """The verdict of a write that its block did not wait for.

    What :meth:`Guard.open` or :meth:`AsyncGuard.aopen` returned may have one as ``verdict`` from when the block begins;
    None there: it is known by then, or by the end of the block.
    """

    def then(self, call: Callable[[BaseException | None], None]) -> None:
        """Call with what refused the write, None if nothing did, once that is known."""


@runtime_checkable
class LeaseSource(Protocol):
    """Whoever hands out named leases with tokens: ``Scheduler``, and other issuers' adapters."""

    def lease(self, name: str, *, ttl: float, wait: float = 0) -> AbstractContextManager[Lease]:
        """Hold the named lease for the block, renewed meanwhile; ``ttl`` and ``wait`` in seconds.

        Raises :class:`~fencing.errors.LeaseUnavailableError` when ``wait`` is over.
        """
