"""What is lost or forgotten, and what is told of it."""

from __future__ import annotations

import pytest

from fencing.errors import MarkMissingError, OutcomeUnknownError, StaleTokenError
from fencing.testing._contract._example import NEWER, OLDER, marked, needs
from fencing.testing._downstream import Capability
from fencing.testing._harness import Harness

MANY = 20
"""More answers than an adapter asks for."""


class Losses:
    """Marks that are compacted, and answers that get lost."""

    @needs(Capability.COMPACT)
    def test_a_forgotten_mark_keeps_its_resource_closed(self, harness: Harness) -> None:
        """Without a mark no token under the floor is taken, whether there was one or not; from there on it is."""
        harness.begin(OLDER, "invoice/1")
        harness.write(OLDER, "invoice/1", "older")
        harness.compact(NEWER.token)
        assert harness.mark("invoice/1") is None
        for name in ("invoice/1", "invoice/2"):
            with pytest.raises(StaleTokenError) as caught:
                harness.write(OLDER, name, "no")
            assert (caught.value.resource, caught.value.presented) == (name, OLDER.token)
        assert harness.look("invoice/1") == "older"
        assert harness.look("invoice/2") is None
        harness.begin(NEWER, "invoice/1")
        harness.write(NEWER, "invoice/1", "newer")
        marked(harness, "invoice/1", NEWER)
        assert harness.look("invoice/1") == "newer"

    @needs(Capability.COMPACT, Capability.REJECT, Capability.RAISE, on_missing="reject")
    def test_a_forgotten_mark_is_not_told_as_a_lost_one(self, harness: Harness) -> None:
        """Under on_missing="reject" too it is the token that is too old: raising the fence with it would not help."""
        harness.raise_fence(OLDER, "invoice/1")
        harness.compact(NEWER.token)
        with pytest.raises(StaleTokenError):
            harness.write(OLDER, "invoice/1", "no")
        with pytest.raises(StaleTokenError):
            harness.raise_fence(OLDER, "invoice/1")
        with pytest.raises(MarkMissingError):
            harness.write(NEWER, "invoice/1", "no")

    @needs(Capability.COMPACT)
    def test_a_mark_at_the_floor_stays(self, harness: Harness) -> None:
        """Only marks under the floor are forgotten."""
        harness.begin(NEWER, "invoice/1")
        harness.compact(NEWER.token)
        marked(harness, "invoice/1", NEWER)

    @needs(Capability.LOSE_REPLY)
    def test_a_write_whose_answer_is_lost_is_found_out_or_unknown(self, harness: Harness) -> None:
        """It was made or not, and nothing else; who is told that it was, was told the truth."""
        harness.begin(OLDER, "invoice/1")
        for times in (1, MANY):
            before, value = harness.look("invoice/1"), f"told {times} times"
            try:
                with harness.losing_replies(times):
                    harness.write(OLDER, "invoice/1", value)
            except OutcomeUnknownError:
                assert harness.look("invoice/1") in (before, value)
            else:
                assert harness.look("invoice/1") == value
            harness.write(OLDER, "invoice/1", f"once more, {value}")
        harness.begin(NEWER, "invoice/1")
        for times in (1, MANY):
            with pytest.raises((StaleTokenError, OutcomeUnknownError)), harness.losing_replies(times):
                harness.write(OLDER, "invoice/1", "stale")
        assert harness.look("invoice/1") == f"once more, told {MANY} times"

    @needs(Capability.LOSE_REPLY, Capability.ONCE)
    def test_an_effect_whose_answer_is_lost_is_applied_once_when_it_is_asked_for_again(self, harness: Harness) -> None:
        """The key is as permanent as the effect: both or none."""
        harness.begin(OLDER, "invoice/1")
        applied = 0
        try:
            with harness.losing_replies(MANY):
                harness.apply(OLDER, "invoice/1", values={"invoice/1": "charged"}, result="c-1", once="charge-1")
            applied += 1
        except OutcomeUnknownError:
            applied += harness.look("invoice/1") == "charged"
        back, ran = harness.apply(OLDER, "invoice/1", values={"invoice/1": "charged"}, result="c-1", once="charge-1")
        assert (back, applied + ran) == ("c-1", 1)
        assert harness.look("invoice/1") == "charged"
