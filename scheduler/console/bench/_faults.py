"""The fault matrix of the outbox: a relay is stopped or killed at each point of a hand-over, under each policy.

Real processes and signals, a real mail server, a real scheduler that issues the tokens. Another relay takes over when
the lease has run out; a stopped one is then continued. The lease of a killed relay runs out by itself. That of a
stopped one is ended in the database, long before its own clock would say so: then nothing but the token refuses it.
"""

from __future__ import annotations

import itertools
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Literal

import click
import psycopg
from psycopg import sql

from adapters import email
from adapters.email import Email, Entry, Outbox, SmtpTransport
from adapters.email.testing import SmtpSink
from scheduler import Scheduler
from scheduler.console._options import print_json, print_table
from scheduler.console.bench._fault_process import PATIENCE, RelayProcess
from scheduler.console.bench._fault_relay import POINTS, outbox_engine, relay_on
from scheduler.console.bench._frame import Servers

Fault = Literal["stop", "kill"]
FAULTS: tuple[Fault, ...] = ("stop", "kill")
"""``stop``: SIGSTOP, and SIGCONT once another relay has done what it can. ``kill``: SIGKILL."""

Policy = Literal["hold", "resend"]
POLICIES: tuple[Policy, ...] = ("hold", "resend")

MOMENTS = {
    "claimed": "claimed",
    "rcpt": "after RCPT",
    "dispatching": "dispatching committed",
    "answered": "250 seen, not recorded",
    "recorded": "recorded",
}
"""The points, for people."""

LEASE = 3.0
"""Seconds of a relay's lease that is waited for."""

LONG_LEASE = 60.0
"""Seconds of one that is not."""

_END_LEASE = (
    "update fencing_outbox set lease_until = clock_timestamp() - interval '1 second' where lease_until is not null"
)

AT_ONCE = 4
"""Cells at the same time: they mostly wait."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One case, and what came of it: ``copies`` of the message at the mail server, and the ``state`` in the outbox.

    ``identical``: all copies are the bytes that were put. ``kept``: what the other relay had written as ``sent`` stood
    as it was, token and all, after the first one had come back.
    """

    point: str
    fault: Fault
    policy: Policy
    copies: int
    state: str
    identical: bool
    kept: bool

    def as_json(self) -> dict[str, Any]:
        """The facts."""
        return {name: getattr(self, name) for name in ("point", "fault", "policy", "copies", "state")}

    def problems(self) -> Iterator[str]:
        """Which promises were broken here."""
        where = f"{self.policy}, {self.fault} at {self.point}"
        if self.policy == "hold" and self.copies > 1:
            yield f"{where}: {self.copies} copies, where one is the most"
        if self.policy == "hold" and not self.copies and self.state != "uncertain":
            yield f"{where}: no copy, and nobody is told: it is {self.state}"
        if self.policy == "resend" and not self.copies:
            yield f"{where}: no copy, where one is the least"
        if self.policy == "resend" and self.state != "sent":
            yield f"{where}: it is {self.state}, where it should be sent in the end"
        if not self.identical:
            yield f"{where}: a copy is not the message that was put"
        if not self.kept:
            yield f"{where}: an older token wrote over what a newer one had recorded as sent"


def fault_matrix(
    dsn: str,
    sink: SmtpSink,
    *,
    points: Sequence[str] = POINTS,
    faults: Sequence[Fault] = FAULTS,
    policies: Sequence[Policy] = POLICIES,
) -> list[Cell]:
    """Run the cases on the PostgreSQL server at ``dsn``, in schemas that are removed again. Some 10 s for all."""
    cases = list(itertools.product(policies, faults, points))
    with place_at(dsn) as place, ExitStack() as stack:
        # From this thread: a process ends with the thread that started it.
        free: SimpleQueue[RelayProcess] = SimpleQueue()
        kills = sum(fault == "kill" for _, fault, _ in cases)
        for _ in range(kills + min(AT_ONCE, len(cases) - kills)):
            free.put(stack.enter_context(RelayProcess()))

        def run(case: tuple[Policy, Fault, str]) -> Cell:
            process = free.get()
            cell = _run(place, sink, process, *case)
            if cell.fault == "stop":
                free.put(process)
            return cell

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(run, cases))


