"""What is measured on a real server: lag, retries, refusals, stuck jobs, workers; and who is told of it."""

import re
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.jobs import Hand, Tables, Working, completed, installed_beside
from support.prometheus import scrape
from support.waiting import eventually

from fencing.errors import StaleTokenError
from scheduler import (
    Bury,
    ClaimEvent,
    EnqueueEvent,
    Event,
    Job,
    JobEvent,
    LagEvent,
    LoseEvent,
    RescueEvent,
    Retry,
    Scheduler,
    SettleEvent,
    _measurer,
    _prometheus,
)
from scheduler._measures import KNOWN_FROM
from scheduler.console.embedded import Postgres
from scheduler.errors import DatabaseUnavailableError


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_measures")
    postgres.drop_database("scheduler_measures")


@pytest.fixture
def ground(database: str) -> Iterator[tuple[Scheduler, Tables]]:
    with installed_beside(database) as both:
        yield both


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
    tables.set_clock("timestamptz '2026-01-01 12:00 UTC'")
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
            " values (%(queue)s, %(task)s, '{}', %(priority)s, {s}.clock() + %(due)s, 5, now())",
            queue=queue,
            task=task,
            priority=priority,
            due=timedelta(seconds=seconds),
        )
    for queue, value, priority, seconds in (
        ("b", "x", 9, -5),
        ("b", "x", 1, -80),
        ("b", "y", 0, 3600),
        ("d", "x", 0, -20),
    ):
        tables.rows(
            "insert into {s}.job (queue, task, args, priority, due_at, max_attempts, created_at, exclusive)"
            " values (%(queue)s, 'one', '{}', %(priority)s, {s}.clock() + %(due)s, 5, now(), %(value)s)",
            queue=queue,
            value=value,
            priority=priority,
            due=timedelta(seconds=seconds),
        )
    found = {one.queue: (one.oldest_due, one.due) for one in app.measure().queues}
    assert found == {"a": (50, 4), "b": (80, 2), "c": (7, 1), "d": (20, 1)}


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
        for _ in range(3):
            seen = tables.one("select seen_at from {s}.worker")
            eventually(lambda seen=seen: tables.one("select seen_at from {s}.worker") > seen, "it looks again")
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
            assert go_on.wait(60)

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


# -- hooks and logs


def test_hooks_are_told_the_story_of_a_job_by_the_verbs_of_the_services(app: Scheduler, tables: Tables) -> None:
    told: list[Event] = []
    app.on(Event)(told.append)

    @app.task("work", lease=30, retry=Retry(max_attempts=2, base=0))
    def work(job: Job) -> None:
        if job.attempt == 1:
            raise OSError("not yet")

    number = app.enqueue("work", queue="mail").id
    app.enqueue_many("work", range(2))
    app.run_until_idle(["mail"])
    tables.rows("update {s}.job set queue = 'mail' where queue = 'default'")
    hand = Hand(tables.dsn, {"work": 30.0}, queues=["mail"], schema=tables.schema)
    gone = hand.claim_one()
    hand.close()
    tables.rows("update {s}.job set lease_until = now() - interval '1 second' where id = %(id)s", id=gone.id)
    app.run_until_idle(["mail"])
    names = [type(event).__name__.removesuffix("Event") for event in told if getattr(event, "job", None) == number]
    assert names == ["Enqueue", "Claim", "Start", "Settle", "Claim", "Start", "Settle"]
    assert [(one.outcome, one.error) for one in told if isinstance(one, SettleEvent) and one.job == number] == [
        ("retried", "OSError: not yet"),
        ("completed", ""),
    ]
    assert [(one.count, one.job) for one in told if isinstance(one, EnqueueEvent)] == [(1, number), (2, None)]
    (rescue,) = [one for one in told if isinstance(one, RescueEvent)]
    assert (rescue.job, rescue.token.value, rescue.owner, rescue.state) == (gone.id, gone.token, "hand", "ready")
    first = next(one for one in told if isinstance(one, ClaimEvent))
    attempt = tables.attempts(number)[0]
    assert (first.token.value, first.owner, first.attempt) == (attempt["token"], attempt["owner"], 1)
    assert first.lag >= 0


def test_hooks_that_raise_or_block_harm_no_job(app: Scheduler, tables: Tables) -> None:
    inside, go_on = threading.Event(), threading.Event()

    @app.on(JobEvent)
    def bad(event: JobEvent) -> None:
        inside.set()
        go_on.wait(60)
        raise SystemExit("it would end the process, if it could")

    app.task("work")(lambda job: None)
    app.enqueue_many("work", range(50))
    with Working(app):
        assert inside.wait(60)
        eventually(lambda: tables.states() == {"completed": 50}, "all jobs end while the hook blocks")
        go_on.set()
    assert app._hooks.failures == 150, "claimed, started and settled, each told"


