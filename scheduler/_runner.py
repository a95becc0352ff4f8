"""The runner: raises a job's fences, calls its handler and says how the attempt ended."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from fencing import history, raise_fence, read_mark
from fencing._lease import hold_alone, holding
from fencing.errors import ContentionError, FenceRejected, StaleTokenError
from scheduler._claim import STUCK_HOLDER, yield_delay
from scheduler._held import Held, Work
from scheduler._hooks import StartEvent
from scheduler._job import Job
from scheduler._json import json_text, storable
from scheduler._loop import log
from scheduler._retry import Bury, RetryIn
from scheduler._states import Outcome
from scheduler._store import Settlement
from scheduler._tasks import declared_fences
from scheduler._tracing import Attempting, attempting

MAX_ERROR = 10_000
"""Characters of a traceback that are kept; its end says most."""


class AsyncRunner:
    """One long-lived event loop on a thread of its own, for ``async def`` handlers and fences.

    One for the worker's whole life: with a loop per job, a client made at import time would fail in the second job.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def wait_for(self, value: Any) -> Any:
        """Run any awaitable to its end; return anything else as it is. As :meth:`run`."""
        return self.run(_awaited(value)) if inspect.isawaitable(value) else value

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run ``coroutine`` to its end on the loop, called from another thread.

        What ends a process (``SystemExit``, ``KeyboardInterrupt``) would end the loop, and everything that waits for
        it: it arrives as a ``RuntimeError``.
        """
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="fencing-async", daemon=True)
                self._thread.start()
        return asyncio.run_coroutine_threadsafe(_contained(coroutine), self._loop).result()

    def close(self, timeout: float = 5.0) -> None:
        """Stop the loop; wait for its thread at most ``timeout`` seconds (a coroutine that blocks cannot be ended)."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout)
        if not thread.is_alive():
            loop.close()


