"""Which of several versions of an application says what a schedule is.

A release is a set of declared schedules. The database numbers releases in the order in which they first appear; of two
that run side by side and differ about a schedule, the newer one prevails, however often a process of the older one
starts again. When no process of the newer one is left (a rollback), the older one prevails, and is from then on the
newest. People's changes take numbers of the same order, and have no process that could end.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler._sql import Run

PATIENCE = 180.0
"""Seconds without a sign of life after which a process counts as gone, if it did not say so when it ended."""

PRESENCE = 45.0
"""Seconds between two signs of life."""


@dataclass
class Release:
    """Who wants a schedule to be so: a release of the application, or, where ``id`` is None, a person."""

    id: str | None
    number: int

    def ahead_of(self, run: Run, number: int) -> int:
        """Return the number to change a schedule under that has this one: a release that comes back is the newest."""
        if self.id is not None and self.number < number:
            self.number = int(run("release_renumber", release=self.id)[0][0])
        return self.number


def may_change(number: int, present: bool, mine: int) -> bool:
    """Whether the holder of ``mine`` may change a schedule that ``number`` put there, whose processes are present."""
    return mine >= number or not present
