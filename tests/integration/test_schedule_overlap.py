"""Overlap on a real server: what becomes of an occurrence that is due while an earlier one is not over."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.jobs import Working, ended
from support.schedules import HOUR, MINUTE, SECOND, Ground, hour, schedules_ground
from support.waiting import eventually

from fencing import fenced_write
from fencing.errors import StaleTokenError
from fencing.testing import MemoryGuard
from scheduler import Job
from scheduler._postgres import live_tokens
from scheduler._store import Settled
from scheduler.console.embedded import Postgres


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("schedule_overlap")
    postgres.drop_database("schedule_overlap")


@pytest.fixture
def ground(database: str) -> Iterator[Ground]:
    with schedules_ground(database) as ground:
        yield ground


def declare(ground: Ground, overlap: Any, **options: Any) -> None:
    app = ground.process()
    app.schedule("hourly", "0 * * * *", tz="UTC", task="send", overlap=overlap, **options)
    app.sync_schedules()


def test_an_occurrence_that_is_alone_runs_when_it_is_due(ground: Ground) -> None:
    declare(ground, "skip")
    ground.step(hour(9) - 4 * SECOND)
    assert ground.tables.jobs() == []
    assert ground.ledger("hourly") == [(hour(9), "waiting")]
    ground.step(hour(9))
    job = ground.hand.claim_one()
    (row,) = ground.tables.occurrences("hourly")
    assert (job.due_at, job.key, row["job_id"], row["state"]) == (hour(9), f"hourly@{row['key']}", job.id, "enqueued")


def test_what_is_due_while_another_runs_is_skipped_and_told(ground: Ground) -> None:
    declare(ground, "skip")
    ground.step(hour(9))
    job = ground.hand.claim_one()
    ground.step(hour(10))
    ground.step(hour(11))
    assert ground.ledger("hourly") == [(hour(9), "enqueued"), (hour(10), "skipped"), (hour(11), "skipped")]
    assert {one["reason"] for one in ground.tables.occurrences("hourly")[1:]} == {
        "an earlier occurrence was still running"
    }
    assert ground.acts("hourly") == ["schedule added", "occurrences skipped", "occurrences skipped"]
    ground.hand.complete(job)
    ground.step(hour(12))
    assert ground.hand.claim_one().due_at == hour(12)


def test_what_was_put_ahead_is_not_decided_on_before_it_is_due(ground: Ground) -> None:
    app = ground.process()
    for name, overlap in (("dropped", "skip"), ("replaced", "cancel_other")):
        app.schedule(name, "0,3 0 9 * * *", tz="UTC", task="send", seconds=True, overlap=overlap)
    app.sync_schedules()
    ground.step(hour(9))
    assert ground.ledger("replaced") == [(hour(9), "enqueued"), (hour(9) + 3 * SECOND, "waiting")]
    assert len(ground.hand.claim()) == 2
    ground.step(hour(9) + SECOND)
    assert ground.ledger("dropped") == [(hour(9), "enqueued"), (hour(9) + 3 * SECOND, "waiting")]
    ground.step(hour(9) + 3 * SECOND)
    assert ground.ledger("dropped")[1] == (hour(9) + 3 * SECOND, "skipped")
    assert ground.ledger("replaced")[1] == (hour(9) + 3 * SECOND, "enqueued")


@pytest.mark.parametrize("outcome", ["retried", "yielded", "returned"])
def test_a_job_that_waits_to_run_again_counts_as_running(ground: Ground, outcome: Any) -> None:
    declare(ground, "skip")
    ground.step(hour(9))
    job = ground.hand.claim_one()
    ground.hand.settle(ended(job, "ready", outcome, delay=5400.0))
    ground.step(hour(10))
    assert ground.ledger("hourly") == [(hour(9), "enqueued"), (hour(10), "skipped")]


def test_a_job_whose_worker_died_counts_as_running(ground: Ground) -> None:
    declare(ground, "skip")
    ground.step(hour(9))
    ground.hand.claim_one()
    ground.step(hour(10) + SECOND)  # its lease is over and nobody has taken it back yet
    assert ground.ledger("hourly") == [(hour(9), "enqueued"), (hour(10), "skipped")]


def test_nothing_is_decided_against_a_job_that_nobody_has_begun(ground: Ground) -> None:
    """No worker was there, for example: nothing overlapped."""
    declare(ground, "skip")
    for number in (9, 10):
        ground.step(hour(number))
    assert ground.ledger("hourly") == [(hour(9), "enqueued"), (hour(10), "waiting")]
    ground.hand.complete(ground.hand.claim_one())
    ground.decide()
    assert ground.hand.claim_one().due_at == hour(10)


def test_one_waits_and_the_rest_is_skipped(ground: Ground) -> None:
    declare(ground, "buffer_one")
    ground.step(hour(9))
    job = ground.hand.claim_one()
    for number in (10, 11, 12):
        ground.step(hour(number))
    assert [state for _, state in ground.ledger("hourly")] == ["enqueued", "waiting", "skipped", "skipped"]
    assert ground.hand.claim() == []
    ground.hand.complete(job)
    ground.decide()
    assert ground.hand.claim_one().due_at == hour(10)
    ground.step(hour(13))
    assert ground.ledger("hourly")[-1] == (hour(13), "waiting")


def test_all_wait_and_run_in_their_order(ground: Ground) -> None:
    declare(ground, "buffer_all")
    ran = []
    ground.step(hour(9))
    for number in (10, 11, 12):
        ground.step(hour(number))
    for _ in range(4):
        (job,) = ground.hand.claim()
        ground.decide()
        assert ground.hand.claim() == [], "never two at once"
        ran.append(job.due_at)
        assert ground.hand.complete(job) is Settled.OK
        ground.decide()
    assert ran == [hour(9), hour(10), hour(11), hour(12)]
    assert ground.hand.claim() == []


def test_the_next_one_cancels_the_one_that_runs_and_has_a_higher_token(ground: Ground) -> None:
    declare(ground, "cancel_other")
    ground.step(hour(9))
    first = ground.hand.claim_one()
    ground.step(hour(10))
    second = ground.hand.claim_one()
    assert second.due_at == hour(10)
    assert ground.hand.renew(first) == {}, "its lease is gone"
    assert ground.hand.complete(first) is Settled.LOST
    row = ground.tables.job(first.id)
    assert row["status"] == "cancelled"
    assert first.token < row["token"] < second.token, "one was drawn for the old job, to raise its fences to"
    assert ground.tables.outcomes(first.id) == ["cancelled"]
    assert ground.tables.rows("select revoked from {s}.revocation") == [{"revoked": first.token}]
    with ground.link.use("look") as connection:
        assert live_tokens(connection, ground.statements, [first.token, second.token]) == {second.token}
    (act,) = ground.tables.rows("select * from {s}.act where subject = %(s)s", s=f"job/{first.id}")
    assert (act["kind"], act["actor"]) == ("job cancelled", "gate")
    assert "a later occurrence took its place" in act["reason"]


def test_the_newest_takes_the_place_of_all_that_are_not_over(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "scheduler")
    declare(ground, "cancel_other")
    ground.step(hour(9))
    for number in (10, 11):
        ground.at(hour(number))
        ground.materialise()
    ground.decide()
    assert ground.dues() == [hour(11)]
    assert ground.dues("cancelled") == [hour(9)]
    assert "schedule 'hourly': cancelled 1 jobs: a later occurrence took its place" in caplog.text
    assert [state for _, state in ground.ledger("hourly")] == ["enqueued", "skipped", "enqueued"]


def test_what_waits_when_the_policy_is_eased_runs(ground: Ground) -> None:
    declare(ground, "buffer_all")
    for number in (9, 10, 11):
        ground.step(hour(number))
    ground.apps[-1].close()
    declare(ground, "allow")
    ground.decide()
    assert [job.due_at for job in ground.hand.claim()] == [hour(9), hour(10), hour(11)]


def test_schedules_that_can_only_wait_do_not_stand_in_the_way_of_others(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler._gate.BATCH", 3)
    app = ground.process()
    for number in range(7):
        app.schedule(f"a{number}", "0 * * * *", tz="UTC", task="send", overlap="buffer_all")
    for policy in ("skip", "buffer_one", "buffer_all", "cancel_other"):
        app.schedule(f"z {policy}", "0 10 * * *", tz="UTC", task="other", overlap=policy)
    app.sync_schedules()
    ground.step(hour(9))
    assert len(ground.hand.claim()) == 7
    ground.step(hour(10))
    assert {job.schedule for job in ground.hand.claim()} == {
        "z skip", "z buffer_one", "z buffer_all", "z cancel_other"
    }  # fmt: skip


def test_a_full_batch_is_followed_by_another_look_at_once(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or ten thousand schedules that are due on the hour would wait for each other's jobs."""
    monkeypatch.setattr("scheduler._gate.BATCH", 3)
    app = ground.process()
    for number in range(7):
        app.schedule(f"s{number}", "0 9 * * *", tz="UTC", task="send", overlap="skip")
    app.sync_schedules()
    ground.at(hour(9))
    ground.materialise()
    for ready, due in ((3, True), (6, True), (7, False)):
        assert ground.look() == 0
        assert (len(ground.dues()), ground.gate.due()) == (ready, due)


