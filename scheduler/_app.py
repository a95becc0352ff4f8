"""`Scheduler`: the face."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from fencing.errors import FencingError
from scheduler import _migrate
from scheduler._act_face import ActFace
from scheduler._claim import MAX_BATCH
from scheduler._connect import Database, Link
from scheduler._enqueue_face import EnqueueFace
from scheduler._held import Counts
from scheduler._hooks import E, Hooks
from scheduler._job import Job
from scheduler._leases import Hold, Leases
from scheduler._look_face import LookFace
from scheduler._loop import log
from scheduler._prometheus import Collector, serving
from scheduler._pruner import Pruned, Pruner
from scheduler._queues import Queue, make_queue, store_queues
from scheduler._registrar import Registrar
from scheduler._retention import Retention
from scheduler._retry import Retry
from scheduler._schedule_face import ScheduleFace
from scheduler._schedules import Declared
from scheduler._signals import Signals
from scheduler._sql import Statements
from scheduler._tally import Tallies
from scheduler._tasks import Fences, Task, check_name, make_task
from scheduler._worker import Service, Worker, wait_until
from scheduler.errors import UnknownTaskError

Handler = Callable[[Job], Any]


@dataclass
class _Process:
    """What belongs to one process: connections and threads do not survive a fork, and an owner's name must not."""

    owner: str
    link: Link
    leases: Leases
    tallies: Tallies
    registrar: Registrar


_schedulers: WeakSet[Scheduler] = WeakSet()


def _after_fork() -> None:
    for scheduler in list(_schedulers):
        scheduler._forget_process()


os.register_at_fork(after_in_child=_after_fork)


