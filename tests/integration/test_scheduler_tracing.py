"""Spans of enqueuing and of attempts, linked by the W3C Trace Context in the job; nothing without the API."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.jobs import Tables, installed_beside

from fencing.errors import NotInTransactionError
from scheduler import Job, Retry, Scheduler, _tracing
from scheduler.console.embedded import Postgres


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_tracing")
    postgres.drop_database("scheduler_tracing")


@pytest.fixture
def ground(database: str) -> Iterator[tuple[Scheduler, Tables]]:
    with installed_beside(database) as both:
        yield both


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """An SDK as an application sets it up, for this test alone."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    monkeypatch.setattr(_tracing, "_none_until", 0.0)
    return exporter


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def context(span: ReadableSpan) -> trace.SpanContext:
    assert span.context is not None
    return span.context


def test_each_attempt_is_a_span_of_its_own_trace_that_links_to_the_enqueuing(
    app: Scheduler, tables: Tables, spans: InMemorySpanExporter
) -> None:
    @app.task("work", retry=Retry(max_attempts=2, base=0))
    def work(job: Job) -> None:
        with trace.get_tracer("shop").start_as_current_span("inside"):
            if job.attempt == 1:
                raise OSError("not yet")

    with trace.get_tracer("shop").start_as_current_span("order") as order:
        number = app.enqueue("work", queue="mail").id
    app.run_until_idle(["mail"])

    (enqueued,) = named(spans, "enqueue mail")
    assert enqueued.kind is trace.SpanKind.PRODUCER
    assert enqueued.parent == order.get_span_context()
    assert dict(enqueued.attributes or {}) == {
        "messaging.system": "fencing",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.message.id": str(number),
        "fencing.task": "work",
    }
    stored = tables.job(number)["trace"]["traceparent"]
    origin = context(enqueued)
    assert stored == f"00-{origin.trace_id:032x}-{origin.span_id:016x}-{origin.trace_flags:02x}"

    first, second = named(spans, "process mail")
    for span, attempt in zip((first, second), tables.attempts(number), strict=True):
        attributes = span.attributes or {}
        assert span.kind is trace.SpanKind.CONSUMER
        assert span.parent is None
        (link,) = span.links
        assert (link.context.trace_id, link.context.span_id) == (origin.trace_id, origin.span_id)
        assert context(span).trace_id != origin.trace_id
        assert str(attributes["fencing.token"]).endswith(f"/{attempt['token']}")
        assert attributes["fencing.attempt"] == attempt["attempt"]
        assert attributes["fencing.outcome"] == attempt["outcome"]
        assert attributes["messaging.client.id"] == attempt["owner"]
        assert attributes["messaging.message.id"] == str(number)
    assert (first.status.status_code, second.status.status_code) == (trace.StatusCode.ERROR, trace.StatusCode.UNSET)
    assert (first.attributes or {})["error.type"] == "OSError"
    assert [event.name for event in first.events] == ["exception"]
    assert [span.parent for span in named(spans, "inside")] == [context(first), context(second)]


def test_an_async_handlers_own_spans_are_below_the_attempt(app: Scheduler, spans: InMemorySpanExporter) -> None:
    @app.task("work")
    async def work(job: Job) -> None:
        await asyncio.sleep(0)
        with trace.get_tracer("shop").start_as_current_span("inside"):
            await asyncio.sleep(0)

    app.enqueue("work")
    app.run_until_idle()
    (attempt,), (inside,) = named(spans, "process default"), named(spans, "inside")
    assert inside.parent == context(attempt)


def test_jobs_enqueued_in_bulk_link_to_one_span_and_those_of_a_schedule_to_none(
    app: Scheduler, tables: Tables, spans: InMemorySpanExporter
) -> None:
    app.task("work")(lambda job: None)
    app.enqueue_many("work", range(3))
    tables.rows("update {s}.job set trace = null where args = '2'")
    tables.rows("update {s}.job set trace = '{\"traceparent\": \"nonsense\"}' where args = '1'")
    app.run_until_idle()
    (enqueued,) = named(spans, "enqueue default")
    assert (enqueued.attributes or {})["messaging.batch.message_count"] == 3
    attempts = named(spans, "process default")
    assert sorted(len(span.links) for span in attempts) == [0, 0, 1]


def test_an_enqueuing_in_the_callers_transaction_is_a_span_whether_sync_or_async_and_shows_its_error(
    app: Scheduler, tables: Tables, spans: InMemorySpanExporter
) -> None:
    app.task("work")(lambda job: None)
    with psycopg.connect(tables.dsn) as connection:
        one = app.enqueue("work", connection=connection).id

    async def asynchronously() -> int:
        async with await psycopg.AsyncConnection.connect(tables.dsn) as connection:
            waiting = app.enqueue("work", connection=connection)
            assert len(named(spans, "enqueue default")) == 1, "nothing was enqueued yet"
            return int((await waiting).id)

    two = asyncio.run(asynchronously())
    assert [dict(span.attributes or {})["messaging.message.id"] for span in named(spans, "enqueue default")] == [
        str(one),
        str(two),
    ]
    assert all(tables.job(number)["trace"] for number in (one, two))
    with psycopg.connect(tables.dsn, autocommit=True) as connection, pytest.raises(NotInTransactionError):
        app.enqueue("work", connection=connection)
    assert [span.status.status_code for span in named(spans, "enqueue default")][2] is trace.StatusCode.ERROR


def test_without_a_provider_nothing_is_traced_and_nothing_stored(app: Scheduler, tables: Tables) -> None:
    app.task("work")(lambda job: None)
    number = app.enqueue("work").id
    app.run_until_idle()
    assert tables.job(number)["trace"] is None


@pytest.mark.parametrize("missing", ["opentelemetry", "prometheus_client"])
def test_the_scheduler_works_without(missing: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
from scheduler import Scheduler
from scheduler._tracing import Enqueuing, attempting
print(Enqueuing("work", "default").context, attempting(None, 0.0))
app = Scheduler("host=nowhere.invalid")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "None None\n"), done.stderr


def test_what_is_loaded_says_nothing_of_the_sdk() -> None:
    heavy = "('opentelemetry.sdk', 'prometheus')"
    code = f"import sys, scheduler; print(*[name for name in sys.modules if name.startswith({heavy})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
