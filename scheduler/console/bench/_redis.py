"""A fenced write to Redis against the same commands without a fence, on one connection, in short turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis

from fencing import Token, fenced_write, raise_fence
from scheduler.console.bench._frame import Bench, Pair, Servers

SETS = 6_000
PIPELINES = 400
IN_PIPELINE = 100
SLICES = 20
"""Turns within a round. A neighbour on the machine is busy for longer than one of them, and slows both alike."""

_KEY = "fencing-bench:{x}:value"
_RESOURCE = "fencing-bench"
_TOKEN = Token(1, "bench", "bench")


@contextmanager
def _client(url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(url) as client:
        raise_fence(client, _RESOURCE, token=_TOKEN)
        yield client
        client.delete(_KEY, f"fencing:{{{_RESOURCE}}}:mark")


def _turns(work: int, ours: Callable[[redis.Redis, int], None], base: Callable[[redis.Redis, int], None]) -> Pair:
    def pair(servers: Servers, scale: float, ours_first: bool) -> tuple[float, float]:
        count = max(1, int(work * scale / SLICES))
        spent = {ours: 0.0, base: 0.0}
        with _client(servers.redis) as client:
            for write in (ours, base):
                write(client, 1)  # the script is known and the connection is warm
            for number in range(SLICES):
                for write in (ours, base) if ours_first == (number % 2 == 0) else (base, ours):
                    began = time.perf_counter()
                    write(client, count)
                    spent[write] += time.perf_counter() - began
        return count * SLICES / spent[ours], count * SLICES / spent[base]

    return pair


def _fenced_sets(client: redis.Redis, count: int) -> None:
    for number in range(count):
        with fenced_write(client, _RESOURCE, token=_TOKEN) as r:
            r.set(_KEY, number)


def _plain_sets(client: redis.Redis, count: int) -> None:
    for number in range(count):
        client.set(_KEY, number)


def _fenced_pipelines(client: redis.Redis, count: int) -> None:
    for _ in range(count):
        with fenced_write(client, _RESOURCE, token=_TOKEN) as r:
            for number in range(IN_PIPELINE):
                r.set(_KEY, number)


def _plain_pipelines(client: redis.Redis, count: int) -> None:
    for _ in range(count):
        with client.pipeline(transaction=False) as pipeline:
            for number in range(IN_PIPELINE):
                pipeline.set(_KEY, number)
            pipeline.execute()


BENCHES = [
    Bench(
        "redis_set",
        "one SET, fenced, against the client's own SET, one after the other over one connection of its pool",
        "writes/s",
        "higher",
        0.9,
        _turns(SETS, _fenced_sets, _plain_sets),
    ),
    Bench(
        "redis_pipeline",
        f"{IN_PIPELINE} SETs in one fenced write, against the client's pipeline of {IN_PIPELINE}",
        "pipelines/s",
        "higher",
        0.7,
        _turns(PIPELINES, _fenced_pipelines, _plain_pipelines),
    ),
]
