"""The verdicts of the Redis guard on a real server, through the blocking and the asyncio client alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
import redis.asyncio

from adapters.redis import Recorder, RedisGuard
from fencing import Mark, Token, errors, fenced_write, raise_fence, read_mark

A = "lineage-a"


def token(value: int, issuer: str = "shop", lineage: str = A) -> Token:
    return Token(value, issuer, lineage)


class Blocking:
    """The fenced calls over ``redis.Redis``."""

    def __init__(self, url: str, **options: Any) -> None:
        self.client = redis.Redis.from_url(url)
        self.target: Any = RedisGuard(self.client, **options) if options else self.client

    def write(self, body: Callable[[Recorder], Any], *resources: str, token: Token) -> Any:
        with fenced_write(self.target, *resources, token=token) as recorder:
            return body(recorder)

    def raise_fence(self, *resources: str, token: Token) -> None:
        raise_fence(self.target, *resources, token=token)

    def read_mark(self, resource: str) -> Mark | None:
        mark: Mark | None = read_mark(self.target, resource)
        return mark


class Asyncio:
    """The same over ``redis.asyncio.Redis``; each call in an event loop of its own, with a client of its own."""

    def __init__(self, url: str, **options: Any) -> None:
        self._url = url
        self._options = options

    def _run(self, call: Callable[[Any], Any]) -> Any:
        async def main() -> Any:
            async with redis.asyncio.Redis.from_url(self._url) as client:
                return await call(RedisGuard(client, **self._options) if self._options else client)

        return asyncio.run(main())

    def write(self, body: Callable[[Recorder], Any], *resources: str, token: Token) -> Any:
        async def call(target: Any) -> Any:
            async with fenced_write(target, *resources, token=token) as recorder:
                return body(recorder)

        return self._run(call)

    def raise_fence(self, *resources: str, token: Token) -> None:
        self._run(lambda target: raise_fence(target, *resources, token=token))

    def read_mark(self, resource: str) -> Mark | None:
        mark: Mark | None = self._run(lambda target: read_mark(target, resource))
        return mark


@pytest.fixture(params=[Blocking, Asyncio], ids=["blocking", "asyncio"])
def kind(request: pytest.FixtureRequest) -> type[Blocking | Asyncio]:
    chosen: type[Blocking | Asyncio] = request.param
    return chosen


@pytest.fixture
def plain(valkey_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey_url) as client:
        yield client


def test_the_paused_worker_is_refused(kind: Any, valkey_url: str, plain: redis.Redis) -> None:
    calls = kind(valkey_url)
    calls.raise_fence("cart/7", token=token(1))
    calls.write(lambda r: r.set("x", "first"), "cart/7", token=token(1))
    calls.write(lambda r: r.set("x", "second"), "cart/7", token=token(2))
    with pytest.raises(errors.StaleTokenError) as caught:
        calls.write(lambda r: r.set("x", "first again"), "cart/7", token=token(1))
    assert plain.get("x") == b"second"
    assert (caught.value.presented, caught.value.mark) == (token(1), token(2))
    assert (caught.value.resource, caught.value.downstream) == ("cart/7", f"redis:{valkey_url[8:]}")


def test_a_raised_fence_stops_the_older_holder_before_the_newer_one_writes(kind: Any, valkey_url: str) -> None:
    calls = kind(valkey_url)
    calls.raise_fence("a", "b", token=token(2))
    for name in ("a", "b"):
        with pytest.raises(errors.StaleTokenError):
            calls.write(lambda r: r.set("x", 1), name, token=token(1))
    with pytest.raises(errors.StaleTokenError):
        calls.raise_fence("a", token=token(1))


def test_the_mark_tells_who_and_when(kind: Any, valkey_url: str) -> None:
    calls = kind(valkey_url)
    calls.raise_fence("a", token=token(2))
    mark = calls.read_mark("a")
    assert mark is not None
    assert mark.token == token(2)
    assert mark.holder
    assert mark.at is not None
    assert abs(datetime.now(UTC) - mark.at) < timedelta(minutes=1)
    assert calls.read_mark("b") is None
