"""Draining: a worker against a loop written by hand.

The loop keeps what a worker of one's own cannot do without: a row with a queue, a due time, an owner, a lease, a token
and a count of its attempts. Its claim returns what a handler has to be given; its completion is fenced by owner and
token. It keeps no record of each attempt, draws its tokens from the row itself, calls no handler and renews nothing.
Both arms have the same arguments in their jobs.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from scheduler import Job, Scheduler
from scheduler.console.bench._frame import Servers

JOBS = 30_000
SCHEMA = "fencing_bench"
BATCH = 100

# The least that a fenced queue with handlers can be.
RAW_TABLE = """
drop table if exists fencing_bench_raw;
create table fencing_bench_raw (
    id bigint generated always as identity primary key, queue text not null default 'default',
    due_at timestamptz not null, status text not null default 'ready',
    owner text, token bigint not null default 0, lease_until timestamptz, attempt integer not null default 0,
    payload jsonb not null);
create index on fencing_bench_raw (due_at, id) where status = 'ready'
"""
RAW_CLAIM = """
update fencing_bench_raw
set status = 'leased', owner = %s, token = token + 1, attempt = attempt + 1, lease_until = now() + interval '30 s'
where id = any(array(select id from fencing_bench_raw where status = 'ready' and due_at <= now() order by due_at, id
    limit %s for update skip locked))
returning id, token, queue, due_at, attempt, lease_until, payload
"""
_RAW_COMPLETE = """
update fencing_bench_raw r set status = 'done', lease_until = null from unnest(%s::bigint[], %s::bigint[]) u(id, token)
where r.id = u.id and r.token = u.token and r.owner = %s and r.status = 'leased'
returning r.id
"""


def filled(dsn: str, jobs: int, **options: Any) -> Scheduler:
    """A scheduler in a schema of its own with no-op jobs that are due."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"drop schema if exists {SCHEMA} cascade")
    app = Scheduler(dsn, schema=SCHEMA)
    app.migrate()
    app.task("no-op")(no_op)
    app.enqueue_many("no-op", map(arguments, range(jobs)), **options)
    return app


def arguments(number: int) -> dict[str, Any]:
    """What a job is given."""
    return {"to": f"reader{number}@example.com", "n": number, "kind": "reminder"}


def tidy(dsn: str, *statements: str) -> None:
    """Run statements, each by itself; then look at the tables as autovacuum would, and write out what is dirty."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
        connection.execute(f"vacuum analyze {SCHEMA}.job")
        connection.execute("checkpoint")


def drained(app: Scheduler, jobs: int) -> float:
    """Run what is due; return jobs a second, and close the scheduler."""
    began = time.perf_counter()
    counts = app.run_until_idle()
    elapsed = time.perf_counter() - began
    app.close()
    if counts.completed != jobs:
        raise RuntimeError(f"{counts.completed} of {jobs} jobs were completed: the figure would be worth nothing")
    return jobs / elapsed


def drop(dsn: str) -> None:
    """Remove the schema."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"drop schema if exists {SCHEMA} cascade")


def no_op(job: Job) -> None:
    """Do nothing."""


def ours(servers: Servers, scale: float) -> float:
    """Jobs a second, by one worker."""
    jobs = max(1, int(JOBS * scale))
    app = filled(servers.postgres, jobs)
    tidy(servers.postgres)
    rate = drained(app, jobs)
    drop(servers.postgres)
    return rate


def base(servers: Servers, scale: float) -> float:
    jobs = max(1, int(JOBS * scale))
    with psycopg.connect(servers.postgres, autocommit=True) as connection:
        connection.execute(RAW_TABLE)
        due = datetime.now(UTC) - timedelta(hours=1)
        with connection.cursor().copy("copy fencing_bench_raw (due_at, payload) from stdin") as copy:
            for number in range(jobs):
                copy.write_row((due, json.dumps(arguments(number))))
        connection.execute("vacuum analyze fencing_bench_raw")
        connection.execute("checkpoint")
        connection.prepare_threshold = 0
        connection.execute("set plan_cache_mode = force_generic_plan")
        done = 0
        began = time.perf_counter()
        while rows := connection.execute(RAW_CLAIM, ("raw", BATCH)).fetchall():
            settled = connection.execute(_RAW_COMPLETE, ([row[0] for row in rows], [row[1] for row in rows], "raw"))
            done += len(settled.fetchall())
        elapsed = time.perf_counter() - began
        connection.execute("drop table fencing_bench_raw")
    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} jobs were completed: the figure would be worth nothing")
    return jobs / elapsed
