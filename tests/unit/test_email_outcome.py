"""What happens to a row after an attempt, and which changes of state there are at all."""

from typing import Any

import pytest

from adapters.email import Answer, Backoff, Delivery
from adapters.email._outcome import Rules, conclude
from adapters.email._states import FINISHED, STATES, TRANSITIONS, sources, sql_list

BACKOFF = Backoff(attempts=3)


def end(
    *fates: str, attempts: int = 0, failed_before: bool = False, free: bool = False
) -> tuple[str, int, bool, list[str]]:
    answers = {f"r{number}": Answer(fate, f"reply {number}") for number, fate in enumerate(fates)}  # type: ignore[arg-type]
    found = conclude(Delivery(answers, free=free), attempts=attempts, failed_before=failed_before, backoff=BACKOFF)
    return found.target, found.cost, found.delay is not None, [state for state, _ in found.recipients.values()]


@pytest.mark.parametrize(
    ("fates", "target", "states"),
    [
        (["sent", "sent"], "sent", ["sent", "sent"]),
        (["sent", "deferred"], "pending", ["sent", "pending"]),
        (["sent", "rejected"], "failed", ["sent", "failed"]),
        (["rejected", "deferred"], "pending", ["failed", "pending"]),
        (["uncertain", "deferred"], "uncertain", ["uncertain", "pending"]),
        (["uncertain", "rejected"], "uncertain", ["uncertain", "failed"]),
    ],
)
def test_each_recipient_has_an_end_of_its_own_and_the_row_the_one_that_needs_most(
    fates: list[str], target: str, states: list[str]
) -> None:
    assert end(*fates) == (target, 1, target == "pending", states)


def test_the_last_attempt_ends_in_failed() -> None:
    assert end("deferred", attempts=1) == ("pending", 1, True, ["pending"])
    assert end("sent", "deferred", attempts=2) == ("failed", 1, False, ["sent", "failed"])


def test_what_is_not_the_messages_fault_costs_no_attempt() -> None:
    assert end("deferred", attempts=2, free=True) == ("pending", 0, True, ["pending"])


@pytest.mark.parametrize("asked", [1e30, float("inf"), float("nan"), -1.0])
def test_a_server_that_asks_for_more_time_than_there_is_gets_a_month(asked: float) -> None:
    delivery = Delivery({"r": Answer("deferred", "later")}, retry_after=asked)
    delay = conclude(delivery, attempts=0, failed_before=False, backoff=BACKOFF).delay
    assert delay is not None
    assert 60 <= delay <= 30 * 86_400


def test_a_row_is_not_sent_if_a_recipient_was_refused_for_good_earlier() -> None:
    assert end("sent", failed_before=True) == ("failed", 1, False, ["sent"])


def test_delays_grow_are_jittered_and_outlast_greylisting() -> None:
    backoff = Backoff()
    for attempt in range(70):
        delays = [backoff.delay(attempt) for _ in range(50)]
        assert min(delays) >= 60
        assert max(delays) <= 60 + min(14_400, 240 * 2 ** max(0, attempt - 1))
        assert len(set(delays)) > 40
    mean = sum(60 + min(14_400, 240 * 2.0 ** (attempt - 1)) / 2 for attempt in range(1, backoff.attempts))
    assert 4 * 86_400 <= mean <= 5 * 86_400


def test_a_backoff_without_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="minimum"):
        Backoff(minimum=0)
    with pytest.raises(ValueError, match="attempts"):
        Backoff(attempts=0)


def test_sql_conditions_come_from_the_transitions() -> None:
    assert sources("settle", "sent") == ("dispatching",)
    assert sources("settle", "pending") == ("claimed", "dispatching")
    assert sources("dispatch", "dispatching") == ("claimed",)
    assert sql_list(sources("settle", "failed")) == "('claimed', 'dispatching')"
    with pytest.raises(ValueError, match="'sent' by 'rescue'"):
        sources("rescue", "sent")


def test_only_people_leave_a_final_state_and_only_knowledge_ends_a_doubt() -> None:
    assert {change.verb for change in TRANSITIONS if change.source in FINISHED} == {"requeue"}
    assert {change.verb for change in TRANSITIONS if change.source == "uncertain"} == {
        "evidence",
        "look_up",
        "resolve",
        "requeue",
    }
    assert {state for change in TRANSITIONS for state in (change.source, change.target)} == set(STATES)


@pytest.mark.parametrize(
    ("rules", "target", "in_doubt"),
    [
        (Rules("hold"), "uncertain", True),
        (Rules("resend"), "pending", True),
        (Rules("keyed", key_window=1800), "pending", True),
        (Rules("keyed"), "uncertain", True),  # a transport without keys
        (Rules("reconcile", can_look_up=True), "uncertain", True),
        (Rules("reconcile"), "uncertain", True),
    ],
)
def test_the_policy_decides_about_what_nobody_knows(rules: Rules, target: str, in_doubt: bool) -> None:
    doubt = Delivery({"a": Answer("uncertain", "no answer"), "b": Answer("deferred", "later")})
    end = conclude(doubt, attempts=0, failed_before=False, backoff=BACKOFF, rules=rules)
    assert (end.target, end.in_doubt) == (target, in_doubt)
    assert (end.look_up is not None) == rules.looks_up
    assert end.recipients["a"][0] == target
    assert end.recipients["b"][0] == "pending"
    # Not even a policy that sends again does so for ever, or where it would not help.
    last = conclude(doubt, attempts=BACKOFF.attempts - 1, failed_before=False, backoff=BACKOFF, rules=rules)
    held = conclude(Delivery(doubt.answers, held=True), attempts=0, failed_before=False, backoff=BACKOFF, rules=rules)
    assert (last.target, held.target, held.look_up) == ("uncertain", "uncertain", None)


def test_a_keyed_message_is_tried_again_while_the_provider_knows_its_key() -> None:
    rules = Rules("keyed", key_window=80)
    end = conclude(
        Delivery({"a": Answer("uncertain", "?")}), attempts=0, failed_before=False, backoff=BACKOFF, rules=rules
    )
    assert end.delay == 10


@pytest.mark.parametrize(
    ("fate", "attempts", "target"),
    [("sent", 0, "sent"), ("deferred", 0, "pending"), ("rejected", 0, "uncertain"), ("deferred", 99, "uncertain")],
)
def test_a_refusal_proves_nothing_about_an_earlier_hand_over(fate: Any, attempts: int, target: str) -> None:
    end = conclude(
        Delivery({"a": Answer(fate, "reply")}),
        attempts=attempts,
        failed_before=False,
        backoff=BACKOFF,
        rules=Rules("resend", in_doubt=True),
    )
    assert end.target == target
    assert end.in_doubt == (target != "sent")
