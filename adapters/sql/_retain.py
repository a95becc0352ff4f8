"""How long records of applied effects are kept: looked at and purged, with the horizon that keeps old work out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from adapters._tx import AsyncTx, Plan, Statement, SyncTx
from adapters.sql._administer import act_of, guard_of
from adapters.sql._dialect import Dialect
from adapters.sql._limit import limited
from adapters.sql._once import read_moment
from adapters.sql._options import Options
from fencing._registry import is_async
from fencing._token import Token
from fencing.errors import FencingError

Tx = SyncTx | AsyncTx

APART = timedelta(hours=1)
"""How far the clock of whoever says when work began may be ahead of the database's: records are kept so much longer."""

BATCH = 1000
"""How many records one transaction of a purge looks at."""


@dataclass(frozen=True, slots=True)
class AppliedKey:
    """The record of a ``once=`` key: what it stands for, the result, who applied it, when, and when its work began."""

    key: str
    fingerprint: str
    result: Any
    token: Token
    holder: str
    applied_at: datetime
    began_at: datetime | None


@dataclass(frozen=True, slots=True)
class PurgedKeys:
    """How many records were removed, how many are left, and the horizon: what began before it is refused."""

    removed: int
    left: int
    horizon: datetime | None


def read_applied(target: Any, key: str, *, schema: str | None = None) -> Any:
    """Return the :class:`AppliedKey` of a ``once=`` key, or None (awaitable for an async target). To look at."""
    guard = guard_of(target, schema)

    def plan(tx: Tx) -> Plan[AppliedKey | None]:
        sql = guard._options.dialect(tx.dialect)
        rows = yield Statement(sql.show_applied, {"key": key})
        if not rows:
            return None
        fingerprint, result, issuer, lineage, value, holder, applied_at, began_at = rows[0]
        return AppliedKey(
            key,
            fingerprint,
            None if result is None else json.loads(result),
            Token(value, issuer, lineage),
            holder,
            sql.moment(applied_at),
            None if began_at is None else sql.moment(began_at),
        )

    return guard.look(plan)


def purge_applied(
    target: Any,
    older_than: timedelta,
    *,
    dry_run: bool = False,
    reason: str = "",
    actor: str | None = None,
    batch: int = BATCH,
    schema: str | None = None,
) -> Any:
    """Remove the records of effects whose work began longer ago than ``older_than``, and set the horizon there.

    From then on ``once=`` with a key that has no record is refused (``KeyExpiredError``) for work that began before the
    horizon, by the database's clock, or of which nobody says when it began: nothing shows that it was not applied. So
    keep them for at least as long as a job can be replayed. The horizon is moved in the transactions that remove, and
    never goes back. A record stays an hour longer, in case the clock that says when work began is ahead.

    On an Engine or sessionmaker each ``batch`` is a transaction of its own; elsewhere all is in the caller's. Recorded.
    ``dry_run`` only counts. Returns :class:`PurgedKeys` (awaitable for an async target). Raises ``ValueError`` or
    ``TypeError`` for what is no such time, and ``FencingError`` if the database's clock and this machine's are more
    than an hour apart: a horizon in the future would refuse everything.
    """
    if not isinstance(older_than, timedelta):
        raise TypeError(f"older_than= takes a timedelta, not {type(older_than).__name__}")
    if not timedelta(0) <= older_than <= _LONGEST:
        raise ValueError(f"older_than= is from nothing to a hundred years, not {older_than}")
    if batch < 1:
        raise ValueError(f"batch= is at least 1, not {batch!r}")
    guard = guard_of(target, schema)
    work = _Purge(guard._options, older_than, batch, reason, actor)
    if dry_run:
        return guard.look(work.count)
    if is_async(guard):
        return _purge_async(guard, work)
    while work.more:
        work.take(guard.perform(work.page))
    return guard.look(work.told)


async def _purge_async(guard: Any, work: _Purge) -> PurgedKeys:
    while work.more:
        work.take(await guard.perform(work.page))
    told: PurgedKeys = await guard.look(work.told)
    return told


@dataclass(frozen=True, slots=True)
class _Page:
    last: str | None
    removed: int
    before: datetime


class _Purge:
    """One purge, a page of keys at a time. A page is a plan that changes nothing here: it may be run again."""

    def __init__(self, options: Options, older_than: timedelta, batch: int, reason: str, actor: str | None) -> None:
        self._options = options
        self._older_than = older_than
        self._batch = batch
        self._reason = reason
        self._actor = actor
        self._after = ""
        self._before: datetime | None = None
        self._removed = 0
        self.more = True

    def take(self, page: _Page) -> None:
        """A page was done: go on after it."""
        self._removed += page.removed
        self._before = page.before
        self.more = page.last is not None
        self._after = page.last or ""

    def page(self, tx: Tx) -> Plan[_Page]:
        """Remove what is old among the next keys."""
        sql = self._options.dialect(tx.dialect)
        return limited(sql, self._options.lock_timeout_ms, self._page(sql, tx.downstream))

    def _page(self, sql: Dialect, downstream: str) -> Plan[_Page]:
        horizon, before = yield from self._horizon(sql, sql.lock_horizon, downstream)
        [(last, seen)] = yield Statement(sql.page_applied, {"after": self._after, "batch": self._batch})
        removed = 0
        if last is not None:
            span = {"after": self._after, "last": last, **self._old(sql, before)}
            rows = yield Statement(sql.purge_applied, span)
            if sql.remove_applied:
                for (key,) in rows:
                    yield Statement(sql.remove_applied, {"key": key})
            removed = len(rows)
        later = horizon is None or horizon < before
        if later:
            yield Statement(sql.store_horizon, {"horizon": sql.written(before)})
        if later or removed:
            detail = {"horizon": before.isoformat(), "removed": removed}
            yield Statement(sql.insert_act, act_of("purge", None, self._reason, detail, self._actor))
        return _Page(last if seen == self._batch else None, removed, before)

    def _horizon(self, sql: Dialect, statement: str, downstream: str) -> Plan[tuple[datetime | None, datetime]]:
        """The horizon, and the moment that this purge moves it to: the same for all its pages."""
        rows = yield Statement(statement)
        horizon = read_moment(sql, rows, downstream)
        now = sql.moment(rows[0][1])
        skew = now - datetime.now(UTC)
        if abs(skew) > APART:
            raise FencingError(
                f"{downstream}: the database's clock is {skew} from this machine's, so nothing says how old the "
                "records are. Nothing was removed; set the clocks right",
                downstream=downstream,
            )
        return horizon, self._before or now - self._older_than

    def _old(self, sql: Dialect, before: datetime) -> dict[str, Any]:
        return {"before": sql.written(before), "applied": sql.written(before - APART)}

    def count(self, tx: Tx) -> Plan[PurgedKeys]:
        """Count what would be removed."""
        sql = self._options.dialect(tx.dialect)
        horizon, before = yield from self._horizon(sql, sql.look_at_horizon, tx.downstream)
        [(old, every)] = yield Statement(sql.count_applied, self._old(sql, before))
        return PurgedKeys(int(old), every - int(old), before if horizon is None else max(horizon, before))

    def told(self, tx: Tx) -> Plan[PurgedKeys]:
        """Say what was done."""
        sql = self._options.dialect(tx.dialect)
        horizon, before = yield from self._horizon(sql, sql.look_at_horizon, tx.downstream)
        [(_, every)] = yield Statement(sql.count_applied, self._old(sql, before))
        return PurgedKeys(self._removed, every, horizon)


_LONGEST = timedelta(days=36_525)
