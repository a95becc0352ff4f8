"""What people and releases do with schedules in the database: put, pause, resume, delete, backfill, deploy."""

import json
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.schedules import DAY, HOUR, MINUTE, SECOND, START, Ground, hour, schedules_ground

from scheduler import Scheduler
from scheduler._backfill import LEDGER_KEPT
from scheduler._releases import PATIENCE
from scheduler._zones import ZoneSource, packaged_zones
from scheduler.console.embedded import Postgres
from scheduler.errors import LedgerHorizonError, ScheduleError, UnknownScheduleError, UnknownTaskError


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("schedule_acts")
    postgres.drop_database("schedule_acts")


@pytest.fixture
def ground(database: str) -> Iterator[Ground]:
    with schedules_ground(database) as ground:
        yield ground


@pytest.fixture
def app(ground: Ground) -> Scheduler:
    return ground.process()


def put(app: Scheduler, name: str = "hourly", expr: str = "0 * * * *", **options: Any) -> str:
    return app.put_schedule(name, expr, **{"tz": "UTC", "task": "send", "reason": "a test", "actor": "ann"} | options)


def release(ground: Ground, expr: str, **options: Any) -> Scheduler:
    """A process of a release that declares the schedule so."""
    app = ground.process()
    app.schedule("daily", expr, **{"tz": "UTC", "task": "send"} | options)
    return app


def in_force(ground: Ground) -> str:
    return str(ground.tables.schedule("daily")["definition"]["expr"])


# -- put


