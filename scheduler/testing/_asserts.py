"""Assertions about jobs; each failure shows the jobs that there are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime
from types import EllipsisType
from typing import Any

from psycopg.rows import dict_row

from scheduler._app import Scheduler
from scheduler._record import JobRecord
from scheduler._states import Outcome

_SHOWN = 20
_FIELDS = [field.name for field in fields(JobRecord)]


def find_jobs(app: Scheduler, task: str | None = None) -> list[JobRecord]:
    """Return every job of a task, or all, whatever its state, oldest first."""
    return [record for record, _ in _find(app, task)]


def assert_enqueued(
    app: Scheduler,
    task: str,
    args: Any = ...,
    *,
    count: int | None = None,
    key: str | EllipsisType | None = ...,
    queue: str | EllipsisType = ...,
    priority: int | EllipsisType = ...,
    due_at: datetime | EllipsisType = ...,
) -> list[JobRecord]:
    """Assert that jobs like this wait: at least one or, where it is given, ``count``; return them.

    What is left out (``...``) may be anything; ``args`` are compared with ``==`` to what JSON made of them.
    """
    wanted = {"args": args, "key": key, "queue": queue, "priority": priority, "due_at": due_at}
    wanted = {name: value for name, value in wanted.items() if value is not ...}
    found = _find(app, task)
    waiting = [record for record, _ in found if record.status == "ready" and _is_like(record, wanted)]
    if not _is_count(len(waiting), count):
        raise AssertionError(_told(f"waiting jobs of {task!r}{_said(wanted)}", count, len(waiting), found, app))
    return waiting


def assert_not_enqueued(app: Scheduler, task: str, args: Any = ..., **wanted: Any) -> None:
    """Assert that no job like this waits. Takes what :func:`assert_enqueued` takes, but ``count``."""
    assert_enqueued(app, task, args, count=0, **wanted)


def assert_ran(
    app: Scheduler, task: str, args: Any = ..., *, outcome: Outcome = "completed", count: int | None = None
) -> list[JobRecord]:
    """Assert that attempts of jobs like this ended with ``outcome``: at least one or, where it is given, ``count``;
    return the jobs of these, one for each such attempt."""
    wanted = {} if args is ... else {"args": args}
    found = _find(app, task)
    ended = [record for record, outcomes in found if _is_like(record, wanted) for one in outcomes if one == outcome]
    if not _is_count(len(ended), count):
        raise AssertionError(_told(f"{outcome} attempts of {task!r}{_said(wanted)}", count, len(ended), found, app))
    return ended


def assert_dead(
    app: Scheduler, task: str, args: Any = ..., *, reason: str = "", count: int | None = None
) -> list[JobRecord]:
    """Assert that jobs like this are dead, with ``reason`` in their reason or last error; return them."""
    wanted = {} if args is ... else {"args": args}
    found = _find(app, task)
    dead = [
        record
        for record, _ in found
        if record.status == "dead" and _is_like(record, wanted) and reason in f"{record.reason}\n{record.error}"
    ]
    if not _is_count(len(dead), count):
        what = f"dead jobs of {task!r}{_said(wanted)}" + (f" for {reason!r}" if reason else "")
        raise AssertionError(_told(what, count, len(dead), found, app))
    return dead


def assert_idle(app: Scheduler) -> None:
    """Assert that nothing is due and nothing is running."""
    with app._here().link.use("look at the clock") as connection:
        now = connection.execute(app._statements.fill("select {schema}.clock()")).fetchall()[0][0]
    found = _find(app, None)
    busy = [
        (record, outcomes)
        for record, outcomes in found
        if record.status == "leased" or (record.status == "ready" and record.due_at <= now)
    ]
    if busy:
        raise AssertionError(f"{len(busy)} jobs are due or running:\n{_list(busy)}")


def _find(app: Scheduler, task: str | None) -> list[tuple[JobRecord, list[str]]]:
    with app._here().link.use("look at jobs") as connection, connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(app._statements["testing_jobs"], {"task": task}).fetchall()
    return [(JobRecord(**{name: row[name] for name in _FIELDS}), row["outcomes"]) for row in rows]


def _is_like(record: JobRecord, wanted: dict[str, Any]) -> bool:
    return all(value == getattr(record, name) for name, value in wanted.items())


def _is_count(found: int, wanted: int | None) -> bool:
    return found >= 1 if wanted is None else found == wanted


def _said(wanted: dict[str, Any]) -> str:
    return "".join(f", {name} {value!r}" for name, value in wanted.items())


def _told(what: str, wanted: int | None, found: int, jobs: list[tuple[JobRecord, list[str]]], app: Scheduler) -> str:
    head = f"expected {'at least 1' if wanted is None else wanted} {what}; there are {found}"
    if jobs:
        return f"{head}. Of this task there are:\n{_list(jobs)}"
    others = sorted({record.task for record in find_jobs(app)})
    return f"{head}. There is no job of this task at all" + (
        f"; there are jobs of {', '.join(others)}" if others else ""
    )


def _list(jobs: Iterable[tuple[JobRecord, list[str]]]) -> str:
    lines = []
    for record, outcomes in jobs:
        attempts = f" after {', '.join(outcomes)}" if outcomes else ""
        why = f" ({record.reason})" if record.reason else ""
        lines.append(
            f"  job {record.id} {record.task}: {record.status}{why}{attempts}; args {record.args!r}, "
            f"key {record.key!r}, queue {record.queue!r}, priority {record.priority}, due {record.due_at.isoformat()}"
        )
    more = f"\n  … and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "\n".join(lines[:_SHOWN]) + more
