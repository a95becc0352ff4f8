"""The guards of a connection or session that is in a transaction, sync and async: thin shells around the plans."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar, cast

from adapters._tx import AsyncTx, Plan, Rows, Statement, SyncTx, run, run_async, transaction_of
from adapters.sql._once import dump_result, store_result
from adapters.sql._options import Options, Write, ensure_open, refuse_awaitable, refuse_plain, write_of
from fencing._explain import Explanation
from fencing._findings import Finding
from fencing._law import Mark
from fencing._token import Token

T = TypeVar("T")


class OpenGuard:
    """The guard of a Connection, Session, scoped_session or psycopg Connection, in the transaction open there."""

    in_callers_transaction = True

    __slots__ = ("_make", "_named_by", "_options", "_target")

    def __init__(
        self,
        options: Options,
        target: Any,
        named_by: SyncTx | None = None,
        make: Callable[[Any], SyncTx] | None = None,
    ) -> None:
        """``make``: what makes the transaction of such a target, where that is known."""
        self._options = options
        self._target = target
        self._named_by = named_by
        self._make = make

    @property
    def downstream(self) -> str:
        """Which database: ``postgresql:NAME`` or ``sqlite:FILE``."""
        return (self._named_by or self._tx()).downstream

    def _tx(self) -> SyncTx:
        # Anew for each use: the guard may be used in another transaction than it was made in, and a scoped_session
        # may stand for another Session by then.
        if self._make is not None:
            return self._make(self._target)
        tx: Any = transaction_of(self._target, bind=self._options.bind)
        return tx  # type: ignore[no-any-return]

    def _look(self) -> SyncTx:
        return cast(SyncTx, self._options.transaction(self._target, read_only=True))

    def open(self, resources: tuple[str, ...], token: Token, holder: str) -> _Block:
        """Raise the marks and yield what the caller passed; on the way out flush a Session, never commit."""
        return _Block(self, resources, token, holder)

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
        """Run the effect under the fence, in the caller's transaction; with ``once`` all of it in a savepoint."""
        write = write_of(resources, token, holder, once, fingerprint, began_at)
        tx = self._tx()
        if once is None:
            run(self._options.guard(tx, write), tx)
            return run_effect(tx, effect)
        run(self._options.prepare(tx), tx)
        with tx.savepoint():
            return apply_once(self._options, tx, write, once, effect)

    def perform(self, make: Callable[[SyncTx], Plan[T]]) -> T:
        """Run a plan in the caller's transaction."""
        tx = self._tx()
        return run(make(tx), tx)

    def look(self, make: Callable[[SyncTx], Plan[T]]) -> T:
        """Run a plan that only reads."""
        tx = self._look()
        return run(make(tx), tx)

    def send(self, statement: Statement) -> Rows:
        """Execute a statement that is a transaction of its own."""
        return self._look().execute(statement)

    def raise_fence(self, resources: tuple[str, ...], token: Token, holder: str) -> None:
        """Raise the marks in the caller's transaction: they stand once it commits."""
        tx = self._tx()
        run(self._options.raise_fence(tx, Write(resources, token, holder)), tx)

    def read_mark(self, resource: str) -> Mark | None:
        """Return the mark as the caller's transaction sees it."""
        tx = self._look()
        return run(self._options.read_mark(tx, resource), tx)

    def explain(self, resource: str) -> Explanation:
        """Say what is known of the resource."""
        return self.look(lambda tx: self._options.explain(tx, resource))

    def list_marks(self, prefix: str, limit: int) -> list[tuple[str, Mark]]:
        """The marks of resources whose names begin with ``prefix``, by name."""
        return self.look(lambda tx: self._options.list_marks(tx, prefix, limit))

    def diagnose(self) -> list[Finding]:
        """Say what in this database would break a promise."""
        tx = self._look()
        return run(self._options.diagnose(tx), tx)


class _Block:
    """The ``with`` block of a write. A class: a generator costs a tenth of the statement that it wraps."""

    __slots__ = ("_guard", "_holder", "_resources", "_token", "_tx", "verdict")

    def __init__(self, guard: OpenGuard, resources: tuple[str, ...], token: Token, holder: str) -> None:
        self._guard = guard
        self._resources = resources
        self._token = token
        self._holder = holder

    def __enter__(self) -> Any:
        guard = self._guard
        tx = self._tx = guard._tx()
        options = guard._options
        self.verdict = (
            options.show_late(tx, self._resources, self._token, self._holder) if options.late_verdict else None
        )
        if self.verdict is None:
            options.show_at_once(tx, self._resources, self._token, self._holder)
        return tx.handle

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if self.verdict is not None:
            self.verdict.raise_for(error)
        if kind is None:
            tx = self._tx
            if not tx.still_open():
                ensure_open(tx)
            tx.flush()


