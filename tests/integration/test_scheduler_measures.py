"""What is measured on a real server: lag, retries, refusals, stuck jobs, workers; and who is told of it."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.jobs import Hand, Tables, Working, completed, installed_beside
from support.waiting import eventually

from fencing.errors import StaleTokenError
from scheduler import Bury, Job, LagEvent, Retry, Scheduler, _measurer
from scheduler._measures import KNOWN_FROM
from scheduler.console.embedded import Postgres


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_measures")
    postgres.drop_database("scheduler_measures")


@pytest.fixture
def ground(database: str) -> Iterator[tuple[Scheduler, Tables]]:
    with installed_beside(database) as both:
        yield both


@pytest.fixture
def app(ground: tuple[Scheduler, Tables]) -> Scheduler:
    return ground[0]


@pytest.fixture
def tables(ground: tuple[Scheduler, Tables]) -> Tables:
    return ground[1]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers measure ten times a second."""
    monkeypatch.setattr("scheduler._worker.TICK", 0.1)


def test_lag_throughput_and_outcomes_are_measured_by_queue_and_task(app: Scheduler) -> None:
    long_ago = datetime.now(UTC) - timedelta(seconds=60)

    @app.task("fails", retry=Retry(max_attempts=2, base=0))
    def fails(job: Job) -> None:
        raise OSError("no")

    app.task("work")(lambda job: None)
    app.task("bury")(lambda job: Bury("never"))
    app.enqueue_many("work", range(98))
    app.enqueue_many("work", range(2), due_at=long_ago)
    app.enqueue("fails", queue="mail")
    app.enqueue("bury", queue="mail")
    app.run_until_idle(["default", "mail"])
    app.run_until_idle(["default", "mail"])  # a second worker of this process adds to the first's measures
    measures = app.measure()
    work, mail = measures.queue("default"), measures.queue("mail")
    assert work is not None
    assert mail is not None
    assert (work.claimed, work.outcomes) == (100, {"completed": 100})
    assert work.lag.count == 100
    assert work.lag.p50 is not None
    assert work.lag.p50 < 30
    assert work.lag.p99 is not None
    assert work.lag.longest is not None
    assert 50 <= work.lag.p99 <= work.lag.longest
    assert work.lag.longest >= 60
    assert work.per_second == pytest.approx(100 / measures.window)
    assert 300 <= measures.window <= 360
    assert mail.outcomes == {"retried": 1, "dead": 2}
    assert (mail.claimed, mail.dead) == (3, 2)
    assert [(one.task, one.queue, one.run.count) for one in measures.tasks] == [
        ("work", "default", 100),
        ("bury", "mail", 1),
        ("fails", "mail", 2),
    ]
    assert measures.workers == (), "a worker that has drained is no longer there"


def test_due_jobs_are_found_in_every_range_and_those_for_later_are_not_counted(app: Scheduler, tables: Tables) -> None:
    for queue, task, priority, seconds in (
        ("a", "one", 0, -10),
        ("a", "one", 5, -50),
        ("a", "one", 5, -1),
        ("a", "two", -3, -20),
        ("b", "one", 0, 3600),
        ("c", "one", 0, -7),
        ("c", "one", 0, 3600),
    ):
        tables.rows(
            "insert into {s}.job (queue, task, args, priority, due_at, max_attempts, created_at)"
            " values (%(queue)s, %(task)s, '{}', %(priority)s, now() + %(due)s, 5, now())",
            queue=queue,
            task=task,
            priority=priority,
            due=timedelta(seconds=seconds),
        )
    found = {one.queue: (round(one.oldest_due, -1), one.due) for one in app.measure().queues}
    assert found == {"a": (50, 4), "c": (10, 1)}


