"""A cron rule in a zone, and the occurrences that it asks for.

croniter enumerates the days of a rule here, and nowhere else, as naive local midnights; its own handling of zones is
not used. What a clock change makes of a local time is decided in :mod:`scheduler._dst`.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, time, timedelta
from functools import cached_property, lru_cache
from heapq import merge
from itertools import groupby, takewhile
from typing import Final, NamedTuple, get_args
from zoneinfo import ZoneInfo

from croniter import CroniterBadDateError, CroniterError, croniter

from scheduler._crontext import read_cron
from scheduler._dst import ELAPSED, Clock, Fold, Gap, Moment, Policy, earliest_local, latest_local, moments
from scheduler._occurrence import Occurrence, elapsed_key, wall_key
from scheduler._zones import ZoneSource, packaged_zones
from scheduler.errors import ScheduleError

__all__ = ["MAX_JITTER", "MAX_OCCURRENCES", "Clock", "Schedule"]

MAX_OCCURRENCES: Final = 100_000
"""How many occurrences one call gives when it sets no limit of its own."""

MAX_JITTER: Final = timedelta(hours=24)

_START: Final = datetime(1900, 1, 1)
_END: Final = datetime(9900, 1, 1)  # a search for the next match from here still ends before the year 10000
_TICK: Final = timedelta(microseconds=1)
_HOUR: Final = timedelta(hours=1)

# The calendar's rarest day, a 29 February on a given weekday, comes after 40 years at the latest (across 2100).
_RAREST_YEARS: Final = 50


class _Rule(NamedTuple):
    """A parsed rule: the rules of its days (two where either day field may match), and the times of each day."""

    days: tuple[str, ...]
    hours: tuple[timedelta, ...]
    minutes: tuple[timedelta, ...]
    seconds: tuple[timedelta, ...]
    elapsed: bool

    def after(self, start: datetime) -> Iterator[datetime]:
        """The naive local times after ``start``, ascending, each once."""
        for day in self._days_from(datetime.combine(start, time())):
            for hour in self.hours:
                base = day + hour
                if base + _HOUR > start:
                    times = (base + minute + second for minute in self.minutes for second in self.seconds)
                    yield from (nominal for nominal in times if nominal > start)

    def _days_from(self, midnight: datetime) -> Iterator[datetime]:
        walks = [_walk(days, midnight - _HOUR) for days in self.days]
        return walks[0] if len(walks) == 1 else (day for day, _ in groupby(merge(*walks)))


def _walk(days: str, start: datetime) -> Iterator[datetime]:
    day: datetime | None = start
    while (day := _next_day(days, day)) is not None:
        yield day


@lru_cache(maxsize=1 << 16)
def _next_day(days: str, after: datetime) -> datetime | None:
    """The first midnight of a rule's days after a moment, or ``None``. Kept, since many schedules share few days."""
    # A croniter holds its position, so that each search is made on a copy (which shares the parsed fields).
    search = copy.copy(_enumerator(days))
    search.set_current(after)
    try:
        found: datetime = search.get_next()
    except CroniterBadDateError:
        return None
    return found


@lru_cache(maxsize=4096)
def _enumerator(days: str) -> croniter:
    return croniter(
        days, datetime(2000, 1, 1), ret_type=datetime, day_or=False, max_years_between_matches=_RAREST_YEARS
    )


