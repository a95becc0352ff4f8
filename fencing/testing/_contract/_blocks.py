"""What becomes of values and marks: of several at once, of a block that fails, of a delete."""

from __future__ import annotations

import pytest

from fencing.errors import (
    IssuerMismatchError,
    StaleTokenError,
)
from fencing.testing._contract._example import NEWER, OLDER, marked, needs, writer
from fencing.testing._downstream import Capability
from fencing.testing._harness import Harness
from fencing.testing._model import GaveUpError


class Failing:
    """Blocks that raise and transactions that are rolled back."""

    @needs(Capability.ATOMIC)
    def test_a_block_that_raises_leaves_nothing(self, harness: Harness) -> None:
        """The worker's own error in the block comes out as it is, and neither value nor mark moved."""
        harness.begin(OLDER, "invoice/1")
        harness.write(OLDER, "invoice/1", "older")
        with pytest.raises(GaveUpError), harness.fenced(NEWER, "invoice/1") as block:
            block.write("invoice/1", "half")
            raise GaveUpError
        assert harness.look("invoice/1") == "older"
        marked(harness, "invoice/1", OLDER)
        harness.write(OLDER, "invoice/1", "older again")

    @needs(Capability.ROLLBACK)
    def test_a_rollback_takes_back_the_write_and_the_mark(self, harness: Harness) -> None:
        """An accepted write counts once its transaction commits; after a rollback the older holder is the newest."""
        harness.begin(OLDER, "invoice/1")
        harness.write(OLDER, "invoice/1", "older")
        with pytest.raises(GaveUpError), harness.transaction() as target:
            with harness.fenced_in(target, NEWER, "invoice/1") as block:
                block.write("invoice/1", "newer")
            raise GaveUpError
        assert harness.look("invoice/1") == "older"
        marked(harness, "invoice/1", OLDER)
        harness.write(OLDER, "invoice/1", "older again")

    @needs(Capability.ROLLBACK, Capability.RAISE)
    def test_a_raise_that_was_rolled_back_leaves_no_mark(self, harness: Harness) -> None:
        """No phantom of it stops anybody."""
        with pytest.raises(GaveUpError), harness.transaction() as target:
            harness.raise_fence_in(target, NEWER, "invoice/1")
            raise GaveUpError
        assert harness.mark("invoice/1") is None
        harness.begin(OLDER, "invoice/1")
        harness.write(OLDER, "invoice/1", "older")

    @needs(Capability.ROLLBACK, Capability.SEVERAL)
    def test_a_refusal_that_is_committed_leaves_nothing(self, harness: Harness) -> None:
        """A worker catches the refusal in its transaction and commits: no mark that was looked at first has moved."""
        harness.begin(writer(1), "a", "c")
        harness.begin(NEWER, "b")
        with harness.transaction() as target:
            with pytest.raises(StaleTokenError), harness.fenced_in(target, OLDER, "a", "b", "c") as block:
                block.write("a", "stale")
            with pytest.raises(StaleTokenError):
                harness.raise_fence_in(target, OLDER, "a", "b", "d")
        for name in ("a", "c"):
            marked(harness, name, writer(1))
        assert harness.mark("d") is None
        assert harness.look("a") is None


