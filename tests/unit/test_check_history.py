"""The checker: one small history for each promise that it can find broken, and its neighbour that keeps it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fencing.history import Checked, Event, JsonLines, Kind, Outcome, check_history, effects, read_events
from fencing.history._violations import Rule

SQL, JOB = "postgresql:shop", "job/1"


class Record:
    """Events at moments given in milliseconds: from ``began`` to ``ended``."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, began: int, ended: int, kind: Kind, outcome: Outcome, value: int | str, **more: Any) -> Event:
        token = value if isinstance(value, str) else f"i/l/{value}"
        facts = {"actor": f"holder-{value}", "downstream": SQL, "resources": ("a",), **more}
        event = Event(kind, outcome, token=token, began=began, ended=ended, wall=1, pid=1, **facts)
        self.events.append(event)
        return event

    def check(self) -> Checked:
        return check_history(reversed(self.events))

    def rules(self) -> list[Rule]:
        return [violation.rule for violation in self.check().violations]


@pytest.fixture
def record() -> Record:
    return Record()


def stale(record: Record, began: int, ended: int, value: int, **more: Any) -> Event:
    return record.add(began, ended, "write", "refused", value, error="StaleTokenError", **more)


def test_a_takeover_with_its_refusal_is_explained(record: Record) -> None:
    record.add(0, 1, "claim", "done", 1, downstream="scheduler", resources=(JOB,))
    record.add(2, 3, "write", "accepted", 1)
    record.add(4, 5, "claim", "done", 2, downstream="scheduler", resources=(JOB,))
    record.add(6, 7, "raise", "accepted", 2)
    stale(record, 8, 9, 1)
    record.add(8, 9, "settle", "accepted", 2, downstream="scheduler", resources=(JOB,))
    checked = record.check()
    assert checked.explained
    assert (checked.events, checked.outcomes) == (6, {"accepted": 2, "refused": 1})


def test_an_older_write_accepted_after_a_newer_one_is_shown_with_both(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 1)
    newer = record.add(2, 3, "raise", "accepted", 2)
    late = record.add(4, 5, "write", "accepted", 1)
    (violation,) = record.check().violations
    assert (violation.rule, violation.downstream, violation.resource) == ("stale write accepted", SQL, "a")
    assert violation.events == (newer, late)
    assert "i/l/1 was accepted after i/l/2" in str(violation)


def test_writes_that_overlap_may_have_been_in_either_order(record: Record) -> None:
    record.add(0, 5, "write", "accepted", 2)
    record.add(4, 6, "write", "accepted", 1)
    assert record.check().explained


def test_resources_and_downstreams_have_a_mark_each(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 2)
    record.add(2, 3, "write", "accepted", 1, resources=("b",))
    record.add(2, 3, "write", "accepted", 1, downstream="redis")
    assert record.check().explained
    record.add(4, 5, "write", "accepted", 1, resources=("c", "a"))
    assert record.rules() == ["stale write accepted"]


def test_a_token_refused_once_is_never_accepted_again(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 2)
    stale(record, 2, 3, 1)
    assert record.check().explained
    record.add(4, 5, "write", "accepted", 1)
    assert set(record.rules()) == {"stale write accepted"}


def test_of_several_resources_one_refused_and_the_others_may_take_the_token_still(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 1)
    record.add(0, 1, "write", "accepted", 2, resources=("b",))
    refused = stale(record, 2, 3, 1, resources=("a", "b"), refusing="b")
    record.add(4, 5, "write", "accepted", 1)
    assert record.check().explained
    record.events[2] = replace(refused, refusing="")
    assert record.check().explained, "it may have been b"
    record.events[2] = replace(refused, refusing="a")
    assert set(record.rules()) == {"refused without cause", "stale write accepted"}


def test_a_refusal_needs_a_cause(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 1)
    stale(record, 2, 3, 1)
    assert record.rules() == ["refused without cause"]
    record.add(2, 3, "write", "unknown", 5)
    assert record.check().explained, "the unknown one may have been it"
    record.add(4, 5, "write", "accepted", 3)
    assert record.rules() == ["refused without cause"], "not when something lower was accepted afterwards"


def test_marks_from_before_the_history_are_a_cause(record: Record) -> None:
    stale(record, 0, 1, 4)
    record.add(2, 3, "write", "accepted", 5)
    assert record.check().explained


def test_what_is_unknown_or_pending_may_have_happened_or_not(record: Record) -> None:
    record.add(0, 1, "write", "unknown", 9)
    record.add(0, 1, "write", "accepted", 8, pending=True, actor="worker")
    record.add(2, 3, "write", "accepted", 1)
    assert record.check().explained
    record.add(1, 2, "commit", "done", "", actor="somebody else")
    assert record.check().explained
    record.add(1, 2, "commit", "done", "", actor="worker")
    assert record.rules() == ["stale write accepted"], "it was committed before"


