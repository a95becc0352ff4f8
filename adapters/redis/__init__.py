"""The Redis and Valkey adapter: fenced writes by one script that checks, raises the mark and executes, in one step."""

from adapters.redis._errors import ServerRefusedError
from adapters.redis._guard import AsyncRedisGuard, RedisGuard, SyncRedisGuard, guard_for
from adapters.redis._keys import redis_key
from adapters.redis._recorder import Recorder, Reply

__all__ = [
    "AsyncRedisGuard",
    "Recorder",
    "RedisGuard",
    "Reply",
    "ServerRefusedError",
    "SyncRedisGuard",
    "guard_for",
    "redis_key",
]
