"""At most one live lease per exclusive value, at most so many per limited queue, whoever claims at the same moment."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any

import psycopg
import pytest
from support.jobs import Hand, Tables, Working, ended, installed_beside
from support.waiting import eventually

from scheduler import Job, Scheduler, _claimer
from scheduler._claimer import CONTENDED, PASS_ON, Claimer
from scheduler._claiming import Claim
from scheduler._connect import Database, Link
from scheduler._gate import Gate
from scheduler._held import Work
from scheduler._sql import Statements
from scheduler._store import Claimed, Settled
from scheduler.console.embedded import Postgres

LEASE = 30.0
TASKS = {"work": LEASE, "other": LEASE}
QUEUES = ["default", "mail"]


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_exclusive")
    postgres.drop_database("scheduler_exclusive")


@pytest.fixture
def ground(database: str) -> Iterator[tuple[Scheduler, Tables]]:
    with installed_beside(database) as (app, tables):
        for name in TASKS:
            app.task(name, lease=LEASE)(print)
        yield app, tables


@pytest.fixture
def app(ground: tuple[Scheduler, Tables]) -> Scheduler:
    return ground[0]


@pytest.fixture
def tables(ground: tuple[Scheduler, Tables]) -> Tables:
    return ground[1]


@pytest.fixture
def make(tables: Tables) -> Iterator[Callable[..., Hand]]:
    made: list[Hand] = []

    def one(owner: str = "hand", tasks: dict[str, float] = TASKS) -> Hand:
        made.append(Hand(tables.dsn, tasks, owner=owner, queues=QUEUES, schema=tables.schema))
        return made[-1]

    yield one
    for hand in made:
        hand.close()


def limited(app: Scheduler, limit: int | None) -> list[str]:
    app.queue("mail", limit=limit)
    return app.sync_queues()


def numbers(jobs: list[Claimed]) -> list[Any]:
    return [job.args for job in jobs]


# -- one value


def test_of_one_value_one_job_is_leased_and_the_others_wait_for_its_end_in_order(
    app: Scheduler, make: Callable[..., Hand]
) -> None:
    app.enqueue_many("work", range(3), exclusive="customer/7")
    hand, other = make(), make("other")
    for number in range(3):
        (job,) = hand.claim()
        assert job.args == number
        assert other.claim() == []
        hand.complete(job)
    assert hand.claim() == []


def test_a_value_is_one_over_tasks_and_queues_and_another_value_is_another(
    app: Scheduler, make: Callable[..., Hand]
) -> None:
    app.enqueue("work", 1, exclusive="a")
    app.enqueue("other", 2, exclusive="a", queue="mail")
    app.enqueue("work", 3, exclusive="b")
    app.enqueue("work", 4)
    assert numbers(make().claim()) == [1, 3, 4]


def test_exclusive_jobs_take_their_place_among_the_others_by_priority_and_time(
    app: Scheduler, make: Callable[..., Hand]
) -> None:
    app.enqueue("work", 1)
    app.enqueue("work", 2, exclusive="a")
    app.enqueue("work", 3, priority=5)
    app.enqueue("work", 4, exclusive="b", priority=5)
    app.enqueue("work", 5, exclusive="a", priority=9)
    jobs = make().claim()
    assert numbers(jobs) == [5, 3, 4, 1]
    assert [job.token for job in jobs] == sorted(job.token for job in jobs)


@pytest.mark.parametrize("outcome", ["retried", "returned", "dead"])
def test_however_a_job_ends_its_value_is_free(app: Scheduler, make: Callable[..., Hand], outcome: Any) -> None:
    app.enqueue_many("work", range(2), exclusive="a")
    hand = make()
    (first,) = hand.claim()
    state = "dead" if outcome == "dead" else "ready"
    hand.settle(ended(first, state, outcome, delay=60.0 if outcome == "retried" else None))
    assert numbers(hand.claim()) == ([0] if outcome == "returned" else [1])


def test_a_holder_that_crashed_frees_its_value_when_its_lease_is_rescued_and_not_before(
    app: Scheduler, tables: Tables, make: Callable[..., Hand]
) -> None:
    app.enqueue_many("work", range(2), exclusive="a")
    crashed, other = make("crashed"), make("other")
    (first,) = crashed.claim()
    tables.move_clock(LEASE + 1)
    assert other.claim() == []
    assert [one.id for one in other.rescue()] == [first.id]
    (again,) = other.claim()
    assert again.id == first.id
    assert again.token > first.token


def test_jobs_that_have_to_wait_hide_nothing_however_many_they_are(app: Scheduler, make: Callable[..., Hand]) -> None:
    """More values, all of them busy, than one claim looks at; behind them one that is free."""
    hand = make()
    app.enqueue_many("work", [f"{n:04}" for n in range(450)], exclusive=lambda args: args)
    held = [job for _ in range(6) for job in hand.claim()]
    assert len(held) == 450
    app.enqueue_many("work", [f"{n:04}" for n in range(450)], exclusive=lambda args: args)
    app.enqueue("work", "free", exclusive="zzz")
    other = make("other")
    for _ in range(3):
        found = other.claim()
        if found:
            break
        assert other.looks_again, "it says that it has not seen everything"
    assert numbers(found) == ["free"]


# -- one queue


def test_of_a_limited_queue_only_so_many_are_leased(app: Scheduler, make: Callable[..., Hand]) -> None:
    assert limited(app, 3) == ["mail"]
    app.enqueue_many("work", range(4), queue="mail")
    app.enqueue_many("other", range(4, 8), queue="mail", priority=1)
    app.enqueue_many("work", [10, 11])
    hand, other = make(), make("other")
    jobs = hand.claim()
    assert numbers(jobs) == [4, 5, 6, 10, 11]
    assert other.claim() == []
    hand.complete(jobs[0])
    assert numbers(other.claim()) == [7]


def test_what_nobody_can_take_back_does_not_fill_its_queue_for_ever(
    app: Scheduler, tables: Tables, make: Callable[..., Hand]
) -> None:
    """The worker crashed, and no other one knows the task: a deploy renamed it."""
    limited(app, 1)
    app.enqueue("work", "orphan", queue="mail")
    crashed = make("crashed")
    orphan = crashed.claim_one()
    app.enqueue("other", "waits", queue="mail")
    heir = make("heir", {"other": LEASE})
    tables.move_clock(LEASE + 20)  # its holder may only be late with its renewal
    assert heir.rescue() == []
    assert heir.claim() == []
    tables.move_clock(LEASE + 55)
    assert crashed.renew(orphan) == {}, "a renewal that is under way when the place is given away would come too late"
    assert heir.claim() == []
    tables.move_clock(LEASE + 61)
    assert heir.rescue() == []
    assert numbers(heir.claim()) == ["waits"]
    app.enqueue("other", "next", queue="mail")
    assert heir.claim() == []
    assert crashed.renew(orphan) == {}, "it was only paused, and its place was given away"
    assert crashed.complete(orphan) is Settled.OK


def test_a_limit_and_a_value_hold_both(app: Scheduler, make: Callable[..., Hand]) -> None:
    limited(app, 2)
    for number, value in enumerate(["a", "a", "b", "c", None]):
        app.enqueue("work", number, queue="mail", exclusive=value)
    hand = make()
    jobs = hand.claim()
    assert numbers(jobs) == [0, 2]
    hand.complete(jobs[0])
    assert numbers(hand.claim()) == [1]


def test_a_job_that_waits_for_its_queue_does_not_hold_up_its_value_elsewhere(
    app: Scheduler, make: Callable[..., Hand]
) -> None:
    limited(app, 1)
    hand = make()
    app.enqueue("work", "runs", queue="mail")
    assert numbers(hand.claim()) == ["runs"]
    app.enqueue("work", "waits", queue="mail", exclusive="a", priority=1)
    app.enqueue("work", "next", exclusive="a")
    assert numbers(hand.claim()) == ["next"]
    assert hand.claim() == []


def test_a_limit_is_changed_and_taken_away_while_workers_run_and_each_change_is_in_the_audit(
    app: Scheduler, tables: Tables, make: Callable[..., Hand]
) -> None:
    app.enqueue_many("work", range(6), queue="mail")
    hand = make()
    assert (limited(app, 1), limited(app, 1)) == (["mail"], [])
    assert len(hand.claim()) == 1
    limited(app, 3)
    assert len(hand.claim()) == 2
    limited(app, None)
    assert len(hand.claim()) == 3
    acts = tables.rows("select before, after from {s}.act where subject = 'queue/mail' order by id")
    assert [(act["before"]["limit"], act["after"]["limit"]) for act in acts] == [(None, 1), (1, 3), (3, None)]


def test_the_plain_claim_leaves_both_to_the_guarded_one(app: Scheduler, make: Callable[..., Hand]) -> None:
    limited(app, 1)
    app.enqueue("work", 1, exclusive="a")
    app.enqueue("work", 2, queue="mail")
    app.enqueue("work", 3)
    hand = make()
    assert numbers(hand.claim(guarded=False)) == [3]
    assert numbers(hand.claim()) == [1, 2]


@pytest.mark.parametrize("values", [4, 7, 12, 17], ids="{} values".format)
def test_a_worker_rests_however_many_values_have_to_wait(
    app: Scheduler, tables: Tables, monkeypatch: pytest.MonkeyPatch, values: int
) -> None:
    """One claim looks at some of them, and the next one goes on there; after the last one the worker rests."""
    monkeypatch.setattr(Claim, "VALUES", 5)
    monkeypatch.setattr(_claimer, "lease_clock", lambda: 0.0)  # no sweep is due, and none was slow
    later = datetime.now(UTC) + timedelta(days=1)
    app.enqueue_many("work", range(values), due_at=later, exclusive="v{:02}".format)
    statements, work, link = Statements(tables.schema), Work(), Link(Database(tables.dsn), "claim")
    claim = Claim(statements, "me", ["default"], {"work": LEASE})
    claimer = Claimer(link, claim, work, app._tasks, "me", 1, 1, 0.5, Gate(statements, "me", 60.0))
    claimer.eager = True  # a sweep that a busy machine made slow would be put off

    def runs_until_it_rests() -> int:
        return next(number for number in range(1, 20) if (claimer.run_once() or 0) > CONTENDED)

    whole = values // 5 + 1
    assert runs_until_it_rests() == whole
    assert claimer.dry
    claimer.sweep_soon()
    assert runs_until_it_rests() == whole
    if whole > 1:
        claimer.run_once()
        work.settled += 1  # a job of a value that was passed already, perhaps
        assert runs_until_it_rests() == whole - 1
        assert not claimer.dry
        assert runs_until_it_rests() == whole
        assert claimer.dry
    link.close()


@pytest.mark.parametrize("exclusive", ["value", None], ids=["exclusive jobs", "ordinary jobs"])
def test_a_worker_without_room_wakes_the_others_for_what_it_freed(
    app: Scheduler, tables: Tables, monkeypatch: pytest.MonkeyPatch, exclusive: str | None
) -> None:
    now = [0.0]
    monkeypatch.setattr(_claimer, "lease_clock", lambda: now[0])
    app.enqueue_many("work", range(2), exclusive=exclusive)
    statements, work, link = Statements(tables.schema), Work(), Link(Database(tables.dsn), "claim")
    claim = Claim(statements, "me", ["default"], {"work": LEASE})
    claimer = Claimer(link, claim, work, app._tasks, "me", 1, 1, 60.0, Gate(statements, "me", 60.0))
    claimer.run_once()
    assert len(work.held) == 1
    with psycopg.connect(tables.dsn, autocommit=True) as other:
        other.execute(f'listen "{statements.channel}"')

        def told() -> list[str]:
            # They come in the order of the commits.
            tables.rows("select pg_notify(%(channel)s, 'the end')", channel=statements.channel)
            heard: list[str] = []
            for note in other.notifies(timeout=60):
                if note.payload == "the end":
                    break
                heard.append(note.payload)
            return heard

        woken = ["default"] if exclusive else []
        claimer.run_once()
        assert told() == [], "nothing has ended"
        work.settled += 1
        claimer.run_once()
        assert told() == woken
        claimer.run_once()
        assert told() == [], "once is enough, and two workers do not wake each other in turn"
        work.settled += 1
        wait = claimer.run_once()
        assert told() == []
        assert wait == pytest.approx(PASS_ON if exclusive else 60.0), "not at once again, and not forgotten"
        now[0] += PASS_ON
        claimer.run_once()
        assert told() == woken
    link.close()


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "2"])
def test_a_limit_is_a_whole_number_from_one(app: Scheduler, limit: Any) -> None:
    with pytest.raises(ValueError, match="queue 'mail': limit="):
        app.queue("mail", limit=limit)


# -- at the same moment


@contextmanager
def one_in_the_middle(tables: Tables, hand: Hand, pool: ThreadPoolExecutor) -> Iterator[Any]:
    """This hand's claim has its snapshot and waits, until the block is left; yields its future."""
    tables.set_clock(
        "clock_timestamp() where current_setting('application_name') <> 'slow'"
        " or pg_advisory_xact_lock_shared(7)::text = ''"
    )
    hand.on("claim").execute("set application_name = 'slow'", prepare=False)
    with psycopg.connect(tables.dsn) as gate:
        gate.execute("select pg_advisory_xact_lock(7)")
        hand._claim.waiting = True  # or it would stand in the look before the claim, as a sweep would
        claiming = pool.submit(hand.claim, sweep=False)
        eventually(
            lambda: tables.rows(
                "select pid from pg_stat_activity where application_name = 'slow' and wait_event_type = 'Lock'"
            ),
            "the claim stands in its middle",
        )
        yield claiming


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.mark.parametrize("queue", ["default", "mail"], ids=["a value", "a limit"])
@pytest.mark.parametrize("then", ["holds it", "completes it"])
def test_a_claim_whose_snapshot_is_older_than_another_claim_passes(
    app: Scheduler, tables: Tables, make: Callable[..., Hand], pool: ThreadPoolExecutor, queue: str, then: str
) -> None:
    """What an advisory lock inside the claim's statement does not see: the count is as old as the statement."""
    limited(app, 1)
    app.enqueue_many("work", range(3), queue=queue, exclusive="a" if queue == "default" else None)
    slow, quick = make("slow"), make("quick")
    quick.on("claim")
    with one_in_the_middle(tables, slow, pool) as claiming:
        (job,) = quick.claim()
        if then == "completes it":
            quick.complete(job)
    assert claiming.result(60) == []
    assert slow.looks_again
    assert len(slow.claim()) == (1 if then == "completes it" else 0)


