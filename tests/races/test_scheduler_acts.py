"""What people do with a job, beside whoever claims, settles, rescues, limits or prunes it, arranged by lock waits."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest
from support.jobs import Hand, Tables, completed, ended, installed_beside
from support.locks import wait_until_blocked

from scheduler import Retention, Scheduler
from scheduler._acts import Ended, end
from scheduler._connect import Connection, Database, Link
from scheduler._held import Work
from scheduler._limiter import Limiter
from scheduler._pruner import Pruner
from scheduler._replay import Replayed, replay
from scheduler._sql import Statements
from scheduler._store import Settled
from scheduler.console.embedded import Postgres

LEASE = 30.0
LIMIT = 5.0


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_act_races")
    postgres.drop_database("scheduler_act_races")


@pytest.fixture
def ground(database: str) -> Iterator[tuple[Scheduler, Tables]]:
    with installed_beside(database) as (app, tables):
        app.task("work", lease=LEASE, max_runtime=LIMIT)(print)
        yield app, tables


@pytest.fixture
def app(ground: tuple[Scheduler, Tables]) -> Scheduler:
    return ground[0]


@pytest.fixture
def tables(ground: tuple[Scheduler, Tables]) -> Tables:
    return ground[1]


@pytest.fixture
def hand(tables: Tables) -> Iterator[Hand]:
    one = Hand(tables.dsn, {"work": LEASE}, schema=tables.schema)
    yield one
    one.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture
def person(tables: Tables) -> Iterator[Connection]:
    """A person's connection."""
    with Database(tables.dsn).connect("console") as connection:
        yield connection


def cancel(hand: Hand, connection: Connection, number: int) -> Ended:
    return end(connection, hand.statements, [number], "cancelled", actor="ann", reason="x")


def again(hand: Hand, connection: Connection, *numbers: int) -> Replayed:
    return replay(connection, hand.statements, numbers, actor="ann", reason="x")


def pid(connection: Connection) -> int:
    return connection.info.backend_pid


def acts(tables: Tables) -> list[str]:
    return [row["kind"] for row in tables.rows("select kind from {s}.act order by id")]


def dead(app: Scheduler, hand: Hand, key: str | None = None) -> int:
    number = int(app.enqueue("work", key=key).id)
    hand.settle(ended(hand.claim_one(), "dead", "dead", error="e", reason="r"))
    return number


# -- cancel


def test_a_cancel_that_waits_for_a_claim_takes_the_job_from_that_claims_holder(
    app: Scheduler, tables: Tables, hand: Hand, person: Connection, pool: ThreadPoolExecutor
) -> None:
    number = app.enqueue("work").id
    claiming = hand.on("claim")
    with claiming.transaction():
        job = hand.claim_one()
        act = pool.submit(cancel, hand, person, number)
        wait_until_blocked(tables.dsn, pid(person), by=pid(claiming))
    (revoked,) = act.result(60).revoked
    assert (revoked.revoked, revoked.owner) == (job.token, "hand")
    assert hand.complete(job) is Settled.LOST
    assert tables.job(number)["status"] == "cancelled"
    assert tables.outcomes(number) == ["cancelled"]


def test_a_claim_passes_by_what_is_just_being_cancelled(
    app: Scheduler, tables: Tables, hand: Hand, person: Connection
) -> None:
    number = app.enqueue("work").id
    with person.transaction():
        assert cancel(hand, person, number).waiting == [number]
        assert hand.claim() == []
    assert hand.claim() == []
    assert tables.outcomes(number) == []


def test_a_cancel_that_waits_for_a_settlement_comes_too_late(
    app: Scheduler, tables: Tables, hand: Hand, person: Connection, pool: ThreadPoolExecutor
) -> None:
    number = app.enqueue("work").id
    job, settling = hand.claim_one(), hand.on("settle")
    with settling.transaction():
        assert hand.complete(job, "done") is Settled.OK
        act = pool.submit(cancel, hand, person, number)
        wait_until_blocked(tables.dsn, pid(person), by=pid(settling))
    assert act.result(60) == Ended(others={number: "completed"})
    assert tables.job(number)["result"] == "done"
    assert acts(tables) == []


