"""The fenced calls over the blocking and over the asyncio client of Redis, behind one face."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio

from adapters.redis import Recorder, RedisGuard
from fencing import Finding, Mark, Token, fenced_write, raise_fence, read_mark

Body = Callable[[Recorder], Any]


def token(value: int, issuer: str = "shop", lineage: str = "lineage-a") -> Token:
    return Token(value, issuer, lineage)


class Blocking:
    """Over ``redis.Redis``. ``options`` are the guard's; without any the client itself is the target.

    ``client``: the options of a client for the address, or a client.
    """

    def __init__(self, url: str, client: dict[str, Any] | redis.Redis | None = None, **options: Any) -> None:
        self._client = client if isinstance(client, redis.Redis) else redis.Redis.from_url(url, **(client or {}))
        self._target: Any = RedisGuard(self._client, **options) if options else self._client

    @property
    def downstream(self) -> str:
        """What the guard calls the server."""
        return str(RedisGuard(self._client).downstream)

    def write(self, body: Body, *resources: str, token: Token) -> Any:
        with fenced_write(self._target, *resources, token=token) as recorder:
            return body(recorder)

    def effect(self, body: Body, *resources: str, token: Token) -> Any:
        return fenced_write(self._target, *resources, effect=body, token=token)

    def raise_fence(self, *resources: str, token: Token) -> None:
        raise_fence(self._target, *resources, token=token)

    def read_mark(self, resource: str) -> Mark | None:
        mark: Mark | None = read_mark(self._target, resource)
        return mark

    def diagnose(self) -> list[Finding]:
        return list(RedisGuard(self._client).diagnose() if self._target is self._client else self._target.diagnose())

    def close(self) -> None:
        self._client.close()


class Asyncio:
    """The same over ``redis.asyncio.Redis``: one event loop and one client for all its calls."""

    def __init__(self, url: str, client: dict[str, Any] | redis.asyncio.Redis | None = None, **options: Any) -> None:
        self._runner = asyncio.Runner()
        given = isinstance(client, redis.asyncio.Redis)
        self._client = client if given else redis.asyncio.Redis.from_url(url, **(client or {}))
        self._target: Any = RedisGuard(self._client, **options) if options else self._client

    @property
    def downstream(self) -> str:
        """What the guard calls the server."""
        return str(RedisGuard(self._client).downstream)

    def write(self, body: Body, *resources: str, token: Token) -> Any:
        async def call() -> Any:
            async with fenced_write(self._target, *resources, token=token) as recorder:
                return body(recorder)

        return self._runner.run(call())

    def effect(self, body: Body, *resources: str, token: Token) -> Any:
        async def call() -> Any:
            async def effect(recorder: Recorder) -> Any:
                return body(recorder)

            return await fenced_write(self._target, *resources, effect=effect, token=token)

        return self._runner.run(call())

    def raise_fence(self, *resources: str, token: Token) -> None:
        async def call() -> None:
            await raise_fence(self._target, *resources, token=token)

        self._runner.run(call())

    def read_mark(self, resource: str) -> Mark | None:
        async def call() -> Mark | None:
            mark: Mark | None = await read_mark(self._target, resource)
            return mark

        return self._runner.run(call())

    def diagnose(self) -> list[Finding]:
        async def call() -> list[Finding]:
            guard: Any = RedisGuard(self._client) if self._target is self._client else self._target
            return list(await guard.adiagnose())

        return self._runner.run(call())

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()


Calls = Blocking | Asyncio
Kind = Callable[..., Calls]
