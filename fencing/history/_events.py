from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal[
    "claim",
    "start",
    "raise",
    "write",
    "put",
    "settle",
    "renew",
    "expire",
    "rescue",
    "pause",
    "wake",
    "kill",
    "send",
    "commit",
    "adopt",
    "failover",
    "look",
    "note",
]
"""What happened.

``claim`` that is ``done`` drew a token; one that is ``accepted`` took work under a token that its holder had.
``raise`` is a raised fence (refused with ``detail="asked again"``: the reply to a first try was lost, which may have
raised it before somebody else did); ``expire`` a lease that ran out, by its issuer's clock; ``rescue`` the work taken
back after that. ``commit`` makes what the same actor had pending at the downstream certain. ``adopt`` moves resources
to another issuer. ``failover``: the downstream's server was replaced by its standby at that moment; its ``token`` is
the mark that its ``resources`` have there (none: no mark), and without resources it was so for all, with marks untold.
``look`` is what was found in a resource: its ``effects`` are all of them, in the order in which the downstream applied
them, or with ``detail="last"`` only the newest, or with ``detail="once"`` all of them where each was written under a
``once=`` key. ``note`` is a remark for the reader.
"""

Outcome = Literal["accepted", "repeated", "refused", "unknown", "contention", "failed", "lost", "done"]
"""How it ended."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    ``began`` and ``ended`` are nanoseconds of ``CLOCK_MONOTONIC``: comparable between the processes of one machine
    since its start, and nothing else. ``wall`` is the time of day, in nanoseconds since 1970, for people. ``token``
    is in its text form. ``pending``: accepted in a transaction of the caller's, so it holds only if that commits.
    ``effects`` names what a write changes, so that it can be looked for (see :func:`effects`). ``refusing``: of several
    resources the one whose mark refused; without it a refusal of several says of none of them that it had to.
    """

    kind: Kind
    outcome: Outcome
    actor: str
    downstream: str = ""
    resources: tuple[str, ...] = ()
    token: str = ""
    error: str = ""
    detail: str = ""
    pending: bool = False
    effects: tuple[str, ...] = ()
    began: int = field(default_factory=time.monotonic_ns)
    ended: int = 0
    wall: int = field(default_factory=time.time_ns)
    pid: int = field(default_factory=os.getpid)
    refusing: str = ""

    def __post_init__(self) -> None:
        if not self.ended:
            object.__setattr__(self, "ended", time.monotonic_ns())

    def as_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold; :func:`read_events` reads it back."""
        return asdict(self)


_effects: ContextVar[tuple[str, ...]] = ContextVar("fencing.history.effects", default=())


@contextmanager
def effects(*names: str) -> Iterator[None]:
    """Name the effects that the fenced writes in this block have.

    A later ``look`` event that lists what is there then shows a checker what was lost, doubled or let in.
    """
    before = _effects.set(names)
    try:
        yield
    finally:
        _effects.reset(before)


def named_effects() -> tuple[str, ...]:
    """The names that :func:`effects` gave here."""
    return _effects.get()


_subscribers: tuple[Callable[[Event], None], ...] = ()


def subscribe(callback: Callable[[Event], None]) -> Callable[[], None]:
    """Call ``callback`` with each event of this process from now on. Returns the function that ends it.

    It runs in the thread of the work itself: keep it short. An exception in it is raised there, since a record with
    holes proves nothing.
    """
    global _subscribers
    _subscribers = (*_subscribers, callback)

    def unsubscribe() -> None:
        global _subscribers
        _subscribers = tuple(known for known in _subscribers if known is not callback)

    return unsubscribe


def recording() -> bool:
    """Whether anybody listens: what is costly to build is built only then."""
    return bool(_subscribers)


def emit(event: Event) -> None:
    """Hand ``event`` to every subscriber."""
    for callback in _subscribers:
        callback(event)


class JsonLines:
    """A subscriber that appends each event as one line of JSON to a file.

    One ``write`` per event on a descriptor opened with ``O_APPEND``, so lines of several processes never mix and none
    is lost when the process is killed after it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def __call__(self, event: Event) -> None:
        os.write(
            self._fd,
            json.dumps(event.as_json(), ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n",
        )

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    @contextmanager
    def subscribed(self) -> Iterator[None]:
        """Record for the length of a block."""
        unsubscribe = subscribe(self)
        try:
            yield
        finally:
            unsubscribe()
