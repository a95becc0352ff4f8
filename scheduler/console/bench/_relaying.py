"""A relay with four connections against a program that only speaks SMTP, to the same server."""

from __future__ import annotations

import smtplib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy
from sqlalchemy import text

from adapters.email import Email, Item, Outbox, Relay, SmtpTransport
from scheduler.console.bench._fault_relay import outbox_engine
from scheduler.console.bench._faults import place_at
from scheduler.console.bench._frame import Servers
from scheduler.console.bench._sink import SinkProcess, sink_process

MESSAGES = 5_000
CONNECTIONS = 4
BATCH = 100
PATIENCE = 600.0
"""Seconds for the whole of a round."""
_TEXT = ("x" * 70 + "\n") * 66  # with its headers, some 5 kB
_OPEN = text("select exists(select 1 from fencing_outbox where state in ('pending', 'claimed', 'dispatching'))")


def pair(servers: Servers, scale: float, ours_first: bool) -> tuple[float, float]:
    """One round, on one server process."""
    messages = max(CONNECTIONS, int(MESSAGES * scale))
    with sink_process() as sink:
        if ours_first:
            first = _ours(servers.postgres, sink, messages)
            return first, _bare(sink, messages)
        second = _bare(sink, messages)
        return _ours(servers.postgres, sink, messages), second


def _mail(number: int) -> Email:
    return Email(to=f"reader{number}@example.org", subject=f"Number {number}", text=_TEXT)


def _ours(dsn: str, sink: SinkProcess, messages: int) -> float:
    """Messages a second: claimed, dispatching committed before each content, the end of each recorded."""
    with place_at(dsn) as place:
        engine = outbox_engine(dsn, place.outbox())
        outbox = Outbox(from_="sender@example.org")
        for start in range(0, messages, 500):
            numbers = range(start, min(messages, start + 500))
            with engine.begin() as tx:
                outbox.put_many(tx, [Item(message=_mail(number), key=str(number)) for number in numbers])
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("vacuum analyze fencing_outbox")
        transport = SmtpTransport(sink.host, sink.port, local_hostname="relay")
        relay = Relay(engine, transport, leases=place.app, batch=BATCH, connections=CONNECTIONS, idle=0.1)
        stop = threading.Event()
        began = time.perf_counter()
        serving = threading.Thread(target=relay.run, args=(stop,))
        serving.start()
        elapsed = _until_all_is_settled(engine, sink, messages, began)
        stop.set()
        serving.join()
        with engine.connect() as tx:
            sent = outbox.counts(tx)["sent"]
        engine.dispose()
    _complete(messages, sent, sink.taken())
    return messages / elapsed


def _until_all_is_settled(engine: sqlalchemy.Engine, sink: SinkProcess, messages: int, began: float) -> float:
    # The table is asked at the end alone: a look at it costs as much as some messages.
    give_up = began + PATIENCE
    while sink.taken_so_far() < messages and time.perf_counter() < give_up:
        time.sleep(0.02)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while connection.execute(_OPEN).scalar_one() and time.perf_counter() < give_up:
            time.sleep(0.01)
        return time.perf_counter() - began


def _bare(sink: SinkProcess, messages: int) -> float:
    """Messages a second of four threads with the stdlib's smtplib, a kept connection each, and no database."""
    content = [_mail(number) for number in range(CONNECTIONS)]
    ready = [
        f"From: sender@example.org\r\nTo: {mail.to}\r\nSubject: {mail.subject}\r\n"
        f"Message-ID: <{number}@example.org>\r\nDate: Sun, 29 Nov 2026 12:00:00 +0000\r\nMIME-Version: 1.0\r\n"
        f"Content-Type: text/plain; charset=utf-8\r\n\r\n".encode()
        + _TEXT.replace("\n", "\r\n").encode()
        for number, mail in enumerate(content)
    ]

    def send(lane: int) -> None:
        with smtplib.SMTP(sink.host, sink.port, local_hostname="bare") as client:
            for number in range(lane, messages, CONNECTIONS):
                client.sendmail("sender@example.org", [f"reader{number}@example.org"], ready[lane])

    began = time.perf_counter()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(send, range(CONNECTIONS)))
    elapsed = time.perf_counter() - began
    _complete(messages, messages, sink.taken())
    return messages / elapsed


def _complete(messages: int, sent: int, taken: int) -> None:
    if not messages == sent == taken:
        raise RuntimeError(f"of {messages} messages {sent} are sent and {taken} arrived: the figure is worth nothing")
