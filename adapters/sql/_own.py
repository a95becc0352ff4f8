"""The guards of an Engine or sessionmaker, sync and async: they open, commit and retry a transaction of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from typing import Any, NoReturn, TypeVar, cast

from adapters._tx import AsyncTx, Plan, SyncTx, committing, retryable, run, run_async
from adapters.sql._open import apply_once, apply_once_async, run_effect, run_effect_async
from adapters.sql._options import Options, Write, pauses, write_of
from fencing._explain import Explanation
from fencing._findings import Finding
from fencing._law import Mark
from fencing._token import Token
from fencing.errors import ContentionError, OutcomeUnknownError

T = TypeVar("T")


class OwnGuard:
    """The guard of an Engine or sessionmaker: each call in a transaction of its own.

    On contention the transaction is rolled back and the whole is run again, the effect too: at most five times in all,
    with pauses of up to a second. A refusal is final. A commit whose answer was lost is ``OutcomeUnknownError``, and
    is not tried again, but with ``once=``: the key tells the next try whether it was done.
    """

    def __init__(
        self, options: Options, open_handle: Callable[[], AbstractContextManager[Any]], downstream: str
    ) -> None:
        self.downstream = downstream
        self._options = options
        self._open_handle = open_handle

    def open(self, resources: tuple[str, ...], token: Token, holder: str) -> NoReturn:
        """Refused: there is no transaction that could end after the block."""
        raise _no_block(self.downstream)

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
        """Open, fence, run the effect, commit."""
        write = write_of(resources, token, holder, once, fingerprint, began_at)

        def work(tx: SyncTx) -> Any:
            if once is not None:
                return apply_once(self._options, tx, write, once, effect)
            run(self._options.guard(tx, write), tx)
            return run_effect(tx, effect)

        try:
            return self._commit(work)
        except OutcomeUnknownError as unknown:
            if once is None:
                raise
            try:
                return self._commit(work)
            except Exception as exc:
                raise unknown from exc

    def perform(self, make: Callable[[SyncTx], Plan[T]]) -> T:
        """Run a plan, commit; on contention again, as :meth:`apply`."""
        return self._commit(lambda tx: run(make(tx), tx))

    def look(self, make: Callable[[SyncTx], Plan[T]]) -> T:
        """Run a plan that only reads."""
        return self._look(lambda tx: run(make(tx), tx))

    def raise_fence(self, resources: tuple[str, ...], token: Token, holder: str) -> None:
        """Raise the marks and commit."""
        write = Write(resources, token, holder)
        self._commit(lambda tx: run(self._options.raise_fence(tx, write), tx))

    def read_mark(self, resource: str) -> Mark | None:
        """Return the mark."""
        return self._look(lambda tx: run(self._options.read_mark(tx, resource), tx))

    def explain(self, resource: str) -> Explanation:
        """Say what is known of the resource."""
        return self.look(lambda tx: self._options.explain(tx, resource))

    def list_marks(self, prefix: str, limit: int) -> list[tuple[str, Mark]]:
        """The marks of resources whose names begin with ``prefix``, by name."""
        return self.look(lambda tx: self._options.list_marks(tx, prefix, limit))

    def diagnose(self) -> list[Finding]:
        """Say what in this database would break a promise."""
        return self._look(lambda tx: run(self._options.diagnose(tx), tx))

    def _look(self, work: Callable[[SyncTx], T]) -> T:
        with self._open_handle() as handle:
            return work(cast(SyncTx, self._options.transaction(handle, read_only=True)))

    def _commit(self, work: Callable[[SyncTx], T]) -> T:
        waits = pauses()
        while True:
            try:
                return self._commit_once(work)
            except ContentionError:
                pause = next(waits, None)
                if pause is None:
                    raise
            time.sleep(pause)

    def _commit_once(self, work: Callable[[SyncTx], T]) -> T:
        with self._open_handle() as handle:
            with retryable(self.downstream):
                result = work(cast(SyncTx, self._options.transaction(handle)))
            with committing(self):
                handle.commit()
            return result


class AsyncOwnGuard:
    """The same for an AsyncEngine or async_sessionmaker."""

    def __init__(
        self, options: Options, open_handle: Callable[[], AbstractAsyncContextManager[Any]], downstream: str
    ) -> None:
        self.downstream = downstream
        self._options = options
        self._open_handle = open_handle

    def aopen(self, resources: tuple[str, ...], token: Token, holder: str) -> NoReturn:
        """Refused, as by :meth:`OwnGuard.open`."""
        raise _no_block(self.downstream)

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
        """As :meth:`OwnGuard.apply`."""
        write = write_of(resources, token, holder, once, fingerprint, began_at)

        async def work(tx: AsyncTx) -> Any:
            if once is not None:
                return await apply_once_async(self._options, tx, write, once, effect)
            await run_async(self._options.guard(tx, write), tx)
            return await run_effect_async(tx, effect)

        try:
            return await self._commit(work)
        except OutcomeUnknownError as unknown:
            if once is None:
                raise
            try:
                return await self._commit(work)
            except Exception as exc:
                raise unknown from exc

    async def perform(self, make: Callable[[AsyncTx], Plan[T]]) -> T:
        """As :meth:`OwnGuard.perform`."""
        return await self._commit(lambda tx: run_async(make(tx), tx))

    async def look(self, make: Callable[[AsyncTx], Plan[T]]) -> T:
        """As :meth:`OwnGuard.look`."""
        return await self._look(lambda tx: run_async(make(tx), tx))

    async def araise_fence(self, resources: tuple[str, ...], token: Token, holder: str) -> None:
        """As :meth:`OwnGuard.raise_fence`."""
        write = Write(resources, token, holder)
        await self._commit(lambda tx: run_async(self._options.raise_fence(tx, write), tx))

    async def aread_mark(self, resource: str) -> Mark | None:
        """As :meth:`OwnGuard.read_mark`."""
        return await self._look(lambda tx: run_async(self._options.read_mark(tx, resource), tx))

    async def aexplain(self, resource: str) -> Explanation:
        """As :meth:`OwnGuard.explain`."""
        return await self.look(lambda tx: self._options.explain(tx, resource))

    async def alist_marks(self, prefix: str, limit: int) -> list[tuple[str, Mark]]:
        """As :meth:`OwnGuard.list_marks`."""
        return await self.look(lambda tx: self._options.list_marks(tx, prefix, limit))

    async def adiagnose(self) -> list[Finding]:
        """As :meth:`OwnGuard.diagnose`."""
        return await self._look(lambda tx: run_async(self._options.diagnose(tx), tx))

    async def _look(self, work: Callable[[AsyncTx], Awaitable[T]]) -> T:
        async with self._open_handle() as handle:
            return await work(cast(AsyncTx, self._options.transaction(handle, read_only=True)))

    async def _commit(self, work: Callable[[AsyncTx], Awaitable[T]]) -> T:
        waits = pauses()
        while True:
            try:
                return await self._commit_once(work)
            except ContentionError:
                pause = next(waits, None)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def _commit_once(self, work: Callable[[AsyncTx], Awaitable[T]]) -> T:
        async with self._open_handle() as handle:
            with retryable(self.downstream):
                result = await work(cast(AsyncTx, self._options.transaction(handle)))
            with committing(self):
                await handle.commit()
            return result


def _no_block(downstream: str) -> TypeError:
    return TypeError(
        f"{downstream}: an Engine or sessionmaker has no transaction that a with block could write in. Pass effect=, "
        "a function of the connection or session: its transaction is opened, committed and retried here. "
        "Or pass an open connection or session"
    )
