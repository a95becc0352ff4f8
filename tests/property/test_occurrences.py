"""Occurrences against a second reading of rule and zone (``support.cron_oracle``), and the laws that they keep.

``FENCING_DEEP=1`` compares every change of offset of every zone from 2000 to 2037; without it, a sample.
"""

import os
import random
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import cache, lru_cache
from itertools import pairwise, product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cron_oracle import Rule, Run, changes, elapsed_runs, matches, walk, wall_runs

from scheduler._schedule import Schedule
from scheduler._zones import packaged_zones

DEEP = os.environ.get("FENCING_DEEP") == "1"
GAPS, FOLDS = ("after", "shift", "skip"), ("first", "second", "both")
MINUTE, THREE_HOURS = timedelta(minutes=1), timedelta(hours=3)
POLICIES = [
    ("auto", "after", "first", THREE_HOURS),
    ("elapsed", "after", "first", THREE_HOURS),
    *product(["wall"], GAPS, FOLDS, [THREE_HOURS]),
    ("wall", "after", "both", None),
]
FAR = datetime(2400, 1, 1, tzinfo=UTC)

# The sample that runs every time takes seconds; the deep run draws as many examples as a night allows.
# A walk through every minute is slow by design, so that no example has a deadline.
few = settings(max_examples=1000 if DEEP else 30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
pytestmark = pytest.mark.timeout(3600 if DEEP else 300)

# What each of them is here for: usual jumps, half an hour, two hours, a day, three hours, jumps at midnight and back
# over it, negative daylight saving, offsets of a quarter hour, many changes of standard time, and none at all.
ODD_ZONES = (
    "America/New_York", "Australia/Lord_Howe", "Antarctica/Troll", "Pacific/Apia", "Antarctica/Casey", "Asia/Beirut",
    "America/Sao_Paulo", "Africa/Cairo", "Europe/Dublin", "Africa/Casablanca", "Pacific/Chatham", "Asia/Pyongyang",
    "America/Havana", "Asia/Gaza", "Europe/Moscow", "America/Caracas", "Asia/Kolkata",
)  # fmt: skip


def distinct_zones() -> list[str]:
    """One name for each content: names that are links to one zone have one hash."""
    source = packaged_zones()
    return sorted({source.zone_hash(name): name for name in sorted(source.names, reverse=True)}.values())


def told(schedule: Schedule, after: datetime, until: datetime) -> list[Run]:
    found = schedule.occurrences(after.replace(tzinfo=UTC), until.replace(tzinfo=UTC))
    assert len({occurrence.key for occurrence in found}) == len(found)
    return [Run(o.due_at.replace(tzinfo=None), o.nominal, o.fold, o.merged) for o in found]


def rules_around(change: datetime, zone_name: str) -> list[str]:
    """Rules that name minutes in and beside the jump, the same ones for the same change."""
    zone = packaged_zones().zone(zone_name)
    after, before = shown(zone, change), shown(zone, change - MINUTE)
    one, two = before.hour, after.hour
    low = min((one + 1) % 24, two)
    return [
        f"30 {low} * * *",
        f"0,30 {one},{low},{two} * * *",
        f"{before.minute} {one} {before.day} {before.month} *",
        f"*/20 {low} * * *",
        "17 1-23/2 */2 * 1-5",
        f"0 {two} * * {after.isoweekday() % 7}",
        "45 0-3,20-23 L * 7#1",
        "0 * * * *",
    ]


@lru_cache(maxsize=256)
def rule_of(text: str) -> Rule:
    return Rule(text)


def compare(zone_name: str, change: datetime, rules: slice) -> int:
    """These rules under every policy on either side of a change of offset; how many comparisons that were."""
    zone, minutes = packaged_zones().zone(zone_name), timedelta(minutes=7)
    jump = abs(shown(zone, change) - shown(zone, change - MINUTE) - MINUTE)
    reach = 2 * jump + timedelta(hours=4)
    around = (change - reach, change + reach)
    beside = (change - minutes, change + minutes), (change + minutes, change + reach)
    ticks = walk(zone, *around, margin=jump + MINUTE)
    done = 0
    for text in rules_around(change, zone_name)[rules]:
        rule = rule_of(text)
        matched = matches(rule, ticks)
        for clock, gap, fold, max_gap in POLICIES:
            schedule = Schedule(text, tz=zone_name, clock=clock, gap=gap, fold=fold, max_gap=max_gap)
            assert schedule.elapsed == (rule.elapsed if clock == "auto" else clock == "elapsed")
            runs = elapsed_runs(matched) if schedule.elapsed else wall_runs(matched, gap, fold, max_gap)
            thorough = clock != "wall" or (gap, fold) == ("shift", "both")
            for start, end in (around, *beside) if thorough else (around,):
                assert told(schedule, start, end) == [run for run in runs if start < run.instant <= end], schedule
                done += 1
    return done


def shown(zone: tzinfo, instant: datetime) -> datetime:
    return instant.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None, fold=0)


