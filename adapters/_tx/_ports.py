"""What a plan runs on: one transaction of the caller's, sync or async, whichever library it comes from."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, TypeGuard, TypeVar

from adapters._tx._plan import Plan, Rows, Statement
from fencing.errors import NotInTransactionError

T = TypeVar("T")


class SyncTx(Protocol):
    """A caller's open transaction: used, never begun (but for SQLAlchemy's autobegin), committed or closed."""

    @property
    def dialect(self) -> str:
        """``"postgresql"`` or ``"sqlite"``."""

    @property
    def downstream(self) -> str:
        """Which database, for messages: ``postgresql:NAME`` or ``sqlite:FILE``, without secrets."""

    @property
    def handle(self) -> Any:
        """What the caller passed."""

    def execute(self, statement: Statement) -> Rows:
        """Execute in the caller's transaction; driver errors come out translated.

        Raises :class:`~fencing.errors.NotInTransactionError` before anything is sent if nothing is open.
        """

    def savepoint(self) -> AbstractContextManager[None]:
        """A savepoint for the block: an exception in it undoes the block's writes and passes on."""

    def still_open(self) -> bool:
        """Whether the transaction and savepoint that the first use here found, and those made here since, are open.

        A transaction that has failed is not. No round trip.
        """

    def flush(self) -> None:
        """Send a Session's pending changes; nothing for a connection."""


class AsyncTx(Protocol):
    """The same for asyncio."""

    @property
    def dialect(self) -> str:
        """``"postgresql"`` or ``"sqlite"``."""

    @property
    def downstream(self) -> str:
        """Which database, for messages."""

    @property
    def handle(self) -> Any:
        """What the caller passed."""

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan to its end."""

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """As :meth:`SyncTx.savepoint`."""

    def still_open(self) -> bool:
        """As :meth:`SyncTx.still_open`."""

    async def flush(self) -> None:
        """As :meth:`SyncTx.flush`."""


def run(plan: Plan[T], tx: SyncTx) -> T:
    """Run a plan to its end and return its result."""
    try:
        statement = next(plan)
        while True:
            try:
                rows = tx.execute(statement)
            except Exception as exc:  # noqa: BLE001 - thrown into the plan, which raises it again
                statement = plan.throw(exc)
            else:
                statement = plan.send(rows)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        plan.close()


def is_async(tx: SyncTx | AsyncTx) -> TypeGuard[AsyncTx]:
    """Whether plans are awaited on ``tx``."""
    return hasattr(tx, "run")


async def run_async(plan: Plan[T], tx: AsyncTx) -> T:
    """Run a plan to its end and return its result."""
    return await tx.run(plan)


def nothing_holds(downstream: str, why: str) -> NotInTransactionError:
    """The error of a target without an open transaction: ``why`` says what to do."""
    return NotInTransactionError(
        f"{downstream}: no open transaction could hold the fence until the commit: {why}. Nothing was written",
        downstream=downstream,
    )
