"""Schedules with two at work on them, arranged by locks: materialisers, gates, claims, and people's acts."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from support.jobs import completed, ended
from support.locks import wait_until_blocked
from support.schedules import HOUR, MINUTE, SECOND, Ground, hour, schedules_ground
from support.waiting import eventually

from scheduler._backfill import backfill
from scheduler._connect import Connection, Database, Link
from scheduler._gate import BUSY, Gate
from scheduler._materialiser import Materialiser
from scheduler._releases import Release
from scheduler._schedule_store import delete, pause, resume, store
from scheduler._sql import Run
from scheduler.console.embedded import Postgres


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("schedule_races")
    postgres.drop_database("schedule_races")


@pytest.fixture
def ground(database: str) -> Iterator[Ground]:
    with schedules_ground(database) as ground:
        yield ground


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture
def person(ground: Ground) -> Iterator[Run]:
    """A person's own connection."""
    with Database(ground.tables.dsn).connect("app") as connection:
        yield Run(connection, ground.statements)


def put(ground: Ground, **options: Any) -> Any:
    app = ground.process()
    app.put_schedule("hourly", "0 * * * *", tz="UTC", task="send", reason="set up", **options)
    return app


def pid(connection: Connection) -> int:
    return connection.info.backend_pid


@contextmanager
def stopped_before_its_first_job(ground: Ground, pool: ThreadPoolExecutor) -> Iterator[tuple[Future[Any], int]]:
    """A materialiser that has read its schedules and computed them, and waits to write. It goes on after the block."""
    with psycopg.connect(ground.tables.dsn) as door:
        door.execute(f"lock table {ground.tables.schema}.job in share row exclusive mode".encode())
        with ground.link.use("find out which session it is") as connection:
            backend = pid(connection)
        working = pool.submit(ground.materialiser.run_once)
        wait_until_blocked(ground.tables.dsn, backend, by=door.info.backend_pid)
        yield working, backend
        door.rollback()
    working.result(60)


Act = Callable[[Run], Any]
EDIT_TO = "30 * * * *"


def an_edit(ground: Ground) -> Act:
    app = ground.process()
    app.schedule("hourly", EDIT_TO, tz="UTC", task="send", args={"edited": True})
    return lambda run: store(run, app._schedules["hourly"], Release(None, 100), "ann", "why not")


ACTS: dict[str, Callable[[Ground], Act]] = {
    "edit": an_edit,
    "pause": lambda _: lambda run: pause(run, "hourly", "ann", "why not"),
    "delete": lambda _: lambda run: delete(run, "hourly", "ann", "why not"),
}


@pytest.mark.parametrize("act", ACTS)
def test_an_act_that_meets_a_materialiser_waits_and_withdraws_what_that_one_put_ahead(
    ground: Ground, pool: ThreadPoolExecutor, person: Run, act: str
) -> None:
    put(ground)
    ground.at(hour(10) - 3 * SECOND)
    with stopped_before_its_first_job(ground, pool) as (_, backend):
        acting = pool.submit(ACTS[act](ground), person)
        wait_until_blocked(ground.tables.dsn, pid(person.connection), by=backend)
    acting.result(60)
    assert ground.dues() == [hour(9)], "it was due"
    assert ground.dues("cancelled") == [hour(10)]
    assert ground.ledger("hourly") == [(hour(9), "enqueued")]
    ground.step(hour(10, 31))
    assert ground.dues() == ([hour(9), hour(10, 30)] if act == "edit" else [hour(9)])


@pytest.mark.parametrize("act", ACTS)
def test_a_materialiser_that_meets_an_act_passes_by_and_then_sees_what_was_done(
    ground: Ground, person: Run, act: str
) -> None:
    put(ground)
    ground.at(hour(9))
    do = ACTS[act](ground)
    with person.connection.transaction():
        do(person)
        ground.materialise()
        assert ground.tables.jobs() == []
    ground.materialise()
    assert ground.tables.jobs() == [], "what was due was not made before, and an act never fires the past"
    ground.step(hour(10, 30))
    assert ground.dues() == ([hour(9, 30), hour(10, 30)] if act == "edit" else [])


def test_a_resumption_that_meets_a_materialiser_makes_nothing_twice(
    ground: Ground, pool: ThreadPoolExecutor, person: Run
) -> None:
    put(ground)
    ground.at(hour(9) - 3 * SECOND)
    with stopped_before_its_first_job(ground, pool) as (_, backend):
        pausing = pool.submit(pause, person, "hourly", "ann", "a moment")
        wait_until_blocked(ground.tables.dsn, pid(person.connection), by=backend)
    pausing.result(60)
    assert resume(person, "hourly", "ann", "over")
    ground.materialise()
    assert ground.dues() == [hour(9)]


