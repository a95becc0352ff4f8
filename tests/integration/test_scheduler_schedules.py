"""Schedules on a real server: an occurrence becomes at most one job, whatever is edited, missed, deleted or broken."""

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support.jobs import Hand, Tables, ended, installed_beside

from scheduler import Bury, Job, Retry, Scheduler
from scheduler._connect import Database, Link
from scheduler._materialiser import BATCH, MOST, Materialiser
from scheduler._sql import Statements
from scheduler.console.embedded import Postgres
from scheduler.errors import ScheduleError, UnknownTaskError

START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)  # a Monday


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_schedules")
    postgres.drop_database("scheduler_schedules")


@pytest.fixture
def tables(database: str) -> Iterator[Tables]:
    with installed_beside(database) as (_, tables):
        at(tables, START)
        yield tables


@pytest.fixture
def new_app(tables: Tables) -> Iterator[Callable[[], Scheduler]]:
    """Makes a scheduler as a process that starts anew would have it: nothing in memory."""
    apps: list[Scheduler] = []

    def make() -> Scheduler:
        apps.append(Scheduler(tables.dsn, schema=tables.schema))
        apps[-1].task("send", retry=Retry(max_attempts=3))(print)
        apps[-1].task("other")(print)
        return apps[-1]

    yield make
    for app in apps:
        app.close()


@pytest.fixture
def app(new_app: Callable[[], Scheduler]) -> Scheduler:
    return new_app()


@pytest.fixture
def materialise(tables: Tables) -> Iterator[Callable[[], None]]:
    """Materialises everything that is due, as a worker's thread does."""
    link = Link(Database(tables.dsn), "materialise")
    materialiser = Materialiser(link, Statements(tables.schema))

    def run() -> None:
        while materialiser.run_once() == 0:
            pass

    yield run
    link.close()


def at(tables: Tables, moment: datetime) -> None:
    """The scheduler's clock stands at this moment."""
    tables.set_clock(f"timestamptz '{moment.isoformat()}'")


def dues(tables: Tables, status: str = "ready") -> list[datetime]:
    return sorted(job["due_at"] for job in tables.jobs() if job["status"] == status)


def hour(number: int, day: int = 2) -> datetime:
    return datetime(2026, 3, day, number, tzinfo=UTC)


# -- an occurrence becomes a job


def test_each_due_occurrence_becomes_one_job_that_knows_where_it_came_from(
    app: Scheduler, tables: Tables, materialise: Callable[[], None]
) -> None:
    app.schedule("morning", "0 9 * * *", tz="Asia/Dhaka", task="send", args={"n": 1}, queue="mail", priority=4)
    assert app.sync_schedules() == {"morning": "added"}
    materialise()
    assert tables.jobs() == [], "it begins now; nothing is due"
    for _ in range(3):
        at(tables, hour(3, day=3))
        materialise()
    (job,) = tables.jobs()
    (occurrence,) = tables.occurrences("morning")
    assert job["due_at"] == hour(3, day=3)
    assert job["nominal"] == datetime(2026, 3, 3, 9)
    assert (job["task"], job["args"], job["queue"], job["priority"]) == ("send", {"n": 1}, "mail", 4)
    assert (job["schedule"], job["max_attempts"]) == ("morning", 3)
    assert job["key"] == f"morning@{occurrence['key']}"
    assert (occurrence["state"], occurrence["job_id"], occurrence["revision"]) == ("enqueued", job["id"], 1)


def test_an_occurrence_becomes_a_job_a_moment_before_it_is_due_and_runs_when_it_is(
    app: Scheduler, tables: Tables, materialise: Callable[[], None]
) -> None:
    app.schedule("hourly", "0 * * * *", tz="UTC", task="send")
    app.sync_schedules()
    hand = Hand(tables.dsn, {"send": 30}, schema=tables.schema)
    at(tables, hour(9) - timedelta(seconds=6))
    materialise()
    assert dues(tables) == []
    at(tables, hour(9) - timedelta(seconds=4))
    materialise()
    assert dues(tables) == [hour(9)]
    assert hand.claim() == []
    at(tables, hour(9))
    assert hand.claim_one().due_at == hour(9)
    hand.close()


