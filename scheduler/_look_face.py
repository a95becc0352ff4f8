"""The part of `Scheduler` that looks at how its database and its workers stand, and changes nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from fencing import Finding, Token
from scheduler._connect import Link
from scheduler._doctor import diagnose
from scheduler._doctor_app import diagnose_app
from scheduler._measure import MAX_WINDOW, measure
from scheduler._measures import Measures
from scheduler._migrate import check_migrated
from scheduler._schedules import Declared
from scheduler._sql import Run, Statements
from scheduler._tasks import Task


class _Here(Protocol):
    link: Link


class LookFace(ABC):
    """The methods for whoever operates it; :class:`Scheduler` has the rest."""

    _statements: Statements
    _tasks: dict[str, Task]
    _schedules: dict[str, Declared]

    @abstractmethod
    def _here(self) -> _Here:
        """What belongs to this process."""

    def measure(self, window: float = 300.0) -> Measures:
        """Return what the workers did in the last ``window`` seconds (60 to 3600; it begins at a full minute), and how
        the queues stand now.

        Reads what the workers wrote down, up to five seconds ago, and bounded parts of the indexes: its cost does not
        grow with the number of jobs.
        """
        if not isinstance(window, int | float) or not 60 <= window <= MAX_WINDOW:
            raise ValueError(f"window= is a number of seconds from 60 to {MAX_WINDOW:.0f}, not {window!r}")
        with self._here().link.use("measure") as connection:
            return measure(connection, self._statements, window)

    def diagnose(self) -> list[Finding]:
        """Return what in the database would break a promise, and where it does not fit what this application declares:
        tasks of waiting jobs that it does not know, schedules that are stored otherwise.

        ``fencing doctor MODULE:APP`` prints it. Nothing is changed.
        """
        with self._here().link.use("diagnose") as connection:
            findings = list(diagnose(connection, self._statements))
            if self._tasks and not any(finding.severity == "broken" for finding in findings):
                run = Run(connection, self._statements)
                findings += diagnose_app(run, findings[0].where, self._tasks, self._schedules)
            return findings

    def issued(self) -> tuple[str, int]:
        """Return the issuer's name and the newest number that it has given out: no mark of its may be beyond it.

        Raises :class:`~scheduler.errors.NotMigratedError` where there is no issuer yet.
        """
        with self._here().link.use("ask for the newest token") as connection:
            check_migrated(connection, self._statements)
            name, newest = connection.execute(self._statements["issued"]).fetchall()[0]
            return name, newest

    def oldest_live_token(self) -> Token:
        """Return the oldest token with which somebody may still write: a floor for ``adapters.sql.compact()``.

        That of a running job or named lease, also of one whose lease ran out and was not taken back yet. Where nobody
        holds anything, the newest one that was issued. Of claims that are just being made nothing is known: where such
        a job is refused below the floor, it comes back under a new token.

        Raises :class:`~scheduler.errors.NotMigratedError` where there is no issuer yet.
        """
        with self._here().link.use("ask for the oldest live token") as connection:
            check_migrated(connection, self._statements)
            issuer, value, lineage = connection.execute(self._statements["oldest_live_token"]).fetchall()[0]
            return Token(value, issuer, lineage)
