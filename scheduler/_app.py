"""`Scheduler`: the face."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self
from weakref import WeakSet

from fencing.errors import FencingError
from scheduler import _migrate
from scheduler._acts import Ending, Outside, checked_reason, end_one
from scheduler._connect import Database, Link
from scheduler._enqueue import (
    Row,
    Unique,
    checked_args,
    checked_due,
    checked_priority,
    checked_unique,
    each,
    enqueue,
    enqueue_alone,
    enqueue_many,
    enqueue_many_alone,
)
from scheduler._held import Counts
from scheduler._hooks import E, EnqueueEvent, Hooks
from scheduler._job import Enqueued, Job
from scheduler._leases import Hold, Leases
from scheduler._loop import log
from scheduler._measure import MAX_WINDOW, measure
from scheduler._measures import Measures
from scheduler._postgres import copy_jobs
from scheduler._prometheus import Collector, Endpoint
from scheduler._pruner import Pruned, Pruner
from scheduler._queues import Queue, make_queue, store_queues
from scheduler._record import JobRecord, read_job, wait_for_result
from scheduler._registrar import Registrar
from scheduler._replay import DeadFilter, Replayed, replay_dead, replay_one
from scheduler._retention import Retention
from scheduler._retry import Retry
from scheduler._schedule_face import ScheduleFace
from scheduler._schedules import Declared
from scheduler._sql import Statements
from scheduler._tally import Tallies
from scheduler._tasks import Fences, Task, check_name, make_task
from scheduler._tracing import Enqueuing
from scheduler._worker import Service, Worker, wait_until
from scheduler.errors import UnknownTaskError

Handler = Callable[[Job], Any]


def _checked_exclusive(value: object) -> str | None:
    return None if value is None else check_name("exclusive value", value, most=500)


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


class Scheduler(ScheduleFace):
    """A scheduler over PostgreSQL whose every claim carries a fencing token.

    ``dsn``: libpq text or URL, ``postgresql+psycopg://`` too; None means ``$FENCING_DSN`` at first use. ``schema``:
    where its tables are; two schedulers in one database use two. ``retention``: how long what is over is kept; the
    workers prune it in small batches. Nothing connects before it is needed.
    """

    def __init__(self, dsn: str | None = None, schema: str = "fencing", *, retention: Retention | None = None) -> None:
        if retention is not None and not isinstance(retention, Retention):
            raise TypeError(f"retention= takes a Retention, not {type(retention).__name__}")
        self._database = Database(dsn)
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

    def enqueue(
        self,
        task: str,
        args: Any = None,
        *,
        due_at: datetime | None = None,
        key: str | None = None,
        unique: Unique | None = None,
        priority: int = 0,
        queue: str = "default",
        exclusive: str | None = None,
        connection: Any = None,
    ) -> Any:
        """Enqueue a job; return :class:`Enqueued` (created, id), awaitable for an async ``connection``.

        With ``connection=`` (psycopg, or a SQLAlchemy connection or session over psycopg) the job exists if and only
        if the caller's transaction commits; one that commits each statement by itself (autocommit) is refused:
        :class:`~fencing.errors.NotInTransactionError`.

        ``key`` with ``unique="alive"`` (the default): while a job with that key is alive (ready or leased), no second
        one is made and its id is returned. With ``unique="forever"`` no second one is ever made, whatever became of
        the first and however long ago its row was pruned; its id is returned. The two kinds do not look at each
        other: choose one for a key.

        ``due_at``: aware, None for now by the database's clock. Higher ``priority`` runs first within a queue.
        ``exclusive``: of the jobs with the same value, whatever their task and queue, at most one has a live lease at
        a time; the others wait and hold up nobody else.
        ``args`` and the handler's result are at most 1 MiB of JSON each.

        Raises :class:`UnknownTaskError`, and ``TypeError`` or ``ValueError`` for what cannot be stored; nothing is
        written then.
        """
        parameters = {
            "task": self._known_task(task),
            "args": checked_args(task, args),
            "due_at": checked_due(due_at),
            "key": check_name("key", key, most=500) if key is not None else None,
            "exclusive": _checked_exclusive(exclusive),
            "priority": checked_priority(priority),
            "queue": check_name("queue", queue),
            "max_attempts": self._tasks[task].retry.max_attempts,
        }
        unique = checked_unique(unique, key)
        tracing = Enqueuing(task, queue)
        parameters["trace"] = tracing.context
        try:
            if connection is not None:
                enqueued = enqueue(connection, self._statements, parameters, unique)
            else:
                with self._here().link.use("enqueue") as own:
                    enqueued = enqueue_alone(own, self._statements, parameters, unique)
        except BaseException as exc:
            tracing.end(error=exc)
            raise
        return self._told(task, queue, tracing, enqueued)

    def enqueue_many(
        self,
        task: str,
        args: Iterable[Any],
        *,
        due_at: datetime | Callable[[Any], datetime | None] | None = None,
        key: Callable[[Any], str | None] | None = None,
        unique: Unique | None = None,
        priority: int = 0,
        queue: str = "default",
        exclusive: str | Callable[[Any], str | None] | None = None,
        connection: Any = None,
    ) -> Any:
        """Enqueue one job per element of ``args``, all or none; return how many were made.

        ``key`` is a function of each one's arguments, ``due_at`` and ``exclusive`` may be one; those whose key is
        taken already (see :meth:`enqueue`) are passed over. With ``connection=`` the jobs exist if and only if the
        caller's transaction commits; awaitable for an async one. Without keys and connection they are written by
        COPY, which is the fastest.
        """
        if isinstance(args, str | bytes | Mapping):
            raise TypeError(
                f"enqueue_many() takes one arguments per job, [args, …]; for a single job of {task!r} use enqueue()"
            )
        if key is not None and not callable(key):
            raise TypeError(f"key= takes a function of each job's arguments, not {key!r}: one key makes one job")
        unique = checked_unique(unique, key)
        fixed = {
            "task": self._known_task(task),
            "queue": check_name("queue", queue),
            "priority": checked_priority(priority),
            "max_attempts": self._tasks[task].retry.max_attempts,
        }
        rows = self._many_rows(task, args, each(due_at), each(key), each(exclusive))
        if unique == "forever" and any(row.key is None for row in rows):
            raise ValueError("unique='forever' is about keys: key= gave None for one of the jobs")
        tracing = Enqueuing(task, queue, len(rows))
        made: Any
        try:
            if connection is not None:
                fixed["trace"] = tracing.context
                made = enqueue_many(connection, self._statements, fixed, rows, unique)
            else:
                made = self._many_alone(fixed, rows, unique, tracing.context)
        except BaseException as exc:
            tracing.end(error=exc)
            raise
        return self._told(task, queue, tracing, made)

    def _many_alone(self, fixed: dict[str, Any], rows: list[Row], unique: Unique | None, trace: str | None) -> int:
        if not rows:
            return 0
        with self._here().link.use("enqueue many") as own:
            if unique is not None:
                return enqueue_many_alone(own, self._statements, {**fixed, "trace": trace}, rows, unique)
            queue, task, priority, attempts = (fixed[name] for name in ("queue", "task", "priority", "max_attempts"))
            copied = [
                (queue, task, json.loads(row.args), priority, row.due_at, row.exclusive, attempts) for row in rows
            ]
            return copy_jobs(own, self._statements, copied, trace)

    def _many_rows(
        self,
        task: str,
        args: Iterable[Any],
        due_at: Callable[[Any], datetime | None],
        key: Callable[[Any], str | None],
        exclusive: Callable[[Any], str | None],
    ) -> list[Row]:
        rows = []
        for one in args:
            name = key(one)
            rows.append(
                Row(
                    checked_args(task, one),
                    checked_due(due_at(one)),
                    check_name("key", name, most=500) if name is not None else None,
                    _checked_exclusive(exclusive(one)),
                )
            )
        return rows

    def cancel(self, job_id: int, *, reason: str, actor: str | None = None) -> Outside:
        """End a job as ``cancelled``, whether it waits or runs; return what it was.

        A running job is taken from its holder: its lease is lost (``job.lease.lost``, ``ensure()`` raises with the
        cause), its settlement is refused, and its declared fences (``fences=``) are raised to a token that is drawn
        for this, so that its writes end. They are raised before this returns where this process knows the task;
        otherwise, or where a downstream does not answer, by the workers. Nothing interrupts the handler itself.

        ``reason`` and ``actor`` (default: this process) are kept in the audit. Raises :class:`UnknownJobError` where
        there is no such job, :class:`JobStateError` where it has ended already.
        """
        return self._end(job_id, "cancelled", reason, actor)

    def bury(self, job_id: int, *, reason: str, actor: str | None = None) -> Outside:
        """End a job as ``dead`` from outside; everything else is as in :meth:`cancel`.

        A dead job shows up in ``fencing dead list`` and can be replayed.
        """
        return self._end(job_id, "dead", reason, actor)

    def replay(self, job_id: int, *, reason: str, actor: str | None = None) -> None:
        """Let a dead or cancelled job run again, now.

        It keeps its key, so that effects under ``once=job.key`` stay applied once; its attempts are counted anew, its
        tokens go on rising. Raises :class:`UnknownJobError`, and :class:`JobStateError` where it is neither dead nor
        cancelled or a job with its key is alive.
        """
        here = self._here()
        replay_one(here.link, self._statements, job_id, actor=self._actor(actor), reason=checked_reason(reason))

    def replay_dead(
        self,
        *,
        reason: str,
        actor: str | None = None,
        ids: Iterable[int] | None = None,
        task: str | None = None,
        queue: str | None = None,
        error: str | None = None,
        since: datetime | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> Replayed:
        """Replay the dead jobs that fit every condition given: their ids, task, queue, a text that their reason or
        last error contains, died since then (aware); at most ``limit``.

        ``dry_run`` changes nothing and returns which would have been tried. Those whose key is alive are skipped, and
        said why.
        """
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ValueError(f"limit= is None or a whole number from 1, not {limit!r}")
        return replay_dead(
            self._here().link,
            self._statements,
            DeadFilter(task, queue, error, since, tuple(ids) if ids is not None else None),
            actor=self._actor(actor),
            reason=checked_reason(reason),
            dry_run=dry_run,
            limit=limit,
        )

    def job(self, job_id: int) -> JobRecord:
        """Return what the database knows of a job: its state, its result, its last error, …

        Raises :class:`UnknownJobError` where there is none of that number.
        """
        with self._here().link.use(f"look at job {job_id}") as connection:
            return read_job(connection, self._statements, job_id)

    def result(self, job_id: int, *, wait: float = 0.0) -> Any:
        """Return what the handler returned, once the job is completed; ``wait``: seconds to wait for that.

        Raises :class:`JobStateError` if it is dead or cancelled, ``TimeoutError`` if it has not ended when the wait
        is over, :class:`UnknownJobError` if there is no such job (any more: see ``retention=``).
        """
        return wait_for_result(lambda: self.job(job_id), wait)

    def _actor(self, actor: str | None) -> str:
        return check_name("actor", actor if actor is not None else self._here().owner)

    def _end(self, job_id: int, state: Ending, reason: str, actor: str | None) -> Outside:
        here = self._here()
        return end_one(
            here.link,
            self._statements,
            job_id,
            state,
            actor=self._actor(actor),
            reason=checked_reason(reason),
            tasks=self._tasks,
        )

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
        (default 100). Draining stops claiming, gives back what has not started and lets running jobs finish, their
        leases renewed; a second signal leaves them to expire.

        ``metrics_port``: serve this worker's counters and the queues' state to Prometheus on this port (0: any that is
        free, logged) of ``metrics_host``; needs the extra ``metrics``.
        """
        stop = stop or threading.Event()
        worker = self._worker(queues, concurrency, batch)
        with _Signals(worker) as signals, self._endpoint(worker, metrics_host, metrics_port):
            worker.start()
            log.info("worker %s: tasks %s", self._here().owner, ", ".join(self._tasks))
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

    def measure(self, window: float = 300.0) -> Measures:
        """Return what the workers did in the last ``window`` seconds (60 to 3600; it begins at a full minute), and how
        the queues stand now.

        Reads what the workers wrote down, up to five seconds ago, and bounded parts of the indexes: its cost does not
        grow with the number of jobs.
        """
        if not isinstance(window, int | float) or not 60 <= window <= MAX_WINDOW:
            raise ValueError(f"window= is a number of seconds from 60 to {MAX_WINDOW:.0f}, not {window!r}")
        with self._here().link.use("measure") as connection:
            return measure(connection, self._statements, window)

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

    @contextmanager
    def _endpoint(self, worker: Worker, host: str, port: int | None) -> Iterator[None]:
        if port is None:
            yield
            return
        collector = Collector(
            self._here().tallies,
            self._hooks,
            lambda: worker.work.running,
            lambda: worker.measurer.clock_skew,
            self.measure,
        )
        try:
            endpoint = Endpoint(host, port, collector)
        except (OSError, OverflowError) as exc:
            raise ValueError(f"metrics_port={port!r} of {host}: nothing can be served there ({exc})") from exc
        log.info("worker %s: metrics at http://%s:%d/metrics", self._here().owner, host, endpoint.port)
        try:
            yield
        finally:
            endpoint.close()

    def _told(self, task: str, queue: str, tracing: Enqueuing, enqueued: Any) -> Any:
        """End the span and tell the hooks of what was enqueued (a job, or how many), or will be when ``enqueued`` is
        awaited."""
        if isinstance(enqueued, Enqueued | int):
            one = enqueued if isinstance(enqueued, Enqueued) else None
            tracing.end(one.id if one else None)
            if self._hooks.wants(EnqueueEvent):
                event = (1, one.id, one.created) if one else (enqueued, None, True)
                self._hooks.tell(EnqueueEvent(task, queue, *event))
            return enqueued

        async def awaited() -> Any:
            try:
                done = await enqueued
            except BaseException as exc:
                tracing.end(error=exc)
                raise
            return self._told(task, queue, tracing, done)

        return awaited()

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
            batch or 100,
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


class _Signals:
    """While inside, the first SIGTERM or SIGINT is noted, the second abandons what still runs.

    A signal's handler runs in the main thread wherever that is, perhaps inside a lock: so it takes none, and sets no
    :class:`threading.Event`, which has one.
    """

    def __init__(self, worker: Worker) -> None:
        self.arrived = False
        self._worker = worker
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, _: object) -> None:
        if self.arrived:
            self._worker.abandon()
        self.arrived = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
