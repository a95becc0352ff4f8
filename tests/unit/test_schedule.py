"""Schedules: the collected cases, what is refused and where, and what the options mean."""

import copy
import dataclasses
import json
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from scheduler import _schedule
from scheduler._crontext import ALIASES, read_cron
from scheduler._schedule import Schedule
from scheduler._zones import ZoneSource
from scheduler.errors import ScheduleError

DATA = Path(__file__).parents[1] / "data"
CASES = json.loads((DATA / "cron_cases.json").read_text())
RELEASES = json.loads((DATA / "tzdata_cases.json").read_text())
OLD_ZONES = ZoneSource(DATA / "zoneinfo_2025b", {case["tz"] for case in RELEASES}, "2025b")
FAR = datetime(2200, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _each_test_reads_its_rules_anew():
    """What others parsed before is kept. Without this mutation testing takes the first to ask for the only one."""
    for kept in (_schedule._parse, _schedule._enumerator, _schedule._next_day):
        kept.cache_clear()


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def due(schedule: Schedule, after: str, count: int = 3) -> list[str]:
    found = schedule.occurrences(utc(after), FAR, limit=count)
    return [occurrence.due_at.isoformat(sep=" ").removesuffix("+00:00") for occurrence in found]


def case_schedule(case: dict) -> Schedule:
    expr, options = case["expr"], {}
    if case["policy"] == "elapsed":
        options = {"clock": "elapsed"}
    elif case["policy"].startswith("wall:"):
        clock, gap, fold = case["policy"].split(":")
        options = {"clock": clock, "gap": gap, "fold": fold}
    if len(expr.split()) == 6:  # the cases keep croniter's order, with the second last
        *fields, second = expr.split()
        expr, options["seconds"] = " ".join([second, *fields]), True
    max_gap = timedelta(minutes=case["max_gap_minutes"])
    return Schedule(expr, tz=case["tz"], day_or=case["day_or"], max_gap=max_gap, **options)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_collected_cases(case):
    if case["kind"] == "never":
        with pytest.raises(ScheduleError, match="never fires"):
            case_schedule(case)
        return
    found = case_schedule(case).occurrences(utc(case["start_utc"][:-1]), utc(case["until_utc"][:-1]))
    assert [o.due_at for o in found] == [utc(text[:-1]) for text in case["expected_utc"]]


@pytest.mark.parametrize("case", RELEASES, ids=lambda case: f"{case['tz']} {case['expr']}")
@pytest.mark.parametrize(("release", "zones"), [("tzdata_2025b", OLD_ZONES), ("tzdata_2026f", None)])
def test_the_instants_are_those_of_the_zone_data_given(case, release, zones):
    expected = [utc(text[:-1]) for text in case[release]]
    schedule = Schedule(case["expr"], tz=case["tz"], zones=zones)
    assert [o.due_at for o in schedule.occurrences(utc(case["start_utc"][:-1]), expected[-1])] == expected


@pytest.mark.parametrize("case", RELEASES, ids=lambda case: f"{case['tz']} {case['expr']}")
def test_an_occurrence_keeps_its_wall_clock_key_when_new_zone_data_moves_its_instant(case):
    new = Schedule(case["expr"], tz=case["tz"])
    old = dataclasses.replace(new, zones=OLD_ZONES)
    start = utc(case["start_utc"][:-1])
    before, after = (schedule.occurrences(start, start + timedelta(days=3)) for schedule in (old, new))
    if new.elapsed:
        assert [(o.due_at, o.key) for o in before] == [(o.due_at, o.key) for o in after]
    else:
        assert [o.key for o in before] == [o.key for o in after]
        assert before != after


@pytest.mark.parametrize(
    ("expr", "field", "place", "says"),
    [
        ("60 * * * *", "minute", "60", "60 is not within 0 to 59"),
        ("0 1,24 * * *", "hour", "24", "not within 0 to 23"),
        ("0 0 0 * *", "day-of-month", "0 * *", "not within 1 to 31"),
        ("0 0 1 13 *", "month", "13", "not within 1 to 12"),
        ("0 0 * * 8", "day-of-week", "8", "0 to 6 or 7"),
        ("0 0 * * mun", "day-of-week", "mun", "from sun to sat"),
        ("0 0 * mon *", "month", "mon", "from jan to dec"),
        ("0 0 * * Mon-Mon", "day-of-week", "Mon-Mon", "begins and ends at 1"),
        ("0 0 * * sun-7", "day-of-week", "sun-7", "begins and ends at 0"),
        ("0 0 5-5 * *", "day-of-month", "5-5", "begins and ends"),
        ("7-7/2 * * * *", "minute", "7-7/2", "begins and ends"),
        ("*/0 * * * *", "minute", "*/0", "step of 0"),
        ("*/61 * * * *", "minute", "*/61", "begins anew"),
        ("0 */25 * * *", "hour", "*/25", "step of 25"),
        ("1,,2 * * * *", "minute", ",2", "missing beside the comma"),
        ("0 0 1, * *", "day-of-month", " *", "missing beside the comma"),
        ("1-2-3 * * * *", "minute", "1-2-3", "not understood"),
        ("-1 * * * *", "minute", "-1", "not understood"),
        ("5/ * * * *", "minute", "5/", "not understood"),
        ("? * * * *", "minute", "?", "not understood"),
        ("R * * * *", "minute", "R", "use jitter="),
        ("0 R(1-5) * * *", "hour", "R(1-5)", "use jitter="),
        ("H/5 * * * *", "minute", "H/5", "use jitter="),
        ("0 h * * *", "hour", "h", "use jitter="),
        ("0 0 L-3 * *", "day-of-month", "L-3", "not understood"),
        ("0 0 LW * *", "day-of-month", "LW", "15W"),
        ("0 15W * * *", "hour", "15W", "not understood"),
        ("0 0 L5 * *", "day-of-month", "L5", "not understood"),
        ("0 0 32W * *", "day-of-month", "32W", "not within 1 to 31"),
        ("0 0 15W,20 * *", "day-of-month", "15W,20", "stands alone"),
        ("0 0 * * 5L", "day-of-week", "5L", "L5"),
        ("0 0 * * L", "day-of-week", "L", "L5"),
        ("0 0 * * 2#6", "day-of-week", "2#6", "1 to 5"),
        ("0 0 * * 2#0", "day-of-week", "2#0", "1 to 5"),
        ("0 0 2#2 * *", "day-of-month", "2#2", "'#' follows a day of the week"),
        ("0 0 * * *#2", "day-of-week", "*#2", "'#' follows"),
        ("0 0 * * 1,2#3", "day-of-week", "1,2#3", "cannot be mixed"),
        ("0 0 * * *,L5", "day-of-week", "*,L5", "cannot be mixed"),
        ("0 0 30 2 *", "day-of-month", "30 2", "never fires"),
        ("0 0 31 4,6 1#1", "day-of-month", None, None),
        ("0 0 * * * *", None, "*", "seconds=True"),
        ("0 0 * * * * 2027", None, "*", "start_at"),
        ("0 0 * *", None, None, "4 fields and 5"),
        ("0 0 * * *\u00a0", None, "\u00a0", "plain spaces"),
        ("0 0 * * *\n", None, "\n", "plain spaces"),
        ("０ 0 * * *", None, "０", "plain spaces"),
        ("", None, None, "empty"),
        ("  ", None, None, "empty"),
        ("@reboot", None, "@reboot", "enqueue a job at start"),
        ("@hourly 5", None, "@hourly", "each alone"),
        ("0 0 * * " + "1," * 200 + "1", None, None, "256"),
    ],
)
def test_a_mistake_is_refused_with_its_place(expr, field, place, says):
    if says is None:  # either day field may match, so that this one fires on Mondays
        assert Schedule(expr)
        return
    with pytest.raises(ScheduleError, match=says.replace("(", r"\(")) as caught:
        Schedule(expr)
    assert (caught.value.expr, caught.value.field) == (expr, field)
    if place is not None:
        assert expr[caught.value.position :].startswith(place)


def underlined(error: ScheduleError) -> str:
    _, text, carets = str(error).splitlines()
    return text[carets.index("^") : carets.rindex("^") + 1]


@pytest.mark.parametrize(
    ("expr", "options", "wrong"),
    [
        ("  @reboot", {}, "@reboot"),
        (" @hourly 5", {}, "@hourly"),
        ("0 0 * * * 2027", {}, "2027"),
        ("0 0 0 * * * 2027", {"seconds": True}, "2027"),
        ("0 0 * * 1" + "0" * 250, {}, "000"),
        ("1,,2 * * * *", {}, ","),
        ("0 0 * * *", {"clock": "utc"}, "utc"),
        ("0 0 * * *", {"gap": ""}, None),
        ("0 0 * * *", {"start_at": datetime(2026, 1, 2)}, "2026-01-02 00:00:00"),
        ("0 0 * * *", {"jitter": 86401}, "86401"),
    ],
)
def test_no_more_and_no_less_than_what_is_wrong_is_underlined(expr, options, wrong):
    with pytest.raises(ScheduleError) as caught:
        Schedule(expr, **options)
    if wrong is None:
        assert str(caught.value).splitlines()[-1].strip() == "^"
    else:
        assert underlined(caught.value) == wrong


@pytest.mark.parametrize(("seconds", "order"), [(False, "(minute, hour, "), (True, "(second, minute, hour, ")])
def test_too_few_fields_are_told_with_their_order(seconds, order):
    with pytest.raises(ScheduleError) as caught:
        Schedule("0 0 *", seconds=seconds)
    told, _, carets = str(caught.value).splitlines()
    assert (caught.value.position, carets.count("^")) == (5, 1)
    assert told.endswith(f"3 fields and {5 + seconds} are wanted {order}day-of-month, month, day-of-week)")


def test_the_message_shows_the_text_with_the_place_underlined():
    with pytest.raises(ScheduleError) as caught:
        Schedule("30 2 * Jan 1,2,mun")
    assert str(caught.value).splitlines()[1:] == [
        "    30 2 * Jan 1,2,mun",
        "                   ^^^",
    ]


def test_a_long_text_is_shown_around_the_place():
    with pytest.raises(ScheduleError) as caught:
        Schedule("0 0 * * " + "1," * 100 + "mun")
    assert len(str(caught.value).splitlines()[1]) < 100
    assert underlined(caught.value) == "mun"


@pytest.mark.parametrize(
    ("expr", "days"),
    [
        ("0 0 1-31 1-12 0-6", ("*", "*", "*")),
        ("0 0 l dec-jan *", ("L", "1,12", "*")),
        ("0 0 15w */12 fri-mon", ("15W", "1", "0,1,5,6")),
        ("0 0 7 jan-jun/5 2#1,2#5", ("7", "1,6", "2#1,2#5")),
        ("0 0 ? 2,1 l7", ("*", "1,2", "L0")),
        ("0 0 31 11-3/2 0-7/3", ("31", "1,3,11", "0,3,6")),
    ],
)
def test_the_days_of_a_rule_have_one_canonical_text(expr, days):
    text = read_cron(expr, seconds=False)
    assert (text.day, text.month, text.weekday) == days


def test_a_step_as_long_as_the_field_names_its_first_value():
    text = read_cron("*/60 10/60 */24 * * *", seconds=True)
    assert (text.seconds, text.minutes, text.hours) == ((0,), (10,), (0,))


def test_a_rule_of_256_characters_is_the_longest():
    longest = "0 0 * * " + "1," * 123 + "01"
    assert len(longest) == 256
    assert Schedule(longest)
    with pytest.raises(ScheduleError, match="257 characters and 256 are allowed") as caught:
        Schedule("0" + longest)
    assert caught.value.position == 256
    assert len(underlined(caught.value)) == 1


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"clock": "utc"}, "clock"),
        ({"gap": "before"}, "gap"),
        ({"fold": "none"}, "fold"),
        ({"jitter": -1}, "jitter"),
        ({"jitter": float("nan")}, "jitter"),
        ({"jitter": float("inf")}, "jitter"),
        ({"jitter": timedelta(days=2)}, "jitter"),
        ({"start_at": datetime(2026, 1, 1)}, "start_at"),
        ({"end_at": datetime(2026, 1, 1)}, "end_at"),
        ({"start_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))}, "start_at"),
        ({"end_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))}, "end_at"),
        ({"start_at": utc("9950-01-01")}, "start_at"),
        ({"start_at": utc("9950-01-01"), "end_at": utc("9960-01-01")}, "start_at"),
        ({"max_gap": timedelta(-1)}, "max_gap"),
        ({"start_at": utc("2026-01-02"), "end_at": utc("2026-01-01")}, "end_at"),
        ({"tz": "Europe/Atlantis"}, "tz"),
    ],
)
def test_an_option_without_meaning_is_refused_by_name(options, field):
    with pytest.raises(ScheduleError, match=f"^{field}: ") as caught:
        Schedule("0 0 * * *", **options)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"expr": 5}, "a cron rule is a text"),
        ({"max_gap": 3}, "max_gap is a timedelta"),
        ({"start_at": "2026-01-01"}, "start_at is an aware datetime"),
        ({"tz": None}, "tz is the name"),
        ({"tz": UTC}, "tz is the name"),
        ({"jitter": "5"}, "jitter is a number"),
    ],
)
def test_an_argument_of_another_type_is_a_type_error(options, says):
    with pytest.raises(TypeError, match=says):
        Schedule(**{"expr": "0 0 * * *", **options})


