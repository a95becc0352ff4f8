"""Looking at marks in Redis: whom they refused, who moved them, which there are; and that looking changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
import redis
import redis.asyncio
from support.redis_calls import token

from adapters.redis import RedisGuard
from fencing import Explanation, errors, explain, fenced_write, list_marks, raise_fence, read_mark

KEY = "fencing:{a}:mark"


@pytest.fixture
def client(valkey_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey_url) as made:
        yield made


def refuse(client: redis.Redis, value: int, issuer: str = "shop", lineage: str = "lineage-a") -> errors.FenceRejected:
    with (
        pytest.raises(errors.FenceRejected) as caught,
        fenced_write(client, "a", token=token(value, issuer, lineage)) as r,
    ):
        r.set("x", 1)
    return caught.value


def test_a_mark_tells_whom_it_refused_also_after_it_has_moved_on(client: redis.Redis) -> None:
    assert explain(client, "a") == Explanation("redis:" + _place(client), "a", None)
    raise_fence(client, "a", token=token(5))
    error = refuse(client, 4)
    assert error.late is not None
    assert timedelta(0) <= error.late < timedelta(minutes=5)
    refuse(client, 9, issuer="other")
    refuse(client, 5, lineage="b")
    raise_fence(client, "a", token=token(7))
    refuse(client, 6)
    told = explain(client, "a")
    assert told.mark == read_mark(client, "a")
    assert [(refusal.kind, refusal.presented.value) for refusal in told.refusals] == [
        ("StaleTokenError", 6),
        ("LineageConflictError", 5),
        ("IssuerMismatchError", 9),
        ("StaleTokenError", 4),
    ]
    assert all(refusal.presenter and refusal.resource == "a" for refusal in told.refusals)
    assert "refused shop/lineage-a/6" in str(told)
    assert client.hget(KEY, "refusals") == b"4"
    assert client.get("x") is None
    for value in range(20):
        refuse(client, value % 5 + 1)
    assert len(explain(client, "a").refusals) == 8
    with fenced_write(client, "a", token=token(7)) as r:
        r.set("x", 2)
    assert client.get("x") == b"2"


def test_a_holders_name_cannot_forge_a_line(client: redis.Redis) -> None:
    class Odd:
        holder = "x\nstale shop/a/1 5 forged" + "y" * 1000
        token = token(4)

    raise_fence(client, "a", token=token(5))
    with pytest.raises(errors.StaleTokenError), fenced_write(client, "a", token=Odd()) as r:
        r.set("x", 1)
    [refusal] = explain(client, "a").refusals
    assert refusal.presenter.startswith("x stale shop/a/1 5 forged")
    assert len(refusal.presenter) <= 255


def test_marks_are_listed_by_name(client: redis.Redis) -> None:
    names = ["cart/1", "cart/ü", "cart/{x}/1", "order/1", "cart/2"]
    for number, name in enumerate(names):
        raise_fence(client, name, token=token(number + 1))
    client.set("fencing:{text}:mark", "something else")
    client.hset("fencing:{odd}:mark", "token", "none")
    client.hset("fencing:{a}:other", "token", str(token(1)))
    found = list_marks(client, "cart/")
    assert [name for name, _ in found] == sorted(name for name in names if name.startswith("cart/"))
    assert dict(found)["cart/ü"] == read_mark(client, "cart/ü")
    assert [name for name, _ in list_marks(client, limit=2)] == ["cart/1", "cart/2"]
    with pytest.raises(ValueError, match="limit"):
        list_marks(client, limit=0)


def test_a_resource_moves_to_another_issuer_by_a_person_who_says_why(client: redis.Redis) -> None:
    guard = RedisGuard(client)
    raise_fence(client, "a", token=token(900))
    new = token(3, issuer="etcd")
    refuse(client, 3, issuer="etcd")
    for reason, actor in (("", "ann"), ("moved", " ")):
        with pytest.raises(ValueError, match="is kept"):
            guard.adopt("a", new, reason=reason, actor=actor)
    guard.adopt("a", new, reason="moved to\netcd", actor="ann")
    mark = read_mark(client, "a")
    assert mark is not None
    assert (mark.token, mark.holder) == (new, "ann")
    refuse(client, 901)
    [act] = explain(client, "a").acts
    assert act.endswith(f"taken over from {token(900)} by ann: moved to etcd")
    with pytest.raises(errors.StaleTokenError):
        guard.adopt("a", token(2, issuer="etcd"), reason="back", actor="ann")
    guard.adopt("a", token(902), reason="and back", actor="bob")
    assert len(explain(client, "a").acts) == 2
    with pytest.raises(errors.StaleTokenError) as caught:  # it had the resource before, under 3
        guard.adopt("a", token(2, issuer="etcd"), reason="again", actor="ann")
    assert caught.value.mark == new
    with pytest.raises(errors.LineageConflictError):
        guard.adopt("a", token(3, "etcd", "line-z"), reason="again", actor="ann")
    assert len(explain(client, "a").acts) == 2
    guard.adopt("a", new, reason="again", actor="ann")
    guard.adopt("new", token(1), reason="first", actor="ann")
    assert read_mark(client, "new") is not None
    client.hset("fencing:{odd}:mark", "token", "none")
    with pytest.raises(errors.FencingError, match="does not hold a mark"):
        guard.adopt("odd", token(1), reason="x", actor="ann")


def test_asyncio_looks_the_same(client: redis.Redis, valkey_url: str) -> None:
    raise_fence(client, "a", token=token(5))
    refuse(client, 4)

    async def main() -> None:
        async with redis.asyncio.Redis.from_url(valkey_url) as over_asyncio:
            assert await explain(over_asyncio, "a") == explain(client, "a")
            assert await list_marks(over_asyncio) == list_marks(client)
            await RedisGuard(over_asyncio).aadopt("a", token(1, issuer="etcd"), reason="moved", actor="ann")

    asyncio.run(main())
    assert len(explain(client, "a").acts) == 1


def _place(client: redis.Redis) -> str:
    kwargs = client.get_connection_kwargs()
    return f"{kwargs['host']}:{kwargs['port']}/0"
