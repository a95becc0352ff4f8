"""Many connected workers, idle and then all claiming, against few."""

from __future__ import annotations

import threading
import time

from scheduler._connect import Database
from scheduler._postgres import Claim, settle
from scheduler._sql import Statements
from scheduler._store import Settlement
from scheduler.console.bench._drain import SCHEMA, drop, filled, tidy
from scheduler.console.bench._frame import Measure, Servers

JOBS = 20_000
MANY, FEW = 64, 4
BATCH = 50


def of(workers: int) -> Measure:
    """The rate of so many workers together (fewer for a quick look): each claims and settles on a connection of its
    own, without handlers, so that it is the database's rate and not one interpreter's."""

    def measured(servers: Servers, scale: float) -> float:
        jobs = max(1, int(JOBS * scale))
        app = filled(servers.postgres, jobs)
        app.close()
        tidy(servers.postgres)
        statements, database = Statements(SCHEMA), Database(servers.postgres)
        count = min(workers, max(FEW, int(workers * scale * 4)))
        done = [0] * count
        begin = threading.Barrier(count + 1)

        def work(number: int) -> None:
            owner = f"worker {number}"
            claim = Claim(statements, owner, ["default"], {"no-op": 30.0})
            with database.connect("claim") as connection:
                begin.wait(60)
                sweep = True
                while True:
                    _, found = claim(connection, BATCH, guarded=sweep, sweep=sweep)
                    if not found and sweep and not claim.again:
                        return
                    sweep = not found
                    if found:
                        settle(connection, statements, owner, [_completed(job.id, job.token) for job in found])
                        done[number] += len(found)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        begin.wait(60)
        began = time.perf_counter()
        for thread in threads:
            thread.join()
        elapsed = time.perf_counter() - began
        drop(servers.postgres)
        if sum(done) != jobs:
            raise RuntimeError(f"{sum(done)} of {jobs} jobs were completed: the figure would be worth nothing")
        return jobs / elapsed

    return measured


def _completed(number: int, token: int) -> Settlement:
    return Settlement(number, token, "completed", "completed")