def test_a_hook_is_told_of_a_job_that_is_lost(app: Scheduler, tables: Tables) -> None:
    lost: list[LoseEvent] = []
    app.on(LoseEvent)(lost.append)
    go_on = threading.Event()

    @app.task("work", lease=30, retry=Retry(base=0))
    def work(job: Job) -> None:
        if job.attempt == 1:
            assert go_on.wait(60)

    number = app.enqueue("work").id
    with Working(app, concurrency=2):
        token = tables.wait_for(number, "leased")["token"]
        tables.rows("update {s}.job set lease_until = now() - interval '1 second' where id = %(id)s", id=number)
        tables.wait_for(number, "completed")
        go_on.set()
    assert [(one.job, one.token.value) for one in lost] == [(number, token)]
    assert "refused" in lost[0].why


def test_log_records_carry_the_facts_as_fields(
    app: Scheduler, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task("work", retry=Retry(max_attempts=1))
    def work(job: Job) -> None:
        raise OSError("no")

    number = app.enqueue("work", queue="mail").id
    app.run_until_idle(["mail"])
    (record,) = [one for one in caplog.records if "failed" in one.getMessage()]
    (attempt,) = tables.attempts(number)
    fields = {name: getattr(record, name) for name in ("job", "task", "queue", "attempt", "owner")}
    assert fields == {"job": number, "task": "work", "queue": "mail", "attempt": 1, "owner": attempt["owner"]}
    assert str(record.token).endswith(f"/{attempt['token']}")  # type: ignore[attr-defined]


# -- Prometheus


def test_a_worker_serves_its_counters_and_the_queues_to_prometheus(
    app: Scheduler, tables: Tables, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_prometheus, "KEEP", 0.0)
    monkeypatch.setattr(_prometheus, "refusal_counts", lambda: {("redis", "StaleTokenError"): 2})
    caplog.set_level("INFO", "scheduler")
    app.task("work")(lambda job: None)
    app.task("waits")(lambda job: None)
    app.queue("default", acceptable_lag=5)
    app.enqueue_many("work", range(7))
    app.enqueue("waits", queue="elsewhere", due_at=datetime.now(UTC) - timedelta(seconds=100))
    with Working(app, metrics_port=0):
        ports = eventually(lambda: re.findall(r"http://127.0.0.1:(\d+)/metrics", caplog.text), "it says where")
        port, ended = int(ports[0]), "fencing_attempts_ended_total[completed][default][work]"
        eventually(lambda: scrape(port).get(ended) == 7, "the jobs have ended")
        found = scrape(port)
        monkeypatch.setattr("scheduler._look_face.measure", _refuse)
        without = scrape(port)
    assert found["fencing_jobs_claimed_total[default][work]"] == 7
    assert found["fencing_job_lag_seconds_count[default][work]"] == 7
    assert found["fencing_job_run_seconds_bucket[+Inf][default][work]"] == 7
    assert found["fencing_queue_acceptable_lag_seconds[default]"] == 5
    assert found["fencing_queue_lag_exceeded[default]"] == 0
    assert found["fencing_queue_due_jobs[elsewhere]"] == 1
    assert found["fencing_queue_oldest_due_seconds[elsewhere]"] >= 99
    assert "fencing_queue_acceptable_lag_seconds[elsewhere]" not in found
    assert found["fencing_refusals_total[redis][StaleTokenError]"] == 2
    assert found["fencing_database_up"] == 1
    assert found["fencing_hook_failures_total"] == 0
    assert without["fencing_database_up"] == 0
    assert without["fencing_jobs_claimed_total[default][work]"] == 7
    assert not [name for name in without if name.startswith("fencing_queue_")], "a stale figure would lie"
    with pytest.raises(OSError, match="refused"):
        scrape(port)


def _refuse(*_: object) -> None:
    raise DatabaseUnavailableError("gone")


def test_a_port_that_is_taken_is_named_and_nothing_starts(app: Scheduler, tables: Tables) -> None:
    app.task("work")(lambda job: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(ValueError, match=f"metrics_port={taken.getsockname()[1]}"):
            app.run_worker(metrics_port=taken.getsockname()[1])
    assert tables.sessions("claim") == []
