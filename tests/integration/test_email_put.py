"""`Outbox.put` in the caller's transaction: every kind of connection, the key, the fence, and what is refused."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, inspect, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from support.mariadb import MariaDB
from support.outbox import mail, outbox_engine, row, url_of
from support.waiting import eventually

import adapters.email
from adapters.email import Item, MemoryTransport, Outbox, Put, Relay, create_all, diagnose
from fencing import Lease, Token, fenced_write, history, raise_fence, read_mark
from fencing._lease import holding, lease_clock
from fencing.errors import (
    AmbiguousLeaseError,
    ContentionError,
    FencingError,
    KeyConflictError,
    LeaseLostError,
    NotInTransactionError,
    SchemaMissingError,
    StaleTokenError,
)
from fencing.testing import MemoryLeases

OUTBOX = Outbox(from_="sender@example.org")


@pytest.fixture(params=["postgresql", "sqlite"])
def engine(request: pytest.FixtureRequest, pg_dsn: str, tmp_path: Path) -> Iterator[Engine]:
    made = outbox_engine(request.param, pg_dsn, tmp_path)
    yield made
    made.dispose()


@pytest.fixture
def pg(pg_dsn: str, tmp_path: Path) -> Iterator[Engine]:
    made = outbox_engine("postgresql", pg_dsn, tmp_path)
    yield made
    made.dispose()


def count(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("select count(*) from fencing_outbox")).scalar_one())


def token(value: int) -> Token:
    return Token(value, "test", "l1")


def lease(value: int, name: str = "job") -> Lease:
    return Lease(token(value), name, f"holder-{value}", deadline=lease_clock() + 60)


# -- in the caller's transaction


def test_a_message_is_there_if_the_transaction_commits_and_not_if_it_does_not(engine: Engine) -> None:
    with engine.connect() as connection:
        assert OUTBOX.put(connection, mail(), key="k").created
        connection.rollback()
    assert count(engine) == 0
    with engine.begin() as connection:
        put = OUTBOX.put(connection, mail(), key="k")
    assert put == Put(True, row(engine, "k")["id"])
    assert count(engine) == 1


def test_a_session_carries_it_with_its_own_objects(engine: Engine) -> None:
    with Session(engine) as session:
        OUTBOX.put(session, mail(), key="k")
        session.rollback()
        assert count(engine) == 0
        assert OUTBOX.put(session, mail(), key="k").created
        session.commit()
    assert count(engine) == 1


def test_a_savepoint_takes_it_back(engine: Engine) -> None:
    with engine.begin() as connection:
        OUTBOX.put(connection, mail(1), key="k1")
        savepoint = connection.begin_nested()
        OUTBOX.put(connection, mail(2), key="k2")
        savepoint.rollback()
    assert count(engine) == 1


def test_async_connections_and_sessions(pg: Engine, tmp_path: Path) -> None:
    async def work(url: str) -> None:
        engine = create_async_engine(url)
        async with engine.begin() as connection:
            assert (await OUTBOX.put(connection, mail(), key="k")).created
            assert (await OUTBOX.put(connection, mail(), key="f", token=token(3))).created
        async with AsyncSession(engine) as session:
            assert not (await OUTBOX.put(session, mail(), key="k")).created
            with pytest.raises(StaleTokenError):
                await OUTBOX.put(session, mail(2), key="f", token=token(2))
            await session.rollback()
            assert (await OUTBOX.counts(session))["pending"] == 2
            assert [entry.key for entry in await OUTBOX.list(session)] == ["f", "k"]
        await engine.dispose()

    asyncio.run(work(url_of(pg)))
    sqlite = outbox_engine("sqlite", "", tmp_path)
    asyncio.run(work(url_of(sqlite).replace("sqlite://", "sqlite+aiosqlite://")))
    sqlite.dispose()


def test_psycopg_connections(pg: Engine, pg_dsn: str) -> None:
    with psycopg.connect(pg_dsn) as connection, connection.transaction():
        assert OUTBOX.put(connection, mail(), key="k").created
        assert OUTBOX.put(connection, mail(2), key="f", token=token(3)).created

    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(pg_dsn) as connection, connection.transaction():
            assert not (await OUTBOX.put(connection, mail(), key="k")).created
            assert (await OUTBOX.counts(connection))["pending"] == 2

    asyncio.run(work())
    assert count(pg) == 2


def test_times_are_kept_to_the_microsecond_and_default_to_the_databases_clock(engine: Engine) -> None:
    due = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    cest = due.astimezone(datetime.now().astimezone().tzinfo)
    with engine.begin() as connection:
        OUTBOX.put(connection, mail(1), key="later", due_at=cest, expires_at=due + timedelta(days=1), priority=-3)
        OUTBOX.put(connection, mail(2), key="now")
        later, now = sorted(OUTBOX.list(connection), key=lambda entry: entry.key)
    assert (later.due_at, later.expires_at, later.priority) == (due, due + timedelta(days=1), -3)
    assert now.due_at is not None
    assert abs((now.due_at - datetime.now(UTC)).total_seconds()) < 60
    assert now.expires_at is None


# -- the key


def test_the_same_key_and_content_is_a_no_op(engine: Engine) -> None:
    with engine.begin() as connection:
        first = OUTBOX.put(connection, mail(), key="k")
    before = row(engine, "k")
    with engine.begin() as connection:
        again = OUTBOX.put(connection, mail(), key="k", priority=5, due_at=datetime(2040, 1, 1, tzinfo=UTC))
    assert (again.created, again.id) == (False, first.id)
    assert row(engine, "k") == before


def test_other_content_under_a_key_is_a_conflict_and_the_transaction_goes_on(engine: Engine) -> None:
    with engine.begin() as connection:
        OUTBOX.put(connection, mail(1), key="k")
    before = row(engine, "k")
    with engine.begin() as connection:
        with pytest.raises(KeyConflictError) as caught:
            OUTBOX.put(connection, mail(1, text="Something else.\n"), key="k")
        assert (caught.value.key, caught.value.differs) == ("k", "text")
        OUTBOX.put(connection, mail(2), key="other")
    assert row(engine, "k") == before
    assert count(engine) == 2


def test_two_transactions_with_one_key_make_one_message(pg: Engine) -> None:
    first = pg.connect()
    OUTBOX.put(first, mail(), key="k")
    results: list[Put | FencingError] = []

    def second() -> None:
        with pg.begin() as connection:
            results.append(OUTBOX.put(connection, mail(), key="k"))

    thread = threading.Thread(target=second)
    thread.start()
    with pg.connect() as look:
        blocked = text("select count(*) from pg_locks where not granted")
        eventually(lambda: look.execute(blocked).scalar_one(), "the second put waits for the first")
    first.commit()
    first.close()
    thread.join()
    assert results == [Put(False, row(pg, "k")["id"])]


def test_under_repeatable_read_a_concurrent_put_is_contention(pg: Engine) -> None:
    reader = pg.connect().execution_options(isolation_level="REPEATABLE READ")
    reader.execute(text("select 1 from fencing_outbox"))
    with pg.begin() as connection:
        OUTBOX.put(connection, mail(), key="k")
    with pytest.raises(ContentionError):
        OUTBOX.put(reader, mail(), key="k")
    reader.close()
    assert count(pg) == 1


# -- the fence


def test_a_holder_that_was_overtaken_is_refused_by_the_outbox_itself(engine: Engine) -> None:
    with engine.begin() as connection, holding(lease(2)):
        OUTBOX.put(connection, mail(), key="other")
    with engine.begin() as connection, holding(lease(2)):
        OUTBOX.put(connection, mail(1), key="k")
    raise_fence(engine, "outbox/k2", token=lease(2))
    for key, number in (("k", 1), ("k2", 2)):
        with engine.connect() as connection, holding(lease(1)):
            with pytest.raises(StaleTokenError) as caught:
                OUTBOX.put(connection, mail(number), key=key)
            assert (caught.value.resource, caught.value.mark) == (f"outbox/{key}", token(2))
    assert count(engine) == 2
    with engine.connect() as connection:
        mark = read_mark(connection, "outbox/k")
    assert (mark.token, mark.holder) == (token(2), "holder-2")


def test_the_holder_is_in_the_audit(engine: Engine) -> None:
    with engine.begin() as connection, holding(lease(7)):
        OUTBOX.put(connection, mail(), key="k")
    with engine.connect() as connection:
        event = connection.execute(text("select kind, actor, token, outcome from fencing_outbox_event")).one()
    assert tuple(event) == ("put", "holder-7", "test/l1/7", "pending")


def test_a_put_inside_a_fenced_write_is_refused_with_it(engine: Engine) -> None:
    raise_fence(engine, "invoice/42", token=token(2))
    with engine.connect() as connection, holding(lease(1)):
        with pytest.raises(StaleTokenError), fenced_write(connection, "invoice/42"):
            OUTBOX.put(connection, mail(), key="k")
    assert count(engine) == 0


def test_outside_of_a_lease_the_key_alone_applies(engine: Engine) -> None:
    with engine.begin() as connection:
        OUTBOX.put(connection, mail(), key="k", token=token(9))
        assert not OUTBOX.put(connection, mail(), key="k").created
        OUTBOX.put(connection, mail(2), key="free")
    with engine.connect() as connection:
        assert read_mark(connection, "outbox/free") is None


def test_a_lease_in_a_job_is_ambiguous_until_a_token_is_named(engine: Engine) -> None:
    with engine.begin() as connection, holding(lease(1)), holding(lease(2, "inner")) as inner:
        with pytest.raises(AmbiguousLeaseError):
            OUTBOX.put(connection, mail(), key="k")
        assert OUTBOX.put(connection, mail(), key="k", token=inner).created


def test_a_lease_that_its_holder_released_writes_nothing(engine: Engine) -> None:
    old = lease(1)
    old.end("released")
    with engine.begin() as connection:
        with pytest.raises(LeaseLostError):
            OUTBOX.put(connection, mail(), key="k", token=old)
        with pytest.raises(TypeError, match="not text"):
            OUTBOX.put(connection, mail(), key="k", token="test/l1/1")
    assert count(engine) == 0


def test_each_put_is_in_the_event_record_once(engine: Engine) -> None:
    events: list[history.Event] = []
    forget = history.subscribe(events.append)
    try:
        with engine.begin() as connection:
            OUTBOX.put(connection, mail(), key="free")
            OUTBOX.put(connection, mail(), key="fenced", token=token(2))
            with pytest.raises(StaleTokenError):
                OUTBOX.put(connection, mail(), key="fenced", token=token(1))
            with pytest.raises(KeyConflictError):
                OUTBOX.put(connection, mail(2), key="free")
    finally:
        forget()
    assert [(e.kind, e.outcome, e.resources) for e in events] == [
        ("put", "accepted", ("outbox/free",)),
        ("write", "accepted", ("outbox/fenced",)),
        ("write", "refused", ("outbox/fenced",)),
        ("put", "failed", ("outbox/free",)),
    ]


# -- what is refused, and changes nothing


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"key": ""}, ValueError, "key is empty"),
        ({"key": 42}, TypeError, "key"),
        ({"key": "ä" * 253}, ValueError, "506 bytes"),
        ({"key": "a\nb"}, ValueError, "key"),
        ({"key": "k", "due_at": datetime(2030, 1, 1)}, ValueError, "due_at has no time zone"),
        ({"key": "k", "expires_at": datetime(2030, 1, 1)}, ValueError, "expires_at has no time zone"),
        ({"key": "k", "due_at": "tomorrow"}, TypeError, "due_at"),
        # In another time zone these have no year that Python knows: one such row would stop whoever reads it.
        ({"key": "k", "due_at": datetime.min.replace(tzinfo=UTC)}, ValueError, "due_at.*now"),
        ({"key": "k", "due_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=9)))}, ValueError, "due_at"),
        ({"key": "k", "expires_at": datetime.max.replace(tzinfo=UTC)}, ValueError, "expires_at.*no end"),
        (
            {
                "key": "k",
                "due_at": datetime(2030, 1, 2, tzinfo=UTC),
                "expires_at": datetime(2030, 1, 1, tzinfo=UTC),
            },
            ValueError,
            "expires_at",
        ),
        ({"key": "k", "priority": 1.5}, ValueError, "priority"),
        ({"key": "k", "priority": 40_000}, ValueError, "priority"),
        ({"key": "k", "policy": "twice"}, ValueError, "'twice'.*'hold', 'resend'"),
        ({"key": "k", "tenant": ""}, ValueError, "tenant is empty"),
        ({"key": "k", "order_key": "a\nb"}, ValueError, "order_key holds the control"),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_written(
    engine: Engine, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with engine.begin() as connection:
        with pytest.raises(error, match=words):
            OUTBOX.put(connection, mail(), **options)
        with pytest.raises(ValueError, match="subject"):
            OUTBOX.put(connection, mail(subject="a\nb"), key="k")
    assert count(engine) == 0


def test_the_longest_key_is_taken_fenced_or_not(engine: Engine) -> None:
    with engine.begin() as connection:
        assert OUTBOX.put(connection, mail(), key="k" * 505, token=token(1)).created
        assert OUTBOX.put(connection, mail(), key="j" * 505).created


def test_targets_that_could_not_hold_it_are_refused(pg: Engine, pg_dsn: str) -> None:
    with pytest.raises(TypeError, match="connection or session"):
        OUTBOX.put(pg, mail(), key="k")
    with pytest.raises(TypeError):
        OUTBOX.put("postgresql://", mail(), key="k")
    with pytest.raises(NotInTransactionError):
        OUTBOX.put(pg.connect().execution_options(isolation_level="AUTOCOMMIT"), mail(), key="k")
    with psycopg.connect(pg_dsn, autocommit=True) as connection, pytest.raises(NotInTransactionError):
        OUTBOX.put(connection, mail(), key="k")
    assert count(pg) == 0


def test_a_database_in_which_it_cannot_stand_is_told_and_left_alone(mariadb: MariaDB, pg_names: Iterator[str]) -> None:
    name = next(pg_names)
    engine = create_engine(mariadb.create_database(name))
    told = "PostgreSQL or SQLite, not in mysql"
    with pytest.raises(TypeError, match=told):
        create_all(engine)
    with engine.begin() as tx:
        assert not inspect(tx).get_table_names()
        for call in (
            lambda: OUTBOX.put(tx, mail(), key="k"),
            lambda: OUTBOX.put_many(tx, [Item(message=mail(), key="k")]),
            lambda: OUTBOX.stats(tx),
            lambda: OUTBOX.cancel(tx, "k", actor="a", reason="r"),
            lambda: Relay(engine, MemoryTransport(), leases=MemoryLeases().source("test")),
        ):
            with pytest.raises(TypeError, match=told):
                call()
        assert [finding.severity for finding in diagnose(tx)] == ["broken"]
    engine.dispose()
    mariadb.drop_database(name)


def test_missing_tables_are_named_with_the_remedy(pg_dsn: str) -> None:
    engine = create_engine(pg_dsn.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection, pytest.raises(SchemaMissingError, match=r"adapters\.email\.create_all"):
        OUTBOX.put(connection, mail(), key="k")
    assert [finding.severity for finding in diagnose(engine)] == ["broken"]
    engine.dispose()


def test_the_tables_can_be_made_in_every_way_and_by_many_at_once(pg_dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(pg_dsn) as connection:
        adapters.email.create_all(connection)
    engine = create_engine(pg_dsn.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session, session.begin():
        adapters.email.create_all(session)
    with psycopg.connect(pg_dsn) as connection:
        connection.execute(adapters.email.ddl("postgresql"))  # all of it is there already
    sqlite = create_engine(f"sqlite:///{tmp_path}/made.db")
    with sqlite.begin() as made:
        for statement in adapters.email.ddl("sqlite").split(";\n"):
            if statement:
                made.execute(text(statement))
        adapters.email.create_all(made)
    with pytest.raises(ValueError, match="mysql"):
        adapters.email.ddl("mysql")
    with pytest.raises(TypeError, match="Engine"):
        adapters.email.create_all(pg_dsn)
    engine.dispose()
    sqlite.dispose()


def test_list_and_counts_show_what_is_there(engine: Engine) -> None:
    with engine.begin() as connection:
        for number in range(3):
            OUTBOX.put(connection, mail(number), key=f"k{number}")
        connection.execute(text("update fencing_outbox set state = 'uncertain' where key = 'k1'"))
    with engine.connect() as connection:
        assert OUTBOX.counts(connection)["pending"] == 2
        assert OUTBOX.counts(connection)["sent"] == 0
        [entry] = OUTBOX.list(connection, state="uncertain")
        assert (entry.key, entry.state, entry.attempts) == ("k1", "uncertain", 0)
        assert [entry.key for entry in OUTBOX.list(connection, limit=2)] == ["k2", "k1"]
        with pytest.raises(ValueError, match="lost"):
            OUTBOX.list(connection, state="lost")  # type: ignore[arg-type]
    findings = {finding.check: finding.severity for finding in diagnose(engine)}
    assert findings["outbox.uncertain"] == "warning"