@lru_cache(maxsize=4096)
def _parse(expr: str, day_or: bool, seconds: bool) -> _Rule:
    """Parse a rule once. Raises :class:`ScheduleError` for a text without meaning and for a rule that never fires."""
    text = read_cron(expr, seconds=seconds)
    fields = [(text.day, text.weekday)]
    # Vixie's rule for the two day fields: either may match, unless one of them begins with '*', then both must.
    # croniter loses days when it joins '#', 'L' or 'W' with the other field, so each gets an enumeration of its own.
    if day_or and not text.starred & {"day-of-month", "day-of-week"}:
        fields = [("*", "*")] if "*" in fields[0] else [(text.day, "*"), ("*", text.weekday)]
    rules = [f"0 0 {part} {text.month} {weekday}" for day, weekday in fields for part in _day_parts(day)]
    days = tuple(found for rule in rules if (found := _days(expr, rule)))
    if not days:
        position, length = text.day_place
        raise ScheduleError(
            "the rule never fires: no month that it names has such a day",
            expr=expr, field="day-of-month", position=position, length=length,
        )  # fmt: skip
    return _Rule(
        days,
        hours=tuple(timedelta(hours=hour) for hour in text.hours),
        minutes=tuple(timedelta(minutes=minute) for minute in text.minutes),
        seconds=tuple(timedelta(seconds=second) for second in text.seconds),
        elapsed=bool(text.starred & {"second", "minute", "hour"}),
    )


def _day_parts(day: str) -> tuple[str, ...]:
    """The day-of-month field in parts: ``L`` apart, since croniter reads it and thirty numbers as every day."""
    numbers = day.removesuffix(",L")
    return (day,) if numbers == day else (numbers, "L")


def _days(expr: str, rule: str) -> str | None:
    """The rule of a rule's days if there are any. Raises :class:`ScheduleError` for one that croniter refuses."""
    try:
        return rule if _next_day(rule, datetime(2000, 1, 1)) is not None else None
    except CroniterError as error:
        raise ScheduleError(f"the installed croniter does not accept it ({error})", expr=expr) from error


