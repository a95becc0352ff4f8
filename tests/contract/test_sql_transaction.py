"""The fence lives in the caller's transaction: where there is none it refuses; it never commits."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from support import sql_doors
from support.sql_doors import PUT, do, ledger, marks, token

from adapters._tx import Statement, _psycopg, run, transaction_of
from adapters.sql import SqlGuard
from fencing import errors, fenced_write, raise_fence, read_mark


@pytest.fixture
def lite(tmp_path: Path) -> str:
    address = f"sqlite:///{tmp_path / 'bank.db'}"
    sql_doors.prepare(address)
    return address


@pytest.fixture(params=["pg", "lite"])
def address(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def nothing_written(address: str) -> bool:
    return ledger(address) == {} and marks(address) == {}


class Base(DeclarativeBase):
    pass


class Entry(Base):
    __tablename__ = "ledger"
    id: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[int] = mapped_column(sa.BigInteger)


# Where nothing would hold the fence


def autocommits(address: str) -> Iterator[sa.Connection]:
    """Each way to put SQLAlchemy into AUTOCOMMIT."""
    level: Any = "AUTOCOMMIT"
    yield sql_doors.engine(address, isolation_level=level).connect()
    yield sql_doors.engine(address, execution_options={"isolation_level": level}).connect()
    yield sql_doors.engine(address).execution_options(isolation_level=level).connect()
    yield sql_doors.engine(address).connect().execution_options(isolation_level=level)
    if address.startswith("postgresql"):
        behind = sql_doors.engine(address).connect()
        behind.connection.driver_connection.autocommit = True  # type: ignore[union-attr]
        yield behind


def test_autocommit_is_refused_however_it_was_set(address: str) -> None:
    for connection in autocommits(address):
        with connection:
            for target in (connection, Session(connection)):
                with pytest.raises(errors.NotInTransactionError, match="AUTOCOMMIT"):
                    with fenced_write(target, "a", token=token(5)):
                        pytest.fail("the block must not run")
                with pytest.raises(errors.NotInTransactionError):
                    fenced_write(
                        target, "a", effect=lambda handle: pytest.fail("must not run"), token=token(5), once="k"
                    )
                with pytest.raises(errors.NotInTransactionError):
                    raise_fence(target, "a", "b", token=token(5))
                assert read_mark(target, "a") is None  # a look needs no transaction
    bind = sql_doors.engine(address, isolation_level="AUTOCOMMIT")
    for own in (bind, sessionmaker(bind)):
        with pytest.raises(errors.NotInTransactionError):
            fenced_write(own, "a", effect=lambda handle: pytest.fail("must not run"), token=token(5))
    assert nothing_written(address)


@pytest.mark.parametrize("autocommit", [True, False])
def test_psycopg_outside_a_transaction_block_is_refused(pg: str, autocommit: bool) -> None:
    with psycopg.connect(pg, autocommit=autocommit) as connection:
        for used in (False, True):
            if used:
                connection.execute("select 1")  # without autocommit this begins a transaction, which commit() would end
            with pytest.raises(errors.NotInTransactionError, match="transaction"):
                with fenced_write(connection, "a", token=token(5)):
                    pytest.fail("the block must not run")
        assert read_mark(connection, "a") is None
        connection.rollback()
        with connection.transaction(), fenced_write(connection, "a", token=token(5)):
            pass
        with pytest.raises(errors.NotInTransactionError):
            raise_fence(connection, "a", token=token(6))
    assert marks(pg) == {"a": "shop/line-a/5"}


def test_async_psycopg_outside_a_transaction_block_is_refused(pg: str) -> None:
    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(pg) as connection:
            with pytest.raises(errors.NotInTransactionError):
                async with fenced_write(connection, "a", token=token(5)):
                    pytest.fail("the block must not run")
            with pytest.raises(errors.NotInTransactionError):
                await raise_fence(connection, "a", token=token(5))

    asyncio.run(work())
    assert nothing_written(pg)


def test_a_closed_connection_is_refused(address: str) -> None:
    connection = sql_doors.engine(address).connect()
    connection.close()
    with pytest.raises(errors.NotInTransactionError, match="closed"):
        raise_fence(connection, "a", token=token(5))
    if address.startswith("postgresql"):
        bare = psycopg.connect(address)
        bare.close()
        with pytest.raises(errors.NotInTransactionError, match="closed"):
            raise_fence(bare, "a", token=token(5))


def test_an_async_connection_that_was_not_started_is_refused(address: str) -> None:
    bind = create_async_engine(sql_doors.async_url(address))
    with pytest.raises(errors.NotInTransactionError, match="started"):
        raise_fence(bind.connect(), "a", token=token(5))


def test_a_transaction_that_has_failed_is_refused(pg: str) -> None:
    with sql_doors.engine(pg).connect() as connection:
        with pytest.raises(sa.exc.ProgrammingError):
            connection.execute(sa.text("select nonsense"))
        with pytest.raises(errors.NotInTransactionError, match="failed"):
            raise_fence(connection, "a", token=token(5))
    with psycopg.connect(pg) as bare, bare.transaction(force_rollback=True):
        with pytest.raises(psycopg.errors.UndefinedColumn):
            bare.execute("select nonsense")
        with pytest.raises(errors.NotInTransactionError, match="failed"):
            raise_fence(bare, "a", token=token(5))


def test_autobegin_counts_as_in_a_transaction(address: str) -> None:
    with sql_doors.engine(address).connect() as connection:
        with fenced_write(connection, "a", token=token(5)):
            do(connection, PUT, id="a", owner=5)
        assert connection.in_transaction()
        connection.rollback()
        assert nothing_written(address)
        with fenced_write(connection, "a", token=token(5)):
            do(connection, PUT, id="a", owner=5)
        connection.commit()
    assert (ledger(address), marks(address)) == ({"a": 5}, {"a": "shop/line-a/5"})


@pytest.mark.parametrize("recipe", ["driver autocommit", "begin event"])
def test_sqlite_whose_driver_begins_nothing_is_fenced_all_the_same(lite: str, recipe: str) -> None:
    bind = sql_doors.engine(lite)

    @sa.event.listens_for(bind, "connect")
    def connected(connection: Any, record: object) -> None:
        connection.isolation_level = None

    if recipe == "begin event":
        sa.event.listen(bind, "begin", lambda connection: connection.exec_driver_sql("begin"))
    with bind.connect() as connection:
        with fenced_write(connection, "a", token=token(5)):
            do(connection, PUT, id="a", owner=5)
        connection.rollback()
        assert nothing_written(lite)
        with fenced_write(connection, "a", token=token(5)):
            do(connection, PUT, id="a", owner=5)
        connection.commit()
    assert (ledger(lite), marks(lite)) == ({"a": 5}, {"a": "shop/line-a/5"})


# Where it ends


Ending = Callable[[Any], object]
ENDINGS: dict[str, Ending] = {
    "commit": lambda target: target.commit(),
    "rollback": lambda target: target.rollback(),
    "commit and go on": lambda target: (target.commit(), target.execute(sa.text("select 1"))),
    "close": lambda target: target.close(),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_transaction_that_ends_inside_the_block_ends_the_fence(address: str, ending: str) -> None:
    bind = sql_doors.engine(address)
    for make in (bind.connect, lambda: Session(bind), lambda: scoped_session(sessionmaker(bind))):
        target = make()
        with pytest.raises(errors.NotInTransactionError, match="inside"):
            with fenced_write(target, "a", token=token(5)):
                ENDINGS[ending](target)
        target.close()
        target = make()
        with pytest.raises(errors.NotInTransactionError, match="inside"):
            fenced_write(target, "a", effect=ENDINGS[ending], token=token(5))
        target.close()


def test_a_transaction_that_ends_inside_an_effect_of_its_own_is_told(address: str) -> None:
    bind = sql_doors.engine(address)
    for own in (bind, sessionmaker(bind)):
        for ending in (ENDINGS["commit"], ENDINGS["rollback"]):
            with pytest.raises(errors.NotInTransactionError, match="inside"):
                fenced_write(own, "a", effect=ending, token=token(5))


def test_a_commit_sent_as_text_ends_the_fence(pg: str) -> None:
    with psycopg.connect(pg, autocommit=True) as bare:
        with pytest.raises(errors.NotInTransactionError, match="inside"):
            with bare.transaction(), fenced_write(bare, "a", token=token(5)):
                bare.execute("commit")
    with sql_doors.engine(pg).connect() as connection:
        with pytest.raises(errors.NotInTransactionError, match="inside"):
            with fenced_write(connection, "a", token=token(6)):
                connection.exec_driver_sql("commit")


def test_an_async_commit_inside_the_block_ends_the_fence(address: str) -> None:
    async def work() -> None:
        bind = create_async_engine(sql_doors.async_url(address))
        async with bind.connect() as connection:
            with pytest.raises(errors.NotInTransactionError, match="inside"):
                async with fenced_write(connection, "a", token=token(5)):
                    await connection.commit()
        async with AsyncSession(bind) as session:
            with pytest.raises(errors.NotInTransactionError, match="inside"):
                async with fenced_write(session, "a", token=token(5)):
                    await session.rollback()
        await bind.dispose()

    asyncio.run(work())


def test_a_savepoint_that_is_rolled_back_under_the_fence_ends_it(address: str) -> None:
    with sql_doors.engine(address).begin() as connection:
        savepoint = connection.begin_nested()
        with pytest.raises(errors.NotInTransactionError, match="inside"):
            with fenced_write(connection, "a", token=token(5)):
                savepoint.rollback()
    assert marks(address) == {}
    with Session(sql_doors.engine(address)) as session, session.begin():
        nested = session.begin_nested()
        with pytest.raises(errors.NotInTransactionError, match="inside"):
            with fenced_write(session, "a", token=token(5)):
                nested.rollback()


def test_a_psycopg_savepoint_that_is_rolled_back_under_the_fence_ends_it(pg: str) -> None:
    with psycopg.connect(pg, autocommit=True) as bare, bare.transaction():
        savepoint = bare.transaction()
        savepoint.__enter__()
        with pytest.raises(errors.NotInTransactionError, match="inside"):
            with fenced_write(bare, "a", token=token(5)):
                savepoint.__exit__(psycopg.Rollback, psycopg.Rollback(), None)
    assert marks(pg) == {}


def test_savepoints_inside_the_block_are_the_callers_own_business(address: str) -> None:
    with sql_doors.engine(address).begin() as connection:
        with fenced_write(connection, "a", token=token(5)):
            do(connection, PUT, id="kept", owner=5)
            undone = connection.begin_nested()
            do(connection, PUT, id="undone", owner=5)
            undone.rollback()
            with connection.begin_nested():
                do(connection, PUT, id="kept too", owner=5)
    assert ledger(address) == {"kept": 5, "kept too": 5}


def test_a_statement_that_fails_inside_the_block_and_is_caught_does_not_pass_for_success(pg: str) -> None:
    # PostgreSQL answers such a transaction's COMMIT with a rollback and no error.
    with psycopg.connect(pg, autocommit=True) as bare:
        with pytest.raises(errors.NotInTransactionError, match="failed"):
            with bare.transaction(), fenced_write(bare, "a", token=token(5)):
                with pytest.raises(psycopg.errors.UndefinedColumn):
                    bare.execute("select nonsense")
    with sql_doors.engine(pg).connect() as connection:
        with pytest.raises(errors.NotInTransactionError, match="failed"):
            with fenced_write(connection, "a", token=token(5)):
                with pytest.raises(sa.exc.ProgrammingError):
                    connection.execute(sa.text("select nonsense"))


class Boom(Exception):
    pass


@pytest.mark.parametrize(
    "error", [Boom(), sa.exc.OperationalError("x", {}, Exception()), psycopg.Rollback(), StopIteration()]
)
def test_an_error_of_the_callers_passes_unchanged(address: str, error: Exception) -> None:
    def fail(handle: Any) -> None:
        raise error

    bind = sql_doors.engine(address)
    with bind.connect() as connection:
        if not isinstance(error, StopIteration):  # which no generator-based block can pass on
            with pytest.raises(type(error)) as caught, fenced_write(connection, "a", token=token(5)):
                raise error
            assert caught.value is error
            for extra in ({}, {"once": "k"}):
                with pytest.raises(type(error)) as caught:
                    fenced_write(connection, "a", effect=fail, token=token(5), **extra)
                assert caught.value is error
    with pytest.raises((type(error), RuntimeError)):
        fenced_write(bind, "a", effect=fail, token=token(5))
    assert nothing_written(address)


def test_a_rollback_of_psycopg_inside_an_effect_is_meant_for_the_callers_block(pg: str) -> None:
    def leave(handle: Any) -> None:
        raise psycopg.Rollback

    with psycopg.connect(pg, autocommit=True) as bare:
        with bare.transaction():
            fenced_write(bare, "a", effect=leave, token=token(5), once="k")
            pytest.fail("the rollback was swallowed")
    assert nothing_written(pg)

    async def work() -> None:
        async def leave_async(handle: Any) -> None:
            raise psycopg.Rollback

        async with await psycopg.AsyncConnection.connect(pg, autocommit=True) as bare:
            async with bare.transaction():
                await fenced_write(bare, "a", effect=leave_async, token=token(5), once="k")
                pytest.fail("the rollback was swallowed")

    asyncio.run(work())
    assert nothing_written(pg)


# What it leaves alone


def setting(handle: Any, name: str) -> str:
    return str(do(handle, f"show {name}").fetchone()[0])


CASES = ["accepted", "several", "refused", "several refused", "once", "once again", "reject"]


@pytest.mark.parametrize("own", ["0", "150ms", "1min", "2d"])
@pytest.mark.parametrize("case", CASES)
def test_the_callers_lock_timeout_is_as_before(pg: str, own: str, case: str) -> None:
    raise_fence(sql_doors.engine(pg), "old", token=token(9))
    fenced_write(sql_doors.engine(pg), "a", effect=lambda handle: 1, token=token(5), once="applied")
    with psycopg.connect(pg, autocommit=True) as bare:
        bare.execute(f"set lock_timeout = '{own}'")
        with bare.transaction():
            # An earlier guard's notes must not be taken for the caller's newer setting.
            raise_fence(bare, "a", token=token(5))
            bare.execute(f"set local lock_timeout = '{own}'")
            refusals = {"refused": ("old",), "several refused": ("a", "old"), "reject": ("unknown", "nowhere")}
            if case in refusals:
                guard = SqlGuard(on_missing="reject" if case == "reject" else "create")
                with pytest.raises(errors.FenceRejected):
                    with fenced_write(guard.on(bare), *refusals[case], token=token(5)):
                        pass
            elif case.startswith("once"):
                key = "applied" if case == "once again" else "new"
                fenced_write(bare, "a", effect=lambda handle: setting(handle, "lock_timeout"), token=token(5), once=key)
            else:
                names = ("a", "b", "c") if case == "several" else ("a",)
                with fenced_write(bare, *names, token=token(5)) as handle:
                    assert setting(handle, "lock_timeout") == own
            assert setting(bare, "lock_timeout") == own
        assert setting(bare, "lock_timeout") == own


def test_a_timeout_of_none_leaves_the_setting_alone(pg: str) -> None:
    guard = SqlGuard(lock_timeout=None)
    with sql_doors.engine(pg).begin() as connection:
        for names in (("a",), ("a", "b")):
            with fenced_write(guard.on(connection), *names, token=token(5)):
                assert setting(connection, "lock_timeout") == "0"
        with pytest.raises(errors.StaleTokenError):
            raise_fence(guard.on(connection), "a", token=token(4))
        fenced_write(guard.on(connection), "a", effect=lambda handle: 1, token=token(5), once="k")
        fenced_write(guard.on(connection), "a", effect=lambda handle: 1, token=token(5), once="k")
        with pytest.raises(errors.MarkMissingError):
            fenced_write(
                SqlGuard(lock_timeout=None, on_missing="reject").on(connection),
                "z",
                effect=lambda handle: 1,
                token=token(5),
            )


@pytest.mark.parametrize("own", [0, 100, 60_000])
def test_the_callers_busy_timeout_is_as_before(lite: str, own: int) -> None:
    raise_fence(sql_doors.engine(lite), "old", token=token(9))
    with sql_doors.engine(lite).connect() as connection:
        connection.exec_driver_sql(f"pragma busy_timeout = {own}")
        with fenced_write(connection, "a", token=token(5)):
            assert connection.exec_driver_sql("pragma busy_timeout").scalar() == own
        with pytest.raises(errors.StaleTokenError):
            raise_fence(connection, "b", "old", token=token(5))
        fenced_write(connection, "a", effect=lambda handle: 1, token=token(5), once="k")
        assert connection.exec_driver_sql("pragma busy_timeout").scalar() == own


def test_the_callers_factories_and_stream_options_do_not_matter(pg: str) -> None:
    for cursor_factory in (psycopg.ClientCursor, psycopg.RawCursor):
        with psycopg.connect(pg, row_factory=dict_row, cursor_factory=cursor_factory) as bare:  # type: ignore[arg-type]
            with bare.transaction(), fenced_write(bare, "a", "b", token=token(5)):
                pass
            with pytest.raises(errors.StaleTokenError), bare.transaction():
                raise_fence(bare, "a", token=token(4))
    for options in ({"stream_results": True}, {"yield_per": 1}):
        with sql_doors.engine(pg).connect().execution_options(**options) as connection:  # type: ignore[call-overload]
            with fenced_write(connection, "a", "b", token=token(5)):
                pass
            connection.commit()


@pytest.fixture(params=["in one packet", "as psycopg does"])
def pipelined(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How a guard in a pipeline sends and waits: as it does, and where psycopg's private names are gone."""
    monkeypatch.setattr(_psycopg, "_HAS_NAMES", request.param == "in one packet" and _psycopg._HAS_NAMES)


