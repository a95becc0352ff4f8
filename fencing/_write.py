"""`fenced_write()`, `raise_fence()` and `read_mark()`: the face of the law."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, TypeVar, overload

from fencing._law import Mark, check_resources
from fencing._lease import Lease, current_lease, process_holder
from fencing._ports import AppliesEffects, AppliesEffectsAsync, AsyncGuard, Guard, PendingVerdict
from fencing._recorded import recorded
from fencing._registry import guard_for, is_async
from fencing._token import Token

H = TypeVar("H")
T = TypeVar("T")


class _SupportsRunSync(Protocol):
    """The shape of SQLAlchemy's ``AsyncConnection`` and ``AsyncSession``."""

    async def run_sync(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any: ...


class _SupportsExecuteAsync(Protocol):
    """The shape of psycopg's ``AsyncConnection``."""

    async def execute(self, query: Any, /, *args: Any, **kwargs: Any) -> Any: ...


class _SupportsExecute(Protocol):
    """The shape of a SQLAlchemy ``Connection`` or ``Session`` and of a psycopg ``Connection``."""

    def execute(self, query: Any, /, *args: Any, **kwargs: Any) -> Any: ...


A = TypeVar("A", bound="_SupportsRunSync | _SupportsExecuteAsync")
S = TypeVar("S", bound=_SupportsExecute)


@overload
def fenced_write(
    target: Guard[H], resource: str, /, *more: str, token: Any = None
) -> AbstractContextManager[H, None]: ...
@overload
def fenced_write(
    target: AsyncGuard[H], resource: str, /, *more: str, token: Any = None
) -> AbstractAsyncContextManager[H, None]: ...
@overload
def fenced_write(
    target: A, resource: str, /, *more: str, token: Any = None
) -> AbstractAsyncContextManager[A, None]: ...
@overload
def fenced_write(target: S, resource: str, /, *more: str, token: Any = None) -> AbstractContextManager[S, None]: ...
@overload
def fenced_write(target: Any, resource: str, /, *more: str, token: Any = None) -> Any: ...
@overload
def fenced_write(
    target: Guard[H],
    resource: str,
    /,
    *more: str,
    effect: Callable[[H], T],
    token: Any = None,
    once: str | None = None,
    fingerprint: str | None = None,
    began_at: datetime | None = None,
) -> T: ...
@overload
def fenced_write(
    target: AsyncGuard[H],
    resource: str,
    /,
    *more: str,
    effect: Callable[[H], Awaitable[T]],
    token: Any = None,
    once: str | None = None,
    fingerprint: str | None = None,
    began_at: datetime | None = None,
) -> Awaitable[T]: ...
@overload
def fenced_write(
    target: Any,
    resource: str,
    /,
    *more: str,
    effect: Callable[[Any], Any],
    token: Any = None,
    once: str | None = None,
    fingerprint: str | None = None,
    began_at: datetime | None = None,
) -> Any: ...
def fenced_write(
    target: Any,
    resource: str,
    /,
    *more: str,
    effect: Callable[[Any], Any] | None = None,
    token: Any = None,
    once: str | None = None,
    fingerprint: str | None = None,
    began_at: datetime | None = None,
) -> Any:
    """Write to ``target`` only if no newer token has been seen for the resources.

    As a context manager (``async with`` for an async target) it shows the token to the downstream, then yields the
    handle to write through: the connection or session itself for SQL, a recorder of commands for Redis. In SQL the
    fence lasts until the transaction or savepoint ends; leaving the block flushes a Session and never commits.

    With ``effect=f`` it returns what ``f(handle)`` returned (awaitable for an async target). An Engine or
    sessionmaker is taken in this form only: the transaction is opened, committed and, on contention only, retried.
    ``once=KEY`` (SQL) applies the effect at most once for the key, over all attempts, holders and replays, and
    returns the stored JSON result afterwards; the token is judged first. ``fingerprint`` says what the key stands for
    (default: the sorted resources). ``began_at`` (aware) is when the work began to exist that the key names, the same
    for all its attempts and replays; a running job's is known. A database whose records of applied effects were purged
    refuses a key without a record if the work is older than that, or nobody says how old it is.

    ``token=None`` takes the running job's or lease's; otherwise a :class:`Token` or anything with a ``.token``.

    Raises :class:`~fencing.errors.FenceRejected` (nothing written; final for this token),
    :class:`~fencing.errors.ContentionError` (nothing written; may be tried again),
    :class:`~fencing.errors.OutcomeUnknownError`, and the other errors of the tree as they say.
    """
    resources = check_resources((resource, *more))
    if once is not None or fingerprint is not None or began_at is not None:
        _check_once(effect, once, fingerprint)
        began_at = began_of(token, began_at)
    guard = guard_for(target)
    if effect is not None:
        _check_effect(effect, is_async(guard))
    presented, holder = resolve_token(token)
    if is_async(guard):
        if effect is None:
            return _AsyncWrite(guard, resources, presented, holder)
        return _apply_async(guard, resources, presented, holder, effect, once, fingerprint, began_at)
    if effect is None:
        return _SyncWrite(guard, resources, presented, holder)
    return _apply(guard, resources, presented, holder, effect, once, fingerprint, began_at)


def raise_fence(target: Any, resource: str, /, *more: str, token: Any = None) -> Any:
    """Raise the resources' marks to the token without writing, making those that are missing.

    Afterwards no older holder can write to them, even if this one has not written yet. An Engine will do: it is given
    a short transaction of its own. Awaitable for an async target. Raises as :func:`fenced_write`.
    """
    resources = check_resources((resource, *more))
    guard = guard_for(target)
    presented, holder = resolve_token(token)
    if is_async(guard):
        return _raise_async(guard, resources, presented, holder)
    with recorded("raise", guard, resources, presented, holder):
        guard.raise_fence(resources, presented, holder)
    return None


def read_mark(target: Any, resource: str, /) -> Any:
    """Return the resource's :class:`Mark` or None (awaitable for an async target).

    To look at, never to decide a write by: between such a look and the write, anything can happen.
    """
    (name,) = check_resources((resource,))
    guard = guard_for(target)
    if is_async(guard):
        return guard.aread_mark(name)
    mark: Mark | None = guard.read_mark(name)
    return mark


def resolve_token(token: Any) -> tuple[Token, str]:
    """Return the token that is meant and its holder's name.

    ``None`` means the running job's or lease's. A lease that its holder settled or released is refused here (a thread
    that outlived its job); one that merely ran out is not: the downstream judges that.
    """
    if token is None:
        token = current_lease()
    if isinstance(token, Token):
        return token, process_holder()
    if isinstance(token, str):
        raise TypeError(f"token= takes a Token, a job or a lease, not text; use Token.parse({token[:80]!r})")
    found = getattr(token, "token", None)
    if not isinstance(found, Token):
        raise TypeError(f"token= takes a Token or something with a .token, not {type(token).__name__}")
    lease = token if isinstance(token, Lease) else getattr(token, "lease", None)
    if isinstance(lease, Lease):
        lease.ensure_not_ended()
        return found, lease.holder
    holder = getattr(token, "holder", None)
    return found, holder if isinstance(holder, str) and holder else process_holder()


def began_of(token: Any, began_at: datetime | None = None) -> datetime | None:
    """Return when the work began: as the caller says, or as the job, lease or request knows whose token is meant.

    Raises ``TypeError`` or ``ValueError`` for what is no aware time.
    """
    if began_at is None:
        source = current_lease() if token is None else token
        began_at = getattr(source, "began_at", None) or getattr(getattr(source, "lease", None), "began_at", None)
        return began_at if isinstance(began_at, datetime) else None
    if not isinstance(began_at, datetime):
        raise TypeError(f"began_at= takes an aware datetime, not {type(began_at).__name__}")
    if began_at.utcoffset() is None:
        raise ValueError(f"began_at= takes an aware datetime: {began_at.isoformat()} has no zone")
    return began_at


def _check_effect(effect: Any, asynchronous: bool) -> None:
    """Raise ``TypeError`` for what would come back without having run, as if it had been applied."""
    if inspect.isgeneratorfunction(effect) or inspect.isasyncgenfunction(effect):
        raise TypeError("effect= is a generator function, which runs nothing when it is called; pass one without yield")
    if not asynchronous and inspect.iscoroutinefunction(effect):
        raise TypeError("effect= is an async def and the target a sync one, which would never await it; pass a def")


def _check_once(effect: Any, once: Any, fingerprint: Any) -> None:
    if effect is None:
        raise TypeError(
            "once=, fingerprint= and began_at= belong to the effect form: pass effect=a function of the handle"
        )
    if once is None:
        raise TypeError("fingerprint= and began_at= say what a once= key stands for: pass once= too")
    if not isinstance(once, str) or not once:
        raise TypeError(f"once= takes a non-empty str that names the effect, not {once!r}")


class _SyncWrite(recorded):
    """The ``with`` form: what the guard opened, recorded."""

    __slots__ = ("_inner",)

    def __init__(self, guard: Guard[Any], resources: tuple[str, ...], token: Token, holder: str) -> None:
        self._kind = "write"
        self._guard = guard
        self._resources = resources
        self._token = token
        self._holder = holder
        self._inner = guard.open(resources, token, holder)

    def __del__(self) -> None:
        if not hasattr(self, "_began") and hasattr(self, "_inner"):
            _never_entered(self._resources, "with")

    def __enter__(self) -> Any:
        self._began = time.monotonic_ns()
        try:
            return self._inner.__enter__()
        except BaseException as exc:
            recorded.__exit__(self, type(exc), exc, exc.__traceback__)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._inner.__exit__(kind, error, trace)
        except BaseException as exc:
            recorded.__exit__(self, type(exc), exc, exc.__traceback__)
            raise
        verdict: PendingVerdict | None = getattr(self._inner, "verdict", None)
        if verdict is None:
            recorded.__exit__(self, kind, error, trace)
        else:
            self.record_late(verdict, error)


class _AsyncWrite:
    """The ``async with`` form."""

    def __init__(self, guard: AsyncGuard[Any], resources: tuple[str, ...], token: Token, holder: str) -> None:
        self._inner = guard.aopen(resources, token, holder)
        self._record = recorded("write", guard, resources, token, holder)

    def __del__(self) -> None:
        record = getattr(self, "_record", None)
        if record is not None and not hasattr(record, "_began"):
            _never_entered(record._resources, "async with")

    async def __aenter__(self) -> Any:
        self._record.__enter__()
        try:
            return await self._inner.__aenter__()
        except BaseException as exc:
            self._record.__exit__(type(exc), exc, exc.__traceback__)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._inner.__aexit__(kind, error, trace)
        except BaseException as exc:
            self._record.__exit__(type(exc), exc, exc.__traceback__)
            raise
        verdict: PendingVerdict | None = getattr(self._inner, "verdict", None)
        if verdict is None:
            self._record.__exit__(kind, error, trace)
        else:
            self._record.record_late(verdict, error)


def _never_entered(resources: tuple[str, ...], word: str) -> None:
    # As Python says of a coroutine that nobody awaited: what follows such a call looks fenced, and is not.
    warnings.warn(
        f"fenced_write() of {', '.join(resources)} was never entered, so nothing was fenced: write "
        f"'{word} fenced_write(...):', or pass effect=",
        RuntimeWarning,
        stacklevel=3,
    )


def _apply(
    guard: Guard[Any],
    resources: tuple[str, ...],
    token: Token,
    holder: str,
    effect: Callable[[Any], Any],
    once: str | None,
    fingerprint: str | None,
    began_at: datetime | None,
) -> Any:
    with recorded("write", guard, resources, token, holder):
        if isinstance(guard, AppliesEffects):
            return guard.apply(resources, token, holder, effect, once, fingerprint, began_at)
        _refuse_once(guard.downstream, once)
        with guard.open(resources, token, holder) as handle:
            return effect(handle)


async def _apply_async(
    guard: AsyncGuard[Any],
    resources: tuple[str, ...],
    token: Token,
    holder: str,
    effect: Callable[[Any], Any],
    once: str | None,
    fingerprint: str | None,
    began_at: datetime | None,
) -> Any:
    with recorded("write", guard, resources, token, holder):
        if isinstance(guard, AppliesEffectsAsync):
            return await guard.aapply(resources, token, holder, effect, once, fingerprint, began_at)
        _refuse_once(guard.downstream, once)
        async with guard.aopen(resources, token, holder) as handle:
            return await effect(handle)


async def _raise_async(guard: AsyncGuard[Any], resources: tuple[str, ...], token: Token, holder: str) -> None:
    with recorded("raise", guard, resources, token, holder):
        await guard.araise_fence(resources, token, holder)


def _refuse_once(downstream: str, once: str | None) -> None:
    if once is not None:
        raise TypeError(
            f"{downstream} keeps no record of applied effects, so once= cannot hold there; use it with a SQL target"
        )
