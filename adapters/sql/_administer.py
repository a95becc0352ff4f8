"""What a person does to marks: give a resource to another issuer, compact, keep refusals."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from sqlalchemy import Engine

from adapters._tx import AsyncTx, Plan, Statement, SyncTx
from adapters.sql._dialect import Dialect
from adapters.sql._explain import read_acts
from adapters.sql._guard import SqlGuard, SqlTargetGuard
from adapters.sql._limit import limited
from adapters.sql._marks import all_or_nothing, mark_of, moved, read_floors, token_params
from adapters.sql._options import Options
from adapters.sql._schema import check_schema
from fencing._law import check_resources, order
from fencing._lease import process_holder
from fencing._refusals import Refusal, on_refusal
from fencing._token import Token

log = logging.getLogger("fencing.refusals")

Tx = SyncTx | AsyncTx
_ALL = 2**31 - 1
_PATIENCE = 1.0
"""The longest that a refused writer waits for its refusal to be kept, in seconds."""
ADOPTED = "adopted"
"""The lineage of a mark that was made by :func:`adopt` from an issuer's name alone."""


def keep_refusals(bind: Any, *, schema: str | None = None) -> Callable[[], None]:
    """Keep the refusals that this process meets at ``bind``'s database there, for ``explain()``; return what ends it.

    ``bind``: an Engine, on which each refusal is written in a transaction of its own: the refused one is rolled back
    by its owner, as a rule. On a thread of its own, which the writer waits for but briefly: on SQLite nothing can be
    written until the refused transaction has ended. A refusal that cannot be written is logged.
    """
    guard: Any = SqlGuard(schema=check_schema(schema)).on(bind)
    if not isinstance(bind, Engine):
        raise TypeError("keep_refusals() takes an Engine: each refusal is written in a transaction of its own")
    writers: dict[int, ThreadPoolExecutor] = {}  # a forked process has the object and not the thread

    def write(facts: dict[str, Any]) -> None:
        try:
            guard.perform(lambda tx: _send(Statement(guard._options.dialect(tx.dialect).insert_act, facts)))
        except Exception:
            log.exception("%s: a refusal could not be kept", guard.downstream)

    def keep(refusal: Refusal) -> None:
        if refusal.downstream != guard.downstream:
            return
        detail = {
            "kind": refusal.kind,
            "presented": str(refusal.presented),
            "mark": refusal.mark and str(refusal.mark),
            "holder": refusal.holder,
            "late": refusal.late and refusal.late.total_seconds(),
        }
        facts = act_of("refused", refusal.resource, str(refusal), detail, refusal.presenter)
        if os.getpid() not in writers:
            writers[os.getpid()] = ThreadPoolExecutor(1, "fencing-refusals")
        wait([writers[os.getpid()].submit(write, facts)], _PATIENCE)

    return on_refusal(keep)


def _send(statement: Statement) -> Plan[None]:
    yield statement


def adopt(
    target: Any, resource: str, to: Token | str, reason: str, *, actor: str | None = None, schema: str | None = None
) -> Any:
    """Give a resource to another issuer, whose tokens had no order with the mark's and were refused. Recorded.

    ``to``: a token of the new issuer, from which on its tokens are accepted; or its name, for any token above 1. If
    the resource was its before, it goes on above the mark that it had then: an old token stays refused. Holders under
    the old issuer are refused from the commit on: end them first. ``actor``: who does it, by default this process. Of
    a row that carries its mark: pass ``RowGuard(...).on(target)`` as the target.

    Raises ``ValueError`` without a reason, and for a token below that mark of before or below a floor of its issuer.
    """
    (name,) = check_resources((resource,))
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError("adopt() needs a reason: it is what the record says")
    wanted = to if isinstance(to, Token) else Token(1, to, ADOPTED)

    def work(tx: Tx, sql: Dialect, options: Options) -> Plan[Token]:
        ending = "" if tx.dialect == "sqlite" else " for update"
        rows = yield Statement(sql.read_one + ending, {"resource": name})
        kept = mark_of(sql, rows[0]).token if rows else None
        in_row = yield from options.lock_in_row(tx, name)
        before = kept if in_row is None else in_row.token
        new = wanted
        acts = yield from read_acts(sql, "adopt", name, _ALL, decides=True)
        known = [
            Token(detail["value"], detail["issuer"], detail["lineage"])
            for *_, detail in acts
            if detail["issuer"] == wanted.issuer
        ]
        known += [one for one in {kept, before} if one is not None and one.issuer == wanted.issuer]
        if before is None or before.issuer != wanted.issuer:
            # A mark of that issuer may have been here and compacted.
            floor = (yield from read_floors(sql, sql.read_floors, tx.downstream)).get(wanted.issuer, 0)
            if isinstance(to, Token) and to.value < floor:
                raise ValueError(
                    f"marks of {to.issuer} were compacted up to {floor}: {to} would open {name!r} to older tokens"
                )
            new = Token(max(new.value, floor - 1), new.issuer, new.lineage)
        for one in known:
            if isinstance(to, Token) and order(to, one) < 0:
                raise ValueError(f"{name!r} has seen {one} of that issuer: {to} would open it to older tokens")
            if not isinstance(to, Token) and one.value > new.value:
                new = one
        yield Statement(sql.adopt, {"resource": name, **token_params(new, process_holder())})
        if in_row is not None:
            yield from options.adopt_in_row(tx, name, new, process_holder())
        if kept is None and (yield Statement(sql.explain_one, {"resource": name}))[0][7] != 1:
            raise moved(tx.downstream, (name,))  # made since it was looked for: not judged, and overwritten by now
        detail = {"issuer": "", "lineage": "", "value": -1, "to": str(new)}
        if before is not None:
            detail |= {"issuer": before.issuer, "lineage": before.lineage, "value": before.value}
        yield Statement(sql.insert_act, act_of("adopt", name, reason, detail, actor))
        return new

    def plan(tx: Tx, sql: Dialect, options: Options) -> Plan[Token]:
        return (yield from all_or_nothing(limited(sql, options.lock_timeout_ms, work(tx, sql, options))))

    return _change(target, schema, plan)


