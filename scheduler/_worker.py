"""The worker: threads that claim, run, settle, renew and rescue, wired together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from fencing._lease import hold_alone
from fencing.errors import FencingError
from scheduler._claimer import Claimer
from scheduler._claiming import Claim
from scheduler._connect import Database, Link
from scheduler._gate import Gate
from scheduler._heart import Heart, Watch
from scheduler._held import Counts, Work
from scheduler._hooks import Hooks, ListenEvent, Teller
from scheduler._limiter import Limiter
from scheduler._listener import Listener
from scheduler._loop import Loop, log
from scheduler._materialiser import Materialiser
from scheduler._measurer import TICK, Measurer
from scheduler._postgres import live_tokens
from scheduler._pruner import INTERVAL, Pruner
from scheduler._raiser import Raiser
from scheduler._registrar import Registrar
from scheduler._releases import PRESENCE
from scheduler._rescuer import Rescuer
from scheduler._retention import Retention
from scheduler._runner import AsyncRunner, Runner
from scheduler._settler import Settler
from scheduler._sql import Statements
from scheduler._store import Settlement
from scheduler._tally import Tallies
from scheduler._tasks import Task

POLL = 0.5
"""Seconds between two looks for due jobs when nothing announces them."""

SWEEP = 1.0
"""Seconds between two looks for expired leases and due schedules."""


class Service(Protocol):
    """Something else that runs inside a worker, for example an outbox relay."""

    def run(self, stop: threading.Event) -> object:
        """Work until ``stop`` is set."""


class Worker:
    """One process's worker. Runs once: :meth:`start`, then :meth:`drain` or :meth:`abandon`, then it is over."""

    def __init__(
        self,
        database: Database,
        statements: Statements,
        owner: str,
        tasks: dict[str, Task],
        queues: Sequence[str],
        concurrency: int,
        batch: int,
        services: Sequence[Service] = (),
        registrar: Registrar | None = None,
        *,
        listen: bool = True,
        hooks: Hooks | None = None,
        tallies: Tallies | None = None,
        retention: Retention | None = None,
    ) -> None:
        self.work = Work(teller=Teller(hooks), tallies=tallies or Tallies())
        self._owner = owner
        self._database = database
        self._statements = statements
        self._services = services
        self._stop_services = threading.Event()
        self._abandoned = False
        self._links: list[Link] = []
        self._async = AsyncRunner()
        self._look_up = self._link("look-up")
        self._runner = Runner(self.work, self._live_tokens, self._async)
        interval = min((task.lease for task in tasks.values()), default=30.0) / 4
        claim = Claim(statements, owner, queues, {name: task.lease for name, task in tasks.items()})
        gate = Gate(statements, owner, POLL)
        self._claimer = Claimer(self._link("claim"), claim, self.work, tasks, owner, concurrency, batch, POLL, gate)
        self._claims = Loop("claimer", self._claimer.run_once, POLL)
        self._settler = Settler(self._link("settle"), statements, self.work, owner, self._claims.wake)
        self._settles = Loop("settler", self._settler.run_once, 0)
        self._materialiser = Materialiser(self._link("materialise"), statements, owner)
        self._rescuer = Rescuer(self._link("rescue"), statements, queues, list(tasks), self.work, self._rescued)
        self._raiser = Raiser(self._link("raise"), statements, tasks, self._async.wait_for)
        self._raises = Loop("raiser", self._raiser.run_once, SWEEP)
        self._listener = Listener(
            database,
            statements.channel,
            tuple(queues),
            self._claims.wake,
            statements.revoked_channel,
            self._on_revoked,
            self._reconnected,
        )
        heart = Heart(self._link("heart"), statements, self.work, owner)
        # A heart that waited longer than usual after a failure would lose leases that it could still renew.
        self._beats = Loop("heart", heart.run_once, interval, max_backoff=interval)
        # Shares a connection that is seldom used: what it asks is short.
        self.measurer = Measurer(self._look_up, statements, self.work, self.work.tallies, owner, queues, concurrency)
        self._keepers = [
            self._beats,
            Loop("watch", Watch(self.work).run_once, min(interval, 1.0)),
            Loop("measurer", self.measurer.run_once, TICK),
            self._raises,
        ]
        self._limiter = Limiter(self._link("limit"), statements, owner, tasks, self.work, self._on_revoked)
        if self._limiter.interval is not None:
            self._keepers.append(Loop("limiter", self._limiter.run_once, self._limiter.interval))
        self._finders = [
            Loop("rescuer", self._rescuer.run_once, min(SWEEP, interval)),
            Loop("materialiser", self._materialiser.run_once, SWEEP),
        ]
        if registrar is not None:
            self._finders.append(Loop("registrar", registrar.run_once, PRESENCE))
        if listen:
            pruner = Pruner(self._link("prune"), statements, retention or Retention())
            self._finders.append(Loop("pruner", pruner.run_once, INTERVAL))
            self._finders.append(Loop("listener", self._listener.run_once, POLL))
        self._threads = [
            threading.Thread(target=self._run_jobs, name=f"fencing-job-{number}", daemon=True)
            for number in range(concurrency)
        ]
        self._service_threads = [
            threading.Thread(target=self._run_service, args=(service,), name="fencing-service", daemon=True)
            for service in services
        ]

    def _on_revoked(self, token: int) -> None:
        if token in self.work.held:
            self.work.doubted.add(token)
            self._beats.wake()
        self._raises.wake()

    def _rescued(self) -> None:
        self._claimer.sweep_soon()
        self._claims.wake()

    def _link(self, role: str) -> Link:
        link = Link(self._database, role)
        self._links.append(link)
        return link

    @property
    def counts(self) -> Counts:
        """What was done so far."""
        return self.work.counts

    def start(self) -> None:
        """Start every thread."""
        self.work.teller.start()
        for thread in [*self._threads, *self._service_threads]:
            thread.start()
        for loop in [*self._keepers, self._settles, self._claims, *self._finders]:
            loop.start()

    def sweep(self) -> None:
        """Take back every lease that ran out or is over its limit, raise the fences of what was revoked, and
        materialise everything that is due now, on the calling thread."""
        self._claimer.eager = True
        for service in (self._rescuer, self._limiter, self._raiser, self._materialiser):
            while service.run_once() == 0:
                pass

    @property
    def idle(self) -> bool:
        """Whether everything that was claimed is settled, and a look after that found nothing due."""
        # In this order: what is settled between the two looks may have enqueued something.
        return not self.work.held and self._claimer.dry

    def drain(self) -> Counts:
        """Stop claiming, give back what has not started, let running jobs finish and settle them; heartbeats go on
        until then."""
        work = self.work
        work.draining = True
        log.info("draining: nothing more is claimed, %d jobs are held", len(work.held))
        self._stop_services.set()
        self._listener.stop()
        for loop in self._finders:
            loop.stop(timeout=0)
        self._claims.stop(timeout=10)
        self._give_back()
        with work.arrived:
            work.arrived.notify_all()
        for thread in [*self._threads, *self._service_threads]:
            while thread.is_alive() and not self._abandoned:
                thread.join(0.1)
        while work.held and not self._abandoned:
            self._give_back()  # a claim that was still under way when the claimer was stopped
            time.sleep(0.01)  # the settler's own loop is at work; its errors end with the database's return
        self._close()
        return work.counts

    def _give_back(self) -> None:
        work = self.work
        while True:
            try:
                held = work.waiting.popleft()
            except IndexError:
                return
            held.lease.end("returned")
            work.finish(Settlement(held.claimed.id, held.claimed.token, "ready", "returned"))

    def abandon(self) -> None:
        """Do not wait any longer: what runs is left to expire. May be called while :meth:`drain` waits."""
        self._abandoned = True

    def _close(self) -> None:
        self._settles.stop(timeout=0)
        self.work.ended_some.set()  # the settler may be waiting for it
        for loop in [self._settles, *self._keepers, *self._finders]:
            loop.stop(timeout=0.2 if self._abandoned else 5)
        self._async.close(timeout=0.2 if self._abandoned else 5)
        self.work.teller.stop(timeout=0.2 if self._abandoned else 5)
        if not self._abandoned:
            try:
                self.measurer.end()
            except FencingError as exc:
                log.warning("the last measures were not written: %s", exc)
            for link in self._links:
                link.close()

    def _run_jobs(self) -> None:
        work = self.work
        while not work.draining:
            try:
                held = work.waiting.popleft()
            except IndexError:
                hold_alone(None)
                with work.arrived:
                    if not work.waiting and not work.draining:
                        work.arrived.wait(0.5)
                continue
            try:
                self._runner.run(held)
            except BaseException:  # noqa: BLE001 - a thread that ended here would be missing for good
                work.held.pop(held.claimed.token, None)
                log.exception("job %d: a fault outside its handler; its lease is left to run out", held.claimed.id)

    def _run_service(self, service: Service) -> None:
        while not self._stop_services.is_set():
            try:
                service.run(self._stop_services)
                return
            except Exception:  # noqa: BLE001 - logged with its trace; a service is started again
                log.exception("service %s failed; again in a second", type(service).__name__)
                self._stop_services.wait(1.0)

    def _reconnected(self) -> None:
        self.work.tallies.listen_reconnects += 1
        self.work.teller.tell(ListenEvent(self.work.tallies.listen_reconnects))

    def _live_tokens(self, tokens: list[int]) -> set[int]:
        with self._look_up.use("look up live leases") as connection:
            return live_tokens(connection, self._statements, tokens)


def wait_until(done: Callable[[], bool], stop: threading.Event) -> None:
    """Wait until ``done()`` or ``stop``; for the end of work whose parts wake nobody."""
    while not done() and not stop.is_set():
        stop.wait(0.005)
