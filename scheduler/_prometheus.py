"""The Prometheus endpoint of a worker: its own counters since it began, and how the queues stand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from fencing import refusal_counts
from fencing.errors import FencingError
from scheduler._hooks import Hooks
from scheduler._loop import log
from scheduler._measures import Measures
from scheduler._tally import BOUNDS, Durations, Tallies

T = TypeVar("T")

KEEP = 5.0
"""Seconds for which what was read is served again: a scrape costs the database no more than that."""

PATIENCE = 3.0
"""Seconds that a scrape waits for the database: well below Prometheus' own ten, after which all would be missing."""


class Endpoint:
    """Serves ``/metrics`` on a port while it is open."""

    def __init__(self, host: str, port: int, collector: Any) -> None:
        """Raises ``ModuleNotFoundError`` without prometheus-client, ``OSError`` if the port is taken."""
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ModuleNotFoundError as exc:
            raise ModuleNotFoundError(
                "metrics_port= needs prometheus_client: pip install 'fencing-toolkit[metrics]'", name=exc.name
            ) from exc
        registry = CollectorRegistry()
        registry.register(collector)
        self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


@contextmanager
def serving(who: str, host: str, port: int | None, collector: Any) -> Iterator[None]:
    """Serve what the collector makes on that port, and log where; without a port, nothing.

    Raises ``ModuleNotFoundError`` without prometheus-client, and ``ValueError`` if nothing can be served there.
    """
    if port is None:
        yield
        return
    try:
        endpoint = Endpoint(host, port, collector)
    except (OSError, OverflowError) as exc:
        raise ValueError(f"metrics_port={port!r} of {host}: nothing can be served there ({exc})") from exc
    log.info("%s: metrics at http://%s:%d/metrics", who, host, endpoint.port)
    try:
        yield
    finally:
        endpoint.close()


class Kept(Generic[T]):
    """What was read last, for a few seconds; None where the database did not answer, or not soon enough.

    It is read on a thread of its own, one at a time: a server that is stopped answers nobody, and refuses nobody.
    """

    def __init__(self, what: str, read: Callable[[], T], *errors: type[Exception]) -> None:
        self._what = what
        self._read = read
        self._errors: tuple[type[Exception], ...] = (FencingError, *errors)
        self._lock = threading.Lock()
        self._found: tuple[float, T | None] | None = None
        self._reading: threading.Thread | None = None

    def __call__(self) -> T | None:
        """Read it, or give it again."""
        with self._lock:
            if self._found is not None and time.monotonic() - self._found[0] < KEEP:
                return self._found[1]
            if self._reading is None or not self._reading.is_alive():
                self._reading = threading.Thread(target=self._read_once, name="fencing-metrics", daemon=True)
                self._reading.start()
            reading = self._reading
        reading.join(PATIENCE)
        if reading.is_alive():
            log.warning("%s could not be read: no answer within %g s", self._what, PATIENCE)
            return None
        return self._found[1] if self._found else None

    def _read_once(self) -> None:
        found = None
        try:
            found = self._read()
        except self._errors as exc:
            log.warning("%s could not be read: %s", self._what, exc)
        finally:
            self._found = time.monotonic(), found


