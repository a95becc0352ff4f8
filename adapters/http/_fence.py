"""What a request shows: which resources, with which token, held by whom, under which idempotency key."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from adapters.http._fields import parse_item, parse_list, serialize_item
from fencing import Token
from fencing._law import check_resources
from fencing.errors import FencingError

TOKEN_FIELD: Final = "Fencing-Token"
KEY_FIELD: Final = "Idempotency-Key"
MAX_KEY: Final = 255
"""The longest idempotency key, in bytes of UTF-8."""


class FenceMissingError(FencingError):
    """The request shows no token, or no key where one is asked for (428, RFC 6585). Nothing was written."""


class FenceFieldError(FencingError):
    """The request's field is not well formed, or is about another resource (400). Nothing was written."""


@dataclass(frozen=True, slots=True)
class Fence:
    """What a request shows. Pass it to ``fenced_write()`` as ``token=``, and its ``key`` as ``once=``.

    ``resources``: the names that the caller wrote, sorted. ``token``: the one token of all of them. ``holder``: who
    the caller says to be, "" if it does not: for people to read. ``key``: the idempotency key or None. ``began_at``
    (aware): when the work began, as the caller says, or None: with it, a service that purges its records of applied
    keys still takes the keys of work that is younger (see ``adapters.sql.purge_applied``).
    """

    resources: tuple[str, ...]
    token: Token
    holder: str = ""
    key: str | None = None
    began_at: datetime | None = None

    def fields(self) -> dict[str, str]:
        """The fields of a request that shows this."""
        parameters = [("token", str(self.token)), *([("holder", self.holder)] if self.holder else [])]
        if self.began_at is not None:
            parameters.append(("began", self.began_at.astimezone(UTC).isoformat()))
        fields = {TOKEN_FIELD: ", ".join(serialize_item(resource, parameters) for resource in self.resources)}
        if self.key is not None:
            fields[KEY_FIELD] = serialize_item(self.key)
        return fields


def fence_from(
    request: Any, /, *resources: str, issuers: Collection[str] | None = None, need_key: bool = False
) -> Fence:
    """Read what a request shows, before anything is written.

    ``request``: an ASGI scope, a WSGI environ, or a framework's request that has one of them or ``headers`` (Starlette,
    FastAPI, Flask, Django). ``resources``: those that the service is about to write; the request must name each, for a
    service decides by itself what a request is about. ``issuers``: whose tokens are taken, all if not given; a first
    write under ``on_missing="create"`` binds a resource to its issuer, so give the names. ``need_key``: whether the
    request must have an idempotency key.

    Raises :class:`FenceMissingError` (428) and :class:`FenceFieldError` (400). It says nothing of whether the token is
    the newest: only ``fenced_write()`` in the service's own transaction does. Nor does it say who the caller is:
    authenticate as ever.
    """
    values = _reader_of(request)
    text = ", ".join(values(TOKEN_FIELD))
    if not text.strip():
        raise FenceMissingError(
            f"the request has no field {TOKEN_FIELD}: say which resource is written, and your token"
        )
    try:
        named, token, holder, began_at = _read_token(text)
    except ValueError as exc:
        raise FenceFieldError(f"the field {TOKEN_FIELD} is not one: {exc}") from exc
    for resource in check_resources(resources):
        if resource not in named:
            raise FenceFieldError(
                f"the field {TOKEN_FIELD} is about {', '.join(map(repr, named))}, and the request would write "
                f"{resource!r}",
                resource=resource,
                presented=token,
            )
    if issuers is not None and token.issuer not in issuers:
        raise FenceFieldError(f"tokens of the issuer {token.issuer!r} are not taken here", presented=token)
    return Fence(named, token, holder, _read_key(values(KEY_FIELD), need_key), began_at)


def fingerprint(*parts: str | bytes) -> str:
    """What an idempotency key stands for: a digest of the request's method, path and body, to pass as ``fingerprint=``.

    The same key with another fingerprint is a ``KeyConflictError`` (409).
    """
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:%b" % (len(content), content))
    return digest.hexdigest()


def _read_token(text: str) -> tuple[tuple[str, ...], Token, str, datetime | None]:
    names: list[str] = []
    shown: set[tuple[str, str, str]] = set()
    for resource, parameters in parse_list(text):
        token, holder, began = (parameters.get(name, "") for name in ("token", "holder", "began"))
        if not token or holder is None or began is None:
            raise ValueError(f"{resource!r} has no parameter token, or one that is no string")
        names.append(resource)
        shown.add((token, holder, began))
    if len(shown) != 1:
        raise ValueError("its members do not all show the same token, holder and beginning")
    if len(set(names)) != len(names):
        raise ValueError("it names a resource twice")
    [(written, holder, began)] = shown
    # For people to read, and kept with the mark: no database should stumble over a control character in it.
    readable = "".join(character if character.isprintable() else " " for character in holder[:255])
    return check_resources(tuple(names)), Token.parse(written), readable, _read_moment(began) if began else None


def _read_moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.utcoffset() is None:
        raise ValueError(f"began={text!r} has no offset from UTC")
    try:
        return moment.astimezone(UTC)
    except OverflowError as exc:
        raise ValueError(f"began={text!r} lies beyond the years 1 to 9999 in UTC") from exc


def _read_key(values: list[str], need_key: bool) -> str | None:
    if not values:
        if need_key:
            raise FenceMissingError(f"the request has no field {KEY_FIELD}: name the effect, the same at every try")
        return None
    if len(values) > 1:
        raise FenceFieldError(f"the field {KEY_FIELD} is there twice")
    try:
        key, _ = parse_item(values[0])
    except ValueError as exc:
        raise FenceFieldError(f"the field {KEY_FIELD} is not one (a string in double quotes): {exc}") from exc
    if not is_key(key):
        raise FenceFieldError(f"the field {KEY_FIELD} is not one: a key is 1 to {MAX_KEY} bytes of printable text")
    return key


def is_key(text: str) -> bool:
    """Whether it can be an idempotency key."""
    return text.isprintable() and 0 < len(text.encode()) <= MAX_KEY


def _reader_of(request: Any) -> Callable[[str], list[str]]:
    """How to read a field of this kind of request: all its lines, in order."""
    scope = request if isinstance(request, Mapping) else getattr(request, "scope", None)
    if isinstance(scope, Mapping) and "headers" in scope:  # ASGI
        pairs: Iterable[tuple[bytes, bytes]] = scope["headers"]
        lines = [(name.lower(), value) for name, value in pairs]
        return lambda field: [value.decode("latin-1") for name, value in lines if name == field.lower().encode()]
    for environ in (request, getattr(request, "environ", None), getattr(request, "META", None)):
        if isinstance(environ, Mapping) and "REQUEST_METHOD" in environ:  # WSGI (PEP 3333), Django
            found: Mapping[str, Any] = environ
            return lambda field: _only(found.get("HTTP_" + field.upper().replace("-", "_")))
    headers = getattr(request, "headers", None)
    if headers is not None and hasattr(headers, "get"):
        for every in ("getlist", "get_list", "get_all", "getall"):
            if hasattr(headers, every):
                return lambda field: list(getattr(headers, every)(field) or ())
        return lambda field: _only(headers.get(field))
    raise TypeError(
        f"fence_from takes an ASGI scope, a WSGI environ, or a request with headers, not {type(request).__name__}"
    )


def _only(value: Any) -> list[str]:
    return [] if value is None else [str(value)]
