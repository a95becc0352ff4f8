"""The registrar: keeps what a process declares in the database, and says that the process is there."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler._connect import Link
from scheduler._loop import log
from scheduler._releases import Release
from scheduler._schedule_store import Stored, sync
from scheduler._schedules import Declared, release_of
from scheduler._sql import Run, Statements

_WHY: dict[Stored, str] = {
    "deferred": "declared otherwise by a newer release that is still there, or changed by a person",
    "deleted": "deleted by a person; a new release brings them back, or put_schedule()",
    "refused": "computed from newer zone data than this process has; update the tzdata package",
}


class Registrar:
    """One per process. ``declared`` may grow; what it holds when it is asked counts."""

    def __init__(self, link: Link, statements: Statements, owner: str, declared: Mapping[str, Declared]) -> None:
        self._link = link
        self._statements = statements
        self._owner = owner
        self._declared = declared
        self._deferred = False
        self._present = False
        self._told: dict[str, Stored] = {}
        self.works = False
        """Whether a worker runs here, or did: only then is the end of this process the end of anything."""

    def sync(self, *, last: bool = False) -> dict[str, Stored]:
        """Store what is declared; return what became of each. ``last``: this is the last deploy, whatever ran
        before."""
        declared = list(self._declared.values())
        if not declared:
            return {}
        with self._link.use("store schedules") as connection:
            run = Run(connection, self._statements)
            release = self._seen(run, release_of(declared))
            if last:
                release.number = run("release_renumber", release=release.id)[0][0]
            answers = sync(run, declared, release, self._owner)
        self._deferred = "deferred" in answers.values()
        self._tell(answers)
        return answers

    def _tell(self, answers: Mapping[str, Stored]) -> None:
        """Log what was not stored, once for as long as it is the same."""
        left = {name: answer for name, answer in answers.items() if answer in _WHY}
        if left != self._told:
            for answer, why in _WHY.items():
                if names := [name for name, one in left.items() if one == answer]:
                    shown = ", ".join(map(repr, names[:10])) + (" and others" if len(names) > 10 else "")
                    log.warning("%d schedules stay as they are in the database, %s: %s", len(names), why, shown)
            self._told = left

    def run_once(self) -> float | None:
        """Say that this process is there; where a newer release has the say, look whether it is still there."""
        if self._deferred:
            self.sync()
        elif self._declared:
            with self._link.use("say that this process is there") as connection:
                self._seen(Run(connection, self._statements), release_of(self._declared.values()))
        return None

    def leave(self) -> None:
        """Say that this process has ended.

        One that only stored what it declares, as a step of a deploy does, counts as there until the workers of its
        release have had the time to start.
        """
        if self._present and self.works:
            with self._link.use("say that this process has ended") as connection:
                Run(connection, self._statements)("release_left", owner=self._owner)
            self._present = False

    def _seen(self, run: Run, release: str) -> Release:
        found = run("release_seen", owner=self._owner, release=release)
        # None where another process brought the release in the same instant: it is there now.
        number = (found or run("release_seen", owner=self._owner, release=release))[0][0]
        self._present = True
        return Release(release, number)
