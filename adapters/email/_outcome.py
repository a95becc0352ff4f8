"""From what a transport knows to what happens to the row. Pure: no clock, no database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from adapters.email._backoff import Backoff
from adapters.email._states import RecipientState, State
from adapters.email._transport import Answer, Delivery, Fate


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is written when an attempt ends.

    ``cost``: attempts counted, 0 or 1. ``delay``: seconds until the next one, or None. ``recipients``: those whose
    state or last reply is to be written, with both.
    """

    target: State
    cost: int
    delay: float | None
    detail: str
    recipients: Mapping[str, tuple[RecipientState, str]]


_RECIPIENT: dict[Fate, RecipientState] = {
    "sent": "sent",
    "deferred": "pending",
    "rejected": "failed",
    "uncertain": "uncertain",
}
_WORST: tuple[Fate, ...] = ("uncertain", "deferred", "rejected", "sent")


def conclude(delivery: Delivery, *, attempts: int, failed_before: bool, backoff: Backoff) -> Settlement:
    """Decide about a row that was tried: ``attempts`` before this one, ``failed_before`` if a recipient was refused
    for good earlier.

    One recipient that is not known makes the row uncertain: nothing of it is tried again until a person has looked.
    Else one that was refused for now keeps it pending, for that one alone. Else it failed if anybody was refused for
    good, and was sent if not.
    """
    answers = delivery.answers
    fates = {answer.fate for answer in answers.values()}
    cost = 0 if delivery.free else 1
    worst = next(fate for fate in _WORST if fate in fates)
    detail = _told(answers, worst)
    states = {address: (_RECIPIENT[answer.fate], answer.reply) for address, answer in answers.items()}
    if worst == "uncertain":
        return Settlement("uncertain", cost, None, detail, states)
    if worst == "deferred":
        if not backoff.exhausted(attempts + cost):
            return Settlement("pending", cost, backoff.delay(attempts + cost), detail, states)
        given_up = {
            address: ("failed" if state == "pending" else state, reply) for address, (state, reply) in states.items()
        }
        return Settlement("failed", cost, None, f"given up after {attempts + cost} attempts: {detail}", given_up)
    if worst == "rejected":
        return Settlement("failed", cost, None, detail, states)
    if failed_before:
        return Settlement("failed", cost, None, f"sent ({detail}), but not to those refused for good earlier", states)
    return Settlement("sent", cost, None, detail, states)


def untouched(delay: float | None, why: str) -> Settlement:
    """A row that nothing was handed over for and that counts no attempt: given back, after ``delay`` seconds if
    given."""
    return Settlement("pending", 0, delay, why, {})


def _told(answers: Mapping[str, Answer], fate: Fate) -> str:
    """The decisive words: whom they concern, and the first reply of that kind."""
    concerned = [(address, answer.reply) for address, answer in answers.items() if answer.fate == fate]
    others = f" and {len(concerned) - 1} more" if len(concerned) > 1 else ""
    return f"{concerned[0][0]}{others}: {concerned[0][1]}"