class Place:
    """A scheduler's schema, and schemas with an outbox each, on one server."""

    def __init__(self, dsn: str, name: str) -> None:
        self.dsn = dsn
        self.name = name
        self.app = Scheduler(dsn, schema=name)
        self._numbers = itertools.count(1)
        self.schemas = [name]

    def order(self, sink: SmtpSink, schema: str, **more: Any) -> dict[str, Any]:
        """What a relay process has to know."""
        return {
            "dsn": self.dsn,
            "issuer": self.name,
            "schema": schema,
            "host": sink.host,
            "port": sink.port,
            **more,
        }

    def outbox(self) -> str:
        """A new schema with the outbox's tables."""
        schema = f"{self.name}_{next(self._numbers)}"
        self.schemas.append(schema)
        engine = outbox_engine(self.dsn, schema)
        with engine.begin() as connection:
            connection.exec_driver_sql(f'create schema "{schema}"')
            email.create_all(connection)
        engine.dispose()
        return schema


@contextmanager
def place_at(dsn: str) -> Iterator[Place]:
    """Schemas of a run's own, removed at the end."""
    place = Place(dsn, f"fencing_faults_{secrets.token_hex(3)}")
    place.app.migrate()
    try:
        yield place
    finally:
        place.app.close()
        with psycopg.connect(dsn, autocommit=True) as connection:
            for schema in place.schemas:
                connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(schema)))


def _run(place: Place, sink: SmtpSink, process: RelayProcess, policy: Policy, fault: Fault, point: str) -> Cell:
    schema = place.outbox()
    key = f"{schema}/{policy}/{fault}/{point}"
    engine = outbox_engine(place.dsn, schema)
    outbox = Outbox(from_="sender@example.org")
    try:
        with engine.begin() as tx:
            message = Email(to="reader@example.org", subject=key, text="Hello.\n.\n")
            outbox.put(tx, message, key=key, policy=policy)
            frozen = outbox.message(tx, key)
        lease = LEASE if fault == "kill" else LONG_LEASE
        process.order(place.order(sink, schema, point=point, batch=20, lease=lease))
        process.expect(point)
        if fault == "stop":
            process.stop()
            with engine.begin() as tx:
                tx.exec_driver_sql(_END_LEASE)
        else:
            process.close()
        transport = SmtpTransport(sink.host, sink.port, local_hostname="other")
        other = relay_on(engine, place.app, transport, batch=20, lease=LONG_LEASE)
        give_up = time.monotonic() + PATIENCE
        while True:
            other.run_once()
            with engine.connect() as tx:
                before: Entry = outbox.show(tx, key).entry
            if before.state in ("sent", "failed", "uncertain"):
                break
            if time.monotonic() > give_up:
                raise RuntimeError(f"{key} is {before.state} after {PATIENCE:g} s: {before.last_error}")
            time.sleep(0.05)
        if fault == "stop":
            process.wake()
            process.tell()
            process.line()  # what its batch came to
        with engine.connect() as tx:
            after: Entry = outbox.show(tx, key).entry
    finally:
        engine.dispose()
    copies = [one.data for one in list(sink.received) if after.message_id.encode() in one.data]
    identical = all(copy == frozen for copy in copies)
    kept = before.state != "sent" or (after.state, after.dispatch) == ("sent", before.dispatch)
    return Cell(point, fault, policy, len(copies), after.state, identical, kept)


def problems(cells: Iterable[Cell]) -> list[str]:
    """Which promises were broken."""
    return [problem for cell in cells for problem in cell.problems()]


def run(dsn: str | None, as_json: bool) -> None:
    """The command: a table, or the list as JSON; exit status 1 if a promise was broken."""
    with Servers(dsn) as servers:
        cells = fault_matrix(servers.postgres, servers.smtp)
    if as_json:
        print_json([cell.as_json() for cell in cells])
    else:
        by_case = {(cell.point, cell.fault, cell.policy): cell for cell in cells}
        print_table(
            ["interrupted when", "by", *(f"{policy}: copies, state" for policy in POLICIES)],
            [
                [
                    MOMENTS[point],
                    "stop and continue" if fault == "stop" else "kill",
                    *(f"{cell.copies}, {cell.state}" for cell in (by_case[point, fault, one] for one in POLICIES)),
                ]
                for fault, point in itertools.product(FAULTS, POINTS)
            ],
        )
    broken = problems(cells)
    for problem in broken:
        click.echo(problem, err=True)
    sys.exit(1 if broken else 0)