def test_a_schedule_is_put_and_runs_though_no_process_declares_it(ground: Ground, app: Scheduler) -> None:
    assert put(app, args={"n": 1}, queue="default", catch_up="latest") == "added"
    assert put(app, args={"n": 1}, queue="default", catch_up="latest") == "unchanged"
    app.close()
    ground.step(hour(9))
    (job,) = ground.hand.claim()
    assert (job.args, job.schedule) == ({"n": 1}, "hourly")
    (act,) = ground.tables.rows("select * from {s}.act")
    assert (act["actor"], act["reason"], act["kind"]) == ("ann", "a test", "schedule added")
    assert act["after"]["catch_up"][0] == "latest"


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ({"reason": " "}, ValueError, "reason="),
        ({"actor": ""}, ValueError, "actor"),
        ({"task": "nothing"}, UnknownTaskError, "nothing"),
        ({"expr": "0 25 * * *"}, ScheduleError, "hour"),
        ({"overlap": "never"}, ValueError, "overlap="),
    ],
)
def test_what_cannot_be_put_is_refused_and_nothing_is_stored(
    ground: Ground, app: Scheduler, change: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        put(app, **change)
    assert app.list_schedules() == []
    assert ground.tables.rows("select id from {s}.act") == []


# -- pause and resume


def test_a_pause_withdraws_what_was_put_ahead_and_leaves_what_is_due(ground: Ground, app: Scheduler) -> None:
    put(app, expr="* * * * *")
    ground.at(hour(9))
    ground.materialise()
    ground.step(hour(9, 1) - 4 * SECOND)
    assert ground.dues()[-2:] == [hour(9), hour(9, 1)]
    waiting = len(ground.dues())
    assert app.pause_schedule("hourly", reason="maintenance", actor="ann")
    assert not app.pause_schedule("hourly", reason="again")
    assert len(ground.dues()) == waiting - 1
    assert ground.dues("cancelled") == [hour(9, 1)]
    ground.step(hour(10))
    assert hour(9, 1) not in ground.dues()
    assert ground.acts("hourly") == ["schedule added", "schedule paused"]


def test_a_resumed_schedule_goes_on_from_now_and_what_was_due_meanwhile_does_not_run(
    ground: Ground, app: Scheduler
) -> None:
    put(app)
    app.pause_schedule("hourly", reason="maintenance")
    ground.at(hour(12, 30))
    assert app.resume_schedule("hourly", reason="done")
    assert not app.resume_schedule("hourly", reason="again")
    for number in (13, 14):
        ground.step(hour(number))
    assert ground.dues() == [hour(13), hour(14)]


def test_a_pause_of_a_moment_loses_nothing_that_was_put_ahead(ground: Ground, app: Scheduler) -> None:
    put(app)
    ground.step(hour(9) - 4 * SECOND)
    cursor = ground.tables.schedule("hourly")["materialised_until"]
    app.pause_schedule("hourly", reason="a moment")
    assert ground.dues() == []
    ground.at(hour(9) - 2 * SECOND)
    app.resume_schedule("hourly", reason="over")
    assert ground.dues() == [hour(9)]
    assert ground.tables.schedule("hourly")["materialised_until"] == cursor
    ground.step(hour(9))
    ground.step(hour(10))
    assert ground.dues() == [hour(9), hour(10)]


def test_an_edit_of_a_schedule_that_was_paused_a_moment_ago_makes_nothing(ground: Ground, app: Scheduler) -> None:
    put(app)
    ground.step(hour(9) - 4 * SECOND)
    app.pause_schedule("hourly", reason="maintenance")
    ground.at(hour(9) - 3 * SECOND)
    assert put(app, priority=5) == "changed"
    assert ground.dues() == []
    ground.at(hour(9) - 2 * SECOND)
    app.resume_schedule("hourly", reason="over")
    ground.step(hour(9))
    assert [(job["due_at"], job["priority"]) for job in ground.tables.jobs() if job["status"] == "ready"] == [
        (hour(9), 5)
    ]


def test_a_pause_outlives_a_deploy(ground: Ground) -> None:
    app = release(ground, "0 9 * * *")
    app.sync_schedules()
    app.pause_schedule("daily", reason="maintenance")
    assert release(ground, "0 10 * * *").sync_schedules() == {"daily": "changed"}
    ground.step(hour(12))
    assert ground.dues() == []
    assert app.list_schedules()[0].state == "paused"


# -- delete


def test_a_deleted_schedule_is_gone_and_only_a_later_release_or_a_person_brings_it_back(ground: Ground) -> None:
    old = release(ground, "0 9 * * *")
    old.sync_schedules()
    ground.at(hour(8, 59) + 57 * SECOND)
    ground.materialise()
    old.delete_schedule("daily", reason="not wanted", actor="ann")
    assert ground.dues("cancelled") == [hour(9)]
    ground.step(hour(10))
    assert ground.dues() == []
    assert old.list_schedules() == []
    assert [one.state for one in old.list_schedules(deleted=True)] == ["deleted"]
    restarted = release(ground, "0 9 * * *")
    assert restarted.sync_schedules() == {"daily": "deleted"}
    with pytest.raises(UnknownScheduleError, match="it was deleted at"):
        old.pause_schedule("daily", reason="x")
    assert release(ground, "0 11 * * *").sync_schedules() == {"daily": "added"}
    ground.step(hour(12))
    assert ground.dues() == [hour(11)], "and not what was due in between"
    assert ground.acts("daily") == ["schedule added", "schedule deleted", "schedule added"]
    old.delete_schedule("daily", reason="again")
    assert put(old, "daily", "0 9 * * *") == "added"


def test_what_ran_does_not_run_again_when_a_deleted_schedule_comes_back(ground: Ground, app: Scheduler) -> None:
    put(app)
    ground.step(hour(9))
    app.delete_schedule("hourly", reason="x")
    put(app)
    ground.tables.rows("update {s}.schedule set materialised_until = %(t)s, next_at = %(t)s", t=START)
    ground.step(hour(9) + MINUTE)
    assert ground.dues() == [hour(9)]


def test_deleting_skips_what_waited_for_its_turn(ground: Ground, app: Scheduler) -> None:
    put(app, overlap="buffer_all")
    for number in (9, 10):
        ground.step(hour(number))
    app.delete_schedule("hourly", reason="x")
    assert ground.ledger("hourly") == [(hour(9), "enqueued"), (hour(10), "skipped")]
    ground.hand.complete(ground.hand.claim_one())
    ground.decide()
    assert ground.hand.claim() == []


@pytest.mark.parametrize("act", ["pause_schedule", "resume_schedule", "delete_schedule", "show_schedule"])
def test_a_schedule_that_there_is_not_is_said_so(app: Scheduler, act: str) -> None:
    more = {} if act == "show_schedule" else {"reason": "x"}
    with pytest.raises(UnknownScheduleError, match="no schedule 'nothing'"):
        getattr(app, act)("nothing", **more)


# -- backfill


def test_a_backfill_makes_what_the_ledger_does_not_have_and_doubles_nothing(ground: Ground, app: Scheduler) -> None:
    ground.at(hour(12))
    put(app)
    ground.step(hour(13))
    look = app.backfill_schedule("hourly", hour(8), hour(13), reason="x", dry_run=True)
    assert [one.state for one in look] == ["enqueued"] * 4 + ["present"]
    assert ground.dues() == [hour(13)]
    made = app.backfill_schedule("hourly", hour(8), hour(13), reason="new report", actor="ann")
    assert made == look
    assert ground.dues() == [hour(9), hour(10), hour(11), hour(12), hour(13)]
    again = app.backfill_schedule("hourly", hour(7), hour(13), reason="once more")
    assert [one.state for one in again] == ["enqueued"] + ["present"] * 5
    ground.step(hour(13, 30))
    assert len(ground.dues()) == 6
    act = ground.tables.rows("select * from {s}.act where kind = 'schedule backfilled' order by id")[0]
    assert (act["actor"], act["reason"], act["after"]["made"]) == ("ann", "new report", 4)


def test_a_backfill_before_what_the_ledger_is_sure_to_know_wants_force(ground: Ground, app: Scheduler) -> None:
    put(app, expr="0 9 * * *")
    early, late = START - LEDGER_KEPT - DAY, START - LEDGER_KEPT + DAY
    with pytest.raises(LedgerHorizonError, match="ask with force") as refused:
        app.backfill_schedule("hourly", early, late, reason="x")
    assert refused.value.horizon == START - LEDGER_KEPT
    assert pickle.loads(pickle.dumps(refused.value)).horizon == refused.value.horizon
    assert ground.tables.jobs() == []
    assert len(app.backfill_schedule("hourly", early, late, reason="x", force=True)) == 2
    ground.tables.rows("update {s}.schedule set ledger_from = %(t)s", t=START - DAY)
    with pytest.raises(LedgerHorizonError):
        app.backfill_schedule("hourly", START - 2 * DAY, START, reason="x")
    assert len(app.backfill_schedule("hourly", START - DAY, START, reason="x")) == 1


def test_what_was_skipped_or_superseded_is_not_made_by_a_backfill_unless_the_ledger_forgot_it(
    ground: Ground, app: Scheduler
) -> None:
    put(app, catch_up="none")
    ground.step(hour(11))
    assert [state for _, state in ground.ledger("hourly")] == ["skipped", "skipped", "enqueued"]
    made = app.backfill_schedule("hourly", hour(8), hour(11), reason="x")
    assert [one.state for one in made] == ["present"] * 3


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "buffer_all", "cancel_other"])
def test_a_backfill_of_a_schedule_that_minds_overlap_runs_one_after_another(
    ground: Ground, app: Scheduler, overlap: str
) -> None:
    ground.at(hour(12, 30))
    put(app, overlap=overlap)
    app.backfill_schedule("hourly", hour(9), hour(12), reason="x")
    ran = []
    for _ in range(3):
        ground.decide()
        job = ground.hand.claim_one()
        ground.decide()
        assert ground.hand.claim() == []
        ground.hand.complete(job)
        ran.append(job.due_at)
    assert ran == [hour(10), hour(11), hour(12)]


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        (hour(7), hour(9), "the window ends at"),
        (hour(7), hour(7), "the window is empty"),
        (datetime(2026, 3, 1), hour(7), "start is an aware datetime"),
        (hour(7), "today", "end is an aware datetime"),
    ],
)
def test_a_window_that_makes_no_sense_is_refused(app: Scheduler, start: Any, end: Any, says: str) -> None:
    put(app)
    with pytest.raises(ValueError, match=says):
        app.backfill_schedule("hourly", start, end, reason="x")


