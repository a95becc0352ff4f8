"""The soak: four workers killed, stopped and continued at random, a server restarted twice, and everything adds up.

``FENCING_SOAK_SECONDS`` says for how long (20 by default, 600 in ``.ci/deep``), ``FENCING_SOAK_SEED`` by which chances.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool
from support.jobs import Tables, installed, worker
from support.processes import PythonProcess
from support.sql_doors import sync_url
from support.waiting import eventually

from adapters.sql import create_all
from fencing.errors import FencingError
from scheduler import Retry, Scheduler
from scheduler.console.embedded import Postgres

SECONDS = float(os.environ.get("FENCING_SOAK_SECONDS", "20"))
SEED = int(os.environ.get("FENCING_SOAK_SEED", "20261129"))
WORKERS = 4
LEASE = 1.5
TICK = 0.3  # seconds between two batches that are enqueued
BACKLOG = 100  # jobs that wait at most before the next batch: about as many are worked off in the end

TASKS = f"""
    import random
    import sqlalchemy
    from sqlalchemy.pool import NullPool

    engine = sqlalchemy.create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    again = Retry(max_attempts=100_000, base=0.05, cap=0.5)

    @app.task("work", lease={LEASE}, retry=again)
    def work(job):
        time.sleep(random.choice([0, 0, 0.01, 0.05, 0.3]))
        if random.random() < 0.05:
            raise RuntimeError("as it happens")
        fenced_write(engine, f"effect/{{job.key}}", once=job.key, effect=lambda connection: connection.execute(
            sqlalchemy.text("insert into effect (key, token) values (:key, :token)"),
            dict(key=job.key, token=job.token.value)) and None)

    # Long enough that many are stopped, killed or cut off in the middle, before their effect or after it; and careless:
    # it takes a refusal for the end of its work, so that its completion has to be refused as well.
    @app.task("long", lease={LEASE}, retry=again)
    def long(job):
        time.sleep(random.choice([0, 2]) * {LEASE})
        try:
            work(job)
        except errors.StaleTokenError:
            return
        time.sleep(random.choice([0, 1]) * {LEASE})
