"""What went wrong with time elsewhere, told as whole stories: deploys, edits, restarts, on a real server."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.jobs import Tables, installed

from scheduler import Counts, Job, Scheduler

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.fixture
def tables(pg_dsn: str) -> Iterator[Tables]:
    with installed(pg_dsn) as (_, tables):
        yield tables


@pytest.fixture
def ran() -> list[datetime]:
    """The local times for which the handler ran."""
    return []


@pytest.fixture
def process(tables: Tables, ran: list[datetime]) -> Callable[..., Counts]:
    """A process that starts at a moment with a schedule, does what is due, and ends: nothing stays in memory."""

    def live(moment: datetime, expr: str, **options: Any) -> Counts:
        tables.set_clock(f"timestamptz '{moment.isoformat()}'")
        app = Scheduler(tables.dsn)

        @app.task("report")
        def report(job: Job) -> None:
            assert job.nominal is not None
            ran.append(job.nominal)

        app.schedule("report", expr, **{"tz": "UTC", "task": "report"} | options)
        try:
            return app.run_until_idle()
        finally:
            app.close()

    return live


def test_a_weekly_job_runs_each_week_though_every_process_lives_less_than_a_day(
    process: Callable[..., Counts], ran: list[datetime]
) -> None:
    """river #791, oban: in-memory periodic state; under daily deploys a weekly job never ran."""
    for deploy in range(29):
        process(MONDAY + timedelta(hours=20 * deploy), "0 6 * * 3")
    assert ran == [datetime(2026, 3, day, 6) for day in (4, 11, 18, 25)]


def test_a_process_that_starts_anew_every_half_interval_loses_nothing(
    process: Callable[..., Counts], ran: list[datetime]
) -> None:
    for start in range(9):
        process(MONDAY + timedelta(minutes=10 + 30 * start), "0 * * * *")
    assert ran == [datetime(2026, 3, 2, hour) for hour in (1, 2, 3, 4)]


def test_an_occurrence_that_history_forgot_does_not_run_again(
    process: Callable[..., Counts], ran: list[datetime], tables: Tables
) -> None:
    """procrastinate: its rows were deleted, and 60, 120, 60 ran twice."""
    for minute in (1, 2):
        process(MONDAY + timedelta(minutes=minute), "* * * * *")
    tables.rows("delete from {s}.occurrence")
    tables.rows("delete from {s}.job")
    for minute in (1, 2, 3):
        process(MONDAY + timedelta(minutes=minute), "* * * * *")
    assert ran == [datetime(2026, 3, 2, 0, minute) for minute in (2, 3)]


def test_what_is_due_during_a_deploy_runs_after_it(process: Callable[..., Counts], ran: list[datetime]) -> None:
    """good_job #1484, sidekiq-cron #111: due while nothing ran, and never fired."""
    process(MONDAY + timedelta(hours=8, minutes=59), "0 9 * * *")
    process(MONDAY + timedelta(hours=9, minutes=4), "0 9 * * *")
    assert ran == [datetime(2026, 3, 2, 9)]


def test_an_edit_never_fires_the_past(process: Callable[..., Counts], ran: list[datetime]) -> None:
    """kubernetes #63371: an edited schedule fired retroactively, a thousand mails."""
    process(MONDAY, "0 9 * * *")
    process(MONDAY + timedelta(days=300), "* * * * *")
    assert ran == []
    process(MONDAY + timedelta(days=300, minutes=1), "* * * * *")
    assert ran == [datetime(2026, 12, 27, 0, 1)]


def test_a_slot_that_was_worked_late_moves_neither_the_next_nor_the_one_after(
    process: Callable[..., Counts], ran: list[datetime]
) -> None:
    """paseo #2819: one slot fired twice, the cadence advanced twice, and the next week was skipped."""
    process(MONDAY, "0 6 * * 3")
    wednesday = MONDAY + timedelta(days=2, hours=6)
    for late in (timedelta(days=2), timedelta(days=2), timedelta(days=6, hours=23)):
        process(wednesday + late, "0 6 * * 3")
    for week in (1, 2, 2, 3):
        process(wednesday + timedelta(weeks=week), "0 6 * * 3")
    assert ran == [datetime(2026, 3, day, 6) for day in (4, 11, 18, 25)]


def test_a_clock_that_jumps_back_and_forth_makes_nothing_run_twice(
    process: Callable[..., Counts], ran: list[datetime]
) -> None:
    """quartz #463, db-scheduler #433."""
    for hours in (8, 10, 7, 9, 10, 8, 11, 9, 11):
        process(MONDAY + timedelta(hours=hours), "0 * * * *")
    assert ran == [datetime(2026, 3, 2, hour) for hour in (9, 10, 11)]


def test_the_day_after_the_clocks_went_forward_is_not_lost(process: Callable[..., Counts], ran: list[datetime]) -> None:
    """APScheduler 3.11: ``0 0 * * *`` in New York lost the day after."""
    for half_day in range(9):
        process(
            datetime(2026, 3, 6, 17, tzinfo=UTC) + timedelta(hours=12 * half_day), "0 0 * * *", tz="America/New_York"
        )
    assert ran == [datetime(2026, 3, day) for day in (7, 8, 9, 10)]
