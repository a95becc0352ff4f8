"""The text of a cron rule: split, checked item by item, and expanded to plain numbers.

Every mistake is reported with its place. What comes out holds numbers, ``*``, ``L``, ``15W``, ``2#3`` and ``L5`` only,
so that no reading of a range, a step or a name is left to the enumerating library: it differs between its versions
(``59/15``), reads ``Mon-Mon`` as every day, and loses values of ranges that wrap (``Apr-Feb/2``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn

from scheduler.errors import ScheduleError

__all__ = ["ALIASES", "MAX_LENGTH", "CronText", "read_cron"]

MAX_LENGTH: Final = 256

ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@dataclass(frozen=True, eq=False, slots=True)
class _Kind:
    """A field of a cron rule: its name and the values it may hold."""

    name: str
    low: int
    high: int
    names: dict[str, int]


def _numbered(first: int, names: str) -> dict[str, int]:
    return {name: number for number, name in enumerate(names.split(), first)}


_SECOND: Final = _Kind("second", 0, 59, {})
_MINUTE: Final = _Kind("minute", 0, 59, {})
_HOUR: Final = _Kind("hour", 0, 23, {})
_DAY: Final = _Kind("day-of-month", 1, 31, {})
_MONTH: Final = _Kind("month", 1, 12, _numbered(1, "jan feb mar apr may jun jul aug sep oct nov dec"))
_WEEKDAY: Final = _Kind("day-of-week", 0, 6, _numbered(0, "sun mon tue wed thu fri sat"))
_FIELDS: Final = (_MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY)

_ITEM: Final = re.compile(
    r"(?:(?P<star>\*)|(?P<first>[0-9a-z]+)(?:-(?P<last>[0-9a-z]+))?)(?:/(?P<step>[0-9]+))?(?:#(?P<nth>[0-9]+))?"
)
_LAST_WEEKDAY: Final = re.compile(r"l(?P<day>[0-9a-z]+)")
_NEAREST: Final = re.compile(r"(?P<day>[0-9]+)w")


@dataclass(frozen=True, slots=True)
class CronText:
    """A checked rule: the times of the day as numbers, the fields that choose the days as canonical text.

    ``starred`` names the fields whose text began with ``*`` (or ``?``): two rules of Vixie's cron hang on that, and
    the canonical form no longer shows it. ``day_place`` is the day-of-month field in the text as given, its position
    and length, for an error about days that never come.
    """

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    day: str
    month: str
    weekday: str
    starred: frozenset[str]
    day_place: tuple[int, int]


class _Word(NamedTuple):
    """A piece of the rule and where it stands in the text as given."""

    text: str
    position: int


class _Place(NamedTuple):
    """Where a check stands: the whole text, the field and the item; its one act is to refuse."""

    expr: str
    kind: _Kind
    item: _Word

    def refuse(self, problem: str) -> NoReturn:
        raise ScheduleError(
            problem, expr=self.expr, field=self.kind.name, position=self.item.position, length=len(self.item.text)
        )


def read_cron(expr: str, *, seconds: bool) -> CronText:
    """Check the text of a rule and expand it.

    Five fields (minute, hour, day of month, month, day of week), or six with ``seconds`` (the second first), or one of
    :data:`ALIASES`. Names and letters in any case. Raises :class:`ScheduleError` with the place of the mistake.

    The grammar is Vixie cron's, with croniter's additions that have one clear meaning: ``?`` (``*`` in a day field),
    ``L`` (the last day of the month), ``15W`` (the weekday, Monday to Friday, nearest the 15th and in its month; a day
    past the month's end counts as its last), ``2#3`` (the third Tuesday), ``L5`` (the last Friday), ``10/15`` (from 10
    in steps of 15), and ranges that wrap (``FRI-MON``, ``22-2``).
    """
    if not isinstance(expr, str):
        raise TypeError(f"a cron rule is a text such as '30 2 * * *', not {type(expr).__name__} {expr!r}")
    words = _split(expr, seconds=seconds)
    kinds = (_SECOND, *_FIELDS) if len(words) == len(_FIELDS) + 1 else _FIELDS
    texts = {kind: _expand(expr, kind, word) for kind, word in zip(kinds, words, strict=True)}
    day = words[kinds.index(_DAY)]
    return CronText(
        seconds=_numbers(_SECOND, texts.get(_SECOND, "0")),
        minutes=_numbers(_MINUTE, texts[_MINUTE]),
        hours=_numbers(_HOUR, texts[_HOUR]),
        day=texts[_DAY],
        month=texts[_MONTH],
        weekday=texts[_WEEKDAY],
        starred=frozenset(kind.name for kind, word in zip(kinds, words, strict=True) if word.text[0] in "*?"),
        day_place=(day.position, len(day.text)),
    )


def _numbers(kind: _Kind, text: str) -> tuple[int, ...]:
    """The values of a canonical text without ``L``, ``W`` or ``#``."""
    return tuple(range(kind.low, kind.high + 1)) if text == "*" else tuple(map(int, text.split(",")))