@pytest.mark.parametrize(
    ("expr", "elapsed"),
    [
        ("* * * * *", True), ("*/5 2 * * *", True), ("0 * * * *", True), ("0 */2 * * *", True), ("*,5 1 * * *", True),
        ("30 2 * * *", False), ("0 1-23/2 * * *", False), ("0-59 2 * * *", False), ("5/10 2 * * *", False),
        ("30 2 */2 * *", False), ("30 2 * * */2", False), ("30 2 * */3 *", False), ("@hourly", True), ("@daily", False),
    ],
)  # fmt: skip
def test_a_star_at_the_head_of_minute_or_hour_means_elapsed_time(expr, elapsed):
    assert Schedule(expr).elapsed is elapsed
    assert Schedule(expr, clock="elapsed").elapsed
    assert not Schedule(expr, clock="wall").elapsed


def test_a_star_at_the_head_of_the_second_means_elapsed_time_too():
    assert Schedule("*/10 30 2 * * *", seconds=True).elapsed
    assert not Schedule("10 30 2 * * *", seconds=True).elapsed


@pytest.mark.parametrize(("alias", "expr"), ALIASES.items())
def test_an_alias_means_its_five_fields(alias, expr):
    assert due(Schedule(alias.title()), "2026-11-29") == due(Schedule(expr), "2026-11-29")
    assert due(Schedule(alias, seconds=True), "2026-11-29") == due(Schedule(expr), "2026-11-29")