@pytest.mark.parametrize("zone_name", distinct_zones() if DEEP else ODD_ZONES)
def test_every_change_of_offset_agrees_with_a_minute_walk(zone_name, record_property):
    found = list(changes(packaged_zones().zone(zone_name), 2000, 2037))
    if DEEP:
        compared = [compare(zone_name, change, slice(None)) for change in found]
    else:  # two changes that follow each other, forward and back as a rule, and half of the rules for either
        first = random.Random(zone_name).randrange(max(1, len(found) - 1))
        compared = [compare(zone_name, change, slice(n, None, 2)) for n, change in enumerate(found[first : first + 2])]
    record_property("changes", len(compared))
    record_property("comparisons", sum(compared))


def numbers(low: int, high: int, names: str = "") -> st.SearchStrategy[str]:
    """A field: ``*``, values, ranges that may wrap, steps, and lists of them."""
    value = st.integers(low, high).map(str)
    if names:
        value |= st.integers(0, high - low).map(lambda n: names.split()[n].title())
    ends = st.tuples(value, value).filter(lambda pair: _value(pair[0], names, low) != _value(pair[1], names, low))
    spans = ends.map("-".join)
    step = st.integers(1, high - low + 1).map(lambda n: f"/{n}")
    item = value | spans | st.builds(str.__add__, spans | value | st.just("*"), step)
    return st.just("*") | st.lists(item, min_size=1, max_size=3).map(",".join)


def _value(text: str, names: str, low: int) -> int:
    return names.split().index(text.lower()) + low if text.lower() in names.split() else int(text)


MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec"
WEEK = "sun mon tue wed thu fri sat"
minutes, hours, months = numbers(0, 59), numbers(0, 23), numbers(1, 12, MONTHS)
month_days = numbers(1, 31) | st.just("?") | st.just("L") | st.integers(1, 31).map("{}W".format)
month_days |= st.builds("{},L".format, numbers(1, 31).filter("*".__ne__) | st.just("2-31"))
nths = st.builds("{}#{}".format, st.sampled_from([*WEEK.split(), "0", "7", "2-4", "sat-1"]), st.integers(1, 5))
lasts = st.sampled_from([*WEEK.split(), "0", "7"]).map("L{}".format)
week_days = numbers(0, 6, WEEK) | st.sampled_from(["?", "7", "5-7", "0-7", "1-7/2"]) | nths | lasts
week_days |= st.lists(nths | lasts, min_size=2, max_size=2).map(",".join)
zone_names = st.sampled_from(ODD_ZONES) | st.sampled_from(distinct_zones())


def schedule_or_none(**options) -> Schedule | None:
    """A schedule, or ``None`` where the rule is one that never fires."""
    try:
        return Schedule(**options)
    except ValueError as error:
        assert "never fires" in str(error)
        return None


@few
@given(days=month_days, months=months, week=week_days, day_or=st.booleans(), year=st.integers(1999, 2110))
def test_the_days_of_a_rule_are_those_that_its_fields_name(days, months, week, day_or, year):
    text = f"30 12 {days} {months} {week}"
    rule, schedule = Rule(text, day_or), schedule_or_none(expr=text, day_or=day_or)
    start, end = date(year, 2, 20), date(year + 1, 3, 10)
    expected = [day for n in range((end - start).days) if rule.on(day := start + timedelta(n))]
    if schedule is None:
        assert expected == []
        return
    window = (datetime(d.year, d.month, d.day, tzinfo=UTC) for d in (start, end))
    assert [occurrence.nominal.date() for occurrence in schedule.occurrences(*window)] == expected


@cache
def changes_of(zone_name: str) -> list[datetime]:
    return list(changes(packaged_zones().zone(zone_name), 2005, 2020))


@st.composite
def schedules_near_changes(draw):
    """A schedule of any rule and policy, and an instant near a change of its zone's offset, if it has any."""
    zone_name = draw(zone_names)
    near = draw(st.sampled_from(changes_of(zone_name) or [datetime(2011, 5, 1)])) + timedelta(
        minutes=draw(st.integers(-36 * 60, 36 * 60))
    )
    days, week = draw(st.tuples(month_days, week_days) | st.just(("*", "*")) | st.just(("*", "*")))
    text = f"{draw(minutes)} {draw(hours)} {days} {draw(months | st.just('*') | st.just('*'))} {week}"
    schedule = schedule_or_none(
        expr=text,
        tz=zone_name,
        clock=draw(st.sampled_from(["auto", "wall", "elapsed"])),
        gap=draw(st.sampled_from(GAPS)),
        fold=draw(st.sampled_from(FOLDS)),
        max_gap=draw(st.sampled_from([THREE_HOURS, None, timedelta(minutes=30)])),
        day_or=draw(st.booleans()),
    )
    return schedule or Schedule("*/7 1,2 * * *", tz=zone_name), near


spans = st.timedeltas(timedelta(0), timedelta(hours=30)).map(
    lambda span: span // timedelta(seconds=1) * timedelta(seconds=1)
)