def test_what_the_database_refuses_of_one_schedule_does_not_stop_the_others(ground: Ground) -> None:
    app = ground.process()
    for number in range(5):
        app.schedule(f"s{number}", "0 9 * * *", tz="UTC", task="send", overlap="skip")
    app.sync_schedules()
    app.enqueue("other", key="s3@2026-03-02T09:00:00[UTC]/0")
    ground.step(hour(9))
    assert {job.schedule for job in ground.hand.claim()} == {None, "s0", "s1", "s2", "s4"}
    ground.tables.rows("delete from {s}.job where schedule is null")
    ground.decide()
    assert ground.hand.claim() == [], "it is left alone for a while"
    ground.gate._left = dict.fromkeys(ground.gate._left, 0.0)  # the while is over
    ground.decide()
    assert [job.schedule for job in ground.hand.claim()] == ["s3"]


def test_what_ran_once_does_not_run_again_when_its_wait_is_forgotten(ground: Ground) -> None:
    """The cursor was set back: the ledger has what was skipped and what waits, too."""
    declare(ground, "skip")
    ground.step(hour(9))
    ground.hand.claim_one()
    ground.step(hour(10))
    before = ground.ledger("hourly")
    ground.tables.rows("update {s}.schedule set materialised_until = %(t)s, next_at = %(t)s", t=hour(8))
    ground.step(hour(10) + MINUTE)
    assert ground.ledger("hourly") == before
    assert len(ground.tables.jobs()) == 1


