"""What a recorded command's reply is worth: the very value that the plain client returns for the same command."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from support.redis_calls import token

from fencing import errors, fenced_write, raise_fence

T = token(5)


def prepare(client: redis.Redis) -> None:
    client.flushall()
    client.set("s", "text")
    client.set("n", 41)
    client.hset("h", mapping={"a": "1", "b": "2"})
    client.rpush("l", "a", "b", "c", "a")
    client.sadd("set", "a")
    client.sadd("set2", "a", "b")
    client.zadd("z", {"a": 1, "b": 2.5, "c": 4})
    client.xadd("x", {"f": "v"}, id="1-1")
    client.xgroup_create("x", "g", "0")
    client.geoadd("geo", (13.361389, 38.115556, "Palermo"))
    raise_fence(client, "a", token=T)


COMMANDS: list[Callable[[Any], Any]] = [
    lambda r: r.set("k", "v"),
    lambda r: r.set("s", "v", nx=True),
    lambda r: r.set("s", "v", get=True),
    lambda r: r.set("k", "v", get=True),
    lambda r: r.set("k", "v", ex=100),
    lambda r: r.setnx("k", "v"),
    lambda r: r.execute_command("SETEX", "k", 100, "v"),
    lambda r: r.psetex("k", 100000, "v"),
    lambda r: r.get("s"),
    lambda r: r.get("nothing"),
    lambda r: r.getdel("s"),
    lambda r: r.getdel("nothing"),
    lambda r: r.getex("s", ex=100),
    lambda r: r.getset("s", "v"),
    lambda r: r.mset({"k": 1, "k2": 2}),
    lambda r: r.msetnx({"k": 1, "s": 2}),
    lambda r: r.mget("nothing", "s", "nothing"),
    lambda r: r.incr("n"),
    lambda r: r.decrby("n", 50),
    lambda r: r.incrbyfloat("n", 1.5),
    lambda r: r.append("s", "more"),
    lambda r: r.setrange("s", 1, "x"),
    lambda r: r.setbit("k", 7, 1),
    lambda r: r.bitop("AND", "k", "s", "n"),
    lambda r: r.bitfield("k").set("u8", 0, 255).execute(),
    lambda r: r.execute_command("BITFIELD", "k", "OVERFLOW", "FAIL", "INCRBY", "u2", 0, 3, "INCRBY", "u2", 0, 1),
    lambda r: r.delete("s", "h", "nothing"),
    lambda r: r.unlink("s"),
    lambda r: r.exists("s", "h", "nothing"),
    lambda r: r.type("h"),
    lambda r: r.rename("s", "k"),
    lambda r: r.renamenx("s", "n"),
    lambda r: r.copy("s", "k"),
    lambda r: r.move("s", 1),
    lambda r: r.touch("s", "n"),
    lambda r: r.expire("s", 100),
    lambda r: r.expire("nothing", 100),
    lambda r: r.pexpireat("s", int(time.time() * 1000) + 10**6),
    lambda r: r.ttl("s"),
    lambda r: r.persist("s"),
    lambda r: r.dump("s"),
    lambda r: r.restore("k", 0, DUMPED),
    lambda r: r.object("encoding", "n"),
    lambda r: r.hset("h", "c", "3"),
    lambda r: r.hset("h", mapping={"a": "9", "d": "4"}),
    lambda r: r.hsetnx("h", "a", "3"),
    lambda r: r.hget("h", "a"),
    lambda r: r.hmget("h", "nothing", "b", "nothing"),
    lambda r: r.hgetall("h"),
    lambda r: r.hgetall("nothing"),
    lambda r: r.hincrby("h", "a", 4),
    lambda r: r.hincrbyfloat("h", "a", 0.25),
    lambda r: r.hdel("h", "a", "nothing"),
    lambda r: r.hexists("h", "a"),
    lambda r: r.hkeys("h"),
    lambda r: r.hvals("h"),
    lambda r: r.hlen("h"),
    lambda r: r.hexpire("h", 100, "a", "nothing"),
    lambda r: r.hscan("h"),
    lambda r: r.lpush("l", "x", "y"),
    lambda r: r.rpushx("nothing", "x"),
    lambda r: r.lpop("l"),
    lambda r: r.lpop("nothing"),
    lambda r: r.rpop("l", 2),
    lambda r: r.linsert("l", "before", "b", "x"),
    lambda r: r.lset("l", 0, "x"),
    lambda r: r.lrem("l", 0, "a"),
    lambda r: r.ltrim("l", 0, 1),
    lambda r: r.lrange("l", 0, -1),
    lambda r: r.lpos("l", "a", count=0),
    lambda r: r.lmove("l", "l2", "LEFT", "RIGHT"),
    lambda r: r.rpoplpush("l", "l2"),
    lambda r: r.lmpop(2, "nothing", "l", direction="LEFT", count=2),
    lambda r: r.lmpop(1, "nothing", direction="LEFT"),
    lambda r: r.sadd("set", "a", "z"),
    lambda r: r.srem("set2", "a", "z"),
    lambda r: r.spop("set"),
    lambda r: r.spop("set", 1),
    lambda r: r.smove("set2", "set", "b"),
    lambda r: r.smembers("set2"),
    lambda r: r.smismember("set2", ["a", "z"]),
    lambda r: r.sdiff("set2", "set"),
    lambda r: r.sinterstore("set3", "set", "set2"),
    lambda r: r.sunion("set", "set2"),
    lambda r: r.zadd("z", {"a": 5, "d": 6}),
    lambda r: r.zadd("z", {"a": 5}, ch=True),
    lambda r: r.zadd("z", {"a": 1.25}, incr=True),
    lambda r: r.zadd("z", {"a": 1.25}, incr=True, nx=True),
    lambda r: r.zincrby("z", 0.1, "a"),
    lambda r: r.zscore("z", "b"),
    lambda r: r.zscore("z", "nothing"),
    lambda r: r.zrem("z", "a", "nothing"),
    lambda r: r.zpopmin("z"),
    lambda r: r.zpopmin("z", 2),
    lambda r: r.zpopmax("z", 2),
    lambda r: r.zmpop(1, ["z"], min=True, count=2),
    lambda r: r.zmpop(1, ["nothing"], min=True),
    lambda r: r.zrange("z", 0, -1),
    lambda r: r.zrange("z", 0, -1, withscores=True),
    lambda r: r.zrevrange("z", 0, -1, withscores=True),
    lambda r: r.zrangebyscore("z", 0, 3, withscores=True),
    lambda r: r.zrank("z", "b"),
    lambda r: r.zrank("z", "b", withscore=True),
    lambda r: r.zrank("z", "nothing", withscore=True),
    lambda r: r.zrangestore("z2", "z", 0, 1),
    lambda r: r.zunionstore("z2", {"z": 2, "set": 1}),
    lambda r: r.zunion(["z", "set"], withscores=True),
    lambda r: r.zdiff(["z", "set"], withscores=True),
    lambda r: r.zinter(["z", "set"], withscores=True),
    lambda r: r.zremrangebyscore("z", 0, 2),
    lambda r: r.zscan("z"),
    lambda r: r.zrandmember("nothing", 2, withscores=True),
    lambda r: r.hrandfield("nothing", 2, withvalues=True),
    lambda r: r.xadd("x", {"f": "v2"}, id="2-1"),
    lambda r: r.xdel("x", "1-1"),
    lambda r: r.xtrim("x", maxlen=0),
    lambda r: r.xrange("x"),
    lambda r: r.xread({"x": "0"}),
    lambda r: r.xread({"nothing": "0"}),
    lambda r: r.xreadgroup("g", "me", {"x": ">"}),
    lambda r: r.xack("x", "g", "1-1"),
    lambda r: r.xgroup_create("x", "g2", "0"),
    lambda r: r.xgroup_destroy("x", "g"),
    lambda r: r.xgroup_createconsumer("x", "g", "me"),
    lambda r: r.xclaim("x", "g", "me", 0, ["1-1"]),
    lambda r: r.xautoclaim("x", "g", "me", 0),
    lambda r: r.xpending("x", "g"),
    lambda r: r.xlen("x"),
    lambda r: r.pfadd("p", "a", "b"),
    lambda r: r.pfmerge("p", "p2"),
    lambda r: r.pfcount("p"),
    lambda r: r.geoadd("geo", (15.087269, 37.502669, "Catania")),
    lambda r: r.geodist("geo", "Palermo", "Palermo"),
    lambda r: r.geohash("geo", "nothing", "Palermo", "nothing"),
    lambda r: r.geosearch("geo", member="Palermo", radius=300, unit="km", withcoord=True, withdist=True, withhash=True),
    lambda r: r.geosearchstore("geo2", "geo", member="Palermo", radius=300, unit="km"),
    lambda r: r.sort("l", alpha=True),
    lambda r: r.sort("l", alpha=True, store="l2"),
    lambda r: r.sort("l", alpha=True, get=["#", "no-*"]),
    lambda r: r.lcs("s", "s"),
    lambda r: r.publish("channel", "message"),
    lambda r: r.echo("hello"),
    lambda r: r.execute_command("SET", "k", b"\x00\xff"),
    lambda r: r.execute_command("set", "k", memoryview(b"abc")),
]  # fmt: skip
DUMPED = b"\x00\x04text\x0b\x00\xf4\x8c\x00\x00"  # replaced by what this run's server dumps


@pytest.fixture(scope="module", params=[{}, {"protocol": 2}, {"protocol": 3}], ids=["default", "resp2", "resp3"])
def protocol(request: pytest.FixtureRequest) -> dict[str, Any]:
    chosen: dict[str, Any] = request.param
    return chosen


@pytest.fixture(params=[False, True], ids=["bytes", "text"])
def client(request: pytest.FixtureRequest, valkey_url: str, protocol: dict[str, Any]) -> Iterator[redis.Redis]:
    global DUMPED
    with redis.Redis.from_url(valkey_url, decode_responses=request.param, **protocol) as made:
        prepare(made)
        DUMPED = made.dump("s")
        yield made


def typed(value: Any) -> Any:
    """The value with the type of everything in it."""
    if isinstance(value, list | tuple):
        return type(value), [typed(item) for item in value]
    if isinstance(value, dict):
        return type(value), {key: typed(item) for key, item in value.items()}
    return type(value), value


def answer(call: Callable[[], Any]) -> Any:
    try:
        return typed(call())
    except redis.ResponseError as exc:
        return str(exc)


def fenced(client: redis.Redis, command: Callable[[Any], Any]) -> Any:
    with fenced_write(client, "a", token=T) as recorder:
        reply = command(recorder)
    return reply.value


def test_the_value_of_a_reply_is_what_the_plain_client_returns(client: redis.Redis) -> None:
    wrong = []
    old = client.info("server")["redis_version"].startswith("7.0")
    for number, command in enumerate(COMMANDS):
        prepare(client)
        plain = answer(lambda command=command: command(client))
        if isinstance(plain, str) and old:
            continue  # a command, or an option of one, that came with Redis 7.2 or 7.4
        assert not isinstance(plain, str), (number, plain)
        prepare(client)
        recorded = answer(lambda command=command: fenced(client, command))
        if recorded != plain:
            wrong.append((number, plain, recorded))
    assert wrong == []


def test_replies_come_in_order_and_stay(client: redis.Redis) -> None:
    with fenced_write(client, "a", token=T) as r:
        replies = [r.incr("n"), r.get("nothing"), r.incr("n"), r.mget("nothing", "n"), r.incr("n")]
    n = "43" if client.get_connection_kwargs().get("decode_responses") else b"43"
    for _ in range(2):
        assert [reply.value for reply in replies] == [42, None, 43, [None, n], 44]


def test_the_asyncio_client_gets_the_same_values(valkey_url: str, protocol: dict[str, Any]) -> None:
    with redis.Redis.from_url(valkey_url) as client:
        prepare(client)

    async def main() -> list[Any]:
        async with redis.asyncio.Redis.from_url(valkey_url, decode_responses=True, **protocol) as target:
            async with fenced_write(target, "a", token=T) as r:
                replies = [
                    r.set("k", 1),
                    r.incr("k"),
                    r.hgetall("h"),
                    r.zadd("z", {"a": 1}, incr=True),
                    r.smembers("set"),
                ]
            return [reply.value for reply in replies]

    assert asyncio.run(main()) == [True, 2, {"a": "1", "b": "2"}, 2.0, {"a"}]


def test_a_custom_response_callback_is_honoured(client: redis.Redis) -> None:
    client.set_response_callback("INCRBY", lambda reply: f"now {reply}")
    assert fenced(client, lambda r: r.incr("n")) == "now 42"


def test_a_hundred_commands_and_a_big_value(client: redis.Redis) -> None:
    with fenced_write(client, "a", token=T) as r:
        counts = [r.incr("n") for _ in range(100)]
        big = r.set("big", b"x" * 3_000_000)
    assert [count.value for count in counts] == list(range(42, 142))
    assert big.value is True
    assert client.strlen("big") == 3_000_000


def test_a_number_that_a_script_would_round_is_not_told_wrong(client: redis.Redis) -> None:
    client.set("n", 2**53 - 2)
    with fenced_write(client, "a", token=T) as r:
        exact, rounded, after = r.incr("n"), r.incr("n"), r.incrby("n", -(2**54))
    assert exact.value == 2**53 - 1
    with pytest.raises(errors.FencingError, match=r"2\*\*53"):
        _ = rounded.value
    with pytest.raises(errors.FencingError, match=r"2\*\*53"):
        _ = after.value
    assert int(client.get("n")) == -(2**53)  # type: ignore[arg-type]


def test_a_reply_has_no_value_inside_the_block(client: redis.Redis) -> None:
    with fenced_write(client, "a", token=T) as r:
        reply = r.get("s")
        with pytest.raises(errors.FencingError, match="once the block has ended"):
            _ = reply.value
        with pytest.raises(TypeError, match="inside the block"):
            bool(reply)
        with pytest.raises(TypeError, match="inside the block"):
            list(reply)
    assert reply.value in ("text", b"text")
    with pytest.raises(errors.FencingError, match="after the block"):
        r.get("s")


def test_a_refused_block_has_no_values(client: redis.Redis) -> None:
    raise_fence(client, "a", token=token(6))
    with pytest.raises(errors.StaleTokenError), fenced_write(client, "a", token=T) as r:
        reply = r.incr("n")
    with pytest.raises(errors.FencingError, match="StaleTokenError") as caught:
        _ = reply.value
    assert not isinstance(caught.value, errors.FenceRejected)


@pytest.mark.parametrize("protocol_number", [2, 3])
def test_a_command_that_fails_leaves_the_ones_before_it(valkey_url: str, protocol_number: int) -> None:
    client = redis.Redis.from_url(valkey_url, protocol=protocol_number)
    prepare(client)
    with pytest.raises(errors.EffectError, match="WRONGTYPE") as caught, fenced_write(client, "a", token=T) as r:
        before, wrong, after = r.incr("n"), r.zincrby("s", 1, "x"), r.incr("n")
    assert caught.value.index == 1
    assert (caught.value.resource, caught.value.presented) == ("a", T)
    assert client.get("n") == b"42"
    assert before.value == 42
    with pytest.raises(errors.EffectError):
        _ = wrong.value
    with pytest.raises(errors.FencingError, match="not executed"):
        _ = after.value
    # The connection still speaks as before, and the token is good.
    assert fenced(client, lambda r: r.incr("n")) == 43


def test_a_wrong_number_of_arguments_is_an_effect_that_failed(client: redis.Redis) -> None:
    with pytest.raises(errors.EffectError, match="SET") as caught, fenced_write(client, "a", token=T) as r:
        r.execute_command("SET", "k")
    assert caught.value.index == 0
