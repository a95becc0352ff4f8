"""A relay in a process of its own that can be stopped at a point of a hand-over:
``python -m scheduler.console.bench._fault_relay PARENT_PID``.

Each line of the standard input is an order, as JSON: where the outbox and the mail server are, and the point at which
to wait for a word. It says the point's name when it is there, and what the batch came to at the end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import sqlalchemy

from adapters.email import Answer, Backoff, Delivery, Gate, Outgoing, Relay, Session, SmtpTransport, Transport
from scheduler import Scheduler
from scheduler.console._parent import die_with

POINTS = ("claimed", "rcpt", "dispatching", "answered", "recorded")
"""Where a hand-over can be interrupted.

``claimed``: before anything was said to the server. ``rcpt``: the recipients are accepted. ``dispatching``: that is
committed, and the content follows next. ``answered``: the server took the message, and nothing is written down.
``recorded``: it is.
"""


class PausingTransport:
    """A transport that waits for a word on the standard input when it comes to ``point``, and says so."""

    def __init__(self, inner: Transport, point: str) -> None:
        self.inner = inner
        self.point = point
        self.name = inner.name

    def session(self) -> Session:
        """One that stops at the point."""
        return _PausingSession(self.inner.session(), self)

    def reach(self, point: str) -> None:
        """Say so and wait, if it is the point."""
        if point == self.point:
            say(point)
            sys.stdin.readline()


class _PausingSession:
    def __init__(self, inner: Session, transport: PausingTransport) -> None:
        self._inner = inner
        self._transport = transport

    def deliver(self, mail: Outgoing, gate: Gate) -> Delivery:
        def pausing(refused: Mapping[str, Answer]) -> None:
            self._transport.reach("rcpt")
            gate(refused)
            self._transport.reach("dispatching")

        self._transport.reach("claimed")
        delivery = self._inner.deliver(mail, pausing)
        self._transport.reach("answered")
        return delivery

    def close(self) -> None:
        self._inner.close()


def say(line: str) -> None:
    """One line for whoever started it."""
    print(line, flush=True)


def pause() -> bool:
    """Nothing is to be done at this moment: wait for a word."""
    say("idle")
    return bool(sys.stdin.readline())


def outbox_engine(dsn: str, schema: str) -> sqlalchemy.Engine:
    """An engine whose tables are those of a schema."""
    url = dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    return sqlalchemy.create_engine(url, connect_args={"options": f"-csearch_path={schema}"})


def relay_on(engine: sqlalchemy.Engine, app: Scheduler, transport: Transport, *, batch: int, lease: float) -> Relay:
    """A relay that tries again at once: in the matrix nothing is won by waiting."""
    return Relay(engine, transport, leases=app, batch=batch, lease=lease, backoff=Backoff(0.01, 0.0), idle=0.05)


def obey(order: dict[str, Any]) -> None:
    """Run one batch, or serve until the input ends (``serve``)."""
    engine = outbox_engine(order["dsn"], order["schema"])
    app = Scheduler(order["dsn"], schema=order["issuer"])
    transport = PausingTransport(SmtpTransport(order["host"], order["port"], local_hostname="relay"), order["point"])
    relay = relay_on(engine, app, transport, batch=order["batch"], lease=order["lease"])
    try:
        if order.get("serve"):
            while relay.run_once().claimed or pause():
                pass
            return
        counts = relay.run_once()
        transport.reach("recorded")
        say(json.dumps(asdict(counts)))
    finally:
        app.close()
        engine.dispose()


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    say("ready")
    while line := sys.stdin.readline():
        obey(json.loads(line))