def compact(
    target: Any,
    below: Token,
    *,
    live: Iterable[Token] = (),
    idle: float = 3600,
    reason: str = "",
    actor: str | None = None,
    schema: str | None = None,
) -> Any:
    """Remove the marks of ``below``'s issuer under its value, and set the floor that keeps their resources closed.

    From then on a token of that issuer below the floor is refused by every resource without a mark: nothing shows
    that no newer one was there. So ``below`` must not be above the oldest token with which somebody may still write:
    pass those that you know as ``live`` (a job is given a new token at each claim; the oldest running one counts).
    A floor never falls. Marks raised within the last ``idle`` seconds, marks in use, and marks of resources that came
    from an issuer without a floor above theirs stay. Recorded. Returns how many were removed.

    It waits for transactions that are making marks, at most the lock timeout, and who makes one meanwhile waits behind
    it. For a shorter one pass ``SqlGuard(lock_timeout=0.5).on(engine)`` as the target.

    Raises ``ValueError`` if ``below`` is above a live token.
    """
    for one in live:
        if one.issuer == below.issuer and one.value < below.value:
            raise ValueError(f"the floor {below} is above {one}, which is live: its holder could not write any more")

    def work(tx: Tx, sql: Dialect) -> Plan[int]:
        # Whoever makes a mark holds this row to his commit, and reads it after the mark was made: after we have it,
        # nobody can make a mark under the old floor, and all who did have committed.
        if sql.queue_for_floors:
            yield Statement(sql.queue_for_floors)
        floors = yield from read_floors(sql, sql.lock_floors, tx.downstream)
        floors[below.issuer] = max(below.value, floors.get(below.issuer, 0))
        yield Statement(sql.store_floors, {"floors": json.dumps(floors)})
        facts = {"issuer": below.issuer, "floor": below.value, "idle": float(idle)}
        rows = yield Statement(sql.compact, facts)
        if sql.name == "mysql":
            for (name,) in rows:
                yield Statement(sql.unmake_one, {"resource": name})
        yield Statement(sql.insert_act, act_of("compact", None, reason, {**facts, "removed": len(rows)}, actor))
        return len(rows)

    def plan(tx: Tx, sql: Dialect, options: Options) -> Plan[int]:
        return (yield from limited(sql, options.lock_timeout_ms, work(tx, sql)))

    return _change(target, schema, plan)


def guard_of(target: Any, schema: str | None) -> Any:
    """The guard of a target, or the target itself where it is one: it has options of its own."""
    return target if isinstance(target, SqlTargetGuard) else SqlGuard(schema=schema).on(target)


def act_of(
    kind: str, resource: str | None, reason: str, detail: dict[str, Any], actor: str | None = None
) -> dict[str, Any]:
    """The parameters with which an act is recorded."""
    return {
        "kind": kind,
        "resource": resource,
        "actor": actor or process_holder(),
        "reason": reason,
        "detail": json.dumps(detail),
    }


def _change(target: Any, schema: str | None, plan: Callable[[Tx, Dialect, Options], Plan[Any]]) -> Any:
    guard = guard_of(target, schema)
    options: Options = guard._options
    return guard.perform(lambda tx: plan(tx, options.dialect(tx.dialect), options))
