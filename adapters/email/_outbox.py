"""`Outbox`: where the business transaction leaves its mail."""

from __future__ import annotations

import time
from datetime import datetime
from email.message import EmailMessage
from types import TracebackType
from typing import Any, Literal, TypeVar, cast, get_args

from adapters._tx import AsyncTx, Plan, SyncTx, is_async, run, run_async, transaction_of
from adapters.email._addresses import check_text
from adapters.email._entries import counts_plan, list_plan
from adapters.email._freeze import MAX_BYTES, MAX_RECIPIENTS, Limits, freeze
from adapters.email._message import Email
from adapters.email._put import Order, Put, put_plan
from adapters.email._sql import TABLES
from adapters.email._states import STATES, State
from fencing import fenced_write, history
from fencing._law import MAX_RESOURCE_BYTES
from fencing._lease import inherited_lease, process_holder
from fencing._write import resolve_token
from fencing.errors import ContentionError

T = TypeVar("T")

Policy = Literal["hold"]
"""What happens to a message of which nobody knows whether it was sent. ``hold``: it waits for a person, as
``uncertain``."""

_PREFIX = "outbox/"
MAX_KEY_BYTES = MAX_RESOURCE_BYTES - len(_PREFIX)
"""The longest key, in bytes of UTF-8: with its prefix it is a fenced resource."""


class Outbox:
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
        token: Any = None,
    ) -> Any:
        """Put a message into the outbox, in the open transaction ``tx``; returns :class:`Put` (awaitable for an async
        ``tx``).

        ``tx``: SQLAlchemy Connection | Session | AsyncConnection | AsyncSession, psycopg Connection |
        AsyncConnection. ``key`` names the message (``invoice/42``): the same key with the same content is a no-op,
        whatever else is passed; with other content it is :class:`~fencing.errors.KeyConflictError`, whose ``differs``
        names the parts. Message-ID and Date are no content. ``due_at`` and ``expires_at`` are aware times; a higher
        ``priority`` (-32768 to 32767) goes first.

        In a job or lease, or with ``token=``, the resource ``outbox/KEY`` is fenced: a holder that was overtaken gets
        :class:`~fencing.errors.StaleTokenError`. Elsewhere the key alone applies.

        Raises ``ValueError`` or ``TypeError`` that names the field; :class:`~fencing.errors.AmbiguousLeaseError`; and
        what :func:`fencing.fenced_write` raises. In each case the message is not in the outbox.
        """
        _check_key(key)
        _check_times(due_at, expires_at)
        if type(priority) is not int or not -32768 <= priority <= 32767:
            raise ValueError(f"priority is a whole number from -32768 to 32767, not {priority!r}")
        if policy not in get_args(Policy):
            raise ValueError(
                f"policy {policy!r} is not known here; supported: {', '.join(map(repr, get_args(Policy)))}"
            )
        frozen = freeze(message, key, self._limits, default_from=self._from, envelope_from=self._envelope_from)
        transaction = transaction_of(tx, tables=TABLES)
        claim = inherited_lease() if token is None else token
        presented, holder = (None, process_holder()) if claim is None else resolve_token(claim)
        order = Order(key, frozen, due_at, expires_at, priority, policy, holder, str(presented) if presented else None)
        plan = put_plan(order, transaction.dialect)
        # A fenced put is recorded as the write that it is; the other one here.
        fence = (
            _Recorded(order, transaction.downstream) if claim is None else fenced_write(tx, _PREFIX + key, token=claim)
        )
        if is_async(transaction):
            return _put_async(transaction, plan, fence)
        with fence:
            return run(plan, cast(SyncTx, transaction))

    def list(self, tx: Any, *, state: State | None = None, limit: int = 100) -> Any:
        """The newest rows, of one state if given, as :class:`Entry` (awaitable for an async ``tx``)."""
        if state is not None and state not in STATES:
            raise ValueError(f"state {state!r} is none of {', '.join(STATES)}")
        return _read(tx, list_plan(state, limit))

    def counts(self, tx: Any) -> Any:
        """How many rows are in each state (awaitable for an async ``tx``)."""
        return _read(tx, counts_plan())


async def _put_async(tx: AsyncTx, plan: Plan[Put], fence: Any) -> Put:
    async with fence:
        return await run_async(plan, tx)


def _read(tx: Any, plan: Plan[T]) -> Any:
    transaction = transaction_of(tx, read_only=True, tables=TABLES)
    return run_async(plan, transaction) if is_async(transaction) else run(plan, cast(SyncTx, transaction))


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
    if due_at is not None and expires_at is not None and expires_at <= due_at:
        raise ValueError(
            f"expires_at ({expires_at.isoformat()}) is not after due_at ({due_at.isoformat()}): it would never be sent"
        )


class _Recorded:
    """The event record's ``put`` of an unfenced call: ``with`` and ``async with``, like the fence in whose place it
    stands."""

    def __init__(self, order: Order, downstream: str) -> None:
        self._order = order
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
            resources = (_PREFIX + self._order.key,)
            name = type(error).__name__ if error else ""
            history.emit(
                history.Event(
                    "put", outcome, self._order.actor, self._downstream, resources, error=name, began=self._began
                )
            )

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)
