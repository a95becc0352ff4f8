"""Many writers at once: no write of an older token lands after a newer one, and none is lost or doubled."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
import redis
from support.redis_calls import token

from adapters.redis import RedisGuard
from fencing import errors, fenced_write, raise_fence, read_mark


def run(workers: list[Callable[[], None]]) -> None:
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as exc:  # noqa: BLE001 - told to the test
            failures.append(exc)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("round_", range(3))
def test_the_log_of_accepted_writes_never_falls(valkey_url: str, round_: int) -> None:
    raise_fence(redis.Redis.from_url(valkey_url), "a", token=token(1))
    accepted: list[int] = []
    refused: list[int] = []
    dice = random.Random(round_)

    def worker(values: list[int]) -> Callable[[], None]:
        def work() -> None:
            with redis.Redis.from_url(valkey_url) as client:
                for value in values:
                    try:
                        with fenced_write(client, "a", token=token(value)) as r:
                            r.rpush("log", value)
                            r.incr("n")
                        accepted.append(value)
                    except errors.StaleTokenError:
                        refused.append(value)

        return work

    values = [9, 10, 99, 100, 2**53, 2**53 + 1, 2**63 - 1]
    plans = [dice.choices(values, k=40) if number % 2 else sorted(values * 6) for number in range(6)]
    run([worker(plan) for plan in plans])
    with redis.Redis.from_url(valkey_url) as client:
        log = [int(value) for value in client.lrange("log", 0, -1)]
        assert log == sorted(log)
        assert sorted(log) == sorted(accepted)
        assert int(client.get("n")) == len(accepted)  # type: ignore[arg-type]
        mark = read_mark(client, "a")
    assert mark is not None
    assert mark.token == token(2**63 - 1)
    assert refused


def test_writes_to_overlapping_resources_are_all_or_nothing(valkey_url: str) -> None:
    names = ["a", "b", "c"]
    raise_fence(redis.Redis.from_url(valkey_url), *names, token=token(1))

    def worker(number: int) -> Callable[[], None]:
        def work() -> None:
            dice = random.Random(number)
            with redis.Redis.from_url(valkey_url) as client:
                for _ in range(40):
                    value = dice.randint(1, 60)
                    chosen = dice.sample(names, dice.randint(1, 3))
                    try:
                        with fenced_write(client, *chosen, token=token(value)) as r:
                            for name in chosen:
                                r.rpush(f"log:{name}", value)
                    except errors.StaleTokenError:
                        pass

        return work

    run([worker(number) for number in range(6)])
    with redis.Redis.from_url(valkey_url) as client:
        for name in names:
            log = [int(value) for value in client.lrange(f"log:{name}", 0, -1)]
            assert log == sorted(log)
            mark = read_mark(client, name)
            assert mark is not None
            assert mark.token.value == log[-1]


def test_first_writers_under_create_make_one_mark(valkey_url: str) -> None:
    start = threading.Barrier(6)
    accepted: list[int] = []

    def worker(value: int) -> Callable[[], None]:
        def work() -> None:
            with redis.Redis.from_url(valkey_url) as client:
                guard = RedisGuard(client, on_missing="create")
                start.wait()
                try:
                    with fenced_write(guard, "a", token=token(value)) as r:
                        r.rpush("log", value)
                    accepted.append(value)
                except errors.StaleTokenError:
                    pass

        return work

    run([worker(value) for value in range(1, 7)])
    with redis.Redis.from_url(valkey_url) as client:
        log = [int(value) for value in client.lrange("log", 0, -1)]
    assert log == sorted(accepted)
    assert log[-1] == 6
