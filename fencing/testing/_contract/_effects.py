"""Writes that meet each other, the effect form, and the set-up."""

from __future__ import annotations

import pytest

from fencing._findings import Finding
from fencing._ports import AsyncGuard
from fencing._registry import guard_for
from fencing.errors import (
    ContentionError,
    FenceRejected,
    KeyConflictError,
    StaleTokenError,
)
from fencing.history import check_history
from fencing.testing._concurrent import concurrent_history
from fencing.testing._contract._example import NEWER, OLDER, marked, needs
from fencing.testing._downstream import Capability
from fencing.testing._harness import Harness
from fencing.testing._model import GaveUpError


class Concurrent:
    """Two workers' writes at once."""

    @needs(Capability.CONCURRENT)
    def test_check_and_write_are_one_step(self, harness: Harness) -> None:
        """A newer holder that comes between an older one's first line and its last is not overwritten by it."""
        harness.begin(OLDER, "invoice/1")
        came_in = refused = False
        try:
            with harness.fenced(OLDER, "invoice/1") as block:
                try:
                    harness.write(NEWER, "invoice/1", "newer")
                    came_in = True
                except ContentionError:
                    pass
                block.write("invoice/1", "older")
        except (FenceRejected, ContentionError):
            refused = True
        if came_in:
            assert refused, f"{OLDER} wrote after {NEWER} had written"
            assert harness.look("invoice/1") == "newer"
        else:
            harness.write(NEWER, "invoice/1", "newer")
            assert harness.look("invoice/1") == "newer"
        marked(harness, "invoice/1", NEWER)

    @needs(Capability.THREADS)
    def test_threads_that_write_at_once_leave_a_history_that_can_be_explained(self, harness: Harness) -> None:
        """No order of what overlapped is needed in which an older token comes after a newer one, or a value is lost."""
        checked = check_history(concurrent_history(harness.downstream))
        assert checked.explained, str(checked)
        assert checked.outcomes.get("accepted"), f"nothing was accepted: {checked}"

    @needs(Capability.CONCURRENT)
    def test_another_resource_does_not_get_in_the_way(self, harness: Harness) -> None:
        """An open block on one resource leaves the verdicts on another as they are."""
        harness.begin(OLDER, "invoice/1", "invoice/2")
        with harness.fenced(NEWER, "invoice/1") as block:
            try:
                harness.write(OLDER, "invoice/2", "older")
                expected = "older"
            except ContentionError:  # some stores have one lock for all
                expected = None
            block.write("invoice/1", "newer")
        assert (harness.look("invoice/1"), harness.look("invoice/2")) == ("newer", expected)


class Effects:
    """The effect form, and ``once=``."""

    def test_an_effect_is_a_fenced_write(self, harness: Harness) -> None:
        """It runs once, under the fence, and what it returned comes back; a stale one changes nothing."""
        harness.begin(OLDER, "invoice/1")
        assert harness.apply(NEWER, "invoice/1", values={"invoice/1": "x"}, result={"n": 7}) == ({"n": 7}, 1)
        with pytest.raises(StaleTokenError):
            harness.apply(OLDER, "invoice/1", values={"invoice/1": "y"})
        assert harness.look("invoice/1") == "x"

    @needs(Capability.ONCE)
    def test_a_key_is_applied_once(self, harness: Harness) -> None:
        """Over all attempts and holders the effect runs once, and everybody is given its result as JSON holds it."""
        harness.begin(OLDER, "invoice/1")
        for who in (OLDER, OLDER, NEWER):
            back, _ = harness.apply(
                who, "invoice/1", values={"invoice/1": who.holder}, result=("charged", 1), once="charge-1"
            )
            assert back == ["charged", 1]
        assert harness.look("invoice/1") == OLDER.holder
        marked(harness, "invoice/1", NEWER)

    @needs(Capability.ONCE)
    def test_the_token_is_judged_before_the_key(self, harness: Harness) -> None:
        """A stale holder is refused even where its key was applied: an answer would say that it still holds the job."""
        harness.begin(OLDER, "invoice/1")
        harness.apply(OLDER, "invoice/1", values={"invoice/1": "x"}, once="charge-1")
        harness.apply(NEWER, "invoice/1", values={"invoice/1": "y"}, once="charge-1")
        with pytest.raises(StaleTokenError):
            harness.apply(OLDER, "invoice/1", values={"invoice/1": "z"}, once="charge-1")
        assert harness.look("invoice/1") == "x"

    @needs(Capability.ONCE)
    def test_a_key_stands_for_one_thing(self, harness: Harness) -> None:
        """The same key with other resources or another fingerprint is a mistake, which is told, and moves no mark."""
        harness.begin(OLDER, "invoice/1", "invoice/2")
        harness.apply(OLDER, "invoice/1", values={"invoice/1": "x"}, once="charge-1")
        with pytest.raises(KeyConflictError) as caught:
            harness.apply(NEWER, "invoice/2", values={"invoice/2": "x"}, once="charge-1")
        assert caught.value.key == "charge-1"
        with pytest.raises(KeyConflictError):
            harness.apply(OLDER, "invoice/1", values={"invoice/1": "y"}, once="charge-1", fingerprint="other")
        assert (harness.look("invoice/1"), harness.look("invoice/2")) == ("x", None)
        marked(harness, "invoice/2", OLDER)

    @needs(Capability.ONCE)
    def test_a_failed_effect_leaves_its_key_free(self, harness: Harness) -> None:
        """The effect raised: nothing of it stands, and the next attempt runs it."""
        harness.begin(OLDER, "invoice/1")
        with pytest.raises(GaveUpError):
            harness.apply(OLDER, "invoice/1", values={"invoice/1": "half"}, error=GaveUpError(), once="charge-1")
        assert harness.look("invoice/1") is None
        assert harness.apply(OLDER, "invoice/1", values={"invoice/1": "x"}, once="charge-1") == (None, 1)
        assert harness.look("invoice/1") == "x"

    @needs(Capability.ONCE, Capability.ATOMIC)
    def test_a_result_that_json_cannot_hold_is_refused(self, harness: Harness) -> None:
        """It could not be returned to the next caller: ``TypeError``, nothing of the effect stands, the key is free.

        NaN is no JSON either, whatever Python's ``json`` writes for it.
        """
        harness.begin(OLDER, "invoice/1")
        for unheld in (float("nan"), {"at": object()}, float("inf")):
            with pytest.raises(TypeError):
                harness.apply(OLDER, "invoice/1", values={"invoice/1": "half"}, result=unheld, once="charge-1")
            assert harness.look("invoice/1") is None
        assert harness.apply(OLDER, "invoice/1", values={"invoice/1": "x"}, result=1.5, once="charge-1") == (1.5, 1)


class SetUp:
    """What the guard says of its own downstream."""

    def test_the_set_up_is_sound(self, harness: Harness) -> None:
        """diagnose() answers with findings, none of which says that a promise is broken here."""
        with harness.transaction() as target:
            guard = guard_for(target)
            found = list(harness.finish(guard.adiagnose() if isinstance(guard, AsyncGuard) else guard.diagnose()))
        assert all(isinstance(one, Finding) for one in found)
        assert [one for one in found if one.severity == "broken"] == []