@pytest.mark.parametrize(
    ("expr", "days"),
    [
        ("0 0 * * FRI-MON/3", ["2026-11-30", "2026-12-04", "2026-12-07"]),
        ("0 0 1 Apr-Feb/2 *", ["2026-12-01", "2027-02-01", "2027-04-01"]),
        ("0 0 30-2/2 * *", ["2026-11-30", "2026-12-01", "2026-12-30"]),
        ("0 0 * * 5-7", ["2026-12-04", "2026-12-05", "2026-12-06"]),
        ("0 0 * * 1-7/3", ["2026-11-30", "2026-12-03", "2026-12-06"]),
        ("0 0 * * 0-7/3", ["2026-12-02", "2026-12-05", "2026-12-06"]),
        ("0 0 * * 6/1", ["2026-12-05", "2026-12-12", "2026-12-19"]),
        ("0 0 31/9 * *", ["2026-12-31", "2027-01-31", "2027-03-31"]),
        ("0 0 31W * *", ["2026-11-30", "2026-12-31", "2027-01-29"]),
        ("0 0 1W 5,8 *", ["2027-05-03", "2027-08-02", "2028-05-01"]),
        ("0 0 1,L * *", ["2026-11-30", "2026-12-01", "2026-12-31"]),
        ("0 0 2-31,L * *", ["2026-11-30", "2026-12-02", "2026-12-03"]),
        ("0 0 15 * L5", ["2026-12-15", "2026-12-25", "2027-01-15"]),
        ("0 0 15W * 1#2", ["2026-12-14", "2026-12-15", "2027-01-11"]),
        ("0 0 31 2 1", ["2027-02-01", "2027-02-08", "2027-02-15"]),
        ("0 0 1-31 * ?", ["2026-11-30", "2026-12-01", "2026-12-02"]),
        ("0 0 ? * 1", ["2026-11-30", "2026-12-07", "2026-12-14"]),
        ("0 0 13 * */5", ["2026-12-13", "2027-06-13", "2027-08-13"]),
        ("0 0 * * 1-3#1", ["2026-12-01", "2026-12-02", "2026-12-07"]),
        ("0 0 29 2 *", ["2028-02-29", "2032-02-29", "2036-02-29"]),
    ],
)
def test_which_days_a_rule_names(expr, days):
    assert [text[:10] for text in due(Schedule(expr), "2026-11-29")] == days


