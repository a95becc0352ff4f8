"""The scheduler's own leases for the kit's lease machine: the named ones, and those of jobs."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from unittest import mock

from fencing import Lease, LeaseSource, Token
from fencing._lease import holding, lease_clock
from fencing.errors import LeaseUnavailableError
from fencing.testing import LeaseSystem
from scheduler import Retry, Scheduler, _sql
from scheduler._connect import translated
from scheduler._postgres import settle
from scheduler._store import Claimed
from support.jobs import Hand, Tables, completed, ended

LASTING = 60.0
"""Seconds of a job's lease: longer than an example takes."""
NEVER_DEAD = 1000
"""Attempts of a job: no example uses them up."""


class NamedLeases(LeaseSystem):
    """``app.lease(...)``, one scheduler for each owner, as each process has its own."""

    name = "the scheduler's named leases"

    def __init__(self, dsn: str, schema: str = "fencing") -> None:
        self._tables = Tables(dsn, schema)
        self._sources: dict[str, _Remembering] = {}

    def fresh(self) -> None:
        self._tables.rows("delete from {s}.lease")

    def source(self, owner: str) -> LeaseSource:
        if owner not in self._sources:
            self._sources[owner] = _Remembering(Scheduler(self._tables.dsn, self._tables.schema))
        return self._sources[owner]

    def run_out(self, name: str) -> None:
        self._tables.rows("update {s}.lease set lease_until = 'epoch' where name = %(name)s", name=name)

    def renew(self, owner: str) -> None:
        if owner in self._sources:
            self._sources[owner].renew()

    def dispose(self) -> None:
        for source in self._sources.values():
            source.app.close()
        self._tables.connection.close()


class _Remembering:
    """A scheduler as a source of leases, with those that it keeps."""

    def __init__(self, app: Scheduler) -> None:
        self.app = app
        self._kept: list[Lease] = []

    @contextlib.contextmanager
    def lease(self, name: str, *, ttl: float, wait: float = 0) -> Iterator[Lease]:
        with self.app.lease(name, ttl=ttl, wait=wait) as lease:
            self._kept.append(lease)
            try:
                yield lease
            finally:
                self._kept.remove(lease)

    def renew(self) -> None:
        """What the lease keeper does by itself once a third of the time has passed."""
        for lease in self._kept:
            lease._deadline = lease_clock() + 1
        self.app._here().leases._renew()


class JobLeases(LeaseSystem):
    """The claims of jobs: a name is a task with one job alive, its lease is held by whoever claimed that job.

    The jobs that ``completes`` names are settled by completing them, and are then enqueued anew, the others by giving
    them back.
    """

    name = "the scheduler's claims"
    COMPLETES: tuple[str, ...] = ("reindex",)

    def __init__(self, dsn: str, schema: str = "fencing", completes: tuple[str, ...] = COMPLETES) -> None:
        self.completes = completes
        self.app = Scheduler(dsn, schema)
        self.tables = Tables(dsn, schema)
        self._owners: dict[str, _Owner] = {}

    def fresh(self) -> None:
        self.tables.tamper("truncate {s}.job, {s}.attempt")

    def source(self, owner: str) -> LeaseSource:
        if owner not in self._owners:
            self._owners[owner] = _Owner(self, owner)
        return self._owners[owner]

    def run_out(self, name: str) -> None:
        self.tables.rows(
            "update {s}.job set lease_until = 'epoch' where status = 'leased' and task = %(name)s", name=name
        )

    def renew(self, owner: str) -> None:
        if owner in self._owners:
            self._owners[owner].renew()

    def dispose(self) -> None:
        for owner in self._owners.values():
            owner.close()
        self.app.close()
        self.tables.connection.close()


class _Owner:
    """One worker: it rescues, claims, renews and settles with the statements of a real one."""

    def __init__(self, system: JobLeases, name: str) -> None:
        self._system = system
        self._name = name
        self._hands: dict[str, Hand] = {}
        self._running: dict[int, tuple[Claimed, Lease]] = {}

    def _hand(self, task: str) -> Hand:
        if task not in self._hands:
            schema = self._system.tables.schema
            hand = Hand(self._system.tables.dsn, {task: LASTING}, owner=self._name, schema=schema)
            self._hands[task] = hand
        return self._hands[task]

    @contextlib.contextmanager
    def lease(self, name: str, *, ttl: float, wait: float = 0) -> Iterator[Lease]:
        hand = self._hand(name)
        self._enqueue(name)
        with translated("rescue and claim"):
            hand.rescue()
            jobs = hand.claim(1)
        if not jobs:
            raise LeaseUnavailableError(f"no job of the task {name!r} is there to be claimed")
        (job,) = jobs
        lease = Lease(Token(job.token, "scheduler", job.lineage), name, self._name, deadline=lease_clock() + ttl)
        self._running[job.token] = (job, lease)
        try:
            with holding(lease):
                yield lease
        finally:
            lease.end("settled")
            self._running.pop(job.token, None)
            with translated("settle"):
                end = completed(job) if name in self._system.completes else ended(job, "ready", "returned")
                settle(hand.on("settle"), hand.statements, self._name, [end])  # whatever the answer is

    def _enqueue(self, task: str) -> None:
        """Somebody wants it done: a new job, unless one is alive."""
        app = self._system.app
        if task not in app._tasks:
            app.task(task, retry=Retry(max_attempts=NEVER_DEAD))(lambda job: None)
        app.enqueue(task, key=task)

    def renew(self) -> None:
        for task, hand in self._hands.items():
            mine = [(job, lease) for job, lease in self._running.values() if job.task == task]
            with translated("renew"):
                held = hand.renew(*(job for job, _ in mine)) if mine else {}
            for job, lease in mine:
                if job.token not in held:
                    lease.lose()

    def close(self) -> None:
        for hand in self._hands.values():
            hand.close()


Edits = Mapping[str, Callable[[str], str]]
"""By the name of a statement's file: what becomes of its text."""


def editing(edits: Edits) -> AbstractContextManager[object]:
    """The scheduler's statements with these changes, for who reads them inside the block."""
    sound = _sql.read

    def read(*path: str) -> str:
        text = sound(*path)
        edit = edits.get(path[-1].removesuffix(".sql")) if path[0] == "sql" else None
        return edit(text) if edit else text

    return mock.patch.object(_sql, "read", read)
