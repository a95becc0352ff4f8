"""A run from its start to its verdict."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, LiteralString

import psycopg

import adapters.email
import adapters.sql
from fencing import history
from fencing.errors import FencingError
from scheduler import Scheduler
from scheduler.console.demo._process import WorkerProcess
from scheduler.console.embedded._place import Place
from scheduler.console.torture._judge import Found, Report, judge, look
from scheduler.console.torture._nemesis import Nemesis, Victim
from scheduler.console.torture._network import Network
from scheduler.console.torture._servers import Servers
from scheduler.console.torture._work import ACCOUNTS, EFFECTS, Addresses, open_app

PROGRAM = "scheduler.console.torture._process"
PER_SECOND = 25.0
"""Jobs that become due."""

AHEAD = 100
"""Due jobs above which no more are enqueued until there are fewer."""

LOOKED_AFTER = 25
"""Jobs after which it is looked how many are due."""

PATIENCE = 120.0
"""Seconds in which nothing of what is left is done, though all is well again: then the rest is not awaited."""


def run(
    seconds: float,
    seed: int,
    *,
    fenced: bool = True,
    synchronous: bool = True,
    workers: int = 4,
    relays: int = 2,
    record: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Torture for so many seconds, let everything come to rest, and judge. ``record``: keep the history there."""
    began = time.monotonic()
    with ExitStack() as stack:
        place = Place("fencing-torture-", [PROGRAM], signal.SIGKILL)
        stack.callback(place.remove)
        network = stack.enter_context(Network())
        tell("starting PostgreSQL with a standby, Valkey with a replica, a mail server")
        servers = stack.enter_context(Servers(network, synchronous=synchronous))
        durability = "wait:1:1000" if synchronous else "none"
        _prepare(servers, durability)
        numbers = itertools.count()

        def victim(role: str) -> Victim:
            links = servers.links()
            where = Addresses(links[0].port, links[1].port, servers.sink.port, durability)

            def start(skew: int) -> WorkerProcess:
                process = WorkerProcess(place.path, next(numbers), PROGRAM)
                process.order({"role": role, "fenced": fenced, "skew": skew, "addresses": _plain(where)})
                return process

            made = Victim(links, start)
            stack.callback(made.close)
            return made

        working = [victim("worker") for _ in range(workers)]
        relaying = [victim("relay") for _ in range(relays if fenced else 0)]
        way, direct = servers.links()
        enqueuer = _Enqueuer(Addresses(way.port, direct.port, servers.sink.port, durability), seed)
        tell(f"torturing {len(working)} workers and {len(relaying)} relays for {seconds:g} s, seed {seed}")
        nemesis = Nemesis([*working, *relaying], servers, seed)
        enqueuer.start()
        nemesis.start()
        try:
            time.sleep(seconds)
        finally:
            nemesis.stop()
            enqueued = enqueuer.stop()
        tell("all is well again: waiting for what is left to be done")
        _rest(servers, [*working, *relaying], fenced=fenced)
        for one in [*working, *relaying]:
            one.process.terminate()
        killed = [process for one in [*working, *relaying] for process in one.past]
        killed += [one.process for one in [*working, *relaying] if not _ended(one.process)]
        events = [
            _named(event)
            for one in [*working, *relaying]
            for process in (*one.past, one.process)
            for event in process.events
        ]
        events += [event for process in killed for event in _killed(process)]
        events += servers.failovers
        found = look(servers)
        if record is not None:
            _keep(record, events, found)
        spent = time.monotonic() - began
        return judge(spent, nemesis.faults, events, found, enqueued, synchronous=synchronous)


def _ended(process: WorkerProcess) -> bool:
    """Whether it ended in order; it is killed if it does not."""
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.close()
        return False
    return True


class _Enqueuer:
    """Asks for jobs at a steady rate, over a link of its own, again and again under the same key until it is told that
    the job is there."""

    def __init__(self, where: Addresses, seed: int) -> None:
        self._app = open_app(where, fenced=True)
        self._chance = random.Random(f"jobs {seed}")
        self._stopping = threading.Event()
        self._told: list[str] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="torture-enqueuer")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> list[str]:
        """The keys of the jobs that were acknowledged. Raises what ended it before its time."""
        self._stopping.set()
        self._thread.join()
        self._app.close()
        if self._error is not None:
            raise self._error
        return self._told

    def _run(self) -> None:
        try:
            self._enqueue()
        except BaseException as exc:  # noqa: BLE001 - raised again by stop()
            self._error = exc

    def _wait_for_room(self) -> None:
        """On a slow machine the jobs would outrun the workers for as long as the run lasts, and its rest never end."""
        while not self._stopping.is_set():
            try:
                if sum(queue.due for queue in self._app.measure().queues) <= AHEAD:
                    return
            except FencingError:
                pass  # the server is being tortured
            self._stopping.wait(0.2)

    def _enqueue(self) -> None:
        for number in itertools.count():
            if self._stopping.wait(1 / PER_SECOND):
                return
            if number % LOOKED_AFTER == 0:
                self._wait_for_room()
            key, account = f"job-{number}", self._chance.randrange(ACCOUNTS)
            while not self._stopping.is_set():
                try:
                    self._app.enqueue("change", {"account": account}, key=key, unique="forever")
                except FencingError:
                    self._stopping.wait(0.1)
                    continue
                self._told.append(key)
                break


def _prepare(servers: Servers, durability: str) -> None:
    app = Scheduler(servers.postgres.dsn())
    app.migrate("torture")
    app.close()
    where = Addresses(servers.postgres.port, servers.valkey.port, servers.sink.port, durability)
    engine = where.engine()
    with engine.begin() as connection:
        adapters.sql.create_all(connection)
        adapters.email.create_all(connection)
        connection.exec_driver_sql(EFFECTS)
    engine.dispose()


def _rest(servers: Servers, victims: Sequence[Victim], *, fenced: bool) -> None:
    """Wait until every job has ended and every mail is sent or uncertain, for as long as there are fewer and fewer that
    have not. What has not then is judged as it is."""
    fewest = None
    with psycopg.connect(servers.postgres.dsn(), autocommit=True) as connection:
        while True:
            for victim in victims:
                victim.supervise()
            left = _count(connection, "select count(*) from fencing.job where status in ('ready', 'leased')")
            if fenced:
                left += _count(
                    connection,
                    "select count(*) from fencing_outbox where state in ('pending', 'claimed', 'dispatching')",
                )
            if not left:
                return
            if fewest is None or left < fewest:
                fewest, give_up = left, time.monotonic() + PATIENCE
            elif time.monotonic() > give_up:
                return
            time.sleep(0.2)


def _count(connection: psycopg.Connection[Any], statement: LiteralString) -> int:
    row = connection.execute(statement).fetchone()
    return row[0] if row else 0


def _keep(path: Path, events: list[history.Event], found: Found) -> None:
    lines = history.JsonLines(path)
    for event in [*events, *found.looks]:
        lines(event)
    lines.close()


def _killed(process: WorkerProcess) -> Iterator[history.Event]:
    """That it was killed, for each name under which it acted: its last writes may be missing from its record."""
    for actor in {event.actor for event in process.events if event.kind != "rescue"}:
        yield history.Event("kill", "done", actor)


def _named(event: history.Event) -> history.Event:
    """The event, with one name for a server that each process reaches by another port."""
    kind = event.downstream.partition(":")[0]
    return replace(event, downstream=kind) if kind in ("postgresql", "redis") else event


def _plain(where: Addresses) -> dict[str, object]:
    return {"postgres": where.postgres, "valkey": where.valkey, "smtp": where.smtp, "durability": where.durability}