def test_a_step_without_a_range_goes_on_to_the_last_value():
    assert [text[11:16] for text in due(Schedule("20/15 5 * * *"), "2026-11-29")] == ["05:20", "05:35", "05:50"]


def test_a_step_from_the_last_value_is_that_value():
    assert due(Schedule("59/15 * * * *"), "2026-11-29") == [
        "2026-11-29 00:59:00", "2026-11-29 01:59:00", "2026-11-29 02:59:00",
    ]  # fmt: skip


def test_days_that_come_once_in_decades_are_found():
    assert due(Schedule("0 0 29 2 1", day_or=False), "2072-03-01", 2) == ["2112-02-29 00:00:00", "2140-02-29 00:00:00"]
    assert due(Schedule("0 0 29 2 *"), "1996-03-01", 2) == ["2000-02-29 00:00:00", "2004-02-29 00:00:00"]


def test_a_fraction_of_a_second_before_an_occurrence_is_before_it():
    schedule = Schedule("* * * * * *", seconds=True)
    late = utc("9899-12-31 00:00:59.999999")  # where a float cannot tell this from the whole minute
    (found,) = schedule.occurrences(late, late + timedelta(seconds=1))
    assert found.due_at == utc("9899-12-31 00:01:00")


def test_six_fields_begin_with_the_second():
    schedule = Schedule("20,40 30 2 * * *", tz="Europe/Berlin", seconds=True)
    assert due(schedule, "2026-11-29 01:30:20") == [
        "2026-11-29 01:30:40", "2026-11-30 01:30:20", "2026-11-30 01:30:40",
    ]  # fmt: skip
    with pytest.raises(ScheduleError, match="5 fields and 6"):
        Schedule("30 2 * * *", seconds=True)


