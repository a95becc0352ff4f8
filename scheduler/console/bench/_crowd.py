"""Many relays on one table, some of which are killed in the middle."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from adapters.email import Email, Item, Outbox
from adapters.email.testing import SmtpSink
from scheduler.console.bench._fault_process import PATIENCE, RelayProcess
from scheduler.console.bench._fault_relay import outbox_engine
from scheduler.console.bench._faults import place_at

LEASE = 3.0
"""Seconds: a relay on a busy machine must not lose what it has for want of a processor."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """What came of it: by key, the state in the outbox and how many copies are at the mail server."""

    states: dict[str, str]
    copies: Counter[str]
    killed: int

    @property
    def uncertain(self) -> int:
        """How many are shown to a person."""
        return sum(state == "uncertain" for state in self.states.values())

    def problems(self) -> Iterator[str]:
        """What is not as ``hold`` promises."""
        for key, state in self.states.items():
            copies = self.copies[key]
            if state not in ("sent", "uncertain"):
                yield f"{key} is {state}"
            if copies > 1:
                yield f"{key} ({state}) arrived {copies} times"
            if state == "sent" and copies == 0:
                yield f"{key} is sent and never arrived"


def crowd(dsn: str, sink: SmtpSink, *, messages: int, relays: int = 8, kills: int = 2, seed: int = 1) -> Crowd:
    """Let ``relays`` processes send ``messages`` under ``hold``, and kill some of them at random on the way.

    Returns when nothing is left to be done: what was left by the killed ones has been taken over.
    """
    chance = random.Random(seed)
    moments = sorted(chance.randrange(messages // 10, messages * 8 // 10) for _ in range(kills))
    with place_at(dsn) as place, ExitStack() as stack:
        processes = [stack.enter_context(RelayProcess()) for _ in range(relays)]
        schema = place.outbox()
        engine = outbox_engine(dsn, schema)
        stack.callback(engine.dispose)
        outbox = Outbox(from_="sender@example.org")
        with engine.begin() as tx:
            outbox.put_many(
                tx,
                [
                    Item(
                        message=Email(to=f"reader{number}@example.org", subject=str(number), text="Hello.\n"),
                        key=str(number),
                    )
                    for number in range(messages)
                ],
            )
        before = len(sink.received)
        for process in processes:
            process.order(place.order(sink, schema, point="", batch=20, lease=LEASE, serve=True))
        for moment in moments:
            sink.wait_for(before + moment, PATIENCE)
            processes.pop(chance.randrange(len(processes))).close()
        while True:
            for process in processes:
                process.expect("idle")
            with engine.connect() as tx:
                counts: dict[str, int] = outbox.counts(tx)
            if counts["sent"] + counts["uncertain"] + counts["failed"] == messages:
                break
            for process in processes:
                process.tell()
        with engine.connect() as tx:
            entries: list[Any] = outbox.list(tx, limit=messages)
        copies = Counter(
            address.partition("@")[0].removeprefix("reader")
            for one in sink.received[before:]
            for address in one.rcpt_tos
        )
    return Crowd({entry.key: entry.state for entry in entries}, copies, kills)