@pytest.mark.usefixtures("pipelined")
def test_a_pipeline_is_fenced_and_its_own_errors_stay_its_own(pg: str) -> None:
    with psycopg.connect(pg, autocommit=True) as bare:
        with bare.pipeline(), bare.transaction():
            bare.execute("select 1")
            with fenced_write(bare, "a", token=token(5)):
                do(bare, PUT, id="a", owner=5)
        assert (ledger(pg), marks(pg)) == ({"a": 5}, {"a": "shop/line-a/5"})
        with pytest.raises(errors.StaleTokenError):
            with bare.pipeline(), bare.transaction():
                with fenced_write(bare, "a", token=token(4)):
                    do(bare, PUT, id="a", owner=4)
        with pytest.raises(psycopg.errors.UndefinedTable):
            with bare.pipeline(), bare.transaction():
                bare.execute("select * from the_callers_mistake")
                with fenced_write(bare, "a", token=token(6)):
                    pass
    assert (ledger(pg), marks(pg)) == ({"a": 5}, {"a": "shop/line-a/5"})


@pytest.mark.usefixtures("pipelined")
def test_in_a_pipeline_contention_leaves_the_transaction_around_it_usable(pg: str) -> None:
    hasty = SqlGuard(lock_timeout=0.05)
    with psycopg.connect(pg, autocommit=True) as first, psycopg.connect(pg, autocommit=True) as bare:
        with first.transaction():
            raise_fence(first, "a", token=token(5))
            with bare.pipeline(), bare.transaction():
                with pytest.raises(errors.ContentionError), bare.transaction():
                    with fenced_write(hasty.on(bare), "a", token=token(6)):
                        pytest.fail("the block began")
                with pytest.raises(errors.ContentionError):  # several are in a savepoint of the guard's own
                    raise_fence(hasty.on(bare), "a", "b", token=token(6))
                do(bare, PUT, id="a", owner=7)
    assert (ledger(pg), marks(pg)) == ({"a": 7}, {"a": "shop/line-a/5"})


