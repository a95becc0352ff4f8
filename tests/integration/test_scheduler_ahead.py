"""A worker that rests knows when the next of its jobs is due, by the database's clock, and looks then."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support.jobs import Tables, installed_beside

from scheduler import Scheduler
from scheduler._claimer import Claimer
from scheduler._claiming import Claim
from scheduler._connect import Database, Link
from scheduler._gate import Gate
from scheduler._held import Work
from scheduler._sql import Statements
from scheduler.console.embedded import Postgres

NOW = datetime(2031, 5, 1, 12, tzinfo=UTC)
POLL = 100_000.0


@pytest.fixture(scope="module")
def ground(postgres: Postgres) -> Iterator[tuple[Scheduler, Tables]]:
    with installed_beside(postgres.create_database("scheduler_ahead")) as (app, tables):
        for name in ("work", "other"):
            app.task(name)(print)
        # Nobody's application has this time: what is ahead is so by the database's clock alone.
        tables.set_clock(f"'{NOW.isoformat()}'::timestamptz")
        yield app, tables
    postgres.drop_database("scheduler_ahead")


@pytest.fixture
def app(ground: tuple[Scheduler, Tables]) -> Scheduler:
    return ground[0]


@pytest.fixture
def tables(ground: tuple[Scheduler, Tables]) -> Tables:
    ground[1].rows("delete from {s}.job")
    ground[1].rows("delete from {s}.queue")
    return ground[1]


@pytest.fixture
def claimer(tables: Tables) -> Iterator[Claimer]:
    yield from _claimer(tables, ["default", "limited"], ["work"])


def _claimer(tables: Tables, queues: list[str], tasks: list[str]) -> Iterator[Claimer]:
    app = Scheduler(tables.dsn, schema=tables.schema)
    for name in tasks:
        app.task(name)(print)
    statements, link = Statements(tables.schema), Link(Database(tables.dsn), "claim")
    claim = Claim(statements, "me", queues, dict.fromkeys(tasks, 30.0))
    yield Claimer(link, claim, Work(), app._tasks, "me", 4, 100, POLL, Gate(statements, "me", 3600.0))
    link.close()
    app.close()


def within(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "options",
    [{}, {"priority": -7}, {"exclusive": "x"}, {"queue": "limited"}, {"queue": "limited", "exclusive": "x"}],
    ids=["ordinary", "another priority", "exclusive", "limited", "limited and exclusive"],
)
def test_the_rest_ends_when_the_next_job_is_due(
    app: Scheduler, tables: Tables, claimer: Claimer, options: dict[str, Any]
) -> None:
    tables.rows("insert into {s}.queue (name, max_running, changed_at) values ('limited', 1, now())")
    assert claimer.run_once() == POLL, "nothing waits"
    app.enqueue("work", due_at=within(5000))
    app.enqueue("work", due_at=within(3000), **options)
    app.enqueue("other", due_at=within(1000))
    app.enqueue("work", due_at=within(1000), queue="elsewhere")
    claimer.sweep_soon()
    wait = claimer.run_once()
    assert wait is not None
    assert 2000 < wait <= 3000


def test_one_that_has_to_wait_for_a_slot_wakes_nobody_when_it_is_due(
    app: Scheduler, tables: Tables, claimer: Claimer
) -> None:
    tables.rows("insert into {s}.queue (name, max_running, changed_at) values ('limited', 1, now())")
    app.enqueue("work", queue="limited")
    claimer.run_once()
    assert tables.states() == {"leased": 1}
    app.enqueue("work", due_at=within(3000), queue="limited")
    claimer.sweep_soon()
    assert claimer.run_once() == POLL


def test_what_was_claimed_on_the_way_does_not_hide_what_is_ahead(
    app: Scheduler, tables: Tables, claimer: Claimer
) -> None:
    app.enqueue("work")
    app.enqueue("work", due_at=within(3000))
    wait = claimer.run_once()
    assert tables.states() == {"leased": 1, "ready": 1}
    assert wait is not None
    assert 2000 < wait <= 3000


def test_of_what_is_due_before_the_next_look_the_workers_are_told(app: Scheduler, tables: Tables) -> None:
    with psycopg.connect(tables.dsn, autocommit=True) as listener:
        listener.execute(f'listen "{tables.schema}_due"'.encode())
        for seconds in (0.9, 3):
            queue, due = f"in {seconds} s", within(seconds)
            app.enqueue("work", due_at=due, queue=f"{queue}: one")
            app.enqueue("work", due_at=due, key=queue, unique="forever", queue=f"{queue}: forever")
            app.enqueue_many("work", [1], due_at=due, queue=f"{queue}: many")
            app.enqueue_many("work", [1], due_at=lambda _, due=due: due, queue=f"{queue}: many, of a function")
            app.enqueue_many("work", [1], due_at=due, key=lambda _, q=queue: f"a {q}", queue=f"{queue}: keys")
            app.enqueue_many(
                "work", [1], due_at=due, key=lambda _, q=queue: f"f {q}", unique="forever", queue=f"{queue}: ever"
            )
        app.enqueue("work", queue="end")
        notes = [note.payload for note in listener.notifies(timeout=20, stop_after=7)]
    told = ["one", "forever", "many", "many, of a function", "keys", "ever"]
    assert notes == [*(f"in 0.9 s: {kind}" for kind in told), "end"]