class AsyncOpenGuard:
    """The same for an AsyncConnection, AsyncSession or psycopg AsyncConnection."""

    in_callers_transaction = True

    __slots__ = ("_named_by", "_options", "_target")

    def __init__(self, options: Options, target: Any, named_by: AsyncTx | None = None) -> None:
        self._options = options
        self._target = target
        self._named_by = named_by

    @property
    def downstream(self) -> str:
        """Which database: ``postgresql:NAME`` or ``sqlite:FILE``."""
        return (self._named_by or self._tx()).downstream

    def _tx(self) -> AsyncTx:
        return cast(AsyncTx, self._options.transaction(self._target))

    def _look(self) -> AsyncTx:
        return cast(AsyncTx, self._options.transaction(self._target, read_only=True))

    def aopen(self, resources: tuple[str, ...], token: Token, holder: str) -> _AsyncBlock:
        """As :meth:`OpenGuard.open`."""
        return _AsyncBlock(self, Write(resources, token, holder))

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
        """As :meth:`OpenGuard.apply`."""
        write = write_of(resources, token, holder, once, fingerprint, began_at)
        tx = self._tx()
        if once is None:
            await run_async(self._options.guard(tx, write), tx)
            return await run_effect_async(tx, effect)
        await run_async(self._options.prepare(tx), tx)
        async with tx.savepoint():
            return await apply_once_async(self._options, tx, write, once, effect)

    async def perform(self, make: Callable[[AsyncTx], Plan[T]]) -> T:
        """As :meth:`OpenGuard.perform`."""
        tx = self._tx()
        return await run_async(make(tx), tx)

    async def look(self, make: Callable[[AsyncTx], Plan[T]]) -> T:
        """As :meth:`OpenGuard.look`."""
        tx = self._look()
        return await run_async(make(tx), tx)

    async def araise_fence(self, resources: tuple[str, ...], token: Token, holder: str) -> None:
        """As :meth:`OpenGuard.raise_fence`."""
        tx = self._tx()
        await run_async(self._options.raise_fence(tx, Write(resources, token, holder)), tx)

    async def aread_mark(self, resource: str) -> Mark | None:
        """As :meth:`OpenGuard.read_mark`."""
        tx = self._look()
        return await run_async(self._options.read_mark(tx, resource), tx)

    async def aexplain(self, resource: str) -> Explanation:
        """As :meth:`OpenGuard.explain`."""
        return await self.look(lambda tx: self._options.explain(tx, resource))

    async def alist_marks(self, prefix: str, limit: int) -> list[tuple[str, Mark]]:
        """As :meth:`OpenGuard.list_marks`."""
        return await self.look(lambda tx: self._options.list_marks(tx, prefix, limit))

    async def adiagnose(self) -> list[Finding]:
        """As :meth:`OpenGuard.diagnose`."""
        tx = self._look()
        return await run_async(self._options.diagnose(tx), tx)


class _AsyncBlock:
    """The ``async with`` block of a write."""

    def __init__(self, guard: AsyncOpenGuard, write: Write) -> None:
        self._guard = guard
        self._write = write
        self.verdict: Any = None

    async def __aenter__(self) -> Any:
        tx = self._tx = self._guard._tx()
        options, write = self._guard._options, self._write
        late = options.show_late(tx, write.resources, write.token, write.holder)
        self.verdict = await late if late is not None else None
        if self.verdict is None:
            await run_async(options.guard(tx, write), tx)
        return tx.handle

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if self.verdict is not None:
            self.verdict.raise_for(error)
        if kind is None:
            ensure_open(self._tx)
            await self._tx.flush()


def run_effect(tx: SyncTx, effect: Callable[[Any], Any]) -> Any:
    """Run the effect; see that the fence still stands when it is done."""
    result = effect(tx.handle)
    refuse_awaitable(result)
    ensure_open(tx)
    tx.flush()
    return result


async def run_effect_async(tx: AsyncTx, effect: Callable[[Any], Any]) -> Any:
    """As :func:`run_effect`."""
    awaitable = effect(tx.handle)
    refuse_plain(awaitable)
    result = await awaitable
    ensure_open(tx)
    await tx.flush()
    return result


def apply_once(options: Options, tx: SyncTx, write: Write, key: str, effect: Callable[[Any], Any]) -> Any:
    """Run the effect unless its key was applied; the caller's transaction or savepoint is the unit."""
    applied = run(options.guard_once(tx, write, key), tx)
    if applied is not None:
        return applied.result
    text = dump_result(key, run_effect(tx, effect))
    return run(store_result(options.dialect(tx.dialect), key, text, tx.downstream), tx)


async def apply_once_async(options: Options, tx: AsyncTx, write: Write, key: str, effect: Callable[[Any], Any]) -> Any:
    """As :func:`apply_once`."""
    applied = await run_async(options.guard_once(tx, write, key), tx)
    if applied is not None:
        return applied.result
    text = dump_result(key, await run_effect_async(tx, effect))
    return await run_async(store_result(options.dialect(tx.dialect), key, text, tx.downstream), tx)