def test_a_backfill_has_a_bound(app: Scheduler) -> None:
    put(app, expr="* * * * *")
    with pytest.raises(ValueError, match="more than 10,000"):
        app.backfill_schedule("hourly", START - 8 * DAY, START, reason="x")


# -- looked at


def test_a_schedule_is_listed_shown_and_looked_ahead(ground: Ground, app: Scheduler) -> None:
    put(app, "b", "30 2 * * *", tz="Europe/Berlin", overlap="skip")
    put(app, "a", "0 9 2 3 *", end_at=hour(10))
    put(app, "c")
    ground.step(hour(9))
    app.pause_schedule("c", reason="x")
    assert [(one.name, one.state, one.live) for one in app.list_schedules()] == [
        ("a", "ended", 1),
        ("b", "active", 0),
        ("c", "paused", 1),
    ]
    b = app.list_schedules()[1]
    assert (b.expr, b.tz, b.overlap, b.next_at) == ("30 2 * * *", "Europe/Berlin", "skip", hour(1, 30, day=3))
    told = app.show_schedule("c")
    assert [one["job_status"] for one in told.occurrences] == ["ready"]
    assert [act["kind"] for act in told.acts] == ["schedule added", "schedule paused"]
    ahead = app.next_occurrences("c", 3)
    assert [one.due_at for one in ahead] == [hour(10), hour(11), hour(12)], "also while it is paused"
    assert app.next_occurrences("a") == []
    spring = app.next_occurrences("b", 2, after=datetime.fromisoformat("2026-03-28T12:00Z"))
    assert [one.due_at.isoformat() for one in spring] == ["2026-03-29T01:00:00+00:00", "2026-03-30T00:30:00+00:00"]
    with pytest.raises(ValueError, match="after= has no time zone"):
        app.next_occurrences("b", after=datetime(2026, 3, 28))
    json.dumps(b.as_json(), default=str)


