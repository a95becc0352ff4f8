"""A second reading of cron rules and clock changes, written to be slow and obvious: no croniter, no PEP 495 comparison.

The rule is asked about one local minute at a time. The zone is walked minute by minute in UTC, and the wall clock is
only ever read (``astimezone``): a jump forward between two minutes is a gap, a minute that is shown twice is a fold.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import cached_property
from typing import NamedTuple

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEK = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
NAMES = {name: number for number, name in enumerate(MONTHS, 1)} | {name: number for number, name in enumerate(WEEK)}


class Run(NamedTuple):
    """What the oracle says about an occurrence, all times naive, the instant in UTC."""

    instant: datetime
    nominal: datetime
    fold: int
    merged: int


@dataclass(frozen=True)
class Rule:
    """A five-field rule as a question about a local time."""

    text: str
    day_or: bool = True

    def at(self, local: datetime) -> bool:
        return local.time() in self.times and self.on(local.date())

    @cached_property
    def times(self) -> frozenset[time]:
        minute, hour, *_ = self.text.split()
        every = (time(n // 60, n % 60) for n in range(24 * 60))
        return frozenset(t for t in every if _number(minute, t.minute, 0, 59) and _number(hour, t.hour, 0, 23))

    def on(self, day: date) -> bool:
        _, _, days, months, weekdays = self.text.lower().split()
        if not _number(months, day.month, 1, 12):
            return False
        in_month = any(_day(item, day) for item in days.split(","))
        in_week = any(_weekday(item, day) for item in weekdays.split(","))
        both = not self.day_or or days[0] in "*?" or weekdays[0] in "*?"
        return in_month and in_week if both else in_month or in_week

    @property
    def elapsed(self) -> bool:
        return any(field.startswith("*") for field in self.text.split()[:2])


def _number(field: str, value: int, low: int, high: int) -> bool:
    return any(_item(item, value, low, high) for item in field.split(","))


def _item(item: str, value: int, low: int, high: int) -> bool:
    item, _, step = item.partition("/")
    if item in "*?":
        first, last = low, high
    else:
        left, dash, right = item.partition("-")
        first = _named(left)
        last = _named(right) if dash else (high if step else first)
    size = high - low + 1
    ahead = (value - first) % size
    return ahead <= last - first + (size if last < first else 0) and ahead % int(step or 1) == 0


def _named(text: str) -> int:
    return NAMES[text.lower()] if text.lower() in NAMES else int(text)


def _day(item: str, day: date) -> bool:
    if item == "l":
        return (day + DAY).month != day.month
    if item.endswith("w"):
        return day == _nearest_weekday(day.year, day.month, int(item[:-1]))
    return _item(item, day.day, 1, 31)


def _nearest_weekday(year: int, month: int, number: int) -> date:
    """Monday to Friday nearest to the day, in the same month; a day past the month's end counts as its last."""
    days = [d for n in range(31) if (d := date(year, month, 1) + DAY * n).month == month]
    wanted = days[min(number, len(days)) - 1]
    # A Saturday is as near to Friday as a Sunday is to Monday; no weekend day ties between two weekdays.
    return min((d for d in days if d.isoweekday() <= 5), key=lambda d: abs(d - wanted))


def _weekday(item: str, day: date) -> bool:
    number = day.isoweekday() % 7
    if item[0] == "l":
        return _named(item[1:]) % 7 == number and (day + 7 * DAY).month != day.month
    item, hash_, nth = item.partition("#")
    if hash_ and (day.day + 6) // 7 != int(nth):
        return False
    return _item(item, number, 0, 6)  # which counts modulo 7, so that 7 is Sunday too


class Tick(NamedTuple):
    """A minute of the walk: what the wall clock shows, how often it shows that, and the minutes it jumped over."""

    instant: datetime
    local: datetime
    clock: time
    fold: int
    twice: bool
    jumped: tuple[datetime, ...]


def walk(zone: tzinfo, start: datetime, end: datetime, margin: timedelta = DAY) -> list[Tick]:
    """The minutes from ``start`` to ``end`` (naive, in UTC). The margins are only walked to know about folds."""
    instants = [start - margin + MINUTE * n for n in range(int((end - start + 2 * margin) / MINUTE) + 1)]
    shown = [instant.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None, fold=0) for instant in instants]
    first: dict[datetime, datetime] = {}
    last: dict[datetime, datetime] = {}
    for instant, local in zip(instants, shown, strict=True):
        first.setdefault(local, instant)
        last[local] = instant
    ticks = []
    for n, (instant, local) in enumerate(zip(instants, shown, strict=True)):
        if n and start < instant <= end:
            before = shown[n - 1]
            jumped = tuple(before + MINUTE * k for k in range(1, int((local - before) / MINUTE)))
            again = instant != first[local]
            ticks.append(Tick(instant, local, local.time(), int(again), first[local] != last[local], jumped))
    return ticks


class Match(NamedTuple):
    """A walked minute that concerns a rule: whether it names it, and which of the minutes jumped over it names."""

    tick: Tick
    named: bool
    jumped: tuple[datetime, ...]


def matches(rule: Rule, ticks: list[Tick]) -> list[Match]:
    concerned = (tick for tick in ticks if tick.jumped or tick.clock in rule.times)
    found = (Match(tick, rule.at(tick.local), tuple(filter(rule.at, tick.jumped))) for tick in concerned)
    return [match for match in found if match.named or match.jumped]


def wall_runs(matched: list[Match], gap: str, fold: str, max_gap: timedelta | None) -> list[Run]:
    """Wall time: what the policies make of the minutes."""
    found: dict[datetime, list[tuple[datetime, int]]] = {}
    for tick, named, jumped in matched:
        if gap != "skip" and (max_gap is None or MINUTE * len(tick.jumped) <= max_gap):
            for nominal in jumped:
                late = nominal - tick.jumped[0] if gap == "shift" else timedelta()
                found.setdefault(tick.instant + late, []).append((nominal, 0))
        if named and (not tick.twice or fold == "both" or fold == ("first", "second")[tick.fold]):
            found.setdefault(tick.instant, []).append((tick.local, tick.fold))
    return [Run(instant, *min(names), len(names)) for instant, names in sorted(found.items())]


def elapsed_runs(matched: list[Match]) -> list[Run]:
    """Elapsed time: every minute at which the wall clock shows a matching time."""
    return [Run(tick.instant, tick.local, tick.fold, 1) for tick, named, _ in matched if named]


def changes(zone: tzinfo, first_year: int, last_year: int) -> Iterator[datetime]:
    """The instants (naive, in UTC, to the minute) from ``first_year`` to ``last_year`` at which the offset changes."""

    def offset(instant: datetime) -> timedelta | None:
        return instant.replace(tzinfo=UTC).astimezone(zone).utcoffset()

    step = timedelta(hours=6)
    instant = datetime.combine(date(first_year, 1, 1), time())
    known = offset(instant)
    while instant.year <= last_year:
        found = offset(instant + step)
        if found != known:
            minutes = range(int(step / MINUTE) + 1)
            yield instant + MINUTE * bisect_left(minutes, True, key=lambda n: offset(instant + MINUTE * n) != known)
        instant, known = instant + step, found
