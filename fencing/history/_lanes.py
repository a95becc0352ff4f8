"""The layout that both pictures share: lanes, rows, and what each lane looks like beside each row. Pure.

A lane for each actor, then one for each downstream; a row for each event, in the order in which they ended. A lane of
an actor shows its lease (also when it ran out and the actor does not know), its stops and its end. A lane of a
downstream shows the newest token that it accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fencing._law import Verdict, judge
from fencing._token import Token
from fencing.history._events import Event
from fencing.history._words import Said, say

Sign = Literal["accepted", "refused", "broken", "unknown", "failed", "stopped", "woken", "expired", "gone", "note"]
"""How a row ended, at a glance. ``broken``: accepted, though a newer token had been accepted there before."""

State = Literal["idle", "leased", "expired", "stopped", "gone", "marked"]
"""``expired``: the lease ran out, and nobody told the actor."""

_ROUTINE = ("start", "renew")
_ACTOR_ONLY = ("start", "pause", "wake", "kill", "expire", "note")
_SIGNS: dict[str, Sign] = {
    "pause": "stopped",
    "wake": "woken",
    "kill": "gone",
    "expire": "expired",
    "rescue": "expired",
    "note": "note",
}
_GOOD = ("accepted", "repeated", "done")
_ENDS: dict[str, Sign] = {
    "refused": "refused",
    "lost": "refused",
    "unknown": "unknown",
    "contention": "failed",
    "failed": "failed",
}

GAP = 0.25
"""Seconds without an event from which a picture shows that time passed."""


class Lane(NamedTuple):
    """A column of the picture. ``keys`` are the actors or downstreams that it stands for, as the events name them."""

    name: str
    keys: tuple[str, ...]
    acts: bool


class Track(NamedTuple):
    """What a lane looks like at some point. ``token`` is the number of a token, or None."""

    state: State
    token: int | None = None


class Row(NamedTuple):
    """An event with its place: ``source`` and ``target`` are numbers of lanes, ``seconds`` count from the first row,
    ``gap`` from the row before."""

    event: Event
    seconds: float
    gap: float
    source: int | None
    target: int | None
    sign: Sign
    token: int | None
    said: Said
    before: tuple[Track, ...]
    after: tuple[Track, ...]


class Layout(NamedTuple):
    """``tokens`` are the full texts in the order of their appearance, ``short`` what the picture calls them."""

    lanes: tuple[Lane, ...]
    rows: tuple[Row, ...]
    tokens: tuple[str, ...]
    short: tuple[str, ...]


def lay_out(events: Iterable[Event], names: Mapping[str, str] | None = None) -> Layout:
    """Lay the events out. ``names`` gives actors and downstreams other names; two with one name share a lane, and
    lanes stand in the order in which it names them. What it does not name follows, as it appears.

    Starts of handlers and renewals that went well are left out: the claim and the lane show them.
    """
    shown = [event for event in events if event.kind not in _ROUTINE or event.outcome not in _GOOD]
    shown.sort(key=lambda event: (event.ended, event.began))
    given = {key: printable(name) for key, name in (names or {}).items()}
    lanes = _lanes(shown, given)
    tokens = tuple(dict.fromkeys(event.token for event in shown if event.token))
    scene = _Scene(lanes, tokens, shorten(tokens))
    rows = []
    first = last = shown[0].ended if shown else 0
    for event in shown:
        rows.append(scene.play(event, (event.ended - first) / 1e9, (event.ended - last) / 1e9))
        last = event.ended
    return Layout(lanes, tuple(rows), tokens, scene.short)


def place_of(event: Event) -> str:
    """The downstream whose lane an event reaches, or "" for none.

    The outbox has a lane of its own: it is a table in somebody's database, and a downstream all the same.
    """
    if event.kind in _ACTOR_ONLY:
        return ""
    if event.kind in ("raise", "write", "put") and any(name.startswith("outbox/") for name in event.resources):
        return "outbox"
    return event.downstream


def printable(text: str) -> str:
    """The text without control characters, which could rewrite what a terminal shows."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def shorten(tokens: Sequence[str]) -> tuple[str, ...]:
    """Short names for tokens: the last digits of each value, as many as tell them apart, at least three."""
    values = [token.rpartition("/")[2] for token in tokens]
    longest = max(map(len, values), default=0)
    for size in range(3, longest):
        if len({value[-size:] for value in values}) == len(values):
            break
    else:
        size = longest
    return tuple(value if len(value) <= size else f"…{value[-size:]}" for value in values)


def _lanes(events: Sequence[Event], names: Mapping[str, str]) -> tuple[Lane, ...]:
    found: list[Lane] = []
    for acts, seen in (
        (True, [event.actor for event in events]),
        (False, [place_of(event) for event in events]),
    ):
        keys = [key for key in dict.fromkeys(seen) if key]
        order = {key: position for position, key in enumerate(names)}
        keys.sort(key=lambda key: order.get(key, len(order)))
        by_name: dict[str, list[str]] = {}
        for key in keys:
            by_name.setdefault(names.get(key) or printable(key), []).append(key)
        found += [Lane(name, tuple(group), acts) for name, group in by_name.items()]
    return tuple(found)