def _split(expr: str, *, seconds: bool) -> list[_Word]:
    """The fields of a rule; an alias becomes five fields that all stand where the alias stood."""
    if len(expr) > MAX_LENGTH:
        raise ScheduleError(
            f"the rule has {len(expr)} characters and {MAX_LENGTH} are allowed: shorten its lists to ranges and steps",
            expr=expr,
            position=MAX_LENGTH,
            length=len(expr) - MAX_LENGTH,
        )
    strange = re.search(r"[^\x20-\x7e\t]", expr)
    if strange:
        raise ScheduleError(
            f"the character {strange.group()!a} has no meaning in a rule: fields are separated by plain spaces",
            expr=expr,
            position=strange.start(),
        )
    words = [_Word(found.group().lower(), found.start()) for found in re.finditer(r"[^ \t]+", expr)]
    if not words:
        raise ScheduleError("the rule is empty: five fields are wanted, such as '30 2 * * *'", expr=expr)
    if words[0].text.startswith("@"):
        if len(words) > 1 or words[0].text not in ALIASES:
            raise ScheduleError(
                f"only {', '.join(sorted(ALIASES))} are known, each alone"
                " (@reboot has no due time: enqueue a job at start instead)",
                expr=expr,
                position=words[0].position,
                length=len(words[0].text),
            )
        return [_Word(text, words[0].position) for text in ALIASES[words[0].text].split()]
    return _counted(expr, words, seconds=seconds)


def _counted(expr: str, words: list[_Word], *, seconds: bool) -> list[_Word]:
    """The fields again, or the error that there are too many or too few."""
    wanted = len(_FIELDS) + seconds
    if len(words) == wanted:
        return words
    order = ", ".join(kind.name for kind in ((_SECOND, *_FIELDS) if seconds else _FIELDS))
    hint = ""
    if len(words) == len(_FIELDS) + 1:
        hint = "; for a rule with seconds say seconds=True, and put the second first"
    elif len(words) == len(_FIELDS) + 2:
        hint = "; a year field is not supported: bound the schedule with start_at and end_at"
    at = words[wanted] if len(words) > wanted else _Word(" ", len(expr))
    raise ScheduleError(
        f"the rule has {len(words)} fields and {wanted} are wanted ({order}){hint}",
        expr=expr,
        position=at.position,
        length=len(at.text),
    )


def _expand(expr: str, kind: _Kind, word: _Word) -> str:
    """The canonical text of one field."""
    if word.text == "?" and kind in (_DAY, _WEEKDAY):
        return "*"
    values: set[int] = set()
    special: list[str] = []
    position = word.position
    items = word.text.split(",")
    for text in items:
        place = _Place(expr, kind, _Word(text or " ", position))
        found = _item(place, text)
        if isinstance(found, str):
            special.append(found)
        else:
            values.update(found)
        position += len(text) + 1
    whole = _Place(expr, kind, word)
    if kind is _WEEKDAY and special and values:
        whole.refuse("plain days and '#' or 'L' cannot be mixed in one list: make two schedules")
    if kind is _DAY and len(items) > 1 and any(text.endswith("W") for text in special):
        whole.refuse("'W' stands alone in its field: make a schedule for each such day")
    if len(values) == kind.high - kind.low + 1:
        return "*"
    return ",".join([*map(str, sorted(values)), *dict.fromkeys(special)])


