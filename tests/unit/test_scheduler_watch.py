"""What a worker knows without its database: leases that ran out by its own clock, handlers that never end."""

import logging
import re
import time
from datetime import UTC, datetime

import pytest

from fencing import Lease, Token
from fencing._lease import lease_clock
from scheduler import Retry
from scheduler._heart import STUCK_AFTER, Watch
from scheduler._held import Held, Work
from scheduler._store import Claimed
from scheduler._tasks import make_task

TASK = make_task("report", print, 30.0, Retry(), None, False, 100)


def held(work: Work, number: int = 1, *, left: float = 30.0, running: float | None = None) -> Held:
    """A job under a lease with ``left`` seconds, whose handler began ``running`` seconds ago."""
    now = datetime.now(UTC)
    claimed = Claimed(number, 100 + number, "line", "report", "default", "null", 0, now, 1, 5, 0, None, None, None)
    lease = Lease(Token(100 + number, "shop", "line"), f"job/{number}", "me", deadline=lease_clock() + left)
    one = Held(claimed, TASK, lease, started=None if running is None else time.monotonic() - running)
    work.held[claimed.token] = one
    return one


def test_a_lease_past_its_deadline_is_lost_whether_or_not_the_database_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    work = Work()
    gone, good = held(work, 1, left=-0.001), held(work, 2)
    Watch(work).run_once()
    Watch(work).run_once()
    assert gone.lease.lost.is_set()
    assert not good.lease.lost.is_set()
    assert [record.getMessage() for record in caplog.records] == [
        "job 1: no renewal was confirmed in time; its lease is lost"
    ]


def test_a_lease_whose_handler_has_ended_is_not_called_lost(caplog: pytest.LogCaptureFixture) -> None:
    """Its settlement waits for the database, which will say what becomes of it."""
    work = Work()
    held(work, 1, left=-0.001).lease.end("settled")
    Watch(work).run_once()
    assert caplog.records == []


def test_a_handler_that_never_returns_is_reported_and_again_after_as_long(caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    limit = STUCK_AFTER * TASK.lease
    held(work, 1, running=limit / 2)
    stuck = held(work, 2, running=limit + 5)
    held(work, 3)
    with caplog.at_level(logging.WARNING, "scheduler"):
        Watch(work).run_once()
        Watch(work).run_once()
        assert stuck.started is not None
        stuck.started -= limit
        Watch(work).run_once()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    for message, least in zip(told, (limit + 5, 2 * limit + 5), strict=True):
        seconds = re.fullmatch(r"job 2 \(report\) has been running for (\d+) s", message)
        assert seconds is not None, message
        assert least <= int(seconds[1]) < least + limit - 5


def test_jobs_that_run_are_not_claimed_for_twice() -> None:
    work = Work()
    for number in range(5):
        work.waiting.append(held(work, number))
    assert work.running == 0
    work.waiting.popleft()
    assert work.running == 1
