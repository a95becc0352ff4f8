"""The error tree.

A fenced write has three ends, never mixed: *accepted*; *refused* (:class:`FenceRejected`: nothing was
written, final for this token); *unknown* (:class:`OutcomeUnknownError`: the reply was lost).
Contention (:class:`ContentionError`) is a fourth thing: nothing was written and the same token may try again.

Every error carries its facts as attributes, so that code never has to parse a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from fencing._token import Token

__all__ = [
    "AmbiguousLeaseError",
    "ContentionError",
    "EffectError",
    "FenceRejected",
    "FencingError",
    "IssuerMismatchError",
    "KeyConflictError",
    "KeyExpiredError",
    "LeaseLostError",
    "LeaseUnavailableError",
    "LineageConflictError",
    "MarkMissingError",
    "NoLeaseError",
    "NotInTransactionError",
    "OutcomeUnknownError",
    "SchemaMissingError",
    "StaleTokenError",
]


class FencingError(Exception):
    """Root of every error that this toolkit raises on purpose, but for wrong arguments (``ValueError``, ``TypeError``).

    Attributes are ``None`` where a fact does not apply:
    ``resource`` (str), ``presented`` (:class:`~fencing.Token` of the writer), ``mark`` (:class:`~fencing.Token`
    that the downstream has seen), ``holder`` (str: who set that mark), ``downstream`` (str: which system said so),
    ``late`` (timedelta: how long after that mark was set the write came, by the downstream's clock).
    ``asked_again`` (bool): the fence was shown twice, since the first reply was lost, and refused the second time; the
    first may have raised it before somebody else did.
    """

    resource: str | None
    presented: Token | None
    mark: Token | None
    holder: str | None
    downstream: str | None
    late: timedelta | None
    asked_again: bool

    def __init__(
        self,
        message: str,
        *,
        resource: str | None = None,
        presented: Token | None = None,
        mark: Token | None = None,
        holder: str | None = None,
        downstream: str | None = None,
        late: timedelta | None = None,
    ) -> None:
        super().__init__(message)
        self.resource = resource
        self.presented = presented
        self.mark = mark
        self.holder = holder
        self.downstream = downstream
        self.late = late
        self.asked_again = False

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process boundaries (multiprocessing, test runners); keyword facts must survive that.
        return _rebuild, (type(self), self.args[0], dict(self.__dict__))


def _rebuild(kind: type[FencingError], message: str, facts: dict[str, Any]) -> FencingError:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(facts)
    return error


class FenceRejected(FencingError):
    """The downstream looked at the token and refused.

    Nothing was written; final for this token: do not retry under it.
    """


class StaleTokenError(FenceRejected):
    """The resource has seen a newer token: somebody else took the work over."""


class IssuerMismatchError(FenceRejected):
    """The resource's mark was set by another issuer. Tokens of two issuers have no order."""


class LineageConflictError(FenceRejected):
    """Equal number, other lineage: two servers both believe that they lead the same issuer."""


class MarkMissingError(FenceRejected):
    """The resource has no mark and the guard was told ``on_missing="reject"``: lost evidence is not permission."""


class ContentionError(FencingError):
    """Lock timeout, deadlock or serialization failure. Nothing was written; the same token may try again."""


class OutcomeUnknownError(FencingError):
    """The reply was lost: the write may or may not have been applied. Never treated as either."""


class EffectError(FencingError):
    """A command inside a Redis effect failed. Earlier commands of the same effect remain, as in ``MULTI``.

    ``index`` is the position of the failed command, counted from 0.
    """

    index: int

    def __init__(self, message: str, *, index: int, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.index = index


class NoLeaseError(FencingError):
    """``token=None`` outside any job or lease. A thread pool does not inherit the caller's lease: pass ``token=``."""


class AmbiguousLeaseError(FencingError):
    """``token=None`` inside a lease inside a job: say which of the two is meant with ``token=``."""


class LeaseLostError(FencingError):
    """The lease ended: it was lost, settled or released."""


class LeaseUnavailableError(FencingError):
    """Somebody else holds the named lease and the wait was over."""


class KeyConflictError(FencingError):
    """The idempotency key was used before with other content.

    ``key`` is the key, ``differs`` says what is not the same.
    """

    key: str
    differs: str

    def __init__(self, message: str, *, key: str, differs: str = "", **facts: Any) -> None:
        super().__init__(message, **facts)
        self.key = key
        self.differs = differs


class KeyExpiredError(FencingError):
    """The records of applied effects were purged up to a moment after this work began: it may have been applied.

    Nothing was written, and the effect was not run. ``key`` is the key, ``began_at`` when the work began (None: nobody
    said), ``horizon`` the moment before which nothing is known any more; all that began later is.
    """

    key: str
    began_at: datetime | None
    horizon: datetime | None

    def __init__(
        self,
        message: str,
        *,
        key: str,
        began_at: datetime | None = None,
        horizon: datetime | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(message, **facts)
        self.key = key
        self.began_at = began_at
        self.horizon = horizon


class NotInTransactionError(FencingError):
    """The target has no open transaction, or it ended inside the ``with`` block: nothing holds the fence."""


class SchemaMissingError(FencingError):
    """The guard's tables are not there. The message says how to create them."""