@pytest.mark.usefixtures("pipelined")
def test_an_async_pipeline_is_fenced_too(pg: str) -> None:
    async def work(value: int, *before: str) -> None:
        async with await psycopg.AsyncConnection.connect(pg, autocommit=True) as bare:
            async with bare.pipeline(), bare.transaction():
                for statement in before:
                    await bare.execute(statement)
                async with fenced_write(bare, "a", token=token(value)):
                    await do(bare, PUT, id="a", owner=value)

    asyncio.run(work(5))
    with pytest.raises(errors.StaleTokenError):
        asyncio.run(work(4))
    with pytest.raises(psycopg.errors.UndefinedTable):
        asyncio.run(work(6, "select * from the_callers_mistake"))
    assert (ledger(pg), marks(pg)) == ({"a": 5}, {"a": "shop/line-a/5"})


def test_a_mark_that_something_else_keeps_from_being_written_is_no_permission(pg: str) -> None:
    """A trigger (or a row-level policy) swallows the mark: the law would accept, the evidence is missing."""
    with psycopg.connect(pg, autocommit=True) as bare:
        bare.execute("create function swallow() returns trigger language plpgsql as 'begin return null; end'")
        bare.execute("create trigger swallow before insert on fencing_mark for each row execute function swallow()")
    try:
        for names in (("a",), ("a", "b")):
            with sql_doors.engine(pg).begin() as connection:
                with pytest.raises(errors.ContentionError, match="came or went"):
                    with fenced_write(connection, *names, token=token(5)):
                        pytest.fail("the block must not run")
    finally:
        with psycopg.connect(pg, autocommit=True) as bare:
            bare.execute("drop function swallow cascade")
    assert nothing_written(pg)


