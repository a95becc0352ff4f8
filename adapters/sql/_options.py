"""What a SQL guard was told: its options, checked once, and the plans that follow from them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from inspect import isawaitable, iscoroutine
from typing import Any, get_args

from adapters._tx import AsyncTx, Plan, SyncTx, run, transaction_of
from adapters.sql._diagnose import diagnose
from adapters.sql._dialect import Dialect
from adapters.sql._explain import explaining, listing
from adapters.sql._late import late_guard, naming
from adapters.sql._marks import after_one, one_mark, raise_marks, read_mark, take_write_lock
from adapters.sql._mysql import mysql
from adapters.sql._once import Applied, check_key, claim_key
from adapters.sql._postgresql import postgresql
from adapters.sql._schema import check_schema
from adapters.sql._sqlite import sqlite
from fencing._explain import Explanation
from fencing._findings import Finding
from fencing._law import Mark, OnMissing
from fencing._token import Token
from fencing.errors import ContentionError, NotInTransactionError

_BUILDERS = {"postgresql": postgresql, "sqlite": sqlite, "mysql": mysql}
_LONGEST_TIMEOUT = 2**31 / 1000 - 1

TRIES = 5
"""How often an effect on an Engine or sessionmaker is run in all, if contention ends its transaction each time."""
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0


@dataclass(slots=True)
class Write:
    """One fenced write: which resources, under which token, whose, and for which ``once=`` key. Never changed."""

    resources: tuple[str, ...]
    token: Token
    holder: str
    once: str | None = None
    fingerprint: str | None = None
    began_at: datetime | None = None


def write_of(
    resources: tuple[str, ...],
    token: Token,
    holder: str,
    once: str | None,
    fingerprint: str | None,
    began_at: datetime | None,
) -> Write:
    """Return the write of an effect. Raises ``ValueError`` for a key or fingerprint that a table cannot hold."""
    if once is not None:
        check_key(once, fingerprint)
    return Write(resources, token, holder, once, fingerprint, began_at)


@dataclass(slots=True)
class Options:
    """See :class:`adapters.sql.SqlGuard`."""

    schema: str | None
    on_missing: OnMissing
    lock_timeout: float | None
    bind: Any
    late_verdict: bool = False
    lock_timeout_ms: int | None = field(init=False)
    """The longest wait for a row, in milliseconds."""

    def __post_init__(self) -> None:
        self.lock_timeout_ms = None
        check_schema(self.schema)
        if self.on_missing not in get_args(OnMissing):
            raise ValueError(f'on_missing= is "create" or "reject", not {self.on_missing!r}')
        seconds = self.lock_timeout
        if seconds is None:
            return
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"lock_timeout= takes seconds as a number, or None, not {type(seconds).__name__}")
        if not math.isfinite(seconds) or not 0.001 <= seconds <= _LONGEST_TIMEOUT:
            raise ValueError(
                f"lock_timeout= is from 0.001 to {_LONGEST_TIMEOUT:.0f} seconds, not {seconds!r}; "
                "None leaves the connection's own setting alone"
            )
        self.lock_timeout_ms = round(seconds * 1000)

    def transaction(self, target: Any, *, read_only: bool = False) -> SyncTx | AsyncTx:
        """Return the open transaction of ``target``."""
        return transaction_of(target, bind=self.bind, read_only=read_only)

    def dialect(self, name: str) -> Dialect:
        """Return the statements for a dialect."""
        return _BUILDERS[name](self.schema, self.lock_timeout_ms)

    def guard(self, tx: SyncTx | AsyncTx, write: Write) -> Plan[None]:
        """Show the token to the resources."""
        return self.show(tx, write.resources, write.token, write.holder)

    def show(self, tx: SyncTx | AsyncTx, resources: tuple[str, ...], token: Token, holder: str) -> Plan[None]:
        """As :meth:`guard`."""
        sql = _BUILDERS[tx.dialect](self.schema, self.lock_timeout_ms)
        return raise_marks(sql, resources, token, holder, self.on_missing, tx)

    def show_at_once(self, tx: SyncTx, resources: tuple[str, ...], token: Token, holder: str) -> None:
        """As :meth:`show`, and done. One mark of PostgreSQL that is there without a plan, which costs as much again."""
        if len(resources) > 1 or self.on_missing != "create" or tx.dialect != "postgresql":
            return run(self.show(tx, resources, token, holder), tx)
        sql = _BUILDERS["postgresql"](self.schema, self.lock_timeout_ms)
        try:
            rows = tx.execute(one_mark(sql, resources[0], token, holder))
            if not rows or rows[0][1]:
                run(after_one(sql, rows, resources, token, "create", tx), tx)
        except ContentionError as exc:
            exc.resource, exc.presented = resources[0], token
            raise
        return None

    def show_late(self, tx: SyncTx | AsyncTx, resources: tuple[str, ...], token: Token, holder: str) -> Any:
        """Show the token without waiting for the verdict, as asked for: a ``Late``, or None where it has to be waited
        for. Awaitable for an async transaction. None too if nobody asked."""
        send = getattr(tx, "send_late", None) if self.late_verdict else None
        if send is None:
            return None
        statement = late_guard(self.schema, self.lock_timeout_ms, resources, token, holder, self.on_missing)
        return send(statement, naming(tx, resources, token, self.on_missing))

    def raise_fence(self, tx: SyncTx | AsyncTx, write: Write) -> Plan[None]:
        """Raise the marks, making those that are missing whatever ``on_missing`` says: this is how marks are made."""
        return raise_marks(self.dialect(tx.dialect), write.resources, write.token, write.holder, "create", tx)

    def prepare(self, tx: SyncTx | AsyncTx) -> Plan[None]:
        """What comes before a savepoint."""
        return take_write_lock(self.dialect(tx.dialect))

    def guard_once(self, tx: SyncTx | AsyncTx, write: Write, key: str) -> Plan[Applied | None]:
        """Show the token first, then look whether the key was applied: a stale caller is refused even if it was."""
        yield from self.guard(tx, write)
        return (
            yield from claim_key(
                self.dialect(tx.dialect),
                key,
                write.fingerprint,
                write.resources,
                write.token,
                write.holder,
                write.began_at,
                tx.downstream,
            )
        )

    def read_mark(self, tx: SyncTx | AsyncTx, resource: str) -> Plan[Mark | None]:
        """Read the mark."""
        return read_mark(self.dialect(tx.dialect), resource)

    def explain(self, tx: SyncTx | AsyncTx, resource: str) -> Plan[Explanation]:
        """Say what is known of the resource."""
        return explaining(self.dialect(tx.dialect), tx.downstream, resource)

    def list_marks(self, tx: SyncTx | AsyncTx, prefix: str, limit: int) -> Plan[list[tuple[str, Mark]]]:
        """The marks of resources whose names begin with ``prefix``, by name."""
        return listing(self.dialect(tx.dialect), prefix, limit)

    def diagnose(self, tx: SyncTx | AsyncTx) -> Plan[list[Finding]]:
        """Say what in this database would break a promise."""
        return diagnose(tx.dialect, self.schema, tx.downstream)

    def lock_in_row(self, tx: SyncTx | AsyncTx, resource: str) -> Plan[Mark | None]:
        """Read and lock the mark that stands in the data itself: there is none but for a :class:`RowGuard`."""
        return None
        yield  # a plan, which asks nothing

    def adopt_in_row(self, tx: SyncTx | AsyncTx, resource: str, token: Token, holder: str) -> Plan[None]:
        """Set the mark that :meth:`lock_in_row` has found."""
        return
        yield


def ensure_open(tx: SyncTx | AsyncTx) -> None:
    """Raise ``NotInTransactionError`` if the fence ended before the block did."""
    if not tx.still_open():
        raise NotInTransactionError(
            f"{tx.downstream}: the transaction or savepoint ended, or failed, inside the fenced block, and the fence "
            "with it: what was written after that is not fenced. Commit after the block",
            downstream=tx.downstream,
        )


def refuse_awaitable(result: Any) -> None:
    """Raise ``TypeError`` if the effect of a sync target was a coroutine function: it has not run."""
    if isawaitable(result):
        if iscoroutine(result):
            result.close()
        raise TypeError(
            "the effect of a sync target returned an awaitable, which nobody would await; "
            "pass a plain function, or an async connection, session or engine"
        )


def refuse_plain(result: Any) -> None:
    """Raise ``TypeError`` if the effect of an async target was no coroutine function."""
    if not isawaitable(result):
        raise TypeError(
            f"the effect of an async target must be an async function; it returned a {type(result).__name__}. "
            "What it wrote is not committed"
        )


def pauses() -> Iterator[float]:
    """Seconds to wait before each further try: exponential with full jitter, so that two that met do not meet again."""
    for attempt in range(TRIES - 1):
        yield random.uniform(0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt))
