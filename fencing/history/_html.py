"""The picture as one HTML file: the same lanes and rows as in the terminal, drawn by CSS and SVG that stretch.

No script and nothing from elsewhere. The words of each row are its text alternative: the lanes beside them are hidden
from screen readers. Every colour has a shape beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files

from fencing.history._events import Event
from fencing.history._lanes import GAP, Layout, Row, Sign, Track, lay_out, printable

_PALETTE = 5
"""Colours for tokens; a sixth token has the first one's again."""

_MIDDLE = 17
"""Pixels from a row's top to its arrow: the middle of its first line of words."""

_ENDS: dict[Sign, str] = {
    "accepted": "good",
    "refused": "bad",
    "broken": "bad",
    "unknown": "doubt",
    "failed": "doubt",
}

_SHAPES: dict[Sign, str] = {
    "accepted": '<path d="M-4 0.5 -1.2 3.2 4-3"/>',
    "refused": '<path d="M-3.4-3.4 3.4 3.4M-3.4 3.4 3.4-3.4"/>',
    "broken": '<path d="M0-4.5V1M0 4v.4"/>',
    "unknown": '<path d="M-2.5-2a2.5 2.5 0 1 1 2.5 2.5V1.6M0 4v.4"/>',
    "failed": '<path d="M-4 0H4"/>',
    "stopped": '<path d="M-2.4-3.4V3.4M2.4-3.4V3.4"/>',
    "woken": '<path d="M-2-3.6 3.4 0-2 3.6Z"/>',
    "expired": '<path d="M-3.4-4.2H3.4L-3.4 4.2H3.4Z"/>',
    "gone": '<path d="M-3.4-3.4 3.4 3.4M-3.4 3.4 3.4-3.4"/>',
    "note": "",
}

_LEGEND: tuple[tuple[str, str], ...] = (
    ('<line class="leased t0" x1="12" x2="12" y1="0" y2="100%"/>', "holds a lease; the colour is its token's"),
    ('<line class="expired t0" x1="12" x2="12" y1="0" y2="100%"/>', "its lease has run out, and it does not know"),
    ('<line class="stopped" x1="12" x2="12" y1="0" y2="100%"/>', "is stopped"),
    ('<line class="marked t1" x1="12" x2="12" y1="0" y2="100%"/>', "has accepted this colour's token last"),
)

_SIGN_LEGEND: tuple[tuple[Sign, str], ...] = (
    ("accepted", "accepted"),
    ("refused", "refused"),
    ("broken", "accepted after a newer token: damage"),
)


def draw_html(
    events: Iterable[Event],
    *,
    title: str,
    lead: str = "",
    facts: Iterable[tuple[str, bool]] = (),
    names: Mapping[str, str] | None = None,
) -> str:
    """Draw what happened as one HTML page that needs nothing else.

    ``lead`` is a sentence or two below the title; ``facts`` are what was seen afterwards, each with whether that is
    good news. ``names`` as in :func:`draw_text`.
    """
    layout = lay_out(events, names)
    style = files(__package__).joinpath("picture.css").read_text("utf-8")
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{_text(title)}</title>",
        f"<style>\n{style}:root {{ --lanes: {max(1, len(layout.lanes))}; }}\n</style></head>",
        "<body><main>",
        f"<h1>{_text(title)}</h1>",
        *([f'<p class="lead">{_text(lead)}</p>'] if lead else []),
        *_facts(list(facts)),
        *_picture(layout),
        *_legend(layout),
        "</main></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _facts(facts: list[tuple[str, bool]]) -> list[str]:
    if not facts:
        return []
    looks: dict[bool, tuple[str, Sign]] = {True: ("good", "accepted"), False: ("bad", "broken")}
    items = [
        f'<li class="{looks[good][0]}">{_badge(looks[good][1])}<span>{_text(text)}</span></li>' for text, good in facts
    ]
    return ['<ul class="facts">', *items, "</ul>"]


def _picture(layout: Layout) -> list[str]:
    if not layout.rows:
        return ["<p>Nothing happened.</p>"]
    heads = "".join(
        f'<span class="{"actor" if lane.acts else "place"}">{_text(lane.name)}</span>' for lane in layout.lanes
    )
    return [
        f'<div class="heads" aria-hidden="true"><span></span><div>{heads}</div><span></span></div>',
        '<ol class="steps">',
        *(item for row in layout.rows for item in _row(row, layout)),
        "</ol>",
    ]


def _row(row: Row, layout: Layout) -> list[str]:
    items = []
    if row.gap >= GAP:
        # Taller for a longer wait, yet never a screenful.
        height = min(150, 34 + 30 * row.gap)
        items.append(
            f'<li class="gap" style="min-height:{height:.0f}px">{_lanes(row.before, row.before, "")} '
            f"<p>{row.gap:.1f} s pass</p></li>"
        )
    said = row.said
    end = f' <strong class="end">{_named(said.end, layout)}</strong>' if said.end else ""
    # The arrow shows where to; without seeing it, two writes to one resource would read the same.
    reached = None if row.source is None or row.target is None else layout.lanes[row.target].name
    where = f' <span class="where">({_text(reached)})</span>' if reached else ""
    loud = " loud" if row.event.kind in ("pause", "wake", "kill", "expire") else ""
    items.append(
        f'<li class="{_ENDS.get(row.sign, "plain")}{loud}"><time>{row.seconds:+.3f}&nbsp;s</time> '
        f"{_lanes(row.before, row.after, _event(row, layout))}"
        f"<p><b>{_text(said.subject)}</b> {_named(said.text, layout)}{where}{end}</p></li>"
    )
    return items


