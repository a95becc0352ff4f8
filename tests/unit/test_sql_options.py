"""The SQL guard's options and targets: what has no meaning is refused by name, and without a connection."""

import sqlite3
import subprocess
import sys
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from adapters._tx import Statement, run, transaction_of, translate, translate_commit
from adapters._tx._plan import to_pyformat
from adapters.sql import SqlGuard, ddl, guard_for
from adapters.sql._options import TRIES, pauses
from adapters.sql._postgresql import postgresql
from adapters.sql._sqlite import sqlite
from fencing import AsyncGuard, Guard, errors


@pytest.mark.parametrize("seconds", [0, -1, 0.0001, float("nan"), float("inf"), 10**8])
def test_a_lock_timeout_out_of_range_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="lock_timeout="):
        SqlGuard(lock_timeout=seconds)


@pytest.mark.parametrize("seconds", ["5", True, [5]])
def test_a_lock_timeout_that_is_no_number_is_refused(seconds: Any) -> None:
    with pytest.raises(TypeError, match="lock_timeout="):
        SqlGuard(lock_timeout=seconds)


@pytest.mark.parametrize("mode", ["", "CREATE", None, True])
def test_an_unknown_mode_is_refused(mode: Any) -> None:
    with pytest.raises(ValueError, match="on_missing="):
        SqlGuard(on_missing=mode)


@pytest.mark.parametrize("target", [None, 7, "postgresql://", sqlite3.connect(":memory:"), object(), sa.text("x")])
def test_a_target_of_another_kind_is_refused(target: Any) -> None:
    for call in (guard_for, SqlGuard().on, transaction_of):
        with pytest.raises(TypeError, match=type(target).__qualname__):
            call(target)


@pytest.mark.parametrize("name", ["mssql", "oracle"])
def test_a_dialect_without_a_guard_is_refused_by_name(name: str) -> None:
    bind = sa.create_engine("sqlite://")
    bind.dialect.name = name
    for target in (bind, sessionmaker(bind), bind.connect()):
        with pytest.raises(TypeError, match=name):
            guard_for(target)
    with pytest.raises(ValueError, match=name):
        ddl(name)


def test_an_engine_is_no_open_transaction() -> None:
    with pytest.raises(TypeError, match="effect="):
        transaction_of(sa.create_engine("sqlite://"))


def test_the_guards_are_guards() -> None:
    bind = sa.create_engine("sqlite://")
    for target in (bind, sessionmaker(bind), bind.connect()):
        guard = guard_for(target)
        assert isinstance(guard, Guard)
        assert not isinstance(guard, AsyncGuard)
        assert guard.downstream == "sqlite::memory:"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql+psycopg://user:secret@host:5432/shop?sslmode=require", "postgresql:shop"),
        ("postgresql+psycopg://user:secret@host", "postgresql"),
        ("sqlite:////srv/shop.db", "sqlite:/srv/shop.db"),
        ("sqlite:///file:shop.db?key=secret&uri=true", "sqlite:file:shop.db"),
    ],
)
def test_a_downstream_is_named_without_secrets(url: str, name: str) -> None:
    assert guard_for(sa.create_engine(url)).downstream == name


def test_parameters_are_translated_and_casts_and_percents_are_not_mistaken() -> None:
    assert to_pyformat("select :a, x::text, '100%' where y = :b_2") == (
        "select %(a)s, x::text, '100%%' where y = %(b_2)s"
    )


@pytest.mark.parametrize("build", [postgresql, sqlite])
def test_every_statement_means_the_same_to_psycopg_and_to_sqlalchemy(build: Any) -> None:
    made = build("fences", 5000)
    known = {"resource", "resources", "issuer", "lineage", "value", "holder", "key", "fingerprint", "result"}
    known |= {"floors", "floor", "idle", "after", "prefix", "limit", "kind", "actor", "reason", "detail"}
    known |= {"began", "horizon", "last", "batch", "applied", "before"}
    for name in made.__dataclass_fields__:
        sql = getattr(made, name)
        if isinstance(sql, str) and name != "name":
            bound = set(sa.text(sql)._bindparams)
            assert bound <= known
            assert all(f"%({parameter})s" in to_pyformat(sql) for parameter in bound)
            assert to_pyformat(sql).count("%(") >= len(bound)


def test_pauses_are_bounded_in_number_and_length() -> None:
    for _ in range(100):
        waits = list(pauses())
        assert len(waits) == TRIES - 1
        assert all(0 <= wait <= 1 for wait in waits)