def test_a_settlement_that_waits_for_a_cancel_is_lost(
    app: Scheduler, tables: Tables, hand: Hand, person: Connection, pool: ThreadPoolExecutor
) -> None:
    number = app.enqueue("work").id
    job, settling = hand.claim_one(), hand.on("settle")
    with person.transaction():
        assert len(cancel(hand, person, number).revoked) == 1
        late = pool.submit(hand.complete, job, "done")
        wait_until_blocked(tables.dsn, pid(settling), by=pid(person))
    assert late.result(60) is Settled.LOST
    row = tables.job(number)
    assert (row["status"], row["result"]) == ("cancelled", None)
    assert tables.outcomes(number) == ["cancelled"]


def test_a_cancel_that_waits_for_a_rescue_ends_the_job_that_came_back(
    app: Scheduler, tables: Tables, hand: Hand, person: Connection, pool: ThreadPoolExecutor
) -> None:
    number = app.enqueue("work").id
    job, rescuing = hand.claim_one(), hand.on("rescue")
    tables.move_clock(LEASE + 1)
    with rescuing.transaction():
        assert [one.id for one in hand.rescue()] == [number]
        act = pool.submit(cancel, hand, person, number)
        wait_until_blocked(tables.dsn, pid(person), by=pid(rescuing))
    assert act.result(60).waiting == [number]
    assert [one.revoked for one in act.result(60).revoked] == [job.token], "its holder may be at work"
    assert hand.claim() == []
    assert hand.complete(job) is Settled.LOST
    assert tables.outcomes(number) == ["expired"]


def test_a_rescue_passes_by_what_is_just_being_cancelled(
    app: Scheduler, tables: Tables, hand: Hand, person: Connection
) -> None:
    number = app.enqueue("work").id
    hand.claim_one()
    tables.move_clock(LEASE + 1)
    with person.transaction():
        cancel(hand, person, number)
        assert hand.rescue() == []
    assert hand.rescue() == []
    assert tables.outcomes(number) == ["cancelled"]


def test_of_two_who_cancel_one_does(
    app: Scheduler, tables: Tables, hand: Hand, person: Connection, pool: ThreadPoolExecutor
) -> None:
    number = app.enqueue("work").id
    hand.claim_one()
    with Database(tables.dsn).connect("console") as other:
        with person.transaction():
            assert len(cancel(hand, person, number).revoked) == 1
            second = pool.submit(cancel, hand, other, number)
            wait_until_blocked(tables.dsn, pid(other), by=pid(person))
        assert second.result(60) == Ended(others={number: "cancelled"})
    assert acts(tables) == ["job cancelled"]
    assert tables.one("select count(*) from {s}.revocation") == 1


# -- replay


def test_of_two_who_replay_one_does(
    app: Scheduler, tables: Tables, hand: Hand, person: Connection, pool: ThreadPoolExecutor
) -> None:
    number = dead(app, hand)
    with Database(tables.dsn).connect("console") as other:
        with person.transaction():
            assert again(hand, person, number).ids == [number]
            second = pool.submit(again, hand, other, number)
            wait_until_blocked(tables.dsn, pid(other), by=pid(person))
        assert second.result(60) == Replayed(skipped={number: "it is ready"})
    assert acts(tables) == ["job replayed"]
    assert len(hand.claim()) == 1


@pytest.mark.parametrize("finish", ["commit", "rollback"])
def test_a_replay_waits_for_whoever_enqueues_its_key_and_never_makes_two_alive(
    app: Scheduler, tables: Tables, hand: Hand, person: Connection, pool: ThreadPoolExecutor, finish: str
) -> None:
    number, keyless = dead(app, hand, key="k"), dead(app, hand)
    with psycopg.connect(tables.dsn) as caller:
        assert app.enqueue("work", key="k", connection=caller).created
        act = pool.submit(again, hand, person, number, keyless)
        wait_until_blocked(tables.dsn, pid(person), by=caller.info.backend_pid)
        getattr(caller, finish)()
        done = act.result(60)
    if finish == "commit":
        assert done.ids == [keyless], "the others of the batch are replayed all the same"
        assert "a job with its key is alive" in done.skipped[number]
    else:
        assert done == Replayed([number, keyless])
    alive = tables.one("select count(*) from {s}.job where key = 'k' and status = 'ready'")
    assert alive == 1