def test_times_that_meet_at_the_end_of_a_gap_are_one_occurrence():
    schedule = Schedule("0,30 2,3 * * *", tz="America/New_York")
    first, second = schedule.occurrences(utc("2026-03-08 06:00"), utc("2026-03-08 08:00"))
    assert (first.due_at, first.nominal, first.merged) == (utc("2026-03-08 07:00"), datetime(2026, 3, 8, 2, 0), 3)
    assert (second.due_at, second.nominal, second.merged) == (utc("2026-03-08 07:30"), datetime(2026, 3, 8, 3, 30), 1)
    shifted = dataclasses.replace(schedule, gap="shift")
    pairs = [(o.nominal.hour, o.merged) for o in shifted.occurrences(utc("2026-03-08 06:00"), utc("2026-03-08 08:00"))]
    assert pairs == [(2, 2), (2, 2)]


def test_a_window_that_begins_just_after_a_gap_has_what_was_shifted_into_it():
    schedule = Schedule("30 2 * * *", tz="America/New_York", gap="shift")
    found = schedule.occurrences(utc("2026-03-08 07:10"), utc("2026-03-08 08:00"))
    assert [(o.due_at, o.nominal) for o in found] == [(utc("2026-03-08 07:30"), datetime(2026, 3, 8, 2, 30))]