@dataclass(frozen=True)
class Schedule:
    """A cron rule in a zone: pure, immutable, and the same on every machine that has the same zone data.

    Attributes:
        expr: the rule. Five fields (minute, hour, day of month, month, day of week), or ``@hourly`` ``@daily``
            ``@midnight`` ``@weekly`` ``@monthly`` ``@yearly`` ``@annually``, which mean just their five fields.
            At most 256 characters. ``L``, ``15W``, ``2#3`` and ``L5`` are understood, ``H``, ``R`` and years refused.
        tz: the IANA name of the zone whose wall clock the rule names.
        clock: ``wall`` follows the wall clock, by ``gap`` and ``fold``; ``elapsed`` fires at every instant at which the
            wall clock shows a matching time; ``auto`` is Vixie cron's rule: elapsed if the minute, hour or second field
            begins with ``*``, else wall.
        gap: a wall time that the clock jumps over runs at the first instant ``after`` the gap, or as far after it as it
            lies within it (``shift``), or not (``skip``).
        fold: a wall time that comes twice runs the ``first`` time, the ``second`` or ``both``.
        max_gap: wall times in a longer gap (Apia's skipped day) do not run; ``None`` sets no bound.
        day_or: if both day fields are restricted, either may match; ``False``: both must. A day field that begins with
            ``*`` always means both, as in Debian's cron.
        seconds: the rule has six fields, the second first.
        start_at, end_at: aware; nothing is due before the one or after the other. Both may themselves be due.
        jitter: the most by which an occurrence is late, in seconds or as a timedelta, at most 24 hours. Drawn from the
            occurrence's key and ``jitter_seed``, so that everyone computes the same. It never reaches the next
            occurrence or passes ``end_at``, and does not touch the key.
        jitter_seed: what tells this schedule from others with the same rule, such as its name.
        zones: the zone data; the installed ``tzdata`` package unless given.

    Raises :class:`~scheduler.errors.ScheduleError` (a ``ValueError``) that shows the place of what it cannot accept,
    also for a rule that never fires.
    """

    expr: str
    tz: str = "UTC"
    clock: Clock = "auto"
    gap: Gap = "after"
    fold: Fold = "first"
    max_gap: timedelta | None = timedelta(hours=3)
    day_or: bool = True
    seconds: bool = False
    start_at: datetime | None = None
    end_at: datetime | None = None
    jitter: timedelta | float = 0
    jitter_seed: str = ""
    zones: ZoneSource | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, allowed in (("clock", Clock), ("gap", Gap), ("fold", Fold)):
            _one_of(name, getattr(self, name), get_args(allowed))
        if self.max_gap is not None and not isinstance(self.max_gap, timedelta):
            raise TypeError(f"max_gap is a timedelta, or None for no bound, not {self.max_gap!r}")
        if self.max_gap is not None and self.max_gap < timedelta():
            text = str(self.max_gap)
            raise ScheduleError("it is at least 0, or None for no bound", expr=text, field="max_gap", length=len(text))
        # Derived at once, so that what cannot be derived is refused here and not at the first use.
        _ = self._rule, self._zone, self._bounds, self._span

    def __getstate__(self) -> dict[str, object]:
        # A copy derives the rest anew: a zone read from the package's data cannot be pickled.
        return {option.name: getattr(self, option.name) for option in fields(self)}

    @cached_property
    def _rule(self) -> _Rule:
        return _parse(self.expr, bool(self.day_or), bool(self.seconds))

    @cached_property
    def _zone(self) -> ZoneInfo:
        return (self.zones or packaged_zones()).zone(self.tz)

    @cached_property
    def _bounds(self) -> tuple[datetime, datetime]:
        """The window that the schedule is confined to: after the first instant, and not after the second."""
        start = datetime.min if self.start_at is None else _instant("start_at", self.start_at)
        before = max(start, datetime.min + _TICK) - _TICK
        last = _END if self.end_at is None else min(_END, _instant("end_at", self.end_at))
        if before >= _END:
            text = str(self.start_at)
            problem = f"the calendar is known up to {_END:%Y}, and nothing is due after it"
            raise ScheduleError(problem, expr=text, field="start_at", length=len(text))
        if before >= last:
            text = f"{self.start_at} .. {self.end_at}"
            raise ScheduleError("the schedule ends before it starts", expr=text, field="end_at", length=len(text))
        return before, last

    @cached_property
    def _span(self) -> timedelta:
        """The most by which an occurrence is late."""
        try:
            span = self.jitter if isinstance(self.jitter, timedelta) else timedelta(seconds=self.jitter)
        except TypeError:
            raise TypeError(f"jitter is a number of seconds or a timedelta, not {self.jitter!r}") from None
        except (OverflowError, ValueError):  # infinite, or not a number
            span = -_TICK
        if not timedelta() <= span <= MAX_JITTER:
            problem = f"it is 0 to {MAX_JITTER // _HOUR} hours, in seconds or as a timedelta"
            raise ScheduleError(problem, expr=str(self.jitter), field="jitter", length=len(str(self.jitter)))
        return span

    @property
    def elapsed(self) -> bool:
        """Whether the schedule follows elapsed time (a key per due instant) or wall time (a key per local time)."""
        return self._rule.elapsed if self.clock == "auto" else self.clock == "elapsed"

    def occurrences(self, after: datetime, until: datetime, *, limit: int | None = None) -> list[Occurrence]:
        """The occurrences due after ``after`` and not after ``until``, both aware, in ascending order.

        Adjoining windows give what the whole window gives, so that the last ``due_at`` may serve as the next ``after``.
        With ``limit``, only the first so many: the rest of a long window is not even computed. Without, a window of
        more than :data:`MAX_OCCURRENCES` is a ``ValueError``. ``after >= until`` gives none. The calendar is known from
        1900 to 9900.
        """
        if limit is not None and limit < 1:
            raise ValueError(f"limit is how many occurrences to give at most, at least 1, not {limit!r}")
        found: list[Occurrence] = []
        for occurrence in self.walk(after, until):
            if limit is None and len(found) == MAX_OCCURRENCES:
                raise ValueError(
                    f"{self.expr!r} has more than {MAX_OCCURRENCES:,} occurrences from {after} to {until}:"
                    " ask for a shorter window, or for the first ones with limit="
                )
            found.append(occurrence)
            if len(found) == limit:
                break
        return found

    def walk(self, after: datetime, until: datetime) -> Iterator[Occurrence]:
        """The same, one by one, each computed when it is asked for: a far ``until`` costs nothing by itself."""
        return self._due(_instant("after", after), _instant("until", until))

    def _due(self, after: datetime, until: datetime) -> Iterator[Occurrence]:
        """The occurrences in the window (naive, in UTC)."""
        before, last = self._bounds
        after = max(after, before)
        if after < _START:
            raise ValueError(f"the calendar is known from {_START:%Y} on, and {after} (UTC) is before it")
        if after >= min(until, last):  # nothing; and near the year 10000 what follows would reckon past its end
            return
        if self._span:
            yield from self._jittered(after, until)
            return
        for moment in self._moments(after, min(until, last)):
            yield self._occurrence(moment, moment.instant)

    def _jittered(self, after: datetime, until: datetime) -> Iterator[Occurrence]:
        """The occurrences that are due in the window once they are late.

        Each is late by less than the distance to the next, so that their order stays as it is without jitter; hence a
        look at the next one, and at those before the window that may be late enough to fall into it.
        """
        before, last = self._bounds
        ahead = self._moments(max(after - self._span, before), min(until, last) + self._span)
        current = next(ahead, None)
        while current is not None and current.instant <= min(until, last):
            following = next(ahead, None)
            room = min(self._span, last - current.instant)
            if following is not None:
                room = min(room, following.instant - current.instant)
            due = current.instant + self._late(current, room)
            if after < due <= until:
                yield self._occurrence(current, due)
            current = following

    def _moments(self, after: datetime, until: datetime) -> Iterator[Moment]:
        """What the rule names in the window."""
        nominals = self._rule.after(earliest_local(after, self._zone))
        end = latest_local(until)
        policy = ELAPSED if self.elapsed else Policy(self.gap, self.fold, self.max_gap)
        for moment in moments(takewhile(lambda nominal: nominal <= end, nominals), self._zone, policy):
            if moment.instant > until:
                return
            if moment.instant > after:
                yield moment

    def _key(self, moment: Moment) -> str:
        return elapsed_key(moment.instant) if self.elapsed else wall_key(self.tz, moment.nominal, moment.fold)

    def _occurrence(self, moment: Moment, due: datetime) -> Occurrence:
        return Occurrence(due.replace(tzinfo=UTC), moment.nominal, moment.fold, moment.merged, self._key(moment))

    def _late(self, moment: Moment, room: timedelta) -> timedelta:
        """How late an occurrence is: from 0 to below ``room``, evenly spread over keys and seeds."""
        digest = hashlib.blake2b(f"{self.jitter_seed}\n{self._key(moment)}".encode(), digest_size=8).digest()
        return _TICK * (int.from_bytes(digest, "big") * (room // _TICK) >> 64)


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ScheduleError(
            f"it is one of {', '.join(allowed)}", expr=str(value), field=name, length=max(1, len(str(value)))
        )


def _instant(name: str, value: datetime) -> datetime:
    """An aware time as a naive one in UTC. A naive one would mean another instant elsewhere, so it is refused."""
    if not isinstance(value, datetime):
        raise TypeError(f"{name} is an aware datetime, not {type(value).__name__} {value!r}")
    if value.utcoffset() is None:
        problem = "the time is naive: give it a zone, such as tzinfo=datetime.UTC"
        raise ScheduleError(problem, expr=str(value), field=name, length=len(str(value)))
    try:
        return value.astimezone(UTC).replace(tzinfo=None)
    except OverflowError:
        problem = "in UTC this time is before the year 1 or after the year 9999"
        raise ScheduleError(problem, expr=str(value), field=name, length=len(str(value))) from None
