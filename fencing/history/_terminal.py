"""The picture in a terminal: time goes down, a lane for each actor and downstream, the words on the right."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fencing.history._events import Event
from fencing.history._lanes import GAP, Layout, Row, Sign, State, Track, lay_out

_TIME = 9
"""Columns of the time."""

_NARROWEST = 60
_RED, _GREEN, _YELLOW, _DIM, _BOLD = "31", "32", "33", "2", "1"
_TOKEN_COLOURS = ("33", "36", "35", "34")


class _Glyphs(NamedTuple):
    tracks: Mapping[State, str]
    signs: Mapping[Sign, str]
    dot: str
    line: str
    refused_line: str
    right: str
    left: str
    cross: str
    corner: str
    lane: str
    passed: str


_UNICODE = _Glyphs(
    tracks={"idle": "│", "leased": "┃", "expired": "╏", "stopped": "▒", "gone": " ", "marked": "│"},
    signs={
        **{"accepted": "✓", "refused": "✗", "broken": "!", "unknown": "?", "failed": "×"},
        **{"stopped": "■", "woken": "▶", "expired": "◇", "gone": "†", "note": "●"},
    },
    dot="●", line="─", refused_line="╌", right="▶", left="◀", cross="┼", corner="┌", lane="│", passed="…",
)  # fmt: skip

_ASCII = _Glyphs(
    tracks={"idle": "|", "leased": "#", "expired": ":", "stopped": "%", "gone": " ", "marked": "|"},
    signs={
        **{"accepted": "v", "refused": "X", "broken": "!", "unknown": "?", "failed": "f"},
        **{"stopped": "S", "woken": ">", "expired": "e", "gone": "K", "note": "o"},
    },
    dot="o", line="-", refused_line=".", right=">", left="<", cross="+", corner=",", lane="|", passed="...",
)  # fmt: skip

_LEGEND: tuple[tuple[str, Sequence[State | Sign]], ...] = (
    ("leased", ("leased",)),
    ("lease run out", ("expired",)),
    ("stopped", ("stopped",)),
    ("accepted", ("accepted",)),
    ("refused", ("refused",)),
    ("damage", ("broken",)),
)


def draw_text(
    events: Iterable[Event],
    *,
    names: Mapping[str, str] | None = None,
    width: int | None = None,
    colour: bool | None = None,
    unicode: bool | None = None,
) -> str:
    """Draw what happened for a terminal, as lines without a last line's end.

    ``names`` gives actors and downstreams (as the events call them) other names; lanes stand in its order. ``width``
    is in columns, at least 60, and more for more than ten lanes; ``colour`` adds colours, without which everything
    can be read as well. What is not given is asked of the terminal: its width, whether standard output is one and
    ``$NO_COLOR`` is not set, whether its encoding has the signs.
    """
    layout = lay_out(events, names)
    if not layout.rows:
        return "nothing happened"
    pen = _Pen(
        _UNICODE if (_speaks_unicode() if unicode is None else unicode) else _ASCII,
        _wants_colour() if colour is None else colour,
        max(_NARROWEST, width or shutil.get_terminal_size().columns),
        layout,
    )
    lines = [*pen.heads(), *(line for row in layout.rows for line in pen.row(row)), "", *pen.legend()]
    text = "\n".join(line.rstrip() for line in lines)
    return text if pen.glyphs is _UNICODE else text.replace("…", "..")


def _speaks_unicode() -> bool:
    try:
        "".join([*_UNICODE.tracks.values(), *_UNICODE.signs.values()]).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _wants_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class _Pen:
    """Draws lines of one layout at one width."""

    def __init__(self, glyphs: _Glyphs, colour: bool, width: int, layout: Layout) -> None:
        self.glyphs = glyphs
        self._colour = colour
        self._layout = layout
        self._width = width
        self._step = 4 if width >= 100 else 3
        self._words = max(24, width - _TIME - self._step * len(layout.lanes) - 1)

    def heads(self) -> list[str]:
        """The lanes' names, as steps down to the lanes."""
        glyphs = self.glyphs
        lines = []
        for number, lane in enumerate(self._layout.lanes):
            stems = "".join(self._ink(glyphs.lane.ljust(self._step), _DIM) for _ in range(number))
            name = lane.name[: self._width - _TIME - self._step * number - 2]
            head = self._ink(glyphs.corner, _DIM) + " " + self._ink(name, _BOLD if lane.acts else "")
            lines.append(" " * _TIME + stems + head)
        return [*lines, " " * _TIME + self._plain(self._layout.rows[0].before)]

    def row(self, row: Row) -> list[str]:
        """The lines of an event, and before them, where time passed, a line that says so."""
        lines = []
        if row.gap >= GAP:
            passed = self._ink(f"{self.glyphs.passed} {row.gap:.1f} s", _DIM)
            lines.append(" " * _TIME + self._plain(row.before) + passed)
        colour = {"refused": _RED, "broken": _RED, "unknown": _YELLOW, "failed": _YELLOW}.get(row.sign, "")
        words = self._wrapped(row)
        time = self._ink(f"{row.seconds:+{_TIME - 1}.3f} ", _DIM)
        strong = colour or (_BOLD if row.event.kind in ("pause", "wake", "kill", "expire") else "")
        lines.append(time + self._drawn(row) + self._ink(words[0], strong))
        lines += [" " * _TIME + self._plain(row.after) + self._ink(more, strong) for more in words[1:]]
        return lines

    def _wrapped(self, row: Row) -> list[str]:
        """The words, in lines. Where an arrow begins, its lane says who; how it ended begins a line if need be."""
        arrow = row.source is not None and row.target is not None
        text = row.said.text if arrow else f"{row.said.subject} {row.said.text}"
        if row.said.end and len(text) + len(row.said.end) + 2 <= self._words:
            return [f"{text}: {row.said.end}"]
        lines = textwrap.wrap(text, self._words, subsequent_indent="  ")
        return lines + textwrap.wrap(row.said.end, self._words, initial_indent="  ", subsequent_indent="  ")

    def legend(self) -> list[str]:
        """What the signs mean, and the tokens in full."""
        glyphs = self.glyphs
        known: dict[str, str] = dict([*glyphs.signs.items(), *glyphs.tracks.items()])
        used = {row.sign for row in self._layout.rows} | {
            track.state for row in self._layout.rows for track in row.after
        }
        signs = [f"{known[key]} {name}" for name, keys in _LEGEND for key in keys if key in used]
        lines = textwrap.wrap("   ".join(signs), self._width)
        for number, (token, short) in enumerate(zip(self._layout.tokens, self._layout.short, strict=True)):
            first, *more = textwrap.wrap(f"{short} is {token}", self._width, subsequent_indent="  ")
            lines += [self._ink(short, self._token_colour(number)) + first.removeprefix(short), *more]
        return lines

    def _plain(self, tracks: Sequence[Track]) -> str:
        return "".join(self._track(track) + " " * (self._step - 1) for track in tracks)

    def _drawn(self, row: Row) -> str:
        """The lanes beside an event, with its arrow."""
        ends = [end for end in (row.source, row.target) if end is not None]
        low, high = min(ends, default=0), max(ends, default=0)
        refused = row.sign in ("refused", "broken")
        line = self.glyphs.refused_line if refused else self.glyphs.line
        ink = _RED if refused else self._token_colour(row.token)
        parts = []
        for number in range(len(self._layout.lanes)):
            inside = low <= number < high
            parts.append(self._cell(row, number, low < number < high, ink))
            filler = line * (self._step - 1) if inside else " " * (self._step - 1)
            if inside and row.target == high and number == high - 1:
                filler = filler[:-1] + self.glyphs.right
            elif inside and row.target == low and number == low:
                filler = self.glyphs.left + filler[1:]
            parts.append(self._ink(filler, ink) if inside else filler)
        return "".join(parts)

    def _cell(self, row: Row, number: int, crossed: bool, ink: str) -> str:
        glyphs = self.glyphs
        if number == row.target:
            good = row.sign in ("accepted", "note", "woken")
            colour = _GREEN if good else _YELLOW if row.sign in ("expired", "unknown", "failed") else _RED
            return self._ink(glyphs.signs[row.sign], f"{_BOLD};{colour}")
        if number == row.source:
            alone = row.target is None
            return self._ink(glyphs.signs[row.sign] if alone else glyphs.dot, f"{_BOLD};{ink}" if ink else _BOLD)
        track = row.after[number]
        if crossed and track.state in ("idle", "marked"):
            return self._ink(glyphs.cross, ink)
        return self._track(track)

    def _track(self, track: Track) -> str:
        colour = _DIM if track.state == "idle" else self._token_colour(track.token)
        return self._ink(self.glyphs.tracks[track.state], colour)

    def _token_colour(self, number: int | None) -> str:
        return "" if number is None else _TOKEN_COLOURS[number % len(_TOKEN_COLOURS)]

    def _ink(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code and text.strip() else text
