"""The heart: extends the leases of what a worker holds, and says which are lost."""

from __future__ import annotations

import time

from fencing._lease import lease_clock
from scheduler._connect import Link
from scheduler._held import Held, Work
from scheduler._hooks import LoseEvent, StuckEvent
from scheduler._loop import log
from scheduler._postgres import renew, why_revoked
from scheduler._sql import Statements

RENEW_AT = 0.75
"""The part of its lease that a job has left when it is renewed. The heart beats four times in the shortest lease."""

STUCK_AFTER = 10
"""A handler that has run for this many leases is reported, once per as many more."""


class Heart:
    """Renews every lease that has lost a quarter of its time.

    A thread of its own: a handler that blocks must not stop it.
    """

    def __init__(self, link: Link, statements: Statements, work: Work, owner: str) -> None:
        self._link = link
        self._statements = statements
        self._work = work
        self._owner = owner

    def run_once(self) -> float | None:
        """Renew once. An unknown reply extends nothing, and neither does a row that somebody else has locked."""
        doubted = self._work.take_doubted()
        due = [
            held
            for held in list(self._work.held.values())
            if (held.lease.remaining() <= held.task.lease * RENEW_AT or held.claimed.token in doubted)
            and not held.lease.is_lost
        ]
        if not due:
            return None
        sent = lease_clock()
        with self._link.use("renew") as connection:
            kept = renew(
                connection,
                self._statements,
                self._owner,
                [(held.claimed.id, held.claimed.token, held.task.lease) for held in due],
            )
        missing = []
        for held in due:
            extended = kept.get(held.claimed.token)
            if extended:
                held.lease.extend(sent + held.task.lease)
            elif extended is None and held.claimed.token in self._work.held and not held.lease.ended:
                missing.append(held)
        if missing:
            self._lose(missing)
        return None

    def _lose(self, missing: list[Held]) -> None:
        """Tell the holders, with the cause where it is known; without it where nobody answers."""
        whys: dict[int, str] = {}
        try:
            with self._link.use("ask why leases are lost") as connection:
                whys = why_revoked(connection, self._statements, [held.claimed.token for held in missing])
        finally:
            for held in missing:
                why = whys.get(held.claimed.token, "")
                log.warning(
                    "job %d: its lease is lost (token %d)%s",
                    held.claimed.id,
                    held.claimed.token,
                    f": {why}" if why else "",
                    extra=held.log_fields,
                )
                held.lease.lose(why)
                _tell_lost(
                    self._work,
                    held,
                    why or "somebody else has taken the job over, or rescued it, or it ran out long ago",
                )


class Watch:
    """Sets ``lost`` on leases that ran out by this process's own clock, whether or not the database answers; reports
    stuck jobs."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def run_once(self) -> float | None:
        """Look at every lease once."""
        for held in list(self._work.held.values()):
            was_lost = held.lease.is_lost
            if held.lease.expire_if_due() and not was_lost and not held.lease.ended:
                log.warning(
                    "job %d: no renewal was confirmed in time; its lease is lost",
                    held.claimed.id,
                    extra=held.log_fields,
                )
                _tell_lost(self._work, held, "no renewal was confirmed in time")
            if held.started is None:
                continue
            running = time.monotonic() - held.started
            if running > held.reported + STUCK_AFTER * held.task.lease:
                held.reported = running
                log.warning(
                    "job %d (%s) has been running for %.0f s",
                    held.claimed.id,
                    held.task.name,
                    running,
                    extra=held.log_fields,
                )
                if self._work.teller.wants(StuckEvent):
                    self._work.teller.tell(StuckEvent(**held.facts, seconds=running))
        return None


def _tell_lost(work: Work, held: Held, why: str) -> None:
    if work.teller.wants(LoseEvent):
        work.teller.tell(LoseEvent(**held.facts, why=why))