@pytest.mark.parametrize("first", ["materialiser", "backfill"])
def test_a_backfill_beside_a_materialiser_doubles_nothing(
    ground: Ground, pool: ThreadPoolExecutor, person: Run, first: str
) -> None:
    """Both are at the same occurrences: the materialiser is behind."""
    put(ground)
    ground.at(hour(11))
    window = {"force": False, "dry_run": False, "actor": "ann", "reason": "why not"}
    if first == "materialiser":
        with stopped_before_its_first_job(ground, pool) as (_, backend):
            filling = pool.submit(backfill, person, "hourly", hour(7), hour(10), **window)
            wait_until_blocked(ground.tables.dsn, pid(person.connection), by=backend)
        states = [one.state for one in filling.result(60)]
        assert states == ["enqueued", "present", "present"]
    else:
        with person.connection.transaction():
            made = backfill(person, "hourly", hour(7), hour(10), **window)
            assert [one.state for one in made] == ["enqueued"] * 3
            ground.materialise()
        ground.materialise()
    assert ground.dues() == [hour(8), hour(9), hour(10), hour(11)]


def test_two_materialisers_share_the_work_and_double_nothing(ground: Ground, pool: ThreadPoolExecutor) -> None:
    app = ground.process()
    for number in range(300):
        app.schedule(f"s{number}", f"{number % 60} * * * *", tz="UTC", task="send")
    app.sync_schedules()
    ground.at(hour(10))
    links = [Link(Database(ground.tables.dsn), "materialise") for _ in range(4)]

    def work(link: Link) -> None:
        one = Materialiser(link, ground.statements)
        for _ in range(10):
            one.run_once()

    list(pool.map(work, links))
    for link in links:
        link.close()
    ground.materialise()
    made = ground.tables.rows("select schedule, due_at, count(*) from {s}.job group by 1, 2")
    assert [one["count"] for one in made] == [1] * 600, "two of each"
    assert len(ground.tables.rows("select key from {s}.occurrence")) == 600


def test_a_deletion_that_meets_a_claim_leaves_the_job_to_it(
    ground: Ground, pool: ThreadPoolExecutor, person: Run
) -> None:
    """The claim saw the job as due, the deletion does not yet: whoever has the row decides."""
    put(ground)
    ground.at(hour(9) - 3 * SECOND)
    ground.materialise()
    ground.at(hour(9))
    claiming = ground.hand.on("claim")
    with claiming.transaction():
        job = ground.hand.claim_one()
        ground.at(hour(9) - SECOND)
        deleting = pool.submit(delete, person, "hourly", "ann", "why not")
        wait_until_blocked(ground.tables.dsn, pid(person.connection), by=pid(claiming))
    deleting.result(60)
    assert ground.tables.job(job.id)["status"] == "leased"
    assert ground.ledger("hourly") == [(hour(9), "enqueued")], "it runs, and the ledger knows"
    ground.hand.complete(job)


def test_a_claim_that_meets_a_deletion_passes_by(ground: Ground, person: Run) -> None:
    put(ground)
    ground.at(hour(9) - 3 * SECOND)
    ground.materialise()
    with person.connection.transaction():
        delete(person, "hourly", "ann", "why not")
        ground.at(hour(9))
        assert ground.hand.claim() == []
    assert ground.hand.claim() == []
    assert ground.dues("cancelled") == [hour(9)]


# -- overlap


def test_a_gate_that_meets_another_says_so_and_looks_again_soon(ground: Ground, person: Run) -> None:
    put(ground, overlap="skip")
    ground.at(hour(9))
    ground.materialise()
    other = Gate(ground.statements, "other", 0.5)
    with person.connection.transaction():
        assert ground.look(other, person.connection) == 0
        assert ground.look() == BUSY
    ground.decide()
    assert ground.dues() == [hour(9)]


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "buffer_all"])
def test_gates_and_claims_side_by_side_never_let_two_of_a_schedule_live(
    ground: Ground, pool: ThreadPoolExecutor, overlap: Any
) -> None:
    app = ground.process()
    for number in range(8):
        app.schedule(f"s{number}", "*/5 * * * *", tz="UTC", task="send", overlap=overlap)
    app.sync_schedules()
    ground.at(hour(8, 30))
    ground.materialise()
    # Whoever made a second one live would be told so by the server.
    ground.tables.rows("create unique index one_lives on {s}.job (schedule) where status in ('ready', 'leased')")
    ran: list[tuple[str | None, Any]] = []
    door = threading.Barrier(4)

    def work(number: int) -> None:
        with Database(ground.tables.dsn).connect("claim") as connection:
            gate = Gate(ground.statements, f"gate {number}", 0.5)
            door.wait(60)
            for _ in range(60):
                ground.look(gate, connection)
                with lock:
                    jobs = ground.hand.claim(3)
                    ran.extend((job.schedule, job.due_at) for job in jobs)
                    if jobs:
                        ground.hand.settle(*map(completed, jobs))

    lock = threading.Lock()
    list(pool.map(work, range(4)))
    states = ground.tables.rows("select state, count(*) from {s}.occurrence group by state")
    count = {row["state"]: row["count"] for row in states}
    assert len(ran) == len(set(ran)) == count["enqueued"]
    assert count["enqueued"] + count.get("skipped", 0) == 8 * 6
    assert overlap != "buffer_all" or count["enqueued"] == 8 * 6
    for number in range(8):
        mine = [due for name, due in ran if name == f"s{number}"]
        assert mine == sorted(mine), "each in its turn"


