"""Reading: a mark, and whatever else changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from redis.exceptions import ResponseError

from adapters.redis._dialogue import PAUSES, Dialogue
from adapters.redis._errors import LOST, ServerRefusedError, nothing_done, unreachable
from adapters.redis._keys import mark_key
from adapters.redis._wire import packed
from fencing import Mark, Token
from fencing.errors import FencingError


def reading(resource: str, downstream: str) -> Dialogue[Mark | None]:
    """Read a mark. A lost reply is asked for again: reading changes nothing."""
    fields = yield from asking(("HMGET", mark_key(resource), "token", "holder", "at"), downstream)
    if fields[0] is None and (yield from asking(("EXISTS", mark_key(resource)), downstream)):
        # Not the mark that was made a moment ago.
        fields = yield from asking(("HMGET", mark_key(resource), "token", "holder", "at"), downstream)
        if fields[0] is None:
            raise no_mark(resource, "it has no token", downstream)
    return as_mark(resource, fields, downstream)


def as_mark(resource: str, fields: Sequence[bytes | None], downstream: str) -> Mark | None:
    """The mark of which these are the token, holder and time."""
    token, holder, at = fields
    if token is None:
        return None
    try:
        return Mark(Token.parse(token.decode()), (holder or b"").decode("utf-8", "replace"), as_moment(at or b""))
    except ValueError as exc:
        raise no_mark(resource, str(exc), downstream) from exc


def as_moment(microseconds: bytes) -> datetime:
    """A time as the script writes it."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(microseconds))


def no_mark(resource: str, why: str, downstream: str) -> ServerRefusedError:
    """The error for something else under the key of a mark: what it says of the token, nobody knows."""
    return ServerRefusedError(
        f"{downstream}: {mark_key(resource)!r} does not hold a mark ({why}): remove that key, then raise the fence; "
        "nothing was written",
        resource=resource,
        downstream=downstream,
    )


def asking(words: tuple[str, ...], downstream: str) -> Dialogue[Any]:
    """Send a command that only reads, again if its reply is lost. Raises translated errors."""
    lost: BaseException | None = None
    for pause in PAUSES:
        try:
            if pause:
                yield pause
            yield None
            return (yield packed(*words))
        except LOST as exc:
            lost = exc
        except ResponseError as exc:
            said = nothing_done(exc, downstream)
            raise (
                said or FencingError(f"{downstream} answered {words[0]} with: {exc}", downstream=downstream)
            ) from exc
    assert lost is not None
    raise unreachable(lost, downstream) from lost
