"""What happens to a row after an attempt, and which changes of state there are at all."""

import pytest

from adapters.email import Answer, Backoff, Delivery
from adapters.email._outcome import conclude
from adapters.email._states import STATES, TRANSITIONS, sources, sql_list

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


def test_nothing_leaves_a_final_state_and_nothing_uncertain_is_sent_by_itself() -> None:
    assert {change.source for change in TRANSITIONS} == {"pending", "claimed", "dispatching"}
    assert {state for change in TRANSITIONS for state in (change.source, change.target)} <= set(STATES)
    assert [change.target for change in TRANSITIONS if (change.verb, change.source) == ("rescue", "dispatching")] == [
        "uncertain"
    ]
