"""`Outbox`: where the business transaction leaves its mail."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, datetime
from email.message import EmailMessage
from types import TracebackType
from typing import Any, cast, get_args

from adapters._tx import AsyncTx, SyncTx, is_async, run, run_async, transaction_of
from adapters.email._addresses import check_text
from adapters.email._freeze import MAX_BYTES, MAX_RECIPIENTS, Limits, freeze
from adapters.email._message import Email
from adapters.email._people import People
from adapters.email._put import Order, put_plan
from adapters.email._sql import TABLES, check_dialect
from adapters.email._states import Policy
from fencing import fenced_write, history
from fencing._law import MAX_RESOURCE_BYTES
from fencing._lease import inherited_lease, process_holder
from fencing._write import resolve_token
from fencing.errors import ContentionError

_PREFIX = "outbox/"
MAX_KEY_BYTES = MAX_RESOURCE_BYTES - len(_PREFIX)
"""The longest key, in bytes of UTF-8: with its prefix it is a fenced resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One message of :meth:`Outbox.put_many`: the arguments of :meth:`Outbox.put`."""

    message: EmailMessage | Email
    key: str
    due_at: datetime | None = None
    expires_at: datetime | None = None
    priority: int = 0
    policy: Policy = "hold"
    tenant: str | None = None
    order_key: str | None = None


class Outbox(People):
    """Mail that is sent if and only if the transaction that wrote it commits, once per key.

    ``from_`` is the sender of an :class:`Email` (or message) without one; ``envelope_from`` the address for bounces,
    if it is not the sender. ``max_bytes`` and ``max_recipients`` limit one message.
    """

    def __init__(
        self,
        *,
        from_: str = "",
        envelope_from: str = "",
        max_bytes: int = MAX_BYTES,
        max_recipients: int = MAX_RECIPIENTS,
    ) -> None:
        self._from = from_
        self._envelope_from = envelope_from
        self._limits = Limits(max_bytes, max_recipients)

    def put(
        self,
        tx: Any,
        message: EmailMessage | Email,
        *,
        key: str,
        due_at: datetime | None = None,
        expires_at: datetime | None = None,
        priority: int = 0,
        policy: Policy = "hold",
        tenant: str | None = None,
        order_key: str | None = None,
        token: Any = None,
    ) -> Any:
        """Put a message into the outbox, in the open transaction ``tx``; returns :class:`Put` (awaitable for an async
        ``tx``).

        ``tx``: SQLAlchemy Connection | Session | AsyncConnection | AsyncSession, psycopg Connection |
        AsyncConnection. ``key`` names the message (``invoice/42``): the same key with the same content is a no-op,
        whatever else is passed; with other content it is :class:`~fencing.errors.KeyConflictError`, whose ``differs``
        names the parts. Message-ID and Date are no content. ``due_at`` and ``expires_at`` are aware times; a higher
        ``priority`` (-32768 to 32767) goes first. ``policy``: what happens if nobody knows whether it was sent, see
        :data:`Policy`. ``tenant`` is for people. Messages with one ``order_key`` go one after the other, in the order
        in which they were put: each waits until the one before is at its end, for which an uncertain one needs a
        person.

        In a job or lease, or with ``token=``, the resource ``outbox/KEY`` is fenced: a holder that was overtaken gets
        :class:`~fencing.errors.StaleTokenError`. Elsewhere the key alone applies.

        Raises ``ValueError`` or ``TypeError`` that names the field; :class:`~fencing.errors.AmbiguousLeaseError`; and
        what :func:`fencing.fenced_write` raises. In each case the message is not in the outbox.
        """
        item = Item(
            message=message,
            key=key,
            due_at=due_at,
            expires_at=expires_at,
            priority=priority,
            policy=policy,
            tenant=tenant,
            order_key=order_key,
        )
        call = _Call(tx, [self._order(item)], token)
        if is_async(call.transaction):
            return call.only_async(call.transaction)
        with call.fence():
            return run(call.plan(), cast(SyncTx, call.transaction))[0]

    def put_many(self, tx: Any, items: Iterable[Item], *, token: Any = None) -> Any:
        """Put several messages at once: all of them, or none; returns a :class:`Put` for each, in their order
        (awaitable for an async ``tx``).

        As :meth:`put`, whose errors name the item too (``items[3]: …``).
        """
        orders = []
        for number, item in enumerate(items):
            if not isinstance(item, Item):
                raise TypeError(f"items[{number}] is an Item, not {type(item).__name__}")
            try:
                orders.append(self._order(item))
            except (ValueError, TypeError) as exc:
                raise type(exc)(f"items[{number}]: {exc}") from exc
        call = _Call(tx, orders, token)
        if is_async(call.transaction):
            return call.all_async(call.transaction)
        if not orders:
            return []
        transaction = cast(SyncTx, call.transaction)
        with call.fence(), transaction.savepoint():
            return run(call.plan(), transaction)

    def _order(self, item: Item) -> Order:
        _check_key(item.key)
        _check_times(item.due_at, item.expires_at)
        if type(item.priority) is not int or not -32768 <= item.priority <= 32767:
            raise ValueError(f"priority is a whole number from -32768 to 32767, not {item.priority!r}")
        if item.policy not in get_args(Policy):
            raise ValueError(f"policy {item.policy!r} is none of {', '.join(map(repr, get_args(Policy)))}")
        _check_name("tenant", item.tenant)
        _check_name("order_key", item.order_key)
        frozen = freeze(
            item.message, item.key, self._limits, default_from=self._from, envelope_from=self._envelope_from
        )
        return Order(
            item.key, frozen, item.due_at, item.expires_at, item.priority, item.policy, item.tenant, item.order_key
        )


class _Call:
    """One call of ``put`` or ``put_many``: whose transaction, under which token."""

    def __init__(self, tx: Any, orders: Sequence[Order], token: Any) -> None:
        self.transaction = transaction_of(tx, tables=TABLES)
        check_dialect(self.transaction.dialect)
        self._tx = tx
        self._orders = orders
        self._claim = inherited_lease() if token is None else token
        presented, holder = (None, process_holder()) if self._claim is None else resolve_token(self._claim)
        self._token = str(presented) if presented else None
        self._actor = holder

    def plan(self) -> Any:
        """The statements."""
        return put_plan(self._orders, self._actor, self._token, self.transaction.dialect)

    def fence(self) -> Any:
        """A fenced put is recorded as the write that it is; another one by us."""
        resources = [_PREFIX + order.key for order in self._orders]
        if self._claim is None:
            return _Recorded(self._actor, tuple(resources), self.transaction.downstream)
        return fenced_write(self._tx, *resources, token=self._claim)

    async def only_async(self, transaction: AsyncTx) -> Any:
        """The put of one, awaited."""
        async with self.fence():
            return (await run_async(self.plan(), transaction))[0]

    async def all_async(self, transaction: AsyncTx) -> Any:
        """The put of several, awaited."""
        if not self._orders:
            return []
        async with self.fence(), transaction.savepoint():
            return await run_async(self.plan(), transaction)


def _check_key(key: str) -> None:
    if not isinstance(key, str):
        raise TypeError(f"key is text that names the message, not {type(key).__name__}")
    if not key:
        raise ValueError("key is empty; name the message, for example 'invoice/42'")
    check_text("key", key)
    size = len(key.encode("utf-8"))
    if size > MAX_KEY_BYTES:
        raise ValueError(f"key has {size} bytes of UTF-8, more than {MAX_KEY_BYTES}: {key[:60]!r}…; use a digest of it")


def _check_times(due_at: datetime | None, expires_at: datetime | None) -> None:
    for name, instant in (("due_at", due_at), ("expires_at", expires_at)):
        if instant is not None and not isinstance(instant, datetime):
            raise TypeError(f"{name} is a datetime, not {type(instant).__name__}")
        if instant is not None and instant.utcoffset() is None:
            raise ValueError(
                f"{name} has no time zone: {instant.isoformat()}; pass an aware datetime, for example in UTC"
            )
        if instant is not None and not MINYEAR < instant.year < MAXYEAR:
            # In another time zone it may have a year that Python does not know.
            instead = "now" if name == "due_at" else "no end"
            raise ValueError(
                f"{name} is {instant.isoformat()}: a year from {MINYEAR + 1} to {MAXYEAR - 1} is wanted; leave it out "
                f"for {instead}"
            )
    if due_at is not None and expires_at is not None and expires_at <= due_at:
        raise ValueError(
            f"expires_at ({expires_at.isoformat()}) is not after due_at ({due_at.isoformat()}): it would never be sent"
        )


def _check_name(field: str, value: str | None) -> None:
    if value is None:
        return
    if not check_text(field, value):
        raise ValueError(f"{field} is empty; leave it out, or name it")
    if len(value.encode("utf-8")) > MAX_KEY_BYTES:
        raise ValueError(f"{field} has more than {MAX_KEY_BYTES} bytes of UTF-8: {value[:60]!r}…")


class _Recorded:
    """The event record's ``put`` of an unfenced call: ``with`` and ``async with``, like the fence in whose place it
    stands."""

    def __init__(self, actor: str, resources: tuple[str, ...], downstream: str) -> None:
        self._actor = actor
        self._resources = resources
        self._downstream = downstream
        self._began = time.monotonic_ns()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if history.recording():
            outcome: history.Outcome = (
                "accepted" if error is None else "contention" if isinstance(error, ContentionError) else "failed"
            )
            name = type(error).__name__ if error else ""
            history.emit(
                history.Event(
                    "put", outcome, self._actor, self._downstream, self._resources, error=name, began=self._began
                )
            )

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)