"""


@dataclass
class Chaos:
    """What is done to the workers, and how often; every choice comes from one seed."""

    tables: Tables
    rng: random.Random
    processes: list[PythonProcess] = field(default_factory=list)
    stopped: dict[int, float] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("killed", "stopped", "drained", "restarts"), 0))

    def begin(self) -> None:
        self.processes = [self._start() for _ in range(WORKERS)]

    def _start(self) -> PythonProcess:
        return worker(self.tables.dsn, TASKS, "concurrency=4")

    def restore(self) -> None:
        """Start again who is gone, as whatever supervises workers does; some were started while the server was away."""
        for number, one in enumerate(self.processes):
            if one.ended:
                one.close()
                self.processes[number] = self._start()

    def once(self) -> None:
        """Continue who has been stopped for long enough and start again who is gone; then do something to somebody."""
        now = time.monotonic()
        self.restore()
        for number in [number for number, until in self.stopped.items() if until <= now]:
            self._continue(number)
        number = self.rng.randrange(WORKERS)
        what = self.rng.choice(["killed", "stopped", "stopped", "stopped", "drained", "left"])
        if what == "left" or (number in self.stopped and what != "killed"):
            return
        one = self.processes[number]
        if what != "drained" and number not in self.stopped:
            self._wait_for_work(one)
        self.done[what] += 1
        if what == "stopped":
            one.send(signal.SIGSTOP)
            # Mostly for longer than its lease.
            self.stopped[number] = now + self.rng.choice([0.2, 2, 3, 4]) * LEASE
            return
        if what == "killed":
            one.kill()
            self.stopped.pop(number, None)
        else:
            one.send(signal.SIGTERM)  # it is started again once it has drained

    def _wait_for_work(self, one: PythonProcess) -> None:
        """Wait a little until it holds a job that takes some time, so that it is met in the middle."""
        give_up = time.monotonic() + 1
        while time.monotonic() < give_up and not one.ended:
            try:
                if self.tables.one(
                    "select count(*) from {s}.job where status = 'leased' and task = 'long' and owner like %(owner)s",
                    owner=f"%:{one.pid}:%",
                ):
                    return
            except psycopg.Error:  # the server was restarted
                self.tables.connect_anew()
            time.sleep(0.05)

    def behind(self) -> int:
        """How many jobs have not ended; 0 while the server is away."""
        try:
            return int(self.tables.one("select count(*) from {s}.job where status in ('ready', 'leased')"))
        except psycopg.Error:
            self.tables.connect_anew()
            return 0

    def _continue(self, number: int) -> None:
        del self.stopped[number]
        self.processes[number].resume()

    def calm(self) -> None:
        for number in list(self.stopped):
            self._continue(number)

    def close(self) -> None:
        for one in self.processes:
            one.close()


def enqueue_steadily(
    app: Scheduler, keys: Iterator[str], committed: list[str], stop: threading.Event, enough: threading.Event
) -> None:
    """Enqueue jobs under keys that are unique for ever and note what was acknowledged; what was not is sent again.

    Not while there are ``enough``: how fast they are worked off is the machine's affair, and at the end all have to be.
    """
    for key in keys:
        while enough.is_set() and not stop.wait(TICK):
            pass
        while not stop.is_set():
            try:
                app.enqueue("long" if key.endswith("7") else "work", key=key, unique="forever")
                committed.append(key)
                break
            except FencingError:
                time.sleep(0.1)
        if stop.wait(TICK if key.endswith("0") else 0):
            return


@pytest.mark.timeout(SECONDS + 300)
def test_every_job_ends_once_in_effect_whatever_is_done_to_workers_and_server(
    pg_server: Callable[..., Postgres],
) -> None:
    server = pg_server()
    dsn = server.create_database("soak")
    with installed(dsn) as (app, tables):
        create_all(sa.create_engine(sync_url(dsn), poolclass=NullPool))
        # No key on purpose: a second effect has to be seen, not refused.
        tables.rows("create table effect (key text not null, token bigint not null)")
        for task in ("work", "long"):
            # Who enqueues says how often: none may end dead here, however often it is met.
            app.task(task, retry=Retry(max_attempts=100_000))(print)
        chaos, committed = Chaos(tables, random.Random(SEED)), list[str]()
        stop, enough = threading.Event(), threading.Event()
        keys = (f"soak-{number}" for number in range(10**9))
        source = threading.Thread(target=enqueue_steadily, args=(app, keys, committed, stop, enough), daemon=True)
        restarts = [SECONDS / 3, SECONDS * 2 / 3]
        # Stored here, so that it is there to be paused at the end however long workers took to start.
        often = {"seconds": True, "catch_up_limit": 1000}
        app.put_schedule("tick", "* * * * * *", tz="UTC", task="work", reason="the soak", **often)
        try:
            chaos.begin()
            eventually(lambda: len(tables.sessions("claim")) == WORKERS, "all workers are at work", 60)
            began = time.monotonic()
            source.start()
            while (passed := time.monotonic() - began) < SECONDS:
                if restarts and passed >= restarts[0]:
                    restarts.pop(0)
                    server.restart(("immediate", "fast")[len(restarts)])
                    chaos.done["restarts"] += 1
                chaos.once()
                if chaos.behind() > BACKLOG:
                    enough.set()
                else:
                    enough.clear()
                time.sleep(chaos.rng.uniform(0.1, 0.5))
            stop.set()
            source.join(60)
            assert not source.is_alive()
            chaos.calm()
            tables.connect_anew()
            tables.rows("update {s}.schedule set paused = true")
            chaos.restore()
            try:
                eventually(lambda: not _open(tables), "every job has ended", 120)
            except AssertionError as error:
                logs = "\n".join(f"{one.pid}, ended {one.ended}: {one.errors[-3000:]}" for one in chaos.processes)
                raise AssertionError(f"{error}: {_open(tables)}; sessions {tables.sessions()}\n{logs}") from None
            for one in chaos.processes:
                one.send(signal.SIGTERM)
            for one in chaos.processes:
                one.wait(60)
            print(f"\nsoak of {SECONDS:g} s, {time.monotonic() - began:.0f} s in all, seed {SEED}:")
            print(f"{chaos.done}\n{summary(tables)}")
            audit(tables, committed)
        finally:
            stop.set()
            chaos.close()


def _open(tables: Tables) -> list[dict[str, Any]]:
    return tables.rows("select * from {s}.job where status in ('ready', 'leased') limit 3")


def summary(tables: Tables) -> dict[str, Any]:
    outcomes = tables.rows("select outcome, count(*) as n from {s}.attempt group by outcome order by outcome")
    return {
        "jobs": tables.one("select count(*) from {s}.job"),
        **{row["outcome"]: row["n"] for row in outcomes},
        "lineages": tables.one("select count(distinct lineage) from {s}.attempt"),
        "most attempts of one job": tables.one("select max(attempt) from {s}.job"),
    }


def audit(tables: Tables, committed: list[str]) -> None:
    """Everything adds up: jobs, their effects, their attempts and tokens, the schedule's ledger."""
    nothing: list[Any] = []
    assert committed
    keys = {row["key"] for row in tables.rows("select key from {s}.job")}
    assert set(committed) - keys == set(), "jobs whose enqueuing was acknowledged are lost"
    assert tables.rows("select key from {s}.job group by key having count(*) > 1") == nothing
    assert set(tables.states()) == {"completed"}
    assert tables.rows("select 1 from {s}.attempt where outcome = 'expired'"), "nobody was met in the middle"

    once = "select key, count(*) from effect group by key having count(*) > 1"
    assert tables.rows(once) == nothing, "jobs with two effects"
    assert {row["key"] for row in tables.rows("select key from effect")} == keys, "jobs without their effect"

    falling = """
        select * from (
            select job_id, token, lag(token) over (partition by job_id order by claimed_at, ended_at) as before
            from {s}.attempt
        ) attempts where before >= token
    """
    assert tables.rows(falling) == nothing, "jobs whose tokens do not grow"
    twice = "select token from {s}.attempt group by token having count(*) > 1"
    assert tables.rows(twice) == nothing, "tokens of two attempts"
    miscounted = """
        select j.id, j.attempt, count(a.*) filter (where a.outcome not in ('yielded', 'returned')) as counted
        from {s}.job j left join {s}.attempt a on a.job_id = j.id
        group by j.id having j.attempt <> count(a.*) filter (where a.outcome not in ('yielded', 'returned'))
    """
    assert tables.rows(miscounted) == nothing, "jobs whose attempts and audit rows do not add up"
    unsettled = """
        select j.id from {s}.job j
        left join {s}.attempt a
            on a.job_id = j.id and a.token = j.token and a.owner = j.owner and a.outcome = 'completed'
        where a.job_id is null
    """
    assert tables.rows(unsettled) == nothing, "jobs whose last token did not complete them"
    strangers = """
        select e.key from effect e join {s}.job j on j.key = e.key
        where not exists (select from {s}.attempt a where a.job_id = j.id and a.token = e.token)
    """
    assert tables.rows(strangers) == nothing, "effects under a token that was no attempt's"

    ledger = "select key, job_id from {s}.occurrence where state = 'enqueued'"
    jobs = [row["job_id"] for row in tables.rows(ledger)]
    assert len(jobs) == len(set(jobs)) > 0
    assert set(jobs) == {row["id"] for row in tables.rows("select id from {s}.job where schedule = 'tick'")}
