"""The loop under every service: it survives what a run meets, and stops when it is told to."""

import logging
import threading

import pytest
from support.waiting import eventually

from fencing.errors import ContentionError
from scheduler._loop import Loop


def test_a_run_that_fails_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    runs = iter([RuntimeError("a fault of ours"), ContentionError("expected"), ContentionError("again"), None])
    ran = threading.Event()

    def run_once() -> float | None:
        found = next(runs, None)
        if found is not None:
            raise found
        ran.set()
        return None

    loop = Loop("sweeper", run_once, interval=60, max_backoff=0.05)
    with caplog.at_level(logging.INFO, "scheduler"):
        loop.start()
        assert ran.wait(60)
        eventually(lambda: "recovered after 3 failures" in caplog.text, "it says that it recovered")
    loop.stop(60)
    assert not loop.failing
    traces = [record for record in caplog.records if record.exc_info]
    assert [record.getMessage() for record in traces if "a fault of ours" in record.getMessage()], (
        "shown with its trace"
    )
    assert len(traces) == 1, "what is expected is one line"


def test_a_wake_cuts_the_wait_short_and_one_during_a_run_is_not_lost() -> None:
    entered, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def run_once() -> None:
        entered.release()
        go_on.acquire()

    loop = Loop("sweeper", run_once, interval=3600)
    loop.start()
    assert entered.acquire(timeout=60)
    loop.wake()  # in the middle of the first run
    go_on.release()
    assert entered.acquire(timeout=60), "the wake during the run was lost"
    go_on.release()
    loop.wake()
    assert entered.acquire(timeout=60)
    go_on.release()
    loop.stop(60)


def test_stopping_waits_for_the_present_run_and_begins_no_other() -> None:
    entered, go_on, runs = threading.Event(), threading.Event(), []

    def run_once() -> float:
        runs.append(1)
        entered.set()
        go_on.wait(60)
        return 0

    loop = Loop("sweeper", run_once, interval=0)
    loop.start()
    assert entered.wait(60)
    loop.stop(timeout=0)
    go_on.set()
    loop.stop(timeout=60)
    assert runs == [1]


@pytest.mark.parametrize("limit", [0.125, 5.0])
def test_the_wait_after_failures_never_grows_past_the_limit(limit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []

    class Recorded(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            if len(waits) == 200:
                loop.stop()
            return True

    def run_once() -> None:
        raise ContentionError("for ever")

    loop = Loop("heart", run_once, interval=1, max_backoff=limit)
    monkeypatch.setattr(loop, "_wake", Recorded())
    loop.start()
    eventually(lambda: len(waits) >= 200, "two hundred failures")
    assert all(wait is not None and 0 < wait <= limit for wait in waits)
    assert waits[0] is not None
    assert waits[0] < 0.2, "the first try again comes soon"
