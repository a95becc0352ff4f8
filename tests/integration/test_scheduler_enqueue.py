"""Enqueuing in the caller's transaction, whatever holds it: the job exists if and only if that transaction commits."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool
from support.jobs import Hand, Tables, installed_beside
from support.locks import wait_until_blocked
from support.sql_doors import async_url, sync_url

from fencing.errors import ContentionError, NotInTransactionError
from scheduler import Enqueued, Retry, Scheduler
from scheduler._enqueue import Unique
from scheduler.console.embedded import Postgres
from scheduler.errors import DatabaseError, NotMigratedError, UnknownTaskError


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("scheduler_enqueue")
    postgres.drop_database("scheduler_enqueue")


@pytest.fixture
def ground(database: str) -> Iterator[tuple[Scheduler, Tables]]:
    with installed_beside(database) as (app, tables):
        app.task("work", retry=Retry(max_attempts=3))(print)
        yield app, tables


# -- in a transaction of its own


def test_a_job_is_stored_as_it_was_given(app: Scheduler, tables: Tables) -> None:
    args = {"n": 1, "text": "zwei\u00a0Wörter 😀 \\u0000", "big": 10**40, "float": 0.1, "none": None, "list": [[], {}]}
    due = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=6)))
    created, number = app.enqueue("work", args, due_at=due, key="k", priority=-3, queue="slow")
    assert created
    row = tables.job(number)
    assert row["args"] == args
    assert row["due_at"] == due
    assert (row["key"], row["priority"], row["queue"], row["task"]) == ("k", -3, "slow", "work")
    assert (row["status"], row["attempt"], row["max_attempts"], row["token"]) == ("ready", 0, 3, None)


def test_without_a_due_time_it_is_due_now_by_the_databases_clock(app: Scheduler, tables: Tables) -> None:
    tables.move_clock(7200)
    row = tables.job(app.enqueue("work").id)
    assert row["due_at"] == row["created_at"]
    assert timedelta(hours=1.9) < row["due_at"] - datetime.now(UTC) < timedelta(hours=2.1)


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Etc/GMT+12"])
def test_the_first_and_the_last_due_time_are_read_in_every_zone(app: Scheduler, tables: Tables, zone: str) -> None:
    first, last = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
    early, late = app.enqueue("work", due_at=first).id, app.enqueue("work", due_at=last).id
    elsewhere = f"{tables.dsn}?options=-ctimezone%3D{zone}"
    hand = Hand(elsewhere, {"work": 30}, schema=tables.schema)
    assert hand.claim_one().id == early
    hand.close()
    there = Scheduler(elsewhere, schema=tables.schema)
    assert [there.job(number).due_at for number in (early, late)] == [first, last]
    there.close()


def test_while_a_job_with_the_key_is_alive_no_second_one_is_made(app: Scheduler, tables: Tables) -> None:
    first = app.enqueue("work", key="k")
    assert app.enqueue("work", {"other": "args"}, key="k") == Enqueued(False, first.id)
    hand = Hand(tables.dsn, {"work": 30}, schema=tables.schema)
    job = hand.claim_one()
    assert app.enqueue("work", key="k") == Enqueued(False, first.id), "leased is alive"
    hand.complete(job)
    again = app.enqueue("work", key="k")
    assert again.created
    assert again.id != first.id
    hand.close()


def test_a_key_that_is_unique_for_ever_makes_one_job_whatever_becomes_of_it(app: Scheduler, tables: Tables) -> None:
    first = app.enqueue("work", key="k", unique="forever")
    assert first.created
    assert app.enqueue("work", key="k", unique="forever") == Enqueued(False, first.id)
    hand = Hand(tables.dsn, {"work": 30}, schema=tables.schema)
    job = hand.claim_one()
    assert job.key == "k"
    hand.complete(job)
    hand.close()
    assert app.enqueue("work", key="k", unique="forever") == Enqueued(False, first.id)
    tables.rows("delete from {s}.job")
    assert app.enqueue("work", key="k", unique="forever") == Enqueued(False, first.id), "its row decides nothing"


def test_keys_for_ever_and_keys_while_alive_do_not_look_at_each_other(app: Scheduler) -> None:
    orders: tuple[tuple[str, tuple[Unique, ...]], ...] = (("k", ("alive", "forever")), ("l", ("forever", "alive")))
    for key, kinds in orders:
        made = {unique: app.enqueue("work", key=key, unique=unique) for unique in kinds}
        assert [one.created for one in made.values()] == [True, True]
        for unique in kinds:
            assert app.enqueue("work", key=key, unique=unique) == Enqueued(False, made[unique].id)


def test_a_key_for_ever_is_free_again_if_the_callers_transaction_rolls_back(app: Scheduler, tables: Tables) -> None:
    with psycopg.connect(tables.dsn) as connection:
        assert app.enqueue("work", key="k", unique="forever", connection=connection).created
        connection.rollback()
    assert tables.jobs() == []
    assert app.enqueue("work", key="k", unique="forever").created


def test_jobs_without_a_key_never_conflict(app: Scheduler, tables: Tables) -> None:
    assert app.enqueue("work").id != app.enqueue("work").id


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ({"task": "wrok"}, UnknownTaskError, r"no task 'wrok'.*known: work"),
        ({"task": 5}, TypeError, "a task is named by a str"),
        ({"args": object()}, TypeError, "not JSON"),
        ({"args": {1, 2}}, TypeError, "not JSON"),
        ({"args": float("inf")}, TypeError, "not JSON"),
        ({"args": "\x00"}, ValueError, "NUL"),
        ({"args": "\ud800"}, ValueError, "surrogate"),
        ({"args": "x" * (1 << 20)}, ValueError, "bytes of JSON"),
        ({"due_at": datetime(2026, 1, 1)}, ValueError, "no time zone"),
        ({"due_at": "2026-01-01"}, TypeError, "aware datetime"),
        ({"key": ""}, ValueError, "a key's name"),
        ({"key": "x" * 501}, ValueError, "a key's name"),
        ({"key": 7}, TypeError, "a key is named by a str"),
        ({"unique": "forever"}, ValueError, "pass key= too"),
        ({"unique": "once", "key": "k"}, ValueError, "'alive', 'forever'"),
        ({"args": float("nan")}, TypeError, "not JSON"),
        ({"args": {1j: 2}}, TypeError, "not JSON"),
        ({"priority": 1.5}, ValueError, "priority="),
        ({"queue": "a\nb"}, ValueError, "a queue's name"),
        ({"connection": "postgresql://"}, TypeError, r"connection= takes a psycopg or SQLAlchemy"),
    ],
)
def test_what_cannot_be_stored_gets_its_own_clear_error_and_nothing_is_written(
    app: Scheduler, tables: Tables, change: dict[str, Any], kind: type[Exception], says: str
) -> None:
    good: dict[str, Any] = {"task": "work", "args": None}
    given = good | change
    with pytest.raises(kind, match=says):
        app.enqueue(given.pop("task"), given.pop("args"), **given)
    assert tables.jobs() == []


# -- in the caller's transaction


class OwnSession(Session):
    """A user's own class."""


