"""The part of `Scheduler` that enqueues."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from itertools import chain, islice
from typing import Any, Protocol

from scheduler._bulk import Given, checked_exclusive, checked_key, copy_jobs
from scheduler._connect import Connection, Link
from scheduler._enqueue import (
    Unique,
    checked_args,
    checked_due,
    checked_priority,
    checked_unique,
    enqueue,
    enqueue_alone,
    enqueue_many,
    enqueue_many_alone,
)
from scheduler._hooks import EnqueueEvent, Hooks
from scheduler._job import Enqueued
from scheduler._sql import Statements
from scheduler._tasks import Task, check_name
from scheduler._tracing import Enqueuing


class _Here(Protocol):
    link: Link


class EnqueueFace(ABC):
    """The methods that enqueue; :class:`Scheduler` has the rest."""

    _statements: Statements
    _tasks: dict[str, Task]
    _hooks: Hooks

    @abstractmethod
    def _here(self) -> _Here:
        """What belongs to this process."""

    @abstractmethod
    def _known_task(self, name: str) -> str:
        """Return the name, or refuse a task that is not registered."""

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
            "key": checked_key(key),
            "exclusive": checked_exclusive(exclusive),
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
        COPY, which is the fastest: ``args`` is read while the server writes, two thousand jobs ahead at most, however
        many there are; a generator's transaction is open as long as it takes.

        Raises as :meth:`enqueue`; the error names the place (``args[3]: …``), and no job is made.
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
        given = Given(task, args, due_at, key, exclusive)
        if connection is None and unique is None:
            return self._many_copied(fixed, given)
        rows = given.rows()
        if (
            unique == "forever"
            and (bare := next((at for at, row in enumerate(rows) if row.key is None), None)) is not None
        ):
            raise ValueError(f"args[{bare}]: unique='forever' is about keys: key= gave None for it")
        tracing = Enqueuing(task, queue)
        parameters = {**fixed, "trace": tracing.context}
        made: Any
        try:
            if connection is not None:
                made = enqueue_many(connection, self._statements, parameters, rows, unique)
            elif unique is not None and rows:
                with self._here().link.use("enqueue many") as own:
                    made = enqueue_many_alone(own, self._statements, parameters, rows, unique)
            else:
                made = 0
        except BaseException as exc:
            tracing.end(error=exc)
            raise
        return self._told(task, queue, tracing, made, len(rows))

    def _many_copied(self, fixed: dict[str, Any], given: Given) -> int:
        """Write by COPY what is given, page by page as it is read."""
        pages = given.pages()
        # What is small is read to its end before anything is sent; what is wrong with it then costs the server nothing.
        ahead = list(islice(pages, 2))
        task, queue, made = fixed["task"], fixed["queue"], 0
        tracing = Enqueuing(task, queue)
        try:
            if ahead:
                with self._copying(alone=given.runs_code and len(ahead) > 1) as own:
                    made = copy_jobs(own, self._statements, fixed, given, chain(ahead, pages), tracing.context)
        except BaseException as exc:
            tracing.end(error=exc)
            raise
        self._told(task, queue, tracing, made, made)
        return made

    @contextmanager
    def _copying(self, alone: bool) -> Iterator[Connection]:
        """Yield a connection: one that nobody else waits for meanwhile where it is held while the caller's code
        runs."""
        shared = self._here().link
        link = shared.another() if alone else shared
        try:
            with link.use("enqueue many") as connection:
                yield connection
        finally:
            if alone:
                link.close()

    def _told(self, task: str, queue: str, tracing: Enqueuing, enqueued: Any, given: int | None = None) -> Any:
        """End the span and tell the hooks of what was enqueued (a job, or how many of those ``given``), or will be
        when ``enqueued`` is awaited."""
        if isinstance(enqueued, Enqueued | int):
            one = enqueued if isinstance(enqueued, Enqueued) else None
            tracing.end(one.id if one else None, given)
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
            return self._told(task, queue, tracing, done, given)

        return awaited()
