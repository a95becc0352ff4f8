"""Dead letters: they keep every attempt's error, and a person replays them, one or many."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support.jobs import Hand, Tables, completed, ended, installed_beside

from fencing import fenced_write
from scheduler import Bury, Job, Replayed, Retry, RetryIn, Scheduler
from scheduler._audit import show_job, story
from scheduler._connect import Database
from scheduler._sql import Statements
from scheduler.console.embedded import Postgres
from scheduler.errors import JobStateError, UnknownJobError


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_replay")
    postgres.drop_database("scheduler_replay")


@pytest.fixture
def ground(database: str) -> Iterator[tuple[Scheduler, Tables]]:
    with installed_beside(database) as (app, tables):
        app.task("work")(print)
        app.task("other")(print)
        yield app, tables


@pytest.fixture
def hand(tables: Tables) -> Iterator[Hand]:
    one = Hand(tables.dsn, {"work": 30, "other": 30}, schema=tables.schema)
    yield one
    one.close()


def die(hand: Hand, error: str = "boom", reason: str = "no use") -> int:
    job = hand.claim_one()
    hand.settle(ended(job, "dead", "dead", error=error, reason=reason))
    return job.id


def test_a_replay_keeps_the_key_counts_attempts_anew_and_lets_tokens_rise(
    app: Scheduler, tables: Tables, hand: Hand
) -> None:
    number = app.enqueue("work", {"n": 1}, key="k").id
    first = hand.claim_one()
    hand.settle(ended(first, "ready", "retried", error="one", delay=0.0))
    second = hand.claim_one()
    hand.settle(ended(second, "dead", "dead", error="two", reason="attempts used up"))
    tables.rows("update {s}.job set yields = 7")
    app.replay(number, reason="fixed the address", actor="ann")
    row = tables.job(number)
    assert (row["status"], row["attempt"], row["yields"], row["key"]) == ("ready", 0, 0, "k")
    assert (row["error"], row["reason"], row["finished_at"]) == (None, None, None)
    third = hand.claim_one()
    assert (third.attempt, third.key, third.args) == (1, "k", {"n": 1})
    assert first.token < second.token < third.token
    hand.complete(third, "done")
    assert [one["error"] for one in tables.attempts(number)] == ["one", "two", None], "every attempt's error is kept"
    (act,) = tables.rows("select * from {s}.act")
    assert (act["kind"], act["subject"], act["actor"], act["reason"]) == (
        "job replayed",
        f"job/{number}",
        "ann",
        "fixed the address",
    )
    assert (act["before"], act["after"]) == ({"status": "dead", "attempt": 2}, {"status": "ready", "attempt": 0})


def test_what_ended_before_it_was_due_runs_now_and_its_queues_workers_are_told(
    app: Scheduler, tables: Tables, hand: Hand
) -> None:
    number = app.enqueue("work", due_at=datetime(2099, 1, 1, tzinfo=UTC)).id
    app.bury(number, reason="not needed", actor="ann")
    with psycopg.connect(tables.dsn, autocommit=True) as listener:
        listener.execute(f'listen "{tables.schema}_due"'.encode())
        app.replay(number, reason="needed after all", actor="ann")
        assert [note.payload for note in listener.notifies(timeout=60, stop_after=1)] == ["default"]
    assert hand.claim_one().id == number


def test_an_effect_under_the_jobs_key_stays_applied_once_over_a_replay(
    app: Scheduler, tables: Tables, database: str
) -> None:
    import sqlalchemy as sa
    from support.sql_doors import sync_url

    from adapters.sql import create_all

    engine = sa.create_engine(sync_url(database))
    create_all(engine)
    tables.rows("create table {s}.mail (n int)")

    @app.task("send", retry=Retry(max_attempts=1))
    def send(job: Job) -> None:
        insert = sa.text(f"insert into {tables.schema}.mail values (1)")
        fenced_write(engine, f"mail/{job.id}", effect=lambda tx: tx.execute(insert) and None, once=job.key)
        if not tables.rows("select 1 from {s}.act"):
            raise OSError("after the effect")

    number = app.enqueue("send", key=f"{tables.schema}-k").id
    app.run_until_idle()
    assert tables.job(number)["status"] == "dead"
    app.replay(number, reason="again", actor="ann")
    app.run_until_idle()
    assert tables.job(number)["status"] == "completed"
    assert tables.one("select count(*) from {s}.mail") == 1
    engine.dispose()


def test_a_replay_that_is_older_than_the_records_of_effects_is_refused(
    app: Scheduler, tables: Tables, database: str
) -> None:
    """It comes with a newer token and the old key; the job knows how old it is."""
    import sqlalchemy as sa
    from support.sql_doors import sync_url

    from adapters.sql import create_all, purge_applied, read_applied

    engine = sa.create_engine(sync_url(database))
    create_all(engine)
    charged: list[int] = []

    @app.task("charge", retry=Retry(max_attempts=1))
    def charge(job: Job) -> object:
        fenced_write(engine, f"account/{job.id}", effect=lambda tx: charged.append(job.id), once=job.key)
        return Bury("the letter could not be printed")

    old = app.enqueue("charge", key=f"{tables.schema}-old").id
    app.run_until_idle()
    assert read_applied(engine, f"{tables.schema}-old").began_at == tables.job(old)["created_at"]
    aged = "set {} = {} - interval '100 days'"
    tables.rows("update {s}.job " + aged.format("created_at", "created_at"))
    with engine.begin() as connection:
        for moment in ("applied_at", "began_at"):
            mine = {"key": f"{tables.schema}-old"}
            connection.execute(sa.text(f"update fencing_applied {aged.format(moment, moment)} where key = :key"), mine)
    assert purge_applied(engine, timedelta(days=90)).removed == 1
    app.replay(old, reason="again", actor="ann")
    young = app.enqueue("charge", key=f"{tables.schema}-young").id
    app.run_until_idle()
    assert charged == [old, young]
    assert tables.job(young)["reason"] == "the letter could not be printed"
    assert "KeyExpiredError: " in tables.attempts(old)[-1]["error"]
    engine.dispose()


def test_only_what_is_dead_or_cancelled_is_replayed(app: Scheduler, tables: Tables, hand: Hand) -> None:
    number = app.enqueue("work").id
    with pytest.raises(JobStateError, match=f"job {number} cannot be replayed: it is ready"):
        app.replay(number, reason="x", actor="ann")
    job = hand.claim_one()
    with pytest.raises(JobStateError, match="it is leased"):
        app.replay(number, reason="x", actor="ann")
    hand.settle(completed(job))
    with pytest.raises(JobStateError, match="it is completed"):
        app.replay(number, reason="x", actor="ann")
    with pytest.raises(UnknownJobError, match="no job 999"):
        app.replay(999, reason="x", actor="ann")
    with pytest.raises(ValueError, match="reason="):
        app.replay(number, reason=" ")
    assert tables.rows("select 1 from {s}.act") == []
    cancelled = app.enqueue("work").id
    app.cancel(cancelled, reason="by mistake", actor="ann")
    app.replay(cancelled, reason="taken back", actor="ann")
    assert hand.claim_one().id == cancelled


def test_a_job_whose_key_is_alive_stays_dead(app: Scheduler, tables: Tables, hand: Hand) -> None:
    old = app.enqueue("work", key="k").id
    die(hand)
    new = app.enqueue("work", key="k").id
    with pytest.raises(JobStateError, match="a job with its key is alive"):
        app.replay(old, reason="x", actor="ann")
    assert tables.job(old)["status"] == "dead"
    hand.complete(hand.claim_one())
    app.replay(old, reason="x", actor="ann")
    assert tables.job(old)["status"] == "ready"
    assert new != old


# -- many


@pytest.fixture
def letters(app: Scheduler, tables: Tables, hand: Hand) -> list[int]:
    """Dead: work/timeout, work/refused, other/timeout, work/timeout in another queue; an hour between each."""
    numbers = []
    slow = Hand(tables.dsn, {"work": 30}, queues=("slow",), schema=tables.schema)
    plan = [("work", "timeout", hand), ("work", "refused", hand), ("other", "timeout", hand), ("work", "timeout", slow)]
    for hour, (task, error, one) in enumerate(plan):
        tables.move_clock(3600 * hour)
        app.enqueue(task, queue="slow" if one is slow else "default")
        numbers.append(die(one, error))
    slow.close()
    return numbers


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"task": "work"}, [0, 1, 3]),
        ({"queue": "slow"}, [3]),
        ({"error": "timeout"}, [0, 2, 3]),
        ({"error": "no use"}, [0, 1, 2, 3]),
        ({"error": "TIMEOUT"}, []),
        ({"task": "work", "error": "timeout", "queue": "default"}, [0]),
        ({"limit": 2}, [0, 1]),
        ({"since": datetime.now(UTC) + timedelta(hours=1.5)}, [2, 3]),
    ],
)
def test_a_bulk_replay_takes_those_that_fit_every_condition_and_a_dry_run_changes_nothing(
    app: Scheduler, tables: Tables, letters: list[int], which: dict[str, Any], expected: list[int]
) -> None:
    before = tables.jobs()
    meant = [letters[index] for index in expected]
    assert app.replay_dead(reason="x", actor="ann", dry_run=True, **which) == Replayed(meant)
    assert tables.jobs() == before
    assert tables.rows("select 1 from {s}.act") == []
    assert app.replay_dead(reason="x", actor="ann", **which) == Replayed(meant)
    assert [job["id"] for job in tables.jobs() if job["status"] == "ready"] == meant
    assert [act["subject"] for act in tables.rows("select * from {s}.act order by id")] == [f"job/{n}" for n in meant]


def test_what_died_at_that_very_moment_died_since(app: Scheduler, tables: Tables, letters: list[int]) -> None:
    died = tables.job(letters[1])["finished_at"]
    assert app.replay_dead(reason="x", since=died, dry_run=True).ids == letters[1:]
    assert app.replay_dead(reason="x", since=died + timedelta(microseconds=1), dry_run=True).ids == letters[2:]


def test_a_bulk_replay_goes_on_over_many_batches_and_skips_what_cannot_be(
    app: Scheduler, tables: Tables, hand: Hand
) -> None:
    app.enqueue_many("work", range(230))
    jobs = [job for _ in range(3) for job in hand.claim()]
    hand.settle(*(ended(job, "dead", "dead", error="x", reason="y") for job in jobs))
    tables.rows("update {s}.job set key = 'same' where args in ('5', '7', '150')")
    for limit in (99, 100, 101, 200, 201, 500):
        assert len(app.replay_dead(reason="x", actor="ann", dry_run=True, limit=limit).ids) == min(limit, 230)
    done = app.replay_dead(reason="x", actor="ann")
    assert len(done.ids) == 228
    assert sorted(tables.job(number)["args"] for number in done.skipped) == [7, 150]
    assert set(done.skipped.values()) == {"a job with its key is alive: two would run side by side"}
    assert tables.states() == {"ready": 228, "dead": 2}
    assert tables.one("select count(*) from {s}.act") == 228


def test_named_ones_that_are_not_dead_are_said_to_be_so(app: Scheduler, tables: Tables, letters: list[int]) -> None:
    alive = app.enqueue("work").id
    done = app.replay_dead(ids=[letters[0], alive], reason="x", actor="ann")
    assert done.ids == [letters[0]]
    assert done.skipped == {alive: "it is not dead, or does not fit the other conditions"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"since": datetime(2026, 1, 1)},
        {"since": "today"},
        {"error": ""},
        {"limit": 0},
        {"task": ""},
        {"ids": ["1"]},
        {"ids": [0]},
    ],
)
def test_a_condition_that_means_nothing_is_refused(app: Scheduler, wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        app.replay_dead(reason="x", actor="ann", **wrong)


# -- results and the story


def test_a_result_is_read_when_the_job_is_completed(app: Scheduler, tables: Tables) -> None:
    app.task("add")(lambda job: {"sum": sum(job.args)})
    app.task("bury")(lambda job: Bury("no use"))
    number = app.enqueue("add", [1, 2]).id
    with pytest.raises(TimeoutError, match=f"job {number} is ready"):
        app.result(number)
    assert app.job(number).status == "ready"
    buried = app.enqueue("bury").id
    app.run_until_idle()
    assert app.result(number) == {"sum": 3}
    record = app.job(number)
    assert (record.status, record.attempt, record.result) == ("completed", 1, {"sum": 3})
    with pytest.raises(JobStateError, match=r"job \d+ has no result: it is dead \(no use\)"):
        app.result(buried, wait=10)
    with pytest.raises(UnknownJobError):
        app.job(999)


def test_a_result_that_is_too_large_fails_the_attempt_and_says_so(app: Scheduler, tables: Tables) -> None:
    app.task("large", retry=Retry(max_attempts=1))(lambda job: "x" * (1 << 20))
    number = app.enqueue("large").id
    app.run_until_idle()
    assert "bytes of JSON, at most 1,048,576 are taken" in tables.attempts(number)[0]["error"]


def test_the_story_of_a_job_tells_of_fences_that_are_still_to_be_raised(
    app: Scheduler, tables: Tables, hand: Hand
) -> None:
    number = app.enqueue("work").id
    first = hand.claim_one()
    stranger = Scheduler(tables.dsn, schema=tables.schema)
    stranger.cancel(number, reason="stop", actor="ann")
    stranger.close()

    def last() -> tuple[str, str]:
        with Database(tables.dsn).connect("test") as connection:
            step = [one for one in story(show_job(connection, hand.statements, number) or {}) if "fences" in one.what][
                -1
            ]
        return step.what, step.detail

    assert last() == ("fences not raised yet", f"against token {first.token}: a worker that knows the task will")
    app.run_until_idle()
    assert last() == ("fences raised", f"against token {first.token}")


def test_the_story_of_a_job_is_whole_and_in_order(app: Scheduler, tables: Tables) -> None:
    @app.task("saga", retry=Retry(max_attempts=2, base=0))
    def saga(job: Job) -> Any:
        if not tables.rows("select 1 from {s}.act"):
            return RetryIn(0, "not yet") if job.attempt == 1 else Bury("never")
        return "done"

    number = app.enqueue("saga").id
    app.run_until_idle()
    app.replay(number, reason="now it can", actor="ann")
    app.run_until_idle()
    with Database(tables.dsn).connect("test") as connection:
        job = show_job(connection, Statements(tables.schema), number)
    assert job is not None
    steps = story(job)
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    assert [(step.what, step.detail) for step in steps][1:] == [
        ("attempt 1 claimed", ""),
        ("attempt 1 retried", "not yet"),
        ("attempt 2 claimed", ""),
        ("attempt 2 dead", "never"),
        ("job replayed", "now it can"),
        ("attempt 1 claimed", ""),
        ("attempt 1 completed", ""),
    ]
    assert steps[5].who == "ann"
    tokens = [step.token for step in steps if step.what.endswith("claimed")]
    assert tokens == sorted(tokens, key=lambda token: token or 0)
