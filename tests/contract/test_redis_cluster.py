"""A real cluster of three nodes, and a real Sentinel: the same promises, wherever the slot is and moves to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from support.redis_calls import Asyncio, Blocking, Calls, token
from support.redis_cluster import Sentinel, cluster, node_id
from support.servers import available
from support.waiting import eventually

from adapters.redis import RedisGuard, redis_key
from adapters.redis._client import one_slot
from adapters.redis._keys import mark_key
from fencing import errors, fenced_write, raise_fence, read_mark
from scheduler.console.embedded import Valkey


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Valkey]]:
    with cluster() as made:
        yield made


@pytest.fixture
def client(nodes: list[Valkey]) -> Iterator[redis.RedisCluster]:
    for node in nodes:
        node.command("FLUSHALL")
    made: redis.RedisCluster = redis.RedisCluster.from_url(nodes[0].url)
    yield made
    made.close()


def write(client: Any, resource: str, value: int = 5) -> int:
    with fenced_write(client, resource, token=token(value)) as r:
        reply = r.incr(redis_key(resource, "n"))
    number: int = reply.value
    return number


def home(nodes: list[Valkey], resource: str) -> tuple[Valkey, Valkey]:
    """The node that serves the resource, by the division at the start, and another one."""
    number = min(one_slot((resource,)) // 5461, 2)
    return nodes[number], nodes[(number + 1) % 3]


@pytest.mark.parametrize("options", [{"protocol": 2}, {"protocol": 3}, {"decode_responses": True}])
def test_writes_marks_and_refusals_on_every_node(nodes: list[Valkey], options: dict[str, Any]) -> None:
    with redis.RedisCluster.from_url(nodes[1].url, **options) as client:
        for number in range(9):
            name = f"{min(options)}/{options[min(options)]}/{number}"
            with pytest.raises(errors.MarkMissingError):
                write(client, name)
            raise_fence(client, name, token=token(5))
            assert [write(client, name), write(client, name)] == [1, 2]
            with pytest.raises(errors.StaleTokenError) as caught:
                write(client, name, 4)
            assert caught.value.mark == token(5)
            assert (caught.value.downstream or "").startswith("redis:cluster:127.0.0.1:")
            mark = read_mark(client, name)
            assert mark is not None
            assert mark.token == token(5)
    assert {home(nodes, f"{min(options)}/{options[min(options)]}/{number}")[0].port for number in range(9)} == {
        node.port for node in nodes
    }


def test_the_asyncio_client_does_the_same(nodes: list[Valkey], client: redis.RedisCluster) -> None:
    async def main() -> None:
        async with redis.asyncio.RedisCluster.from_url(nodes[2].url) as over_asyncio:
            for name in map(str, range(6)):
                await raise_fence(over_asyncio, name, token=token(5))
                async with fenced_write(over_asyncio, name, token=token(5)) as r:
                    reply = r.incr(redis_key(name, "n"))
                assert reply.value == 1
                with pytest.raises(errors.StaleTokenError):
                    async with fenced_write(over_asyncio, name, token=token(4)) as r:
                        r.incr(redis_key(name, "n"))
            found = await RedisGuard(over_asyncio).adiagnose()
            assert len({finding.where for finding in found}) == 3
            home(nodes, "0")[0].command("SCRIPT", "FLUSH")
            async with fenced_write(over_asyncio, "0", token=token(5)) as r:
                reply = r.incr(redis_key("0", "n"))
            assert reply.value == 2

    asyncio.run(main())
    assert read_mark(client, "0") is not None


def test_keys_in_another_slot_and_marks_in_several_are_refused_before_anything_is_sent(
    client: redis.RedisCluster,
) -> None:
    raise_fence(client, "a", token=token(5))
    with pytest.raises(ValueError, match=r"redis_key\('a', \.\.\.\)"), fenced_write(client, "a", token=token(5)) as r:
        r.set("elsewhere", 1)
    assert client.get("elsewhere") is None
    with pytest.raises(ValueError, match="two slots"):
        raise_fence(client, "a", "b", token=token(5))
    assert read_mark(client, "b") is None
    with pytest.raises(ValueError, match="two slots"), fenced_write(client, "a", "b", token=token(5)):
        pass


def test_resources_with_one_hash_tag_are_fenced_together(client: redis.RedisCluster) -> None:
    cart, stock = "{shop-3}/cart/7", "{shop-3}/stock/9"
    raise_fence(client, cart, stock, token=token(5))
    with fenced_write(client, cart, stock, token=token(5)) as r:
        r.set(redis_key(cart, "items"), 1)
        r.decr(redis_key(stock, "left"))
    raise_fence(client, stock, token=token(6))
    with pytest.raises(errors.StaleTokenError), fenced_write(client, cart, stock, token=token(5)) as r:
        r.set(redis_key(cart, "items"), 2)
    assert client.get(redis_key(cart, "items")) == b"1"
    assert client.get(redis_key(stock, "left")) == b"-1"


def test_a_slot_that_has_moved_is_followed_with_its_mark(nodes: list[Valkey], client: redis.RedisCluster) -> None:
    name = "moving"
    old, new = home(nodes, name)
    slot, data = str(one_slot((name,))), redis_key(name, "n")
    raise_fence(client, name, token=token(5))
    assert write(client, name) == 1
    try:
        # ASK: both keys have gone ahead, and the slot is still the old node's.
        new.command("CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(old))
        old.command("CLUSTER", "SETSLOT", slot, "MIGRATING", node_id(new))
        old.command("MIGRATE", "127.0.0.1", str(new.port), mark_key(name), "0", "5000")
        # TRYAGAIN: of the two keys that the script names, one is here and one there.
        with pytest.raises(errors.ContentionError, match="moving the slot"):
            write(client, name)
        old.command("MIGRATE", "127.0.0.1", str(new.port), data, "0", "5000")
        new.command("SCRIPT", "FLUSH")
        assert write(client, name) == 2
        with pytest.raises(errors.StaleTokenError):
            write(client, name, 4)

        async def over_asyncio() -> int:
            async with redis.asyncio.RedisCluster.from_url(old.url) as other:
                async with fenced_write(other, name, token=token(5)) as r:
                    reply = r.incr(data)
                value: int = reply.value
                return value

        assert asyncio.run(over_asyncio()) == 3
        # MOVED: the client's table of slots is the old one.
        for node in (new, old):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", node_id(new))
        assert write(client, name) == 4
        assert asyncio.run(over_asyncio()) == 5
        with pytest.raises(errors.StaleTokenError):
            write(client, name, 4)
    finally:
        for node in nodes:
            node.command("FLUSHALL")
        for node in nodes:
            node.command("CLUSTER", "SETSLOT", slot, "NODE", node_id(old))


def test_a_plain_client_of_a_node_that_does_not_serve_the_slot_is_told_so(nodes: list[Valkey]) -> None:
    _, other = home(nodes, "a")
    with redis.Redis.from_url(other.url) as plain, pytest.raises(errors.FencingError, match="use a cluster client"):
        raise_fence(plain, "a", token=token(5))


def test_a_node_that_was_away_is_found_again(nodes: list[Valkey], client: redis.RedisCluster) -> None:
    name = "away"
    node, _ = home(nodes, name)
    raise_fence(client, name, token=token(5))
    node.kill()
    with pytest.raises((errors.ContentionError, errors.OutcomeUnknownError)):
        write(client, name)
    node.start_again()

    def again() -> int | None:
        try:
            return write(client, name)
        except errors.MarkMissingError:  # it keeps nothing on disk
            raise_fence(client, name, token=token(5))
        except (errors.ContentionError, errors.OutcomeUnknownError):
            pass
        return None

    assert eventually(again, "the cluster is whole again")


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_failover_by_a_sentinel_keeps_the_marks_that_were_waited_for(
    kind: str, valkey_server: Callable[..., Valkey]
) -> None:
    first, second = valkey_server(), valkey_server()
    second.replica_of(first)
    with available():
        sentinel = Sentinel(first).start()
    with sentinel, contextlib.ExitStack() as stack:
        watch = redis.sentinel.Sentinel([("127.0.0.1", sentinel.port)])
        knows = lambda: sentinel.command("PING") == "PONG" and watch.discover_slaves("main")  # noqa: E731
        eventually(knows, "the Sentinel knows the replica")

        def calls(**options: str) -> Calls:
            if kind == "blocking":
                made: Calls = Blocking("", watch.master_for("main", socket_timeout=10), **options)
            else:
                its = redis.asyncio.sentinel.Sentinel([("127.0.0.1", sentinel.port)])
                made = Asyncio("", its.master_for("main", socket_timeout=10), **options)
            return stack.enter_context(contextlib.closing(made))

        def incremented(through: Calls, value: int = 5) -> int:
            found: int = through.write(lambda r: r.incr("{a}:n"), "a", token=token(value)).value
            return found

        careful, plain = calls(durability="wait:1:5000"), calls()
        assert careful.downstream == "redis:sentinel:main/0"
        careful.raise_fence("a", token=token(5))
        assert incremented(careful) == 1
        first.kill()

        def role() -> str:
            try:
                return second.info("replication")["role"]
            except OSError:  # the Sentinel closes all connections as it promotes
                return ""

        eventually(lambda: role() == "master", "the replica is promoted")

        def promoted() -> int | None:
            try:
                return incremented(plain)
            except (errors.ContentionError, errors.OutcomeUnknownError):
                return None

        assert eventually(promoted, "the Sentinel's client finds the new primary") == 2
        with pytest.raises(errors.StaleTokenError):
            incremented(plain, 4)
        with pytest.raises(errors.OutcomeUnknownError, match="0 of 1 replicas"):
            incremented(calls(durability="wait:1:50"))
