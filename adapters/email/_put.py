"""`put`: the statements of one message entering the outbox, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from adapters._tx import Plan, Statement
from adapters.email._content import differing
from adapters.email._freeze import Frozen
from adapters.email._sql import in_list, now, to_database
from adapters.email._states import UNFINISHED, Policy, sql_list
from fencing.errors import ContentionError, KeyConflictError


@dataclass(frozen=True, slots=True)
class Put:
    """The answer of ``put``: whether the message is new, and the id of its row."""

    created: bool
    id: int


@dataclass(frozen=True, slots=True)
class Order:
    """A message with everything that its row needs."""

    key: str
    frozen: Frozen
    due_at: datetime | None
    expires_at: datetime | None
    priority: int
    policy: Policy
    tenant: str | None
    order_key: str | None


CHUNK = 200
"""Rows of one statement: far below the number of parameters that a server takes."""


def put_plan(orders: Sequence[Order], actor: str, token: str | None, dialect: str) -> Plan[list[Put]]:
    """Insert the messages, or find that they are there already; answers in the order given.

    Raises :class:`~fencing.errors.KeyConflictError` if a key stands for another message. A concurrent ``put`` of
    a key is waited for: the unique key decides, not a look beforehand.
    """
    yield from _take_turns(orders, dialect)
    answers: list[Put] = []
    for start in range(0, len(orders), CHUNK):
        answers += yield from _put_some(orders[start : start + CHUNK], actor, token, dialect)
    return answers


def _take_turns(orders: Sequence[Order], dialect: str) -> Plan[None]:
    """Writers of one order key wait for each other, so that rows become visible in the order of their ids: a message
    that commits later can have been put earlier otherwise. SQLite has one writer at a time anyway."""
    if dialect == "postgresql":
        for order_key in sorted({order.order_key for order in orders if order.order_key is not None}):
            yield Statement(
                "select pg_advisory_xact_lock(hashtextextended('fencing_outbox ' || :order_key, 0))",
                {"order_key": order_key},
            )


def _put_some(orders: Sequence[Order], actor: str, token: str | None, dialect: str) -> Plan[list[Put]]:
    inserted = yield _insert(orders, dialect)
    created: dict[str, int] = dict(inserted)
    if created:
        first = {order.key: order for order in reversed(orders) if order.key in created}
        yield from _insert_rest([(created[key], first[key]) for key in created], actor, token, dialect)
    stored: dict[str, tuple[int, str]] = {}
    if len(created) < len(orders):  # a key that is there already, or twice among those given
        stored = yield from _stored([order.key for order in orders])
        for order in orders:
            _compare(order, stored.get(order.key))
    answers, told = [], set()
    for order in orders:
        if order.key in created:
            answers.append(Put(order.key not in told, created[order.key]))
            told.add(order.key)
        else:
            answers.append(Put(False, stored[order.key][0]))
    return answers


_COLUMNS = (
    "key, state, priority, due_at, expires_at, policy, tenant, order_key, waits,"
    " mail_from, message_id, content, message, size, created_at, updated_at"
)


def _insert(orders: Sequence[Order], dialect: str) -> Statement:
    present = now(dialect)
    params: dict[str, Any] = {}
    values = []
    behind: set[str] = set()
    for n, order in enumerate(orders):
        waits = "false"
        if order.order_key in behind:
            waits = "true"
        elif order.order_key is not None:
            behind.add(order.order_key)
            waits = (
                f"exists(select 1 from fencing_outbox e where e.order_key = :order_key{n}"
                f" and e.order_key is not null and e.state in {sql_list(UNFINISHED)})"
            )
        frozen = order.frozen
        params |= {
            f"key{n}": order.key,
            f"priority{n}": order.priority,
            f"due_at{n}": to_database(dialect, order.due_at),
            f"expires_at{n}": to_database(dialect, order.expires_at),
            f"policy{n}": order.policy,
            f"tenant{n}": order.tenant,
            f"order_key{n}": order.order_key,
            f"mail_from{n}": frozen.mail_from,
            f"message_id{n}": frozen.message_id,
            f"content{n}": frozen.content,
            f"message{n}": frozen.message,
            f"size{n}": len(frozen.message),
        }
        due, expires = (
            f"cast(:{name}{n} as timestamptz)" if dialect == "postgresql" else f":{name}{n}"
            for name in ("due_at", "expires_at")
        )
        values.append(
            f"(:key{n}, 'pending', :priority{n}, coalesce({due}, {present}), {expires}, :policy{n}, :tenant{n},"
            f" :order_key{n}, {waits}, :mail_from{n}, :message_id{n}, :content{n}, :message{n}, :size{n},"
            f" {present}, {present})"
        )
    return Statement(
        f"insert into fencing_outbox ({_COLUMNS}) values {', '.join(values)}"
        " on conflict (key) do nothing returning key, id",
        params,
    )


def _stored(keys: Sequence[str]) -> Plan[dict[str, tuple[int, str]]]:
    listed, params = in_list("key", dict.fromkeys(keys))
    rows = yield Statement(f"select key, id, content from fencing_outbox where key in {listed}", params)
    return {key: (number, content) for key, number, content in rows}


def _compare(order: Order, found: tuple[int, str] | None) -> None:
    if found is None:
        raise ContentionError(
            f"outbox: the message under the key {order.key!r} was removed just now; nothing was written, try again",
            resource=f"outbox/{order.key}",
            downstream="outbox",
        )
    number, stored = found
    differs = ", ".join(differing(stored, order.frozen.content))
    if differs:
        raise KeyConflictError(
            f"outbox: the key {order.key!r} stands for another message already (row {number}); "
            f"not the same: {differs}. Nothing was written: use another key for another message",
            key=order.key,
            differs=differs,
            resource=f"outbox/{order.key}",
            downstream="outbox",
        )


def _insert_rest(made: Sequence[tuple[int, Order]], actor: str, token: str | None, dialect: str) -> Plan[None]:
    present = now(dialect)
    to = [(number, place, who) for number, order in made for place, who in enumerate(order.frozen.recipients)]
    for start in range(0, len(to), 1000):
        params: dict[str, Any] = {}
        values = []
        for n, (number, position, address) in enumerate(to[start : start + 1000]):
            params |= {f"id{n}": number, f"address{n}": address}
            values.append(f"(:id{n}, :address{n}, {position}, 'pending', {present})")
        yield Statement(
            "insert into fencing_outbox_recipient (outbox_id, address, position, state, updated_at) values "
            + ", ".join(values),
            params,
        )
    numbered = {f"id{n}": number for n, (number, _) in enumerate(made)}
    lines = (f"(:{name}, {present}, 'put', :actor, :token, 'pending')" for name in numbered)
    yield Statement(
        f"insert into fencing_outbox_event (outbox_id, at, kind, actor, token, outcome) values {', '.join(lines)}",
        {**numbered, "actor": actor, "token": token},
    )