def test_a_gap_with_seconds_ends_at_its_second():
    # Liberia's clock went from UTC-0:44:30 to UTC on 1972-01-07, over the first 44.5 minutes of the day.
    schedule = Schedule("0 0,12 * * *", tz="Africa/Monrovia")
    assert due(schedule, "1972-01-06 12:00", 4) == [
        "1972-01-06 12:44:30", "1972-01-07 00:44:30", "1972-01-07 12:00:00", "1972-01-08 00:00:00",
    ]  # fmt: skip


def test_seconds_within_a_gap_and_a_fold_follow_the_policies():
    schedule = Schedule("15,45 30 2 * * *", tz="Europe/Berlin", seconds=True, fold="both")
    (merged,) = schedule.occurrences(utc("2026-03-29 00:00"), utc("2026-03-29 12:00"))
    assert (merged.due_at, merged.nominal, merged.merged) == (
        utc("2026-03-29 01:00"),
        datetime(2026, 3, 29, 2, 30, 15),
        2,
    )
    twice = schedule.occurrences(utc("2026-10-25 00:00"), utc("2026-10-25 12:00"))
    assert [(o.due_at.hour, o.due_at.second, o.fold) for o in twice] == [(0, 15, 0), (0, 45, 0), (1, 15, 1), (1, 45, 1)]


@pytest.fixture
def elsewhere(monkeypatch):
    """The machine's own zone is far from UTC."""
    monkeypatch.setenv("TZ", "XXX-13")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("elsewhere")
def test_the_zone_of_the_machine_is_of_no_account():
    test_a_gap_with_seconds_ends_at_its_second()
    gap = Schedule("30 2 * * *", tz="Europe/Berlin", clock="wall", gap="after")
    assert due(gap, "2026-03-28 12:00") == ["2026-03-29 01:00:00", "2026-03-30 00:30:00", "2026-03-31 00:30:00"]
    every = Schedule("*/20 * * * *", tz="Europe/Berlin")
    assert due(every, "2026-10-25 00:50") == ["2026-10-25 01:00:00", "2026-10-25 01:20:00", "2026-10-25 01:40:00"]


def test_a_long_gap_is_caught_up_only_without_a_bound():
    schedule = Schedule("30 2 * * *", tz="Pacific/Apia")
    window = utc("2011-12-30"), utc("2011-12-31")
    assert [o.due_at for o in schedule.occurrences(*window)] == [utc("2011-12-30 12:30")]
    unbounded = dataclasses.replace(schedule, max_gap=None)
    assert [o.due_at for o in unbounded.occurrences(*window)] == [utc("2011-12-30 10:00"), utc("2011-12-30 12:30")]
    shifted = dataclasses.replace(unbounded, gap="shift")
    (both,) = shifted.occurrences(*window)
    assert (both.due_at, both.nominal, both.merged) == (utc("2011-12-30 12:30"), datetime(2011, 12, 30, 2, 30), 2)


def test_a_gap_of_just_the_bound_is_caught_up():
    schedule = Schedule("30 2 * * *", tz="America/New_York", max_gap=timedelta(hours=1))
    window = utc("2026-03-08"), utc("2026-03-08 12:00")
    assert len(schedule.occurrences(*window)) == 1
    assert dataclasses.replace(schedule, max_gap=timedelta(minutes=59)).occurrences(*window) == []


