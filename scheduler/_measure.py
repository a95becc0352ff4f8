"""`measure()`: reads what the workers measured and how the queues stand, each by a statement whose cost is bounded."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime
from typing import Any

from psycopg.rows import dict_row

from scheduler._connect import Connection
from scheduler._measures import (
    STUCK_OTHERWISE,
    Measures,
    QueueMeasures,
    StuckJob,
    TaskMeasures,
    WorkerMeasures,
    lag_exceeded,
    largest,
    percentiles,
    stuck_after,
)
from scheduler._sql import Statements
from scheduler._tally import Durations, Kind, Tally

MAX_WINDOW = 3600.0
"""Seconds that the workers' measures are kept."""


def measure(connection: Connection, statements: Statements, window: float) -> Measures:
    """Measure everything. ``window``: seconds, 60 to :data:`MAX_WINDOW`; it begins at a full minute."""
    now, since = _window(connection, statements, window)
    recent, hour = _minutes(connection, statements, window)
    stuck = _stuck(connection, statements, hour)
    workers = tuple(
        WorkerMeasures(**{**row, "queues": tuple(row["queues"])})
        for row in _rows(connection, statements["measure_workers"])
    )
    return Measures(
        now,
        since,
        tuple(_queues(connection, statements, recent, since)),
        tuple(
            TaskMeasures(task, queue, percentiles(tally.run), dict(tally.outcomes))
            for (queue, task), tally in sorted(recent.items())
        ),
        workers,
        stuck,
        largest(worker.clock_skew for worker in workers),
    )


def oldest_due(connection: Connection, statements: Statements) -> dict[str, tuple[float, int]]:
    """Return by queue how many seconds its oldest due job has waited, and how many are due."""
    found: dict[str, tuple[float, int]] = {}
    for statement in ("measure_due", "measure_due_exclusive"):
        for queue, _, waited, due in connection.execute(statements[statement]):
            longest, count = found.get(queue, (0.0, 0))
            found[queue] = max(longest, waited), count + due
    return found


def acceptable_lags(connection: Connection, statements: Statements) -> dict[str, float]:
    """Return by queue the acceptable lag in seconds, where one was stated."""
    return dict(connection.execute(statements["measure_queues"]).fetchall())


def _rows(connection: Connection, statement: str, parameters: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, parameters).fetchall()


def _window(connection: Connection, statements: Statements, window: float) -> tuple[datetime, float]:
    """The present time, and how many seconds the window has in fact, since it begins at a full minute."""
    text = statements.fill(
        "select now, extract(epoch from now - date_trunc('minute', now - make_interval(secs => %s)))::float8"
        " from (select {schema}.clock() as now) instant"
    )
    row = connection.execute(text, (window,)).fetchall()[0]
    return row[0], row[1]


def _minutes(connection: Connection, statements: Statements, window: float) -> tuple[dict[Kind, Tally], dict[str, Any]]:
    """The sums of the window by queue and task, and the run times of the whole hour by task."""
    recent: dict[Kind, Tally] = defaultdict(Tally)
    hour: dict[str, Durations] = defaultdict(Durations)
    for row in _rows(connection, statements["measure_minutes"], {"window": window}):
        hour[row["task"]].add(row["run"], row["run_sum"], row["run_most"])
        if row["recent"]:
            tally = recent[row["queue"], row["task"]]
            tally.claimed += row["claimed"]
            tally.lag.add(row["lag"], row["lag_sum"], row["lag_most"])
            tally.run.add(row["run"], row["run_sum"], row["run_most"])
            tally.outcomes.update(row["outcomes"])
            tally.refused += row["refused"]
            tally.lost += row["lost"]
    return recent, hour


def _stuck(connection: Connection, statements: Statements, hour: dict[str, Durations]) -> tuple[StuckJob, ...]:
    limits = {task: stuck_after(run) for task, run in hour.items()}
    parameters = {"tasks": list(limits), "limits": list(limits.values()), "otherwise": STUCK_OTHERWISE}
    return tuple(
        StuckJob(row[0], row[2], row[1], *row[3:])
        for row in connection.execute(statements["measure_stuck"], parameters).fetchall()
    )


def _queues(
    connection: Connection, statements: Statements, recent: dict[Kind, Tally], window: float
) -> list[QueueMeasures]:
    sums: dict[str, Tally] = defaultdict(Tally)
    for (queue, _), tally in recent.items():
        sums[queue].add(tally)
    due = oldest_due(connection, statements)
    acceptable = acceptable_lags(connection, statements)
    running: Counter[str] = Counter()
    expired: Counter[str] = Counter()
    for queue, _, held, over in connection.execute(statements["measure_leased"]):
        running[queue] += held
        expired[queue] += over
    dead: dict[str, int] = dict(connection.execute(statements["measure_dead"]).fetchall())
    found = []
    for queue in sorted({*sums, *due, *acceptable, *running, *dead}):
        tally, (waited, count) = sums[queue], due.get(queue, (0.0, 0))
        lag = percentiles(tally.lag)
        found.append(
            QueueMeasures(
                queue,
                lag,
                waited,
                count,
                acceptable.get(queue),
                lag_exceeded(acceptable.get(queue), waited, lag.p95),
                running[queue],
                expired[queue],
                dead.get(queue, 0),
                tally.claimed,
                tally.outcomes.total() / window,
                dict(tally.outcomes),
                tally.refused,
                tally.lost,
            )
        )
    return found
