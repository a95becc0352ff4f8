"""Fenced SQL writes on SQLite and MariaDB (or MySQL) against the same writes unfenced, through SQLAlchemy."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from adapters.sql import create_all
from fencing import Token, fenced_write, raise_fence
from scheduler.console.bench._frame import NO_GOAL, Bench, Pair, Servers

WRITES: Final = 900
ROWS: Final = 300
SLICES: Final = 15

_ACCOUNT = sa.Table(
    "fencing_bench_account",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("balance", sa.BigInteger, nullable=False),
)
_ADD = sa.update(_ACCOUNT).where(_ACCOUNT.c.id == sa.bindparam("account")).values(balance=_ACCOUNT.c.balance + 1)
_values = itertools.count(1)


def _token() -> Token:
    return Token(next(_values), "bench", "bench")


def _plain(engine: sa.Engine, account: int) -> None:
    with engine.begin() as connection:
        connection.execute(_ADD, {"account": account})


def _fenced(engine: sa.Engine, account: int) -> None:
    with engine.begin() as connection, fenced_write(connection, f"account/{account}", token=_token()):
        connection.execute(_ADD, {"account": account})


@contextmanager
def _bank(url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(url)
    try:
        _ACCOUNT.metadata.drop_all(engine)
        create_all(engine)
        _ACCOUNT.metadata.create_all(engine)
        with engine.begin() as connection:
            connection.execute(_ACCOUNT.insert(), [{"id": number, "balance": 0} for number in range(ROWS)])
            for number in range(ROWS):
                raise_fence(connection, f"account/{number}", token=_token())
        yield engine
    finally:
        _ACCOUNT.metadata.drop_all(engine)
        with engine.begin() as connection:
            connection.execute(sa.text("delete from fencing_mark where issuer = 'bench'"))
        engine.dispose()


def _pair(bank: Callable[[Servers], str]) -> Pair:
    def pair(servers: Servers, scale: float, ours_first: bool) -> tuple[float, float]:
        each = max(1, int(WRITES * scale / SLICES))
        spent = {_fenced: 0.0, _plain: 0.0}
        accounts = itertools.cycle(range(ROWS))
        with _bank(bank(servers)) as engine:
            for number in range(SLICES + 1):
                for write in (_fenced, _plain) if ours_first == (number % 2 == 0) else (_plain, _fenced):
                    began = time.perf_counter()
                    for _ in range(each):
                        write(engine, next(accounts))
                    if number:  # the first one warms up
                        spent[write] += time.perf_counter() - began
        return each * SLICES / spent[_fenced], each * SLICES / spent[_plain]

    return pair


def _sqlite_pair(servers: Servers, scale: float, ours_first: bool) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="fencing-bench-") as folder:
        return _pair(lambda _: f"sqlite:///{Path(folder) / 'bench.db'}")(servers, scale, ours_first)


BENCHES = [
    Bench(
        "sqlite",
        "a one-row UPDATE in a transaction on a file, fenced, against the same without a guard",
        "writes/s",
        "higher",
        NO_GOAL,
        _sqlite_pair,
    ),
    Bench(
        "mariadb",
        "the same on the MariaDB or MySQL of --mariadb; seven statements more, each a round trip: the lock timeout is "
        "read, set and put back, the mark written and its verdict read, in a savepoint",
        "writes/s",
        "higher",
        NO_GOAL,
        _pair(lambda servers: servers.mariadb),
        needs="mariadb",
    ),
]
