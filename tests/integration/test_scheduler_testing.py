"""What applications test with: a clock to set, a schema of a test's own, time that passes at once, and assertions."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from scheduler import Bury, Job, Retry, Scheduler
from scheduler.console.embedded import Postgres
from scheduler.errors import DatabaseError
from scheduler.testing import (
    Clock,
    _run,
    assert_dead,
    assert_enqueued,
    assert_idle,
    assert_not_enqueued,
    assert_ran,
    find_jobs,
    fresh,
    run_until,
    run_until_idle,
)

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_testing")
    postgres.drop_database("scheduler_testing")


@pytest.fixture
def app(database: str) -> Iterator[Scheduler]:
    app = Scheduler("host=nowhere.invalid")  # as an application would be: it must not be touched
    app.task("work", retry=Retry(max_attempts=3, base=60, cap=60))(lambda job: None)

    @app.task("fails", retry=Retry(max_attempts=3, base=3600, cap=3600))
    def fails(job: Job) -> None:
        raise OSError("no luck")

    app.task("bury")(lambda job: Bury("nothing to do"))
    with fresh(app, database):
        yield app


# -- the clock


def test_a_clock_is_set_stands_still_is_put_forward_and_goes_back(app: Scheduler, database: str) -> None:
    elsewhere = Scheduler(database, schema=app._statements.schema)
    with Clock(app) as clock:
        clock.set(NOON)
        assert NOON < clock.now() < NOON + 300 * SECOND
        assert clock.now() < Clock(elsewhere).now() < NOON + 300 * SECOND, "every process sees it"
        clock.advance(3600)
        assert timedelta(hours=1) < clock.now() - NOON < timedelta(hours=1, seconds=300)
        clock.freeze()
        assert clock.now() == clock.now()
        clock.freeze(NOON)
        clock.advance(timedelta(days=1, microseconds=1))
        assert clock.now() == NOON + timedelta(days=1, microseconds=1)
        clock.advance(-1)
        assert clock.now() == NOON + timedelta(days=1, microseconds=1) - SECOND
    assert abs(clock.now() - datetime.now(UTC)) < 300 * SECOND
    elsewhere.close()


def test_days_are_24_hours_whatever_zone_the_session_is_in(app: Scheduler) -> None:
    before = datetime(2026, 3, 28, 12, tzinfo=UTC)  # Berlin's clocks change in the night
    clock = Clock(app)
    with app._here().link.use("set the zone") as connection:
        connection.execute("set time zone 'Europe/Berlin'")
    clock.freeze(before)
    clock.advance(timedelta(days=1))
    assert clock.now() == before + timedelta(days=1)
    clock.set(before)
    clock.advance(timedelta(days=1))
    assert timedelta() < clock.now() - before - timedelta(days=1) < 300 * SECOND


@pytest.mark.parametrize("moment", [datetime(2026, 1, 1), "2026-01-01", None])
def test_a_clock_wants_an_aware_moment(app: Scheduler, moment: Any) -> None:
    with pytest.raises(ValueError, match="aware"):
        Clock(app).set(moment)


def test_due_times_and_leases_follow_the_clock(app: Scheduler) -> None:
    clock = Clock(app)
    clock.freeze(NOON)
    app.enqueue("work", due_at=NOON + SECOND)
    assert run_until_idle(app).claimed == 0
    clock.advance(1)
    assert run_until_idle(app).completed == 1


# -- a schema of its own


def test_a_fresh_schema_is_made_used_and_dropped_and_the_application_is_as_before(database: str) -> None:
    app = Scheduler("host=nowhere.invalid", schema="mine")
    app.task("work")(lambda job: None)
    with pytest.raises(ZeroDivisionError), fresh(app, database) as same:
        assert same is app
        schema = app._statements.schema
        app.enqueue("work")
        assert run_until_idle(app).completed == 1
        raise ZeroDivisionError
    with psycopg.connect(database) as connection:
        assert connection.execute("select 1 from pg_namespace where nspname = %s", (schema,)).fetchall() == []
        sessions = (
            "select 1 from pg_stat_activity where datname = current_database() and application_name = 'fencing app'"
        )
        assert connection.execute(sessions).fetchall() == []
    assert app._statements.schema == "mine"
    with pytest.raises(DatabaseError, match=r"nowhere\.invalid"):
        app.measure()


def test_two_schemas_at_once_know_nothing_of_each_other(database: str) -> None:
    one, two = Scheduler(database), Scheduler(database)
    for app in (one, two):
        app.task("work")(lambda job: None)
    with fresh(one), fresh(two):
        one.enqueue("work")
        assert (len(find_jobs(one)), len(find_jobs(two))) == (1, 0)
        Clock(one).freeze(NOON)
        assert Clock(two).now() > NOON + SECOND


# -- time that passes at once


def test_a_month_of_a_schedule_runs_at_once_in_its_zone(app: Scheduler) -> None:
    clock, seen = Clock(app), list[datetime]()
    app.task("daily")(lambda job: seen.append(job.nominal))
    app.schedule("daily", "30 2 * * *", tz="Europe/Berlin", task="daily", queue="night")
    clock.freeze(datetime(2026, 3, 15, tzinfo=UTC))
    app.sync_schedules()
    done = run_until(app, datetime(2026, 4, 15, tzinfo=UTC), clock=clock)
    assert done.completed == len(seen) == 31
    assert seen == sorted(seen)
    assert clock.now() == datetime(2026, 4, 15, tzinfo=UTC)
    assert_ran(app, "daily", count=31)


def test_retries_are_waited_for_by_the_clock_and_only_up_to_the_end(app: Scheduler) -> None:
    clock = Clock(app)
    clock.freeze(NOON)
    app.enqueue("fails")
    app.enqueue("work", due_at=NOON + timedelta(hours=9))
    done = run_until(app, timedelta(hours=8), clock=clock)
    assert (done.retried, done.dead, done.completed) == (2, 1, 0)
    assert_dead(app, "fails", reason="no luck", count=1)
    assert_enqueued(app, "work", count=1)
    assert run_until(app, timedelta(hours=1), clock=clock).completed == 1, "what is due at the end itself is run"
    assert_idle(app)


def test_a_job_that_never_ends_is_said_so(app: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_run, "MOST_STEPS", 3)
    clock = Clock(app)
    app.task("again", retry=Retry(max_attempts=100, base=1, cap=1))(lambda job: 1 / 0)
    app.enqueue("again")
    with pytest.raises(AssertionError, match="for ever"):
        run_until(app, timedelta(days=1), clock=clock)


# -- assertions


def test_assertions_find_what_is_there(app: Scheduler) -> None:
    app.enqueue("work", {"n": 1}, key="one", queue="mail", priority=3, due_at=NOON)
    app.enqueue("work", {"n": 2})
    (job,) = assert_enqueued(app, "work", {"n": 1}, key="one", queue="mail", priority=3, due_at=NOON)
    assert (job.args, job.status) == ({"n": 1}, "ready")
    assert len(assert_enqueued(app, "work", count=2)) == 2
    assert_not_enqueued(app, "work", {"n": 3})
    assert_not_enqueued(app, "work", key="two")
    run_until_idle(app)
    assert_not_enqueued(app, "work")
    assert [job.args for job in assert_ran(app, "work", count=2)] == [{"n": 1}, {"n": 2}]
    app.enqueue("bury")
    run_until_idle(app)
    assert_dead(app, "bury", reason="nothing")
    assert_idle(app)


def test_a_failed_assertion_shows_what_is_there_instead(app: Scheduler) -> None:
    app.enqueue("work", {"n": 1}, key="one")
    app.enqueue("fails")
    for check, says in (
        (
            lambda: assert_enqueued(app, "work", {"n": 2}),
            "expected at least 1 waiting jobs of 'work', args {'n': 2}; there are 0",
        ),
        (
            lambda: assert_enqueued(app, "work", {"n": 2}),
            "job 1 work: ready; args {'n': 1}, key 'one', queue 'default'",
        ),
        (lambda: assert_enqueued(app, "work", count=2), "expected 2 waiting jobs of 'work'; there are 1"),
        (lambda: assert_not_enqueued(app, "work"), "expected 0 waiting jobs of 'work'; there are 1"),
        (lambda: assert_ran(app, "work"), "expected at least 1 completed attempts of 'work'; there are 0"),
        (lambda: assert_dead(app, "work"), "expected at least 1 dead jobs of 'work'; there are 0"),
        (lambda: assert_dead(app, "typo"), "no job of this task at all; there are jobs of fails, work"),
        (lambda: assert_idle(app), "2 jobs are due or running"),
    ):
        with pytest.raises(AssertionError) as failed:
            check()
        assert says in str(failed.value)
    run_until_idle(app)
    with pytest.raises(AssertionError, match="ready after retried"):
        assert_dead(app, "fails")


# -- the fixtures


def test_the_fixtures_give_each_test_a_schema_and_a_clock_of_its_own(database: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        textwrap.dedent("""
            from scheduler import Scheduler
            app = Scheduler("host=nowhere.invalid")
            app.task("ship")(lambda job: None)
        """)
    )
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["scheduler.testing.pytest_plugin"]\n')
    (tmp_path / "test_shop.py").write_text(
        textwrap.dedent("""
            from datetime import UTC, datetime, timedelta
            import pytest
            from shop import app
            from scheduler.testing import assert_ran, find_jobs, run_until

            @pytest.fixture(autouse=True)
            def shop(fencing_fresh):
                return fencing_fresh(app)

            @pytest.mark.parametrize("number", [1, 2])
            def test_it(number, fencing_clock):
                clock = fencing_clock(app)
                clock.freeze(datetime(2026, 1, 1, tzinfo=UTC))
                assert find_jobs(app) == []
                app.enqueue("ship", due_at=datetime(2026, 1, 2, tzinfo=UTC))
                run_until(app, timedelta(days=1), clock=clock)
                assert_ran(app, "ship", count=1)
        """)
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--fencing-dsn={database}"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "FENCING_DSN"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    with psycopg.connect(database) as connection:
        schemas = "select 1 from pg_namespace where nspname like 'fencing_test_%'"
        assert connection.execute(schemas).fetchall() == []