def test_what_is_pending_is_seen_once_it_is_committed(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 1, effects=("one",))
    record.add(2, 3, "write", "accepted", 2, effects=("two",), pending=True)
    record.add(4, 5, "look", "done", "", effects=("one",), detail="last")
    record.add(6, 6, "commit", "done", "", actor="holder-2", resources=())
    record.add(7, 8, "look", "done", "", effects=("two",), detail="last")
    record.add(9, 9, "commit", "done", "", actor="holder-2", resources=())
    assert record.check().explained
    record.add(7, 8, "look", "done", "", effects=("one",), detail="last")
    assert record.rules() == ["accepted write lost"]


def test_a_pending_write_was_judged_all_the_same(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 2)
    record.add(2, 3, "write", "accepted", 1, pending=True)
    assert record.rules() == ["stale write accepted"]


@pytest.mark.parametrize("outcome", ["contention", "failed"])
def test_what_wrote_nothing_raised_nothing(record: Record, outcome: Outcome) -> None:
    record.add(0, 1, "write", outcome, 9)
    record.add(2, 3, "write", "accepted", 1)
    assert record.check().explained


def test_other_refusals_say_nothing_of_the_order(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 5)
    record.add(2, 3, "write", "refused", "other/l/1", error="IssuerMismatchError")
    record.add(2, 3, "write", "refused", "i/other/5", error="LineageConflictError")
    record.add(4, 5, "write", "accepted", 5)
    assert record.check().explained


def test_two_issuers_or_two_lineages_of_one_number(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 5)
    record.add(2, 3, "write", "accepted", "i/other/5")
    assert record.rules() == ["two lineages with one number"]
    record.events.pop()
    record.add(2, 3, "write", "accepted", "other/l/1")
    assert record.rules() == ["two issuers on one resource"]
    record.add(1, 2, "adopt", "done", "other/l/1")
    assert record.check().explained


def test_tokens_are_given_once_and_grow(record: Record) -> None:
    record.add(0, 5, "claim", "done", 3, downstream="scheduler", resources=("job/1",))
    record.add(1, 4, "claim", "done", 2, downstream="scheduler", resources=("job/2",))
    assert record.check().explained, "these two overlapped"
    record.add(6, 7, "claim", "done", 1, downstream="scheduler", resources=("job/3",))
    assert record.rules() == ["token fell"]
    record.add(0, 9, "claim", "done", 3, downstream="scheduler", resources=("lease/x",))
    assert set(record.rules()) == {"token fell", "token repeated"}


def test_a_settlement_after_a_newer_claim_or_a_second_one(record: Record) -> None:
    job: dict[str, Any] = {"downstream": "scheduler", "resources": (JOB,)}
    record.add(0, 1, "claim", "done", 1, **job)
    record.add(2, 3, "claim", "done", 2, **job)
    record.add(4, 5, "settle", "lost", 1, **job)
    record.add(4, 5, "settle", "accepted", 2, detail="completed", **job)
    assert record.check().explained
    record.add(6, 7, "settle", "accepted", 1, **job)
    assert record.rules() == ["settled by an older holder"]
    record.events.pop()
    record.add(6, 7, "settle", "accepted", 2, **job)
    assert record.rules() == ["settled twice"]


Story = Callable[[Record], None]


def look(record: Record, *found: str, last: bool = False) -> None:
    record.add(90, 91, "look", "done", "", effects=found, detail="last" if last else "")


def lost(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 1, effects=("x",))
    look(record)


def doubled(record: Record) -> None:
    record.add(0, 1, "write", "unknown", 1, effects=("x",))
    record.add(2, 3, "write", "accepted", 1, effects=("x",))
    look(record, "x", "x")


def smuggled(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 2)
    stale(record, 2, 3, 1, effects=("x",))
    look(record, "x")


def behind(record: Record) -> None:
    record.add(0, 5, "write", "accepted", 2, effects=("new",))
    record.add(0, 5, "write", "accepted", 1, effects=("old",))
    look(record, "new", "old")


def overwritten(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 1, effects=("old",))
    record.add(2, 3, "write", "accepted", 2, effects=("new",))
    look(record, "old", last=True)


def vanished(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 1, effects=("x",))
    look(record, last=True)


@pytest.mark.parametrize(
    ("story", "rule"),
    [
        (lost, "accepted write lost"),
        (doubled, "effect doubled"),
        (smuggled, "refused write landed"),
        (behind, "stale effect landed"),
        (overwritten, "accepted write lost"),
        (vanished, "accepted write lost"),
    ],
)
def test_what_is_found_in_the_end_is_held_against_the_answers(record: Record, story: Story, rule: Rule) -> None:
    story(record)
    assert record.rules() == [rule]


