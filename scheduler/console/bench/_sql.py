"""Fenced SQL writes against the same writes unfenced: psycopg, synchronous commit, marks that are there already."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy as sa

from adapters.sql import RowGuard, SqlGuard, create_all, fenced_statement, protect, row_mark_columns, unprotect
from fencing import Token, fenced_write, raise_fence
from scheduler.console.bench._frame import NO_GOAL, Bench, Pair, Servers

WRITES = 1_500
ROWS = 1_000
SLICES = 30
"""Ours and the baseline take turns that often in a round: what slows the machine for a moment slows both."""

ACCOUNT = sa.Table(
    "fencing_bench_account",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("balance", sa.BigInteger, nullable=False),
)
ROW = sa.Table(
    "fencing_bench_row",
    ACCOUNT.metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("balance", sa.BigInteger, nullable=False),
    *row_mark_columns(),
)
PROTECTED = sa.Table(
    "fencing_bench_protected",
    ACCOUNT.metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("balance", sa.BigInteger, nullable=False),
)
TABLES = (ACCOUNT, ROW, PROTECTED)

Connection = psycopg.Connection[Any]
Write = Callable[[Connection, int], None]

_UPDATE = "update fencing_bench_account set balance = balance + 1 where id = %s"
_UPDATE_PROTECTED = "update fencing_bench_protected set balance = balance + 1 where id = %s"
_UPDATE_ROW = "update fencing_bench_row set balance = balance + 1 where id = %s"
_ADD = sa.update(ACCOUNT).where(ACCOUNT.c.id == sa.bindparam("account")).values(balance=ACCOUNT.c.balance + 1)
_ROWS = RowGuard(ROW)
_LATE = SqlGuard(late_verdict=True)
_MORE = {"balance": ROW.c.balance + 1}
_values = itertools.count(1)


def _token() -> Token:
    return Token(next(_values), "bench", "bench")


def _names(account: int) -> list[str]:
    return [f"account/{(account + step) % ROWS}" for step in range(10)]


def _plain(connection: Connection, account: int) -> None:
    with connection.transaction():
        connection.execute(_UPDATE, (account,))


def _fenced(connection: Connection, account: int) -> None:
    with connection.transaction(), fenced_write(connection, f"account/{account}", token=_token()):
        connection.execute(_UPDATE, (account,))


def _plain_pipeline(connection: Connection, account: int) -> None:
    with connection.pipeline(), connection.transaction():
        connection.execute(_UPDATE, (account,))


def _fenced_pipeline(connection: Connection, account: int) -> None:
    with connection.pipeline(), connection.transaction():
        with fenced_write(connection, f"account/{account}", token=_token()):
            connection.execute(_UPDATE, (account,))


def _late_pipeline(connection: Connection, account: int) -> None:
    with connection.pipeline(), connection.transaction():
        guard: Any = _LATE.on(connection)
        with fenced_write(guard, f"account/{account}", token=_token()):
            connection.execute(_UPDATE, (account,))


def _bare(connection: Connection, account: int) -> None:
    connection.execute(_UPDATE, (account,))


def _one_statement(connection: Connection, account: int) -> None:
    fenced_statement(connection, f"account/{account}", _ADD, {"account": account}, token=_token())


def _bare_row(connection: Connection, account: int) -> None:
    with connection.transaction():
        connection.execute(_UPDATE_ROW, (account,))


def _row_mark(connection: Connection, account: int) -> None:
    with connection.transaction():
        _ROWS.update(connection, account, _MORE, token=_token())


def _one_fence(connection: Connection, account: int) -> None:
    with connection.transaction():
        raise_fence(connection, f"account/{account}", token=_token())


def _ten_fences(connection: Connection, account: int) -> None:
    with connection.transaction():
        raise_fence(connection, *_names(account), token=_token())


def _protected(connection: Connection, account: int) -> None:
    with connection.transaction(), fenced_write(connection, f"account/{account}", token=_token()):
        connection.execute(_UPDATE_PROTECTED, (account,))


def _in_slices(ours: Write, base: Write, unit: Callable[[float], float]) -> Pair:
    """One round: both take turns in short slices, over one connection.

    Two connections would be two server processes, and where the kernel puts these differs by more than a guard costs:
    a round trip to one on the client's processor took 40 µs, to one on another 100 µs.
    """

    def pair(servers: Servers, scale: float, ours_first: bool) -> tuple[float, float]:
        each = max(1, int(WRITES * scale / SLICES))
        spent = [0.0, 0.0]
        arms = [(0, ours), (1, base)] if ours_first else [(1, base), (0, ours)]
        with _bank(servers.postgres) as connection:
            numbers = [itertools.count(), itertools.count()]
            for slice_number in range(SLICES + 1):
                for arm, write in arms:
                    began = time.perf_counter()
                    for _ in range(each):
                        write(connection, next(numbers[arm]) % ROWS)
                    if slice_number:  # the first one warms up: plans, pages, caches
                        spent[arm] += time.perf_counter() - began
        done = each * SLICES
        return unit(spent[0] / done), unit(spent[1] / done)

    return pair


@contextmanager
def _bank(dsn: str) -> Iterator[Connection]:
    engine = sa.create_engine(dsn.replace("postgresql://", "postgresql+psycopg://", 1))
    ACCOUNT.metadata.drop_all(engine)
    create_all(engine)
    ACCOUNT.metadata.create_all(engine)
    with engine.begin() as connection:
        for table in TABLES:
            connection.execute(table.insert(), [{"id": number, "balance": 0} for number in range(ROWS)])
        for account in range(0, ROWS, 10):
            raise_fence(connection, *_names(account), token=_token())
            for number in range(account, account + 10):
                _ROWS.raise_fence(connection, number, token=_token())
    protect(engine, PROTECTED, "'account/' || id")
    try:
        with psycopg.connect(dsn, autocommit=True) as one:
            one.execute("vacuum analyze")
            one.execute("checkpoint")
            yield one
    finally:
        unprotect(engine, PROTECTED)
        ACCOUNT.metadata.drop_all(engine)
        with engine.begin() as connection:
            connection.execute(sa.text("delete from fencing_mark where issuer = 'bench'"))
        engine.dispose()


def _rate(seconds: float) -> float:
    return 1 / seconds


def _microseconds(seconds: float) -> float:
    return seconds * 1e6


def _faster(name: str, what: str, goal: float, ours: Write, base: Write) -> Bench:
    return Bench(name, what, "writes/s", "higher", goal, _in_slices(ours, base, _rate))


BENCHES = [
    _faster(
        "sql_two_statements",
        "a one-row UPDATE in the caller's transaction, fenced, against the same transaction without a guard",
        0.70,
        _fenced,
        _plain,
    ),
    _faster(
        "sql_pipeline",
        "the same, each transaction in a pipeline of its own, with SqlGuard(late_verdict=True)",
        0.80,
        _late_pipeline,
        _plain_pipeline,
    ),
    _faster(
        "sql_pipeline_waiting",
        "the same as the guard does it unasked: it waits for the verdict before the block begins",
        NO_GOAL,
        _fenced_pipeline,
        _plain_pipeline,
    ),
    _faster(
        "sql_one_statement",
        "fenced_statement() in autocommit, guard and effect in one, against the bare UPDATE in autocommit",
        0.75,
        _one_statement,
        _bare,
    ),
    _faster(
        "sql_row_mark",
        "RowGuard.update(), the mark in the row, against the bare UPDATE, each in a transaction",
        0.90,
        _row_mark,
        _bare_row,
    ),
    _faster(
        "protect",
        "a fenced one-row UPDATE of a protected table against the same of one that is not",
        0.90,
        _protected,
        _fenced,
    ),
    Bench(
        "ten_fences",
        "raising ten fences in one call against raising one, each in a transaction",
        "µs",
        "lower",
        2.0,
        _in_slices(_ten_fences, _one_fence, _microseconds),
    ),
]
