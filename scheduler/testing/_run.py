"""Running jobs to the end, with time passing as fast as the work allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta

from scheduler._app import Scheduler
from scheduler._held import Counts
from scheduler.testing._clock import Clock

MOST_STEPS = 10_000
"""Steps of :func:`run_until` after which something is taken to go on for ever."""


def run_until_idle(app: Scheduler, queues: Sequence[str] | None = None) -> Counts:
    """Run everything that is due now, in these queues or in all that have waiting jobs or belong to a schedule; return
    what was done.

    What a retry or a yield put off is not waited for: see :func:`run_until`.
    """
    return app.run_until_idle(tuple(queues) if queues is not None else _queues(app))


def run_until(
    app: Scheduler, until: datetime | timedelta, *, clock: Clock, queues: Sequence[str] | None = None
) -> Counts:
    """Run everything that becomes due up to ``until``, a moment or so long from now by ``clock``; return what was done.

    The clock is set from one due moment to the next and stands still while jobs run: a month of a schedule, or a
    night of retries, takes as long as its handlers. It stands at ``until`` afterwards. Fails if 10,000 steps were not
    enough, as with a job that puts itself off for ever.
    """
    now = clock.now()
    end = now + until if isinstance(until, timedelta) else until
    if end.utcoffset() is None:
        raise ValueError(f"until= is an aware datetime or a timedelta, not {until!r}")
    clock.freeze(now)
    done = Counts()
    for _ in range(MOST_STEPS):
        _add(done, run_until_idle(app, queues))
        following = _next(app)
        if following is None or following > end:
            clock.freeze(max(end, now))
            return done
        clock.freeze(following)
    raise AssertionError(
        f"after {MOST_STEPS} steps there was still something to do: does a job put itself off for ever?"
    )


def _add(done: Counts, more: Counts) -> None:
    for name, count in asdict(more).items():
        setattr(done, name, getattr(done, name) + count)


def _next(app: Scheduler) -> datetime | None:
    with app._here().link.use("look for what is next") as connection:
        found: datetime | None = connection.execute(app._statements["testing_next"]).fetchall()[0][0]
        return found


def _queues(app: Scheduler) -> tuple[str, ...]:
    with app._here().link.use("look for queues") as connection:
        rows = connection.execute(
            app._statements.fill(
                "select queue from {schema}.job where status = 'ready' union select queue from {schema}.schedule"
            )
        ).fetchall()
    declared = {schedule.queue for schedule in app._schedules.values()}
    return tuple(sorted({"default", *declared, *(row[0] for row in rows)}))
