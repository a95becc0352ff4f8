"""What the tests of schedules share: a clock that stands still, processes that come and go, one materialiser and one
gate."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from scheduler import Job, Retry, Scheduler
from scheduler._connect import Connection, Database, Link
from scheduler._gate import Gate
from scheduler._materialiser import Materialiser
from scheduler._sql import Run, Statements
from scheduler._store import Outlook
from support.jobs import Hand, Tables, installed_beside

START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)  # a Monday


def hour(number: int, minute: int = 0, day: int = 2) -> datetime:
    return datetime(2026, 3, day, number, minute, tzinfo=UTC)


class Ground:
    """The scheduler's tables, whose clock stands where it is put, and what works on them step by step."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.statements = Statements(tables.schema)
        self.link = Link(Database(tables.dsn), "materialise")
        self.materialiser = Materialiser(self.link, self.statements, "materialiser")
        self.gate = Gate(self.statements, "gate", 0.5)
        self.hand = Hand(tables.dsn, {"send": 3600.0, "other": 3600.0}, schema=tables.schema)
        self.apps: list[Scheduler] = []
        self.at(START)

    def at(self, moment: datetime) -> None:
        """The scheduler's clock stands at this moment."""
        self.tables.set_clock(f"timestamptz '{moment.isoformat()}'")

    def process(self, **handlers: Callable[[Job], Any]) -> Scheduler:
        """A process that starts anew, with nothing in memory."""
        app = Scheduler(self.tables.dsn, schema=self.tables.schema)
        for name in ("send", "other"):
            app.task(name, lease=86_400, retry=Retry(max_attempts=3))(handlers.get(name, print))
        self.apps.append(app)
        return app

    def materialise(self) -> None:
        while self.materialiser.run_once() == 0:
            pass

    def look(self, gate: Gate | None = None, connection: Connection | None = None) -> float | None:
        """One look of the gate, as a claimer lets it look."""
        with self.link.use("decide") as own:
            ask = Run(connection or own, self.statements)
            _, *outlook = ask("outlook", queues=[], tasks=[])[0]
            return (gate or self.gate).look(ask.connection, Outlook(*outlook))

    def decide(self) -> None:
        """Everything that the gate can decide now."""
        while self.look() == 0:
            pass

    def step(self, moment: datetime) -> None:
        """What a worker does at this moment but for running jobs."""
        self.at(moment)
        self.materialise()
        self.decide()

    def dues(self, status: str = "ready") -> list[datetime]:
        return sorted(job["due_at"] for job in self.tables.jobs() if job["status"] == status)

    def ledger(self, schedule: str) -> list[tuple[datetime, str]]:
        """(due, state) of each occurrence."""
        return [(one["due_at"], one["state"]) for one in self.tables.occurrences(schedule)]

    def acts(self, schedule: str) -> list[str]:
        rows = self.tables.rows("select kind from {s}.act where subject = %(s)s order by id", s=f"schedule/{schedule}")
        return [row["kind"] for row in rows]

    def close(self) -> None:
        for app in self.apps:
            app.close()
        self.hand.close()
        self.link.close()


@contextmanager
def schedules_ground(dsn: str) -> Iterator[Ground]:
    """A ground in a schema of its own."""
    with installed_beside(dsn) as (_, tables):
        ground = Ground(tables)
        try:
            yield ground
        finally:
            ground.close()


SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3600, 86400))