def test_an_error_of_a_statement_is_thrown_in_where_it_was_yielded() -> None:
    class Tx:
        handle = dialect = downstream = ""

        def execute(self, statement: Statement) -> list[tuple[Any, ...]]:
            if statement.sql == "bad":
                raise errors.ContentionError("x")
            return [(statement.sql,)]

    def plan() -> Any:
        try:
            yield Statement("bad")
        except errors.ContentionError:
            rows = yield Statement("mended")
        return rows

    assert run(plan(), Tx()) == [("mended",)]  # type: ignore[arg-type]


def wrapped(error: BaseException) -> sa.exc.DBAPIError:
    return sa.exc.DBAPIError("select 1", {}, error)


class OtherDriverError(Exception):
    """As psycopg2 and asyncpg tell an SQLSTATE."""

    def __init__(self, state: str) -> None:
        self.pgcode = state


def with_code(error: sqlite3.Error, code: int) -> sqlite3.Error:
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize("wrap", [lambda error: error, wrapped], ids=["bare", "wrapped"])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.errors.LockNotAvailable("x"), errors.ContentionError),
        (psycopg.errors.DeadlockDetected("x"), errors.ContentionError),
        (psycopg.errors.SerializationFailure("x"), errors.ContentionError),
        (psycopg.errors.QueryCanceled("x"), errors.ContentionError),
        (psycopg.errors.InFailedSqlTransaction("x"), errors.NotInTransactionError),
        (psycopg.errors.UndefinedTable('relation "fencing_mark" does not exist'), errors.SchemaMissingError),
        (OtherDriverError("40001"), errors.ContentionError),
        (with_code(sqlite3.OperationalError("database is locked"), sqlite3.SQLITE_BUSY), errors.ContentionError),
        (with_code(sqlite3.OperationalError("locked"), sqlite3.SQLITE_BUSY_SNAPSHOT), errors.ContentionError),
        (with_code(sqlite3.OperationalError("table locked"), sqlite3.SQLITE_LOCKED), errors.ContentionError),
        (with_code(sqlite3.OperationalError("no such table: fencing_mark"), 1), errors.SchemaMissingError),
        (with_code(sqlite3.OperationalError("near x: syntax error"), 1), None),
        (psycopg.errors.UniqueViolation("x"), None),
        (psycopg.OperationalError("server closed the connection unexpectedly"), None),
        (ValueError("x"), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_what_a_drivers_error_means(wrap: Any, error: Exception, kind: type[Exception] | None) -> None:
    found = translate(wrap(error), "postgresql:shop")
    assert (type(found) if found else None) is kind
    if found is not None:
        assert found.downstream == "postgresql:shop"


@pytest.mark.parametrize("wrap", [lambda error: error, wrapped], ids=["bare", "wrapped"])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.errors.SerializationFailure("x"), errors.ContentionError),
        (with_code(sqlite3.OperationalError("database is locked"), sqlite3.SQLITE_BUSY), errors.ContentionError),
        (psycopg.OperationalError("server closed the connection unexpectedly"), errors.OutcomeUnknownError),
        (psycopg.InterfaceError("the connection is lost"), errors.OutcomeUnknownError),
        (psycopg.errors.AdminShutdown("x"), errors.OutcomeUnknownError),
        (psycopg.errors.CrashShutdown("x"), errors.OutcomeUnknownError),
        (psycopg.errors.ConnectionFailure("x"), errors.OutcomeUnknownError),
        (psycopg.errors.StatementCompletionUnknown("x"), errors.OutcomeUnknownError),
        (with_code(sqlite3.OperationalError("disk I/O error"), sqlite3.SQLITE_IOERR_FSYNC), errors.OutcomeUnknownError),
        (psycopg.errors.UniqueViolation("x"), None),
        (with_code(sqlite3.IntegrityError("FOREIGN KEY constraint failed"), 787), None),
        (ValueError("raised by an event hook"), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_what_an_error_at_our_commit_means(wrap: Any, error: Exception, kind: type[Exception] | None) -> None:
    found = translate_commit(wrap(error), "postgresql:shop")
    assert (type(found) if found else None) is kind


def test_no_driver_is_loaded_before_it_is_needed() -> None:
    code = (
        "import sys, adapters._tx; assert 'psycopg' not in sys.modules and 'sqlalchemy' not in sys.modules\n"
        "import adapters.sql; assert 'psycopg' not in sys.modules and 'redis' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