def test_a_queue_over_its_acceptable_lag_is_told_of_once_and_once_when_it_is_back(
    app: Scheduler, tables: Tables, often: None, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[LagEvent] = []
    app.on(LagEvent)(told.append)
    app.task("work")(lambda job: None)
    app.task("elsewhere")(lambda job: None)
    app.queue("default", acceptable_lag=30)
    app.run_until_idle()
    app.enqueue("work", due_at=datetime.now(UTC) + timedelta(hours=1))
    assert not _queue(app).lag_exceeded
    other = Scheduler(tables.dsn, schema=tables.schema)
    other.task("unknown here")(lambda job: None)
    late = other.enqueue("unknown here", due_at=datetime.now(UTC) - timedelta(seconds=90)).id
    other.close()
    assert _queue(app).lag_exceeded
    with Working(app):
        eventually(lambda: len(told) == 1, "the hook is told")
        tables.rows("update {s}.job set status = 'cancelled' where id = %(id)s", id=late)
        eventually(lambda: len(told) == 2, "the hook is told again")
    assert [(event.queue, event.acceptable, event.exceeded) for event in told] == [
        ("default", 30, True),
        ("default", 30, False),
    ]
    assert told[0].lag > 89
    assert "over the acceptable lag of 30 s" in caplog.text
    assert not _queue(app).lag_exceeded


def _queue(app: Scheduler, name: str = "default") -> Any:
    found = app.measure().queue(name)
    assert found is not None
    return found


def test_a_job_that_renews_far_beyond_its_usual_time_is_stuck_and_one_that_ran_out_is_expired(
    app: Scheduler, tables: Tables
) -> None:
    app.task("short", lease=7200)(lambda job: None)
    app.task("unknown", lease=7200)(lambda job: None)
    app.enqueue_many("short", range(KNOWN_FROM))
    app.run_until_idle()
    hand = Hand(tables.dsn, {"short": 7200.0, "unknown": 7200.0}, schema=tables.schema)
    app.enqueue("short")
    app.enqueue("unknown")
    first, second = hand.claim()
    for job, seconds in ((first, 61), (second, 61)):
        tables.rows(
            "update {s}.job set claimed_at = now() - %(age)s where id = %(id)s",
            id=job.id,
            age=timedelta(seconds=seconds),
        )
    assert [(one.id, one.task, one.owner, one.token) for one in app.measure().stuck] == [
        (first.id, "short", "hand", first.token)
    ]
    tables.rows("update {s}.job set claimed_at = now() - interval '61 minutes'")
    assert {one.id for one in app.measure().stuck} == {first.id, second.id}
    tables.rows("update {s}.job set lease_until = now() - interval '1 second' where id = %(id)s", id=first.id)
    measures = app.measure()
    assert [one.id for one in measures.stuck] == [second.id]
    assert (_queue(app).running, _queue(app).expired) == (1, 1)
    assert hand.settle(completed(second))
    hand.close()


def test_refused_writes_expired_leases_and_lost_settlements_are_counted(app: Scheduler, tables: Tables) -> None:
    go_on, refusals = threading.Event(), ["once"]

    @app.task("work", lease=30, retry=Retry(base=0))
    def work(job: Job) -> None:
        if job.args == "refused" and refusals:
            refusals.clear()
            raise StaleTokenError("a newer one was there", presented=job.token)
        if job.attempt == 1 and job.args == "slow":
            assert go_on.wait(20)

    app.enqueue("work", "refused")
    slow = app.enqueue("work", "slow").id
    with Working(app, concurrency=2):
        tables.wait_for(slow, "leased")
        tables.rows("update {s}.job set lease_until = now() - interval '1 second' where id = %(id)s", id=slow)
        tables.wait_for(slow, "completed")
        go_on.set()
    measured = _queue(app)
    assert (measured.refused, measured.lost) == (1, 1)
    assert measured.outcomes["expired"] == 1
    assert measured.outcomes["completed"] == 2
    assert measured.outcomes["yielded"] == 1


def test_a_worker_tells_that_it_is_there_how_its_clock_stands_and_that_it_listened_again(
    app: Scheduler, tables: Tables, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.task("work")(lambda job: None)
    real = _measurer.time.time
    monkeypatch.setattr(_measurer.time, "time", lambda: real() - 100)
    with Working(app, queues=["default", "mail"], concurrency=3):
        eventually(lambda: [one for one in tables.sessions("listener") if one["query"] == "select 1"], "it listens")
        (pid,) = [one["pid"] for one in tables.sessions("listener")]
        tables.rows("select pg_terminate_backend(%(pid)s)", pid=pid)
        eventually(lambda: any(one.listen_reconnects for one in app.measure().workers), "it listens again")
        (worker,) = app.measure().workers
    assert (worker.queues, worker.concurrency, worker.running) == (("default", "mail"), 3, 0)
    assert worker.silent < 60
    assert 99 < worker.clock_skew < 101
    assert app.measure().workers == ()


def test_measures_are_forgotten_after_an_hour_and_so_are_workers_that_died(app: Scheduler, tables: Tables) -> None:
    app.task("work")(lambda job: None)
    app.enqueue("work")
    app.run_until_idle()
    tables.rows("update {s}.measure set minute = minute - interval '61 minutes', owner = 'dead'")
    tables.rows("insert into {s}.worker values ('dead', now(), now() - interval '61 minutes', '{}', 1, 0, 0, 0)")
    assert _measured(app) == 0
    app.run_until_idle()
    assert tables.rows("select 1 from {s}.measure where owner = 'dead'") == []
    assert tables.rows("select 1 from {s}.worker where owner = 'dead'") == []


def _measured(app: Scheduler) -> int:
    return sum(one.claimed for one in app.measure(3600).queues)


def test_a_write_that_is_sent_again_counts_nothing_twice(app: Scheduler, tables: Tables) -> None:
    app.task("work")(lambda job: None)
    app.enqueue("work")
    app.run_until_idle()
    for _ in range(3):  # each writes the minute's sums again
        app.run_until_idle()
    assert _measured(app) == 1


@pytest.mark.parametrize("window", [0, 59.9, 3601, None, "300"])
def test_a_window_is_a_minute_to_an_hour(app: Scheduler, window: Any) -> None:
    with pytest.raises(ValueError, match="60 to 3600"):
        app.measure(window)


@pytest.mark.parametrize("lag", [0, -1, float("inf"), "5"])
def test_an_acceptable_lag_is_a_number_above_zero(app: Scheduler, lag: Any) -> None:
    with pytest.raises(ValueError, match="queue 'mail'"):
        app.queue("mail", acceptable_lag=lag)