@pytest.fixture
def pruner(tables: Tables) -> Iterator[Pruner]:
    link = Link(Database(tables.dsn), "prune")
    yield Pruner(link, Statements(tables.schema), Retention(dead=timedelta(0)))
    link.close()


def test_the_pruner_passes_by_what_is_just_being_replayed(
    app: Scheduler, tables: Tables, hand: Hand, person: Connection, pruner: Pruner
) -> None:
    number, other = dead(app, hand), dead(app, hand)
    with person.transaction():
        again(hand, person, number)
        pruner.run_once()
        assert [job["id"] for job in tables.jobs()] == [number], f"{other} went"
    assert tables.job(number)["status"] == "ready"
    assert tables.outcomes(number) == ["dead"], "its story is whole"


def test_a_replay_that_waits_for_the_pruner_finds_nothing_to_replay(
    app: Scheduler, tables: Tables, hand: Hand, person: Connection, pruner: Pruner, pool: ThreadPoolExecutor
) -> None:
    number = dead(app, hand)
    with psycopg.connect(tables.dsn) as door:
        # The pruner has deleted the job and is stopped before it commits: at its look at the next table.
        door.execute(f"lock table {tables.schema}.occurrence in access exclusive mode".encode())
        run = pool.submit(pruner.run_once)
        stopped = tables.wait_for_session("prune", waiting=True)
        act = pool.submit(again, hand, person, number)
        wait_until_blocked(tables.dsn, pid(person), by=stopped)
        door.rollback()
        run.result(60)
        assert act.result(60) == Replayed(skipped={number: "there is no such job"})
    assert tables.jobs() == tables.attempts(number) == []
    assert acts(tables) == []


# -- the run-time limit


@pytest.fixture
def limiter(app: Scheduler, tables: Tables) -> Iterator[Limiter]:
    link = Link(Database(tables.dsn), "limit")
    yield Limiter(link, Statements(tables.schema), "limiter", app._tasks, Work(), print)
    link.close()


def test_the_limit_passes_by_what_is_just_being_completed(
    app: Scheduler, tables: Tables, hand: Hand, limiter: Limiter
) -> None:
    number = app.enqueue("work").id
    job, settling = hand.claim_one(), hand.on("settle")
    tables.move_clock(LIMIT + 1)
    with settling.transaction():
        assert hand.complete(job) is Settled.OK
        limiter.run_once()
    limiter.run_once()
    assert tables.outcomes(number) == ["completed"]


def test_a_completion_that_waits_for_the_limit_is_lost(
    app: Scheduler, tables: Tables, hand: Hand, limiter: Limiter, pool: ThreadPoolExecutor
) -> None:
    number = app.enqueue("work").id
    job, settling = hand.claim_one(), hand.on("settle")
    tables.move_clock(LIMIT + 1)
    with psycopg.connect(tables.dsn) as door:
        # It has taken the job away and is stopped before it commits: at its note of that.
        door.execute(f"lock table {tables.schema}.revocation in access exclusive mode".encode())
        run = pool.submit(limiter.run_once)
        stopped = tables.wait_for_session("limit", waiting=True)
        late = pool.submit(hand.complete, job)
        wait_until_blocked(tables.dsn, pid(settling), by=stopped)
        door.rollback()
        run.result(60)
        assert late.result(60) is Settled.LOST
    assert tables.outcomes(number) == ["overran"]
    assert tables.job(number)["status"] == "ready"


def test_a_renewal_does_not_keep_what_is_over_its_limit(
    app: Scheduler, tables: Tables, hand: Hand, limiter: Limiter
) -> None:
    app.enqueue("work")
    job = hand.claim_one()
    tables.move_clock(LIMIT + 1)
    assert hand.renew(job) == {job.token: True}
    limiter.run_once()
    assert hand.renew(job) == {}
    assert hand.settle(completed(job)) == [Settled.LOST]
