"""Where a worker's claim begins to read: a bound for each queue, task and priority, moved by what was claimed. Pure.

Rows that were claimed leave entries in the index that stay there while anybody holds an old snapshot. A claim that
began at the front would pass over all of them, each time. The bounds are a hint and no more: jobs may come to lie
behind one (committed late, given back, replayed). A sweep finds these, for it begins at the front, and it looks for
new priorities, and forgets those of which nothing waits any more where there came to be many. A priority of which
nothing was claimed yet is left out until something of it is due: jobs for later would cost every claim a look.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from scheduler._store import Claimed

PRIORITIES = 64
"""How many priorities of one task in one queue a sweep looks for."""

KEPT = 4 * PRIORITIES
"""So many priorities other than 0, of all queues and tasks, are kept though nothing of them may wait. Each costs a
claim a look at the index."""

_ABOVE_ALL = 2**31
_Lane = tuple[str, str, int]


class Found(NamedTuple):
    """What a look found of a queue, a task and a priority.

    ``due``: whether there is something to claim; ``next_in``: the seconds until the next job that is not due yet will
    be, None if there is none.
    """

    queue: str
    task: str
    priority: int
    due: bool
    next_in: float | None


class Lanes:
    """The ranges of the index that a worker's claims read."""

    def __init__(self, queues: Sequence[str], tasks: Sequence[str]) -> None:
        self._lanes: dict[_Lane, tuple[datetime, int] | None] = {
            (queue, task, 0): None for queue in queues for task in tasks
        }
        # Where the next look for priorities goes on, of those that have more than one look finds.
        self._below = {(queue, task): _ABOVE_ALL for queue in queues for task in tasks}
        # When those of which nothing was claimed yet are due, as far as is known.
        self._due: dict[_Lane, float] = {}
        # What was found since that began at the top.
        self._alive: dict[tuple[str, str], set[int]] = {pair: set() for pair in self._below}

    def parameters(self, now: float, *, bounded: bool) -> dict[str, Any]:
        """The lanes as a claim at ``now`` takes them; without bounds for a sweep."""
        lanes = self._at(now)
        bounds = [bound if bounded else None for bound in lanes.values()]
        return {
            "lane_queues": [lane[0] for lane in lanes],
            "lane_tasks": [lane[1] for lane in lanes],
            "lane_priorities": [lane[2] for lane in lanes],
            "lane_dues": [bound and bound[0] for bound in bounds],
            "lane_ids": [bound and bound[1] for bound in bounds],
        }

    def single(self, now: float, *, bounded: bool) -> dict[str, Any] | None:
        """The lane as the claim of one at ``now`` takes it, None where there are several."""
        lanes = self._at(now)
        if len(lanes) != 1:
            return None
        ((queue, task, priority), bound) = next(iter(lanes.items()))
        due, number = bound if bounded and bound else (None, None)
        return {"queue": queue, "task": task, "priority": priority, "due": due, "id": number}

    def _at(self, now: float) -> dict[_Lane, tuple[datetime, int] | None]:
        if not self._due:
            return self._lanes
        return {lane: bound for lane, bound in self._lanes.items() if self._due.get(lane, now) <= now}

    @property
    def at_top(self) -> bool:
        """Whether the next look for priorities begins at the top everywhere, and does not go on below some."""
        return all(below == _ABOVE_ALL for below in self._below.values())

    def search(self) -> dict[str, Any]:
        """What the next look for priorities asks."""
        return {
            "queues": [queue for queue, _ in self._below],
            "tasks": [task for _, task in self._below],
            "belows": list(self._below.values()),
            "most": PRIORITIES,
        }

    def found(self, priorities: Iterable[Found], now: float) -> None:
        """Take what a look for priorities found, which was answered at ``now``, the higher ones of a task first."""
        counts = dict.fromkeys(self._below, 0)
        lowest = dict(self._below)
        later: dict[_Lane, float] = {}
        for queue, task, priority, due, next_in in priorities:
            lane = (queue, task, priority)
            bound = self._lanes.setdefault(lane, None)
            if priority and bound is None and not due and next_in is not None:
                later[lane] = now + next_in
            self._alive[queue, task].add(priority)
            counts[queue, task] += 1
            lowest[queue, task] = priority
        through = {pair for pair, count in counts.items() if count < PRIORITIES}
        # The next look goes on below what was not looked through, and hears nothing of these.
        self._due = {lane: at for lane, at in later.items() if lane[:2] in through}
        self._below = {pair: _ABOVE_ALL if pair in through else lowest[pair] for pair in self._below}
        if len(self._lanes) - len(self._below) > KEPT:
            self._lanes = {
                (queue, task, priority): bound
                for (queue, task, priority), bound in self._lanes.items()
                if not priority or (queue, task) not in through or priority in self._alive[queue, task]
            }
        for pair in through:
            self._alive[pair].clear()

    def claimed(self, jobs: Iterable[Claimed], *, swept_all: bool) -> None:
        """Move the bounds to what was claimed last, ``jobs`` in the order of their tokens.

        ``swept_all``: a sweep that filled its batch. It may have left more behind the bounds, so they go back to where
        it ended.
        """
        # The last of each lane has come farthest.
        for lane, job in {(job.queue, job.task, job.priority): job for job in jobs}.items():
            if lane not in self._lanes:
                continue  # of a queue with a limit, or exclusive: these are not read by lanes
            reached, bound = (job.due_at, job.id), self._lanes[lane]
            if swept_all or bound is None or bound < reached:
                self._lanes[lane] = reached
