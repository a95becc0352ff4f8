"""The harness: plain functions around a :class:`Downstream`, whether it is made of plain or of ``async`` ones."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from fencing._law import Mark, OnMissing
from fencing._ports import AsyncGuard
from fencing._registry import guard_for
from fencing._token import Token
from fencing._write import fenced_write, raise_fence, read_mark
from fencing.testing._downstream import Capability, Downstream, check_methods


@dataclass(frozen=True, slots=True)
class Writer:
    """Somebody who holds a token: what the suites pass as ``token=``."""

    holder: str
    token: Token

    def __repr__(self) -> str:
        return f"{self.holder}'s {self.token}"


class Block:
    """What can be done inside a fenced block, through the handle."""

    def __init__(self, harness: Harness, handle: Any) -> None:
        self._harness = harness
        self._handle = handle

    def write(self, resource: str, value: str) -> None:
        """Set the value."""
        self._harness.finish(self._harness.downstream.write(self._handle, resource, value))

    def delete(self, resource: str) -> None:
        """Remove the value."""
        self._harness.finish(self._harness.downstream.delete(self._handle, resource))

    def read(self, resource: str) -> Callable[[], str | None]:
        """Read the value, to be asked for after the block."""
        found = self._harness.finish(self._harness.downstream.read(self._handle, resource))
        return found if callable(found) else lambda: found


class Harness:
    """One example on one downstream, made empty at the start. To be used as a context manager.

    ``on_missing=None`` takes the policy that the downstream offers, ``"create"`` rather than ``"reject"``. Raises
    ``TypeError`` for a capability that the downstream declares without its method.
    """

    def __init__(self, downstream: Downstream, on_missing: OnMissing | None = None) -> None:
        check_methods(downstream)
        self.downstream = downstream
        self.on_missing: OnMissing = on_missing or ("create" if downstream.can(Capability.CREATE) else "reject")
        self._task: _OneTask | None = None

    def __enter__(self) -> Self:
        self.restart()
        return self

    def restart(self) -> None:
        """Begin anew, with an empty downstream."""
        self.finish(self.downstream.fresh(self.on_missing))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(self.downstream.close())
        if self._task is not None:
            self._task.close()
            self._task = None

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A transaction of the caller's: yields the target, ends it with the block."""
        with self._inside(self.downstream.transaction()) as target:
            yield target

    @contextmanager
    def fenced(self, writer: Writer, *resources: str) -> Iterator[Block]:
        """One fenced write in a transaction of its own."""
        with self.transaction() as target, self.fenced_in(target, writer, *resources) as block:
            yield block

    @contextmanager
    def fenced_in(self, target: Any, writer: Writer, *resources: str) -> Iterator[Block]:
        """One fenced write in a transaction that is open."""
        with self._inside(fenced_write(target, *resources, token=writer)) as handle:
            yield Block(self, handle)

    def write(self, writer: Writer, resource: str, value: str) -> None:
        """One fenced write of one value."""
        with self.fenced(writer, resource) as block:
            block.write(resource, value)

    def apply(
        self,
        writer: Writer,
        *resources: str,
        values: Mapping[str, str],
        result: Any = None,
        error: BaseException | None = None,
        once: str | None = None,
        fingerprint: str | None = None,
    ) -> tuple[Any, int]:
        """The effect form: write the values, then raise ``error`` or return ``result``.

        Returns what came back, and how often the effect ran.
        """
        ran = 0

        def steps(handle: Any) -> Iterator[Any]:
            nonlocal ran
            ran += 1
            for resource, value in values.items():
                yield self.downstream.write(handle, resource, value)
            if error is not None:
                raise error

        def effect(handle: Any) -> Any:
            for step in steps(handle):
                self.finish(step)
            return result

        async def effect_async(handle: Any) -> Any:
            for step in steps(handle):
                if inspect.isawaitable(step):
                    await step
            return result

        with self.transaction() as target:
            chosen = effect_async if isinstance(guard_for(target), AsyncGuard) else effect
            back = fenced_write(target, *resources, effect=chosen, token=writer, once=once, fingerprint=fingerprint)
            return self.finish(back), ran

    def raise_fence(self, writer: Writer, *resources: str) -> None:
        """Raise the marks, in a transaction of its own."""
        with self.transaction() as target:
            self.raise_fence_in(target, writer, *resources)

    def raise_fence_in(self, target: Any, writer: Writer, *resources: str) -> None:
        """Raise the marks in a transaction that is open."""
        self.finish(raise_fence(target, *resources, token=writer))

    def mark(self, resource: str) -> Mark | None:
        """The resource's mark."""
        return self.marks(resource)[resource]

    def marks(self, *resources: str) -> dict[str, Mark | None]:
        """The marks of several resources."""
        with self.transaction() as target:
            return {resource: self.finish(read_mark(target, resource)) for resource in resources}

    def look(self, resource: str) -> str | None:
        """The resource's value, from outside."""
        found: str | None = self.finish(self.downstream.look(resource))
        return found

    def begin(self, writer: Writer, *resources: str) -> None:
        """See that the resources have marks, so that writes are judged by them under either policy."""
        if self.on_missing == "reject":
            self.raise_fence(writer, *resources)
            return
        for resource in resources:
            with self.fenced(writer, resource):
                pass

    @contextmanager
    def beside(self) -> Iterator[Harness]:
        """Another harness on the same downstream as it is, for another thread."""
        other = Harness(self.downstream, self.on_missing)
        try:
            yield other
        finally:
            if other._task is not None:
                other._task.close()

    def lose(self, resource: str) -> None:
        """Take the resource's mark away."""
        self.finish(self.downstream.lose(resource))

    def compact(self, below: Token) -> None:
        """Forget the marks of the token's issuer that are older."""
        self.finish(self.downstream.compact(below))

    @contextmanager
    def losing_replies(self, times: int) -> Iterator[None]:
        """Lose the answers to what makes a write permanent, so often at most."""
        with self._inside(self.downstream.losing_replies(times)):
            yield

    def reopen(self) -> None:
        """Close the downstream and open it again."""
        self.finish(self.downstream.reopen())

    def finish(self, value: Any) -> Any:
        """Return ``value``, or what it gives once awaited."""
        if not inspect.isawaitable(value):
            return value
        if self._task is None:
            self._task = _OneTask()
        return self._task.run(value)

    @contextmanager
    def _inside(self, manager: AbstractContextManager[Any] | AbstractAsyncContextManager[Any]) -> Iterator[Any]:
        if not isinstance(manager, AbstractAsyncContextManager):
            with manager as entered:
                yield entered
            return
        entered = self.finish(manager.__aenter__())
        try:
            yield entered
        except BaseException as exc:
            if not self.finish(manager.__aexit__(type(exc), exc, exc.__traceback__)):
                raise
        else:
            self.finish(manager.__aexit__(None, None, None))


class _OneTask:
    """Awaits one thing after another in one task of one event loop, as the body of a single ``async`` function would.

    Cancel scopes and context variables that one of them enters are still there for the next.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._waiting: asyncio.Queue[tuple[Awaitable[Any], asyncio.Future[Any]] | None] = asyncio.Queue()
        self._server = self._loop.create_task(self._serve())

    def run(self, awaitable: Awaitable[Any]) -> Any:
        done: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.put_nowait((awaitable, done))
        return self._loop.run_until_complete(done)

    def close(self) -> None:
        self._waiting.put_nowait(None)
        self._loop.run_until_complete(self._server)
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _serve(self) -> None:
        while (work := await self._waiting.get()) is not None:
            awaitable, done = work
            try:
                done.set_result(await awaitable)
            except Exception as exc:  # noqa: BLE001 - handed to whoever waits for it
                done.set_exception(exc)
