"""Occurrences of rules, against croniter alone."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from croniter import croniter

from scheduler import Schedule
from scheduler.console.bench._frame import Servers

SCHEDULES = 2_000
OCCURRENCES = 10


def _rules(scale: float) -> list[str]:
    """Distinct cron texts, daily, weekly and monthly, as the schedules of an application are."""
    return [
        f"{n % 60} {n % 24} * * {n % 7}" if n % 2 else f"{n % 60} {n % 24} {n % 28 + 1} * *"
        for n in range(int(SCHEDULES * scale))
    ]


def ours(_: Servers, scale: float) -> float:
    rules, start = _rules(scale), datetime(2026, 11, 29, tzinfo=UTC)
    began = time.process_time()
    for rule in rules:
        Schedule(rule, tz="Europe/Berlin").occurrences(start, start + timedelta(days=3660), limit=OCCURRENCES)
    return (time.process_time() - began) * 1e6 / len(rules)


def base(_: Servers, scale: float) -> float:
    rules, start = _rules(scale), datetime(2026, 11, 29)
    began = time.process_time()
    for rule in rules:
        moments = croniter(rule, start, ret_type=datetime)
        for _number in range(OCCURRENCES):
            moments.get_next()
    return (time.process_time() - began) * 1e6 / len(rules)
