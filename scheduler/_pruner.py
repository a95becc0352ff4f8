"""The pruner: deletes what is over for longer than it is kept, a small batch at a time.

It walks through each table in the order of its key, page by page, and remembers in the database how far it came. So
nothing is written at a job's end for the sake of its pruning, a page costs the same in a small table and in a large
one, and of many workers one prunes at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg.rows import dict_row

from scheduler._connect import Connection, Link
from scheduler._loop import log
from scheduler._retention import Retention
from scheduler._sql import Statements

PAGE = 1000
"""Rows that one batch looks at in each table."""

PAUSE = 0.2
"""Seconds between two batches that found little to delete."""

INTERVAL = 30.0
"""Seconds between two passes."""


_PLACES = {
    "job": ("job_after",),
    "act": ("act_after",),
    "lease": ("lease_after",),
    "occurrence": ("occurrence_schedule", "occurrence_key"),
}
"""The columns that say how far the pass over a table has come; empty or 0 where it begins."""


@dataclass(slots=True)
class Pruned:
    """How many rows of each table were deleted."""

    jobs: int = 0
    acts: int = 0
    leases: int = 0
    occurrences: int = 0


class Pruner:
    """Prunes one page of each table per run, in one transaction."""

    def __init__(self, link: Link, statements: Statements, retention: Retention, page: int = PAGE) -> None:
        self._link = link
        self._statements = statements
        self._retention = retention
        self._page = page
        self.pruned = Pruned()
        self._tables = {"job": self._jobs, "act": self._acts, "lease": self._leases, "occurrence": self._occurrences}
        self._open = set(_PLACES)

    def run_once(self) -> float | None:
        """Prune a page of each table; return None once every pass has come to its end, or another process prunes."""
        before = sum(_counts(self.pruned))
        with self._link.use("prune") as connection, connection.transaction():
            turn = self._one(connection, "prune_turn", {})
            if turn is None:
                return None
            # For this transaction only: the append-only tables let the pruner delete.
            connection.execute("select set_config('fencing.pruning', 'on', true)")
            for table in sorted(self._open):
                turn |= self._tables[table](connection, turn)
                if not any(turn[place] for place in _PLACES[table]):
                    self._open.discard(table)
            connection.execute(self._statements["prune_advance"], turn)
        gone = sum(_counts(self.pruned)) - before
        if gone:
            log.debug("pruned %d rows", gone)
        if not self._open:
            self._open = set(_PLACES)
            return None
        return 0 if gone >= self._page // 2 else PAUSE

    def run_through(self) -> Pruned:
        """Prune until each pass has come to its end, or another process prunes; return what was deleted."""
        while self.run_once() is not None:
            pass
        return self.pruned

    def _jobs(self, connection: Connection, turn: dict[str, Any]) -> dict[str, Any]:
        states = self._retention.states
        if not states:
            return {"job_after": 0}
        kept = {"states": list(states), "seconds": list(states.values()), "shortest": min(states.values())}
        page = self._look(connection, "prune_jobs", kept | {"after": turn["job_after"]})
        self.pruned.jobs += page["gone"]
        return {"job_after": self._next(page, 0)}

    def _acts(self, connection: Connection, turn: dict[str, Any]) -> dict[str, Any]:
        if self._retention.acts is None:
            return {"act_after": 0}
        kept = {"seconds": self._retention.acts.total_seconds()}
        page = self._look(connection, "prune_acts", kept | {"after": turn["act_after"]})
        self.pruned.acts += page["gone"]
        return {"act_after": self._next(page, 0)}

    def _leases(self, connection: Connection, turn: dict[str, Any]) -> dict[str, Any]:
        page = self._look(connection, "prune_leases", {"after": turn["lease_after"]})
        self.pruned.leases += page["gone"]
        return {"lease_after": self._next(page, "")}

    def _occurrences(self, connection: Connection, turn: dict[str, Any]) -> dict[str, Any]:
        if self._retention.occurrences is None:
            return {"occurrence_schedule": "", "occurrence_key": ""}
        kept = {"seconds": self._retention.occurrences.total_seconds()}
        page = self._look(connection, "prune_occurrences", kept | turn)
        self.pruned.occurrences += page["gone"]
        whole = page["seen"] == self._page
        return {
            "occurrence_schedule": page["last_schedule"] if whole else "",
            "occurrence_key": page["last_key"] if whole else "",
        }

    def _next(self, page: dict[str, Any], start: Any) -> Any:
        """Where the pass goes on: after this page, or at the start again if nothing behind it can be old enough."""
        return start if page["young"] or page["seen"] < self._page else page["last"]

    def _look(self, connection: Connection, name: str, parameters: dict[str, Any]) -> dict[str, Any]:
        page = self._one(connection, name, {**parameters, "batch": self._page})
        assert page is not None, "these statements return one row"
        return page

    def _one(self, connection: Connection, name: str, parameters: dict[str, Any]) -> dict[str, Any] | None:
        with connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(self._statements[name], parameters).fetchone()


def _counts(pruned: Pruned) -> tuple[int, ...]:
    return pruned.jobs, pruned.acts, pruned.leases, pruned.occurrences
