"""Reading a history back. What is no event is refused: a line that is passed over or misread could hide a violation."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, get_args

from fencing.history._events import Event, Kind, Outcome

_WORDS: Final = {"kind": get_args(Kind), "outcome": get_args(Outcome)}
_TEXTS: Final = ("actor", "downstream", "token", "error", "detail", "refusing")
_NUMBERS: Final = ("began", "ended", "wall", "pid")
_NEEDED: Final = ("kind", "outcome", "actor", "began", "ended")


def read_events(source: str | os.PathLike[str] | Iterable[str]) -> list[Event]:
    """Read JSON lines (a path or the lines) in the order of their beginnings.

    Empty lines are passed over, and so is a last line that a killed process left unfinished: one without its line feed,
    or, of lines that come without any, one that is no JSON. Anything else that is not an event raises ``ValueError``
    with the line's number and what is wrong with it.
    """
    lines: list[str | bytes]
    if isinstance(source, str | os.PathLike):
        # By line feeds alone: a name may hold what Unicode calls the end of a line.
        lines = [*Path(source).read_bytes().split(b"\n")]
        whole = len(lines) - 1
    else:
        given = list(source)
        lines = [*given]
        whole = len(given) if given and given[-1].endswith("\n") else len(given) - 1
    events = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            facts = json.loads(line.decode() if isinstance(line, bytes) else line)
        except ValueError as exc:
            if number > whole:
                break
            raise ValueError(f"line {number} of the history is not JSON ({exc}): {_shown(line)}") from exc
        try:
            events.append(_event(facts))
        except (ValueError, TypeError) as exc:
            raise ValueError(f"line {number} of the history is not an event: {exc}: {_shown(line)}") from exc
    return sorted(events, key=lambda event: event.began)


def _shown(line: str | bytes) -> str:
    text = line.decode(errors="replace") if isinstance(line, bytes) else line
    return repr(text[:120])


def _event(facts: Any) -> Event:
    """The event that a line's JSON stands for; raises ``ValueError`` or ``TypeError``."""
    if not isinstance(facts, dict):
        raise TypeError("it is not an object")
    missing = [name for name in _NEEDED if name not in facts]
    if missing:
        raise ValueError(f"it has no {', '.join(missing)}")
    for name, known in _WORDS.items():
        if facts[name] not in known:
            raise ValueError(f"its {name} {facts[name]!r} is none of {', '.join(sorted(known))}")
    for name in _TEXTS:
        if not isinstance(facts.get(name, ""), str):
            raise TypeError(f"its {name} {facts[name]!r} is not a text")
    for name in _NUMBERS:
        if type(facts.get(name, 0)) is not int:
            raise TypeError(f"its {name} {facts[name]!r} is not a whole number (of nanoseconds, where it is a time)")
    if facts["ended"] < max(facts["began"], 1):
        raise ValueError(f"its end {facts['ended']} is no moment after its beginning {facts['began']}")
    if not isinstance(facts.get("pending", False), bool):
        raise TypeError(f"its pending {facts['pending']!r} is neither true nor false")
    for name in ("resources", "effects"):
        texts = facts.get(name, [])
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise TypeError(f"its {name} {texts!r} are not a list of texts")
        facts[name] = tuple(texts)
    return Event(**facts)
