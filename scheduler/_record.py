"""A job as the database knows it, for the application: its state and its result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from psycopg.rows import dict_row

from scheduler._acts import checked_id
from scheduler._connect import Connection
from scheduler._sql import Statements
from scheduler._states import State
from scheduler.errors import JobStateError, UnknownJobError

LOOK = 0.1
"""Seconds between two looks at a job whose result is waited for."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What the database knew of a job when it was asked.

    ``status`` is ``ready``, ``leased``, ``completed``, ``dead`` or ``cancelled``; ``reason`` says why it is dead or
    cancelled; ``error`` is that of the last attempt that failed. Times are aware.
    """

    id: int
    task: str
    queue: str
    status: State
    args: Any
    priority: int
    due_at: datetime
    key: str | None
    attempt: int
    max_attempts: int
    schedule: str | None
    nominal: datetime | None
    result: Any
    error: str | None
    reason: str | None
    created_at: datetime
    finished_at: datetime | None


_FIELDS = [field.name for field in fields(JobRecord)]


def read_job(connection: Connection, statements: Statements, job_id: int) -> JobRecord:
    """Return the job of that number. Raises :class:`UnknownJobError`."""
    checked_id(job_id)
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(statements["job_show"], {"id": job_id}).fetchone()
    if row is None:
        raise UnknownJobError(f"there is no job {job_id} in schema {statements.schema!r}")
    return JobRecord(**{name: row[name] for name in _FIELDS})


def wait_for_result(look: Callable[[], JobRecord], wait: float) -> Any:
    """Return the result of the job that ``look`` shows. Raises as :meth:`Scheduler.result`."""
    if not isinstance(wait, int | float) or math.isnan(wait) or wait < 0:
        raise ValueError(f"wait= is a number of seconds from 0, not {wait!r}")
    give_up = time.monotonic() + wait
    while True:
        job = look()
        if job.status == "completed":
            return job.result
        if job.status in ("dead", "cancelled"):
            raise JobStateError(f"job {job.id} has no result: it is {job.status} ({job.reason})")
        left = give_up - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"job {job.id} is {job.status}: it has no result yet")
        time.sleep(min(LOOK, left))
