"""The law: what a downstream decides when it is shown a token. The only comparison of tokens in Python.

The guards' SQL and Lua decide the same on their own servers; the contract suite holds them to this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal, NoReturn

from fencing.errors import (
    FenceRejected,
    IssuerMismatchError,
    LineageConflictError,
    MarkMissingError,
    StaleTokenError,
)

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from fencing._token import Token

OnMissing = Literal["create", "reject"]
"""What a first write to a resource without a mark means: it makes the mark, or the mark was lost and it is refused."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The high-water mark of a resource:

    the newest token seen, who brought it, and when (aware, the downstream's clock).
    """

    token: Token
    holder: str
    at: datetime | None


class Verdict(Enum):
    """What the law says of a token shown to a resource."""

    ADVANCED = "advanced"
    REPEATED = "repeated"
    STALE = "stale"
    ISSUER_MISMATCH = "issuer mismatch"
    LINEAGE_CONFLICT = "lineage conflict"
    MARK_MISSING = "mark missing"
    BELOW_FLOOR = "below the floor"

    @property
    def accepted(self) -> bool:
        """Whether the write may go ahead."""
        return self in (Verdict.ADVANCED, Verdict.REPEATED)


def judge(mark: Token | None, presented: Token, on_missing: OnMissing = "create", floor: int = 0) -> Verdict:
    """Say what a resource whose newest token is ``mark`` answers to ``presented``.

    Higher value → *advanced*; equal value and lineage → *repeated* (a holder writes many times); lower → *stale*;
    another issuer and an equal value of another lineage have no order and are refused by name. A resource without a
    mark refuses values below ``floor``, up to which marks of that issuer were compacted.
    """
    if mark is None:
        if presented.value < floor:
            return Verdict.BELOW_FLOOR
        return Verdict.ADVANCED if on_missing == "create" else Verdict.MARK_MISSING
    if mark.issuer != presented.issuer:
        return Verdict.ISSUER_MISMATCH
    if presented.value != mark.value:
        return Verdict.ADVANCED if presented.value > mark.value else Verdict.STALE
    return Verdict.REPEATED if presented.lineage == mark.lineage else Verdict.LINEAGE_CONFLICT


def order(left: Token, right: Token) -> int:
    """Return -1, 0 or 1 as ``left`` is older than, equal to or newer than ``right``.

    Raises :class:`IssuerMismatchError` or :class:`LineageConflictError` where the two have no order.
    """
    verdict = judge(right, left)
    if verdict is Verdict.ISSUER_MISMATCH:
        raise IssuerMismatchError(
            f"tokens of two issuers have no order: {left} and {right}", presented=left, mark=right
        )
    if verdict is Verdict.LINEAGE_CONFLICT:
        raise LineageConflictError(
            f"equal values of two lineages have no order: {left} and {right}", presented=left, mark=right
        )
    return {Verdict.STALE: -1, Verdict.REPEATED: 0, Verdict.ADVANCED: 1}[verdict]


_REJECTIONS: dict[Verdict, tuple[type[FenceRejected], str]] = {
    Verdict.STALE: (StaleTokenError, "a newer token was seen: the work was taken over; stop"),
    Verdict.ISSUER_MISMATCH: (
        IssuerMismatchError,
        "the mark belongs to another issuer and the two have no order; move the resource to one issuer",
    ),
    Verdict.LINEAGE_CONFLICT: (
        LineageConflictError,
        "the same number came from two lineages: two servers believe they are the issuer; fence the old one",
    ),
    Verdict.BELOW_FLOOR: (
        StaleTokenError,
        "marks were compacted up to a floor above this token, and nothing shows that no newer one was among them; "
        "come back under a new token",
    ),
    Verdict.MARK_MISSING: (
        MarkMissingError,
        'the resource has no mark and on_missing="reject"; raise the fence first (fences=, raise_fence)',
    ),
}


def reject(
    verdict: Verdict,
    resource: str,
    presented: Token,
    mark: Mark | None,
    downstream: str,
    floor: int = 0,
    late: timedelta | None = None,
) -> NoReturn:
    """Raise the error of a refusing ``verdict``, with all its facts.

    ``late``: how long after the mark was set the write came, by the downstream's clock, if it says so.
    """
    kind, why = _REJECTIONS[verdict]
    seen = f"mark {mark.token} set by {mark.holder or 'an unnamed holder'}" if mark else "no mark"
    if floor:
        seen += f", floor {floor}"
    raise kind(
        f"{downstream} refused a write to {resource!r}: presented {presented}, {seen}: {why}",
        resource=resource,
        presented=presented,
        mark=mark.token if mark else None,
        holder=mark.holder if mark else None,
        downstream=downstream,
        late=late,
    )


MAX_RESOURCE_BYTES = 512
"""The longest resource name, in bytes of UTF-8."""


def check_resources(resources: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names without repeats in the one order in which every guard takes them (by code point).

    Raises ``TypeError`` for what is not text and ``ValueError`` for an empty, too long or unencodable name.
    """
    for name in resources:
        if not isinstance(name, str):
            raise TypeError(f"a resource is named by a str, not {type(name).__name__} ({name!r})")
        if not name:
            raise ValueError("a resource's name is empty; name what the write changes, for example 'invoice/42'")
        if "\x00" in name:
            raise ValueError(f"a resource's name holds a NUL character, which PostgreSQL cannot store: {name!r}")
        if len(name) <= MAX_RESOURCE_BYTES and name.isascii():
            continue
        try:
            size = len(name.encode("utf-8"))
        except UnicodeEncodeError as exc:
            raise ValueError(f"a resource's name is not encodable as UTF-8: {name!r}") from exc
        if size > MAX_RESOURCE_BYTES:
            raise ValueError(
                f"a resource's name has at most {MAX_RESOURCE_BYTES} bytes of UTF-8, this one {size}: {name[:60]!r}…"
            )
    return tuple(sorted(set(resources))) if len(resources) > 1 else resources
