"""Hooks are told, in order and of what they asked for, and can do no harm: they raise, block or fall behind."""

import logging
import threading
from typing import Any

import pytest

from fencing import Token
from scheduler import ClaimEvent, Event, JobEvent, LagEvent, Scheduler, SettleEvent, _hooks
from scheduler._hooks import Hooks, Teller


def claim(number: int) -> ClaimEvent:
    return ClaimEvent(number, "work", "default", 1, Token(number + 1, "shop", "line"), "me", 0.0)


LATE = LagEvent("default", 9.0, 5.0, True)


def test_a_hook_is_told_of_its_class_of_events_and_of_those_below_it() -> None:
    hooks, claims, jobs, everything = Hooks(), list[Any](), list[Any](), list[Any]()
    hooks.add(ClaimEvent, claims.append)
    hooks.add(JobEvent, jobs.append)
    hooks.add(Event, everything.append)
    settle = SettleEvent(1, "work", "default", 1, Token(1, "shop", "line"), "me", "completed", 0.1, "")
    for event in (claim(1), settle, LATE):
        hooks.tell(event)
    assert claims == [claim(1)]
    assert jobs == [claim(1), settle]
    assert everything == [claim(1), settle, LATE]


@pytest.mark.parametrize("raised", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_what_a_hook_raises_stays_there_and_the_next_is_told(raised: BaseException, caplog: Any) -> None:
    hooks, told = Hooks(), list[Any]()

    def bad(event: Event) -> None:
        raise raised

    hooks.add(ClaimEvent, bad)
    hooks.add(ClaimEvent, told.append)
    for number in range(3):
        hooks.tell(claim(number), BaseException)
    assert told == [claim(0), claim(1), claim(2)]
    assert hooks.failures == 3
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None, "its trace is shown, once a minute"


def test_a_ctrl_c_on_the_applications_own_thread_is_not_swallowed() -> None:
    hooks = Hooks()

    @lambda hook: hooks.add(ClaimEvent, hook)
    def interrupted(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hooks.tell(claim(1))


def test_a_worker_tells_in_order_on_another_thread_and_everything_before_it_ends() -> None:
    hooks, told = Hooks(), list[Any]()
    hooks.add(Event, lambda event: told.append((event.job, threading.current_thread().name)))
    teller = Teller(hooks)
    teller.start()
    for number in range(100):
        teller.tell(claim(number))
    teller.stop(timeout=60)
    assert told == [(number, "fencing-hooks") for number in range(100)]


def test_a_hook_that_blocks_holds_nobody_up_and_what_comes_too_fast_is_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_hooks, "MOST_WAITING", 5)
    hooks, go_on, inside, told = Hooks(), threading.Event(), threading.Event(), list[Any]()

    def slow(event: Any) -> None:
        inside.set()
        go_on.wait(60)
        told.append(event.job)

    hooks.add(Event, slow)
    teller = Teller(hooks)
    teller.start()
    teller.tell(claim(0))
    assert inside.wait(60)
    for number in range(1, 10):
        teller.tell(claim(number))
    assert hooks.dropped == 4
    go_on.set()
    teller.stop(timeout=60)
    assert told == [0, 1, 2, 3, 4, 5]


def test_what_nobody_wants_is_not_even_kept() -> None:
    teller = Teller(Hooks())
    assert not teller.wants(ClaimEvent)
    teller.tell(claim(1))
    teller.start()
    teller.stop(timeout=60)


@pytest.mark.parametrize(("kind", "hook"), [("claim", print), (int, print), (ClaimEvent, "not callable")])
def test_a_hook_that_could_never_be_called_is_refused(kind: Any, hook: Any) -> None:
    with pytest.raises(TypeError, match="hook"):
        Scheduler("host=x").on(kind)(hook)