def test_a_day_with_two_half_past_two_has_one_occurrence(
    app: Scheduler, tables: Tables, materialise: Callable[[], None]
) -> None:
    at(tables, datetime(2026, 10, 24, 12, tzinfo=UTC))
    app.schedule("nightly", "30 2 * * *", tz="Europe/Berlin", task="send")
    app.sync_schedules()
    for minutes in range(0, 24 * 60, 10):
        at(tables, datetime(2026, 10, 24, 12, tzinfo=UTC) + timedelta(minutes=minutes))
        materialise()
    assert dues(tables) == [datetime(2026, 10, 25, 0, 30, tzinfo=UTC)]


def test_the_handler_learns_the_occurrence(app: Scheduler, tables: Tables) -> None:
    seen: list[Job] = []
    app.task("see")(lambda job: seen.append(job) or Bury("seen"))
    app.schedule("hourly", "0 * * * *", tz="Asia/Dhaka", task="see", args=[1])
    app.sync_schedules()
    at(tables, hour(9))
    app.run_until_idle()
    (job,) = seen
    assert (job.schedule, job.nominal, job.due_at) == ("hourly", datetime(2026, 3, 2, 15), hour(9))
    assert job.key.startswith("hourly@")


def test_a_schedule_that_ended_or_is_paused_makes_nothing(
    app: Scheduler, tables: Tables, materialise: Callable[[], None]
) -> None:
    app.schedule("ends", "0 * * * *", tz="UTC", task="send", end_at=hour(9) + timedelta(minutes=30))
    app.schedule("paused", "0 * * * *", tz="UTC", task="send")
    app.schedule("later", "0 * * * *", tz="UTC", task="send", start_at=hour(10))
    app.sync_schedules()
    tables.rows("update {s}.schedule set paused = true where name = 'paused'")
    for number in (9, 10):
        at(tables, hour(number))
        materialise()
    assert [(job["schedule"], job["due_at"]) for job in tables.jobs()] == [("ends", hour(9)), ("later", hour(10))]
    assert tables.schedule("ends")["next_at"] is None


# -- once


def test_a_second_materialiser_passes_by_a_schedule_that_the_first_works_on_and_finds_it_done(
    app: Scheduler, tables: Tables, materialise: Callable[[], None]
) -> None:
    app.schedule("hourly", "0 * * * *", tz="UTC", task="send")
    app.sync_schedules()
    at(tables, hour(9))
    with psycopg.connect(tables.dsn) as first:
        due = Statements(tables.schema)["schedules_due"]
        assert first.execute(due, {"batch": 1, "horizon": 5, "without": []}).fetchall()
        materialise()
        assert tables.jobs() == []
    materialise()
    materialise()
    assert dues(tables) == [hour(9)]


@pytest.mark.parametrize("lost", ["jobs", "ledger", "cursor", "jobs and cursor"])
def test_neither_a_deleted_job_nor_a_cursor_that_was_set_back_makes_an_occurrence_twice(
    app: Scheduler, tables: Tables, materialise: Callable[[], None], lost: str
) -> None:
    """Ledger and cursor each protect alone. procrastinate: rows deleted, an occurrence ran twice."""
    app.schedule("hourly", "0 * * * *", tz="UTC", task="send")
    app.sync_schedules()
    at(tables, hour(9))
    materialise()
    (job,) = tables.jobs()
    if "jobs" in lost:
        tables.rows("delete from {s}.job")
    if lost == "ledger":
        tables.rows("delete from {s}.occurrence")
    if "cursor" in lost:
        tables.rows("update {s}.schedule set materialised_until = %(t)s, next_at = %(t)s", t=START)
    at(tables, hour(9) + timedelta(minutes=1))
    materialise()
    assert [one["id"] for one in tables.jobs()] == ([] if "jobs" in lost else [job["id"]])


