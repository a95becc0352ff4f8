"""The client's side: hooks for ``httpx.Client`` and ``httpx.AsyncClient``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from adapters.http._fence import MAX_KEY, Fence, is_key
from adapters.http._problem import error_from
from fencing._law import check_resources
from fencing._write import began_of, resolve_token

if TYPE_CHECKING:
    import httpx

_EXTENSION: Final = "fencing"


def fenced(
    resource: str, /, *more: str, token: Any = None, key: str | None = None, began_at: datetime | None = None
) -> dict[str, Any]:
    """The ``extensions=`` of a request that writes to the resources: ``client.post(url, extensions=fenced("cart/7"))``.

    ``token=None`` means the running job's or lease's, as in ``fenced_write()``. ``key`` names the effect, the same at
    every try, and becomes the ``Idempotency-Key``. ``began_at`` (aware): when the work began that the key names, for a
    service that purges its records of keys; of a running job it is known.
    """
    shown, holder = resolve_token(token)
    if key is not None and (not isinstance(key, str) or not is_key(key)):
        raise ValueError(f"an idempotency key is 1 to {MAX_KEY} bytes of printable text, not {key!r}")
    began = began_of(token, began_at) if key is not None else None
    return {_EXTENSION: Fence(check_resources((resource, *more)), shown, holder, key, began)}


def fencing_hooks() -> dict[str, list[Callable[..., Any]]]:
    """The ``event_hooks=`` of an ``httpx.Client``.

    A request with ``extensions=fenced(...)`` gets its fields. An answer that is one of the service's problems is
    raised as the error that it means: :class:`~fencing.errors.StaleTokenError`,
    :class:`~fencing.errors.ContentionError` and so on. All else is left as it is. What httpx raises when an answer was
    lost (``ReadTimeout``, ``RemoteProtocolError``) means that the outcome is unknown: send it again with the same key.
    """
    return {"request": [_add_fields], "response": [_raise_problem]}


def async_fencing_hooks() -> dict[str, list[Callable[..., Any]]]:
    """The same for an ``httpx.AsyncClient``."""
    return {"request": [_aadd_fields], "response": [_araise_problem]}


def _add_fields(request: httpx.Request) -> None:
    fence = request.extensions.get(_EXTENSION)
    if isinstance(fence, Fence):
        request.headers.update(fence.fields())


async def _aadd_fields(request: httpx.Request) -> None:
    _add_fields(request)


def _is_about_a_fence(response: httpx.Response) -> bool:
    return response.status_code >= 400 and isinstance(response.request.extensions.get(_EXTENSION), Fence)


def _raise_problem(response: httpx.Response) -> None:
    if _is_about_a_fence(response):
        response.read()
        _raise(response)


async def _araise_problem(response: httpx.Response) -> None:
    if _is_about_a_fence(response):
        await response.aread()
        _raise(response)


def _raise(response: httpx.Response) -> None:
    url = response.request.url
    error = error_from(
        response.status_code,
        response.headers.get("content-type", ""),
        response.content,
        f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}",
    )
    if error is not None:
        raise error