def _lanes(before: tuple[Track, ...], after: tuple[Track, ...], event: str) -> str:
    """One row's lanes: percentages across, pixels and the row's own height down."""
    lines = []
    for number, (above, below) in enumerate(zip(before, after, strict=True)):
        across = _across(number, len(before))
        if above == below:
            lines.append(_track(above, across, "0", "100%"))
        else:
            lines.append(_track(above, across, "0", str(_MIDDLE)))
            lines.append(_track(below, across, str(_MIDDLE), "100%"))
    return f'<svg class="lanes" aria-hidden="true">{"".join(lines)}{event}</svg>'


def _track(track: Track, across: str, top: str, bottom: str) -> str:
    if track.state == "gone":
        return ""
    colour = _colour(track.token)
    line = f'x1="{across}" x2="{across}" y1="{top}" y2="{bottom}"'
    under = f'<line class="under{colour}" {line}/>' if track.state == "stopped" and colour else ""
    return f'{under}<line class="{track.state}{colour}" {line}/>'


def _event(row: Row, layout: Layout) -> str:
    """What happens on the lanes: a sign where nothing is reached, else an arrow with its token and how it ended."""
    lanes = len(layout.lanes)
    colour = _colour(row.token)
    if row.target is None:
        if row.source is None:
            return ""
        kind, radius = ("dot", 4.5) if row.sign == "note" else ("badge act", 9)
        sign = f'<g class="{kind}{colour}"><circle r="{radius}"/>{_SHAPES[row.sign]}</g>'
        return _at(_across(row.source, lanes), sign)
    target = _across(row.target, lanes)
    sign = _at(target, f'<g class="badge {_ENDS.get(row.sign, "act")}"><circle r="9"/>{_SHAPES[row.sign]}</g>')
    if row.source is None:
        return sign
    source = _across(row.source, lanes)
    way, sense = ("to-right", -1) if row.target > row.source else ("to-left", 1)
    wrong = " wrong" if row.sign in ("refused", "broken") else ""
    line = f'<line class="arrow" x1="{source}" x2="{target}" y1="{_MIDDLE}" y2="{_MIDDLE}"/>'
    head = f'<path class="head" d="M{sense * 10} 0 {sense * 18}-4.5V4.5Z"/>'
    if row.token is not None:  # it rides on the arrow, next to where it is shown
        head += f'<text class="token" x="{sense * 22}" y="-5">{_text(layout.short[row.token])}</text>'
    start = _at(source, '<circle class="from" r="4.5"/>')
    return f'<g class="{way}{wrong}{colour}">{line}{start}{_at(target, head)}</g>{sign}'


def _colour(token: int | None) -> str:
    return "" if token is None else f" t{token % _PALETTE}"


def _at(across: str, drawn: str) -> str:
    """Draw at a place whose ``x`` is a percentage, which a transformation cannot be."""
    return f'<svg x="{across}" y="{_MIDDLE}" class="at">{drawn}</svg>'


def _across(number: int, lanes: int) -> str:
    return f"{(number + 0.5) / lanes * 100:.3f}%".replace(".000%", "%")


def _badge(sign: Sign) -> str:
    return (
        f'<svg class="key" viewBox="-10 -10 20 20" aria-hidden="true"><g class="badge {_ENDS.get(sign, "act")}">'
        f'<circle r="9"/>{_SHAPES[sign]}</g></svg>'
    )


def _legend(layout: Layout) -> list[str]:
    used = {row.sign for row in layout.rows}
    items = [f'<li><svg class="key tall" aria-hidden="true">{line}</svg>{_text(text)}</li>' for line, text in _LEGEND]
    items += [f"<li>{_badge(sign)}{_text(text)}</li>" for sign, text in _SIGN_LEGEND if sign in used]
    tokens = [
        f'<li><span class="chip t{number % _PALETTE}">{_text(short)}</span> <code>{_text(token)}</code></li>'
        for number, (token, short) in enumerate(zip(layout.tokens, layout.short, strict=True))
    ]
    return [
        '<section class="legend"><h2>How to read it</h2><ul>',
        *items,
        "</ul>",
        *(["<h2>Tokens</h2>", '<ul class="tokens">', *tokens, "</ul>"] if tokens else []),
        "</section>",
    ]


def _named(text: str, layout: Layout) -> str:
    """The text with its tokens in their colours."""
    marked = _text(text)
    for number, short in enumerate(layout.short):
        if short.startswith("…"):  # a whole value of few digits could be a part of anything
            pattern = rf"{re.escape(short)}(?![0-9])"
            marked = re.sub(pattern, f'<span class="named t{number % _PALETTE}">{short}</span>', marked)
    return marked


def _text(text: str) -> str:
    return escape(printable(text))
