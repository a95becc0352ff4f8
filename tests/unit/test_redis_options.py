"""Options, names of downstreams, the meaning of the server's errors and of its settings: all without a server."""

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis.asyncio
from redis import exceptions

from adapters.redis import AsyncRedisGuard, RedisGuard, ServerRefusedError, SyncRedisGuard, guard_for
from adapters.redis._diagnose import judge
from adapters.redis._durability import Durability
from adapters.redis._errors import nothing_done, unreachable
from fencing import AsyncGuard, Guard, errors


@pytest.fixture
def client() -> redis.Redis:
    return redis.Redis()  # never connected


def test_the_guard_fits_the_client(client: redis.Redis) -> None:
    blocking, over_asyncio = RedisGuard(client), RedisGuard(redis.asyncio.Redis())
    assert isinstance(blocking, SyncRedisGuard) and isinstance(blocking, Guard)
    assert isinstance(over_asyncio, AsyncRedisGuard) and isinstance(over_asyncio, AsyncGuard)
    assert not isinstance(blocking, AsyncGuard)
    assert not isinstance(over_asyncio, Guard)
    assert isinstance(blocking, RedisGuard)


@pytest.mark.parametrize(
    "target",
    [redis.Redis().pipeline(), redis.asyncio.Redis().pipeline(), redis.Redis().pubsub(),
     redis.ConnectionPool(), "redis://x", None],
    ids=lambda target: type(target).__name__,
)  # fmt: skip
def test_what_is_no_client_is_refused(target: Any) -> None:
    with pytest.raises(TypeError, match="pass"):
        RedisGuard(target)
    with pytest.raises(TypeError):
        guard_for(target)


def test_a_guard_named_for_the_other_kind_of_client_is_refused(client: redis.Redis) -> None:
    assert type(SyncRedisGuard(client)) is SyncRedisGuard
    with pytest.raises(TypeError, match="SyncRedisGuard"):
        AsyncRedisGuard(client)
    with pytest.raises(TypeError, match="AsyncRedisGuard"):
        SyncRedisGuard(redis.asyncio.Redis())


def test_unknown_options_are_refused(client: redis.Redis) -> None:
    for wrong in ("raise", "", None, "CREATE"):
        with pytest.raises(ValueError, match="on_missing"):
            RedisGuard(client, on_missing=wrong)  # type: ignore[call-overload]
    for durability in (
        "",
        "wait",
        "wait:1",
        "wait:0:100",
        "wait:1:0",
        "wait:-1:5",
        "wait:1:1.5",
        "wait:1:2:3",
        "WAIT:1:1",
        None,
        5,
    ):
        with pytest.raises(ValueError, match="durability"):
            RedisGuard(client, durability=durability)  # type: ignore[call-overload]