def sync_doors(dsn: str) -> dict[str, Callable[[], Any]]:
    """Ways to hold a transaction: each opens one and yields (what to pass, commit, rollback)."""
    engine = sa.create_engine(sync_url(dsn), poolclass=NullPool)

    @contextmanager
    def raw(**options: Any) -> Iterator[Any]:
        with psycopg.connect(dsn, **options) as connection:
            yield connection, connection.commit, connection.rollback

    @contextmanager
    def nested() -> Iterator[Any]:
        with psycopg.connect(dsn, autocommit=True) as connection:
            block = connection.transaction()
            block.__enter__()
            yield (
                connection,
                lambda: block.__exit__(None, None, None),
                lambda: block.__exit__(psycopg.Rollback, psycopg.Rollback(block), None),
            )

    @contextmanager
    def core() -> Iterator[Any]:
        with engine.connect() as connection:
            yield connection, connection.commit, connection.rollback

    @contextmanager
    def orm(kind: type[Session]) -> Iterator[Any]:
        with kind(engine) as session:
            yield session, session.commit, session.rollback

    @contextmanager
    def scoped() -> Iterator[Any]:
        session = scoped_session(sessionmaker(engine))
        yield session, session.commit, session.rollback
        session.remove()

    return {
        "psycopg": raw,
        "psycopg, dict rows": lambda: raw(row_factory=dict_row),
        "psycopg, raw cursors": lambda: raw(cursor_factory=psycopg.RawCursor),
        "psycopg, client cursors": lambda: raw(cursor_factory=psycopg.ClientCursor),
        "psycopg, transaction()": nested,
        "Connection": core,
        "Session": lambda: orm(Session),
        "Session's subclass": lambda: orm(OwnSession),
        "scoped_session": scoped,
    }