@few
@given(schedules_near_changes(), spans)
def test_any_rule_and_policy_agrees_with_a_minute_walk(drawn, span):
    schedule, near = drawn
    after, until = near, near + span
    rule = Rule(schedule.expr, schedule.day_or)
    walked = walk(
        packaged_zones().zone(schedule.tz), after.replace(second=0) - timedelta(hours=26), until.replace(second=0)
    )
    matched = matches(rule, walked)
    policy = schedule.gap, schedule.fold, schedule.max_gap
    runs = elapsed_runs(matched) if schedule.elapsed else wall_runs(matched, *policy)
    assert told(schedule, after, until) == [run for run in runs if after < run.instant <= until]


@few
@given(schedules_near_changes(), spans, st.sets(st.integers(0, 59), min_size=1, max_size=4))
def test_a_rule_with_seconds_is_the_rule_of_its_minutes_at_those_seconds(drawn, span, seconds):
    minutely, near = drawn
    minutely = replace(minutely, gap="skip")  # elsewhere several times of a gap may meet on one instant
    after, until = near.replace(second=0), (near + span).replace(second=0)
    text = f"{','.join(map(str, seconds))} {minutely.expr}"
    with_seconds = replace(minutely, expr=text, seconds=True)
    on_the_minute = told(minutely, after - MINUTE, until)
    each = [(run, timedelta(seconds=second)) for run in on_the_minute for second in seconds]
    expected = sorted(Run(run.instant + late, run.nominal + late, run.fold, 1) for run, late in each)
    assert told(with_seconds, after, until) == [run for run in expected if after < run.instant <= until]


@few
@given(schedules_near_changes(), spans, st.lists(st.floats(0, 1), max_size=4), st.sampled_from([0, 90.5, 3600, 86400]))
def test_windows_that_adjoin_give_what_the_whole_gives(drawn, span, cuts, jitter):
    schedule, near = drawn
    schedule = replace(schedule, jitter=jitter)
    after = near.replace(tzinfo=UTC)
    whole = schedule.occurrences(after, after + span)
    edges = sorted([after, after + span, *(after + span * cut for cut in cuts)])
    assert [o for left, right in pairwise(edges) for o in schedule.occurrences(left, right)] == whole


@few
@given(schedules_near_changes(), spans, st.integers(5, 60), st.sampled_from([0, 90.5, 3600]))
def test_a_limit_gives_the_first_and_the_last_of_them_is_where_to_go_on(drawn, span, limit, jitter):
    schedule, near = drawn
    schedule = replace(schedule, jitter=jitter)
    after = near.replace(tzinfo=UTC)
    whole, until, pages = schedule.occurrences(after, after + span), after + span, []
    while page := schedule.occurrences(after, until, limit=limit):
        assert len(page) <= limit
        pages += page
        after = page[-1].due_at
    assert pages == whole


@few
@given(schedules_near_changes(), spans, st.sampled_from([0, 30, timedelta(hours=2)]))
def test_occurrences_ascend_lie_in_the_window_and_have_keys_of_their_own(drawn, span, jitter):
    schedule, near = drawn
    schedule = replace(schedule, jitter=jitter)
    after = near.replace(tzinfo=UTC)
    found = schedule.occurrences(after, after + span)
    assert all(left.due_at < right.due_at for left, right in pairwise(found))
    assert all(after < occurrence.due_at <= after + span for occurrence in found)
    assert all(occurrence.due_at.tzinfo is UTC and occurrence.nominal.tzinfo is None for occurrence in found)
    assert all(occurrence.merged >= 1 and occurrence.fold in (0, 1) for occurrence in found)
    assert len({occurrence.key for occurrence in found}) == len(found)


@few
@given(schedules_near_changes(), st.integers(1, 6))
def test_the_start_is_exclusive_and_the_end_inclusive(drawn, count):
    schedule, near = drawn
    found = schedule.occurrences(near.replace(tzinfo=UTC), FAR, limit=count + 1)
    if len(found) < 2:
        return
    first, last = found[-2:]
    tick = timedelta(microseconds=1)
    assert schedule.occurrences(first.due_at, last.due_at) == [last]
    assert schedule.occurrences(first.due_at - tick, last.due_at - tick) == [first]


@few
@given(schedules_near_changes(), st.sampled_from([1, 90.5, 3600, timedelta(hours=24)]), st.text(max_size=5))
def test_jitter_delays_within_its_bound_and_leaves_the_rest_alone(drawn, jitter, seed):
    schedule, near = drawn
    late = replace(schedule, jitter=jitter, jitter_seed=seed)
    most = jitter if isinstance(jitter, timedelta) else timedelta(seconds=jitter)
    plain = schedule.occurrences(near.replace(tzinfo=UTC), FAR, limit=4)
    for occurrence, following in pairwise(plain):
        room = min(most, following.due_at - occurrence.due_at)
        moved = late.occurrences(occurrence.due_at - timedelta(microseconds=1), FAR, limit=2)
        delayed = next(found for found in moved if found.key == occurrence.key)
        assert timedelta(0) <= delayed.due_at - occurrence.due_at < room
        assert (delayed.nominal, delayed.fold, delayed.merged) == (
            occurrence.nominal,
            occurrence.fold,
            occurrence.merged,
        )
