"""What a server says when it takes no writes: told apart, nothing written, never taken for a verdict."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from support.proxy import Proxy
from support.redis_calls import Asyncio, Blocking, Calls, token
from support.waiting import eventually

from adapters.redis import ServerRefusedError
from fencing import errors, raise_fence
from scheduler.console.embedded import Valkey

Start = Callable[..., Valkey]


@pytest.fixture
def server(valkey_server: Start) -> Valkey:
    return valkey_server(settings={"enable-debug-command": "yes"})


@pytest.fixture
def plain(server: Valkey) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        raise_fence(client, "a", token=token(5))
        client.set("x", "before")
        yield client


@pytest.fixture(params=["blocking", "asyncio"])
def calls(request: pytest.FixtureRequest, server: Valkey) -> Iterator[Calls]:
    with contextlib.closing(Blocking(server.url) if request.param == "blocking" else Asyncio(server.url)) as made:
        yield made


def write(calls: Calls) -> Any:
    return calls.write(lambda r: r.set("x", "after"), "a", token=token(5))


def refused(calls: Calls, plain: redis.Redis, kind: type[Exception], match: str) -> None:
    """A write and a raise are refused with the error, nothing has changed."""
    before = plain.dump("fencing:{a}:mark")
    with pytest.raises(kind, match=match) as caught:
        write(calls)
    assert not isinstance(caught.value, errors.FenceRejected | errors.OutcomeUnknownError)
    assert caught.value.__cause__ is not None
    assert (caught.value.resource, caught.value.presented) == ("a", token(5))
    with pytest.raises(kind, match=match):
        calls.raise_fence("a", token=token(6))
    assert plain.get("x") == b"before"
    assert plain.dump("fencing:{a}:mark") == before


def test_out_of_memory(calls: Calls, plain: redis.Redis) -> None:
    plain.config_set("maxmemory", 1)
    refused(calls, plain, ServerRefusedError, "out of memory")
    plain.config_set("maxmemory", 0)
    write(calls)


def test_too_few_replicas(calls: Calls, plain: redis.Redis) -> None:
    plain.config_set("min-replicas-to-write", 1)
    refused(calls, plain, errors.ContentionError, "too few replicas")
    plain.config_set("min-replicas-to-write", 0)
    write(calls)


def test_a_save_that_failed(calls: Calls, plain: redis.Redis, server: Valkey) -> None:
    plain.config_set("save", "3600 1")
    plain.config_set("rdb-key-save-delay", 10**7)
    plain.bgsave()

    def child() -> str:
        return Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().strip()

    os.kill(int(eventually(child, "the server has a child that saves")), signal.SIGKILL)
    eventually(lambda: plain.info("persistence")["rdb_last_bgsave_status"] == "err", "the save has failed")
    refused(calls, plain, ServerRefusedError, "last save to disk failed")


def test_busy_with_a_script(calls: Calls, plain: redis.Redis, server: Valkey) -> None:
    plain.config_set("busy-reply-threshold", 1)
    endless = threading.Thread(target=_run_endless_script, args=(server.url,))
    endless.start()
    with redis.Redis.from_url(server.url) as other:
        eventually(lambda: _says(other, "BUSY"), "the server is busy")
        with pytest.raises(errors.ContentionError, match="busy"):
            write(calls)
        other.script_kill()
    endless.join()
    assert plain.get("x") == b"before"
    write(calls)


def _run_endless_script(url: str) -> None:
    with redis.Redis.from_url(url) as client, contextlib.suppress(redis.ResponseError):
        client.eval("while true do end", 0)


def _says(client: redis.Redis, code: str) -> bool:
    try:
        client.ping()
    except redis.RedisError as exc:
        return str(exc).startswith(code)
    return False


def test_still_loading(calls: Calls, plain: redis.Redis, server: Valkey) -> None:
    for number in range(600):  # a minute of loading, if nobody cuts it short
        plain.set(f"filler:{number}", "x" * 2000)
    write(calls)  # connected from here on: the client would connect again and again until the server is ready
    plain.config_set("rdbcompression", "no")
    plain.config_set("key-load-delay", 100_000)
    plain.config_set("loading-process-events-interval-bytes", 1024)
    reload = threading.Thread(target=_reload, args=(server.url,))
    reload.start()
    with redis.Redis.from_url(server.url) as other:
        eventually(lambda: int(other.info("persistence")["loading"]), "the server is loading")
        with pytest.raises(errors.ContentionError, match="loading"):
            write(calls)
        assert int(other.info("persistence")["loading"])
        with contextlib.suppress(redis.RedisError):
            other.config_set("key-load-delay", 0)
    reload.join()
    write(calls)


def _reload(url: str) -> None:
    with redis.Redis.from_url(url, socket_timeout=60) as client:
        client.execute_command("DEBUG", "RELOAD")


def test_what_the_advice_names_is_enough_for_a_user(plain: redis.Redis, server: Valkey) -> None:
    allowed = ["+evalsha", "+script|load", "+time", "+exists", "+unlink", "+@hash", "~fencing:*", "+set", "~n"]
    plain.execute_command("ACL", "SETUSER", "few", "reset", "on", ">secret", *allowed, "-unlink")
    few = Blocking(server.url, client={"username": "few", "password": "secret"})
    with pytest.raises(ServerRefusedError, match="TIME, EXISTS, UNLINK, the hash commands"):
        few.raise_fence("new", token=token(5))
    plain.execute_command("ACL", "SETUSER", "few", "+unlink")
    few.raise_fence("new", token=token(5))
    few.raise_fence("new", token=token(6))
    few.write(lambda r: r.set("n", 1), "new", token=token(6))
    with pytest.raises(errors.StaleTokenError):
        few.write(lambda r: r.set("n", 2), "new", token=token(5))
    few.close()


def test_a_replica(calls: Calls, plain: redis.Redis, server: Valkey, valkey_server: Start) -> None:
    server.replica_of(valkey_server())
    with redis.Redis.from_url(server.url) as replica:
        with pytest.raises(ServerRefusedError, match="read-only replica"):
            write(calls)
        with pytest.raises(ServerRefusedError, match="read-only replica"):
            calls.raise_fence("a", token=token(6))
        assert replica.get("x") is None
    server.replica_of(None)
    with pytest.raises(errors.MarkMissingError):
        write(calls)


@pytest.mark.parametrize("kind", [Blocking, Asyncio])
def test_an_address_that_moves_to_the_new_primary_is_asked_again(
    kind: Callable[..., Calls], plain: redis.Redis, server: Valkey, valkey_server: Start
) -> None:
    replica = valkey_server()
    replica.replica_of(server)
    with Proxy(replica.port) as proxy, contextlib.closing(kind(proxy.url)) as calls:
        with pytest.raises(ServerRefusedError, match="read-only replica"):
            write(calls)
        proxy.lead_to(server.port)
        write(calls)
    assert plain.get("x") == b"after"


def test_a_user_without_the_right(plain: redis.Redis, server: Valkey) -> None:
    def user(*rules: str) -> Calls:
        plain.execute_command("ACL", "SETUSER", "u", "reset", "on", ">secret", *rules)
        return Blocking(f"redis://u:secret@127.0.0.1:{server.port}/0")

    refused(user("~*", "+@all", "-evalsha"), plain, ServerRefusedError, "denies")
    refused(user("~x", "+@all"), plain, ServerRefusedError, "denies")
    with pytest.raises(errors.EffectError, match=r"\(SET\)"):
        write(user("~*", "+@all", "-set"))
    with pytest.raises(ServerRefusedError, match="denies") as caught:
        write(user("~fencing:*", "+@all"))
    assert "secret" not in str(caught.value)
    assert plain.get("x") == b"before"
    with pytest.raises(ServerRefusedError, match="denies"):
        write(user("~*", "+@all", "-hmget"))
    assert plain.get("x") == b"before"
    with pytest.raises(errors.OutcomeUnknownError, match="executed"):
        write(user("~*", "+@all", "-hset"))
    assert plain.get("x") == b"after"
    write(user("~*", "-@all", "+evalsha", "+script|load", "+time", "+hmget", "+hget", "+hlen", "+hset", "+set"))


def test_wrong_and_missing_passwords(plain: redis.Redis, server: Valkey) -> None:
    plain.config_set("requirepass", "secret")
    for url in (server.url, f"redis://:wrong@127.0.0.1:{server.port}/0"):
        with pytest.raises(ServerRefusedError, match="credentials") as caught:
            write(Blocking(url))
        assert "wrong@" not in str(caught.value)
    with contextlib.closing(Blocking(f"redis://:secret@127.0.0.1:{server.port}/0")) as right:
        write(right)


def test_a_flushed_script_cache_is_no_matter(calls: Calls, plain: redis.Redis) -> None:
    for _ in range(3):
        plain.script_flush()
        write(calls)
        plain.script_flush()
        calls.raise_fence("a", token=token(5))
    assert plain.get("x") == b"after"


def test_something_else_under_the_marks_key(calls: Calls, plain: redis.Redis) -> None:
    for other in (lambda: plain.set("fencing:{b}:mark", 1), lambda: plain.lpush("fencing:{b}:mark", 1)):
        plain.delete("fencing:{b}:mark")
        other()
        with pytest.raises(ServerRefusedError, match="something else than a mark"):
            calls.write(lambda r: r.set("x", 1), "b", token=token(5))
        with pytest.raises(errors.FencingError):
            calls.read_mark("b")
    plain.delete("fencing:{b}:mark")
    plain.hset("fencing:{b}:mark", mapping={"token": "no token"})
    with pytest.raises(ServerRefusedError, match="does not hold a mark"):
        calls.write(lambda r: r.set("x", 1), "b", token=token(5))
    # A hash without a token is not a mark that is missing: what was there, nobody knows.
    plain.hdel("fencing:{b}:mark", "token")
    plain.hset("fencing:{b}:mark", "holder", "somebody")
    with pytest.raises(ServerRefusedError, match="does not hold a mark"):
        calls.raise_fence("b", token=token(5))
    with pytest.raises(ServerRefusedError, match="does not hold a mark"):
        calls.write(lambda r: r.set("x", 1), "b", token=token(5))
    with pytest.raises(ServerRefusedError, match="does not hold a mark"):
        calls.read_mark("b")
    assert plain.hgetall("fencing:{b}:mark") == {b"holder": b"somebody"}
    assert plain.get("x") == b"before"


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_where_marks_may_be_evicted_a_missing_one_is_never_made_by_a_write(
    server: Valkey, plain: redis.Redis, policy: str
) -> None:
    calls = Blocking(server.url, on_missing="create")
    plain.config_set("maxmemory-policy", policy)
    calls.write(lambda r: r.set("x", 1), "no limit", token=token(5))
    plain.config_set("maxmemory", 10**9)
    with pytest.raises(errors.MarkMissingError, match="evicts"):
        calls.write(lambda r: r.set("x", 2), "b", token=token(5))
    assert plain.get("x") == b"1"
    calls.raise_fence("b", token=token(5))
    calls.write(lambda r: r.set("x", 3), "b", token=token(5))
    plain.config_set("maxmemory-policy", "volatile-lru")
    calls.write(lambda r: r.set("x", 4), "c", token=token(5))


def test_an_evicted_mark_lets_no_stale_write_in(server: Valkey, plain: redis.Redis) -> None:
    calls = Blocking(server.url)
    raise_fence(plain, "a", token=token(9))
    plain.config_set("maxmemory-policy", "allkeys-random")
    plain.config_set("maxmemory", plain.info("memory")["used_memory"] + 200_000)
    for number in range(20_000):
        plain.set(f"filler:{number}", "x" * 100)
        if number % 100 == 0 and not plain.exists("fencing:{a}:mark"):
            break
    else:
        pytest.fail("the mark was not evicted")
    with pytest.raises(errors.MarkMissingError):
        calls.write(lambda r: r.set("y", "stale"), "a", token=token(5))
    assert plain.get("y") is None


# Durability


def acknowledging(server: Valkey, replica: Valkey) -> None:
    replica.replica_of(server)
    with redis.Redis.from_url(server.url) as client:
        eventually(lambda: _waits(client), "the replica acknowledges")


def _waits(client: redis.Redis) -> bool:
    client.set("probe", 1)
    return bool(client.wait(1, 100))


@pytest.fixture(params=["blocking", "asyncio"])
def durable(request: pytest.FixtureRequest, server: Valkey) -> Iterator[Calls]:
    kind = Blocking if request.param == "blocking" else Asyncio
    with contextlib.closing(kind(server.url, durability="wait:1:500")) as made:
        yield made


def test_too_few_acknowledgements_are_unknown_never_success(durable: Calls, plain: redis.Redis) -> None:
    with pytest.raises(errors.OutcomeUnknownError, match="0 of 1 replicas"):
        durable.write(lambda r: r.set("x", "after"), "a", token=token(5))
    assert plain.get("x") == b"after"
    with pytest.raises(errors.OutcomeUnknownError, match="0 of 1 replicas"):
        durable.raise_fence("a", token=token(6))
    with pytest.raises(errors.OutcomeUnknownError, match="0 of 1 replicas"):
        durable.raise_fence("a", token=token(6))
    with pytest.raises(errors.OutcomeUnknownError, match="0 of 1 replicas"):
        durable.write(lambda r: None, "a", token=token(6))
    with pytest.raises(errors.StaleTokenError):
        durable.raise_fence("a", token=token(5))


def test_a_reply_is_not_told_where_the_write_is_not_durable(durable: Calls, plain: redis.Redis) -> None:
    replies: list[Any] = []
    with pytest.raises(errors.OutcomeUnknownError):
        durable.write(lambda r: replies.append(r.incr("n")), "a", token=token(5))
    with pytest.raises(errors.OutcomeUnknownError):
        _ = replies[0].value


def test_acknowledged_writes_are_on_the_replica(
    durable: Calls, plain: redis.Redis, server: Valkey, valkey_server: Start
) -> None:
    replica = valkey_server()
    acknowledging(server, replica)
    durable.raise_fence("a", token=token(6))
    assert durable.write(lambda r: r.incr("n"), "a", token=token(6)).value == 1
    with redis.Redis.from_url(replica.url) as there:
        assert there.get("n") == b"1"
        assert there.hget("fencing:{a}:mark", "token") == b"shop/lineage-a/6"
    replica.stop()
    with pytest.raises(errors.OutcomeUnknownError):
        durable.write(lambda r: r.incr("n"), "a", token=token(6))
    # What was written is written, and the same token goes on once the replica is back.
    replica.start_again()
    acknowledging(server, replica)
    assert durable.write(lambda r: r.incr("n"), "a", token=token(6)).value == 3


def test_a_promoted_replica_keeps_what_was_acknowledged(
    durable: Calls, plain: redis.Redis, server: Valkey, valkey_server: Start
) -> None:
    replica = valkey_server()
    acknowledging(server, replica)
    durable.raise_fence("a", token=token(6))
    replica.replica_of(None)
    with pytest.raises(errors.StaleTokenError):
        Blocking(replica.url).write(lambda r: r.set("x", "stale"), "a", token=token(5))


def test_a_repeated_question_waits_for_the_replica_too(
    plain: redis.Redis, server: Valkey, valkey_server: Start
) -> None:
    """On the new connection nothing has been written: without a write of its own, WAIT would be content at once."""
    replica = valkey_server()
    acknowledging(server, replica)
    with Proxy(server.port) as proxy:
        durable = Blocking(proxy.url, durability="wait:1:300")
        proxy.lose_reply(b"EVALSHA")
        assert durable.write(lambda r: r.incr("n"), "a", token=token(5)).value == 1
        os.kill(replica.pid, signal.SIGSTOP)
        try:
            for lost in (proxy.lose_reply, proxy.lose_request):
                lost(b"EVALSHA")
                with pytest.raises(errors.OutcomeUnknownError, match="0 of 1"):
                    durable.write(lambda r: r.incr("n"), "a", token=token(5))
            proxy.lose_reply(b"EVALSHA")
            with pytest.raises(errors.OutcomeUnknownError, match="0 of 1"):
                durable.raise_fence("a", token=token(5))
        finally:
            os.kill(replica.pid, signal.SIGCONT)
        assert durable.write(lambda r: r.incr("n"), "a", token=token(5)).value == 4


def test_a_lost_answer_to_wait_is_asked_for_again(plain: redis.Redis, server: Valkey, valkey_server: Start) -> None:
    acknowledging(server, valkey_server())
    with Proxy(server.port) as proxy:
        durable = Blocking(proxy.url, durability="wait:1:5000", client={"socket_timeout": 10})
        proxy.lose_reply(b"\r\nWAIT\r\n")
        assert durable.write(lambda r: r.incr("n"), "a", token=token(5)).value == 1
        proxy.lose_reply(b"\r\nWAIT\r\n", times=20)
        with pytest.raises(errors.OutcomeUnknownError):
            durable.write(lambda r: r.incr("n"), "a", token=token(5))
    assert plain.get("n") == b"2"


def test_diagnosis_names_what_is_not_assured(calls: Calls, plain: redis.Redis, server: Valkey) -> None:
    def severities() -> dict[str, str]:
        return {finding.check: finding.severity for finding in calls.diagnose()}

    assert severities() == {
        "redis-version": "ok",
        "redis-eviction": "ok",
        "redis-replication": "ok",
        "redis-persistence": "warning",
        "redis-clock": "ok",
        "redis-keys": "ok",
    }
    plain.config_set("maxmemory-policy", "allkeys-lru")
    plain.config_set("maxmemory", 10**9)
    plain.config_set("appendonly", "yes")
    plain.config_set("appendfsync", "always")
    assert severities()["redis-eviction"] == "warning"
    assert severities()["redis-persistence"] == "ok"
    with contextlib.closing(Blocking(server.url, durability="wait:1:100")) as durable:
        assert {f.check: f.severity for f in durable.diagnose()}["redis-replication"] == "broken"


def test_diagnosis_finds_marks_that_go_by_themselves(calls: Calls, plain: redis.Redis) -> None:
    def keys() -> Any:
        [finding] = [finding for finding in calls.diagnose() if finding.check == "redis-keys"]
        return finding

    calls.raise_fence("a", "b", token=token(5))
    assert keys().severity == "ok"
    plain.expire("fencing:{b}:mark", 1000)
    assert keys().severity == "broken"
    assert "fencing:{b}:mark" in keys().message
    plain.persist("fencing:{b}:mark")
    plain.set("fencing:{c}:mark", "text")
    assert keys().severity == "broken"


def test_diagnosis_of_a_server_that_forbids_to_ask(plain: redis.Redis, server: Valkey) -> None:
    plain.execute_command("ACL", "SETUSER", "u", "on", ">p", "~*", "+@all", "-config")
    found = Blocking(f"redis://u:p@127.0.0.1:{server.port}/0").diagnose()
    assert [f.severity for f in found if f.check == "redis-access"] == ["warning"]
    assert "redis-eviction" in {f.check for f in found}
    plain.execute_command("ACL", "SETUSER", "u", "-scan")
    found = Blocking(f"redis://u:p@127.0.0.1:{server.port}/0").diagnose()
    assert len([f for f in found if f.check == "redis-access"]) == 2
    plain.execute_command("ACL", "SETUSER", "u", "-info")
    found = Blocking(f"redis://u:p@127.0.0.1:{server.port}/0").diagnose()
    assert [f.check for f in found] == ["redis-access"]


def test_diagnosis_of_a_replica(server: Valkey, valkey_server: Start) -> None:
    server.replica_of(valkey_server())
    assert {f.check: f.severity for f in Blocking(server.url).diagnose()}["redis-role"] == "broken"