def test_keys_name_the_wall_time_and_its_fold_or_the_instant():
    wall = Schedule("30 1 * * *", tz="America/New_York", fold="both")
    assert [(o.key, o.fold) for o in wall.occurrences(utc("2026-11-01"), utc("2026-11-02"))] == [
        ("2026-11-01T01:30:00[America/New_York]/0", 0),
        ("2026-11-01T01:30:00[America/New_York]/1", 1),
    ]
    elapsed = dataclasses.replace(wall, clock="elapsed")
    assert [(o.key, o.nominal, o.fold) for o in elapsed.occurrences(utc("2026-11-01"), utc("2026-11-02"))] == [
        ("2026-11-01T05:30:00Z", datetime(2026, 11, 1, 1, 30), 0),
        ("2026-11-01T06:30:00Z", datetime(2026, 11, 1, 1, 30), 1),
    ]


def test_the_bounds_of_a_schedule_may_themselves_be_due():
    schedule = Schedule("0 * * * *", start_at=utc("2026-01-01 02:00"), end_at=utc("2026-01-01 04:00"))
    assert due(schedule, "2025-01-01", 10) == ["2026-01-01 02:00:00", "2026-01-01 03:00:00", "2026-01-01 04:00:00"]
    assert due(schedule, "2026-01-01 02:00", 10) == ["2026-01-01 03:00:00", "2026-01-01 04:00:00"]
    assert schedule.occurrences(utc("2026-01-01 04:00"), FAR) == []
    assert len(schedule.occurrences(datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))) == 3


def test_a_window_may_be_given_in_any_zone():
    schedule = Schedule("0 0 * * *")
    ist = timezone(timedelta(hours=5, minutes=30))
    (found,) = schedule.occurrences(datetime(2026, 1, 1, 5, tzinfo=ist), datetime(2026, 1, 1, 5, 30, tzinfo=ist))
    assert found.due_at == utc("2026-01-01")
    assert found.due_at.tzinfo is UTC


def test_a_window_that_ends_before_it_begins_is_empty():
    schedule = Schedule("* * * * *")
    assert schedule.occurrences(FAR, FAR) == []
    assert schedule.occurrences(FAR, utc("2026-01-01")) == []


@pytest.mark.parametrize("window", [(datetime(2026, 1, 1), FAR), (FAR, datetime(2026, 1, 1))])
def test_a_naive_window_is_refused(window):
    with pytest.raises(ValueError, match=r"(after|until): the time is naive"):
        Schedule("* * * * *").occurrences(*window)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit):
    with pytest.raises(ValueError, match="at least 1"):
        Schedule("* * * * *").occurrences(utc("2026-01-01"), FAR, limit=limit)


def test_a_window_with_too_many_occurrences_is_refused_and_limit_opens_it(monkeypatch):
    assert _schedule.MAX_OCCURRENCES == 100_000
    monkeypatch.setattr(_schedule, "MAX_OCCURRENCES", 1000)
    schedule = Schedule("* * * * * *", seconds=True)
    start = utc("2026-01-01")
    with pytest.raises(ValueError, match=r"more than 1,000 .*limit="):
        schedule.occurrences(start, FAR)
    assert len(schedule.occurrences(start, start + timedelta(seconds=1000))) == 1000
    assert len(schedule.occurrences(start, FAR, limit=1001)) == 1001
    assert len(schedule.occurrences(start, FAR, limit=1)) == 1


def test_the_calendar_begins_in_1900_and_ends_quietly_in_9900():
    schedule = Schedule("0 0 1 1 *", tz="Asia/Tokyo")
    with pytest.raises(ValueError, match="from 1900 on"):
        schedule.occurrences(utc("1899-12-31"), FAR)
    last = schedule.occurrences(utc("9890-06-01"), datetime.max.replace(tzinfo=UTC))
    assert last[-1].nominal == datetime(9900, 1, 1)
    assert Schedule("0 0 29 2 *", jitter=5).occurrences(utc("9899-01-01"), datetime.max.replace(tzinfo=UTC)) == []
    assert schedule.occurrences(utc("9999-12-31"), datetime.max.replace(tzinfo=UTC)) == []


