"""From enqueue to the handler's first line, an idle worker in another process, against the least that NOTIFY costs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import psycopg

from scheduler import Job, Scheduler
from scheduler.console.bench._drain import RAW_CLAIM, RAW_TABLE, SCHEMA, drop
from scheduler.console.bench._frame import Measure, Servers

JOBS = 300
_PRODUCER = """
import sys, time, psycopg
dsn, count, kind, schema = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
from scheduler import Scheduler
app = Scheduler(dsn, schema=schema)
app.task("timed")(print)
raw = psycopg.connect(dsn, autocommit=True, prepare_threshold=0)
insert = ("with made as (insert into fencing_bench_raw (due_at, payload) values (clock_timestamp(),"
    " jsonb_build_object('at', %s::float8)) returning id) select pg_notify('fencing_bench_raw', '') from made")
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    if kind == "ours":
        app.enqueue("timed", {"at": time.time()})
    else:
        raw.execute(insert, (time.time(),))
    time.sleep((0.01, 0.02, 0.03)[number % 3])  # the worker is idle when one comes
"""


class _Producer:
    """A process that enqueues, one by one."""

    def __init__(self, dsn: str, count: int, kind: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PRODUCER, dsn, str(count), kind, SCHEMA],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError("the process that enqueues did not start")

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.communicate(timeout=60)


def _ours(servers: Servers, count: int) -> list[float]:
    drop(servers.postgres)
    app = Scheduler(servers.postgres, schema=SCHEMA)
    app.migrate()
    waited: list[float] = []
    done = threading.Event()

    @app.task("timed")
    def timed(job: Job) -> None:
        waited.append(time.time() - job.args["at"])
        if len(waited) == count:
            done.set()

    producer = _Producer(servers.postgres, count, "ours")
    worker = threading.Thread(target=app.run_worker, kwargs={"stop": done})
    worker.start()
    time.sleep(0.5)  # it is idle and listens
    producer.go()
    worker.join(120)
    producer.close()
    app.close()
    drop(servers.postgres)
    return waited


def _base(servers: Servers, count: int) -> list[float]:
    waited: list[float] = []
    with (
        psycopg.connect(servers.postgres, autocommit=True) as listener,
        psycopg.connect(servers.postgres, autocommit=True, prepare_threshold=0) as claimer,
    ):
        claimer.execute(RAW_TABLE, prepare=False)
        listener.execute("listen fencing_bench_raw")
        claimer.execute("set plan_cache_mode = force_generic_plan")
        claimer.execute("set enable_seqscan = off")
        producer = _Producer(servers.postgres, count, "raw")
        producer.go()
        while len(waited) < count:
            for _ in listener.notifies(timeout=2, stop_after=1):
                pass
            for row in claimer.execute(RAW_CLAIM, ("raw", 100)).fetchall():
                waited.append(time.time() - row[6]["at"])
        producer.close()
        claimer.execute("drop table fencing_bench_raw")
    return waited


def quantile(part: float) -> tuple[Measure, Measure]:
    """How long that part of the jobs waits at the most, in milliseconds: ours, and the floor."""

    def of(waited: list[float]) -> float:
        return sorted(waited)[min(len(waited) - 1, int(len(waited) * part))] * 1e3

    def ours(servers: Servers, scale: float) -> float:
        return of(_ours(servers, max(5, int(JOBS * scale))))

    def base(servers: Servers, scale: float) -> float:
        return of(_base(servers, max(5, int(JOBS * scale))))

    return ours, base
