"""Refusals: counted once, logged with both sides, told to hooks that cannot break a write."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from fencing import (
    Refusal,
    Token,
    errors,
    explain,
    fenced_write,
    list_marks,
    on_refusal,
    raise_fence,
    recent_refusals,
    refusal_counts,
)
from fencing._law import Mark, Verdict, reject
from fencing.testing import MemoryGuard

OLDER, NEWER = Token(1, "shop", "a"), Token(2, "shop", "a")


@pytest.fixture
def guard() -> MemoryGuard:
    made = MemoryGuard()
    raise_fence(made, "r", token=NEWER)
    return made


@pytest.fixture
def told() -> Iterator[list[Refusal]]:
    heard: list[Refusal] = []
    remove = on_refusal(heard.append)
    yield heard
    remove()
    remove()


def refuse(guard: Any) -> errors.StaleTokenError:
    with pytest.raises(errors.StaleTokenError) as caught, fenced_write(guard, "r", token=OLDER):
        pass
    return caught.value


def test_a_refusal_is_counted_logged_and_told(
    guard: MemoryGuard, told: list[Refusal], caplog: pytest.LogCaptureFixture
) -> None:
    key = (guard.downstream, "StaleTokenError")
    before = refusal_counts().get(key, 0)
    refuse(guard)
    assert refusal_counts()[key] == before + 1
    [refusal] = told
    assert (refusal.resource, refusal.presented, refusal.mark, refusal.kind) == ("r", OLDER, NEWER, "StaleTokenError")
    assert refusal.presenter
    assert refusal.holder
    assert recent_refusals("r", guard.downstream)[0] is refusal
    assert recent_refusals("elsewhere") == ()
    assert explain(guard, "r").refusals[0] is refusal
    [record] = [record for record in caplog.records if record.name == "fencing.refusals"]
    assert record.levelno == logging.WARNING
    assert all(text in record.getMessage() for text in (str(OLDER), str(NEWER), refusal.presenter, "'r'"))
    with pytest.raises(errors.StaleTokenError):
        raise_fence(guard, "r", token=OLDER)
    assert len(told) == 2, "a raise is refused as a write is"


def test_a_refusal_that_leaves_several_blocks_is_one(guard: MemoryGuard, told: list[Refusal]) -> None:
    with pytest.raises(errors.StaleTokenError):
        with fenced_write(guard, "outer", token=NEWER), fenced_write(guard, "r", token=OLDER):
            pass
    assert [refusal.resource for refusal in told] == ["r"]


def test_an_accepted_write_and_contention_are_none(guard: MemoryGuard, told: list[Refusal]) -> None:
    with fenced_write(guard, "r", token=NEWER):
        pass
    with pytest.raises(errors.ContentionError), fenced_write(guard, "r", token=NEWER):
        raise errors.ContentionError("busy")
    assert told == []


def test_a_hook_that_fails_changes_nothing(
    guard: MemoryGuard, told: list[Refusal], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Refusal) -> None:
        raise ZeroDivisionError

    remove = on_refusal(fail)
    refuse(guard)
    remove()
    assert len(told) == 1
    assert "a hook for refusals failed" in caplog.text


def test_how_late_it_came_travels_with_the_error() -> None:
    with pytest.raises(errors.StaleTokenError) as caught:
        reject(Verdict.STALE, "r", OLDER, Mark(NEWER, "b", None), "here", late=timedelta(seconds=65))
    assert caught.value.late == timedelta(seconds=65)
    assert pickle.loads(pickle.dumps(caught.value)).late == timedelta(seconds=65)


def test_what_cannot_list_says_so(guard: MemoryGuard) -> None:
    with pytest.raises(TypeError, match="list_marks"):
        list_marks(guard)