def async_doors(dsn: str) -> dict[str, Callable[[], Any]]:
    @asynccontextmanager
    async def raw(**options: Any) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(dsn, **options) as connection:
            yield connection, connection.commit, connection.rollback

    @asynccontextmanager
    async def core() -> AsyncIterator[Any]:
        engine = create_async_engine(async_url(dsn), poolclass=NullPool)
        async with AsyncConnection(engine) as connection:
            yield connection, connection.commit, connection.rollback

    @asynccontextmanager
    async def orm() -> AsyncIterator[Any]:
        engine = create_async_engine(async_url(dsn), poolclass=NullPool)
        async with async_sessionmaker(engine)() as session:
            yield session, session.commit, session.rollback

    @asynccontextmanager
    async def scoped() -> AsyncIterator[Any]:
        engine = create_async_engine(async_url(dsn), poolclass=NullPool)
        session = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        yield session, session.commit, session.rollback
        await session.remove()

    return {
        "AsyncConnection of psycopg": raw,
        "AsyncConnection of psycopg, raw cursors": lambda: raw(cursor_factory=psycopg.AsyncRawCursor),
        "AsyncConnection": core,
        "AsyncSession": orm,
        "async_scoped_session": scoped,
    }


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("door", list(sync_doors("postgresql://nowhere/x")))
def test_the_job_exists_if_and_only_if_the_callers_transaction_commits(
    app: Scheduler, tables: Tables, door: str, end: str
) -> None:
    with sync_doors(tables.dsn)[door]() as (connection, commit, rollback):
        enqueued = app.enqueue("work", {"n": 1}, key="k", connection=connection)
        assert enqueued.created
        assert app.enqueue("work", key="k", connection=connection) == Enqueued(False, enqueued.id)
        assert tables.jobs() == [], "not before the commit"
        {"commit": commit, "rollback": rollback}[end]()
    assert [job["id"] for job in tables.jobs()] == ([enqueued.id] if end == "commit" else [])


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("door", list(async_doors("postgresql://nowhere/x")))
def test_the_job_exists_if_and_only_if_the_callers_async_transaction_commits(
    app: Scheduler, tables: Tables, door: str, end: str
) -> None:
    async def go() -> int:
        async with async_doors(tables.dsn)[door]() as (connection, commit, rollback):
            enqueued = await app.enqueue("work", {"n": 1}, connection=connection)
            assert enqueued.created
            assert tables.jobs() == []
            await {"commit": commit, "rollback": rollback}[end]()
            return int(enqueued.id)

    number = asyncio.run(go())
    assert [job["id"] for job in tables.jobs()] == ([number] if end == "commit" else [])


