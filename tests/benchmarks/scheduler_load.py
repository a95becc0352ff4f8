"""6,000 jobs due a minute over 10,000 schedules, two workers: lag, CPU of workers and server, growth of the database.

``python tests/benchmarks/scheduler_load.py --minutes 10``; on a server of its own that vanishes afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.jobs import installed, worker

from scheduler import Scheduler
from scheduler.console.embedded import Postgres

WORKERS = 2
TICKS = os.sysconf("SC_CLK_TCK")
TASKS = 'app.task("work")(lambda job: None)'
TABLES = ("job", "attempt", "occurrence", "schedule", "measure")


def main() -> None:
    """Run the load and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    options = parser.parse_args()
    with Postgres() as server:
        dsn = server.create_database("load")
        with installed(dsn) as (app, _):
            app.task("work")(print)
            began = time.monotonic()
            _put_schedules(app, options.schedules)
            stored = time.monotonic() - began
            figures = _run(server, dsn, app, options.minutes)
    figures = {"schedules": options.schedules, "seconds to store them": round(stored, 1), **figures}
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:>40}: {value}")


def _put_schedules(app: Scheduler, count: int) -> None:
    """A fifth of them is due every minute, the others every second minute, at seconds and minutes spread evenly."""
    for number in range(count):
        second = number % 60
        minute = "*" if number % 5 == 0 else f"{number // 60 % 2}-59/2"
        rule = f"{second} {minute} * * * *"
        options = {"seconds": True, "clock": "wall", "reason": "the load test"}
        app.put_schedule(f"schedule {number}", rule, tz="Europe/Berlin", task="work", args=number, **options)


def _run(server: Postgres, dsn: str, app: Scheduler, minutes: float) -> dict[str, object]:
    with ExitStack() as stack, psycopg.connect(dsn, autocommit=True) as connection:
        workers = [stack.enter_context(worker(dsn, TASKS, "concurrency=8")) for _ in range(WORKERS)]
        # The first minute is for warming up: what is due in it is not counted.
        time.sleep(60)
        connection.execute("checkpoint")
        begin, size = connection.execute("select now(), pg_database_size(current_database())").fetchall()[0]
        sizes = _sizes(connection)
        server_cpu, worker_cpu = _cpu(server.pids, server.pid), [_cpu([one.pid]) for one in workers]
        began = time.monotonic()
        time.sleep(minutes * 60)
        elapsed = time.monotonic() - began
        server_cpu = _cpu(server.pids, server.pid) - server_cpu
        worker_cpu = [_cpu([one.pid]) - before for one, before in zip(workers, worker_cpu, strict=True)]
        end, grown = connection.execute("select now(), pg_database_size(current_database())").fetchall()[0]
        growth = {name: now - sizes[name] for name, now in _sizes(connection).items()}
        measured = app.measure(min(3600.0, max(60.0, minutes * 60))).queue("default")
        for one in workers:
            one.send(signal.SIGTERM)
        for one in workers:
            one.wait(60)
        lag = connection.execute(
            "select count(*), percentile_cont(array[0.5, 0.95, 0.99, 1.0]) within group"
            " (order by extract(epoch from claimed_at - due_at)) from fencing.job"
            " where due_at >= %s and due_at < %s and status = 'completed'",
            (begin, end),
        ).fetchall()[0]
        left = connection.execute(
            "select count(*) from fencing.job where due_at < %s and status <> 'completed'", (end,)
        ).fetchall()[0][0]
    if measured is None or not lag[0]:
        raise SystemExit("nothing was due in so short a time: try --minutes 1")
    return {
        "jobs a minute": round(lag[0] / elapsed * 60),
        "jobs": lag[0],
        "due and not completed at the end": left,
        "lag p50, p95, p99, longest (ms)": [round(float(value) * 1000, 1) for value in lag[1]],
        "measured lag p50, p99 (ms)": [
            round((value or 0.0) * 1000, 1) for value in (measured.lag.p50, measured.lag.p99)
        ],
        "CPU of each worker (% of a core)": [round(cpu / elapsed * 100, 1) for cpu in worker_cpu],
        "CPU of the server (% of a core)": round(server_cpu / elapsed * 100, 1),
        "growth of the database (MB)": round((grown - size) / 1e6, 1),
        "growth per job (bytes)": round((grown - size) / max(1, lag[0])),
        "growth by table, indexes included (MB)": {name: round(value / 1e6, 1) for name, value in growth.items()},
    }


def _sizes(connection: psycopg.Connection) -> dict[str, int]:
    sizes = connection.execute(
        "select name, pg_total_relation_size(('fencing.' || name)::regclass) from unnest(%s::text[]) name",
        (list(TABLES),),
    )
    return dict(sizes.fetchall())


def _cpu(pids: list[int], parent: int | None = None) -> float:
    """CPU seconds of these processes; of the parent also those of its children that are gone."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15] if pid == parent else fields[11:13]))
    return total / TICKS


if __name__ == "__main__":
    main()
