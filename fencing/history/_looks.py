"""The rules of what is found in the end: it is held against what was answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from fencing.history._events import Event
from fencing.history._violations import MakeViolation, Violation, possible, sure, value_of


def check_look(look: Event, writes: Mapping[str, list[Event]], violation: MakeViolation) -> Iterator[Violation]:
    """What was found is there once, and somebody was told that it might be."""
    for effect, count in Counter(look.effects).items():
        known = writes.get(effect, [])
        if count > 1:
            yield violation("effect doubled", f"{effect!r} is there {count} times", *known[:2], look)
        if known and not any(map(possible, known)):
            yield violation("refused write landed", f"{effect!r} is there, and was never accepted", known[0], look)


def check_all(look: Event, writes: Mapping[str, list[Event]], violation: MakeViolation) -> Iterator[Violation]:
    """All effects are kept there: none is missing, and they lie in the order of their tokens. One that several tokens
    may have written counts as the lowest that fits.

    Of what was written under ``once=`` (``detail="once"``) the order says nothing: an attempt whose process was killed
    may have applied it and left no record, and a later one was told that it is applied.
    """
    found = set(look.effects)
    for effect, known in writes.items():
        certain = [event for event in known if sure(event) and event.ended < look.began]
        if certain and effect not in found:
            yield violation("accepted write lost", f"{effect!r} was accepted and is not there", certain[0], look)
    newest: Event | None = None
    for effect in look.effects if look.detail != "once" else ():
        known = [event for event in writes.get(effect, ()) if possible(event)]
        fitting = [event for event in known if newest is None or value_of(event) >= value_of(newest)]
        if known and newest is not None and not fitting:
            text = f"{effect!r} of {known[0].token} lies behind an effect of {newest.token}"
            yield violation("stale effect landed", text, newest, known[0], look)
        newest = min(fitting, key=value_of, default=newest)


def check_last(look: Event, written: Sequence[Event], violation: MakeViolation) -> Iterator[Violation]:
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
        and sure(event)
        and event.ended < look.began
        and event not in shown
        and all(other.ended < event.began or value_of(other) < value_of(event) for other in shown)
    ]
    if missing:
        newest = max(missing, key=value_of)
        text = f"{', '.join(newest.effects)} was accepted after what is there"
        yield violation("accepted write lost", text, *shown[:1], newest, look)
