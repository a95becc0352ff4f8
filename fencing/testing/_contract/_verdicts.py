"""What a single write to a single resource is told."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fencing._token import MAX_VALUE
from fencing.errors import (
    IssuerMismatchError,
    LineageConflictError,
    MarkMissingError,
    StaleTokenError,
)
from fencing.testing._contract._example import NEWER, OLDER, marked, needs, writer
from fencing.testing._downstream import Capability
from fencing.testing._harness import Harness

EDGES = (
    (1, 2),
    (9, 10),
    (99, 100),
    (2**31 - 1, 2**31),
    (2**32 - 1, 2**32),
    (10**15 - 1, 10**15),
    (2**53 - 1, 2**53),
    (2**53, 2**53 + 1),
    (10**17, 10**17 + 1),
    (MAX_VALUE - 1, MAX_VALUE),
    (1, MAX_VALUE),
)
"""Pairs of an older and a newer number between which a digit, a word or a float ends."""


class Verdicts:
    """Which token is taken, which is refused, and what the refusal tells."""

    def test_a_stale_write_is_refused_and_changes_nothing(self, harness: Harness) -> None:
        """The paused worker wakes after another one has written: it is refused; the other's value and mark stand."""
        harness.begin(OLDER, "invoice/1")
        harness.write(OLDER, "invoice/1", "older")
        harness.write(NEWER, "invoice/1", "newer")
        with pytest.raises(StaleTokenError):
            harness.write(OLDER, "invoice/1", "older again")
        assert harness.look("invoice/1") == "newer"
        marked(harness, "invoice/1", NEWER)

    def test_a_holder_writes_many_times(self, harness: Harness) -> None:
        """An equal token of the same lineage is accepted, as often as it comes."""
        harness.begin(NEWER, "invoice/1")
        for value in ("one", "two", "three"):
            harness.write(NEWER, "invoice/1", value)
        assert harness.look("invoice/1") == "three"

    def test_the_same_worker_goes_on_under_a_new_token(self, harness: Harness) -> None:
        """A refusal is final for the token, not for the worker: claimed again, it writes."""
        harness.begin(NEWER, "invoice/1")
        with pytest.raises(StaleTokenError):
            harness.write(OLDER, "invoice/1", "older")
        again = writer(NEWER.token.value + 1, OLDER.holder)
        harness.write(again, "invoice/1", "claimed again")
        assert harness.look("invoice/1") == "claimed again"
        marked(harness, "invoice/1", again)

    def test_a_lineage_of_the_same_number_is_refused(self, harness: Harness) -> None:
        """Two servers that both lead the issuer gave out one number: the second one's is refused, whichever it is."""
        for resource, first, second in (("a", "l1", "l2"), ("b", "l2", "l1")):
            holder, twin = writer(7, "ada", lineage=first), writer(7, "bob", lineage=second)
            harness.begin(holder, resource)
            harness.write(holder, resource, "first")
            with pytest.raises(LineageConflictError):
                harness.write(twin, resource, "second")
            assert harness.look(resource) == "first"
            marked(harness, resource, holder)

    def test_a_new_lineage_continues_above(self, harness: Harness) -> None:
        """After a failover a higher number of the new lineage is accepted, and a lower one of the old refused."""
        harness.begin(OLDER, "invoice/1")
        after = writer(OLDER.token.value + 5, "cyd", lineage="l2")
        harness.write(after, "invoice/1", "after the failover")
        with pytest.raises(StaleTokenError):
            harness.write(NEWER, "invoice/1", "before it")
        assert harness.look("invoice/1") == "after the failover"

    def test_another_issuers_token_is_refused(self, harness: Harness) -> None:
        """Numbers of two issuers have no order: neither a higher nor a lower nor an equal one is taken."""
        harness.begin(NEWER, "invoice/1")
        harness.write(NEWER, "invoice/1", "ours")
        for value in (1, NEWER.token.value, MAX_VALUE):
            with pytest.raises(IssuerMismatchError):
                harness.write(writer(value, issuer="depot"), "invoice/1", "theirs")
        assert harness.look("invoice/1") == "ours"
        marked(harness, "invoice/1", NEWER)

    def test_numbers_compare_as_whole_numbers(self, harness: Harness) -> None:
        """At every edge of digits, words and floats the newer number is the newer one, and both are kept exactly."""
        for older, newer in EDGES:
            resource, first, second = f"{older} before {newer}", writer(older), writer(newer)
            harness.begin(first, resource)
            marked(harness, resource, first)
            harness.write(second, resource, "newer")
            marked(harness, resource, second)
            with pytest.raises(StaleTokenError):
                harness.write(first, resource, "older")
            harness.write(second, resource, "newer again")
            assert harness.look(resource) == "newer again"

    def test_a_refusal_tells_its_facts(self, harness: Harness) -> None:
        """Which resource, the token presented, the token seen and who brought it, and which system said so."""
        harness.begin(NEWER, "invoice/1")
        same_number = writer(NEWER.token.value, "cyd", lineage="l2")
        for who, kind in (
            (OLDER, StaleTokenError),
            (same_number, LineageConflictError),
            (writer(1, "eve", issuer="depot"), IssuerMismatchError),
        ):
            with pytest.raises(kind) as caught:
                harness.write(who, "invoice/1", "no")
            facts = caught.value
            assert facts.resource == "invoice/1"
            assert facts.presented == who.token
            assert facts.mark == NEWER.token
            assert facts.holder == NEWER.holder
            assert facts.downstream
            assert str(who.token) in str(facts)
            assert str(NEWER.token) in str(facts)

    def test_a_mark_can_be_looked_at(self, harness: Harness) -> None:
        """None before the first write, and looking makes none; then token, holder and an aware, rising time."""
        assert harness.mark("invoice/1") is None
        assert harness.mark("invoice/1") is None
        harness.begin(OLDER, "invoice/1")
        first = harness.mark("invoice/1")
        harness.write(NEWER, "invoice/1", "x")
        second = harness.mark("invoice/1")
        assert first is not None
        assert second is not None
        assert (first.token, first.holder) == (OLDER.token, OLDER.holder)
        assert (second.token, second.holder) == (NEWER.token, NEWER.holder)
        if first.at is not None and second.at is not None:
            assert first.at.tzinfo is not None
            assert first.at.utcoffset() == timedelta(0)
            assert first.at <= second.at


