"""A failover cuts a resource's history: what follows begins with the mark that the new server has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from fencing._token import Token
from fencing.history._events import Event
from fencing.history._violations import MakeViolation, Step, Violation, sure


@dataclass(frozen=True, slots=True)
class Part:
    """What happened between two failovers: the ``steps`` that may have happened then, and the refusals."""

    steps: list[Step] = field(default_factory=list)
    refused: list[Step] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Failover:
    """A server was replaced by its standby. ``token``: the resource's mark there; None: it has none, or none is told
    (``told`` says which)."""

    event: Event
    told: bool
    token: Token | None


def failovers_of(events: Iterable[Event], resource: str) -> list[Failover]:
    """The failovers of one downstream as one resource saw them. Those that name no resources are everybody's."""
    moments: dict[int, Failover] = {}
    for event in sorted(events, key=attrgetter("began")):
        if resource in event.resources:
            token = Token.parse(event.token) if event.token else None
            moments[event.began] = Failover(event, True, token)
        elif not event.resources:
            moments.setdefault(event.began, Failover(event, False, None))
    return list(moments.values())


def parts(steps: Sequence[Step], refused: Sequence[Step], failovers: Sequence[Failover], issuer: str) -> Iterator[Part]:
    """Cut the answers of one resource at its failovers.

    A server that was replaced had taken or refused what it did before; what it did not pass on is forgotten, and so is
    what was refused because of it. An answer whose call spans a failover came from either server. What is unknown may
    take effect at any later moment.
    """
    cuts = [failover.event.began for failover in failovers]
    found = [Part() for _ in range(len(cuts) + 1)]
    for number, failover in enumerate(failovers):
        if failover.token is not None and failover.token.issuer == issuer:
            mark = replace(failover.event, outcome="accepted")
            found[number + 1].steps.append(Step(mark, failover.token))
    for step in steps:
        first, last = _places(step, cuts)
        if step.event.outcome == "unknown":
            last = len(cuts)
        elif first != last:
            step = Step(replace(step.event, outcome="unknown"), step.token)
        for part in found[first : last + 1]:
            part.steps.append(step)
    for step in refused:
        first, last = _places(step, cuts)
        if first == last:
            found[first].refused.append(step)
    yield from found


def check_kept(steps: Sequence[Step], failovers: Sequence[Failover], violation: MakeViolation) -> Iterator[Violation]:
    """A mark that somebody was told is there after the failover, or a higher one."""
    ordered = sorted((step for step in steps if sure(step.event)), key=attrgetter("ended"))
    since = 0
    for failover in failovers:
        before = [step for step in ordered if since <= step.began and step.ended < failover.event.began]
        since = failover.event.began
        highest = max(before, key=attrgetter("value"), default=None)
        if highest is None or not failover.told:
            continue
        kept = failover.token
        if kept is None or (kept.issuer == highest.token.issuer and kept.value < highest.value):
            text = f"{highest.token} was accepted, and after the failover the mark is {kept or 'missing'}"
            yield violation("accepted write lost", text, highest.event, failover.event)


def _places(step: Step, cuts: Sequence[int]) -> tuple[int, int]:
    return sum(cut <= step.began for cut in cuts), sum(cut < step.ended for cut in cuts)
