"""Many connected workers, idle and then all claiming, against few."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.queues import Queue
from typing import NamedTuple

from scheduler._claim import MAX_BATCH
from scheduler._claimer import Claimer
from scheduler._claiming import Claim
from scheduler._connect import Database, Link
from scheduler._gate import Gate
from scheduler._held import Work
from scheduler._retry import Retry
from scheduler._settler import Settler
from scheduler._sql import Statements
from scheduler._store import Settlement
from scheduler._tasks import make_task
from scheduler._worker import POLL
from scheduler.console.bench._drain import SCHEMA, arguments, drop, filled, no_op, tidy
from scheduler.console.bench._frame import Measure, Servers

JOBS = 60_000
MANY, FEW = 64, 4
_THREADS = 8
_PATIENCE = 120.0


class _Done(NamedTuple):
    """What one worker completed in a wave, and when its last settlement was, on the machine's monotonic clock."""

    jobs: int
    ended: float


def of(workers: int) -> Measure:
    """The rate of so many workers together (fewer for a quick look).

    Each is a process with a connection of its own, which listens. It claims and settles as a worker does, its jobs
    take no time: what is measured is the database and the claims that meet there, not handlers. A first wave of jobs,
    which is not measured, finds them as they are when they have worked before.
    """

    def measured(servers: Servers, scale: float) -> float:
        jobs = max(1, int(JOBS * scale))
        app = filled(servers.postgres, 0)
        tidy(servers.postgres)
        count = min(workers, max(FEW, int(workers * scale * 4)))
        # Processes that are forked from one in which no thread runs, and that need not import anything.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        said: Queue[_Done] = context.Queue()
        processes = [
            context.Process(target=_work, args=(servers.postgres, number, said), daemon=True) for number in range(count)
        ]
        try:
            for process in processes:
                process.start()
            for wave in (0, max(1, jobs // 2), jobs):
                if wave:
                    app.enqueue_many("no-op", map(arguments, range(wave)))  # at its commit they are woken, all of them
                began = time.monotonic()
                done = [said.get(timeout=_PATIENCE) for _ in processes]
        finally:
            app.close()
            for process in processes:
                process.join(5)
                process.kill()
        drop(servers.postgres)
        if sum(one.jobs for one in done) != jobs:
            raise RuntimeError(f"{sum(one.jobs for one in done)} of {jobs} jobs were completed: no figure")
        return jobs / (max(one.ended for one in done) - began)

    return measured


def _work(dsn: str, number: int, said: Queue[_Done]) -> None:
    """One worker: wait to be woken, work until nothing is left, say what was done, and again."""
    owner, statements, database, work = f"worker {number}", Statements(SCHEMA), Database(dsn), Work()
    tasks = {"no-op": make_task("no-op", no_op, 30.0, Retry(), None, preempt=False, max_yields=1)}
    link = Link(database, "claim")
    claim = Claim(statements, owner, ["default"], {"no-op": tasks["no-op"].lease})
    claimer = Claimer(link, claim, work, tasks, owner, _THREADS, MAX_BATCH, POLL, Gate(statements, owner, POLL))
    settler = Settler(link, statements, work, owner, lambda: None)
    done = _run_dry(claimer, settler, work)
    with link.use("listen") as connection:
        connection.execute(f'listen "{statements.channel}"')
    for _ in range(2):
        with link.use("listen") as connection:
            # Not before the connection is in use, or what came in between would be lost with the look whether it lives.
            said.put(done)
            for _ in connection.notifies(timeout=_PATIENCE, stop_after=1):
                pass
        claimer.sweep_soon()
        done = _run_dry(claimer, settler, work)
    said.put(done)
    link.close()


def _run_dry(claimer: Claimer, settler: Settler, work: Work) -> _Done:
    """Work until nothing is left."""
    before, ended = work.counts.completed, time.monotonic()
    while True:
        wait = claimer.run_once() or 0.0
        if work.waiting:
            while work.waiting:
                held = work.waiting.popleft()
                claimed, held.ran = held.claimed, 0.0
                work.finish(Settlement(claimed.id, claimed.token, "completed", "completed"))
            while work.ended:
                settler.run_once()
            ended = time.monotonic()
        elif claimer.dry:
            return _Done(work.counts.completed - before, ended)
        else:
            time.sleep(min(wait, POLL))
