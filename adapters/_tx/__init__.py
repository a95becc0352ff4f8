"""The caller's connections and sessions, unwrapped: plans of SQL statements run in the transaction that is open.

No adapter itself; ``adapters.sql`` and ``adapters.email`` stand on it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from adapters._tx._errors import SQL_TABLES, committing, retryable, translate, translate_commit
from adapters._tx._plan import BeforeCommit, Plan, Rows, Statement
from adapters._tx._ports import AsyncTx, SyncTx, is_async, run, run_async

__all__ = [
    "AsyncTx",
    "BeforeCommit",
    "Plan",
    "Rows",
    "Statement",
    "SyncTx",
    "committing",
    "is_async",
    "retryable",
    "run",
    "run_async",
    "transaction_of",
    "translate",
    "translate_commit",
]


def transaction_of(
    target: Any, *, bind: Any = None, read_only: bool = False, tables: str = SQL_TABLES
) -> SyncTx | AsyncTx:
    """Return the transaction in which ``target`` writes.

    ``target``: SQLAlchemy Connection | Session | scoped_session | AsyncConnection | AsyncSession |
    async_scoped_session, or psycopg Connection | AsyncConnection. ``bind`` names the bind of a Session that has
    several. ``read_only`` asks for no transaction and takes no write lock on SQLite. ``tables`` says how missing
    tables are made, for the error message.

    Nothing is sent yet. The first use raises :class:`~fencing.errors.NotInTransactionError` where nothing would hold a
    fence: SQLAlchemy in AUTOCOMMIT, psycopg outside a ``transaction()`` block, a closed connection. Raises
    ``TypeError`` for any other target, for a dialect without a guard, and for a Session with several binds of which
    none is named.
    """
    known = _makers.get(type(target))
    found: SyncTx | AsyncTx | None = known(target, bind, read_only, tables) if known is not None else None
    if found is not None:
        return found
    for maker in _loaded_makers():
        found = maker(target, bind, read_only, tables)
        if found is not None:
            _makers[type(target)] = maker
            return found
    raise TypeError(
        f"a {type(target).__module__}.{type(target).__qualname__} is no open transaction: "
        "pass a connection or session (an Engine or sessionmaker only with effect=, or to raise_fence and read_mark)"
    )


_makers: dict[type, Callable[[Any, Any, bool, str], Any]] = {}


def _loaded_makers() -> Iterator[Callable[[Any, Any, bool, str], Any]]:
    # A target's own library is loaded by now. Importing the other one would be for nothing, or fail where it is not
    # whole.
    if "psycopg" in sys.modules:
        from adapters._tx._psycopg import psycopg_tx

        yield psycopg_tx
    if "sqlalchemy" in sys.modules:
        from adapters._tx._sqlalchemy import sqlalchemy_tx

        yield sqlalchemy_tx
