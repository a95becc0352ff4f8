"""The checker's decision without search, held against a search over every order of small histories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from fencing.history import Event, Outcome, check_history

ENDS: tuple[tuple[Outcome, bool], ...] = (
    ("accepted", False),
    ("accepted", True),
    ("refused", False),
    ("unknown", False),
    ("contention", False),
)


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Up to six writes to one resource, with intervals that overlap or do not, and five tokens."""
    count = draw(st.integers(1, 6))
    moments = draw(st.permutations(range(2 * count)))
    events = []
    for number in range(count):
        began, ended = sorted(moments[2 * number : 2 * number + 2])
        outcome, pending = draw(st.sampled_from(ENDS))
        value = draw(st.integers(1, 4))
        error = "StaleTokenError" if outcome == "refused" else ""
        events.append(
            Event(
                "write",
                outcome,
                f"w{number}",
                "db",
                ("a",),
                f"i/l/{value}",
                error,
                pending=pending,
                began=began,
                ended=ended,
                wall=1,
                pid=1,
            )
        )
    return events


def value(event: Event) -> int:
    return int(event.token.rpartition("/")[2])


def orders(events: list[Event]) -> Iterator[tuple[Event, ...]]:
    """Every order in which nothing stands before what had ended when it began. What is unknown has no end."""
    for order in permutations(events):
        if all(
            not (later.outcome != "unknown" and later.ended < earlier.began)
            for position, earlier in enumerate(order)
            for later in order[position + 1 :]
        ):
            yield order


def fits(order: tuple[Event, ...], happened: dict[str, bool], mark: int) -> bool:
    acknowledged = 0
    for event in order:
        if event.kind == "failover":
            if acknowledged > (kept := value(event) if event.token else 0):
                return False
            mark = kept
            continue
        if event.outcome == "accepted" and not event.pending:
            acknowledged = value(event)
        if event.outcome == "accepted":
            if value(event) < mark:
                return False
            if happened.get(event.actor, True):
                mark = value(event)
        elif event.outcome == "refused":
            if value(event) >= mark:
                return False
        elif happened[event.actor]:
            if value(event) < mark:
                return False
            mark = value(event)
    return True


def explained_by_search(events: list[Event]) -> bool:
    told = [event for event in events if event.outcome != "contention"]
    open_ends = [event.actor for event in told if event.outcome == "unknown" or event.pending]
    choices = [dict(zip(open_ends, choice, strict=True)) for choice in product((False, True), repeat=len(open_ends))]
    return any(fits(order, happened, mark) for order in orders(told) for happened in choices for mark in range(6))


@settings(max_examples=400, deadline=None)
@given(histories())
def test_two_events_decide_as_every_order_would(events: list[Event]) -> None:
    assert check_history(events).explained == explained_by_search(events)


@st.composite
def histories_with_a_failover(draw: st.DrawFn) -> list[Event]:
    """The same with fewer writes, and a failover somewhere between or during them."""
    events = draw(histories())[:5]
    moment = draw(st.integers(-1, 12))
    spread = [replace(event, began=2 * event.began, ended=2 * event.ended) for event in events]
    kept = draw(st.integers(0, 4))
    token = f"i/l/{kept}" if kept else ""
    at = 2 * moment + 1
    return [*spread, Event("failover", "done", "f", "db", ("a",), token, began=at, ended=at, wall=1, pid=1)]


@settings(max_examples=300, deadline=None)
@given(histories_with_a_failover())
def test_nothing_is_accused_that_an_order_with_the_failover_in_it_explains(events: list[Event]) -> None:
    """Only so much: of an answer whose call spans the failover, the checker does not ask which server gave it."""
    assert check_history(events).explained or not explained_by_search(events)