def test_a_savepoint_that_is_rolled_back_takes_its_job_along(app: Scheduler, tables: Tables) -> None:
    engine = sa.create_engine(sync_url(tables.dsn), poolclass=NullPool)
    with Session(engine) as session, session.begin():
        kept = app.enqueue("work", "kept", connection=session)
        with pytest.raises(RuntimeError), session.begin_nested():
            app.enqueue("work", "lost", connection=session)
            raise RuntimeError
    assert [job["id"] for job in tables.jobs()] == [kept.id]


def test_other_drivers_and_things_that_hold_no_transaction_are_refused_by_name(
    app: Scheduler, tables: Tables, tmp_path: Any
) -> None:
    import sqlite3

    sqlite = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    with sqlite.connect() as connection:
        with pytest.raises(TypeError, match=r"over psycopg, not over sqlite\+pysqlite"):
            app.enqueue("work", connection=connection)
    with Session(sqlite) as session, pytest.raises(TypeError, match=r"not over sqlite\+pysqlite"):
        app.enqueue("work", connection=session)
    with sqlite3.connect(":memory:") as raw, pytest.raises(TypeError, match=r"not sqlite3\.Connection"):
        app.enqueue("work", connection=raw)
    engine = sa.create_engine(sync_url(tables.dsn), poolclass=NullPool)
    for closed in (engine, create_async_engine(async_url(tables.dsn)), sessionmaker(engine)):
        with pytest.raises(TypeError, match=r"takes a connection or session, not .*; open one first"):
            app.enqueue("work", connection=closed)

    async def other_driver() -> None:
        other = create_async_engine(tables.dsn.replace("postgresql://", "postgresql+asyncpg://"), poolclass=NullPool)
        async with other.connect() as connection, AsyncSession(other) as session:
            for held in (connection, session):
                with pytest.raises(TypeError, match=r"over psycopg, not over postgresql\+asyncpg"):
                    await app.enqueue("work", connection=held)
                await held.rollback()

    asyncio.run(other_driver())
    assert tables.jobs() == []


def test_the_callers_own_failures_stay_failures(app: Scheduler, tables: Tables) -> None:
    with psycopg.connect(tables.dsn) as connection:
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("select from no_such_table")
        with pytest.raises(DatabaseError, match="enqueue: current transaction is aborted"):
            app.enqueue("work", connection=connection)
        connection.rollback()
    with pytest.raises(DatabaseError, match="closed"):
        app.enqueue("work", connection=connection)
    elsewhere = Scheduler(tables.dsn, schema="never_made")
    elsewhere.task("work")(print)
    with Session(sa.create_engine(sync_url(tables.dsn), poolclass=NullPool)) as session:
        with pytest.raises(NotMigratedError, match="fencing migrate"):
            elsewhere.enqueue("work", connection=session)
    assert tables.jobs() == []


