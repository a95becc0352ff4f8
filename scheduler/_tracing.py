"""OpenTelemetry spans of what is enqueued and of each attempt, where the API package is there and a provider was set.

After the semantic conventions for messaging spans: enqueuing is a PRODUCER span of the caller's trace, an attempt a
CONSUMER span of a trace of its own that links back to it, since it may run days later and many times. The job keeps
the W3C Trace Context (``traceparent`` and ``tracestate``) of its enqueuing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Self

from scheduler._held import Held
from scheduler._store import Settlement

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError:
    _here = False
else:
    _here = True


ASK_AGAIN = 1.0
"""Seconds after which a provider is asked for again where there was none: asking for each job would cost more than the
rest of what is done for it here."""

_none_until = 0.0 if _here else float("inf")


def _tracer() -> Any:
    """The tracer, or None where nobody would see its spans."""
    global _none_until
    if time.monotonic() < _none_until:
        return None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        _none_until = time.monotonic() + ASK_AGAIN
        return None
    return trace.get_tracer("scheduler")


def _attributes(operation: str, kind: str, task: str, queue: str) -> dict[str, Any]:
    return {
        "messaging.system": "fencing",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
        "fencing.task": task,
    }


class Enqueuing:
    """The span of an enqueuing. ``context`` is JSON text for the job's row, None where nobody traces."""

    def __init__(self, task: str, queue: str) -> None:
        self._span: Any = None
        self.context: str | None = None
        tracer = _tracer()
        if tracer is None:
            return
        attributes = _attributes("enqueue", "send", task, queue)
        self._span = tracer.start_span(f"enqueue {queue}", kind=trace.SpanKind.PRODUCER, attributes=attributes)
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(self._span))
        self.context = json.dumps(carrier) if carrier else None

    def end(self, job: int | None = None, count: int | None = None, error: BaseException | None = None) -> None:
        """End the span: with the job's id or how many were given, or what went wrong."""
        if self._span is None:
            return
        if job is not None:
            self._span.set_attribute("messaging.message.id", str(job))
        if count is not None:
            self._span.set_attribute("messaging.batch.message_count", count)
        if error is not None:
            _fail(self._span, error)
        self._span.end()


class Attempting:
    """The span of an attempt, current inside the ``with`` block."""

    def __init__(self, entered: AbstractContextManager[Any]) -> None:
        self._entered = entered
        self._span: Any = None

    def __enter__(self) -> Self:
        self._span = self._entered.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._entered.__exit__(*raised)

    def failed(self, error: BaseException) -> None:
        """The handler, or raising the fences, ended in this."""
        _fail(self._span, error)

    def ended(self, settlement: Settlement) -> None:
        """How the attempt is to be settled."""
        self._span.set_attribute("fencing.outcome", settlement.outcome)
        if settlement.outcome in ("retried", "dead"):
            self._span.set_status(trace.StatusCode.ERROR)


def attempting(held: Held, now: float) -> Attempting | None:
    """Return the span of an attempt that begins ``now`` (``time.monotonic()``), None where nobody traces."""
    if now < _none_until:
        return None
    tracer = _tracer()
    if tracer is None:
        return None
    claimed = held.claimed
    attributes = {
        **_attributes("process", "process", claimed.task, claimed.queue),
        "messaging.message.id": str(claimed.id),
        "messaging.client.id": held.lease.holder,
        "fencing.token": str(held.lease.token),
        "fencing.attempt": claimed.attempt,
        "fencing.lag": claimed.lag,
    }
    return Attempting(
        tracer.start_as_current_span(
            f"process {claimed.queue}",
            context=Context(),
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
            links=_links(claimed.trace),
            record_exception=False,
            set_status_on_exception=False,
        )
    )


def _links(stored: object) -> list[Any]:
    if not isinstance(stored, Mapping):
        return []
    carrier = {str(name): str(value) for name, value in stored.items()}
    context = TraceContextTextMapPropagator().extract(carrier, Context())
    found = trace.get_current_span(context).get_span_context()
    return [trace.Link(found)] if found.is_valid else []


def _fail(span: Any, error: BaseException) -> None:
    span.record_exception(error)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(trace.StatusCode.ERROR)