def test_a_claim_that_meets_another_one_under_way_passes_and_takes_the_rest(
    app: Scheduler, make: Callable[..., Hand]
) -> None:
    app.enqueue_many("work", range(3), exclusive="a")
    hand, other = make(), make("other")
    with hand.on("claim").transaction():
        assert numbers(hand.claim()) == [0]
        app.enqueue("work", 9)
        assert numbers(other.claim()) == [9]
        assert other.looks_again
    assert other.claim() == []
    assert not other.looks_again


def test_many_claimers_of_one_value_and_one_limited_queue_never_hold_too_many(
    app: Scheduler, tables: Tables, make: Callable[..., Hand], pool: ThreadPoolExecutor
) -> None:
    limited(app, 3)
    app.enqueue_many("work", range(40), exclusive="a")
    app.enqueue_many("work", range(80), queue="mail", exclusive=lambda n: f"b{n % 2}" if n % 4 == 0 else None)
    app.enqueue_many("work", range(40))
    hands = [make(f"hand {number}") for number in range(6)]
    begin = Barrier(len(hands))

    def work(hand: Hand) -> None:
        begin.wait()
        while tables_left(hand):
            for job in hand.claim(3):
                hand.complete(job)

    def tables_left(hand: Hand) -> bool:
        rows = hand.on("look").execute(f"select exists (select from {tables.schema}.job where status = 'ready')")
        return bool(rows.fetchall()[0][0])

    for done in [pool.submit(work, hand) for hand in hands]:
        done.result(60)
    assert tables.states() == {"completed": 160}
    # A claim's time lies after its snapshot, an end's before its commit: leases that did not overlap do not here.
    most = tables.rows(
        """
        with held as (
            select coalesce(j.exclusive, 'queue ' || j.queue) as what, a.claimed_at, a.ended_at
            from {s}.attempt a join {s}.job j on j.id = a.job_id
            where j.exclusive is not null
            union all
            select 'queue mail', a.claimed_at, a.ended_at
            from {s}.attempt a join {s}.job j on j.id = a.job_id where j.queue = 'mail'
        )
        select h.what, max((select count(*) from held o
            where o.what = h.what and o.claimed_at <= h.claimed_at and o.ended_at > h.claimed_at)) as most
        from held h group by h.what order by h.what
        """
    )
    found = {row["what"]: row["most"] for row in most}
    assert found.pop("queue mail") <= 3  # how many met is the machine's to say
    assert found == {"a": 1, "b0": 1}


def test_the_index_stands_behind_it(app: Scheduler, tables: Tables) -> None:
    app.enqueue_many("work", range(2), exclusive="a")
    with pytest.raises(psycopg.errors.UniqueViolation):
        tables.rows("update {s}.job set status = 'leased'")


# -- a whole worker


def test_a_worker_runs_exclusive_and_limited_jobs_beside_the_others(ground: tuple[Scheduler, Tables]) -> None:
    app, tables = ground
    running: list[str] = []
    met: list[list[str]] = []

    @app.task("note")
    def note(job: Job) -> None:
        running.append(job.args)
        met.append(list(running))
        running.remove(job.args)

    app.queue("mail", limit=1)
    with Working(app, queues=QUEUES, concurrency=4):
        app.enqueue_many("note", ["value"] * 20, exclusive="a")
        app.enqueue_many("note", ["mail"] * 20, queue="mail")
        app.enqueue_many("note", ["plain"] * 20)
        eventually(lambda: tables.states() == {"completed": 60}, "everything is done")
    assert max(one.count("value") for one in met) == 1
    assert max(one.count("mail") for one in met) == 1
