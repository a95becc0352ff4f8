"""Looking at marks: whom one has refused, who moved it, and which there are."""

from __future__ import annotations

from collections.abc import Sequence

from adapters.redis._dialogue import Dialogue
from adapters.redis._errors import ServerRefusedError
from adapters.redis._keys import MARK_PATTERN, mark_key, resource_of
from adapters.redis._reading import as_mark, as_moment, asking, reading
from fencing import Explanation, Mark, Refusal, Token
from fencing.errors import IssuerMismatchError, LineageConflictError, StaleTokenError

_KINDS = {"stale": StaleTokenError, "issuer": IssuerMismatchError, "lineage": LineageConflictError}
_PAGE = "1000"


def explaining(resource: str, downstream: str) -> Dialogue[Explanation]:
    """Read a mark and its last refusals: which mark refused them then is not kept, only by whom they were."""
    mark = yield from reading(resource, downstream)
    told = yield from asking(("HMGET", mark_key(resource), "refused", "adopted"), downstream)
    refused, adopted = ((text or b"").decode("utf-8", "replace").split("\n") for text in told)
    refusals = tuple(refusal for line in refused if (refusal := _refusal(line, resource, downstream)))
    return Explanation(downstream, resource, mark, refusals, tuple(_act(line) for line in adopted if line))


def _act(line: str) -> str:
    at, token, why = line.split(" ", 2)
    return f"{as_moment(at.encode()):%Y-%m-%d %H:%M:%S} taken over from {token} by {why}"


def _refusal(line: str, resource: str, downstream: str) -> Refusal | None:
    try:
        kind, token, at, holder = line.split(" ", 3)
        return Refusal(
            _KINDS[kind].__name__,
            downstream,
            resource,
            Token.parse(token),
            holder,
            None,
            None,
            None,
            as_moment(at.encode()),
        )
    except (ValueError, KeyError):
        return None


def listing(prefix: str, downstream: str) -> Dialogue[dict[str, Mark]]:
    """Read the marks of a server whose resources begin with ``prefix``. By ``SCAN``, which holds nobody up."""
    found: dict[str, Mark] = {}
    cursor = b"0"
    while True:
        answer: Sequence[bytes | list[bytes]] = yield from asking(
            ("SCAN", cursor.decode(), "MATCH", MARK_PATTERN, "COUNT", _PAGE, "TYPE", "hash"),
            downstream,
        )
        cursor, keys = answer  # type: ignore[assignment]
        for key in keys:
            assert isinstance(key, bytes)
            resource = resource_of(key.decode("utf-8", "replace"))
            if resource is None or resource in found or not resource.startswith(prefix):
                continue
            fields = yield from asking(("HMGET", mark_key(resource), "token", "holder", "at"), downstream)
            try:
                mark = as_mark(resource, fields, downstream)
            except ServerRefusedError:  # something else under its key: explain() says so
                continue
            if mark is not None:
                found[resource] = mark
        if cursor == b"0":
            return found


def page_of(found: dict[str, Mark], limit: int) -> list[tuple[str, Mark]]:
    """The first of them, by name."""
    return sorted(found.items())[:limit]