def test_sqlite_a_plan_that_reads_first_holds_the_write_lock_from_the_start(lite: str) -> None:
    """What reads, decides and then writes would fail at the write if another one had written meanwhile."""

    def plan() -> Any:
        yield Statement("select 1")

    with sql_doors.engine(lite).connect() as connection:
        run(plan(), transaction_of(connection))  # type: ignore[arg-type]
        with pytest.raises(errors.ContentionError):
            raise_fence(SqlGuard(lock_timeout=0.01).on(sql_doors.engine(lite)), "a", token=token(5))
        connection.rollback()
        run(plan(), transaction_of(connection, read_only=True))  # type: ignore[arg-type]
        raise_fence(SqlGuard(lock_timeout=0.01).on(sql_doors.engine(lite)), "a", token=token(5))


# Sessions


def test_leaving_the_block_flushes_a_session_and_never_commits(address: str) -> None:
    bind = sql_doors.engine(address)
    statements: list[str] = []
    sa.event.listen(bind, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with Session(bind) as session:
        with fenced_write(session, "a", token=token(5)) as handle:
            assert handle is session
            session.add(Entry(id="a", owner=5))
        assert any("INSERT INTO ledger" in statement for statement in statements)
        assert nothing_written(address)
        session.commit()
    assert ledger(address) == {"a": 5}
    with Session(bind) as session:
        fenced_write(session, "a", effect=lambda handle: handle.add(Entry(id="b", owner=5)), token=token(5))
        assert not session.new
        session.rollback()
    assert ledger(address) == {"a": 5}


def test_an_async_session_is_flushed_too(address: str) -> None:
    async def work() -> None:
        bind = create_async_engine(sql_doors.async_url(address))
        async with AsyncSession(bind) as session:
            async with fenced_write(session, "a", token=token(5)) as handle:
                assert handle is session
                session.add(Entry(id="a", owner=5))
            assert not session.new
            await session.commit()
        await bind.dispose()

    asyncio.run(work())
    assert ledger(address) == {"a": 5}


def test_a_refused_session_can_be_used_on(address: str) -> None:
    bind = sql_doors.engine(address)
    raise_fence(bind, "a", token=token(9))
    with Session(bind) as session, session.begin():
        with pytest.raises(errors.StaleTokenError), fenced_write(session, "a", token=token(5)):
            session.add(Entry(id="a", owner=5))
        session.add(Entry(id="b", owner=0))
    assert ledger(address) == {"b": 0}


def test_a_failed_once_effect_is_forgotten_by_the_session_too(address: str) -> None:
    def fail(session: Session) -> None:
        session.add(Entry(id="a", owner=5))
        session.flush()
        raise Boom

    with Session(sql_doors.engine(address)) as session, session.begin():
        with pytest.raises(Boom):
            fenced_write(session, "a", effect=fail, token=token(5), once="k")
        assert session.get(Entry, "a") is None
        session.add(Entry(id="a", owner=1))
    assert ledger(address) == {"a": 1}


def test_a_session_with_several_binds_must_be_told_which(pg: str, lite: str) -> None:
    one, other = sql_doors.engine(pg), sql_doors.engine(lite)
    routed = type("Routed", (Session,), {"get_bind": lambda self, *args, **kwargs: one})(one)
    for session in (Session(one, binds={Entry: other}), routed, Session()):
        with pytest.raises(TypeError, match="bind"):
            raise_fence(session, "a", token=token(5))
        session.close()
    with pytest.raises(TypeError, match="none of the session's binds"):
        SqlGuard(bind=other).on(Session(one))
    with Session(one, binds={Entry: other}) as session, session.begin():
        with fenced_write(SqlGuard(bind=other).on(session), "a", token=token(5)):
            session.add(Entry(id="a", owner=5))
    assert (marks(pg), marks(lite), ledger(lite)) == ({}, {"a": "shop/line-a/5"}, {"a": 5})
    with Session(one, binds={Entry: one}) as session, session.begin():  # all the same
        raise_fence(session, "a", token=token(5))
    assert marks(pg) == {"a": "shop/line-a/5"}


def test_a_session_joined_to_an_outer_transaction_is_fenced_by_it(pg: str) -> None:
    # Not on SQLite: its driver sends a SAVEPOINT without a BEGIN, and the release of the outermost savepoint commits.
    with sql_doors.engine(pg).begin() as outer:
        with Session(outer, join_transaction_mode="create_savepoint") as session:
            with fenced_write(session, "a", token=token(5)):
                session.add(Entry(id="a", owner=5))
            session.commit()
        outer.rollback()
    assert nothing_written(pg)


# Wrong use


def test_a_guard_may_outlive_a_transaction(address: str) -> None:
    with sql_doors.engine(address).connect() as connection:
        guard = SqlGuard().on(connection)
        for value in (5, 6):
            with fenced_write(guard, "a", token=token(value)):
                do(connection, PUT, id="a", owner=value)
            connection.commit()
        with pytest.raises(errors.StaleTokenError), fenced_write(guard, "a", token=token(5)):
            pass
    assert ledger(address) == {"a": 6}


def test_the_guard_of_a_scoped_session_fences_the_session_of_the_moment(address: str) -> None:
    scoped = scoped_session(sessionmaker(sql_doors.engine(address)))
    guard = SqlGuard().on(scoped)
    scoped.remove()
    with fenced_write(guard, "a", token=token(5)) as handle:
        do(handle, PUT, id="a", owner=5)
    scoped.commit()
    scoped.remove()
    assert (ledger(address), marks(address)) == ({"a": 5}, {"a": "shop/line-a/5"})


def test_an_engine_has_no_block_form(address: str) -> None:
    bind = sql_doors.engine(address)
    for own in (bind, sessionmaker(bind)):
        with pytest.raises(TypeError, match="effect="), fenced_write(own, "a", token=token(5)):
            pass

    async def work() -> None:
        with pytest.raises(TypeError, match="effect="):
            async with fenced_write(create_async_engine(sql_doors.async_url(address)), "a", token=token(5)):
                pass

    asyncio.run(work())
    assert nothing_written(address)


def test_missing_tables_are_named_with_the_remedy(pg_dsn: str, tmp_path: Path) -> None:
    for address in (pg_dsn, f"sqlite:///{tmp_path / 'empty.db'}"):
        bind = sql_doors.engine(address)
        for call in (
            lambda target: raise_fence(target, "a", token=token(5)),
            lambda target: raise_fence(target, "a", "b", token=token(5)),
            lambda target: read_mark(target, "a"),
            lambda target: fenced_write(target, "a", effect=lambda handle: 1, token=token(5), once="k"),
        ):
            with pytest.raises(errors.SchemaMissingError, match=r"fencing_\w+.*adapters\.sql\.create_all"):
                call(bind)
    with psycopg.connect(pg_dsn) as bare:
        with pytest.raises(errors.SchemaMissingError), bare.transaction():
            raise_fence(bare, "a", token=token(5))


def test_a_sync_effect_on_an_async_target_and_the_other_way_round(address: str) -> None:
    async def coroutine(handle: Any) -> None:
        pytest.fail("must not run")

    bind = sql_doors.engine(address)
    with pytest.raises(TypeError, match="await"):
        fenced_write(bind, "a", effect=coroutine, token=token(5))

    async def work() -> None:
        with pytest.raises(TypeError, match="async function"):
            await fenced_write(
                create_async_engine(sql_doors.async_url(address)), "a", effect=lambda handle: 1, token=token(5)
            )

    asyncio.run(work())
    assert nothing_written(address)


def test_marks_in_a_schema_of_their_own(pg_dsn: str, tmp_path: Path) -> None:
    from adapters.sql import create_all

    bind = sql_doors.engine(pg_dsn)
    with bind.begin() as connection:
        connection.execute(sa.text('create schema "Fences"'))
    create_all(bind, schema="Fences")
    guard = SqlGuard(schema="Fences")
    for names in (("a",), ("a", "b")):
        raise_fence(guard.on(bind), *names, token=token(5))
    fenced_write(guard.on(bind), "a", effect=lambda handle: 1, token=token(5), once="k")
    assert fenced_write(guard.on(bind), "a", effect=lambda handle: 2, token=token(5), once="k") == 1
    with pytest.raises(errors.StaleTokenError):
        raise_fence(guard.on(bind), "a", token=token(4))
    with pytest.raises(errors.SchemaMissingError):
        raise_fence(bind, "a", token=token(5))
    assert [finding.severity for finding in guard.on(bind).diagnose()][:2] == ["ok", "ok"]

    attached = sql_doors.engine(f"sqlite:///{tmp_path / 'main.db'}")
    sa.event.listen(attached, "connect", lambda raw, _: raw.execute(f"attach '{tmp_path / 'fences.db'}' as fences"))
    create_all(attached, schema="fences")
    guard = SqlGuard(schema="fences")
    raise_fence(guard.on(attached), "a", "b", token=token(5))
    with pytest.raises(errors.StaleTokenError):
        raise_fence(guard.on(attached), "a", token=token(4))
    assert guard.on(attached).read_mark("b") is not None
