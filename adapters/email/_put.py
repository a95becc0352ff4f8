"""`put`: the statements of one message entering the outbox, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from adapters._tx import Plan, Rows, Statement
from adapters.email._content import differing
from adapters.email._freeze import Frozen
from adapters.email._sql import now, to_database
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
    policy: str
    actor: str
    token: str | None


def put_plan(order: Order, dialect: str) -> Plan[Put]:
    """Insert the message, or find that it is there already.

    Raises :class:`~fencing.errors.KeyConflictError` if the key stands for another message. A concurrent ``put`` of
    the key is waited for: the unique key decides, not a look beforehand.
    """
    rows = yield Statement(_INSERT.format(now=now(dialect)), _row(order, dialect))
    if rows:
        number = rows[0][0]
        yield from _insert_rest(order, number, dialect)
        return Put(True, number)
    rows = yield Statement("select id, content from fencing_outbox where key = :key", {"key": order.key})
    if not rows:
        raise ContentionError(
            f"outbox: the message under the key {order.key!r} was removed just now; nothing was written, try again",
            resource=f"outbox/{order.key}",
            downstream="outbox",
        )
    number, stored = rows[0]
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
    return Put(False, number)


_INSERT = """\
insert into fencing_outbox (key, state, priority, due_at, expires_at, policy,
                            mail_from, message_id, content, message, size, created_at, updated_at)
values (:key, 'pending', :priority, coalesce(:due_at, {now}), :expires_at, :policy,
        :mail_from, :message_id, :content, :message, :size, {now}, {now})
on conflict (key) do nothing
returning id"""


def _row(order: Order, dialect: str) -> dict[str, Any]:
    frozen = order.frozen
    return {
        "key": order.key,
        "priority": order.priority,
        "due_at": to_database(dialect, order.due_at),
        "expires_at": to_database(dialect, order.expires_at),
        "policy": order.policy,
        "mail_from": frozen.mail_from,
        "message_id": frozen.message_id,
        "content": frozen.content,
        "message": frozen.message,
        "size": len(frozen.message),
    }


def _insert_rest(order: Order, number: int, dialect: str) -> Generator[Statement, Rows, None]:
    params: dict[str, Any] = {"id": number}
    values = []
    for position, address in enumerate(order.frozen.recipients):
        params[f"a{position}"] = address
        values.append(f"(:id, :a{position}, {position}, 'pending', {now(dialect)})")
    yield Statement(
        "insert into fencing_outbox_recipient (outbox_id, address, position, state, updated_at) values "
        + ", ".join(values),
        params,
    )
    yield Statement(
        "insert into fencing_outbox_event (outbox_id, at, kind, actor, token, outcome) "
        f"values (:id, {now(dialect)}, 'put', :actor, :token, 'pending')",
        {"id": number, "actor": order.actor, "token": order.token},
    )