def test_what_is_found_in_the_end_can_be_explained(record: Record) -> None:
    record.add(0, 5, "write", "accepted", 1, effects=("old",))
    record.add(0, 5, "write", "accepted", 2, effects=("new",))
    record.add(6, 7, "write", "unknown", 3, effects=("maybe",))
    record.add(6, 7, "write", "accepted", 3, effects=("perhaps",), pending=True)
    look(record, "before the history", "old", "new")
    assert record.check().explained
    record.events.pop()
    look(record, "old", "new", "maybe", "perhaps")
    assert record.check().explained
    record.events.pop()
    look(record, "new", last=True)
    assert record.check().explained


def test_a_removal_explains_an_empty_place(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 1, effects=("x",))
    record.add(2, 3, "write", "accepted", 2)
    look(record, last=True)
    assert record.check().explained


def test_an_effect_tried_under_two_tokens_may_lie_under_either(record: Record) -> None:
    record.add(0, 1, "write", "unknown", 1, effects=("x",))
    record.add(2, 3, "write", "accepted", 2, effects=("y",))
    record.add(4, 5, "write", "accepted", 3, effects=("x",))
    look(record, "y", "x")
    assert record.check().explained


def test_what_was_written_under_once_keys_may_have_been_applied_by_an_attempt_without_a_record(record: Record) -> None:
    record.add(0, 5, "write", "accepted", 2, effects=("x",))
    record.add(0, 5, "write", "accepted", 1, effects=("y",))
    look(record, "x", "y")
    assert record.rules() == ["stale effect landed"]
    record.events[-1] = replace(record.events[-1], detail="once")
    assert record.check().explained
    record.events[-1] = replace(record.events[-1], effects=("x",))
    assert record.rules() == ["accepted write lost"]


def test_a_killed_actor_may_have_raised_a_mark_and_left_no_record(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 1)
    record.add(2, 3, "claim", "done", 2, downstream="scheduler", resources=(JOB,), actor="worker")
    stale(record, 4, 5, 1)
    assert record.rules() == ["refused without cause"]
    record.add(9, 9, "kill", "done", "", actor="somebody else")
    assert record.rules() == ["refused without cause"]
    record.add(9, 9, "kill", "done", "", actor="worker")
    assert record.check().explained


def test_a_fence_that_was_shown_twice_and_refused_may_have_been_raised_the_first_time(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 1)
    record.add(2, 9, "raise", "refused", 5, error="StaleTokenError", detail="asked again")
    stale(record, 3, 4, 3)
    record.add(6, 7, "raise", "accepted", 7)
    assert record.check().explained
    record.events[1] = replace(record.events[1], detail="")
    assert record.rules() == ["refused without cause"]


def test_a_token_that_is_none_is_named(record: Record) -> None:
    record.add(0, 1, "write", "accepted", "rubbish")
    with pytest.raises(ValueError, match="the write of holder-rubbish at 0: a token is written issuer/lineage/value"):
        record.check()


def test_it_survives_the_file(record: Record, tmp_path: Path) -> None:
    overwritten(record)
    lines = JsonLines(tmp_path / "h.jsonl")
    for event in record.events:
        lines(event)
    lines.close()
    assert read_events(tmp_path / "h.jsonl") == sorted(record.events, key=lambda event: event.began)
    assert check_history(read_events(tmp_path / "h.jsonl")) == record.check()


WHOLE = {"kind": "write", "outcome": "accepted", "actor": "ada", "token": "i/l/1", "began": 1, "ended": 2}


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("not json", "is not JSON"),
        ("[1, 2]", "it is not an object"),
        ("3", "it is not an object"),
        (WHOLE | {"kind": "writ"}, "its kind 'writ' is none of adopt, claim"),
        (WHOLE | {"outcome": "acepted"}, "its outcome 'acepted' is none of accepted"),
        (WHOLE | {"outcome": ["accepted"]}, "its outcome"),
        (WHOLE | {"token": 6}, "its token 6 is not a text"),
        (WHOLE | {"began": "1"}, "its began '1' is not a whole number"),
        (WHOLE | {"began": True}, "its began True is not a whole number"),
        (WHOLE | {"ended": 1.5}, "its ended 1.5 is not a whole number"),
        (WHOLE | {"began": 3}, "its end 2 is no moment after its beginning 3"),
        (WHOLE | {"began": 0, "ended": 0}, "its end 0 is no moment"),
        (WHOLE | {"resources": "abc"}, "its resources 'abc' are not a list of texts"),
        (WHOLE | {"effects": [1]}, r"its effects \[1\] are not a list of texts"),
        (WHOLE | {"pending": "no"}, "its pending 'no' is neither true nor false"),
        (WHOLE | {"colour": "red"}, "colour"),
        ({"kind": "write", "outcome": "accepted"}, "it has no actor, began, ended"),
    ],
)
def test_a_line_that_is_no_event_is_refused_and_not_read_as_another(line: Any, wrong: str, tmp_path: Path) -> None:
    """Misread, it could hide a violation: of a text in place of a list, each letter would be a resource."""
    path = tmp_path / "h.jsonl"
    text = line if isinstance(line, str) else json.dumps(line)
    path.write_text(f"{json.dumps(WHOLE)}\n{text}\n")
    with pytest.raises(ValueError, match=f"^line 2 of the history .*{wrong}"):
        read_events(path)


