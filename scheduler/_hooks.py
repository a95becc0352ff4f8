"""Hooks: an application is told what happens to its jobs, and can do them no harm.

Each event is named by the verb of the service that it comes from. A worker tells its events on a thread of its own, so
that a hook that blocks delays no claim and no renewal; when more wait than :data:`MOST_WAITING`, further ones are
dropped and counted. What a hook raises is logged and counted. Hooks tell people and machines; nothing may depend on
them, least of all a write: only the downstream judges that.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fencing import Token
from scheduler._loop import log

MOST_WAITING = 10_000
"""Events that may wait for a worker's hooks."""

LOG_AGAIN = 60.0
"""Seconds until another failure of the same hook is logged with its trace."""


@dataclass(frozen=True, slots=True)
class Event:
    """What every event is; register a hook for it to be told of all."""


@dataclass(frozen=True, slots=True)
class EnqueueEvent(Event):
    """Jobs were enqueued, by this process; the caller's transaction has not committed yet.

    ``count`` of them; ``job`` is the id where it was one, and ``created`` is False if one with its key was alive.
    """

    task: str
    queue: str
    count: int
    job: int | None
    created: bool


@dataclass(frozen=True, slots=True)
class JobEvent(Event):
    """Something happened to a job under a claim of it: ``owner`` claimed it for ``attempt`` with ``token``."""

    job: int
    task: str
    queue: str
    attempt: int
    token: Token
    owner: str


@dataclass(frozen=True, slots=True)
class ClaimEvent(JobEvent):
    """This worker claimed a job, ``lag`` seconds after it was due."""

    lag: float


@dataclass(frozen=True, slots=True)
class StartEvent(JobEvent):
    """The handler is about to be called."""


@dataclass(frozen=True, slots=True)
class SettleEvent(JobEvent):
    """The end of an attempt was written: its ``outcome``, the ``seconds`` that the handler ran (None: it did not), the
    last line of its ``error``."""

    outcome: str
    seconds: float | None
    error: str


@dataclass(frozen=True, slots=True)
class LoseEvent(JobEvent):
    """This worker lost the lease: ``why`` says how it learned of that. Its writes are refused from the moment at which
    the next holder raises the fences."""

    why: str


@dataclass(frozen=True, slots=True)
class RescueEvent(JobEvent):
    """The lease of ``owner`` had run out, and this worker took the job back; it is now in ``state``."""

    state: str


@dataclass(frozen=True, slots=True)
class StuckEvent(JobEvent):
    """The handler has been running for ``seconds``, many leases long, and its lease is still renewed."""

    seconds: float


@dataclass(frozen=True, slots=True)
class LagEvent(Event):
    """A queue's lag, in seconds, went over what was said to be acceptable (``exceeded``), or is under it again."""

    queue: str
    lag: float
    acceptable: float
    exceeded: bool


@dataclass(frozen=True, slots=True)
class ListenEvent(Event):
    """The connection that waits for notifications was opened again: for the ``reconnects``-th time in this process."""

    reconnects: int


E = TypeVar("E", bound=Event)
Hook = Callable[[Any], object]


class Hooks:
    """The hooks of one application."""

    def __init__(self) -> None:
        self.all: list[tuple[type[Event], Hook]] = []
        """Replaced, never changed, when one is added."""
        self._logged: dict[int, float] = {}
        self.failures = 0
        self.dropped = 0

    def add(self, kind: type[Event], hook: Hook) -> None:
        """Call ``hook`` with every event of ``kind``."""
        if not (isinstance(kind, type) and issubclass(kind, Event)):
            raise TypeError(
                f"a hook is registered for a class of events, scheduler.ClaimEvent for example, not {kind!r}"
            )
        if not callable(hook):
            raise TypeError(f"a hook is called with the event; {type(hook).__name__} is not callable")
        self.all = [*self.all, (kind, hook)]

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody wants events of this kind: making them would be in vain otherwise."""
        return bool(self.all) and any(issubclass(kind, wanted) for wanted, _ in self.all)

    def tell(self, event: Event, contained: type[BaseException] = Exception) -> None:
        """Call the hooks of this event, one after another, on the calling thread. What they raise stays here, but on an
        application's thread not what ends a process: that may be a person's Ctrl-C."""
        for kind, hook in self.all:
            if isinstance(event, kind):
                try:
                    hook(event)
                except contained as exc:  # whatever a hook raises, it harms no job
                    self._failed(hook, event, exc)

    def _failed(self, hook: Hook, event: Event, exc: BaseException) -> None:
        self.failures += 1
        now, last = time.monotonic(), self._logged.get(id(hook))
        if last is None or now - last >= LOG_AGAIN:
            self._logged[id(hook)] = now
            log.error("the hook %r failed at %r (%d failures so far)", hook, event, self.failures, exc_info=exc)


class Teller:
    """Tells one worker's events on a thread of its own, in the order in which they came."""

    def __init__(self, hooks: Hooks | None = None) -> None:
        self._hooks = hooks or Hooks()
        self._waiting: deque[Event] = deque()
        self._some = threading.Event()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def wants(self, kind: type[Event]) -> bool:
        """Whether an event of this kind would be told to anybody."""
        return bool(self._hooks.all) and self._hooks.wants(kind)

    def tell(self, event: Event) -> None:
        """Have the event told soon; drop it if too many wait. Never waits and never raises."""
        if not self._hooks.wants(type(event)):
            return
        if len(self._waiting) >= MOST_WAITING:
            self._hooks.dropped += 1
            return
        self._waiting.append(event)
        self._some.set()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="fencing-hooks", daemon=True)
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Tell what waits, then end; wait for that at most ``timeout`` seconds."""
        self._stopping = True
        self._some.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            self._some.clear()
            while self._waiting:
                self._hooks.tell(self._waiting.popleft(), BaseException)
            if self._stopping and not self._waiting:
                return
            self._some.wait()
