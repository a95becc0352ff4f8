"""The part of `Scheduler` that concerns schedules: declared by code, stored and changed in the database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Protocol, Unpack

from scheduler import _backfill, _schedule_look, _schedule_store
from scheduler._acts import checked_reason
from scheduler._backfill import Backfilled
from scheduler._catch_up import CatchUp
from scheduler._connect import Link
from scheduler._dst import Fold, Gap
from scheduler._enqueue import checked_args, checked_priority
from scheduler._occurrence import Occurrence
from scheduler._overlap import Overlap
from scheduler._registrar import Registrar
from scheduler._releases import Release
from scheduler._schedule import Clock, Schedule
from scheduler._schedule_look import ScheduleStory, StoredSchedule
from scheduler._schedule_store import Stored
from scheduler._schedules import Declared, RuleOptions
from scheduler._sql import Run, Statements
from scheduler._tasks import Task, check_name


class _Here(Protocol):
    owner: str
    link: Link
    registrar: Registrar


class ScheduleFace(ABC):
    """The methods that concern schedules; :class:`Scheduler` has the rest."""

    _statements: Statements
    _tasks: dict[str, Task]
    _schedules: dict[str, Declared]

    @abstractmethod
    def _here(self) -> _Here:
        """What belongs to this process."""

    @abstractmethod
    def _known_task(self, name: str) -> str:
        """Return the name, or refuse a task that is not registered."""

    # -- declared by the application

    def schedule(
        self,
        name: str,
        expr: str,
        *,
        tz: str,
        task: str,
        args: Any = None,
        queue: str = "default",
        priority: int = 0,
        clock: Clock = "auto",
        gap: Gap = "after",
        fold: Fold = "first",
        max_gap: timedelta | None = timedelta(hours=3),
        day_or: bool = True,
        seconds: bool = False,
        catch_up: CatchUp = "all",
        catch_up_limit: int = 100,
        grace: timedelta | None = None,
        overlap: Overlap = "allow",
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        jitter: timedelta | float = 0,
    ) -> Schedule:
        """Declare that ``task`` runs at every occurrence of the cron text ``expr`` on the wall clock of zone ``tz``.

        Stored when a worker starts (or by :meth:`sync_schedules`); each due occurrence becomes at most one job,
        however many processes declare and run it. A changed declaration begins when it is stored: an edit never fires
        the past. The rule's options are those of :class:`Schedule`; ``catch_up``, ``catch_up_limit`` and ``grace``
        say what becomes of occurrences that were missed while no worker ran.

        ``overlap`` says what becomes of an occurrence that is due while an earlier one of this schedule is not over
        (it runs, or waits for its retry): ``allow`` runs it beside; ``skip`` drops it; ``buffer_one`` runs it
        afterwards unless one waits already; ``buffer_all`` runs each in its turn; ``cancel_other`` cancels the earlier
        one, whose writes end there, and runs it.

        Raises :class:`ScheduleError` that shows the place of a mistake in ``expr`` or ``tz``,
        :class:`UnknownTaskError` for the task.
        """
        options: RuleOptions = {
            "queue": queue, "priority": priority, "clock": clock, "gap": gap, "fold": fold, "max_gap": max_gap,
            "day_or": day_or, "seconds": seconds, "catch_up": catch_up, "catch_up_limit": catch_up_limit,
            "grace": grace, "overlap": overlap, "start_at": start_at, "end_at": end_at, "jitter": jitter,
        }  # fmt: skip
        declared = self._declared(name, expr, tz, task, args, options)
        if name in self._schedules and self._schedules[name].definition() != declared.definition():
            raise ValueError(f"schedule {name!r} is declared twice with different definitions; give one another name")
        self._schedules[name] = declared
        return declared.rule

    def sync_schedules(self, *, last: bool = False) -> dict[str, Stored]:
        """Store the declared schedules; return what became of each: ``added``, ``changed``, ``unchanged``.

        A worker does this when it starts. Of two releases of an application that run side by side and declare a
        schedule differently, the one that the database saw first gives way (``deferred``), until no process of the
        other one is left. ``last=True`` says that this is the last deploy, for a rollback that should not wait.
        ``deleted``: a person deleted the schedule; it comes back with a new release, or by :meth:`put_schedule`.
        ``refused``: the stored one was computed from newer zone data than this process has.
        """
        return self._here().registrar.sync(last=last)

    # -- changed in the database

    def put_schedule(
        self,
        name: str,
        expr: str,
        *,
        tz: str,
        task: str,
        args: Any = None,
        reason: str,
        actor: str | None = None,
        **options: Unpack[RuleOptions],
    ) -> Stored:
        """Add a schedule to the database, or change it, without any code that declares it; return ``added``,
        ``changed`` or ``unchanged``.

        Takes the options of :meth:`schedule`. Releases of the application that were there before leave it as it is;
        a later one that declares the name otherwise changes it. ``reason`` and ``actor`` (default: this process) are
        kept in the audit.
        """
        declared = self._declared(name, expr, tz, task, args, options)
        with self._acting(f"put schedule {name!r}", reason, actor) as (run, who):
            by_hand = Release(None, _schedule_store.change_number(run))
            return _schedule_store.store(run, declared, by_hand, who, reason)

    def pause_schedule(self, name: str, *, reason: str, actor: str | None = None) -> bool:
        """Pause a schedule: from now on nothing of it is due. Return False if it was paused already.

        Jobs that are due stay; what was put ahead of its due time is withdrawn. A pause outlives every deploy.
        """
        with self._acting(f"pause schedule {name!r}", reason, actor) as (run, who):
            return _schedule_store.pause(run, name, who, reason)

    def resume_schedule(self, name: str, *, reason: str, actor: str | None = None) -> bool:
        """Let a paused schedule go on from now. Return False if it was not paused.

        What was due during the pause does not run; :meth:`backfill_schedule` makes it.
        """
        with self._acting(f"resume schedule {name!r}", reason, actor) as (run, who):
            return _schedule_store.resume(run, name, who, reason)

    def delete_schedule(self, name: str, *, reason: str, actor: str | None = None) -> None:
        """Delete a schedule. Jobs that are due stay; what was put ahead, or waited for its turn, does not run.

        Code that declares it and ran before does not bring it back; a new release does, or :meth:`put_schedule`. What
        ran does not run again even then.
        """
        with self._acting(f"delete schedule {name!r}", reason, actor) as (run, who):
            _schedule_store.delete(run, name, who, reason)

    def backfill_schedule(
        self,
        name: str,
        start: datetime,
        end: datetime,
        *,
        reason: str,
        actor: str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> list[Backfilled]:
        """Make the occurrences after ``start`` and up to ``end`` that the ledger does not have, by the schedule as it
        is now; return all of the window, with what became of each.

        None that ran, or was skipped, is made again. With an overlap other than ``allow`` they run one after another,
        and none that waits is dropped; with ``cancel_other`` the next regular occurrence cancels one that has had its
        turn and is not over. ``dry_run`` only looks.

        Raises :class:`LedgerHorizonError` for a window that starts before what the ledger is sure to know (90 days,
        or less by retention): with ``force`` what ran before then may run again.
        """
        with self._acting(f"backfill schedule {name!r}", reason, actor) as (run, who):
            return _backfill.backfill(run, name, start, end, force=force, dry_run=dry_run, actor=who, reason=reason)

    # -- looked at

    def list_schedules(self, *, deleted: bool = False) -> list[StoredSchedule]:
        """Return the schedules in the database, by name; ``deleted`` ones too if asked for."""
        with self._here().link.use("list schedules") as connection:
            return _schedule_look.list_schedules(connection, self._statements, deleted=deleted)

    def show_schedule(self, name: str, *, most: int = 20) -> ScheduleStory:
        """Return a schedule with its newest occurrences, up to ``most``, and all acts that concerned it."""
        with self._here().link.use("show a schedule") as connection:
            return _schedule_look.show_schedule(connection, self._statements, name, most)

    def next_occurrences(self, name: str, count: int = 10, *, after: datetime | None = None) -> list[Occurrence]:
        """Return when a schedule is due next, as it is stored, paused or not; a deleted one is unknown."""
        with self._here().link.use("look at a schedule's next occurrences") as connection:
            return _schedule_look.next_occurrences(connection, self._statements, name, count, after)

    # -- within

    def _declared(self, name: str, expr: str, tz: str, task: str, args: Any, options: RuleOptions) -> Declared:
        check_name("schedule", name)
        self._known_task(task)
        checked_args(task, args)
        ruled = _only(options, "clock", "gap", "fold", "max_gap", "day_or", "seconds", "start_at", "end_at", "jitter")
        return Declared(
            name,
            Schedule(expr, tz=tz, jitter_seed=name, **ruled),
            task,
            args,
            check_name("queue", options.get("queue", "default")),
            checked_priority(options.get("priority", 0)),
            self._tasks[task].retry.max_attempts,
            **_only(options, "catch_up", "catch_up_limit", "grace", "overlap"),
        )

    @contextmanager
    def _acting(self, doing: str, reason: str, actor: str | None) -> Iterator[tuple[Run, str]]:
        checked_reason(reason)
        here = self._here()
        who = check_name("actor", actor if actor is not None else here.owner)
        with here.link.use(doing) as connection:
            yield Run(connection, self._statements), who


def _only(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: options[name] for name in names if name in options}