def test_jitter_is_the_same_for_everyone_and_another_for_another_schedule():
    schedule = Schedule("0 2 * * *", tz="Europe/Berlin", jitter=600, jitter_seed="monthly-invoices")
    assert due(schedule, "2026-11-29", 2) == ["2026-11-29 01:08:20.819739", "2026-11-30 01:07:27.119618"]
    other = dataclasses.replace(schedule, jitter_seed="dunning")
    assert due(other, "2026-11-29") != due(schedule, "2026-11-29")
    plain = dataclasses.replace(schedule, jitter=timedelta(0))
    keys = [[o.key for o in each.occurrences(utc("2026-11-29"), FAR, limit=5)] for each in (schedule, other, plain)]
    assert keys[0] == keys[1] == keys[2]


def test_jitter_never_reaches_the_next_occurrence_nor_passes_the_end():
    end = utc("2026-01-01 10:00")
    schedule = Schedule("* * * * *", jitter=timedelta(hours=24), end_at=end)
    found = schedule.occurrences(utc("2026-01-01"), FAR)
    assert len(found) == 601  # that of midnight itself too, which is late
    assert all(o.nominal <= o.due_at.replace(tzinfo=None) < o.nominal + timedelta(minutes=1) for o in found)
    assert found[-1].due_at == end


def test_jitter_spreads_over_its_whole_span():
    found = Schedule("0 * * * *", jitter=1800).occurrences(utc("2026-01-01"), FAR, limit=400)
    late = [(o.due_at.replace(tzinfo=None) - o.nominal).total_seconds() for o in found]
    assert min(late) < 100
    assert max(late) > 1700
    assert 800 < sum(late) / len(late) < 1000


def test_a_late_occurrence_falls_into_the_window_of_its_due_time():
    schedule = Schedule("0 0 * * *", jitter=3600)
    (found,) = schedule.occurrences(utc("2026-01-01"), utc("2026-01-01 23:00"))
    assert found.due_at > utc("2026-01-01")
    assert schedule.occurrences(found.due_at - timedelta(microseconds=1), found.due_at) == [found]
    assert schedule.occurrences(found.due_at, utc("2026-01-01 23:00")) == []


def test_schedules_are_values():
    schedule = Schedule("0 0 * * *", tz="Europe/Berlin")
    assert schedule == Schedule("0 0 * * *", tz="Europe/Berlin")
    assert len({schedule, Schedule("0 0 * * *", tz="Europe/Berlin"), Schedule("0 0 * * *")}) == 2
    assert schedule != dataclasses.replace(schedule, fold="both")
    with pytest.raises(dataclasses.FrozenInstanceError):
        schedule.tz = "UTC"
    for same in (copy.deepcopy(schedule), pickle.loads(pickle.dumps(schedule))):
        assert same == schedule
        assert due(same, "2026-11-29") == due(schedule, "2026-11-29")


def test_a_rule_is_parsed_once_for_all_its_schedules():
    assert Schedule("5 4 * * *", tz="Asia/Tokyo")._rule is Schedule("5 4 * * *", tz="Asia/Dhaka")._rule


def test_one_schedule_in_many_threads_gives_each_the_same():
    schedules = [Schedule("*/7 1-3 13 * 5", tz="Europe/Berlin"), Schedule("*/7 1-3 13 * 5", tz="Asia/Tokyo")] * 20
    expected = [schedule.occurrences(utc("2026-01-01"), FAR, limit=200) for schedule in schedules[:2]]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda schedule: schedule.occurrences(utc("2026-01-01"), FAR, limit=200), schedules))
    assert found == expected * 20


def test_a_refusal_crosses_processes_as_it_is():
    with pytest.raises(ScheduleError) as caught:
        Schedule("0 25 * * *")
    error = caught.value
    for same in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(same) is ScheduleError
        assert (str(same), same.expr, same.field, same.position) == (str(error), "0 25 * * *", "hour", 2)