class Scheduler(EnqueueFace, ActFace, ScheduleFace, LookFace):
    """A scheduler over PostgreSQL whose every claim carries a fencing token.

    ``dsn``: libpq text or URL, ``postgresql+psycopg://`` too; None means ``$FENCING_DSN`` at first use. ``schema``:
    where its tables are; two schedulers in one database use two. ``retention``: how long what is over is kept; the
    workers prune it in small batches. ``pooled``: whether a pooler is between that gives a session to others after each
    transaction; None means that it is found out. Nothing connects before it is needed.
    """

    def __init__(
        self,
        dsn: str | None = None,
        schema: str = "fencing",
        *,
        retention: Retention | None = None,
        pooled: bool | None = None,
    ) -> None:
        if retention is not None and not isinstance(retention, Retention):
            raise TypeError(f"retention= takes a Retention, not {type(retention).__name__}")
        self._database = Database(dsn, pooled)
        self._statements = Statements(schema)
        self._retention = retention or Retention()
        self._tasks: dict[str, Task] = {}
        self._schedules: dict[str, Declared] = {}
        self._queues: dict[str, Queue] = {}
        self._services: list[Service] = []
        self._hooks = Hooks()
        self._process: _Process | None = None
        self._process_lock = threading.Lock()
        _schedulers.add(self)

    # -- what the application declares

    def task(
        self,
        name: str,
        *,
        lease: float = 30.0,
        retry: Retry | None = None,
        fences: Fences | Iterable[Any] | None = None,
        preempt: bool = False,
        max_yields: int = 100,
        max_runtime: float | None = None,
    ) -> Callable[[Handler], Handler]:
        """Register the decorated function (``def`` or ``async def``) as the handler of a task.

        ``lease``: seconds without a sign of life after which another worker takes the job over; it is renewed while
        the handler runs. ``fences``: ``lambda job: [(target, resource), …]``; these marks are raised before the
        handler's first line, so that what it reads can no longer change under it by an older holder. A job that meets
        another live holder there is given back and counted as *yielded*; after ``max_yields`` of these it is dead,
        ``starved``. ``preempt=True`` takes the resource over instead. ``max_runtime``: seconds after its claim at
        which an attempt is ended from outside, as by :meth:`cancel`, however lively its lease is; it counts as
        failed, and the job is tried again or dead (``run-time limit``).
        """

        def register(handler: Handler) -> Handler:
            if name in self._tasks and self._tasks[name].handler is not handler:
                raise ValueError(f"task {name!r} is registered twice, with two handlers; give one of them another name")
            self._tasks[name] = make_task(
                name, handler, lease, retry or Retry(), fences, preempt, max_yields, max_runtime
            )
            return handler

        return register

    def add_service(self, service: Service) -> None:
        """Run ``service.run(stop)`` on a thread of its own inside every worker of this process, for example an outbox
        relay."""
        self._services.append(service)

    def queue(self, name: str, *, acceptable_lag: float | None = None, limit: int | None = None) -> None:
        """Say what is expected of a queue; stored when a worker starts, or by :meth:`sync_queues`.

        ``acceptable_lag``: seconds from due to claimed after which its jobs are late. It is a measure and no deadline:
        nothing is dropped or preferred for it. When it is exceeded, :meth:`measure` and the metrics say so, a
        :class:`LagEvent` is told and ``fencing doctor`` warns. None states nothing.

        ``limit``: at most so many of its jobs have a live lease at a time, over all workers; None for no limit.
        Running workers see a change at their next claim; the last one that declares the queue wins, and each change of
        the limit is in the audit.
        """
        self._queues[name] = make_queue(name, acceptable_lag, limit)

    def on(self, kind: type[E]) -> Callable[[Callable[[E], object]], Callable[[E], object]]:
        """Register the decorated function as a hook: it is called with every event of this class, or a class below it.

        A worker calls hooks on a thread of its own, in the order of the events. What a hook raises is logged and harms
        no job; when more than 10,000 events wait for a slow one, further events are dropped and counted.
        """

        def register(hook: Callable[[E], object]) -> Callable[[E], object]:
            self._hooks.add(kind, hook)
            return hook

        return register

    # -- what the application asks for

    def lease(self, name: str, *, ttl: float, wait: float = 0) -> Hold:
        """Hold the named lease for the ``with`` or ``async with`` block, renewed in the background, released by its
        token at the end.

        For work that another scheduler starts (Celery, cron, Kubernetes): ``fenced_write()`` inside takes its token
        by itself. ``ttl``: seconds after which it runs out once this process no longer renews it. ``wait``: seconds
        to wait for another holder. Raises :class:`~fencing.errors.LeaseUnavailableError` when the wait is over.
        """
        return self._here().leases.hold(name, ttl, wait)

    # -- running

    def run_worker(
        self,
        queues: Sequence[str] = ("default",),
        concurrency: int = 8,
        batch: int | None = None,
        stop: threading.Event | None = None,
        *,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
    ) -> Counts:
        """Work until ``stop`` is set or, on the main thread, SIGTERM or SIGINT arrives; then drain and return what
        was done.

        ``concurrency``: handlers at the same time, each on a thread. ``batch``: the most jobs one claim takes
        (default 500). Draining stops claiming, gives back what has not started and lets running jobs finish, their
        leases renewed; a second signal leaves them to expire.

        ``metrics_port``: serve this worker's counters and the queues' state to Prometheus on this port (0: any that is
        free, logged) of ``metrics_host``; needs the extra ``metrics``.
        """
        stop = stop or threading.Event()
        worker = self._worker(queues, concurrency, batch)
        with Signals(worker.abandon) as signals, self._endpoint(worker, metrics_host, metrics_port):
            worker.start()
            log.info("worker %s: queues %s; tasks %s", self._here().owner, ", ".join(queues), ", ".join(self._tasks))
            while not signals.arrived and not stop.wait(0.1):
                pass
            stop.set()
            return worker.drain()

    def run_until_idle(self, queues: Sequence[str] = ("default",), concurrency: int = 4) -> Counts:
        """Claim and run what is due, with occurrences of schedules and leases that ran out, then return what was done.

        For tests and scripts.

        What a retry or a yield put off to a later time is not waited for.
        """
        worker = self._worker(queues, concurrency, None, listen=False)
        worker.sweep()
        worker.start()
        try:
            wait_until(lambda: worker.idle, threading.Event())
        except BaseException:
            worker.abandon()
            raise
        finally:
            worker.drain()
        return worker.counts

    def migrate(self, issuer: str | None = None) -> list[str]:
        """Create or update the tables; return the names of the migrations that were applied.

        See ``fencing migrate``.
        """
        with self._here().link.use("migrate") as connection:
            return _migrate.migrate(connection, self._statements, issuer)

    def sync_queues(self) -> list[str]:
        """Store the declared queues; return the names of those that changed. A worker does this when it starts."""
        if not self._queues:
            return []
        here = self._here()
        with here.link.use("store queues") as connection:
            return store_queues(connection, self._statements, self._queues.values(), here.owner)

    def prune(self) -> Pruned:
        """Delete what is over for longer than ``retention=`` keeps it; return how much.

        Workers do this all the time, one of them at a time; only where none runs need anybody call it. If a worker
        is pruning right now, what is left is left to it.
        """
        link = Link(self._database, "prune")
        try:
            return Pruner(link, self._statements, self._retention).run_through()
        finally:
            link.close()

    def close(self) -> None:
        """Close this process's connections and end its background threads."""
        with self._process_lock:
            here, self._process = self._process, None
        if here is not None:
            here.leases.close()
            try:
                here.registrar.leave()
            except FencingError as exc:
                log.info("not said that this process has ended, it will be noticed: %s", exc)
            here.link.close()

    # -- within

    def _endpoint(self, worker: Worker, host: str, port: int | None) -> AbstractContextManager[None]:
        here = self._here()
        collector = Collector(
            here.tallies,
            self._hooks,
            lambda: worker.work.running,
            lambda: worker.measurer.clock_skew,
            self.measure,
        )
        return serving(f"worker {here.owner}", host, port, collector)

    def _known_task(self, name: str) -> str:
        check_name("task", name)
        if name not in self._tasks:
            known = ", ".join(sorted(self._tasks)) or "none"
            raise UnknownTaskError(
                f"no task {name!r} is registered with this scheduler (known: {known}); "
                "import the module that registers it"
            )
        return name

    def _worker(self, queues: Sequence[str], concurrency: int, batch: int | None, *, listen: bool = True) -> Worker:
        if isinstance(queues, str) or not queues:
            raise ValueError(f"queues= takes a sequence of names, not {queues!r}")
        if type(concurrency) is not int or not 1 <= concurrency <= 1000:
            raise ValueError(f"concurrency= is a whole number from 1 to 1000, not {concurrency!r}")
        if batch is not None and (type(batch) is not int or batch < 1):
            raise ValueError(f"batch= is a whole number from 1, not {batch!r}")
        if not self._tasks:
            raise UnknownTaskError("no task is registered with this scheduler: a worker would have nothing to run")
        here = self._here()
        with here.link.use("start a worker") as connection:
            _migrate.check_migrated(connection, self._statements)
        self.sync_queues()
        self.sync_schedules()
        here.registrar.works = True
        return Worker(
            self._database,
            self._statements,
            here.owner,
            dict(self._tasks),
            [check_name("queue", queue) for queue in queues],
            concurrency,
            batch or MAX_BATCH,
            self._services if listen else (),
            here.registrar if self._schedules else None,
            listen=listen,
            retention=self._retention,
            hooks=self._hooks,
            tallies=here.tallies,
        )

    def _here(self) -> _Process:
        with self._process_lock:
            if self._process is None:
                # Unique per process start: a reused name would let a restored container pass for the one before it.
                owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
                link = Link(self._database, "app")
                self._process = _Process(
                    owner,
                    link,
                    Leases(self._database, self._statements, owner),
                    Tallies(),
                    Registrar(link, self._statements, owner, self._schedules),
                )
            return self._process

    def _forget_process(self) -> None:
        # In a child: a thread of the parent may have held the lock, and its connections must not be used here. They are
        # dropped, not closed: the driver does not end the parent's session from another process.
        self._process_lock = threading.Lock()
        self._process = None