class Several:
    """Several resources in one write."""

    @needs(Capability.SEVERAL)
    def test_several_resources_are_taken_all_or_none(self, harness: Harness) -> None:
        """One of them refuses, wherever it stands in the order: no mark rises and nothing is written."""
        for refusing in ("a", "b", "c"):
            names = [f"{refusing}/{one}" for one in ("a", "b", "c")]
            harness.begin(OLDER, *names)
            harness.begin(NEWER, f"{refusing}/{refusing}")
            between = writer(OLDER.token.value, "cyd")
            with pytest.raises(StaleTokenError) as caught, harness.fenced(between, *names) as block:
                for name in names:
                    block.write(name, "between")
            assert caught.value.resource == f"{refusing}/{refusing}"
            for name in names:
                assert harness.look(name) is None
                marked(harness, name, NEWER if name == f"{refusing}/{refusing}" else OLDER)

    @needs(Capability.SEVERAL)
    def test_several_resources_are_raised_together(self, harness: Harness) -> None:
        """Accepted, all marks rise, in whatever order they were named and however often."""
        harness.begin(OLDER, "a", "b")
        with harness.fenced(NEWER, "b", "a", "b") as block:
            block.write("a", "newer a")
            block.write("b", "newer b")
        for name in ("a", "b"):
            assert harness.look(name) == f"newer {name}"
            marked(harness, name, NEWER)
            with pytest.raises(StaleTokenError):
                harness.write(OLDER, name, "older")

    @needs(Capability.SEVERAL, Capability.RAISE)
    def test_several_fences_are_raised_all_or_none(self, harness: Harness) -> None:
        """A raise that one resource refuses raises none of the others, and makes no mark that was missing."""
        harness.raise_fence(NEWER, "b")
        with pytest.raises(StaleTokenError):
            harness.raise_fence(OLDER, "a", "b", "c")
        assert harness.mark("a") is None
        assert harness.mark("c") is None
        harness.raise_fence(NEWER, "c", "a", "b")
        for name in ("a", "b", "c"):
            marked(harness, name, NEWER)

    @needs(Capability.SEVERAL)
    def test_the_first_in_order_that_refuses_is_named(self, harness: Harness) -> None:
        """Of several refusals the error tells the first by the names' order, with the facts of that one."""
        harness.begin(NEWER, "b", "c")
        harness.begin(writer(5, "eve", issuer="depot"), "a")
        with pytest.raises(IssuerMismatchError) as caught, harness.fenced(OLDER, "c", "b", "a"):
            pass
        assert (caught.value.resource, caught.value.holder) == ("a", "eve")


class Values:
    """What is read, removed, and found again."""

    def test_the_handle_reads_what_stands_there(self, harness: Harness) -> None:
        """A read through the handle sees the value under the fence, and then the block's own."""
        harness.begin(OLDER, "invoice/1")
        with harness.fenced(OLDER, "invoice/1") as block:
            nothing = block.read("invoice/1")
        harness.write(OLDER, "invoice/1", "there")
        with harness.fenced(NEWER, "invoice/1") as block:
            before = block.read("invoice/1")
            block.write("invoice/1", "changed")
            after = block.read("invoice/1")
        assert (nothing(), before(), after()) == (None, "there", "changed")

    @needs(Capability.DELETE)
    def test_a_delete_keeps_the_mark(self, harness: Harness) -> None:
        """The value is gone, its mark is not: an older holder cannot bring it back."""
        harness.begin(OLDER, "invoice/1")
        harness.write(OLDER, "invoice/1", "there")
        with harness.fenced(NEWER, "invoice/1") as block:
            block.delete("invoice/1")
        assert harness.look("invoice/1") is None
        marked(harness, "invoice/1", NEWER)
        with pytest.raises(StaleTokenError):
            harness.write(OLDER, "invoice/1", "back again")
        assert harness.look("invoice/1") is None

    @needs(Capability.DELETE)
    def test_a_stale_delete_is_refused(self, harness: Harness) -> None:
        """Removing is writing."""
        harness.begin(NEWER, "invoice/1")
        harness.write(NEWER, "invoice/1", "there")
        with pytest.raises(StaleTokenError), harness.fenced(OLDER, "invoice/1") as block:
            block.delete("invoice/1")
        assert harness.look("invoice/1") == "there"

    @needs(Capability.REOPEN)
    def test_marks_outlive_the_process(self, harness: Harness) -> None:
        """Closed and opened again, the downstream still knows the newest token."""
        harness.begin(NEWER, "invoice/1")
        harness.write(NEWER, "invoice/1", "newer")
        harness.reopen()
        marked(harness, "invoice/1", NEWER)
        with pytest.raises(StaleTokenError):
            harness.write(OLDER, "invoice/1", "older")
        assert harness.look("invoice/1") == "newer"
