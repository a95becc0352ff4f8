"""The audit, read: what was done with a job, by whom, when, under which token."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.rows import dict_row

from scheduler._connect import Connection
from scheduler._sql import Statements


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a job's story: when, what, who, under which token, and how it ended."""

    at: datetime
    what: str
    who: str
    token: int | None
    detail: str


def _dicts(connection: Connection, statement: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, parameters).fetchall()


def list_jobs(
    connection: Connection,
    statements: Statements,
    *,
    status: str | None = None,
    task: str | None = None,
    queue: str | None = None,
    key: str | None = None,
    before: int | None = None,
    most: int = 50,
) -> list[dict[str, Any]]:
    """Return the newest jobs, up to ``most``; with ``before`` only those of lower numbers."""
    parameters = {"status": status, "task": task, "queue": queue, "key": key, "before": before, "most": most}
    return _dicts(connection, statements["jobs_list"], parameters)


def show_job(connection: Connection, statements: Statements, job_id: int) -> dict[str, Any] | None:
    """Return a job with its ``attempts``, ``acts`` and ``revocations``, or None if there is none of that number."""
    found = _dicts(connection, statements["job_show"], {"id": job_id})
    if not found:
        return None
    job = found[0]
    job["attempts"] = _dicts(connection, statements["job_attempts"], {"id": job_id})
    job["revocations"] = _dicts(connection, statements["job_revocations"], {"id": job_id})
    job["acts"] = _dicts(connection, statements["job_acts"], {"subject": f"job/{job_id}"})
    return job


def story(job: dict[str, Any]) -> list[Step]:
    """Tell what :func:`show_job` returned in the order in which it happened."""
    where = f"schedule {job['schedule']!r}, local time {job['nominal']}" if job["schedule"] else "enqueued"
    # A retry, yield or replay moves the due time: before the first of these it is the one that it was created with.
    due = "" if job["attempts"] or job["acts"] else f"due {job['due_at']:%Y-%m-%d %H:%M:%S%z}"
    steps = [Step(job["created_at"], "created", where, None, due)]
    for attempt in job["attempts"]:
        number = f"attempt {attempt['attempt']}"
        steps.append(Step(attempt["claimed_at"], f"{number} claimed", attempt["owner"], attempt["token"], ""))
        how = f"{number} {attempt['outcome']}"
        steps.append(Step(attempt["ended_at"], how, attempt["owner"], attempt["token"], headline(attempt["error"])))
    if job["status"] == "leased":
        until = f"leased until {job['lease_until']:%H:%M:%S%z}"
        steps.append(Step(job["claimed_at"], f"attempt {job['attempt']} claimed", job["owner"], job["token"], until))
    for one in job["revocations"]:
        if one["raised_at"] is not None:
            steps.append(Step(one["raised_at"], "fences raised", "-", one["token"], f"against token {one['revoked']}"))
        else:
            left = f"against token {one['revoked']}: {one['error'] or 'a worker that knows the task will'}"
            steps.append(Step(one["revoked_at"], "fences not raised yet", one["actor"], one["token"], left))
    steps += [Step(act["at"], act["kind"], act["actor"], None, act["reason"]) for act in job["acts"]]
    return sorted(steps, key=lambda step: step.at)


def headline(error: str | None) -> str:
    """Return the line of an error that says most: a traceback's first line after its last frame, not its last.

    The lines after that one only comment on it; SQLAlchemy's last one is an address of its documentation.
    """
    lines = [line for line in (error or "").splitlines() if line.strip()]
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    told = [line for line in lines[frames[-1] + 1 :] if not line[0].isspace()] if frames else lines
    return told[0].strip() if told else ""
