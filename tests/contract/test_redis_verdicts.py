"""The law on a real server, through both kinds of client: what is refused, and that a refusal changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from redis.crc import key_slot
from support.redis_calls import Asyncio, Blocking, Calls, token

from adapters.redis import redis_key
from fencing import Token, errors
from fencing._law import judge

EDGES = [1, 9, 10, 99, 100, 2**53 - 1, 2**53, 2**53 + 1, 10**18, 10**18 + 1, 2**63 - 2, 2**63 - 1]


@pytest.fixture(params=["blocking", "asyncio"])
def calls(request: pytest.FixtureRequest, valkey_url: str) -> Iterator[Calls]:
    if request.param == "blocking":
        yield Blocking(valkey_url)
    else:
        over_asyncio = Asyncio(valkey_url)
        yield over_asyncio
        over_asyncio.close()


@pytest.fixture
def plain(valkey_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(valkey_url) as client:
        yield client


def state(plain: redis.Redis) -> dict[bytes, Any]:
    """Everything that the server holds, but for whom a mark has refused."""
    found: dict[bytes, Any] = {}
    for key in plain.scan_iter():
        if key.startswith(b"fencing:{") and plain.type(key) == b"hash":
            fields: dict[bytes, bytes] = plain.hgetall(key)  # type: ignore[assignment]
            found[key] = {name: value for name, value in fields.items() if name not in (b"refused", b"refusals")}
        else:
            found[key] = plain.dump(key)
    return found


def test_the_paused_worker_is_refused(calls: Calls, plain: redis.Redis, valkey_url: str) -> None:
    calls.raise_fence("cart/7", token=token(1))
    calls.write(lambda r: r.set("x", "first"), "cart/7", token=token(1))
    calls.write(lambda r: r.set("x", "second"), "cart/7", token=token(2))
    before = state(plain)
    with pytest.raises(errors.StaleTokenError) as caught:
        calls.write(lambda r: r.set("x", "first again"), "cart/7", token=token(1))
    assert state(plain) == before
    assert plain.get("x") == b"second"
    assert (caught.value.presented, caught.value.mark) == (token(1), token(2))
    assert (caught.value.resource, caught.value.downstream) == ("cart/7", f"redis:{valkey_url[8:]}")
    assert caught.value.holder


def test_a_raised_fence_stops_the_older_holder_before_the_newer_one_writes(calls: Calls, plain: redis.Redis) -> None:
    calls.raise_fence("a", "b", token=token(2))
    for name in ("a", "b"):
        with pytest.raises(errors.StaleTokenError):
            calls.write(lambda r: r.set("x", 1), name, token=token(1))
    with pytest.raises(errors.StaleTokenError):
        calls.raise_fence("a", token=token(1))
    assert plain.get("x") is None


def test_an_equal_token_of_the_same_lineage_is_accepted_again_and_again(calls: Calls, plain: redis.Redis) -> None:
    calls.raise_fence("a", token=token(5))
    for _ in range(3):
        calls.write(lambda r: r.incr("n"), "a", token=token(5))
        calls.raise_fence("a", token=token(5))
    assert plain.get("n") == b"3"


def test_an_equal_token_of_another_lineage_is_refused(calls: Calls, plain: redis.Redis) -> None:
    calls.raise_fence("a", token=token(5))
    other = token(5, lineage="lineage-b")
    for refused in (
        lambda: calls.write(lambda r: r.set("x", 1), "a", token=other),
        lambda: calls.raise_fence("a", token=other),
    ):
        with pytest.raises(errors.LineageConflictError) as caught:
            refused()
        assert (caught.value.presented, caught.value.mark) == (other, token(5))
    assert plain.get("x") is None
    calls.write(lambda r: r.set("x", 1), "a", token=token(6, lineage="lineage-b"))


@pytest.mark.parametrize("value", [4, 5, 6])
def test_a_token_of_another_issuer_is_refused_whatever_its_value(calls: Calls, plain: redis.Redis, value: int) -> None:
    calls.raise_fence("a", token=token(5))
    other = token(value, issuer="etcd")
    with pytest.raises(errors.IssuerMismatchError) as caught:
        calls.write(lambda r: r.set("x", 1), "a", token=other)
    with pytest.raises(errors.IssuerMismatchError):
        calls.raise_fence("a", token=other)
    assert (caught.value.presented, caught.value.mark) == (other, token(5))
    assert plain.get("x") is None


def test_every_pair_of_edge_values_is_judged_as_the_law_says(calls: Calls) -> None:
    for seen in EDGES:
        for shown in EDGES:
            resource = f"{seen}/{shown}"
            calls.raise_fence(resource, token=token(seen))
            if judge(token(seen), token(shown)).accepted:
                calls.write(lambda r: r.set("x", 1), resource, token=token(shown))
                newest = shown
            else:
                with pytest.raises(errors.StaleTokenError):
                    calls.write(lambda r: r.set("x", 1), resource, token=token(shown))
                newest = seen
            mark = calls.read_mark(resource)
            assert mark is not None
            assert mark.token == token(newest)


def test_without_a_mark_a_write_is_refused_and_makes_none(calls: Calls, plain: redis.Redis) -> None:
    with pytest.raises(errors.MarkMissingError) as caught:
        calls.write(lambda r: r.set("x", 1), "a", token=token(5))
    assert (caught.value.resource, caught.value.mark) == ("a", None)
    with pytest.raises(errors.MarkMissingError):
        calls.write(lambda r: None, "a", token=token(5))
    assert state(plain) == {}
    assert calls.read_mark("a") is None


def test_after_a_flush_the_same_holder_is_refused_until_the_fence_is_raised(calls: Calls, plain: redis.Redis) -> None:
    calls.raise_fence("a", token=token(5))
    calls.write(lambda r: r.set("x", 1), "a", token=token(5))
    plain.flushall()
    with pytest.raises(errors.MarkMissingError):
        calls.write(lambda r: r.set("x", 2), "a", token=token(5))
    assert plain.get("x") is None
    calls.raise_fence("a", token=token(5))
    calls.write(lambda r: r.set("x", 2), "a", token=token(5))


def test_a_delete_of_the_data_keeps_the_mark(calls: Calls, plain: redis.Redis) -> None:
    calls.raise_fence("a", token=token(5))
    calls.write(lambda r: r.set(redis_key("a", "x"), 1), "a", token=token(5))
    calls.write(lambda r: r.delete(redis_key("a", "x")), "a", token=token(5))
    assert plain.exists(redis_key("a", "x")) == 0
    with pytest.raises(errors.StaleTokenError):
        calls.write(lambda r: r.set(redis_key("a", "x"), 2), "a", token=token(4))
    assert [plain.ttl(key) for key in plain.keys()] == [-1]  # noqa: SIM118 - the command


@pytest.mark.parametrize("stale", ["a", "b", "c"])
def test_of_several_resources_all_are_raised_or_none(calls: Calls, plain: redis.Redis, stale: str) -> None:
    calls.raise_fence("a", "b", "c", token=token(5))
    calls.raise_fence(stale, token=token(7))
    before = state(plain)
    with pytest.raises(errors.StaleTokenError) as caught:
        calls.write(lambda r: r.set("x", 1), "c", "b", "a", token=token(6))
    assert caught.value.resource == stale
    with pytest.raises(errors.StaleTokenError):
        calls.raise_fence("a", "b", "c", token=token(6))
    assert state(plain) == before
    calls.write(lambda r: r.set("x", 1), "a", "b", "c", token=token(8))
    for name in ("a", "b", "c"):
        with pytest.raises(errors.StaleTokenError):
            calls.write(lambda r: r.set("x", 2), name, token=token(7))
    assert plain.get("x") == b"1"


def test_a_missing_mark_among_several_refuses_all(calls: Calls, plain: redis.Redis) -> None:
    calls.raise_fence("a", token=token(5))
    before = state(plain)
    with pytest.raises(errors.MarkMissingError) as caught:
        calls.write(lambda r: r.set("x", 1), "a", "b", token=token(6))
    assert caught.value.resource == "b"
    assert state(plain) == before


def test_a_body_that_raises_sends_nothing(calls: Calls, plain: redis.Redis) -> None:
    calls.raise_fence("a", token=token(5))
    before = state(plain)

    def body(r: object) -> None:
        r.set("x", 1)  # type: ignore[attr-defined]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        calls.write(body, "a", token=token(6))
    assert state(plain) == before


def test_an_empty_body_shows_the_token_all_the_same(calls: Calls) -> None:
    calls.raise_fence("a", token=token(5))
    calls.write(lambda r: None, "a", token=token(6))
    mark = calls.read_mark("a")
    assert mark is not None
    assert mark.token == token(6)
    with pytest.raises(errors.StaleTokenError):
        calls.write(lambda r: None, "a", token=token(5))


def test_the_effect_form_returns_the_reply(calls: Calls) -> None:
    calls.raise_fence("a", token=token(5))
    assert calls.effect(lambda r: r.incrby("n", 7), "a", token=token(5)).value == 7
    with pytest.raises(errors.StaleTokenError):
        calls.effect(lambda r: r.incrby("n", 7), "a", token=token(4))


def test_the_mark_tells_who_and_when_by_the_servers_clock(calls: Calls) -> None:
    began = datetime.now(UTC) - timedelta(seconds=1)
    calls.raise_fence("a", token=token(2**63 - 1, issuer="a.b-c_9", lineage="x" * 64))
    mark = calls.read_mark("a")
    assert mark is not None
    assert mark.token == Token(2**63 - 1, "a.b-c_9", "x" * 64)
    assert mark.holder
    assert mark.at is not None
    assert mark.at.tzinfo is UTC
    assert began < mark.at < datetime.now(UTC) + timedelta(seconds=1)
    assert calls.read_mark("b") is None


NAMES = [
    "cart/7", "{", "}", "{}", "}{", "a}b", "{a}b", "a{b}c{d}", " ", "a b\tc\n\r", "%7B", "%", "a:mark",
    "*?[]^\\", "\x01\x7f",
    "żółć", "日本語", "🧺", "\u202e", "é", "e\u0301", "x" * 512, "é" * 256, "🧺" * 128, "}" * 512,
]  # fmt: skip


def test_any_name_is_a_resource_of_its_own_and_its_data_lie_in_its_slot(calls: Calls, plain: redis.Redis) -> None:
    for value, name in enumerate(NAMES, 2):
        calls.raise_fence(name, token=token(value))
    marks = set(plain.keys())
    assert len(marks) == len(NAMES)
    for value, name in enumerate(NAMES, 2):
        mark = calls.read_mark(name)
        assert mark is not None
        assert mark.token == token(value)
        calls.write(lambda r, name=name, value=value: r.set(redis_key(name, "}x{"), value), name, token=token(value))
        with pytest.raises(errors.StaleTokenError):
            calls.write(lambda r: r.set("x", 1), name, token=token(value - 1))
    data = [redis_key(name, "}x{").encode() for name in NAMES]
    assert [plain.get(key) for key in data] == [b"%d" % value for value in range(2, len(NAMES) + 2)]
    assert {key_slot(key) for key in data} == {key_slot(key) for key in marks}
    assert set(plain.keys()) == marks | set(data)


def test_names_that_no_resource_has_are_refused_before_anything_is_sent(calls: Calls, plain: redis.Redis) -> None:
    for wrong, kind in (
        ("", ValueError),
        ("x" * 513, ValueError),
        ("a\x00b", ValueError),
        ("\ud800", ValueError),
        (7, TypeError),
    ):
        with pytest.raises(kind):
            calls.raise_fence(wrong, token=token(1))  # type: ignore[arg-type]
    assert state(plain) == {}


def test_create_makes_the_mark_of_a_first_write_and_refuses_later_as_ever(valkey_url: str, plain: redis.Redis) -> None:
    calls = Blocking(valkey_url, on_missing="create")
    calls.write(lambda r: r.set("x", 1), "a", "b", token=token(5))
    for name in ("a", "b"):
        with pytest.raises(errors.StaleTokenError):
            calls.write(lambda r: r.set("x", 2), name, token=token(4))
    assert plain.get("x") == b"1"


def test_once_is_refused_since_redis_keeps_no_such_record(calls: Calls, plain: redis.Redis, valkey_url: str) -> None:
    from fencing import fenced_write

    with pytest.raises(TypeError, match="once="):
        fenced_write(redis.Redis.from_url(valkey_url), "a", effect=lambda r: r.set("x", 1), token=token(1), once="k")
    assert state(plain) == {}