class MissingMarks:
    """What a mark that is not there means."""

    @needs(Capability.REJECT, on_missing="reject")
    def test_a_missing_mark_is_no_permission(self, harness: Harness) -> None:
        """Under on_missing="reject" a write without a mark is refused, and neither value nor mark is made."""
        with pytest.raises(MarkMissingError) as caught:
            harness.write(NEWER, "invoice/1", "x")
        assert (caught.value.resource, caught.value.presented) == ("invoice/1", NEWER.token)
        assert caught.value.mark is None
        assert harness.look("invoice/1") is None
        assert harness.mark("invoice/1") is None

    @needs(Capability.REJECT, Capability.RAISE, on_missing="reject")
    def test_raising_the_fence_makes_the_mark(self, harness: Harness) -> None:
        """Under on_missing="reject" only a raised fence makes marks; then its holder writes."""
        harness.raise_fence(NEWER, "invoice/1")
        harness.write(NEWER, "invoice/1", "x")
        assert harness.look("invoice/1") == "x"
        with pytest.raises(MarkMissingError):
            harness.write(NEWER, "invoice/2", "x")

    @needs(Capability.REJECT, Capability.RAISE, Capability.LOSE, on_missing="reject")
    def test_a_lost_mark_is_no_permission(self, harness: Harness) -> None:
        """Evicted or not restored, it is as if it had never been: nobody writes until a fence is raised."""
        harness.raise_fence(NEWER, "invoice/1")
        harness.write(NEWER, "invoice/1", "newer")
        harness.lose("invoice/1")
        for who in (OLDER, NEWER):
            with pytest.raises(MarkMissingError):
                harness.write(who, "invoice/1", "no")
        assert harness.look("invoice/1") == "newer"
        assert harness.mark("invoice/1") is None
        harness.raise_fence(NEWER, "invoice/1")
        harness.write(NEWER, "invoice/1", "newer again")
        with pytest.raises(StaleTokenError):
            harness.write(OLDER, "invoice/1", "older")
        assert harness.look("invoice/1") == "newer again"

    @needs(Capability.CREATE, on_missing="create")
    def test_a_first_write_makes_the_mark(self, harness: Harness) -> None:
        """Under on_missing="create" the first token that comes is the mark."""
        harness.write(NEWER, "invoice/1", "x")
        marked(harness, "invoice/1", NEWER)
        with pytest.raises(StaleTokenError):
            harness.write(OLDER, "invoice/1", "y")


class Raising:
    """Marks that are raised without a write."""

    @needs(Capability.RAISE)
    def test_a_raised_fence_stops_the_older_holder_before_the_newer_one_writes(self, harness: Harness) -> None:
        """Once the newer holder has raised the fence no older write lands, though nothing was written yet."""
        harness.begin(OLDER, "invoice/1")
        harness.write(OLDER, "invoice/1", "older")
        harness.raise_fence(NEWER, "invoice/1")
        with pytest.raises(StaleTokenError):
            harness.write(OLDER, "invoice/1", "older again")
        assert harness.look("invoice/1") == "older"
        harness.write(NEWER, "invoice/1", "newer")
        assert harness.look("invoice/1") == "newer"

    @needs(Capability.RAISE)
    def test_a_fence_is_never_lowered(self, harness: Harness) -> None:
        """An older raise is refused as a write would be; the holder's own may come again."""
        harness.raise_fence(NEWER, "invoice/1")
        for who, kind in (
            (OLDER, StaleTokenError),
            (writer(NEWER.token.value, "cyd", lineage="l2"), LineageConflictError),
            (writer(MAX_VALUE, "eve", issuer="depot"), IssuerMismatchError),
        ):
            with pytest.raises(kind):
                harness.raise_fence(who, "invoice/1")
            marked(harness, "invoice/1", NEWER)
        harness.raise_fence(NEWER, "invoice/1")
        marked(harness, "invoice/1", NEWER)