@dataclass
class _Actor:
    leases: dict[str, State] = field(default_factory=dict)
    stopped_at: int | None = None
    gone: bool = False


class _Scene:
    """The state of every lane while the events are played."""

    def __init__(self, lanes: tuple[Lane, ...], tokens: tuple[str, ...], short: tuple[str, ...]) -> None:
        self.short = short
        self._lanes = lanes
        self._numbers = {token: number for number, token in enumerate(tokens)}
        self._actor_lane = {key: number for number, lane in enumerate(lanes) if lane.acts for key in lane.keys}
        self._place_lane = {key: number for number, lane in enumerate(lanes) if not lane.acts for key in lane.keys}
        self._actors = {number: _Actor() for number, lane in enumerate(lanes) if lane.acts}
        self._marks: dict[tuple[int, str], str] = {}
        self._newest: dict[int, str] = {}

    def play(self, event: Event, seconds: float, gap: float) -> Row:
        """Let the event happen."""
        before = self._tracks()
        source, target = self._actor_lane.get(event.actor), self._place_lane.get(place_of(event))
        sign = _SIGNS.get(event.kind) or _ENDS.get(event.outcome, "accepted")
        mark = self._newer_mark(target, event.token, _marked(event) if sign == "accepted" else event.resources)
        if sign == "accepted" and mark is not None:
            sign = "broken"
        stopped = 0.0
        if source is not None:
            stopped = self._act(self._actors[source], event)
        if target is not None and sign in ("accepted", "broken"):
            self._accept(target, event)
        subject, text, end = say(
            event,
            self._lanes[source].name if source is not None else "",
            self._called(event.token),
            self._called(mark) if mark else "",
            stopped,
            broken=sign == "broken",
        )
        said = Said(printable(subject), printable(text), printable(end))
        # The actor of a rescue is the one whose lease ran out: it does nothing, and knows nothing of it.
        drawn = None if event.kind == "rescue" else source
        return Row(
            event, seconds, gap, drawn, target, sign, self._numbers.get(event.token), said, before, self._tracks()
        )

    def _act(self, actor: _Actor, event: Event) -> float:
        """Change what the actor holds and is; return for how many seconds it had been stopped, when it wakes."""
        if event.kind == "claim" and event.outcome in _GOOD:
            actor.leases.pop(event.token, None)  # so that the newest claim is the last
            actor.leases[event.token] = "leased"
        elif event.kind in ("expire", "rescue") and event.token in actor.leases:
            actor.leases[event.token] = "expired"
        elif event.kind == "settle":
            actor.leases.pop(event.token, None)
        elif event.kind == "pause":
            actor.stopped_at = event.ended
        elif event.kind == "wake" and actor.stopped_at is not None:
            stopped_at, actor.stopped_at = actor.stopped_at, None
            return (event.ended - stopped_at) / 1e9
        elif event.kind == "kill":
            actor.gone = True
        return 0.0

    def _accept(self, target: int, event: Event) -> None:
        for resource in _marked(event):
            self._marks[target, resource] = event.token
            self._newest[target] = event.token

    def _newer_mark(self, target: int | None, text: str, resources: tuple[str, ...]) -> str | None:
        """The newer token that a token meets on one of the resources, if any."""
        token = _parsed(text)
        if target is None or token is None:
            return None
        for resource in resources:
            mark = _parsed(self._marks.get((target, resource), ""))
            if mark is not None and judge(mark, token) is Verdict.STALE:
                return str(mark)
        return None

    def _called(self, token: str) -> str:
        number = self._numbers.get(token)
        return "" if number is None else self.short[number]

    def _tracks(self) -> tuple[Track, ...]:
        return tuple(
            self._actor_track(self._actors[number]) if lane.acts else self._place_track(number)
            for number, lane in enumerate(self._lanes)
        )

    def _actor_track(self, actor: _Actor) -> Track:
        if actor.gone:
            return Track("gone")
        token, state = next(reversed(actor.leases.items()), ("", "idle"))
        return Track("stopped" if actor.stopped_at is not None else state, self._numbers.get(token))

    def _place_track(self, number: int) -> Track:
        token = self._numbers.get(self._newest.get(number, ""))
        return Track("idle") if token is None else Track("marked", token)


def _marked(event: Event) -> tuple[str, ...]:
    """The resources that keep the event's token: those written to, and a job's own row."""
    if not event.token:
        return ()
    if event.kind in ("claim", "settle"):
        return tuple(name for name in event.resources if name.startswith("job/"))
    return event.resources if event.kind in ("raise", "write", "put", "send") else ()


def _parsed(token: str) -> Token | None:
    try:
        return Token.parse(token)
    except ValueError:
        return None
