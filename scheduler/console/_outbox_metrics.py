"""What a relay serves to Prometheus: how the outbox stands, and how the relay fares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from adapters.email import Outbox, Relay, Stats
from scheduler._prometheus import Kept, gauge

_FIGURES = (
    ("pending", "Messages that are not handed over yet"),
    ("parked", "Those that wait for another one of their order key"),
    ("due", "Those that could leave now"),
    ("oldest_due_seconds", "How long the oldest due message has waited"),
    ("claimed", "Messages that a relay has in hand"),
    ("dispatching", "Messages whose hand-over has begun"),
    ("over_lease", "Messages in hand of a relay that is gone"),
    ("uncertain", "Messages that may have arrived, which wait for a person"),
    ("oldest_uncertain_seconds", "How long the oldest of them has waited"),
    ("in_doubt", "Pending messages that an earlier hand-over may have sent"),
)


class OutboxCollector:
    """Makes the metrics when they are asked for. Those of the database are left out, and said to be, when it does not
    answer."""

    def __init__(self, relay: Relay, connect: Callable[[], Any]) -> None:
        self._relay = relay

        def read() -> Stats:
            with connect() as tx:
                found: Stats = Outbox().stats(tx)
                return found

        self._stats = Kept("the outbox's metrics", read, SQLAlchemyError)

    def describe(self) -> list[Any]:
        """Nothing: what is registered need not be collected for its names."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the metric families."""
        from prometheus_client.core import GaugeMetricFamily

        status = self._relay.status()
        yield gauge("relay_waiting", "Messages that this relay has claimed and not begun", status.waiting)
        yield gauge(
            "relay_breaker_open", "1 while the mail server is left alone since it is down", status.breaker != "closed"
        )
        stats = self._stats()
        yield gauge("outbox_up", "1 if the outbox could be read, else 0 and what follows is missing", stats is not None)
        if stats is None:
            return
        for name, text in _FIGURES:
            yield gauge(f"outbox_{name}", text, getattr(stats, name))
        unfinished = GaugeMetricFamily(
            "fencing_outbox_unfinished",
            "What was handed over through a transport and is not finished",
            labels=["transport", "state"],
        )
        for transport, counts in sorted(stats.by_transport.items()):
            for state, count in counts.items():
                unfinished.add_metric([transport, state], count)
        yield unfinished
