"""The checker: can a history be explained without a broken promise? Pure.

Each event is an interval: what it did took effect at one moment between ``began`` and ``ended``. A history is
explained if such moments can be chosen for all events of a resource so that each answer is the one that the law gives
there (linearizability: Herlihy and Wing 1990). For a mark, which only rises, this is decided without search: two
events suffice to show that there is no such choice, so the offending part is the shortest there is, and the time is
that of sorting. Events whose end is not known (``unknown``; ``pending`` without a ``commit``) may have happened or
not, whichever explains the rest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from operator import attrgetter
from typing import Literal, TypeVar

from fencing._law import Verdict, judge
from fencing._token import Token
from fencing.history._events import Event

Rule = Literal[
    "stale write accepted",
    "refused without cause",
    "two issuers on one resource",
    "two lineages with one number",
    "token repeated",
    "token fell",
    "settled by an older holder",
    "settled twice",
    "accepted write lost",
    "effect doubled",
    "refused write landed",
    "stale effect landed",
]
"""Which promise a violation breaks."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: where, in words, and the fewest events that show it, in their order."""

    rule: Rule
    downstream: str
    resource: str
    text: str
    events: tuple[Event, ...]

    def __str__(self) -> str:
        return f"{self.rule}: {self.resource!r} in {self.downstream}: {self.text}"


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check saw: ``events`` in all, ``outcomes`` of the writes, and the violations (none: all is explained)."""

    events: int
    resources: int
    outcomes: dict[str, int]
    violations: tuple[Violation, ...]

    @property
    def explained(self) -> bool:
        """Whether the history can be explained without a broken promise."""
        return not self.violations

    def __str__(self) -> str:
        told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items())) or "none"
        head = f"{self.events} events, {self.resources} resources, writes and raised fences: {told}"
        return "\n".join([head, *(str(violation) for violation in self.violations)])


_WRITES = ("write", "raise", "put")
_ACCEPTED = ("accepted", "repeated")
_DONE = ("accepted", "repeated", "done")


def check_history(events: Iterable[Event]) -> Checked:
    """Say whether the events can be explained without an accepted stale write, a lost accepted write, a token that
    fell or a double effect.

    The events of one machine's processes, of the whole time or from any moment on: what happened before may have left
    marks. Write the effects down (:func:`effects`) and look at what is there in the end (``look`` events) to have
    lost, doubled and smuggled effects found too.

    Raises ``ValueError`` for an event whose token is not one.
    """
    known = _with_commits(sorted(events, key=attrgetter("began")))
    groups: dict[tuple[str, str], _Resource] = defaultdict(_Resource)
    claims: dict[str, list[_Step]] = defaultdict(list)
    outcomes: Counter[str] = Counter()
    for event in known:
        token = _token_of(event)
        if event.kind in _WRITES:
            outcomes[event.outcome] += 1
        if event.kind == "claim" and event.outcome == "done" and token is not None:
            claims[token.issuer].append(_Step(event, token))
        for name in event.resources:
            groups[event.downstream, name].add(event, token)
    found = chain(
        chain.from_iterable(_check_issuer(steps) for steps in claims.values()),
        chain.from_iterable(group.check(*place) for place, group in groups.items()),
    )
    ordered = sorted(found, key=lambda violation: (violation.events[-1].ended, violation.rule))
    places = {place for place, group in groups.items() if group.steps or group.looks}
    return Checked(len(known), len(places), dict(outcomes), tuple(ordered))


def _with_commits(events: Sequence[Event]) -> list[Event]:
    """The events, none of them pending that its actor committed afterwards."""
    commits: dict[tuple[str, str], int] = {}
    for event in events:
        if event.kind == "commit":
            place = event.actor, event.downstream
            commits[place] = max(event.ended, commits.get(place, 0))
    return [
        replace(event, pending=False)
        if event.pending and event.ended <= commits.get((event.actor, event.downstream), 0)
        else event
        for event in events
    ]


@dataclass(frozen=True, slots=True)
class _Step:
    """An event that has a token."""

    event: Event
    token: Token

    @property
    def value(self) -> int:
        return self.token.value

    @property
    def began(self) -> int:
        return self.event.began

    @property
    def ended(self) -> int:
        return self.event.ended


@dataclass
class _Resource:
    """What happened to one resource in one downstream."""

    steps: list[_Step] = field(default_factory=list)
    refused: list[_Step] = field(default_factory=list)
    claims: list[_Step] = field(default_factory=list)
    settled: list[_Step] = field(default_factory=list)
    looks: list[Event] = field(default_factory=list)
    writes: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    adopted: bool = False

    def add(self, event: Event, token: Token | None) -> None:
        if event.kind == "look":
            self.looks.append(event)
        elif event.kind == "adopt":
            self.adopted = self.adopted or event.outcome in _DONE
        elif token is None:
            return
        elif event.kind in _WRITES:
            for effect in event.effects:
                self.writes[effect].append(event)
            if _possible(event):
                self.steps.append(_Step(event, token))
            elif event.outcome == "refused" and event.error in ("", "StaleTokenError"):
                self.refused.append(_Step(event, token))
        elif event.kind == "claim" and event.outcome in _DONE:
            self.claims.append(_Step(event, token))
        elif event.kind == "settle" and event.outcome in _DONE:
            self.settled.append(_Step(event, token))

    def check(self, downstream: str, resource: str) -> Iterator[Violation]:
        def violation(rule: Rule, text: str, *shown: Event) -> Violation:
            return Violation(rule, downstream, resource, text, tuple(sorted(shown, key=attrgetter("began"))))

        issuers: dict[str, list[_Step]] = defaultdict(list)
        for step in self.steps:
            issuers[step.token.issuer].append(step)
        if not self.adopted:
            yield from _two_issuers(issuers, violation)
        for issuer, steps in issuers.items():
            yield from _two_lineages(steps, violation)
            yield from _check_mark(steps, [step for step in self.refused if step.token.issuer == issuer], violation)
        yield from _check_settled(self.claims, self.settled, violation)
        for look in self.looks:
            yield from _check_look(look, self.writes, violation)
            if look.detail == "last":
                yield from _check_last(look, [step.event for step in self.steps], violation)
            else:
                yield from _check_all(look, self.writes, violation)


_Violation = Callable[..., Violation]


def _check_mark(steps: Sequence[_Step], refused: Sequence[_Step], violation: _Violation) -> Iterator[Violation]:
    """Hold the answers of one resource, for tokens of one issuer, against a mark that only rises."""
    answered = [step for step in steps if step.event.outcome != "unknown"]
    raised = _Highest([step for step in steps if _sure(step.event)])
    met = _Highest(refused)
    for step in answered:
        newer = raised.before(step.began)
        if newer is not None and newer.value > step.value:
            yield violation(
                "stale write accepted",
                f"{step.token} was accepted after {newer.token} had been accepted",
                newer.event,
                step.event,
            )
            continue
        higher = met.before(step.began)
        if higher is not None and higher.value >= step.value:
            yield violation(
                "stale write accepted",
                f"{step.token} was accepted after {higher.token} had been refused as stale: the mark fell",
                higher.event,
                step.event,
            )
    # A refusal needs a higher mark: one that some step raised (or may have raised), or one from before the history.
    # The higher the mark, the fewer later answers it allows: so the lowest that explains the refusal is the one to try.
    lowest = min(answered, key=attrgetter("value"), default=None)
    later = _Lowest(answered)
    raising = sorted((step for step in steps if not _undone(step, later)), key=attrgetter("began"))
    seen = _Sorted()
    position = 0
    for step in sorted(refused, key=attrgetter("ended")):
        while position < len(raising) and raising[position].began <= step.ended:
            seen.add(raising[position].value)
            position += 1
        if lowest is None or lowest.value > step.value:
            continue  # the mark may have been higher from the beginning
        needed = seen.above(step.value)
        after = later.after(step.ended)
        if needed is None:
            yield violation(
                "refused without cause",
                f"{step.token} was refused as stale, and nothing newer was ever presented; {lowest.token} was accepted",
                lowest.event,
                step.event,
            )
        elif after is not None and step.value < after.value < needed:
            yield violation(
                "refused without cause",
                f"{step.token} was refused as stale when only {needed} or higher can have been the reason, "
                f"and later {after.token} was accepted",
                step.event,
                after.event,
            )


def _undone(step: _Step, later: _Lowest) -> bool:
    """Whether a pending step must have been rolled back: a lower token was accepted afterwards."""
    after = later.after(step.ended) if step.event.pending else None
    return after is not None and after.value < step.value


def _two_issuers(issuers: dict[str, list[_Step]], violation: _Violation) -> Iterator[Violation]:
    answered = [[s for s in steps if s.event.outcome != "unknown"] for steps in issuers.values()]
    firsts = sorted((steps[0] for steps in answered if steps), key=attrgetter("began"))
    for first, other in pairwise(firsts):
        yield violation(
            "two issuers on one resource",
            f"{first.token} and {other.token} were both accepted, and have no order",
            first.event,
            other.event,
        )


def _two_lineages(steps: Sequence[_Step], violation: _Violation) -> Iterator[Violation]:
    first: dict[int, _Step] = {}
    for step in steps:
        if step.event.outcome == "unknown":
            continue
        other = first.setdefault(step.value, step)
        if judge(other.token, step.token) is Verdict.LINEAGE_CONFLICT:
            yield violation(
                "two lineages with one number",
                f"{other.token} and {step.token} were both accepted",
                other.event,
                step.event,
            )


def _check_issuer(claims: Sequence[_Step]) -> Iterator[Violation]:
    """Tokens of one issuer never repeat, and grow from one claim to the next."""

    def violation(rule: Rule, text: str, before: _Step, after: _Step) -> Violation:
        place = after.event
        return Violation(rule, place.downstream, ", ".join(place.resources), text, (before.event, after.event))

    highest = _Highest(claims)
    first: dict[Token, _Step] = {}
    for step in claims:
        other = first.setdefault(step.token, step)
        if other is not step:
            yield violation("token repeated", f"{step.token} was given to two claims", other, step)
            continue
        before = highest.before(step.began)
        if before is not None and before.value >= step.value:
            yield violation("token fell", f"{step.token} was given out after {before.token}", before, step)


def _check_settled(claims: Sequence[_Step], settled: Sequence[_Step], violation: _Violation) -> Iterator[Violation]:
    newest = _Highest(claims)
    first: dict[Token, _Step] = {}
    for step in settled:
        claim = newest.before(step.began)
        if claim is not None and claim.value > step.value:
            yield violation(
                "settled by an older holder",
                f"{step.token} settled it after {claim.token} had claimed it",
                claim.event,
                step.event,
            )
        other = first.setdefault(step.token, step)
        if other is not step:
            yield violation("settled twice", f"{step.token} settled it twice", other.event, step.event)


def _check_look(look: Event, writes: dict[str, list[Event]], violation: _Violation) -> Iterator[Violation]:
    """What was found is there once, and somebody was told that it might be."""
    for effect, count in Counter(look.effects).items():
        known = writes.get(effect, [])
        if count > 1:
            yield violation("effect doubled", f"{effect!r} is there {count} times", *known[:2], look)
        if known and not any(map(_possible, known)):
            yield violation("refused write landed", f"{effect!r} is there, and was never accepted", known[0], look)


def _check_all(look: Event, writes: dict[str, list[Event]], violation: _Violation) -> Iterator[Violation]:
    """All effects are kept there: none is missing, and they lie in the order of their tokens. One that several tokens
    may have written counts as the lowest that fits."""
    found = set(look.effects)
    for effect, known in writes.items():
        sure = [event for event in known if _sure(event) and event.ended < look.began]
        if sure and effect not in found:
            yield violation("accepted write lost", f"{effect!r} was accepted and is not there", sure[0], look)
    newest: Event | None = None
    for effect in look.effects:
        known = [event for event in writes.get(effect, ()) if _possible(event)]
        fitting = [event for event in known if newest is None or _value(event) >= _value(newest)]
        if known and newest is not None and not fitting:
            text = f"{effect!r} of {known[0].token} lies behind an effect of {newest.token}"
            yield violation("stale effect landed", text, newest, known[0], look)
        newest = min(fitting, key=_value, default=newest)


def _check_last(look: Event, written: Sequence[Event], violation: _Violation) -> Iterator[Violation]:
    """Only the newest effect is kept there (and none where a write named no effect: it may have removed it)."""
    named = [event for event in written if event.kind != "raise"]
    shown = [event for event in named if not set(event.effects).isdisjoint(look.effects)]
    if look.effects and not shown:
        return  # written before the history began
    if not look.effects and not all(event.effects for event in named):
        return
    missing = [
        event
        for event in named
        if event.effects
        and _sure(event)
        and event.ended < look.began
        and event not in shown
        and all(other.ended < event.began or _value(other) < _value(event) for other in shown)
    ]
    if missing:
        newest = max(missing, key=_value)
        text = f"{', '.join(newest.effects)} was accepted after what is there"
        yield violation("accepted write lost", text, *shown[:1], newest, look)


def _possible(event: Event) -> bool:
    return event.outcome in (*_ACCEPTED, "unknown")


def _sure(event: Event) -> bool:
    return event.outcome in _ACCEPTED and not event.pending


def _value(event: Event) -> int:
    return Token.parse(event.token).value


def _token_of(event: Event) -> Token | None:
    if not event.token:
        return None
    try:
        return Token.parse(event.token)
    except ValueError as exc:
        raise ValueError(f"the {event.kind} of {event.actor} at {event.began}: {exc}") from exc


class _Highest:
    """Which of the steps that had ended before a moment has the highest token."""

    def __init__(self, steps: Iterable[_Step]) -> None:
        ordered = sorted(steps, key=attrgetter("ended"))
        self._ends = [step.ended for step in ordered]
        self._best = _running(ordered, lambda best, step: step if step.value > best.value else best)

    def before(self, moment: int) -> _Step | None:
        position = bisect_left(self._ends, moment)
        return self._best[position - 1] if position else None


class _Lowest:
    """Which of the steps that began after a moment has the lowest token."""

    def __init__(self, steps: Iterable[_Step]) -> None:
        ordered = sorted(steps, key=attrgetter("began"), reverse=True)
        self._begins = [-step.began for step in ordered]
        self._best = _running(ordered, lambda best, step: step if step.value < best.value else best)

    def after(self, moment: int) -> _Step | None:
        position = bisect_left(self._begins, -moment)
        return self._best[position - 1] if position else None


class _Sorted:
    """Numbers, and the smallest of them above another."""

    def __init__(self) -> None:
        self._values: list[int] = []

    def add(self, value: int) -> None:
        position = bisect_left(self._values, value)
        if position == len(self._values) or self._values[position] != value:
            self._values.insert(position, value)

    def above(self, value: int) -> int | None:
        position = bisect_right(self._values, value)
        return self._values[position] if position < len(self._values) else None


def _running(steps: Sequence[T], better: Callable[[T, T], T]) -> list[T]:
    best: list[T] = []
    for step in steps:
        best.append(better(best[-1], step) if best else step)
    return best
