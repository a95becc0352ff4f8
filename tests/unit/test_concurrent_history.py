"""Threads on the model guard: what they leave can be explained, and what a broken guard leaves cannot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fencing import Token, raise_fence
from fencing._law import OnMissing
from fencing.errors import StaleTokenError
from fencing.history._violations import Rule
from fencing.testing import (
    GUARD_BUGS,
    MemoryGuard,
    RecordingDownstream,
    RecordingGuard,
    check_history,
    concurrent_history,
    kill,
)
from fencing.testing._concurrent import RESOURCES
from fencing.testing._memory_downstream import Tape


class CheckThenWrite(RecordingGuard):
    """The token is looked at when the block begins, and what it recorded is done when it ends.

    Of two that have passed, the first waits for the second, so that the overtaking does not depend on the machine.
    """

    def __init__(self, on_missing: OnMissing = "create") -> None:
        super().__init__(on_missing)
        self._overtaken = threading.Condition()
        self._waiting: set[tuple[str, ...]] = set()

    @contextmanager
    def open(self, resources: tuple[str, ...], token: Token, holder: str) -> Iterator[Any]:
        tape = Tape(self.store)
        with self._lock:
            self._admit(resources, token, holder, self._on_missing)
        yield tape
        with self._overtaken:
            if resources in self._waiting:
                tape.play()
                self._waiting.remove(resources)
                self._overtaken.notify_all()
            else:
                self._waiting.add(resources)
                self._overtaken.wait_for(lambda: resources not in self._waiting, timeout=0.1)
                self._waiting.discard(resources)
                tape.play()


class ForgetsTheMark(RecordingGuard):
    """Every other token is judged, and leaves the mark as it was."""

    def _admit(self, resources: tuple[str, ...], token: Token, holder: str, on_missing: Any) -> None:
        before = {name: self._marks[name] for name in resources if name in self._marks}
        super()._admit(resources, token, holder, on_missing)
        if token.value % 2:
            self._marks.update(before)


class NoLock(MemoryGuard):
    """The token is looked at, then the block writes; nothing holds the two together and nothing helps a thread in."""

    @contextmanager
    def open(self, resources: tuple[str, ...], token: Token, holder: str) -> Iterator[Any]:
        self._admit(resources, token, holder, self._on_missing)
        yield self.store


@pytest.mark.parametrize("make", [RecordingGuard, MemoryGuard])
def test_the_models_history_is_explained_and_holds_every_end(make: type[MemoryGuard]) -> None:
    events = concurrent_history(RecordingDownstream(make), rounds=40)
    checked = check_history(events)
    assert checked.explained, str(checked)
    assert checked.outcomes["accepted"] > 20
    assert checked.outcomes["refused"] > 0
    assert {event.kind for event in events} == {"claim", "raise", "write", "commit", "look"}
    assert {event.resources for event in events if event.kind == "write"} == {RESOURCES, RESOURCES[:1], RESOURCES[1:]}


def test_a_check_apart_from_its_write_is_seen() -> None:
    assert found(CheckThenWrite, "accepted write lost")


def test_a_guard_without_a_lock_is_seen_with_no_help() -> None:
    checks = (check_history(concurrent_history(RecordingDownstream(NoLock), seed=seed)) for seed in range(20))
    assert any(not checked.explained for checked in checks)


def test_a_mark_that_falls_is_seen() -> None:
    assert found(ForgetsTheMark, "stale write accepted")


def found(make: type[MemoryGuard], rule: Rule) -> bool:
    """Whether some run shows it."""
    return any(
        rule in {violation.rule for violation in check_history(events).violations}
        for events in (concurrent_history(RecordingDownstream(make), rounds=12, seed=seed) for seed in range(40))
    )


def test_a_thread_that_fails_ends_the_others() -> None:
    class Fails(RecordingGuard):
        def _admit(self, resources: tuple[str, ...], token: Token, *more: Any) -> None:
            if token.value > 2**53 + 6:
                raise OSError("the disk is full")
            super()._admit(resources, token, *more)

    with pytest.raises(Exception, match=r"the disk is full|^$"):
        concurrent_history(RecordingDownstream(Fails))


def test_the_suites_do_not_log_the_refusals_that_they_provoke(caplog: pytest.LogCaptureFixture) -> None:
    [bug] = [bug for bug in GUARD_BUGS if bug.name == "equal token of another lineage"]
    assert kill(bug, "machine").killed
    assert check_history(concurrent_history(RecordingDownstream())).outcomes["refused"]
    assert caplog.records == []
    guard = MemoryGuard()
    with pytest.raises(StaleTokenError):
        for value in (2, 1):
            raise_fence(guard, "a", token=Token(value, "i", "l"))
    assert [record.name for record in caplog.records] == ["fencing.refusals"]