def _item(place: _Place, text: str) -> range | list[int] | str:
    """The values of one item of a list, or its canonical text where it is no set of numbers."""
    kind = place.kind
    if kind is _DAY and text == "l":
        return "L"
    nearest = _NEAREST.fullmatch(text) if kind is _DAY else None
    if nearest:
        return f"{_value(place, nearest['day'])}W"
    last = _LAST_WEEKDAY.fullmatch(text) if kind is _WEEKDAY else None
    if last:
        return f"L{_value(place, last['day'])}"
    found = _ITEM.fullmatch(text)
    if found is None:
        place.refuse(_hint(kind, text))
    values = _values(place, found)
    if found["nth"] is None:
        return values
    if kind is not _WEEKDAY or found["star"] or found["step"]:
        place.refuse("'#' follows a day of the week or a range of them: 2#3 is the third Tuesday of the month")
    if not 1 <= int(found["nth"]) <= 5:
        place.refuse("'#' is followed by 1 to 5: a month has at most five of a day of the week")
    return ",".join(f"{day}#{int(found['nth'])}" for day in values)


def _values(place: _Place, item: re.Match[str]) -> range | list[int]:
    """The numbers that ``*/2``, ``5``, ``1-5/2``, ``10/15`` or ``fri-mon`` stand for."""
    kind = place.kind
    size = kind.high - kind.low + 1
    step = 1 if item["step"] is None else int(item["step"])
    if not 1 <= step <= size:
        place.refuse(f"a step of {step} is outside 1 to {size}: the field begins anew after its {size} values")
    if item["star"]:
        return range(kind.low, kind.high + 1, step)
    first = _value(place, item["first"])
    if item["last"] is None:
        return [first] if item["step"] is None else range(first, kind.high + 1, step)
    last = _value(place, item["last"])
    if kind is _WEEKDAY and (item["first"], item["last"]) == ("0", "7"):
        return range(0, size, step)  # Sunday to Sunday is the week: cron numbers Sunday both 0 and 7
    if first == last:
        place.refuse(f"the range begins and ends at {first}: write the one value, or '*' for all of them")
    if first > last:
        return [kind.low + (number - kind.low) % size for number in range(first, last + size + 1, step)]
    return range(first, last + 1, step)


def _value(place: _Place, text: str) -> int:
    """A number or a name as the number that the field knows it by."""
    kind = place.kind
    if text in kind.names:
        return kind.names[text]
    if not text.isdigit():
        place.refuse(_hint(kind, text))
    number = int(text)
    if kind is _WEEKDAY and number == 7:
        return 0
    if not kind.low <= number <= kind.high:
        extra = " or 7" if kind is _WEEKDAY else ""
        place.refuse(f"{number} is not within {kind.low} to {kind.high}{extra}")
    return number


def _hint(kind: _Kind, text: str) -> str:
    """Why an item has no meaning, and what to write."""
    if re.match("[hr](?![a-z])", text):
        return f"{text!r} is a hashed or random value, which would change under a running schedule: use jitter= instead"
    if not text:
        return "a value is missing beside the comma"
    if "w" in text and kind is _DAY:
        return f"{text!r} is not understood: 15W is the weekday nearest the 15th"
    if "l" in text and kind is _WEEKDAY:
        return f"{text!r} is not understood: L5 is the last Friday of the month"
    names = f", or a name from {next(iter(kind.names))} to {list(kind.names)[-1]}" if kind.names else ""
    return f"{text!r} is not understood: write a number {kind.low} to {kind.high}{names}, a range 1-5 or a step */2"
