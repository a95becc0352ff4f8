"""From what a transport knows to what happens to the row. Pure: no clock, no database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from adapters.email._backoff import Backoff
from adapters.email._states import Policy, RecipientState, State
from adapters.email._transport import Answer, Delivery, Fate

LOOK_AFTER = 60.0
"""Seconds from a doubt to the first look at the provider: what it got a moment ago may not be in its lists yet."""


_LATEST = 30 * 86_400.0
"""The most seconds that a server's word puts a message off: whatever number it says, there is such a time."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is written when an attempt ends.

    ``cost``: attempts counted, 0 or 1. ``delay``: seconds until the next one, or None. ``recipients``: those whose
    state or last reply is to be written, with both. ``in_doubt``: whether a hand-over so far may have sent it.
    ``look_up``: seconds until the provider is asked, or None. ``elsewhere``: no hand-over through this transport is in
    doubt, whatever is.
    """

    target: State
    cost: int
    delay: float | None
    detail: str
    recipients: Mapping[str, tuple[RecipientState, str]]
    in_doubt: bool = False
    look_up: float | None = None
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """What a row asks for in doubt, and what the transport can do about it.

    ``in_doubt``: an earlier hand-over may have sent it; ``again``: one through this transport.
    ``key_window``: see :class:`~adapters.email._transport.Transport`.
    """

    policy: Policy = "hold"
    in_doubt: bool = False
    key_window: float | None = None
    can_look_up: bool = False
    again: bool = False

    @property
    def resends(self) -> bool:
        """Whether a message in doubt is handed over again by itself."""
        return self.policy == "resend" or (self.policy == "keyed" and self.key_window is not None)

    @property
    def looks_up(self) -> bool:
        """Whether the provider is asked about a message in doubt."""
        return self.policy == "reconcile" and self.can_look_up


_RECIPIENT: dict[Fate, RecipientState] = {
    "sent": "sent",
    "deferred": "pending",
    "rejected": "failed",
    "uncertain": "uncertain",
}
_WORST: tuple[Fate, ...] = ("uncertain", "deferred", "rejected", "sent")
_HOLD = Rules()


def conclude(
    delivery: Delivery, *, attempts: int, failed_before: bool, backoff: Backoff, rules: Rules = _HOLD
) -> Settlement:
    """Decide about a row that was tried: ``attempts`` before this one, ``failed_before`` if a recipient was refused
    for good earlier.

    One recipient that is not known makes the row a matter of its policy: unless that sends again, nothing of it is
    tried until somebody has looked. Else one that was refused for now keeps it pending, for that one alone. Else it
    failed if anybody was refused for good, and was sent if not. While an earlier hand-over is in doubt, a refusal
    proves nothing about it: instead of failed, the row is uncertain.
    """
    answers = delivery.answers
    fates = {answer.fate for answer in answers.values()}
    cost = 0 if delivery.free else 1
    worst = next(fate for fate in _WORST if fate in fates)
    detail = _told(answers, worst)
    states = {address: (_RECIPIENT[answer.fate], answer.reply) for address, answer in answers.items()}
    last = backoff.exhausted(attempts + cost)
    if worst == "uncertain":
        if rules.resends and not delivery.held and not last:
            delay = _delay(delivery, attempts + cost, backoff)
            if rules.policy == "keyed" and rules.key_window is not None:
                delay = min(delay, rules.key_window / 8)  # several more tries before the provider forgets the key
            return Settlement("pending", cost, delay, detail, _with(states, "uncertain", "pending"), in_doubt=True)
        look_up = LOOK_AFTER if rules.looks_up and not delivery.held else None
        elsewhere = delivery.held and not rules.again
        return Settlement("uncertain", cost, None, detail, states, in_doubt=True, look_up=look_up, elsewhere=elsewhere)
    if worst == "deferred" and not last:
        delay = _delay(delivery, attempts + cost, backoff)
        return Settlement("pending", cost, delay, detail, states, in_doubt=rules.in_doubt)
    if worst == "sent" and not failed_before:
        return Settlement("sent", cost, None, detail, states)
    if worst == "deferred":
        detail = f"given up after {attempts + cost} attempts: {detail}"
    if worst == "sent":
        detail = f"sent ({detail}), but not to those refused for good earlier"
    elif rules.in_doubt:
        states = _with(_with(states, "pending", "uncertain"), "failed", "uncertain")
        told = f"{detail}; but an earlier hand-over may have sent it"
        return Settlement("uncertain", cost, None, told, states, in_doubt=True)
    return Settlement("failed", cost, None, detail, _with(states, "pending", "failed"))


def untouched(delay: float | None, why: str, *, in_doubt: bool = False) -> Settlement:
    """A row that nothing was handed over for and that counts no attempt: given back, after ``delay`` seconds if
    given."""
    return Settlement("pending", 0, delay, why, {}, in_doubt=in_doubt)


def too_late(why: str, recipients: tuple[str, ...]) -> Settlement:
    """A row in doubt whose provider does not compare its key any more: it may not be handed over again."""
    return Settlement("uncertain", 0, None, why, dict.fromkeys(recipients, ("uncertain", why)), in_doubt=True)


def _delay(delivery: Delivery, attempt: int, backoff: Backoff) -> float:
    return max(backoff.delay(attempt), min(delivery.retry_after or 0.0, _LATEST))


def _with(
    states: Mapping[str, tuple[RecipientState, str]], old: RecipientState, new: RecipientState
) -> dict[str, tuple[RecipientState, str]]:
    return {address: (new if state == old else state, reply) for address, (state, reply) in states.items()}


def _told(answers: Mapping[str, Answer], fate: Fate) -> str:
    """The decisive words: whom they concern, and the first reply of that kind."""
    concerned = [(address, answer.reply) for address, answer in answers.items() if answer.fate == fate]
    others = f" and {len(concerned) - 1} more" if len(concerned) > 1 else ""
    return f"{concerned[0][0]}{others}: {concerned[0][1]}"
