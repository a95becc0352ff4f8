"""The relay's kept connection: its short way through libpq answers and fails as the long one does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, text
from support.locks import end_backend

from adapters._tx import Plan, Rows, Statement
from adapters.email._line import Line
from fencing.errors import ContentionError, SchemaMissingError

ECHO = "select cast(:n as bigint), cast(:t as text), :n > 0, cast(:t as text), cast(:x as double precision) is null, :t"


@pytest.fixture
def engine(pg_dsn: str) -> Iterator[Engine]:
    made = create_engine(pg_dsn.replace("postgresql://", "postgresql+psycopg://"), pool_size=1, max_overflow=1)
    yield made
    made.dispose()


@pytest.fixture
def line(engine: Engine) -> Iterator[Line]:
    made = Line(engine)
    yield made
    made.close()


def asked(line: Line, sql: str, **params: Any) -> Callable[[], Rows]:
    def plan(_: str) -> Plan[Rows]:
        return (yield Statement(sql, params))

    return lambda: line.run(plan)


def directly(question: Callable[[], Rows]) -> Rows:
    """On another thread than the main one, whose statements go the long way."""
    with ThreadPoolExecutor(1) as one:
        return one.submit(question).result()


def test_both_ways_answer_the_same(line: Line) -> None:
    question = asked(line, ECHO, n=2**60, t="späte Post: 'ja' % \\", x=None)
    assert question() == directly(question) == directly(question)
    assert line._direct is not None
    assert len(line._direct.prepared) == 1
    assert directly(asked(line, "select cast(:x as text)", x=None)) == [(None,)]
    assert directly(asked(line, "select 1 where :n = 0", n=1)) == []
    assert directly(asked(line, "set local search_path to public")) == []


def test_errors_are_translated_and_the_connection_is_replaced(line: Line, pg_dsn: str) -> None:
    with pytest.raises(SchemaMissingError, match=r"adapters\.email\.create_all"):
        directly(asked(line, "select 1 from no_such_table"))
    raised = "do $$ begin raise exception using errcode = '55P03', message = 'held'; end $$"
    with pytest.raises(ContentionError):
        directly(asked(line, raised))
    with pytest.raises(psycopg.errors.DivisionByZero, match="division by zero"):
        directly(asked(line, "select 1 / cast(:n as int)", n=0))
    ((pid,),) = directly(asked(line, "select pg_backend_pid()"))
    end_backend(pg_dsn, pid)
    with pytest.raises(psycopg.OperationalError):
        directly(asked(line, "select pg_backend_pid()"))
    assert directly(asked(line, "select pg_backend_pid()")) != [(pid,)]


def test_it_gives_the_connection_back_as_it_was(engine: Engine) -> None:
    line = Line(engine)
    pids = {directly(asked(line, f"select pg_backend_pid(), {number}"))[0][0] for number in range(3)}
    line.close()
    with engine.connect() as tx:
        assert {tx.execute(text("select pg_backend_pid()")).scalar_one()} == pids
        left = text("select count(*) from pg_prepared_statements where name like 'fencing%'")
        assert tx.execute(left).scalar_one() == 0
        assert tx.execute(text("show plan_cache_mode")).scalar_one() == "auto"
    directly(asked(line, "select 1"))
    line.close()


def test_nothing_is_prepared_where_the_connection_may_not(pg_dsn: str) -> None:
    engine = create_engine(
        pg_dsn.replace("postgresql://", "postgresql+psycopg://"), connect_args={"prepare_threshold": None}
    )
    line = Line(engine)
    assert directly(asked(line, ECHO, n=1, t="x", x=None))[0][:3] == (1, "x", True)
    assert directly(asked(line, "select count(*) from pg_prepared_statements")) == [(0,)]
    assert line._direct is None
    line.close()
    engine.dispose()
