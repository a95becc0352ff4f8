"""The part of the outbox that people use: look, find out, send again, stop, purge."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Literal, TypeVar, cast, get_args

from adapters._tx import Plan, SyncTx, is_async, run, run_async, transaction_of
from adapters.email._acts import Resolution, cancel_plan, purge_plan, requeue_plan, resolve_plan
from adapters.email._addresses import check_text
from adapters.email._entries import bytes_plan, counts_plan, list_plan, show_plan, stats_plan
from adapters.email._sql import TABLES, check_dialect
from adapters.email._states import FINISHED, STATES, State

T = TypeVar("T")


class People:
    """Looks and acts on what is in the outbox, in the caller's transaction; each is awaitable for an async ``tx``.

    Acts ask for ``actor`` (who) and ``reason`` (why), which stand in the audit for good.
    """

    def list(
        self,
        tx: Any,
        *,
        state: State | None = None,
        tenant: str | None = None,
        order_key: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> Any:
        """The newest rows as :class:`Entry`: of one ``state``, ``tenant`` or ``order_key`` if given, and older than
        the id ``before``."""
        if state is not None and state not in STATES:
            raise ValueError(f"state {state!r} is none of {', '.join(STATES)}")
        return _look(tx, lambda _: list_plan(state, limit, tenant=tenant, order_key=order_key, before=before))

    def show(self, tx: Any, key: str) -> Any:
        """One message with recipients and audit as :class:`Details`, or None."""
        return _look(tx, lambda _: show_plan(key))

    def message(self, tx: Any, key: str) -> Any:
        """The frozen bytes of a message; None if there is none, or its bytes were purged."""
        return _look(tx, lambda _: bytes_plan(key))

    def counts(self, tx: Any) -> Any:
        """How many rows are in each state. Reads the whole table; :meth:`stats` does not."""
        return _look(tx, lambda _: counts_plan())

    def stats(self, tx: Any) -> Any:
        """Figures about what is not finished, as :class:`Stats`."""
        return _look(tx, stats_plan)

    def resolve(self, tx: Any, key: str, resolution: Resolution, *, actor: str, reason: str) -> Any:
        """End the doubt about an ``uncertain`` message; returns :class:`Act`.

        ``"sent"``: it was. ``"not-sent"``: it was not, and is sent now, even if its ``expires_at`` has passed.
        ``"failed"``: it was not, and is given up.
        Raises :class:`ActRefusedError` in any other state, :class:`UnknownMessageError` without such a message.
        """
        if resolution not in get_args(Resolution):
            raise ValueError(f"resolution {resolution!r} is none of {', '.join(get_args(Resolution))}")
        _check_act(actor, reason)
        return _act(tx, lambda dialect: resolve_plan(key, resolution, actor, reason, dialect))

    def requeue(self, tx: Any, key: str, *, actor: str, reason: str) -> Any:
        """Have a message sent (again), from any state but ``pending``; returns :class:`Act`.

        From ``sent`` it goes to every recipient once more, else to those who did not get it; even if its
        ``expires_at`` has passed. A message that is being handed over may be requeued too: its relay is refused from
        then on, and it may arrive twice; ``warning`` says so. That says nothing about the earlier hand-over: should the
        new one be refused, the message is ``uncertain``, not ``failed``. Raises :class:`ActRefusedError` if it is
        pending or its bytes were purged; :class:`UnknownMessageError`.
        """
        _check_act(actor, reason)
        return _act(tx, lambda dialect: requeue_plan(key, actor, reason, dialect))

    def cancel(self, tx: Any, key: str, *, actor: str, reason: str) -> Any:
        """Stop a message that was not handed over (``pending`` or ``claimed``); returns :class:`Act`.

        One that an earlier hand-over may have sent becomes ``uncertain``, not ``cancelled``. Raises
        :class:`ActRefusedError` where it is too late; :class:`UnknownMessageError`.
        """
        _check_act(actor, reason)
        return _act(tx, lambda dialect: cancel_plan(key, actor, reason, dialect))

    def purge(
        self,
        tx: Any,
        *,
        older_than: timedelta,
        actor: str = "",
        reason: str = "",
        what: Literal["bodies", "rows"] = "bodies",
        states: Iterable[State] = FINISHED,
        start: int = 0,
        limit: int = 1000,
        dry_run: bool = False,
    ) -> Any:
        """Take the bytes of messages that ended ``older_than`` ago, or their rows; returns :class:`Purged`.

        ``bodies`` keeps the rows, so that a late ``put`` of the same key is still a no-op; ``rows`` frees the keys:
        choose an age beyond anything that can be replayed. What is uncertain or waiting is never purged. ``limit``
        rows at a time, those with an id above ``start``: go on with ``start=purged.more`` until that is None.
        ``dry_run`` changes nothing, and wants neither ``actor`` nor ``reason``.
        """
        if not dry_run:
            _check_act(actor, reason)
        chosen = tuple(states)
        if not chosen or not set(chosen) <= set(FINISHED):
            raise ValueError(f"states are some of {', '.join(FINISHED)} (those at their end), not {chosen!r}")
        if what not in ("bodies", "rows"):
            raise ValueError(f"what is 'bodies' or 'rows', not {what!r}")
        if not isinstance(older_than, timedelta) or older_than < timedelta(0):
            raise ValueError(f"older_than is a timedelta of 0 or more, not {older_than!r}")
        if type(limit) is not int or limit < 1:
            raise ValueError(f"limit is a number of rows from 1, not {limit!r}")
        age = older_than.total_seconds()
        make = lambda dialect: purge_plan(age, what, chosen, start, limit, dry_run, actor, reason, dialect)  # noqa: E731
        return _act(tx, make)


def _check_act(actor: str, reason: str) -> None:
    for name, value in (("actor", actor), ("reason", reason)):
        if not check_text(name, value).strip():
            raise ValueError(f"{name} is empty: the audit says who acted and why")


def _look(tx: Any, make: Callable[[str], Plan[T]]) -> Any:
    return _run(tx, make, read_only=True)


def _act(tx: Any, make: Callable[[str], Plan[T]]) -> Any:
    return _run(tx, make, read_only=False)


def _run(tx: Any, make: Callable[[str], Plan[T]], *, read_only: bool) -> Any:
    transaction = transaction_of(tx, read_only=read_only, tables=TABLES)
    check_dialect(transaction.dialect)
    plan = make(transaction.dialect)
    return run_async(plan, transaction) if is_async(transaction) else run(plan, cast(SyncTx, transaction))
