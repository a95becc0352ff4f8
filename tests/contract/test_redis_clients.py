"""Every kind of client: sockets, protocols, pools, one connection; and that none of them is changed or leaks."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from support.redis_calls import token

from adapters.redis import RedisGuard, guard_for
from fencing import errors, fenced_write, raise_fence, read_mark
from scheduler.console.embedded import Valkey


def round_trip(client: redis.Redis) -> None:
    """A write, a reply, a mark and a refusal; then the client still works and holds no connection."""
    raise_fence(client, "a", token=token(5))
    with fenced_write(client, "a", token=token(5)) as r:
        reply = r.incr("n")
    assert reply.value == 1
    mark = read_mark(client, "a")
    assert mark is not None
    with pytest.raises(errors.StaleTokenError), fenced_write(client, "a", token=token(4)) as r:
        r.incr("n")
    assert int(client.get("n")) == 1  # type: ignore[arg-type]


CLIENTS: dict[str, Callable[[str], redis.Redis]] = {
    "plain": lambda url: redis.Redis.from_url(url),
    "text": lambda url: redis.Redis.from_url(url, decode_responses=True),
    "resp2": lambda url: redis.Redis.from_url(url, protocol=2),
    "resp3": lambda url: redis.Redis.from_url(url, protocol=3),
    "another encoding": lambda url: redis.Redis.from_url(url, encoding="utf-16", decode_responses=False),
    "another database": lambda url: redis.Redis.from_url(url, db=3),
    "one connection": lambda url: redis.Redis.from_url(url, single_connection_client=True),
    "health checks": lambda url: redis.Redis.from_url(url, health_check_interval=1),
    "a pool of one": lambda url: redis.Redis(connection_pool=redis.ConnectionPool.from_url(url, max_connections=1)),
    "a blocking pool of one": lambda url: redis.Redis(
        connection_pool=redis.BlockingConnectionPool.from_url(url, max_connections=1, timeout=1)
    ),
}


@pytest.mark.parametrize("kind", CLIENTS)
def test_every_kind_of_blocking_client(kind: str, valkey_url: str) -> None:
    with CLIENTS[kind](valkey_url) as client:
        for _ in range(2):
            client.delete("n")
            round_trip(client)


def test_a_unix_socket(valkey_server: Callable[..., Valkey]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o777)
        path = f"{directory}/s"
        valkey_server(settings={"unixsocket": path, "unixsocketperm": "777"})
        with redis.Redis(unix_socket_path=path) as client:
            round_trip(client)
            assert RedisGuard(client).downstream == f"redis:{path}/0"

        async def main() -> int:
            async with redis.asyncio.Redis(unix_socket_path=path) as over_asyncio:
                async with fenced_write(over_asyncio, "a", token=token(5)) as r:
                    reply = r.incr("n")
                value: int = reply.value
                return value

        assert asyncio.run(main()) == 2


ASYNCIO_OPTIONS: list[dict[str, Any]] = [
    {},
    {"decode_responses": True},
    {"protocol": 2},
    {"protocol": 3},
    {"single_connection_client": True},
    {"max_connections": 1},
    {"health_check_interval": 1},
]


@pytest.mark.parametrize("options", ASYNCIO_OPTIONS, ids=str)
def test_every_kind_of_asyncio_client(options: dict[str, Any], valkey_url: str) -> None:
    async def main() -> None:
        async with redis.asyncio.Redis.from_url(valkey_url, **options) as client:
            await raise_fence(client, "a", token=token(5))
            async with fenced_write(client, "a", token=token(5)) as r:
                reply = r.incr("n")
            assert reply.value == 1
            with pytest.raises(errors.StaleTokenError):
                async with fenced_write(client, "a", token=token(4)) as r:
                    r.incr("n")
            assert int(await client.get("n")) == 1

    asyncio.run(main())


def test_one_client_in_several_event_loops(valkey_url: str) -> None:
    client = redis.asyncio.Redis.from_url(valkey_url)

    async def main(value: int) -> None:
        await raise_fence(client, "a", token=token(value))
        async with fenced_write(client, "a", token=token(value)) as r:
            r.incr("n")
        await client.aclose()

    for value in (5, 6):
        asyncio.run(main(value))
    assert int(redis.Redis.from_url(valkey_url).get("n")) == 2  # type: ignore[arg-type]


def test_a_cancelled_write_leaves_the_connection_clean(valkey_server: Callable[..., Valkey]) -> None:
    server = valkey_server()

    async def main() -> None:
        async with redis.asyncio.Redis.from_url(server.url, max_connections=1) as client:
            await raise_fence(client, "a", token=token(5))

            async def write() -> None:
                async with fenced_write(client, "a", token=token(5)) as r:
                    r.incr("n")

            server.command("CLIENT", "PAUSE", "60000", "WRITE")
            task = asyncio.create_task(write())
            done, _ = await asyncio.wait([task], timeout=0.3)
            assert not done
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            server.command("CLIENT", "UNPAUSE")
            assert await client.echo("mine") == b"mine"

    asyncio.run(main())


class Interrupted(redis.Connection):
    """A connection on which Ctrl-C comes after the request and before the reply, once."""

    armed = False

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        if Interrupted.armed:
            Interrupted.armed = False
            raise KeyboardInterrupt
        return super().read_response(*args, **kwargs)


class Cancelled(redis.asyncio.Connection):
    """The same for a cancellation."""

    armed = False

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        if Cancelled.armed:
            Cancelled.armed = False
            raise asyncio.CancelledError
        return await super().read_response(*args, **kwargs)


def test_an_interrupt_between_request_and_reply_leaves_the_connection_clean(valkey_url: str) -> None:
    pool = redis.ConnectionPool.from_url(valkey_url, connection_class=Interrupted, max_connections=1)
    client = redis.Redis(connection_pool=pool)
    raise_fence(client, "a", token=token(5))
    Interrupted.armed = True
    with pytest.raises(KeyboardInterrupt), fenced_write(client, "a", token=token(5)) as r:
        reply = r.incr("n")
    assert client.echo("mine") == b"mine"
    with pytest.raises(errors.FencingError, match="KeyboardInterrupt"):
        _ = reply.value

    async def main() -> None:
        apool = redis.asyncio.ConnectionPool.from_url(valkey_url, connection_class=Cancelled, max_connections=1)
        async with redis.asyncio.Redis.from_pool(apool) as over_asyncio:
            await over_asyncio.ping()  # connected: the handshake is the client's own affair
            Cancelled.armed = True
            with pytest.raises(asyncio.CancelledError):
                await raise_fence(over_asyncio, "a", token=token(5))
            assert await over_asyncio.echo("mine") == b"mine"

    asyncio.run(main())


def test_a_refusal_a_failed_body_and_a_failed_effect_give_the_connection_back(valkey_url: str) -> None:
    client = redis.Redis(connection_pool=redis.ConnectionPool.from_url(valkey_url, max_connections=1))
    raise_fence(client, "a", token=token(5))
    client.set("text", "x")
    for _ in range(3):
        with pytest.raises(errors.StaleTokenError), fenced_write(client, "a", token=token(4)) as r:
            r.set("x", 1)
        with pytest.raises(ZeroDivisionError), fenced_write(client, "a", token=token(5)) as r:
            r.set("x", 1 / 0)
        with pytest.raises(errors.EffectError), fenced_write(client, "a", token=token(5)) as r:
            r.incr("text")
        assert client.echo("mine") == b"mine"


def test_the_guard_of_a_client_is_one_and_goes_with_it(valkey_url: str) -> None:
    client = redis.Redis.from_url(valkey_url)
    guard = guard_for(client)
    assert guard_for(client) is guard
    gone = weakref.ref(client)
    del client, guard
    gc.collect()
    assert gone() is None


def test_a_guard_keeps_its_client(valkey_url: str) -> None:
    guard = RedisGuard(redis.Redis.from_url(valkey_url))
    gc.collect()
    raise_fence(guard, "a", token=token(5))
    with fenced_write(guard, "a", token=token(5)) as r:
        reply = r.incr("n")
    assert reply.value == 1


def test_pipelines_are_refused_with_advice(valkey_url: str) -> None:
    client = redis.Redis.from_url(valkey_url)
    with pytest.raises(TypeError, match="pass the client"), client.pipeline() as pipeline:
        fenced_write(pipeline, "a", token=token(5))


def test_many_threads_share_a_client_and_its_guard(valkey_url: str) -> None:
    client = redis.Redis.from_url(valkey_url)
    raise_fence(client, "a", token=token(5))
    replies: list[int] = []

    def work() -> None:
        for _ in range(50):
            with fenced_write(client, "a", token=token(5)) as r:
                reply = r.incr("n")
            replies.append(reply.value)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(replies) == list(range(1, 401))
