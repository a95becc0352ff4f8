"""Refusals as problems (RFC 9457), and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from adapters.http._fence import FenceFieldError, FenceMissingError
from fencing import Token
from fencing.errors import (
    ContentionError,
    EffectError,
    FencingError,
    IssuerMismatchError,
    KeyConflictError,
    KeyExpiredError,
    LineageConflictError,
    MarkMissingError,
    OutcomeUnknownError,
    StaleTokenError,
)

CONTENT_TYPE: Final = "application/problem+json"
_PREFIX: Final = "urn:fencing-toolkit:"

# Kind, status, title, what the caller should do. The first that fits.
_PROBLEMS: Final[tuple[tuple[type[FencingError], str, int, str, str], ...]] = (
    (
        FenceMissingError, "fence-missing", 428, "No token was shown",
        "Take a lease, and send the field that is missing.",
    ),
    (FenceFieldError, "fence-malformed", 400, "The field cannot be used", "Send it as the service expects it."),
    (
        StaleTokenError, "stale-token", 412, "A newer token was seen",
        "Stop: the work was taken over. Nothing was written.",
    ),
    (
        IssuerMismatchError, "issuer-mismatch", 409, "The resource belongs to another issuer",
        "Nothing was written. Move the resource to one issuer.",
    ),
    (
        LineageConflictError, "lineage-conflict", 409, "Two servers issued the same number",
        "Nothing was written. Fence the old issuer.",
    ),
    (
        KeyConflictError, "key-conflict", 409, "The idempotency key was used for something else",
        "Nothing was written. Use another key for another request.",
    ),
    (
        KeyExpiredError, "key-expired", 410, "The idempotency key is older than the records that are kept",
        "Nothing was written now; it may have been before. Look; new work takes a new key.",
    ),
    (
        MarkMissingError, "mark-missing", 503, "The resource's mark is lost",
        "Nothing was written. Raise the fence at the service before writing.",
    ),
    (
        ContentionError, "contention", 503, "The resource is busy",
        "Nothing was written. Send the same request again.",
    ),
    (
        OutcomeUnknownError, "outcome-unknown", 500, "It is not known whether it was written",
        "Send the same request again only with the same idempotency key.",
    ),
)  # fmt: skip
_RETRY_AFTER: Final = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """An answer: ``status``, ``headers`` and ``body`` (JSON)."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def problem_of(error: FencingError) -> Problem | None:
    """The answer that an error means; ``None`` where it is the service's own fault, and a plain 500.

    It tells the resource, both tokens and the mark's holder, and nothing of the service's inside: its databases' names
    stay out.
    """
    if isinstance(error, EffectError):
        return None
    found = next((row for row in _PROBLEMS if isinstance(error, row[0])), None)
    if found is None:
        return None
    _, kind, status, title, advice = found
    facts: dict[str, Any] = {
        "type": _PREFIX + kind,
        "title": title,
        "status": status,
        "detail": str(error) if isinstance(error, FenceMissingError | FenceFieldError) else advice,
        "resource": error.resource,
        "presented": error.presented and str(error.presented),
        "mark": error.mark and str(error.mark),
        "holder": error.holder,
    }
    if isinstance(error, KeyConflictError | KeyExpiredError):
        facts["key"] = error.key
    body = json.dumps({name: value for name, value in facts.items() if value is not None}).encode()
    headers = {"content-type": CONTENT_TYPE, "content-length": str(len(body)), "cache-control": "no-store"}
    if isinstance(error, ContentionError):
        headers["retry-after"] = str(_RETRY_AFTER)
    return Problem(status, headers, body)


def error_from(status: int, content_type: str, body: bytes, downstream: str) -> FencingError | None:
    """The error that a service's answer means; ``None`` for an answer that is none of these problems."""
    if status < 400 or content_type.partition(";")[0].strip().lower() != CONTENT_TYPE:
        return None
    try:
        facts = json.loads(body)
    except ValueError:
        return None
    if not isinstance(facts, dict):
        return None
    for kind, name, its_status, title, _ in _PROBLEMS:
        if facts.get("type") == _PREFIX + name and status == its_status:
            text = f"{downstream} answered {status}: {title}. {_text(facts, 'detail') or ''}".rstrip()
            about: dict[str, Any] = {
                "resource": _text(facts, "resource"),
                "presented": _token(facts, "presented"),
                "mark": _token(facts, "mark"),
                "holder": _text(facts, "holder"),
                "downstream": downstream,
            }
            if about["mark"]:
                text += f" Presented {about['presented']} to {about['resource']!r}, mark {about['mark']}"
                text += f" set by {about['holder']}." if about["holder"] else "."
            if kind in (KeyConflictError, KeyExpiredError):
                about["key"] = _text(facts, "key") or ""
            return kind(text, **about)
    return None


def _text(facts: Mapping[str, Any], name: str) -> str | None:
    value = facts.get(name)
    return value[:1024] if isinstance(value, str) else None


def _token(facts: Mapping[str, Any], name: str) -> Token | None:
    try:
        return Token.parse(_text(facts, name) or "")
    except ValueError:
        return None