def test_the_cursor_only_grows(app: Scheduler, tables: Tables, materialise: Callable[[], None]) -> None:
    """quartz #463, db-scheduler #433: a clock that went back."""
    app.schedule("hourly", "0 * * * *", tz="UTC", task="send")
    app.sync_schedules()
    at(tables, hour(11))
    materialise()
    cursor = tables.schedule("hourly")["materialised_until"]
    assert cursor == hour(11) + timedelta(seconds=5)
    made = dues(tables)
    assert made == [hour(9), hour(10), hour(11)]
    at(tables, START)
    tables.rows("update {s}.schedule set next_at = %(t)s", t=START)
    materialise()
    assert tables.schedule("hourly")["materialised_until"] == cursor
    for number in (9, 10, 11):
        at(tables, hour(number))
        materialise()
    assert dues(tables) == made
    at(tables, hour(12))
    materialise()
    assert dues(tables) == [*made, hour(12)]


def test_ledger_and_job_are_written_together_or_not_at_all(
    app: Scheduler, tables: Tables, materialise: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    """procrastinate #1495: a ledger row without its job."""
    app.schedule("hourly", "0 * * * *", tz="UTC", task="send")
    app.sync_schedules()
    before = tables.schedule("hourly")
    at(tables, hour(9))
    tables.rows("alter table {s}.job add constraint no_more check (id < 0)")
    materialise()
    assert "no_more" in caplog.text
    assert tables.occurrences("hourly") == []
    assert tables.schedule("hourly") == before
    tables.rows("alter table {s}.job drop constraint no_more")
    materialise()
    assert [one["job_id"] for one in tables.occurrences("hourly")] == [job["id"] for job in tables.jobs()]
    assert len(tables.jobs()) == 1


def test_what_the_database_refuses_of_one_schedule_does_not_stop_the_others(
    app: Scheduler, tables: Tables, materialise: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    """A job of the application's own has the key of an occurrence, for example."""
    for number in range(5):
        app.schedule(f"s{number}", "0 9 * * *", tz="UTC", task="send")
    app.sync_schedules()
    (row,) = tables.rows("select 's3@2026-03-02T09:00:00[UTC]/0' as key")
    app.enqueue("send", key=row["key"])
    at(tables, hour(9))
    materialise()
    assert {job["schedule"] for job in tables.jobs()} == {None, "s0", "s1", "s2", "s4"}
    assert "schedule 's3' is left alone" in caplog.text
    tables.rows("delete from {s}.job where key = %(key)s", **row)
    materialise()
    assert {job["schedule"] for job in tables.jobs()} == {"s0", "s1", "s2", "s3", "s4"}


def test_a_schedule_that_is_left_alone_is_told_now_and_then_and_when_the_reason_is_another(
    app: Scheduler,
    tables: Tables,
    materialise: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not every second by every worker."""

    def told() -> int:
        materialise()
        return caplog.text.count("schedule 'hourly' is left alone")

    def put(definition: str) -> None:
        tables.rows("update {s}.schedule set definition = definition || %(d)s::jsonb", d=definition)

    monkeypatch.setattr("scheduler._materialiser.AGAIN", 3600.0)
    app.schedule("hourly", "0 * * * *", tz="UTC", task="send")
    app.sync_schedules()
    at(tables, hour(9))
    put('{"tz": "Atlantis/Sunken"}')
    assert (told(), told()) == (1, 1)
    put('{"tz": "Atlantis/Risen"}')
    assert (told(), told()) == (2, 2)
    monkeypatch.setattr("scheduler._materialiser.AGAIN", 0.0)
    assert told() == 3
    monkeypatch.setattr("scheduler._materialiser.AGAIN", 3600.0)
    put('{"tz": "UTC"}')
    assert told() == 3
    assert len(tables.jobs()) == 1
    put('{"tz": "Atlantis/Risen"}')
    at(tables, hour(10))
    assert told() == 4, "it went well in between"


# -- what was missed


@pytest.mark.parametrize(
    ("options", "ran"),
    [
        ({}, [4, 5, 6, 7]),
        ({"catch_up": "all", "catch_up_limit": 2}, [6, 7]),
        ({"catch_up": "latest"}, [7]),
        ({"catch_up": "none"}, []),
        ({"catch_up": "none", "grace": timedelta(hours=36)}, [6, 7]),
        ({"catch_up": "all", "catch_up_limit": 1, "grace": timedelta(hours=36)}, [5, 6, 7]),
    ],
)
def test_what_was_missed_is_caught_up_by_the_schedules_policy_and_the_rest_is_told_of(
    app: Scheduler, tables: Tables, materialise: Callable[[], None], options: dict[str, Any], ran: list[int]
) -> None:
    """good_job #1484, sidekiq-cron #111: due during a deploy, never fired."""
    app.schedule("daily", "0 9 * * *", tz="UTC", task="send", **options)
    app.sync_schedules()
    at(tables, hour(9))
    materialise()
    at(tables, hour(9, day=3))
    materialise()
    assert dues(tables) == [hour(9), hour(9, day=3)]
    at(tables, hour(12, day=7))  # no worker ran for four days
    materialise()
    assert dues(tables) == [hour(9, day=day) for day in (2, 3, *ran)]
    skipped = [one for one in tables.occurrences("daily") if one["state"] == "skipped"]
    assert [one["due_at"] for one in skipped] == [hour(9, day=day) for day in (4, 5, 6, 7) if day not in ran]
    assert all(one["job_id"] is None and "missed" in one["reason"] for one in skipped)
    at(tables, hour(9, day=8))
    materialise()
    assert dues(tables)[-1] == hour(9, day=8)


@pytest.mark.parametrize("policy", ["all", "latest"])
def test_more_missed_occurrences_than_a_transaction_takes_leave_the_newest(
    app: Scheduler, tables: Tables, materialise: Callable[[], None], policy: Any
) -> None:
    app.schedule("minutely", "* * * * *", tz="UTC", task="send", catch_up=policy, catch_up_limit=3)
    app.sync_schedules()
    minutes = 2 * MOST + 300
    end = START + timedelta(minutes=minutes)
    at(tables, end + timedelta(seconds=30))
    materialise()
    kept = 3 if policy == "all" else 0
    late = [end - timedelta(minutes=back) for back in range(kept, 0, -1)]
    assert dues(tables) == [*late, end], "the newest ones, and the one that is less than a minute old"
    assert len(tables.occurrences("minutely")) == minutes


def test_more_schedules_than_a_transaction_takes_are_all_materialised(
    app: Scheduler, tables: Tables, materialise: Callable[[], None]
) -> None:
    for number in range(BATCH + 20):
        app.schedule(f"s{number}", "0 * * * *", tz="UTC", task="send")
    app.sync_schedules()
    at(tables, hour(9))
    materialise()
    assert dues(tables) == [hour(9)] * (BATCH + 20)


# -- edits


@pytest.mark.parametrize(
    "change",
    [
        {"expr": "0 10 * * *"},
        {"tz": "Asia/Dhaka"},
        {"task": "other"},
        {"args": {"n": 2}},
        {"queue": "mail"},
        {"priority": 1},
        {"catch_up": "none"},
        {"jitter": timedelta(minutes=1)},
    ],
)
def test_an_edit_never_fires_the_past(
    tables: Tables,
    new_app: Callable[[], Scheduler],
    materialise: Callable[[], None],
    change: dict[str, Any],
) -> None:
    """kubernetes #63371: an edited schedule fired retroactively, a thousand mails."""
    given: dict[str, Any] = {"expr": "0 9 * * *", "tz": "UTC", "task": "send"}

    def store(**changed: Any) -> dict[str, str]:
        options = given | changed
        app = new_app()
        app.schedule("daily", options.pop("expr"), **options)
        return app.sync_schedules()

    store()
    at(tables, hour(12, day=9))  # seven occurrences were missed, and not yet materialised
    assert store(**change) == {"daily": "changed"}
    assert store(**change) == {"daily": "unchanged"}
    materialise()
    assert tables.jobs() == []
    row = tables.schedule("daily")
    assert row["revision"] == 2
    assert row["materialised_until"] >= hour(12, day=9)
    assert row["next_at"] > hour(12, day=9)
    at(tables, row["next_at"])
    materialise()
    assert dues(tables) == [row["next_at"]]


def test_an_edit_is_audited_with_what_was_and_what_is(tables: Tables, new_app: Callable[[], Scheduler]) -> None:
    for expr in ("0 9 * * *", "0 10 * * *", "0 10 * * *"):
        app = new_app()
        app.schedule("daily", expr, tz="UTC", task="send")
        app.sync_schedules()
    added, changed = tables.rows("select * from {s}.act order by id")
    assert (added["kind"], added["subject"], added["before"]) == ("schedule added", "schedule/daily", None)
    assert (changed["kind"], changed["before"]["expr"], changed["after"]["expr"]) == (
        "schedule changed",
        "0 9 * * *",
        "0 10 * * *",
    )
    assert changed["actor"] != added["actor"]


def test_an_edit_supersedes_what_was_put_ahead_and_leaves_what_was_claimed(
    tables: Tables, new_app: Callable[[], Scheduler], materialise: Callable[[], None]
) -> None:
    def store(n: int) -> None:
        app = new_app()
        app.schedule("minutely", "* * * * *", tz="UTC", task="send", args={"n": n})
        app.sync_schedules()

    ahead = hour(9)
    at(tables, ahead - timedelta(seconds=61))
    store(1)
    at(tables, ahead - timedelta(minutes=1))
    materialise()
    (running,) = tables.jobs()
    hand = Hand(tables.dsn, {"send": 3600}, schema=tables.schema)
    assert hand.claim_one().id == running["id"]
    at(tables, ahead - timedelta(seconds=4))
    materialise()
    (planned,) = [job for job in tables.jobs() if job["status"] == "ready"]
    store(2)
    row = tables.job(planned["id"])
    assert (row["status"], row["reason"]) == ("cancelled", "schedule changed")
    assert tables.job(running["id"])["status"] == "leased"
    materialise()
    (again,) = [job for job in tables.jobs() if job["status"] == "ready"]
    assert (again["due_at"], again["args"]) == (ahead, {"n": 2}), "the same occurrence, under the new definition"
    assert len(tables.occurrences("minutely")) == 2
    hand.close()


def test_an_edit_does_not_cancel_an_occurrence_that_was_due_and_only_waits_to_run_again(
    tables: Tables, new_app: Callable[[], Scheduler], materialise: Callable[[], None]
) -> None:
    """It yielded or failed, so its due time lies ahead; it was due all the same, and nobody would make it again."""

    def store(expr: str) -> None:
        app = new_app()
        app.schedule("hourly", expr, tz="UTC", task="send")
        app.sync_schedules()

    store("0 * * * *")
    at(tables, hour(10))
    materialise()
    hand = Hand(tables.dsn, {"send": 3600}, schema=tables.schema)
    yielded, retried = hand.claim()
    hand.settle(ended(yielded, "ready", "yielded", delay=60.0), ended(retried, "ready", "retried", delay=60.0))
    store("30 * * * *")
    assert tables.states() == {"ready": 2}
    hand.close()


@pytest.mark.parametrize(
    "args", [(1, 2), {1: "a", None: True}, {"x": 1e23}, {"x": 1e308, "y": 1.0, "z": 0.1}, "zwei\u00a0Wörter 😀", [-0.0]]
)
def test_a_definition_that_json_writes_otherwise_is_still_the_same(
    tables: Tables, new_app: Callable[[], Scheduler], args: Any
) -> None:
    """Or every start of a worker would be an edit, and skip what is due."""
    for wanted in ("added", "unchanged", "unchanged"):
        app = new_app()
        app.schedule("daily", "0 9 * * *", tz="UTC", task="send", args=args, grace=timedelta(seconds=0.1))
        assert app.sync_schedules() == {"daily": wanted}
    assert tables.schedule("daily")["revision"] == 1


# -- what cannot be computed


def test_zone_data_older_than_what_a_schedule_was_computed_from_is_refused(
    app: Scheduler, tables: Tables, materialise: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("newer", "same zone", "older"):
        app.schedule(name, "0 * * * *", tz="Europe/Berlin", task="send")
    app.sync_schedules()
    tables.rows("update {s}.schedule set zone_version = '2999a', zone_hash = 'x' where name = 'newer'")
    tables.rows("update {s}.schedule set zone_version = '2999a' where name = 'same zone'")
    tables.rows("update {s}.schedule set zone_version = '2001a', zone_hash = 'x' where name = 'older'")
    at(tables, hour(9))
    with caplog.at_level(logging.ERROR, "scheduler"):
        materialise()
    assert {job["schedule"] for job in tables.jobs()} == {"same zone", "older"}
    assert "computed from zone data 2999a" in caplog.text
    assert "update the tzdata package" in caplog.text
    assert tables.schedule("newer")["zone_version"] == tables.schedule("same zone")["zone_version"] == "2999a"
    assert tables.schedule("older")["zone_hash"] == tables.schedule("same zone")["zone_hash"]
    tables.rows("update {s}.schedule set zone_hash = %(h)s", h=tables.schedule("older")["zone_hash"])
    materialise()
    assert {job["schedule"] for job in tables.jobs()} == {"same zone", "older", "newer"}, "caught up, not lost"


def test_schedules_that_cannot_be_computed_do_not_stop_the_others(
    app: Scheduler, tables: Tables, materialise: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    """However many they are, and due before the others."""
    for number in range(BATCH + 5):
        app.schedule(f"broken {number}", "0 * * * *", tz="UTC", task="send")
    app.schedule("good", "5 * * * *", tz="UTC", task="send")
    app.sync_schedules()
    tables.rows(
        "update {s}.schedule set definition = definition || '{\"tz\": \"Atlantis/Sunken\"}' where name like 'broken%%'"
    )
    at(tables, hour(8) + timedelta(minutes=5))
    materialise()
    at(tables, hour(9) + timedelta(minutes=5))
    materialise()
    assert {job["schedule"] for job in tables.jobs()} == {"good"}
    assert len(tables.jobs()) == 2
    assert caplog.text.count("schedule 'broken 7' is left alone") == 1
    assert "Atlantis/Sunken" in caplog.text
    tables.rows('update {s}.schedule set definition = definition || \'{"tz": "UTC"}\'')
    materialise()
    assert {job["schedule"] for job in tables.jobs()} == {"good", *(f"broken {n}" for n in range(BATCH + 5))}


# -- what is refused


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ({"name": ""}, ValueError, "a schedule's name"),
        ({"expr": "61 * * * *"}, ScheduleError, r"minute"),
        ({"expr": "* * *"}, ScheduleError, "field"),
        ({"expr": "0 0 30 2 *"}, ScheduleError, "never fires"),
        ({"tz": "Asia/Dacca2"}, ScheduleError, "not a zone"),
        ({"task": "wrok"}, UnknownTaskError, "no task 'wrok'"),
        ({"args": object()}, TypeError, "not JSON"),
        ({"args": "\ud800"}, ValueError, "surrogate"),
        ({"queue": ""}, ValueError, "a queue's name"),
        ({"priority": "high"}, ValueError, "priority="),
        ({"catch_up": "some"}, ValueError, "catch_up="),
        ({"catch_up_limit": 0}, ValueError, "catch_up_limit="),
        ({"catch_up_limit": 2**31}, ValueError, "catch_up_limit="),
        ({"grace": 5}, ValueError, "grace="),
        ({"grace": timedelta(-1)}, ValueError, "grace="),
        ({"grace": timedelta.max}, ValueError, "grace="),
        ({"overlap": "sometimes"}, ValueError, "overlap="),
        ({"start_at": datetime(2026, 1, 1)}, (ValueError, TypeError), "start_at"),
    ],
)
def test_a_schedule_that_makes_no_sense_gets_its_own_clear_error_and_nothing_is_stored(
    app: Scheduler, tables: Tables, change: dict[str, Any], kind: type[Exception], says: str
) -> None:
    given: dict[str, Any] = {"name": "daily", "expr": "0 9 * * *", "tz": "UTC", "task": "send"} | change
    with pytest.raises(kind, match=says):
        app.schedule(given.pop("name"), given.pop("expr"), **given)
    assert app.sync_schedules() == {}
    assert tables.rows("select * from {s}.schedule") == []


def test_one_name_means_one_schedule(app: Scheduler) -> None:
    app.schedule("daily", "0 9 * * *", tz="UTC", task="send")
    app.schedule("daily", "0 9 * * *", tz="UTC", task="send")
    with pytest.raises(ValueError, match="'daily' is declared twice"):
        app.schedule("daily", "0 10 * * *", tz="UTC", task="send")