@pytest.mark.parametrize(
    ("options", "due"),
    [
        ({"expr": "0 0 29 2 1", "day_or": False}, "2044-02-29T00:00Z"),  # a Monday
        ({"start_at": datetime(2080, 6, 1, tzinfo=UTC)}, "2080-06-01T00:00Z"),
    ],
)
def test_a_schedule_whose_next_occurrence_is_decades_away_has_not_ended(
    ground: Ground, app: Scheduler, options: dict[str, Any], due: str
) -> None:
    put(app, **options)
    moment = datetime.fromisoformat(due)
    (shown,) = app.list_schedules()
    assert (shown.state, shown.next_at) == ("active", moment)
    assert [one.due_at for one in app.next_occurrences("hourly", 1)] == [moment]
    ground.step(moment)
    assert ground.dues() == [moment]


@pytest.mark.parametrize(
    "options",
    [
        {"max_gap": timedelta.max},
        {"max_gap": timedelta(0)},
        {"grace": timedelta(days=36_525), "catch_up_limit": 2**31 - 1},
        {"start_at": datetime.min.replace(tzinfo=UTC), "end_at": datetime.max.replace(tzinfo=UTC)},
    ],
    ids=str,
)
def test_options_at_their_ends_are_stored_and_used(ground: Ground, app: Scheduler, options: dict[str, Any]) -> None:
    put(app, **options)
    assert put(app, **options) == "unchanged"
    ground.step(hour(10))
    assert ground.dues() == [hour(9), hour(10)]