def test_a_connection_that_commits_each_statement_by_itself_is_refused(app: Scheduler, tables: Tables) -> None:
    """The job would exist whatever becomes of the caller's other writes."""
    engine = sa.create_engine(sync_url(tables.dsn), isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with psycopg.connect(tables.dsn, autocommit=True) as connection, engine.connect() as through:
        for door in (connection, through, Session(through)):
            with pytest.raises(NotInTransactionError, match=r"autocommit|AUTOCOMMIT"):
                app.enqueue("work", connection=door)

    async def asynchronous() -> None:
        async with await psycopg.AsyncConnection.connect(tables.dsn, autocommit=True) as connection:
            with pytest.raises(NotInTransactionError):
                await app.enqueue("work", connection=connection)
            async with connection.transaction():
                assert (await app.enqueue("work", 1, connection=connection)).created
        beside = create_async_engine(async_url(tables.dsn), isolation_level="AUTOCOMMIT", poolclass=NullPool)
        async with beside.connect() as through:
            with pytest.raises(NotInTransactionError):
                await app.enqueue("work", connection=through)
        await beside.dispose()

    asyncio.run(asynchronous())
    with psycopg.connect(tables.dsn, autocommit=True) as connection, connection.pipeline():
        with connection.transaction():
            assert app.enqueue("work", 2, connection=connection).created
    assert [job["args"] for job in tables.jobs()] == [1, 2]


# -- two callers, one key


@pytest.mark.parametrize("unique", ["alive", "forever"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_key_in_another_transaction_is_waited_for_and_then_either_taken_or_free(
    app: Scheduler, tables: Tables, end: str, unique: Any
) -> None:
    answers: list[Enqueued] = []
    with psycopg.connect(tables.dsn) as first, psycopg.connect(tables.dsn) as second:
        winner = app.enqueue("work", key="k", unique=unique, connection=first)
        waiter = threading.Thread(
            target=lambda: answers.append(app.enqueue("work", key="k", unique=unique, connection=second))
        )
        waiter.start()
        wait_until_blocked(tables.dsn, second.info.backend_pid, by=first.info.backend_pid)
        getattr(first, end)()
        waiter.join(60)
        second.commit()
    (answer,) = answers
    if end == "commit":
        assert answer == Enqueued(False, winner.id)
    else:
        assert answer.created
    assert [job["id"] for job in tables.jobs()] == [answer.id]


def test_a_snapshot_that_cannot_see_the_keys_job_is_contention_and_never_a_second_job(
    app: Scheduler, tables: Tables
) -> None:
    with psycopg.connect(tables.dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select 1")
        app.enqueue("work", key="k")
        with pytest.raises(ContentionError):
            app.enqueue("work", key="k", connection=connection)
        connection.rollback()
    assert len(tables.jobs()) == 1


@pytest.mark.parametrize("unique", ["alive", "forever"])
def test_many_callers_with_one_key_make_one_job(app: Scheduler, tables: Tables, unique: Any) -> None:
    start, answers = threading.Barrier(6), []

    def call() -> None:
        with psycopg.connect(tables.dsn, autocommit=True) as connection:
            start.wait()
            for n in range(20):
                with connection.transaction():
                    answers.append(app.enqueue("work", key=f"k{n}", unique=unique, connection=connection))

    callers = [threading.Thread(target=call) for _ in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert len(answers) == 120
    assert sum(answer.created for answer in answers) == len(tables.jobs()) == 20
    assert {answer.id for answer in answers} == {job["id"] for job in tables.jobs()}


# -- many at once


@pytest.mark.parametrize("unique", ["alive", "forever"])
def test_many_with_keys_pass_over_those_that_are_taken(app: Scheduler, tables: Tables, unique: Any) -> None:
    taken = app.enqueue("work", 3, key="k3", unique=unique).id
    due = datetime(2030, 1, 1, tzinfo=UTC)
    made = app.enqueue_many(
        "work",
        [*range(2500), 7, 7],
        key=lambda n: f"k{n}",
        due_at=lambda n: due + timedelta(hours=n),
        exclusive=lambda n: f"x{n % 3}",
        unique=unique,
        priority=2,
        queue="bulk",
    )
    assert made == 2499
    jobs = {job["key"]: job for job in tables.jobs()}
    assert len(jobs) == 2500
    assert jobs["k3"]["id"] == taken
    job = jobs["k2400"]
    assert (job["args"], job["due_at"], job["exclusive"]) == (2400, due + timedelta(hours=2400), "x0")
    assert (job["priority"], job["queue"], job["max_attempts"], job["key_forever"]) == (
        2,
        "bulk",
        3,
        unique == "forever",
    )
    assert app.enqueue_many("work", range(2500), key=lambda n: f"k{n}", unique=unique) == 0


def test_keys_are_for_those_that_have_one(app: Scheduler, tables: Tables) -> None:
    assert app.enqueue_many("work", [1, 1, 2, 2], key=lambda n: "one" if n == 1 else None) == 3
    with pytest.raises(ValueError, match="gave None for it"):
        app.enqueue_many("work", [1, 2], key=lambda n: "x" if n == 1 else None, unique="forever")
    with pytest.raises(TypeError, match="key= takes a function"):
        app.enqueue_many("work", [1, 2], key="x")  # type: ignore[arg-type]
    assert len(tables.jobs()) == 3


@pytest.mark.parametrize("finish", ["commit", "rollback"])
def test_many_exist_if_and_only_if_the_callers_transaction_commits(app: Scheduler, tables: Tables, finish: str) -> None:
    with psycopg.connect(tables.dsn) as connection:
        assert app.enqueue_many("work", range(3), connection=connection) == 3
        assert tables.jobs() == []
        getattr(connection, finish)()
    engine = sa.create_engine(sync_url(tables.dsn), poolclass=NullPool)
    with Session(engine) as session:
        assert app.enqueue_many("work", range(3), connection=session) == 3
        getattr(session, finish)()

    async def asynchronous() -> None:
        beside = create_async_engine(async_url(tables.dsn), poolclass=NullPool)
        async with beside.connect() as connection:
            assert await app.enqueue_many("work", range(3), key=str, connection=connection) == 3
            await getattr(connection, finish)()
        await beside.dispose()

    asyncio.run(asynchronous())
    assert len(tables.jobs()) == (9 if finish == "commit" else 0)


def test_two_callers_with_the_same_many_keys_wait_for_each_other_in_turn(app: Scheduler, tables: Tables) -> None:
    """Whoever brings them in another order must not make a deadlock of it."""
    keys = [f"k{n}" for n in range(1500)]
    answers: list[int] = []
    with psycopg.connect(tables.dsn) as first, psycopg.connect(tables.dsn) as second:
        assert app.enqueue_many("work", keys[:1000], key=str, connection=first) == 1000
        waiter = threading.Thread(
            target=lambda: answers.append(app.enqueue_many("work", keys[::-1], key=str, connection=second))
        )
        waiter.start()
        wait_until_blocked(tables.dsn, second.info.backend_pid, by=first.info.backend_pid)
        assert app.enqueue_many("work", keys[1000:], key=str, connection=first) == 500
        first.commit()
        waiter.join(60)
    assert answers == [0]


def test_many_jobs_are_written_by_one_copy(app: Scheduler, tables: Tables) -> None:
    due = datetime(2030, 1, 1, tzinfo=UTC)
    assert app.enqueue_many("work", ({"n": n} for n in range(1000)), due_at=due, priority=2, queue="bulk") == 1000
    jobs = tables.jobs()
    assert [job["args"]["n"] for job in jobs] == list(range(1000))
    assert {(job["due_at"], job["priority"], job["queue"], job["max_attempts"]) for job in jobs} == {
        (due, 2, "bulk", 3)
    }
    assert app.enqueue_many("work", []) == 0


def test_one_bad_argument_among_many_writes_none(app: Scheduler, tables: Tables) -> None:
    with pytest.raises(TypeError, match="not JSON"):
        app.enqueue_many("work", [1, 2, object()])
    with pytest.raises(UnknownTaskError):
        app.enqueue_many("wrok", [1])
    with pytest.raises(ValueError, match="no time zone"):
        app.enqueue_many("work", [1], due_at=datetime(2026, 1, 1))
    assert tables.jobs() == []


# -- the hint


@pytest.mark.parametrize("unique", ["alive", "forever"])
def test_the_notification_leaves_with_the_commit_and_names_the_queue(
    app: Scheduler, tables: Tables, unique: Unique
) -> None:
    with psycopg.connect(tables.dsn, autocommit=True) as listener, psycopg.connect(tables.dsn) as caller:
        listener.execute(f'listen "{tables.schema}_due"'.encode())
        app.enqueue("work", queue="lost", connection=caller, key="1", unique=unique)
        caller.rollback()
        app.enqueue("work", queue="later", due_at=datetime(2099, 1, 1, tzinfo=UTC), key="2", unique=unique)
        app.enqueue("work", queue="here", connection=caller, key="3", unique=unique)
        caller.commit()
        (note,) = listener.notifies(timeout=60, stop_after=1)
        assert note.payload == "here"
