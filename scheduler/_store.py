"""The records that cross between the services and the database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

from fencing import Token
from scheduler._json import json_value
from scheduler._states import Outcome, State


class Claimed(NamedTuple):
    """A job as the claim returned it, in the order of the statement's columns."""

    id: int
    token: int
    lineage: str
    task: str
    queue: str
    json: str
    priority: int
    due_at: datetime
    attempt: int
    max_attempts: int
    yields: int
    key: str | None
    schedule: str | None
    nominal: datetime | None
    lag: float = 0.0
    trace: Any = None
    created_at: datetime | None = None
    issuer: str = ""

    @property
    def args(self) -> Any:
        """What the job was enqueued with, read from ``json`` each time: most claims need not, only the handler may."""
        return json_value(self.json)


class Outlook(NamedTuple):
    """What a claimer asks beside its claims.

    ``free``: a turn to claim. ``guarded``: there is something that only the guarded claim takes. ``due``: an occurrence
    that waits for the gate is due; ``next_in``: the seconds until the next one is, None if there is none.
    """

    free: bool
    guarded: bool
    due: bool
    next_in: float | None


class Rescued(NamedTuple):
    """A job that was taken back after its lease ran out."""

    id: int
    token: int
    lineage: str
    owner: str
    attempt: int
    state: State
    task: str
    issuer: str
    queue: str


class Revoked(NamedTuple):
    """A running job that was taken away from ``owner``, whose token was ``revoked``.

    ``token`` was drawn for it: the job's fences are raised to it.
    """

    id: int
    task: str
    queue: str
    token: Token
    revoked: int
    owner: str


class Taken(NamedTuple):
    """The answer to an attempt to acquire a named lease.

    ``token`` is None while ``holder`` has it for ``free_in`` seconds more.
    """

    issuer: str
    token: int | None
    lineage: str | None
    holder: str | None
    free_in: float | None


@dataclass(slots=True)
class Settlement:
    """How one attempt ends. ``delay`` is in seconds from now and moves ``due_at``; ``result`` is JSON text."""

    id: int
    token: int
    state: State
    outcome: Outcome
    result: str | None = None
    error: str | None = None
    reason: str | None = None
    delay: float | None = None

    @property
    def uncounted(self) -> int:
        """1 if the attempt is given back to the job: it did not run, or it only met another live holder."""
        return int(self.outcome in ("yielded", "returned"))


class Settled(Enum):
    """The typed answer to a settlement."""

    OK = "ok"
    BEFORE = "already settled by me"
    LOST = "lost"