def test_a_wait_that_the_client_would_not_outwait_is_refused() -> None:
    assert Durability.parse("wait:2:900", 1.0) == Durability(2, 900)
    assert Durability.parse("wait:2:90000", None) == Durability(2, 90000)
    with pytest.raises(ValueError, match="socket_timeout of 1 s"):
        Durability.parse("wait:2:1000", 1.0)
    with pytest.raises(ValueError, match="socket_timeout of 1 s"):
        RedisGuard(redis.Redis(socket_timeout=1), durability="wait:2:1000")
    if redis.Redis().get_connection_kwargs()["socket_timeout"] is not None:
        with pytest.raises(ValueError, match="socket_timeout of 5 s"):
            RedisGuard(redis.Redis(connection_pool=redis.ConnectionPool()), durability="wait:2:5000")


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (redis.Redis(), "redis:localhost:6379/0"),
        (redis.Redis(host="h", port=7, db=3, username="u", password="secret"), "redis:h:7/3"),
        (redis.Redis.from_url("redis://u:secret@h:7/3"), "redis:h:7/3"),
        (redis.Redis(unix_socket_path="/run/redis.sock", db=2), "redis:/run/redis.sock/2"),
        (redis.asyncio.Redis(host="h"), "redis:h:6379/0"),
        (redis.Sentinel([("s", 1)]).master_for("main"), "redis:sentinel:main/0"),
    ],
)  # fmt: skip
def test_a_downstream_is_named_without_its_password(made: Any, name: str) -> None:
    assert RedisGuard(made).downstream == name


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (exceptions.BusyLoadingError("Redis is loading the dataset in memory"), errors.ContentionError),
        (exceptions.TryAgainError("x"), errors.ContentionError),
        (exceptions.ClusterDownError("x"), errors.ContentionError),
        (exceptions.MasterDownError("x"), errors.ContentionError),
        (exceptions.ResponseError("BUSY Redis is busy running a script"), errors.ContentionError),
        (exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."), errors.ContentionError),
        (exceptions.ReadOnlyError("x"), ServerRefusedError),
        (exceptions.OutOfMemoryError("x"), ServerRefusedError),
        (exceptions.NoPermissionError("x"), ServerRefusedError),
        (exceptions.AuthenticationError("x"), ServerRefusedError),
        (exceptions.MovedError("1 h:1"), ServerRefusedError),
        (exceptions.ClusterCrossSlotError("x"), ServerRefusedError),
        (exceptions.ResponseError("MISCONF x"), ServerRefusedError),
        (exceptions.ResponseError("WRONGTYPE x"), ServerRefusedError),
        (exceptions.ResponseError("ERR Error compiling script: unexpected symbol near '#'"), ServerRefusedError),
        (exceptions.ResponseError("ERR something new"), type(None)),
        (exceptions.ConnectionError("BUSY in the name of a host"), type(None)),
        (exceptions.TimeoutError("x"), type(None)),
    ],
)  # fmt: skip
def test_only_answers_that_say_so_mean_that_nothing_was_done(answer: Exception, kind: type[Any]) -> None:
    found = nothing_done(answer, "redis:h:1/0")
    assert type(found) is kind
    if found is not None:
        assert found.downstream == "redis:h:1/0"
        assert "nothing was written" in str(found)


def test_a_connection_that_could_not_be_had_means_that_nothing_was_sent() -> None:
    assert type(unreachable(exceptions.ConnectionError("refused"), "d")) is errors.ContentionError
    assert type(unreachable(OSError("refused"), "d")) is errors.ContentionError
    assert type(unreachable(exceptions.AuthenticationError("no"), "d")) is ServerRefusedError


GOOD = {
    "redis_version": "7.2.4",
    "maxmemory": "0",
    "maxmemory_policy": "noeviction",
    "role": "master",
    "connected_slaves": "0",
    "aof_enabled": "1",
    "appendfsync": "always",
}


@pytest.mark.parametrize(
    ("changes", "durability", "check", "severity"),
    [
        ({}, "none", None, "ok"),
        ({"redis_version": "6.2.14"}, "none", "redis-version", "broken"),
        ({"redis_version": "7.0.0-rc1"}, "none", None, "ok"),
        ({"redis_version": "unstable"}, "none", None, "ok"),
        ({"maxmemory_policy": "allkeys-lru"}, "none", None, "ok"),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": "1"}, "none", "redis-eviction", "warning"),
        ({"maxmemory_policy": "volatile-lru", "maxmemory": "1"}, "none", None, "ok"),
        ({"connected_slaves": "1"}, "none", "redis-replication", "warning"),
        ({"connected_slaves": "1"}, "wait:1:5", None, "ok"),
        ({"connected_slaves": "1"}, "wait:2:5", "redis-replication", "broken"),
        ({"role": "slave"}, "none", "redis-role", "broken"),
        ({"aof_enabled": "0"}, "none", "redis-persistence", "warning"),
        ({"appendfsync": "everysec"}, "none", "redis-persistence", "warning"),
    ],
)  # fmt: skip
def test_what_the_settings_mean(changes: dict[str, str], durability: str, check: str | None, severity: str) -> None:
    found = list(judge({**GOOD, **changes}, "redis:h:1/0", "reject", Durability.parse(durability, None)))
    not_ok = [(finding.check, finding.severity) for finding in found if finding.severity != "ok"]
    assert not_ok == ([] if check is None else [(check, severity)])