def test_a_job_that_ends_while_it_is_to_be_cancelled_stays_as_it_ended(ground: Ground, person: Run) -> None:
    put(ground, overlap="cancel_other")
    ground.step(hour(9))
    first = ground.hand.claim_one()
    ground.at(hour(10))
    ground.materialise()
    with ground.hand.on("settle").transaction():
        ground.hand.complete(first)
        assert ground.look(connection=person.connection) == BUSY
    assert ground.look() == 0
    assert ground.tables.job(first.id)["status"] == "completed"
    assert ground.hand.claim_one().due_at == hour(10)


def test_a_gate_that_cancels_waits_for_no_settlement_and_none_waits_in_a_circle(
    ground: Ground, pool: ThreadPoolExecutor, person: Run
) -> None:
    """A settlement takes what completed and then the rest, the gate one schedule after another."""
    app = ground.process()
    for name in "abc":
        app.put_schedule(name, "0 * * * *", tz="UTC", task="send", args=name, reason="set up", overlap="cancel_other")
    ground.step(hour(9))
    jobs = {job.schedule: job for job in ground.hand.claim()}
    ground.at(hour(10))
    ground.materialise()
    with ground.hand.on("settle").transaction():
        ground.hand.complete(jobs["b"])
        assert pool.submit(ground.look, connection=person.connection).result(60) == 0
        ground.hand.settle(*(ended(jobs[name], "ready", "retried", delay=0.0) for name in "ac"))
    states = {name: ground.tables.job(job.id)["status"] for name, job in jobs.items()}
    assert states == {"a": "cancelled", "b": "completed", "c": "cancelled"}
    ground.decide()
    assert sorted(job.schedule or "" for job in ground.hand.claim()) == ["a", "b", "c"]


# -- releases


def test_releases_that_store_many_schedules_at_once_end_with_one_of_them(
    ground: Ground, pool: ThreadPoolExecutor
) -> None:
    releases = []
    for minute in range(3):
        app = ground.process()
        for number in range(40):
            app.schedule(f"s{number}", f"{minute} * * * *", tz="UTC", task="send")
        releases.append(app)
    for _ in range(2):
        list(pool.map(lambda app: app.sync_schedules(), releases))
    for app in releases:
        app.sync_schedules()
    newest = ground.tables.one("select id from {s}.release order by number desc limit 1")
    stored = ground.tables.rows("select distinct release, definition ->> 'expr' as expr from {s}.schedule")
    assert [row["release"] for row in stored] == [newest]
    changes = ground.tables.one("select count(*) from {s}.act where kind = 'schedule changed'")
    assert changes <= 2 * 40, "each of the later ones came once"


def test_a_newer_release_does_not_take_over_what_an_older_one_is_just_changing(
    ground: Ground, pool: ThreadPoolExecutor, person: Run
) -> None:
    """Both start at once; what is stored is as the newer one wants it, until the older one has changed it."""
    first, older, newer = (ground.process() for _ in range(3))
    for app, minute in ((first, 0), (older, 30), (newer, 0)):
        app.schedule("hourly", f"{minute} * * * *", tz="UTC", task="send")
    newer.schedule("another", "0 0 * * *", tz="UTC", task="send")
    assert first.sync_schedules() == {"hourly": "added"}
    before = Release("older", person("release_seen", owner="older", release="older")[0][0])
    with newer._here().link.use("find out which session it is") as connection:
        backend = pid(connection)
    with person.connection.transaction():
        assert store(person, older._schedules["hourly"], before, "older", "declared") == "changed"
        syncing = pool.submit(newer.sync_schedules)
        wait_until_blocked(ground.tables.dsn, backend, by=pid(person.connection))
    assert syncing.result(60) == {"hourly": "changed", "another": "added"}
    assert ground.tables.schedule("hourly")["definition"]["expr"] == "0 * * * *"
    assert store(person, older._schedules["hourly"], before, "older", "declared") == "deferred"


def test_a_materialiser_that_was_stopped_is_caught_up_with(ground: Ground) -> None:
    """Its transaction is over with its session, and nothing of it is left."""
    put(ground)
    ground.at(hour(9))
    with Database(ground.tables.dsn).connect("materialise") as connection:
        connection.execute("begin")
        run = Run(connection, ground.statements)
        assert run("schedules_due", batch=5, horizon=5.0, without=[])
        ground.materialise()
        assert ground.tables.jobs() == []
        ground.tables.rows("select pg_terminate_backend(%(pid)s)", pid=pid(connection))
        eventually(lambda: ground.materialise() or ground.tables.jobs(), "the next one does it")
        connection.close()
    assert ground.dues() == [hour(9)]
    ground.step(hour(9) + HOUR + MINUTE)
    assert ground.dues() == [hour(9), hour(10)]