@pytest.mark.parametrize("year", [9899, 9950, 9999])
def test_at_the_end_of_the_calendar_nothing_is_due_and_nothing_fails(ground: Ground, app: Scheduler, year: int) -> None:
    put(app, "before", "0 0 1 7 *")
    ground.at(datetime(year, 12, 31, tzinfo=UTC))
    put(app, "now", "0 0 1 7 *")
    assert {one.name: one.state for one in app.list_schedules()} == {"before": "active", "now": "ended"}
    assert app.next_occurrences("before") == []


# -- releases


def test_an_old_release_that_goes_on_does_not_flip_a_schedule_back(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = release(ground, "0 9 * * *"), release(ground, "0 10 * * *")
    assert old.sync_schedules() == {"daily": "added"}
    assert new.sync_schedules() == {"daily": "changed"}
    for _ in range(3):
        assert old.sync_schedules() == {"daily": "deferred"}
        assert "1 schedules stay as they are in the database, declared otherwise by a newer release" in caplog.text
        assert release(ground, "0 9 * * *").sync_schedules() == {"daily": "deferred"}, "a process that starts anew"
        assert new.sync_schedules() == {"daily": "unchanged"}
    caplog.clear()
    old.run_until_idle()
    assert caplog.text == "", "it was said once"
    assert in_force(ground) == "0 10 * * *"
    assert ground.acts("daily") == ["schedule added", "schedule changed"]


@pytest.mark.parametrize("how", ["its worker closed", "not seen any more", "said to be the last deploy"])
def test_after_a_rollback_the_old_release_prevails_and_stays(ground: Ground, how: str) -> None:
    old, new = release(ground, "0 9 * * *"), release(ground, "0 10 * * *")
    for one in (old, new):
        one.sync_schedules()
    if how == "its worker closed":
        new.run_until_idle()
        new.close()
    if how == "not seen any more":
        ground.at(START + timedelta(seconds=PATIENCE + 1))
    assert old.sync_schedules(last=how == "said to be the last deploy") == {"daily": "changed"}
    assert in_force(ground) == "0 9 * * *"
    assert release(ground, "0 10 * * *").sync_schedules() == {"daily": "deferred"}


def test_the_registrar_of_a_worker_notices_when_the_newer_release_has_gone(ground: Ground) -> None:
    old, new = release(ground, "0 9 * * *"), release(ground, "0 10 * * *")
    for one in (old, new, old):
        one.sync_schedules()
    registrar = old._here().registrar
    registrar.run_once()
    assert in_force(ground) == "0 10 * * *"
    new.run_until_idle()
    new.close()
    registrar.run_once()
    assert in_force(ground) == "0 9 * * *"


def test_a_newer_release_that_agrees_keeps_the_schedule_when_the_one_that_put_it_there_has_gone(ground: Ground) -> None:
    oldest, first = release(ground, "0 8 * * *"), release(ground, "0 9 * * *")
    for one in (oldest, first):
        one.sync_schedules()
    second = release(ground, "0 9 * * *")
    second.schedule("another", "0 * * * *", tz="UTC", task="send")
    assert second.sync_schedules() == {"daily": "unchanged", "another": "added"}
    first.run_until_idle()
    first.close()
    assert oldest.sync_schedules() == {"daily": "deferred"}


def test_a_persons_change_outlives_the_releases_that_were_there(ground: Ground) -> None:
    old = release(ground, "0 9 * * *")
    old.sync_schedules()
    assert put(old, "daily", "0 12 * * *") == "changed"
    assert old.sync_schedules() == {"daily": "deferred"}
    ground.at(START + DAY)
    assert release(ground, "0 9 * * *").sync_schedules() == {"daily": "deferred"}
    assert release(ground, "0 10 * * *").sync_schedules() == {"daily": "changed"}


def test_equal_declarations_cost_one_look_for_all(ground: Ground, app: Scheduler) -> None:
    for number in range(300):
        app.schedule(f"s{number}", f"{number % 60} * * * *", tz="UTC", task="send")
    assert set(app.sync_schedules().values()) == {"added"}
    before = ground.tables.rows("select xmin::text, name from {s}.schedule order by name")
    assert set(app.sync_schedules().values()) == {"unchanged"}
    assert ground.tables.rows("select xmin::text, name from {s}.schedule order by name") == before


# -- zone data


@pytest.fixture
def old_zones(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Turns a process's zone data into that of an older release, and back."""
    data = Path(__file__).parents[1] / "data" / "zoneinfo_2025b"
    old = ZoneSource(data, ["America/Vancouver", "Africa/Casablanca"], "2025b")
    new = packaged_zones()

    def use(older: bool) -> None:
        source = old if older else new
        monkeypatch.setattr("scheduler._zones.packaged_zones", lambda: source)
        monkeypatch.setattr("scheduler._schedule.packaged_zones", lambda: source)

    return use


def utc(text: str) -> datetime:
    return datetime.fromisoformat(f"{text}+00:00")


def test_newer_zone_data_moves_what_lies_ahead_and_is_audited(
    ground: Ground, app: Scheduler, old_zones: Callable[[bool], None]
) -> None:
    """Vancouver stopped to change its clocks: 9:30 in November is an hour earlier than the old data says."""
    ground.at(utc("2026-11-10T00:00"))
    put(app, "same zone", "0 0 1 1 *")
    ground.tables.rows("update {s}.schedule set zone_version = '2025b'")
    old_zones(True)
    put(app, expr="30 9 * * *", tz="America/Vancouver")
    ground.step(utc("2026-11-10T12:00"))
    old = ground.tables.schedule("hourly")
    assert old["next_at"] == utc("2026-11-10T17:30")
    old_zones(False)
    ground.materialise()
    row = ground.tables.schedule("hourly")
    assert row["next_at"] == utc("2026-11-10T16:30")
    assert row["zone_version"] == ground.tables.schedule("same zone")["zone_version"] > "2025b"
    assert row["zone_hash"] != old["zone_hash"]
    ground.step(utc("2026-11-10T16:30"))
    assert [job["due_at"] for job in ground.tables.jobs() if job["schedule"] == "hourly"] == [utc("2026-11-10T16:30")]
    ground.step(utc("2026-11-10T18:00"))
    assert len(ground.tables.occurrences("hourly")) == 1
    act = ground.tables.rows("select * from {s}.act where kind = 'zone data changed'")
    assert [(one["subject"], one["before"]["zone_version"]) for one in act] == [("schedule/hourly", "2025b")]


def test_what_newer_data_moves_behind_the_cursor_runs_late_and_not_never(
    ground: Ground, app: Scheduler, old_zones: Callable[[bool], None]
) -> None:
    old_zones(True)
    ground.at(utc("2026-11-10T00:00"))
    put(app, expr="30 9 * * *", tz="America/Vancouver")
    put(app, "dropped", "30 9 * * *", tz="America/Vancouver", catch_up="none")
    put(app, "later", "30 9 * * *", tz="America/Vancouver")
    ground.step(utc("2026-11-10T17:00"))  # past the new time, before the old one
    put(app, "later", "30 9,23 * * *", tz="America/Vancouver")  # begins now
    assert ground.tables.jobs() == []
    old_zones(False)
    ground.materialise()
    assert ground.ledger("hourly") == [(utc("2026-11-10T16:30"), "enqueued")]
    assert ground.ledger("dropped") == [(utc("2026-11-10T16:30"), "skipped")]
    assert ground.ledger("later") == [], "nothing from before it began"
    ground.step(utc("2026-11-10T18:00"))
    assert len(ground.tables.jobs()) == 1, "the same occurrence, not another at the old time"


def test_what_newer_data_moves_into_what_was_made_already_follows_the_policy_and_is_told(
    ground: Ground, app: Scheduler, old_zones: Callable[[bool], None]
) -> None:
    """At 17:40 the cursor is past 17:30, which was 9:30 by the old data and is 10:30 by the new."""
    old_zones(True)
    ground.at(utc("2026-11-10T00:00"))
    for name, options in {"all": {}, "none": {"catch_up": "none"}, "paused": {}, "later": {}}.items():
        put(app, name, "30 9,10 * * *", tz="America/Vancouver", **options)
    put(app, "elapsed", "*/30 9 * * *", tz="America/Vancouver")
    ground.step(utc("2026-11-10T17:30"))
    app.pause_schedule("paused", reason="maintenance")
    ground.at(utc("2026-11-10T17:40"))
    put(app, "later", "30 9,10,23 * * *", tz="America/Vancouver")  # begins now
    old_zones(False)
    ground.materialise()
    ran = (utc("2026-11-10T17:30"), "enqueued")
    assert ground.ledger("all") == [ran, ran]
    assert ground.ledger("none") == [ran, (ran[0], "skipped")]
    assert ground.acts("none") == ["schedule added", "occurrences skipped", "zone data changed"]
    assert ground.ledger("paused") == ground.ledger("later") == [ran]
    assert ground.ledger("elapsed") == [(utc("2026-11-10T17:00"), "enqueued"), ran], "the past had its own"


def test_the_second_of_two_equal_local_times_that_newer_data_brings_runs_where_both_are_wanted(
    ground: Ground, app: Scheduler, old_zones: Callable[[bool], None]
) -> None:
    """By the newer data Casablanca's clocks go back from 2:00 to 1:00 on that night, by the old they do not."""
    old_zones(True)
    ground.at(utc("2026-09-20T00:00"))
    for fold in ("both", "first"):
        put(app, fold, "30 1,2 * * *", tz="Africa/Casablanca", fold=fold)
    ground.step(utc("2026-09-20T01:30"))
    ran = [(utc("2026-09-20T00:30"), "enqueued"), (utc("2026-09-20T01:30"), "enqueued")]
    assert ground.ledger("both") == ground.ledger("first") == ran
    old_zones(False)
    ground.materialise()
    assert ground.ledger("both") == [*ran, ran[-1]]
    assert ground.ledger("first") == ran


def test_a_schedule_whose_key_is_taken_stops_no_other_when_the_zone_data_changes(
    ground: Ground, app: Scheduler, old_zones: Callable[[bool], None]
) -> None:
    """10:30, an hour ahead by the old data, is behind the cursor by the new."""
    old_zones(True)
    ground.at(utc("2026-11-10T00:00"))
    for name in ("daily", "taken"):
        put(app, name, "30 9,10 * * *", tz="America/Vancouver")
    put(app, "hourly", "0 * * * *", tz="America/Vancouver")
    ground.step(utc("2026-11-10T17:31"))
    own = app.enqueue("other", key="taken@2026-11-10T10:30:00[America/Vancouver]/0", due_at=utc("2027-01-01T00:00"))
    old_zones(False)
    ground.materialise()
    both = [(utc("2026-11-10T17:30"), "enqueued")] * 2
    assert ground.ledger("daily") == both
    assert ground.ledger("taken") == both[:1]
    assert ground.tables.schedule("taken")["zone_version"] == "2025b", "to be tried again"
    ground.step(utc("2026-11-10T18:00"))
    assert ground.ledger("hourly")[-1] == (utc("2026-11-10T18:00"), "enqueued")
    app.cancel(own.id, reason="the key is free again")
    ground.materialise()
    assert ground.ledger("taken") == both, "late, and not lost"


def test_what_ran_under_the_old_data_does_not_run_again_under_the_new(
    ground: Ground, app: Scheduler, old_zones: Callable[[bool], None]
) -> None:
    """Casablanca: 9:00 was at 8:00 UTC, and is at 9:00 UTC with newer data."""
    old_zones(True)
    ground.at(utc("2026-10-01T00:00"))
    put(app, expr="0 9 * * *", tz="Africa/Casablanca", fold="second")
    ground.step(utc("2026-10-01T08:00"))
    assert ground.dues() == [utc("2026-10-01T08:00")]
    old_zones(False)
    for hours in (0, 1, 2):
        ground.step(utc("2026-10-01T08:30") + hours * HOUR)
    assert ground.dues() == [utc("2026-10-01T08:00")]
    ground.step(utc("2026-10-02T09:00"))
    assert ground.dues()[1:] == [utc("2026-10-02T09:00")]


def test_a_local_time_that_ran_does_not_run_again_as_another_fold_of_it(
    ground: Ground, app: Scheduler, old_zones: Callable[[bool], None]
) -> None:
    """By the old data Vancouver's clocks go back on that night and 1:30 comes twice; by the new they do not."""
    old_zones(True)
    ground.at(utc("2026-10-31T12:00"))
    put(app, expr="30 1 * * *", tz="America/Vancouver", fold="second")
    ground.step(utc("2026-11-01T09:30"))
    assert ground.dues() == [utc("2026-11-01T09:30")]
    old_zones(False)
    ground.step(utc("2026-11-01T10:00"))
    ground.step(utc("2026-11-02T08:30"))
    assert ground.dues() == [utc("2026-11-01T09:30"), utc("2026-11-02T08:30")]


def test_a_row_that_was_put_ahead_moves_with_the_data(
    ground: Ground, app: Scheduler, old_zones: Callable[[bool], None]
) -> None:
    old_zones(True)
    ground.at(utc("2026-11-10T00:00"))
    put(app, expr="30 9 * * *", tz="America/Vancouver")
    put(app, "overlap", "30 9 * * *", tz="America/Vancouver", overlap="skip")
    ground.materialiser._horizon = 7200.0
    ground.step(utc("2026-11-10T16:00"))
    assert ground.dues() == [utc("2026-11-10T17:30")]
    old_zones(False)
    ground.materialise()
    assert ground.dues() == [utc("2026-11-10T16:30")]
    assert ground.dues("cancelled") == [utc("2026-11-10T17:30")]
    assert ground.ledger("overlap") == [(utc("2026-11-10T16:30"), "waiting")]


def test_a_rule_of_elapsed_time_follows_the_newer_data_from_now_on(
    ground: Ground, app: Scheduler, old_zones: Callable[[bool], None]
) -> None:
    old_zones(True)
    ground.at(utc("2026-11-10T00:00"))
    put(app, expr="*/30 9 * * *", tz="America/Vancouver")
    ground.materialiser._horizon = 7200.0
    ground.step(utc("2026-11-10T16:10"))
    assert ground.dues() == [utc("2026-11-10T17:00"), utc("2026-11-10T17:30")]
    old_zones(False)
    ground.materialise()
    assert ground.dues() == [utc("2026-11-10T16:30")], "and not 16:00, which is over"


def test_a_process_with_older_data_changes_nothing_that_was_computed_from_newer(
    ground: Ground, app: Scheduler, old_zones: Callable[[bool], None]
) -> None:
    ground.at(utc("2026-11-10T00:00"))
    first = release(ground, "30 9 * * *", tz="America/Vancouver")
    first.sync_schedules()
    first.pause_schedule("daily", reason="x")
    before = ground.tables.schedule("daily")
    old_zones(True)
    assert release(ground, "0 9 * * *", tz="America/Vancouver").sync_schedules() == {"daily": "refused"}
    for act in (
        lambda: app.resume_schedule("daily", reason="x"),
        lambda: app.backfill_schedule("daily", utc("2026-11-01T00:00"), utc("2026-11-09T00:00"), reason="x"),
    ):
        with pytest.raises(ScheduleError, match="update the tzdata package"):
            act()
    assert ground.tables.schedule("daily") == before
