"""OpenTelemetry spans of what is enqueued and of each attempt, where the API package is there and a provider was set.

After the semantic conventions for messaging spans: enqueuing is a PRODUCER span of the caller's trace, an attempt a
CONSUMER span of a trace of its own that links back to it, since it may run days later and many times. The job keeps
the W3C Trace Context (``traceparent`` and ``tracestate``) of its enqueuing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

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


def _tracer() -> Any:
    """The tracer, or None where nobody would see its spans."""
    if not _here or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
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

    def __init__(self, task: str, queue: str, count: int = 1) -> None:
        self._span: Any = None
        self.context: str | None = None
        tracer = _tracer()
        if tracer is None:
            return
        attributes = _attributes("enqueue", "send", task, queue)
        if count != 1:
            attributes["messaging.batch.message_count"] = count
        self._span = tracer.start_span(f"enqueue {queue}", kind=trace.SpanKind.PRODUCER, attributes=attributes)
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(self._span))
        self.context = json.dumps(carrier) if carrier else None

    def end(self, job: int | None = None, error: BaseException | None = None) -> None:
        """End the span: with the job's id, or what went wrong."""
        if self._span is None:
            return
        if job is not None:
            self._span.set_attribute("messaging.message.id", str(job))
        if error is not None:
            _fail(self._span, error)
        self._span.end()


class Attempting:
    """The span of an attempt, to be told how it goes; without a span it does nothing."""

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def failed(self, error: BaseException) -> None:
        """The handler, or raising the fences, ended in this."""
        if self._span is not None:
            _fail(self._span, error)

    def ended(self, settlement: Settlement) -> None:
        """How the attempt is to be settled."""
        if self._span is not None:
            self._span.set_attribute("fencing.outcome", settlement.outcome)
            if settlement.outcome in ("retried", "dead"):
                self._span.set_status(trace.StatusCode.ERROR)


_NOBODY = Attempting()


@contextmanager
def attempting(held: Held) -> Iterator[Attempting]:
    """Make the span of an attempt the current one for the block, where somebody traces."""
    tracer = _tracer()
    if tracer is None:
        yield _NOBODY
        return
    claimed = held.claimed
    attributes = {
        **_attributes("process", "process", claimed.task, claimed.queue),
        "messaging.message.id": str(claimed.id),
        "messaging.client.id": held.lease.holder,
        "fencing.token": str(held.lease.token),
        "fencing.attempt": claimed.attempt,
        "fencing.lag": claimed.lag,
    }
    with tracer.start_as_current_span(
        f"process {claimed.queue}",
        context=Context(),
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        links=_links(claimed.trace),
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        yield Attempting(span)


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
