"""What the doctor says of work that nobody does, of clocks and of servers: each limit from both sides."""

import time
from collections.abc import Iterator

import pytest
from support.jobs import Hand, Tables, installed, installed_beside

from fencing import Finding
from scheduler import Scheduler, _doctor
from scheduler._acts import Outside
from scheduler.console.embedded import Postgres


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_doctor")
    postgres.drop_database("scheduler_doctor")


@pytest.fixture
def ground(database: str) -> Iterator[tuple[Scheduler, Tables]]:
    with installed_beside(database) as both:
        yield both


def finding(app: Scheduler, check: str) -> Finding:
    (found,) = [one for one in app.diagnose() if one.check == check]
    return found


def claimed(tables: Tables, app: Scheduler) -> int:
    """A job that somebody has claimed under a long lease."""
    app.task("work")(print)
    number = app.enqueue("work").id
    hand = Hand(tables.dsn, {"work": 3600.0}, schema=tables.schema)
    assert hand.claim_one().id == number
    hand.close()
    return number


def ago(seconds: float) -> str:
    return f"{{s}}.clock() - interval '{seconds} s'"


def test_leases_that_ran_out_and_that_nobody_takes_back(ground: tuple[Scheduler, Tables]) -> None:
    app, tables = ground
    claimed(tables, app)
    assert finding(app, "expired leases").severity == "ok"
    tables.rows(f"update {{s}}.job set lease_until = {ago(30)}")
    assert finding(app, "expired leases").severity == "ok", "a worker may be about to"
    tables.rows(f"update {{s}}.job set lease_until = {ago(61)}")
    found = finding(app, "expired leases")
    assert (found.severity, found.message) == ("warning", "1")


def test_jobs_that_run_for_longer_than_is_usual(ground: tuple[Scheduler, Tables]) -> None:
    app, tables = ground
    number = claimed(tables, app)
    assert finding(app, "stuck jobs").severity == "ok"
    tables.rows(f"update {{s}}.job set claimed_at = {ago(3700)}")
    found = finding(app, "stuck jobs")
    assert (found.severity, found.message) == ("warning", f"1 (jobs {number})")


def test_fences_that_nobody_raises(ground: tuple[Scheduler, Tables]) -> None:
    app, tables = ground
    number = claimed(tables, app)
    stranger = Scheduler(tables.dsn, schema=tables.schema)  # it does not know the task, as the console does not
    ended: Outside = stranger.cancel(number, reason="a test")
    stranger.close()
    assert not ended.fenced
    assert finding(app, "fences of revoked jobs").severity == "ok", "a worker may be about to"
    tables.rows(f"update {{s}}.revocation set revoked_at = {ago(61)}")
    assert finding(app, "fences of revoked jobs").severity == "warning"


def test_schedules_that_nobody_makes_jobs_of(ground: tuple[Scheduler, Tables]) -> None:
    app, tables = ground
    app.task("work")(print)
    app.put_schedule("hourly", "0 * * * *", tz="UTC", task="work", reason="a test")
    tables.rows(f"update {{s}}.schedule set next_at = {ago(200)}")
    assert finding(app, "late schedules").severity == "ok"
    tables.rows(f"update {{s}}.schedule set next_at = {ago(301)}")
    assert finding(app, "late schedules").severity == "warning"
    app.pause_schedule("hourly", reason="a test")
    assert finding(app, "late schedules").severity == "ok"


def test_due_jobs_that_wait_where_no_lag_was_stated(ground: tuple[Scheduler, Tables]) -> None:
    app, tables = ground
    app.task("work")(print)
    app.enqueue("work")
    tables.rows(f"update {{s}}.job set due_at = {ago(30)}")
    assert finding(app, "lag of queue 'default'").severity == "ok"
    tables.rows(f"update {{s}}.job set due_at = {ago(61)}")
    assert finding(app, "lag of queue 'default'").severity == "warning"


def test_workers_that_are_silent_or_whose_clocks_are_off(ground: tuple[Scheduler, Tables]) -> None:
    app, tables = ground

    def said(silent: float, skew: float) -> list[tuple[str, str]]:
        tables.rows("delete from {s}.worker")
        tables.rows(f"insert into {{s}}.worker values ('w', now(), {ago(silent)}, '{{mail}}', 8, 0, {skew}, 0)")
        found = [one for one in app.diagnose() if one.severity == "warning"]
        return [(one.check, one.severity) for one in found if "worker w" in (one.check, one.message[-8:])]

    assert said(30, 1.9) == []
    assert said(61, 0) == [("worker w", "warning")]
    assert said(0, -2.1) == [("clock skew", "warning")]


def test_a_clock_of_this_machine_that_is_off(ground: tuple[Scheduler, Tables], monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = ground
    now = time.time()
    monkeypatch.setattr(_doctor.time, "time", lambda: now - 60)
    assert finding(app, "clock skew").severity == "warning"


def test_a_server_that_may_lose_what_was_committed(ground: tuple[Scheduler, Tables]) -> None:
    """The one for tests runs without fsync."""
    app, _ = ground
    assert finding(app, "fsync").severity == "broken"


def test_a_standby_issues_nothing() -> None:
    with Postgres() as primary, installed(primary.dsn()), primary.standby() as standby:
        standby.wait_until_caught_up()
        app = Scheduler(standby.dsn())
        found = {one.check: one.severity for one in app.diagnose()}
        app.close()
        assert (found["primary"], found["migrations"]) == ("broken", "ok")
        assert "issuer" not in found