class Collector:
    """Makes the metrics when they are asked for. Those of the database are left out, and said to be, when it does not
    answer."""

    def __init__(
        self,
        tallies: Tallies,
        hooks: Hooks,
        running: Callable[[], int],
        skew: Callable[[], float],
        read: Callable[[], Measures],
    ) -> None:
        self._tallies = tallies
        self._hooks = hooks
        self._running = running
        self._skew = skew
        self._measures = Kept("the queues' metrics", read)

    def describe(self) -> list[Any]:
        """Nothing: what is registered need not be collected for its names."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the metric families."""
        yield from self._own()
        measures = self._measures()
        yield gauge(
            "database_up", "1 if the queues' metrics could be read, else 0 and they are missing", measures is not None
        )
        if measures is not None:
            yield from _of_queues(measures)

    def _own(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        labels = ["queue", "task"]
        claimed = CounterMetricFamily("fencing_jobs_claimed", "Jobs claimed by this worker", labels=labels)
        ended = CounterMetricFamily(
            "fencing_attempts_ended", "Attempts that ended, by outcome", labels=[*labels, "outcome"]
        )
        refused = CounterMetricFamily(
            "fencing_writes_refused", "Handlers that ended because a downstream refused a write", labels=labels
        )
        lost = CounterMetricFamily(
            "fencing_settlements_lost", "Settlements refused because the lease had gone to somebody else", labels=labels
        )
        lag = HistogramMetricFamily("fencing_job_lag_seconds", "From due to claimed", labels=labels)
        run = HistogramMetricFamily("fencing_job_run_seconds", "How long handlers ran", labels=labels)
        for kind, tally in sorted(self._tallies.sums().items()):
            claimed.add_metric(kind, tally.claimed)
            for outcome, count in sorted(tally.outcomes.items()):
                ended.add_metric([*kind, outcome], count)
            refused.add_metric(kind, tally.refused)
            lost.add_metric(kind, tally.lost)
            lag.add_metric(kind, _buckets(tally.lag), tally.lag.total)
            run.add_metric(kind, _buckets(tally.run), tally.run.total)
        refusals = CounterMetricFamily(
            "fencing_refusals", "Refusals by guards in this process", labels=["downstream", "kind"]
        )
        for labelled, count in sorted(refusal_counts().items()):
            refusals.add_metric(labelled, count)
        yield from (claimed, ended, refused, lost, lag, run, refusals)
        yield gauge("worker_running_jobs", "Jobs that this worker has started and not settled", self._running())
        yield gauge(
            "worker_clock_skew_seconds", "By how much the database's clock is ahead of this worker's", self._skew()
        )
        for name, text, value in (
            (
                "listen_reconnects",
                "Times that the listening connection was opened again",
                self._tallies.listen_reconnects,
            ),
            ("hook_failures", "Calls of hooks that raised", self._hooks.failures),
            ("hook_events_dropped", "Events dropped because hooks were too slow", self._hooks.dropped),
        ):
            yield CounterMetricFamily(f"fencing_{name}", text, value=value)


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    below, found = 0, []
    for bound, count in zip([*map(str, BOUNDS), "+Inf"], durations.counts, strict=True):
        below += count
        found.append((bound, float(below)))
    return found


def gauge(name: str, text: str, value: float) -> Any:
    """One gauge without labels."""
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(f"fencing_{name}", text, value=float(value))


def _of_queues(measures: Measures) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    stuck: dict[str, int] = {}
    for job in measures.stuck:
        stuck[job.queue] = stuck.get(job.queue, 0) + 1
    for name, text, value in (
        ("due_jobs", "Due jobs, counted up to 1,000 for each task and priority", lambda queue: queue.due),
        ("oldest_due_seconds", "How long the oldest due job has waited", lambda queue: queue.oldest_due),
        ("acceptable_lag_seconds", "The lag that was said to be acceptable", lambda queue: queue.acceptable_lag),
        ("lag_exceeded", "1 if the lag is not acceptable", lambda queue: queue.lag_exceeded),
        ("running_jobs", "Jobs with a live lease", lambda queue: queue.running),
        ("expired_leases", "Jobs whose lease ran out and that nobody has taken back", lambda queue: queue.expired),
        (
            "stuck_jobs",
            "Jobs that renew their lease far beyond their usual time",
            lambda queue: stuck.get(queue.queue, 0),
        ),
        ("dead_jobs", "Dead jobs among the newest 10,000 of all queues", lambda queue: queue.dead),
    ):
        family = GaugeMetricFamily(f"fencing_queue_{name}", text, labels=["queue"])
        for queue in measures.queues:
            if value(queue) is not None:
                family.add_metric([queue.queue], float(value(queue)))
        yield family
    yield gauge("workers", "Workers seen in the last 30 seconds", sum(one.silent < 30 for one in measures.workers))