class Runner:
    """Runs attempts, one at a time, on the calling thread. Several threads share one Runner."""

    def __init__(self, work: Work, issuer_live: Callable[[list[int]], set[int]], async_runner: AsyncRunner) -> None:
        """``issuer_live`` says which of some token values belong to leases of this scheduler that are alive."""
        self._work = work
        self._issuer_live = issuer_live
        self._async = async_runner

    def run(self, held: Held) -> None:
        """Run one attempt and hand its end to the settler."""
        lease, claimed = held.lease, held.claimed
        if lease.expire_if_due():
            # Past its own deadline no handler starts. If nobody took the job over yet, it goes back as it was.
            self._end(held, Settlement(claimed.id, claimed.token, "ready", "returned"))
            return
        held.started = now = time.monotonic()
        job = Job(claimed, lease)
        span = attempting(held, now)
        if span is None:
            settlement = self._settled(held, job, None)
        else:
            with span:
                settlement = self._settled(held, job, span)
                span.ended(settlement)
        lease.end("settled")
        self._end(held, settlement)

    def _settled(self, held: Held, job: Job, span: Attempting | None) -> Settlement:
        """Run the attempt and say how it ends, whatever is raised."""
        lease = held.lease
        try:
            if history.recording():
                history.emit(history.Event("start", "done", lease.holder, "scheduler", (lease.name,), str(lease.token)))
            if self._work.teller.wants(StartEvent):
                self._work.teller.tell(StartEvent(**held.facts))
            return self._attempt(held, job)
        except StaleTokenError as exc:
            held.refused = True
            if span is not None:
                span.failed(exc)
            return self._stale(held, exc)
        except BaseException as exc:  # noqa: BLE001 - whatever a handler raises is the end of this attempt only
            if span is not None:
                span.failed(exc)
            return self._failed(held, exc)

    def _end(self, held: Held, settlement: Settlement) -> None:
        if held.started is not None:
            held.ran = time.monotonic() - held.started
            held.started = None
        self._work.finish(settlement)

    def _attempt(self, held: Held, job: Job) -> Settlement:
        task, claimed = held.task, held.claimed
        if task.fences is not None:
            try:
                raised = self._raise_fences(held, job)
            except ContentionError as exc:
                if claimed.yields + 1 >= task.max_yields:
                    raise
                # Its handler has not begun: that somebody was stopped in the middle of a transaction costs no attempt.
                why = f"its fences could not be raised: {exc}"
                return self._back(held, "yielded", why, yield_delay(claimed.yields, most=STUCK_HOLDER))
            if not raised:
                return self._yielded(held, "another live holder has one of its resources")
        if task.is_async:
            returned = self._async.run(_with_lease(job, task.handler(job)))
        else:
            hold_alone(held.lease)
            returned = task.handler(job)
            if returned is not None and inspect.iscoroutine(returned):
                returned = self._async.run(_with_lease(job, returned))
        if returned is None:
            return Settlement(claimed.id, claimed.token, "completed", "completed")
        if isinstance(returned, RetryIn):
            return self._again(held, returned.reason or "the handler asked for a retry", returned.seconds)
        if isinstance(returned, Bury):
            return self._bury(held, returned.reason, returned.reason)
        result = json_text(returned, f"the values that the handler of {claimed.task!r} returned")
        return Settlement(claimed.id, claimed.token, "completed", "completed", result=result)

    def _raise_fences(self, held: Held, job: Job) -> bool:
        """Raise the job's marks; return False if another live holder has one of them, or a newer one was there."""
        fences = held.task.fences
        assert fences is not None
        declared = declared_fences(job.task, self._async.wait_for(fences(job)))
        if not held.task.preempt and self._met_by_others(job, declared):
            return False
        for target, resources in declared:
            self._async.wait_for(raise_fence(target, *resources, token=job))
        return True

    def _met_by_others(self, job: Job, declared: list[tuple[Any, list[str]]]) -> bool:
        older = []
        for target, resources in declared:
            for resource in resources:
                mark = self._async.wait_for(read_mark(target, resource))
                if mark is None or mark.token.issuer != job.token.issuer or mark.token.value == job.token.value:
                    continue
                if mark.token > job.token:
                    return True
                older.append(mark.token.value)
        return bool(older) and bool(self._issuer_live(older))

    def _stale(self, held: Held, exc: StaleTokenError) -> Settlement:
        """A stale write under a live lease: another job took the resource. The job comes back under a new token.

        If the lease is gone, the settlement is refused anyway. A refusal of somebody else's token is an error like
        any other.
        """
        if exc.presented != held.lease.token:
            return self._failed(held, exc)
        return self._yielded(held, str(exc))

    def _yielded(self, held: Held, why: str) -> Settlement:
        claimed = held.claimed
        if claimed.yields + 1 >= held.task.max_yields:
            return self._bury(held, why, "starved")
        return self._back(held, "yielded", why, yield_delay(claimed.yields))

    def _failed(self, held: Held, exc: BaseException) -> Settlement:
        held.refused = held.refused or isinstance(exc, FenceRejected)
        lines = "".join(traceback.format_exception(exc))
        if not isinstance(exc, ContentionError):
            log.warning(
                "job %d (%s), attempt %d failed: %s",
                held.claimed.id,
                held.task.name,
                held.claimed.attempt,
                first_line(exc),
                extra=held.log_fields,
            )
        return self._again(held, lines, held.task.retry.delay(held.claimed.attempt))

    def _again(self, held: Held, error: str, delay: float) -> Settlement:
        claimed = held.claimed
        if claimed.attempt >= claimed.max_attempts:
            return self._bury(held, error, "attempts used up")
        return self._back(held, "retried", error, delay)

    @staticmethod
    def _back(held: Held, outcome: Outcome, error: str, delay: float) -> Settlement:
        claimed = held.claimed
        return Settlement(claimed.id, claimed.token, "ready", outcome, error=storable(error, MAX_ERROR), delay=delay)

    @staticmethod
    def _bury(held: Held, error: str, reason: str) -> Settlement:
        claimed = held.claimed
        return Settlement(
            claimed.id,
            claimed.token,
            "dead",
            "dead",
            error=storable(error, MAX_ERROR),
            reason=storable(reason, MAX_ERROR),
        )


def first_line(exc: BaseException) -> str:
    """Return an exception's type and the first line of its message, on which the others only comment.

    An exception's own text may raise; then the type has to do.
    """
    try:
        text = str(exc).strip()
    except Exception:  # noqa: BLE001 - it is the handler's class
        text = ""
    line = text.partition("\n")[0].strip()
    return f"{type(exc).__name__}: {line}" if line else type(exc).__name__


async def _with_lease(job: Job, coroutine: Coroutine[Any, Any, Any]) -> Any:
    with holding(job.lease):
        return await coroutine


async def _contained(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as exc:
        raise RuntimeError(f"an async handler ended in {exc!r}") from exc


async def _awaited(value: Any) -> Any:
    return await value
