"""The service's side for ASGI (Starlette, FastAPI, Litestar, Quart)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from adapters.http._problem import problem_of
from fencing.errors import FencingError

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class FenceMiddleware:
    """Answers a refusal that the application lets through with its problem (see :func:`problem_of`).

    In Starlette and FastAPI: ``app.add_middleware(FenceMiddleware)``. An error after the answer has begun goes on as
    it is.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except FencingError as exc:
            problem = None if begun else problem_of(exc)
            if problem is None:
                raise
            headers = [(name.encode(), value.encode()) for name, value in problem.headers.items()]
            await send({"type": "http.response.start", "status": problem.status, "headers": headers})
            await send({"type": "http.response.body", "body": problem.body})
