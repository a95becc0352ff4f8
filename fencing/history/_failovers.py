"""A failover cuts a resource's history: what follows begins with the mark that the new server has."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from fencing._token import Token
from fencing.history._events import Event
from fencing.history._violations import MakeViolation, Step, Violation, sure


@dataclass(frozen=True, slots=True)
class Part:
    """What happened between two failovers: the ``steps`` that may have happened then, and the refusals."""

    steps: list[Step] = field(default_factory=list)
    refused: list[Step] = field(default_factory=list)


class Failovers:
    """When a downstream's server was replaced by its standby, and which marks are known of it."""

    def __init__(self) -> None:
        self._moments: set[int] = set()
        self._marks: dict[str, list[Event]] = defaultdict(list)

    def add(self, event: Event) -> None:
        self._moments.add(event.began)
        for name in event.resources:
            self._marks[name].append(event)

    def cuts(self) -> list[int]:
        return sorted(self._moments)

    def marks(self, resource: str) -> Sequence[Event]:
        """The failovers of which the resource's mark is told."""
        return self._marks.get(resource, ())


def parts(
    steps: Sequence[Step], refused: Sequence[Step], cuts: Sequence[int], marks: Sequence[Event], issuer: str
) -> Iterator[Part]:
    """Cut the answers of one resource at the failovers.

    A server that was replaced had taken or refused what it did before; what it did not pass on is forgotten, and so is
    what was refused because of it. An answer whose call spans a failover came from either server. What is unknown may
    take effect at any later moment.
    """
    found: dict[int, Part] = defaultdict(Part)
    for event in marks:
        token = Token.parse(event.token) if event.token else None
        if token is not None and token.issuer == issuer:
            found[bisect_right(cuts, event.began)].steps.append(Step(replace(event, outcome="accepted"), token))
    endless: list[tuple[int, Step]] = []
    for step in steps:
        first, last = _places(step, cuts)
        if step.event.outcome == "unknown":
            endless.append((first, step))
        elif first == last:
            found[first].steps.append(step)
        else:
            either = Step(replace(step.event, outcome="unknown"), step.token)
            for place in range(first, last + 1):
                found[place].steps.append(either)
    for step in refused:
        first, last = _places(step, cuts)
        if first == last:
            found[first].refused.append(step)
    for place, part in found.items():
        part.steps.extend(step for first, step in endless if first <= place)
        yield part


def check_kept(
    steps: Sequence[Step], cuts: Sequence[int], marks: Sequence[Event], violation: MakeViolation
) -> Iterator[Violation]:
    """A mark that somebody was told is there after the failover, or a higher one."""
    highest: dict[int, Step] = {}
    for step in steps:
        first, last = _places(step, cuts)
        if first == last and sure(step.event) and (first not in highest or step.value > highest[first].value):
            highest[first] = step
    for event in marks:
        told = highest.get(bisect_left(cuts, event.began))
        kept = Token.parse(event.token) if event.token else None
        if told is None or (kept is not None and (kept.issuer != told.token.issuer or kept.value >= told.value)):
            continue
        text = f"{told.token} was accepted, and after the failover the mark is {kept or 'missing'}"
        yield violation("accepted write lost", text, told.event, event)


def _places(step: Step, cuts: Sequence[int]) -> tuple[int, int]:
    """Between which failovers it began, and between which it ended."""
    return bisect_right(cuts, step.began), bisect_left(cuts, step.ended)
