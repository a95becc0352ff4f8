"""Overlap: what becomes of an occurrence that is due while an earlier one is not over."""

from typing import Any

import pytest

from scheduler._overlap import Live, Waiting, decide

IDLE: list[Live] = []
QUEUED, RUNNING = [Live(1, False)], [Live(1, True)]
A, B, C = Waiting("a", False), Waiting("b", False), Waiting("c", False)
OLD = Waiting("0", True)


@pytest.mark.parametrize(
    ("overlap", "live", "waiting", "admit", "skip", "cancel"),
    [
        ("allow", RUNNING, [A, B], "ab", "", []),
        *((policy, IDLE, [A, B], "a", "", []) for policy in ("skip", "buffer_one", "buffer_all")),
        *((policy, QUEUED, [A, B], "", "", []) for policy in ("skip", "buffer_one", "buffer_all")),
        ("skip", RUNNING, [A, B], "", "ab", []),
        ("buffer_one", RUNNING, [A], "", "", []),
        ("buffer_one", RUNNING, [A, B, C], "", "bc", []),
        ("buffer_all", RUNNING, [A, B, C], "", "", []),
        ("cancel_other", IDLE, [A], "a", "", []),
        ("cancel_other", IDLE, [A, B, C], "c", "ab", []),
        ("cancel_other", QUEUED, [A], "a", "", [1]),
        ("cancel_other", RUNNING, [A, B], "b", "a", [1]),
        # What a person asked for is dropped by no policy, and cancels nothing.
        ("skip", RUNNING, [OLD, A], "", "a", []),
        ("buffer_one", RUNNING, [OLD, A, B], "", "b", []),
        ("cancel_other", RUNNING, [OLD], "", "", []),
        ("cancel_other", IDLE, [OLD], "0", "", []),
        ("cancel_other", RUNNING, [OLD, A], "a", "", [1]),
        *(
            (policy, live, [], "", "", [])
            for live in (IDLE, RUNNING)
            for policy in ("skip", "buffer_one", "buffer_all", "cancel_other")
        ),
    ],
)
def test_what_becomes_of_what_waits(
    overlap: Any, live: list[Live], waiting: list[Waiting], admit: str, skip: str, cancel: list[int]
) -> None:
    assert decide(overlap, live, waiting)[:3] == (list(admit), list(skip), cancel)


@pytest.mark.parametrize(
    ("overlap", "live", "reason"),
    [
        ("skip", RUNNING, "an earlier occurrence was still running"),
        ("buffer_one", RUNNING, "an earlier occurrence was still running and another one waited"),
        ("cancel_other", RUNNING, "a later occurrence took its place"),
        ("cancel_other", IDLE, "a later occurrence took its place"),
        *((policy, live, "") for policy in ("allow", "buffer_all") for live in (IDLE, QUEUED, RUNNING)),
        *((policy, live, "") for policy in ("skip", "buffer_one") for live in (IDLE, QUEUED)),
    ],
)
def test_the_audit_says_why_one_is_dropped(overlap: Any, live: list[Live], reason: str) -> None:
    assert decide(overlap, live, [A, B, C]).reason == reason


def test_only_a_job_that_has_begun_is_overlapped() -> None:
    assert decide("skip", [*QUEUED, *RUNNING], [A]).skip == ["a"]
    assert decide("cancel_other", [Live(1, False), Live(2, True)], [A]).cancel == [1, 2]
