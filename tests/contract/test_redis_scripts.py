"""Lua of the caller's under the fence: the same answers as from a plain EVAL, the same refusals as for any command."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from support.redis_calls import token

from fencing import errors, fenced_write, raise_fence


@pytest.fixture(params=[2, 3])
def client(request: pytest.FixtureRequest, valkey_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey_url, protocol=request.param) as made:
        raise_fence(made, "a", token=token(5))
        yield made


SCRIPT = """
redis.call('HINCRBY', KEYS[1], 'n', ARGV[1])
return {redis.call('HGET', KEYS[1], 'n'), #KEYS, ARGV[2] or false, redis.status_reply('FINE')}
"""


def test_a_script_of_ones_own_runs_under_the_fence(client: redis.Redis) -> None:
    with fenced_write(client, "a", token=token(5)) as r:
        before = r.set("k", 1)
        mine = r.eval(SCRIPT, 2, "{a}:h", "{a}:i", 3, "more")  # type: ignore[no-untyped-call]
        after = r.hget("{a}:h", "n")
        none = r.eval("return nil", 0)
    assert [before.value, after.value, none.value] == [True, b"3", None]
    client.delete("{a}:h")
    assert mine.value == client.eval(SCRIPT, 2, "{a}:h", "{a}:i", 3, "more")
    with pytest.raises(errors.StaleTokenError), fenced_write(client, "a", token=token(4)) as r:
        r.eval(SCRIPT, 1, "{a}:h", 3)
    assert client.hget("{a}:h", "n") == b"3"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("return redis.call('INCR')", "number of args|Wrong number"),
        ("error('mine')", "mine"),
        ("error({err = 'MINE told'})", "MINE told"),
        ("return redis.error_reply('MINE returned')", "MINE returned"),
        ("retrun 1", "compiling script"),
        ("redis.call('SET', KEYS[1], 1) return redis.call('INCR', KEYS[1], 'x')", "args"),
        ("return unknown", "unknown"),
    ],
)
def test_a_script_that_fails_is_an_effect_that_failed(client: redis.Redis, text: str, said: str) -> None:
    with pytest.raises(errors.EffectError, match=said) as caught, fenced_write(client, "a", token=token(5)) as r:
        r.incr("n")
        r.eval(text, 1, "{a}:k")
        r.incr("n")
    assert caught.value.index == 1
    assert int(client.get("n")) == 1  # type: ignore[arg-type]
    with fenced_write(client, "a", token=token(5)) as r:  # and it leaves the script around it as it was
        reply = r.zadd("z", {"m": 1.5})
        score = r.zscore("z", "m")
    assert (reply.value, score.value) == (1, 1.5)


def test_a_script_that_no_fence_can_hold_is_refused_at_its_line(client: redis.Redis) -> None:
    with fenced_write(client, "a", token=token(5)) as r:
        for text, count, keys in (("#!lua\\nreturn 1", 0, ()), ("return 1", 2, ("k",)), ("return 1", -1, ())):
            with pytest.raises(ValueError):
                r.eval(text, count, *keys)
        with pytest.raises(ValueError, match="is a mark"):
            r.eval("return redis.call('DEL', KEYS[1])", 1, "fencing:{a}:mark")
