"""`SqlGuard` and the guard of a target by its type."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import sessionmaker

from adapters._tx import SyncTx, is_async
from adapters._tx._sqlalchemy import dialect_of, downstream_of
from adapters.sql._open import AsyncOpenGuard, OpenGuard
from adapters.sql._options import Options
from adapters.sql._own import AsyncOwnGuard, OwnGuard
from fencing._law import OnMissing

SqlTargetGuard = OpenGuard | AsyncOpenGuard | OwnGuard | AsyncOwnGuard
"""The guard of one target."""


class SqlGuard:
    """How marks are kept in an SQL database; :meth:`on` makes the guard of one target.

    ``schema``: where the tables are (SQLite: an attached database); None: where the connection finds them.
    ``on_missing``: what a write to a resource without a mark means. ``"create"``: a first write makes it (the mark
    lives and dies with the data); ``"reject"``: only ``raise_fence`` makes marks, and a write without one raises
    ``MarkMissingError``. ``lock_timeout``: the longest wait for a mark that another transaction holds, in seconds;
    then ``ContentionError``. A shorter setting of the connection's own stays, and the connection's setting is
    untouched afterwards. None: the connection's own alone. ``bind``: which bind of a Session with several holds the
    tables. ``late_verdict``: in a psycopg ``pipeline()`` the ``with`` block begins before the verdict is known, which
    saves a round trip. A refused token fails the transaction in the server, and so nothing that is queued behind it is
    executed; the refusal is raised by what next waits for an answer, at the latest the end of the ``transaction()``
    block. What else the block does, outside of that transaction, it does unfenced. No difference outside a pipeline.

    Raises ``ValueError`` or ``TypeError`` for an option that has no meaning.
    """

    def __init__(
        self,
        *,
        schema: str | None = None,
        on_missing: OnMissing = "create",
        lock_timeout: float | None = 5.0,
        bind: Any = None,
        late_verdict: bool = False,
    ) -> None:
        self._options = Options(schema, on_missing, lock_timeout, bind, late_verdict)

    def on(self, target: Any) -> SqlTargetGuard:
        """Return the guard of ``target``, to pass to ``fenced_write``, ``raise_fence`` and ``read_mark``.

        ``target``: a SQLAlchemy Connection, Session, scoped_session, AsyncConnection, AsyncSession or a psycopg
        Connection or AsyncConnection, in a transaction; or an Engine, AsyncEngine, sessionmaker or async_sessionmaker,
        whose transactions are opened and committed here (``effect=`` form, ``raise_fence`` and ``read_mark``), and on
        contention run again with the effect, five times in all.

        Raises ``TypeError`` for any other target, for a dialect without a guard, and for a Session with several binds
        of which none was named.
        """
        known = _certain.get(type(target))
        if known is not None:
            return OpenGuard(self._options, target, None, known)
        if isinstance(target, Engine):
            dialect_of(target)
            return OwnGuard(self._options, target.connect, downstream_of(target))
        if isinstance(target, sessionmaker):
            return OwnGuard(self._options, target, self._options.transaction(target()).downstream)
        if isinstance(target, AsyncEngine):
            dialect_of(target)
            return AsyncOwnGuard(self._options, target.connect, downstream_of(target))
        if isinstance(target, async_sessionmaker):
            return AsyncOwnGuard(self._options, target, self._options.transaction(target()).downstream)
        tx = self._options.transaction(target)
        if is_async(tx):
            return AsyncOpenGuard(self._options, target, tx)
        if getattr(tx, "certain", False):
            _certain[type(target)] = type(tx)
        return OpenGuard(self._options, target, cast(SyncTx, tx))


def certain_transaction(target: Any) -> Any:
    """Return the transaction of a psycopg Connection; None for any other target, and for the first one of its type."""
    known = _certain.get(type(target))
    return None if known is None else known(target)


_certain: dict[type, Any] = {}
"""Of types of which every target has a guard: what makes the transaction of one."""

_default = SqlGuard()


def guard_for(target: Any) -> SqlTargetGuard:
    """Return the guard of ``target`` with the default options: the entry point of the group ``fencing.guards``."""
    return _default.on(target)