@pytest.mark.parametrize("rest", [b"", b"\n \n", b'{"kind": "wri', b'{"actor": "' + "ö".encode()[:1]])
def test_the_line_that_a_killed_process_did_not_finish_is_passed_over(rest: bytes, tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_bytes(json.dumps(WHOLE).encode() + b"\n" + rest)
    assert [event.actor for event in read_events(path)] == ["ada"]


def test_effects_are_named_for_the_length_of_a_block() -> None:
    from fencing import Token, fenced_write, history
    from fencing.testing import MemoryGuard

    seen: list[Event] = []
    unsubscribe = history.subscribe(seen.append)
    try:
        guard = MemoryGuard("create")
        with effects("x"):
            with fenced_write(guard, "a", token=Token(1, "i", "l")):
                pass
        with fenced_write(guard, "a", token=Token(1, "i", "l")):
            pass
    finally:
        unsubscribe()
    assert [(event.effects, event.pending) for event in seen] == [(("x",), False), ((), False)]
    assert check_history(seen).explained
    assert not check_history([*seen, replace(seen[0], token="i/l/2", began=1, ended=2)]).explained


def failed_over(record: Record, moment: int, mark: int | None = None, *, told: bool = True) -> Event:
    record.add(moment, moment, "failover", "done", "", resources=())
    if told:
        record.add(moment, moment, "failover", "done", "" if mark is None else mark)
    return record.events[-1]


def test_a_failover_begins_a_resource_anew_with_the_mark_that_survived_it(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 4)
    record.add(2, 3, "raise", "unknown", 9)
    stale(record, 4, 5, 7)
    failed_over(record, 10, 4)
    record.add(11, 12, "write", "accepted", 6)
    assert record.check().explained, "nobody was told of 9, so it may be gone, and what refused 7 with it"
    record.events = [event for event in record.events if event.kind != "failover"]
    assert record.rules() == ["stale write accepted"]


def test_a_mark_that_survived_a_failover_refuses_what_is_older(record: Record) -> None:
    record.add(0, 1, "raise", "unknown", 9)
    failed_over(record, 10, 9)
    stale(record, 11, 12, 6)
    assert record.check().explained
    late = record.add(13, 14, "write", "accepted", 8)
    (violation,) = (
        one for one in record.check().violations if late in one.events and one.rule != "refused without cause"
    )
    assert violation.rule == "stale write accepted"
    assert [event.kind for event in violation.events] == ["failover", "write"]


@pytest.mark.parametrize("kept", [None, 5])
def test_a_mark_that_was_acknowledged_and_did_not_survive_a_failover_is_lost(record: Record, kept: int | None) -> None:
    newest = record.add(2, 3, "write", "accepted", 6)
    after = failed_over(record, 10, kept)
    record.add(11, 12, "write", "accepted", 5)
    (violation,) = record.check().violations
    assert (violation.rule, violation.events) == ("accepted write lost", (newest, after))
    record.events[0] = replace(newest, ended=11)
    assert record.check().explained, "its call spans the failover: the new server may have taken it"


def test_a_failover_of_which_the_mark_is_not_told_leaves_it_open(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 6)
    failed_over(record, 10, told=False)
    record.add(11, 12, "write", "accepted", 5)
    record.add(0, 1, "write", "accepted", 6, downstream="redis")
    assert record.check().explained
    record.add(11, 12, "write", "accepted", 5, downstream="redis")
    assert record.rules() == ["stale write accepted"], "another server was not replaced"
    record.events.pop()
    record.add(13, 14, "write", "accepted", 4)
    assert record.rules() == ["stale write accepted"], "after it the rule is as before"


def test_what_is_unknown_may_take_effect_after_a_failover(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 1)
    record.add(2, 3, "raise", "unknown", 9)
    failed_over(record, 10, 1)
    stale(record, 11, 12, 5)
    assert record.check().explained
    record.events[1] = replace(record.events[1], outcome="contention")
    assert record.rules() == ["refused without cause"]


def test_a_refusal_whose_call_spans_a_failover_may_be_either_server_s(record: Record) -> None:
    record.add(0, 1, "write", "accepted", 1)
    failed_over(record, 10, 1)
    stale(record, 9, 13, 5)
    record.add(11, 12, "write", "accepted", 7)
    assert record.check().explained
