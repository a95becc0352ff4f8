"""The story that ``fencing demo`` plays, with guards or without: one worker is stopped, another takes over, the first
wakes up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict
from datetime import timedelta
from typing import TypeVar

from fencing import Token
from fencing.history import Event, Kind
from scheduler.console.demo import careless, shop
from scheduler.console.demo._furnish import DHAKA, Venue, find_venue, furnish, janitor
from scheduler.console.demo._look import Look
from scheduler.console.demo._names import lane_names
from scheduler.console.demo._process import WorkerProcess
from scheduler.console.demo._report import Report, door_of, short
from scheduler.console.demo._stage import Stage, StoryError

T = TypeVar("T")
Tell = Callable[[str], None]

PATIENCE = 120.0
"""Seconds that a step may take before the demo gives up."""

_WRITES = {
    "sql": ("wrote the invoice", "writes the invoice"),
    "redis": ("set the cache", "sets the cache"),
    "outbox": ("put an e-mail into the outbox", "puts an e-mail into the outbox"),
    "mail": ("sent an e-mail", "sends an e-mail"),
    "completion": ("completed the job", "completes the job"),
}
"""What each write is called once it is done, and when it is tried."""


def play(stage: Stage, versions: Mapping[str, str], *, fenced: bool, tell: Tell) -> Report:
    """Play the story; ``tell`` is called with a line for each step as it happens.

    ``versions``: what the given servers are. Raises :class:`StoryError` if the story cannot be played to its end, and
    ``ServerUnavailableError``.
    """
    with ExitStack() as stack:
        venue = find_venue(stage, versions)
        tell(f"{venue.title} answer")
        stack.enter_context(janitor(stage.given, venue.addresses))
        for worker in stage.workers:
            stack.callback(worker.close)  # before the janitor removes what they use
        look = stack.enter_context(closing(Look(venue.addresses)))
        story = _Story(stage, venue, look, fenced, tell)
        story.open_the_shop()
        story.stop_the_first()
        story.let_its_lease_run_out()
        story.watch_the_second()
        story.wake_the_first()
        return story.report()


class _Story:
    """The steps, in the order in which they are called above. Worker A is the one that claims first."""

    def __init__(self, stage: Stage, venue: Venue, look: Look, fenced: bool, tell: Tell) -> None:
        self._workers = stage.workers
        self._sink = stage.sink
        self._venue = venue
        self._look = look
        self._fenced = fenced
        self._tell = tell
        self._own: list[Event] = []
        self._a, self._b = stage.workers

    def open_the_shop(self) -> None:
        """Make the tables, store the schedule so that it is due in a moment, and let the workers begin."""
        furnish(self._venue.addresses)
        cron = self._register()
        orders = {"fenced": self._fenced, "addresses": asdict(self._venue.addresses), "cron": cron}
        for worker in self._workers:
            worker.order(orders)

    def _register(self) -> str:
        """Store the monthly schedule and return its rule.

        A new schedule never fires the past, so its day and time are those of a moment just ahead.
        """
        open_shop = shop.open_shop if self._fenced else careless.open_shop
        margin = timedelta(seconds=0.4)
        while True:
            due = (self._look.clock() + margin).replace(microsecond=0) + timedelta(seconds=1)
            local = due.astimezone(DHAKA)
            cron = f"{local.second} {local.minute} {local.hour} {local.day} * *"
            app = open_shop(self._venue.addresses, cron, lambda job: None)
            app.sync_schedules()
            app.close()
            if self._look.next_at() == due:
                break
            # A machine so busy that the moment had passed before it was stored.
            margin *= 2
            if margin.total_seconds() > PATIENCE:
                raise StoryError(f"the schedule could not be stored before {due}: this machine is too busy")
        self._invoice = self._venue.addresses.invoice(local)
        when = f"day {local.day} of each month at {local:%H:%M:%S}, which is in a moment"
        self._tell(f'schedule "{cron}" in Asia/Dhaka: {when}')
        return cron

    def stop_the_first(self) -> None:
        """Stop the worker that is in the middle of its handler."""

        def begun() -> tuple[WorkerProcess, Event] | None:
            return next(((one, event) for one in self._workers for event in one.events if event.kind == "note"), None)

        self._a, middle = self._await(begun, "a worker is in the middle of its handler")
        self._b = next(one for one in self._workers if one is not self._a)
        self._actor, self._paused = middle.actor, Token.parse(middle.token)
        self._job = next(event.resources for event in self._a.events if event.kind == "claim")
        self._tell(f"worker A ({self._a.pid}) claimed {self._job[0]} under token {short(self._paused)} and is at work")
        state = self._a.stop()
        self._record("pause", "SIGSTOP")
        self._tell(f"SIGSTOP: worker A stands still in the middle of its handler (process state {state})")
        for worker in self._workers:
            worker.go_on()  # A will find it when it wakes up

    def let_its_lease_run_out(self) -> None:
        """Wait until the lease has run out by the database's clock."""
        end = time.monotonic_ns()

        def run_out() -> bool:
            nonlocal end
            asked = time.monotonic_ns()
            left = self._look.lease_left(self._job_id, self._paused.value)
            if left is not None:
                end = asked + round(left * 1e9)
            return left is None or left <= 0

        self._await(run_out, "the lease of the stopped worker runs out")
        self._record("expire", at=end)
        self._tell("the lease of worker A has run out, and nobody can tell it")

    def watch_the_second(self) -> None:
        """Wait until the second worker has done it all and its mail has gone out."""

        def claimed() -> Event | None:
            return next((event for event in self._b.events if event.kind == "claim"), None)

        token = Token.parse(self._await(claimed, "another worker claims the job").token)
        self._tell(f"worker B ({self._b.pid}) claimed {self._job[0]} under token {short(token)}")
        self._winner = Token.parse(self._await(self._completed, "the other worker completes the job").token)
        done = dict.fromkeys(door_of(event) for event in self._b.events)
        self._tell("worker B " + ", ".join(_WRITES[door][0] for door in done if door in _WRITES and door != "mail"))
        self._await(lambda: self._emails() > 0 and not self._look.mails_waiting(), "the mail goes out")
        self._tell(f"{self._emails()} e-mail has arrived at the mail server")

    def _completed(self) -> Event | None:
        settled = (event for event in self._b.events if door_of(event) == "completion")
        return next((event for event in settled if event.outcome == "accepted" and event.detail == "completed"), None)

    def wake_the_first(self) -> None:
        """Wake the stopped worker and wait until it has tried everything."""
        self._record("wake", "SIGCONT")
        self._a.wake()
        self._tell("SIGCONT: worker A wakes up and carries on as if nothing had happened")
        self._await(
            lambda: any(door_of(event) == "completion" for event in self._late()), "the woken worker comes to its end"
        )
        # A mail that it could put in spite of all would be sent: waited for, so that it counts.
        self._await(lambda: not self._look.mails_waiting(), "no mail waits in the outbox")
        places = {
            "sql": "PostgreSQL",
            "redis": self._venue.redis_name,
            "outbox": "the outbox",
            "mail": "the mail server",
        }
        for event in self._late():
            place = places.get(door_of(event), "the scheduler")
            self._tell(f"worker A {_WRITES[door_of(event)][1]}: {event.outcome.upper()} by {place}")

    def report(self) -> Report:
        """Look at what is there now."""
        events = sorted([*self._own, *self._a.events, *self._b.events], key=lambda event: event.ended)
        return Report(
            fenced=self._fenced,
            paused=self._paused,
            winner=self._winner,
            late=self._late(),
            invoices=self._look.invoice_tokens(),
            cached=self._look.cached_token(self._invoice),
            emails=self._emails(),
            occurrences=self._look.occurrences(),
            attempts=self._look.attempts(self._job_id),
            marks=self._look.marks(self._invoice),
            servers=self._venue.versions,
            events=events,
            names=lane_names(events, {self._a.pid: "worker A", self._b.pid: "worker B"}, self._venue.redis_name),
        )

    @property
    def _job_id(self) -> int:
        return int(self._job[0].rpartition("/")[2])

    def _late(self) -> list[Event]:
        """What worker A tried after it had been woken."""
        woken = next(event.ended for event in self._own if event.kind == "wake")
        return [event for event in self._a.events if event.ended > woken and door_of(event)]

    def _emails(self) -> int:
        """How many mails arrived: at our own server, or as a given one has answered."""
        if self._sink is not None:
            return len(self._sink.received)
        return sum(
            event.kind == "send" and event.outcome == "accepted" for one in self._workers for event in one.events
        )

    def _record(self, kind: Kind, detail: str = "", at: int | None = None) -> None:
        """Add to the event record what no worker can know."""
        at = at or time.monotonic_ns()
        resources = self._job if kind == "expire" else ()
        token = str(self._paused)
        self._own.append(Event(kind, "done", self._actor, "", resources, token, detail=detail, began=at, ended=at))

    def _await(self, seen: Callable[[], T | None], what: str) -> T:
        """Return what ``seen`` returns once it is true."""
        give_up = time.monotonic() + PATIENCE
        while True:
            found = seen()
            if found:
                return found
            gone = [worker for worker in self._workers if worker.ended]
            if gone or time.monotonic() > give_up:
                why = "a worker has ended" if gone else f"not within {PATIENCE:.0f} s"
                logs = "\n".join(worker.log.rstrip() for worker in self._workers)
                raise StoryError(f"{why}: {what}. What the workers said:\n{logs or '(nothing)'}")
            time.sleep(0.01)
