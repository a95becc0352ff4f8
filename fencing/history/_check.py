"""The checker: can a history be explained without a broken promise? Pure.

Each event is an interval: what it did took effect at one moment between ``began`` and ``ended``. A history is
explained if such moments can be chosen for all events of a resource so that each answer is the one that the law gives
there (linearizability: Herlihy and Wing 1990). For a mark, which only rises, this is decided without search: two
events suffice to show that there is no such choice, so the offending part is the shortest there is, and the time is
that of sorting. Events whose end is not known (``unknown``; ``pending`` without a ``commit``) may have happened or
not, whichever explains the rest.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter

from fencing._token import Token
from fencing.history._events import Event
from fencing.history._failovers import Failovers, check_kept, parts
from fencing.history._looks import check_all, check_last, check_look
from fencing.history._marks import check_issuer, check_mark, check_settled, two_issuers, two_lineages
from fencing.history._violations import DONE, Rule, Step, Violation, possible

_WRITES = ("write", "raise", "put")


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


def check_history(events: Iterable[Event]) -> Checked:
    """Say whether the events can be explained without an accepted stale write, a lost accepted write, a token that
    fell or a double effect.

    The events of one machine's processes, of the whole time or from any moment on: what happened before may have left
    marks. Write the effects down (:func:`effects`) and look at what is there in the end (``look`` events) to have
    lost, doubled and smuggled effects found too.

    Raises ``ValueError`` for an event whose token is not one.
    """
    known = list(_with_commits(sorted(events, key=attrgetter("began"))))
    groups: dict[tuple[str, str], _Resource] = {}
    claims: dict[str, list[Step]] = defaultdict(list)
    outcomes: Counter[str] = Counter()
    failovers: dict[str, Failovers] = defaultdict(Failovers)
    for event, seen in known:
        token = _token_of(event)
        if event.kind in _WRITES:
            outcomes[event.outcome] += 1
        if event.kind == "claim" and event.outcome == "done" and token is not None:
            claims[token.issuer].append(Step(event, token))
        if event.kind == "failover":
            failovers[event.downstream].add(event)
        for name in event.resources:
            if (event.downstream, name) not in groups:
                groups[event.downstream, name] = _Resource(name)
            groups[event.downstream, name].add(event, seen, token)
    killed = {event.actor for event, _ in known if event.kind == "kill"}
    unrecorded = {issuer: [step for step in steps if step.event.actor in killed] for issuer, steps in claims.items()}
    cuts = {downstream: one.cuts() for downstream, one in failovers.items()}
    found = chain(
        chain.from_iterable(check_issuer(steps) for steps in claims.values()),
        chain.from_iterable(
            group.check(downstream, name, unrecorded, cuts.get(downstream, ()), failovers[downstream].marks(name))
            for (downstream, name), group in groups.items()
        ),
    )
    ordered = sorted(found, key=lambda violation: (violation.events[-1].ended, violation.rule))
    places = {place for place, group in groups.items() if group.steps or group.looks}
    return Checked(len(known), len(places), dict(outcomes), tuple(ordered))


def _with_commits(events: Sequence[Event]) -> Iterator[tuple[Event, Event]]:
    """The events, none of them pending that its actor committed afterwards; each also with the end at which it is seen.

    A mark is held from the write on, its effects are there for others once the transaction is committed.
    """
    commits: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in events:
        if event.kind == "commit":
            insort(commits[event.actor, event.downstream], event.ended)
    for event in events:
        ends = commits.get((event.actor, event.downstream), ()) if event.pending else ()
        following = bisect_left(ends, event.ended)
        if following == len(ends):
            yield event, event
        else:
            yield replace(event, pending=False), replace(event, pending=False, ended=ends[following])


def _token_of(event: Event) -> Token | None:
    if not event.token:
        return None
    try:
        return Token.parse(event.token)
    except ValueError as exc:
        raise ValueError(f"the {event.kind} of {event.actor} at {event.began}: {exc}") from exc


@dataclass
class _Resource:
    """What happened to one resource in one downstream."""

    name: str
    steps: list[Step] = field(default_factory=list)
    refused: list[Step] = field(default_factory=list)
    claims: list[Step] = field(default_factory=list)
    settled: list[Step] = field(default_factory=list)
    looks: list[Event] = field(default_factory=list)
    seen: list[Event] = field(default_factory=list)
    writes: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    adopted: bool = False

    def add(self, event: Event, seen: Event, token: Token | None) -> None:
        if event.kind == "look":
            self.looks.append(event)
        elif event.kind == "adopt":
            self.adopted = self.adopted or event.outcome in DONE
        elif token is None:
            return
        elif event.kind in _WRITES:
            for effect in event.effects:
                self.writes[effect].append(seen)
            if possible(event):
                self.steps.append(Step(event, token))
                self.seen.append(seen)
            elif event.outcome == "refused" and event.error in ("", "StaleTokenError"):
                if event.refusing == self.name or len(event.resources) == 1:
                    self.refused.append(Step(event, token))
                if event.detail == "asked again":
                    self.seen.append(replace(event, outcome="unknown"))
                    self.steps.append(Step(self.seen[-1], token))
        elif event.kind == "claim" and event.outcome in DONE:
            self.claims.append(Step(event, token))
        elif event.kind == "settle" and event.outcome in DONE:
            self.settled.append(Step(event, token))

    def check(
        self,
        downstream: str,
        resource: str,
        unrecorded: Mapping[str, Sequence[Step]],
        cuts: Sequence[int],
        kept: Sequence[Event],
    ) -> Iterator[Violation]:
        def violation(rule: Rule, text: str, *shown: Event) -> Violation:
            return Violation(rule, downstream, resource, text, tuple(sorted(shown, key=attrgetter("began"))))

        issuers: dict[str, list[Step]] = defaultdict(list)
        for step in self.steps:
            issuers[step.token.issuer].append(step)
        if not self.adopted:
            yield from two_issuers(issuers, violation)
        for issuer, steps in issuers.items():
            yield from two_lineages(steps, violation)
            refused = [step for step in self.refused if step.token.issuer == issuer]
            for part in parts(steps, refused, cuts, kept, issuer):
                yield from check_mark(part.steps, part.refused, unrecorded.get(issuer, ()), violation)
        yield from check_kept(self.steps, cuts, kept, violation)
        yield from check_settled(self.claims, self.settled, violation)
        for look in self.looks:
            yield from check_look(look, self.writes, violation)
            if look.detail == "last":
                yield from check_last(look, self.seen, violation)
            else:
                yield from check_all(look, self.writes, violation)