def test_a_paused_schedule_starts_nothing_that_waited_until_it_is_resumed(ground: Ground) -> None:
    declare(ground, "buffer_all")
    for number in (9, 10):
        ground.step(hour(number))
    app = ground.apps[-1]
    app.pause_schedule("hourly", reason="maintenance")
    ground.hand.complete(ground.hand.claim_one())
    ground.decide()
    assert ground.hand.claim() == []
    app.resume_schedule("hourly", reason="done")
    ground.decide()
    assert ground.hand.claim_one().due_at == hour(10)


@pytest.mark.parametrize(("overlap", "ran"), [("buffer_all", [9, 10, 11]), ("skip", [9]), ("buffer_one", [9, 10])])
def test_a_worker_decides_while_its_only_thread_is_busy_and_is_not_idle_before_the_last_has_run(
    ground: Ground, overlap: Any, ran: list[int]
) -> None:
    started: list[int] = []

    def send(job: Job) -> None:
        started.append(job.due_at.hour)
        if len(started) == 1:
            ground.at(hour(11))
            wanted = {"skip": 2, "buffer_one": 1, "buffer_all": 0}[overlap]

            def decided() -> bool:
                states = [state for _, state in ground.ledger("hourly")]
                return len(states) == 3 and states.count("skipped") == wanted

            eventually(decided, "the others are decided")

    app = ground.process(send=send)
    app.schedule("hourly", "0 * * * *", tz="UTC", task="send", overlap=overlap)
    app.sync_schedules()
    ground.at(hour(9))
    app.run_until_idle(concurrency=1)
    assert started == ran


def test_no_schedule_minds_overlap_and_nothing_is_locked(ground: Ground) -> None:
    declare(ground, "allow")
    ground.at(hour(9) + HOUR)
    ground.materialise()
    assert ground.look() is None
    assert len(ground.hand.claim()) == 2


def test_the_handler_that_is_replaced_sees_it_and_its_writes_end(ground: Ground) -> None:
    """Its fences are raised to the token that was drawn for it, and then the next occurrence writes under its own."""
    guard = MemoryGuard()
    started, refused, tokens = threading.Event(), threading.Event(), []
    app = ground.process()

    @app.task("write", lease=86_400, fences=[(guard, "report")])
    def write(job: Job) -> None:
        if job.due_at == hour(9):
            started.set()
            assert job.lease.lost.wait(60), "it is told"
            eventually(lambda: guard.read_mark("report").token > job.token, "its fences are raised")
            with pytest.raises(StaleTokenError):
                fenced_write(guard, "report", effect=lambda _: None, token=job.token)
            refused.set()
        else:
            assert refused.wait(60)
            with fenced_write(guard, "report"):
                tokens.append(job.token)

    app.schedule("hourly", "0 * * * *", tz="UTC", task="write", overlap="cancel_other")
    app.sync_schedules()
    ground.at(hour(9))
    with Working(app, concurrency=2):
        assert started.wait(60)
        ground.at(hour(10))
        eventually(lambda: ground.tables.states() == {"cancelled": 1, "completed": 1}, "the next one has run")
    (revoked,) = ground.tables.rows("select * from {s}.revocation")
    assert [token.value > revoked["token"] > revoked["revoked"] for token in tokens] == [True]
    assert guard.read_mark("report").token == tokens[0]
