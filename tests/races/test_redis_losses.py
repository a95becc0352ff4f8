"""Many writers over a line that loses requests and replies at random, a token that rises, a mark that forgets early."""

from __future__ import annotations

import hashlib
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from unittest import mock

import pytest
import redis
from support.planted import edited
from support.proxy import Loss, Proxy
from support.redis_calls import token

from adapters.redis import RedisGuard, _core, _script
from adapters.redis._wire import packed, word
from fencing import errors, fenced_write, raise_fence

THREADS = 8
WRITES = 150
LOST_REQUESTS = 0.12
LOST_REPLIES = 0.18


class LossyLine(Proxy):
    """Loses requests that run the script, or their replies, by a dice of its own."""

    def __init__(self, port: int) -> None:
        self._dice = random.Random(5)
        super().__init__(port)

    def _next_loss(self, request: bytes) -> tuple[Loss | None, Callable[[], object] | None]:
        if b"EVALSHA" in request:
            thrown = self._dice.random()
            if thrown < LOST_REQUESTS:
                return "request", None
            if thrown < LOST_REQUESTS + LOST_REPLIES:
                return "reply", None
        return None, None


@pytest.fixture
def forgetful() -> Iterator[None]:
    """A mark that remembers no more writers than these threads are, so that it forgets all the time."""
    source = edited(_script._SOURCE, "local WRITERS = 1024", f"local WRITERS = {THREADS - 2}")
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    with (
        mock.patch.object(_script, "_EVALSHA", word(b"EVALSHA") + word(sha.encode())),
        mock.patch.object(_core, "LOAD", packed("SCRIPT", "LOAD", source)),
    ):
        yield


def test_nothing_is_applied_twice_and_every_end_tells_the_truth(valkey_url: str, forgetful: None) -> None:
    plain = redis.Redis.from_url(valkey_url)
    raise_fence(plain, "a", token=token(1))
    newest = itertools.count(2)
    ends: list[tuple[str, str]] = []

    with LossyLine(plain.get_connection_kwargs()["port"]) as line:
        shared = RedisGuard(redis.Redis.from_url(line.url))

        def work(number: int) -> None:
            dice = random.Random(number)
            own = RedisGuard(redis.Redis.from_url(line.url))
            presented = 1
            for write in range(WRITES):
                field = f"{number}-{write}"
                if number == 0 and write % 25 == 24:  # one of them takes the work over now and then
                    raise_fence(plain, "a", token=token(next(newest)))
                mark = plain.hget("fencing:{a}:mark", "token")
                if mark is not None and dice.random() < 0.8:
                    presented = int(mark.rpartition(b"/")[2])  # type: ignore[union-attr]
                try:
                    with fenced_write(shared if number % 2 else own, "a", token=token(presented)) as r:
                        reply = r.hincrby("effects", field, 1)
                    ends.append((field, f"applied {reply.value}"))
                except errors.FencingError as end:
                    ends.append((field, type(end).__name__))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    applied = {field.decode(): int(times) for field, times in plain.hgetall("effects").items()}  # type: ignore[union-attr]
    allowed = {"applied 1": {1}, "StaleTokenError": {0}, "ContentionError": {0}, "OutcomeUnknownError": {0, 1}}
    wrong = [
        (field, end, applied.get(field, 0)) for field, end in ends if applied.get(field, 0) not in allowed.get(end, ())
    ]
    assert not wrong
    assert len(ends) == THREADS * WRITES
    assert {"applied 1", "StaleTokenError", "OutcomeUnknownError"} <= {end for _, end in ends}
