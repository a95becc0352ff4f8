"""The protocol, every state of it: none breaks a promise, and from each the job can end. Each fault yields a story."""

from __future__ import annotations

import os

import pytest
from support.protocol import Explored, Variant, events_of, explore

from fencing.history import check_history, draw_text

STALE, UNSEEN = "stale write accepted", ""
FAULTS = [
    (Variant("the downstream does not look at the token", "every lock without fencing", judges=False), STALE),
    (Variant("the owner's second write is refused", "mithril (measured)", strict=True), UNSEEN),
    (Variant("check, then write", "mithril, openbao", check_then_write=True), STALE),
    (Variant("marks are forgotten at a restart", "elasticsearch #101178", forgets_marks=True), STALE),
    (Variant("a counter that fails over with its database", "counters on a standby", floor=False), "token repeated"),
    (Variant("a claim keeps the token of the one before", "oban #862", new_token_per_claim=False), "token repeated"),
    (Variant("settled by id alone", "procrastinate, pgqueuer", settles_by_token=False), "settled by an older holder"),
    (Variant("a sweep takes back what had ended", "sidequest #208", rescues_what_ended=True), UNSEEN),
]
"""Each with the rule by which the checker of histories must see it too, where a history can show it."""


def told(explored: Explored) -> str:
    lines = [f"{number:>2}. {step.told}" for number, step in enumerate(explored.story, 1)]
    picture = draw_text(events_of(explored.story), width=100, colour=False, unicode=True)
    return "\n".join([*lines, f"    {explored.broken or 'from here the job can never end'}", "", picture])


@pytest.mark.parametrize(("failovers", "claims"), [(1, 2), (0, 3)])
def test_two_workers_two_resources_a_failover_in_every_order_break_nothing(failovers: int, claims: int) -> None:
    explored = explore(Variant(), failovers=failovers, claims=claims)
    print(f"{explored.worlds} states, {explored.ended} of them ends")
    assert not explored.broken, told(explored)
    assert not explored.stuck, told(explored)
    assert explored.ended
    assert explored.worlds > 10_000, "the model has lost most of its states"


def test_workers_that_change_places_are_the_same_state() -> None:
    every, one_of_each = explore(Variant(), failovers=0), explore(Variant(), failovers=0, symmetric=True)
    assert not one_of_each.broken
    assert not one_of_each.stuck
    assert every.worlds / 2 <= one_of_each.worlds < every.worlds


@pytest.mark.parametrize(("variant", "rule"), FAULTS, ids=lambda given: getattr(given, "name", ""))
def test_each_fault_yields_a_story(variant: Variant, rule: str) -> None:
    explored = explore(variant)
    assert explored.story, f"{variant.name} ({variant.seen}) was not found in {explored.worlds} states"
    print(f"{variant.name} (seen: {variant.seen}), {explored.worlds} states\n{told(explored)}")
    seen = {violation.rule for violation in check_history(events_of(explored.story)).violations}
    assert rule in seen if rule else not seen, "the checker of histories saw something else"


def test_writes_are_judged_one_by_one_whether_or_not_fences_were_raised_first() -> None:
    assert not explore(Variant(raises=False)).broken


@pytest.mark.skipif(not os.environ.get("FENCING_DEEP"), reason="takes minutes: FENCING_DEEP=1")
@pytest.mark.timeout(3600)
def test_three_workers_two_resources_two_failovers_break_nothing() -> None:
    explored = explore(Variant(), workers=3, failovers=2, symmetric=True)
    print(f"{explored.worlds} states, {explored.ended} of them ends")
    assert not explored.broken, told(explored)
    assert not explored.stuck
