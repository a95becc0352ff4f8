"""What a job costs beside many others: finished ones, later ones, and entries that an old snapshot keeps."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg

from scheduler import Job
from scheduler.console.bench._drain import SCHEMA, drained, drop, filled, tidy
from scheduler.console.bench._frame import Pair, Servers, in_turn

JOBS = 20_000
MILLION = 1_000_000
CHURN = 200_000

_FINISHED = f"""
insert into {SCHEMA}.job (queue, task, args, priority, due_at, status, max_attempts, attempt, created_at, finished_at)
select 'default', 'no-op', '{{}}', 0, now() - i * interval '1 ms', 'completed', 3, 1, now(), now()
from generate_series(1, {{count}}) i
"""
_FUTURE = f"""
insert into {SCHEMA}.job (queue, task, args, priority, due_at, max_attempts, created_at)
select 'default', 'no-op', '{{}}', i % 3, now() + interval '1 day' + i * interval '1 ms', 3, now()
from generate_series(1, {{count}}) i
"""


def beside(statement: str) -> Pair:
    """The round that drains beside a million such jobs, and without them."""

    def run(servers: Servers, scale: float, others: int) -> float:
        jobs = max(1, int(JOBS * scale))
        app = filled(servers.postgres, jobs)
        tidy(servers.postgres, *([statement.replace("{count}", str(others))] if others else []))
        rate = drained(app, jobs)
        drop(servers.postgres)
        return rate

    return in_turn(
        lambda servers, scale: run(servers, scale, max(1, int(MILLION * scale))),
        lambda servers, scale: run(servers, scale, 0),
    )


finished_rows = beside(_FINISHED)
future_rows = beside(_FUTURE)


def old_snapshot(servers: Servers, scale: float, _: bool) -> tuple[float, float]:
    """The rates of the last and the first tenth of the jobs that are drained while somebody holds an old snapshot."""
    jobs = max(100, int(CHURN * scale))
    tenth = jobs // 10
    ends: list[float] = []
    count, lock = 0, threading.Lock()

    app = filled(servers.postgres, 0)
    tidy(servers.postgres)

    @app.task("counted")
    def counted(job: Job) -> None:
        nonlocal count
        with lock:
            count += 1
            if count in (1, tenth, jobs - tenth, jobs):
                ends.append(time.perf_counter())

    with psycopg.connect(servers.postgres) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select 1")
        numbers: Any = ({"n": number} for number in range(jobs))
        app.enqueue_many("counted", numbers)
        drained(app, jobs)
    drop(servers.postgres)
    first, last = ends[1] - ends[0], ends[3] - ends[2]
    return tenth / last, tenth / first
