"""A fenced write against the same write unfenced."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import psycopg
import sqlalchemy

from adapters.sql import create_all
from fencing import Token, fenced_write
from scheduler.console.bench._frame import Bench, Servers, in_turn

WRITES = 1_500
ROWS = 1_000
_UPDATE = "update fencing_bench_account set balance = balance + 1 where id = %s"
_values = itertools.count(1)


def _run(dsn: str, scale: float, write: Callable[[psycopg.Connection[tuple[object, ...]], int], None]) -> float:
    engine = sqlalchemy.create_engine(dsn.replace("postgresql://", "postgresql+psycopg://", 1))
    create_all(engine)
    engine.dispose()
    writes = int(WRITES * scale)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "create table if not exists fencing_bench_account (id integer primary key, balance bigint not null)"
        )
        connection.execute(
            "insert into fencing_bench_account select i, 0 from generate_series(0, %s) i on conflict do nothing",
            (ROWS - 1,),
        )
        connection.execute("vacuum analyze fencing_bench_account")
        began = time.perf_counter()
        for number in range(writes):
            write(connection, number % ROWS)
        elapsed = time.perf_counter() - began
        connection.execute("drop table fencing_bench_account")
        connection.execute("drop table if exists fencing_mark, fencing_applied")
    return writes / elapsed


def _fenced(servers: Servers, scale: float) -> float:
    def write(connection: psycopg.Connection[tuple[object, ...]], account: int) -> None:
        token = Token(next(_values), "bench", "bench")
        with connection.transaction(), fenced_write(connection, f"account/{account}", token=token):
            connection.execute(_UPDATE, (account,))

    return _run(servers.postgres, scale, write)


def _plain(servers: Servers, scale: float) -> float:
    def write(connection: psycopg.Connection[tuple[object, ...]], account: int) -> None:
        with connection.transaction():
            connection.execute(_UPDATE, (account,))

    return _run(servers.postgres, scale, write)


BENCHES = [
    Bench(
        "sql_two_statements",
        "a one-row UPDATE in the caller's transaction, fenced, against the same transaction without a guard (psycopg)",
        "writes/s",
        "higher",
        0.70,
        in_turn(_fenced, _plain),
    )
]
