"""What the scheduler's tests share: its tables, hands that claim and settle, workers in processes of their own."""

import json
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from itertools import count
from typing import Any, Self

import psycopg
from psycopg.rows import dict_row

from scheduler import Counts, Scheduler
from scheduler._claiming import Claim
from scheduler._connect import Connection, Database
from scheduler._postgres import renew, rescue, settle
from scheduler._sql import Statements
from scheduler._states import Outcome, State
from scheduler._store import Claimed, Rescued, Settled, Settlement
from scheduler.testing._clock import put_clock
from support.processes import PythonProcess
from support.waiting import eventually


class Tables:
    """The scheduler's tables as they are, read past the scheduler; and its clock, to be moved."""

    def __init__(self, dsn: str, schema: str = "fencing") -> None:
        self.dsn = dsn
        self.schema = schema

    @cached_property
    def connection(self) -> psycopg.Connection[dict[str, Any]]:
        return psycopg.connect(self.dsn, autocommit=True, row_factory=dict_row)

    def connect_anew(self) -> None:
        """For after the server went away."""
        self.__dict__.pop("connection", None)

    def rows(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:
        """The rows of a query; ``{s}`` in it stands for the schema."""
        cursor = self.connection.execute(sql.replace("{s}", self.schema).encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def one(self, sql: str, **parameters: Any) -> Any:
        """The only value of a query."""
        (row,) = self.rows(sql, **parameters)
        (value,) = row.values()
        return value

    def tamper(self, sql: str) -> None:
        """Change what is append-only, as somebody who owns the server could."""
        self.rows(f"begin; set local session_replication_role = replica; {sql}; commit")

    def job(self, number: int) -> dict[str, Any]:
        (row,) = self.rows("select * from {s}.job where id = %(id)s", id=number)
        return row

    def jobs(self) -> list[dict[str, Any]]:
        return self.rows("select * from {s}.job order by id")

    def states(self) -> dict[str, int]:
        """How many jobs there are of each state."""
        return {
            row["status"]: row["count"] for row in self.rows("select status, count(*) from {s}.job group by status")
        }

    def attempts(self, number: int) -> list[dict[str, Any]]:
        return self.rows("select * from {s}.attempt where job_id = %(id)s order by token", id=number)

    def outcomes(self, number: int) -> list[str]:
        """How the job's attempts ended, in the order of their tokens."""
        return [row["outcome"] for row in self.attempts(number)]

    def occurrences(self, schedule: str) -> list[dict[str, Any]]:
        return self.rows("select * from {s}.occurrence where schedule = %(name)s order by due_at", name=schedule)

    def schedule(self, name: str) -> dict[str, Any]:
        (row,) = self.rows("select * from {s}.schedule where name = %(name)s", name=name)
        return row

    def move_clock(self, seconds: float) -> None:
        """From now on the scheduler's clock is so far from the real one, for every process."""
        self.set_clock(f"clock_timestamp() + interval '{seconds} seconds'")

    def start_clock(self, moment: datetime) -> None:
        """The scheduler's clock shows this moment now and goes on from there."""
        now = self.one("select clock_timestamp()")
        self.set_clock(f"timestamptz '{moment.isoformat()}' + (clock_timestamp() - timestamptz '{now.isoformat()}')")

    def set_clock(self, expression: str) -> None:
        """From now on this expression is the scheduler's clock."""
        with self.connection.transaction():
            put_clock(self.connection, self.schema, expression)

    def wait_for(self, number: int, status: str, timeout: float = 60) -> dict[str, Any]:
        """The job, once it is in this state."""

        def there() -> bool:
            return bool(self.job(number)["status"] == status)

        try:
            eventually(there, f"job {number} is {status}", timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.job(number)}; it was {self.attempts(number)}") from None
        return self.job(number)

    def sessions(self, role: str = "%") -> list[dict[str, Any]]:
        """The scheduler's sessions on this database, of one role or all."""
        return self.rows(
            "select pid, application_name, state, xact_start, query, wait_event_type from pg_stat_activity"
            " where datname = current_database() and application_name like %(name)s",
            name=f"fencing {role}",
        )

    def wait_for_session(self, role: str, waiting: bool = False, timeout: float = 60) -> int:
        """The backend of the only session of this role, once it is there (and waits for a lock)."""

        def there() -> list[int]:
            found = self.sessions(role)
            return [one["pid"] for one in found if not waiting or one["wait_event_type"] == "Lock"]

        (pid,) = eventually(
            there, f"a session of the role {role!r}{' that waits for a lock' if waiting else ''}", timeout
        )
        return pid


@contextmanager
def installed(dsn: str, schema: str = "fencing") -> Iterator[tuple[Scheduler, Tables]]:
    """A scheduler whose tables were made, and a look at these."""
    app, tables = Scheduler(dsn, schema=schema), Tables(dsn, schema)
    app.migrate()
    try:
        yield app, tables
    finally:
        app.close()
        tables.connection.close()


_schemas = count(1)


@contextmanager
def installed_beside(dsn: str) -> Iterator[tuple[Scheduler, Tables]]:
    """The same in a schema of its own: many tests share a database, which costs more to make than the tables."""
    with installed(dsn, f"test_{next(_schemas)}") as both:
        yield both


class Hand:
    """One worker's hand on the database, with the statements and settings of a real one, step by step."""

    def __init__(
        self,
        dsn: str,
        leases: Mapping[str, float],
        *,
        owner: str = "hand",
        queues: Sequence[str] = ("default",),
        schema: str = "fencing",
    ) -> None:
        self.owner = owner
        self.statements = Statements(schema)
        self._database = Database(dsn)
        self._leases = dict(leases)
        self._queues = list(queues)
        self._claim = Claim(self.statements, owner, queues, leases)
        self._connections: dict[str, Connection] = {}

    def on(self, role: str) -> Connection:
        """This worker's connection for one of its threads."""
        if role not in self._connections:
            self._connections[role] = self._database.connect(role)
        return self._connections[role]

    def claim(self, most: int = 100, **options: Any) -> list[Claimed]:
        return self._claim(self.on("claim"), most, **options)

    @property
    def looks_again(self) -> bool:
        """Whether the last claim said that another one may find more."""
        return self._claim.again

    def claim_one(self) -> Claimed:
        (job,) = self.claim(1)
        return job

    def settle(self, *settlements: Settlement) -> list[Settled]:
        answers = settle(self.on("settle"), self.statements, self.owner, settlements)
        return [answers[one.token] for one in settlements]

    def complete(self, job: Claimed, result: object = None) -> Settled:
        return self.settle(completed(job, result))[0]

    def renew(self, *jobs: Claimed) -> dict[int, bool]:
        leases = [(job.id, job.token, self._leases[job.task]) for job in jobs]
        return renew(self.on("heart"), self.statements, self.owner, leases)

    def rescue(self) -> list[Rescued]:
        return rescue(self.on("rescue"), self.statements, self._queues, list(self._leases))

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


def completed(job: Claimed, result: object = None) -> Settlement:
    text = None if result is None else json.dumps(result)
    return Settlement(job.id, job.token, "completed", "completed", result=text)


def ended(job: Claimed, state: State, outcome: Outcome, **more: Any) -> Settlement:
    return Settlement(job.id, job.token, state, outcome, **more)


class Working:
    """A worker on a thread of this process. On leaving the block it is stopped, and has drained."""

    def __init__(self, app: Scheduler, **options: Any) -> None:
        self.stop = threading.Event()
        self._counts: Counts | None = None
        self._error: BaseException | None = None
        self._app, self._options = app, options
        self._thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        try:
            self._counts = self._app.run_worker(stop=self.stop, **self._options)
        except BaseException as error:  # noqa: BLE001 - raised where the test waits for it
            self._error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.drained()

    def drained(self, timeout: float = 60) -> Counts:
        """What it did, once it has stopped."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the worker does not stop"
        if self._error is not None:
            raise self._error
        assert self._counts is not None
        return self._counts


_BEFORE = """
import json, logging, os, sys, threading, time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
import psycopg
from fencing import current_lease, errors, fenced_write
from scheduler import Bury, Job, Retry, RetryIn, Scheduler

dsn = sys.argv[1]
logging.basicConfig(level="INFO", stream=sys.stderr)
app = Scheduler(dsn)

def say(*words):
    # One write for each line: several threads speak.
    sys.stdout.write(" ".join(str(word) for word in words) + "\\n")

def hear():
    return sys.stdin.readline().strip()

def record(sql, *values):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql, values)
"""


def worker(dsn: str, tasks: str, run: str = "concurrency=2", **options: Any) -> PythonProcess:
    """A worker in a process of its own: ``tasks`` is the code that registers them, ``run`` the worker's arguments.

    The code finds ``app``, ``dsn``, ``say(...)`` (a line to the test), ``hear()`` (a line from it) and
    ``record(sql, ...)``. When it has drained it says ``drained`` and its counts as JSON.
    """
    return program(
        dsn, f"{textwrap.dedent(tasks)}\nsay('drained', json.dumps(asdict(app.run_worker({run}))))\n", **options
    )


def program(dsn: str, code: str, *arguments: str, **options: Any) -> PythonProcess:
    """A process with a scheduler, as a worker is, that runs ``code``; its arguments are ``sys.argv[2:]``."""
    return PythonProcess(_BEFORE + textwrap.dedent(code), dsn, *arguments, **options)


def drained(process: PythonProcess, timeout: float = 60) -> dict[str, int]:
    """The counts that a worker says when it has drained; other lines before that are passed over."""
    while True:
        word, _, rest = process.line(timeout).partition(" ")
        if word == "drained":
            counts: dict[str, int] = json.loads(rest)
            return counts


def until(process: PythonProcess, wanted: Callable[[str], bool] | str, timeout: float = 60) -> str:
    """Its next line that is wanted (or begins with it); others before that are passed over."""
    while True:
        line = process.line(timeout)
        if line.startswith(wanted) if isinstance(wanted, str) else wanted(line):
            return line
