"""Two at once, arranged by locks: who settles, renews, sweeps, edits and holds beside whom."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.jobs import Hand, Tables, completed, installed_beside
from support.locks import wait_until_blocked
from support.proxy import Proxy
from support.waiting import eventually

from fencing._lease import lease_clock
from fencing.history import Event, check_history, emit, subscribe
from scheduler import RetryIn, Scheduler
from scheduler._connect import Database, Link
from scheduler._heart import Heart
from scheduler._held import Held, JobLease, Work
from scheduler._hooks import Hooks, LoseEvent, Teller
from scheduler._materialiser import Materialiser
from scheduler._postgres import acquire_lease, settle
from scheduler._releases import Release
from scheduler._schedule_store import store
from scheduler._sql import Run, Statements
from scheduler._store import Settled
from scheduler.console.embedded import Postgres

LEASE = 30.0


@contextmanager
def recorded() -> Iterator[list[Event]]:
    """The events of the block."""
    events: list[Event] = []
    forget = subscribe(events.append)
    try:
        yield events
    finally:
        forget()


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_races")
    postgres.drop_database("scheduler_races")


@pytest.fixture
def ground(database: str) -> Iterator[tuple[Scheduler, Tables]]:
    with installed_beside(database) as (app, tables):
        app.task("work", lease=LEASE)(print)
        yield app, tables


@pytest.fixture
def app(ground: tuple[Scheduler, Tables]) -> Scheduler:
    return ground[0]


@pytest.fixture
def tables(ground: tuple[Scheduler, Tables]) -> Tables:
    return ground[1]


@pytest.fixture
def hand(app: Scheduler, tables: Tables) -> Iterator[Hand]:
    app.enqueue_many("work", range(6))
    one = Hand(tables.dsn, {"work": LEASE}, schema=tables.schema)
    yield one
    one.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def lock(door: psycopg.Connection[Any], tables: Tables, number: int) -> None:
    door.execute(f"select from {tables.schema}.job where id = {number} for update".encode())


def test_a_settlement_takes_the_rows_in_order_so_that_no_two_wait_for_each_other(
    tables: Tables, hand: Hand, pool: ThreadPoolExecutor
) -> None:
    """Whoever waits for the lowest row holds no higher one: the order given does not matter."""
    jobs = sorted(hand.claim(), key=lambda job: job.id, reverse=True)
    with psycopg.connect(tables.dsn) as door, psycopg.connect(tables.dsn) as beside:
        lock(door, tables, jobs[-1].id)
        pid = hand.on("settle").info.backend_pid
        work = pool.submit(hand.settle, *map(completed, jobs))
        wait_until_blocked(tables.dsn, pid)
        for job in jobs[:-1]:
            beside.execute(f"select from {tables.schema}.job where id = {job.id} for update nowait".encode())
        beside.rollback()
        door.rollback()
        assert work.result(60) == [Settled.OK] * 6


def test_a_row_that_somebody_has_locked_costs_neither_its_own_lease_nor_the_others(tables: Tables, hand: Hand) -> None:
    jobs = hand.claim()
    locked, *others = jobs
    before = {job.id: tables.job(job.id)["lease_until"] for job in jobs}
    with psycopg.connect(tables.dsn) as door:
        lock(door, tables, locked.id)
        answer = hand.renew(*jobs)
        assert answer == {locked.token: False} | {job.token: True for job in others}
        assert [job.id for job in jobs if tables.job(job.id)["lease_until"] == before[job.id]] == [locked.id]
    assert hand.renew(locked) == {locked.token: True}


class Beating:
    """A heart with one job, which it is time to renew."""

    def __init__(self, app: Scheduler, tables: Tables, hand: Hand) -> None:
        self.job, self.work = hand.claim_one(), Work()
        self.lease = JobLease(self.job, hand.owner, lease_clock() + LEASE / 2)
        self.work.held[self.job.token] = Held(self.job, app._tasks["work"], self.lease)
        self._heart = Heart(Link(Database(tables.dsn), "heart"), hand.statements, self.work, hand.owner)

    def beat(self) -> None:
        self._heart.run_once()


@pytest.fixture
def beating(app: Scheduler, tables: Tables, hand: Hand) -> Beating:
    return Beating(app, tables, hand)


def test_a_heart_that_finds_a_row_locked_asks_again_and_loses_nothing(tables: Tables, beating: Beating) -> None:
    with psycopg.connect(tables.dsn) as door:
        lock(door, tables, beating.job.id)
        beating.beat()
        assert not beating.lease.is_lost
        assert beating.lease.remaining() <= LEASE / 2, "an unknown answer extends nothing"
    beating.beat()
    assert beating.lease.remaining() > LEASE / 2


def test_a_heart_keeps_nothing_that_its_holder_was_told_is_lost(tables: Tables, beating: Beating) -> None:
    """It would be kept from whoever could take it over."""
    until = tables.job(beating.job.id)["lease_until"]
    beating.lease.lose("no renewal was confirmed in time")
    beating.beat()
    assert tables.job(beating.job.id)["lease_until"] == until


def test_a_heart_does_not_call_lost_what_was_settled_a_moment_ago(hand: Hand, beating: Beating) -> None:
    beating.lease.end("settled")
    assert hand.complete(beating.job) is Settled.OK
    beating.beat()
    assert not beating.lease.is_lost


def test_a_heart_tells_by_whom_a_lease_was_taken_away(app: Scheduler, hand: Hand, beating: Beating) -> None:
    told: list[LoseEvent] = []
    hooks = Hooks()
    hooks.add(LoseEvent, told.append)
    beating.work.teller = Teller(hooks)
    app.cancel(beating.job.id, reason="wrong month", actor="ann")
    beating.beat()
    beating.work.teller.start()
    beating.work.teller.stop(60)
    assert beating.lease.is_lost
    assert [(event.job, event.owner, event.why) for event in told] == [
        (beating.job.id, hand.owner, "cancelled by ann: wrong month")
    ]


def test_a_settlement_that_waits_for_a_rescue_is_lost_when_that_one_commits(
    tables: Tables, hand: Hand, pool: ThreadPoolExecutor
) -> None:
    job = hand.claim_one()
    tables.move_clock(LEASE + 1)
    rescuer = Hand(tables.dsn, {"work": LEASE}, owner="rescuer", schema=tables.schema)
    pid = hand.on("settle").info.backend_pid
    with rescuer.on("rescue").transaction():
        assert [one.id for one in rescuer.rescue()] == [job.id]
        late = pool.submit(hand.complete, job, "late")
        wait_until_blocked(tables.dsn, pid, by=rescuer.on("rescue").info.backend_pid)
    assert late.result(60) is Settled.LOST
    assert tables.job(job.id)["status"] == "ready"
    assert tables.outcomes(job.id) == ["expired"]
    rescuer.close()


def test_a_renewal_that_meets_a_rescue_revives_nothing(tables: Tables, hand: Hand) -> None:
    job = hand.claim_one()
    tables.move_clock(LEASE + 1)
    rescuer = Hand(tables.dsn, {"work": LEASE}, owner="rescuer", schema=tables.schema)
    with rescuer.on("rescue").transaction():
        rescuer.rescue()
        assert hand.renew(job) == {job.token: False}, "not known yet"
    assert hand.renew(job) == {}
    assert tables.job(job.id)["status"] == "ready"
    rescuer.close()


def test_a_settlement_that_waits_for_another_of_its_own_says_so(
    tables: Tables, hand: Hand, pool: ThreadPoolExecutor
) -> None:
    """The reply of the first was lost, and it is still on its way when the second is sent."""
    job = hand.claim_one()
    with Database(tables.dsn).connect("settle") as first:
        pid = hand.on("settle").info.backend_pid
        with first.transaction():
            assert settle(first, hand.statements, "hand", [completed(job, 1)]) == {job.token: Settled.OK}
            again = pool.submit(hand.complete, job, 1)
            wait_until_blocked(tables.dsn, pid, by=first.info.backend_pid)
    assert again.result(60) is Settled.BEFORE
    assert tables.outcomes(job.id) == ["completed"]


def test_the_record_says_since_when_a_settlement_that_was_sent_again_may_have_been_written(
    app: Scheduler, tables: Tables
) -> None:
    """It was written the first time, its reply was lost, and somebody else ended the job before it was sent again."""
    number = app.enqueue("work").id
    other = Hand(tables.dsn, {"work": LEASE}, owner="other", schema=tables.schema)

    def take_over() -> None:
        job = other.claim_one()
        token = f"{tables.one('select name from {s}.issuer')}/{job.lineage}/{job.token}"
        emit(Event("claim", "done", "other", "scheduler", (f"job/{number}",), token))
        assert other.complete(job) is Settled.OK

    server = conninfo_to_dict(tables.dsn)
    with Proxy(int(server["port"])) as proxy, recorded() as events:
        proxy.lose_reply(b'"outcome": "retried"', then=take_over)
        worker = Scheduler(make_conninfo(tables.dsn, host="127.0.0.1", port=proxy.port), schema=tables.schema)
        worker.task("work", lease=LEASE)(lambda job: RetryIn(0))
        worker.run_until_idle(concurrency=1)
        worker.close()
    other.close()
    assert tables.outcomes(number) == ["retried", "completed"]
    assert [event.kind for event in events] == ["claim", "start", "claim", "settle"]
    assert check_history(events).explained


def test_claimers_in_many_threads_never_share_a_job(app: Scheduler, tables: Tables, pool: ThreadPoolExecutor) -> None:
    app.enqueue_many("work", range(600))
    start = threading.Barrier(4)

    def claim_all(number: int) -> list[int]:
        one = Hand(tables.dsn, {"work": LEASE}, owner=f"claimer {number}", schema=tables.schema)
        start.wait()
        found: list[int] = []
        while jobs := one.claim(7):
            found.extend(job.id for job in jobs)
        one.close()
        return found

    claimed = [number for found in pool.map(claim_all, range(4)) for number in found]
    # A claimer that found every remaining row in the hands of the others may have gone early; the last one did not.
    assert sorted(claimed) == sorted(job["id"] for job in tables.jobs())


def test_holders_of_one_lease_never_overlap(tables: Tables, pool: ThreadPoolExecutor) -> None:
    inside, most, tokens = 0, 0, []

    def hold(_: int) -> None:
        nonlocal inside, most
        source = Scheduler(tables.dsn, schema=tables.schema)
        for _ in range(5):
            with source.lease("one", ttl=30, wait=60) as lease:
                inside += 1
                most = max(most, inside)
                tokens.append(lease.token)
                inside -= 1
        source.close()

    list(pool.map(hold, range(4)))
    assert most == 1
    assert tokens == sorted(tokens)
    assert len(tokens) == 20


def test_who_asks_for_a_lease_while_another_does_draws_its_token_after_that_one(
    tables: Tables, pool: ThreadPoolExecutor
) -> None:
    """One drawn before could be the lower of two and be held last: the other came and went in between."""
    statements, database = Statements(tables.schema), Database(tables.dsn)
    first, second = database.connect("lease"), database.connect("lease")
    with psycopg.connect(tables.dsn) as person:
        person.execute(
            f"insert into {tables.schema}.lease (name, owner, token, lineage, acquired_at, lease_until)"
            " values ('one', 'ann', 1, 'x', now(), now())".encode()
        )
        one = pool.submit(acquire_lease, first, statements, "first", "one", LEASE)
        wait_until_blocked(tables.dsn, first.info.backend_pid, by=person.info.backend_pid)
        two = pool.submit(acquire_lease, second, statements, "second", "one", LEASE)
        wait_until_blocked(tables.dsn, second.info.backend_pid, by=first.info.backend_pid)
        person.rollback()
    assert one.result(60).token is not None
    assert two.result(60).token is None
    for connection in (first, second):
        connection.close()


def test_an_edit_that_meets_a_materialiser_waits_and_then_leaves_no_ghosts(
    app: Scheduler, tables: Tables, pool: ThreadPoolExecutor
) -> None:
    """The materialiser's occurrences are those of the definition that it read; the edit comes after, and supersedes."""
    due = datetime(2026, 3, 2, 9, tzinfo=UTC)
    tables.set_clock(f"timestamptz '{(due - timedelta(hours=2)).isoformat()}'")
    app.schedule("hourly", "0 * * * *", tz="UTC", task="work", args={"n": 1})
    app.sync_schedules()
    tables.set_clock(f"timestamptz '{(due - timedelta(seconds=3)).isoformat()}'")
    edited = Scheduler(tables.dsn, schema=tables.schema)
    edited.task("work", lease=LEASE)(print)
    edited.schedule("hourly", "0 * * * *", tz="UTC", task="work", args={"n": 2})
    link = Link(Database(tables.dsn), "materialise")
    materialiser = Materialiser(link, Statements(tables.schema))
    with psycopg.connect(tables.dsn) as door, Database(tables.dsn).connect("app") as editing:
        # It has read the definition and is stopped before it writes the first job.
        door.execute(f"lock table {tables.schema}.job in share row exclusive mode".encode())
        before = {one["pid"] for one in tables.sessions("materialise")}
        materialising = pool.submit(materialiser.run_once)
        (stopped,) = eventually(lambda: {one["pid"] for one in tables.sessions("materialise")} - before, "it runs")
        wait_until_blocked(tables.dsn, stopped, by=door.info.backend_pid)
        run = Run(editing, Statements(tables.schema))
        edit = pool.submit(store, run, edited._schedules["hourly"], Release(None, 10), "editor", "why not")
        wait_until_blocked(tables.dsn, editing.info.backend_pid, by=stopped)
        door.rollback()
        materialising.result(60)
        assert edit.result(60) == "changed"
    materialiser.run_once()
    link.close()
    jobs = [(job["due_at"], job["status"], job["args"]) for job in tables.jobs()]
    assert jobs == [
        (due - timedelta(hours=1), "ready", {"n": 1}),
        (due, "cancelled", {"n": 1}),
        (due, "ready", {"n": 2}),
    ]
    edited.close()
