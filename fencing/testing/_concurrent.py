"""Threads that write to a downstream at once, and the history that this leaves."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from fencing import history
from fencing._ports import AsyncGuard, Guard
from fencing._registry import guard_for
from fencing._token import Token
from fencing.errors import ContentionError, FenceRejected, OutcomeUnknownError
from fencing.testing._downstream import Downstream
from fencing.testing._harness import Harness, Writer
from fencing.testing._model import value_of

RESOURCES = ("account/1", "account/2")


def concurrent_history(
    downstream: Downstream, *, threads: int = 4, rounds: int = 20, seed: int = 0
) -> list[history.Event]:
    """Let threads claim, raise and write at once, older holders among them, then look at what is there.

    Return what happened, for :func:`check_history`. ``downstream`` must stand being used by several threads
    (``Capability.THREADS``); it is made empty first. In each round every thread does one thing, and all begin together.
    """
    run = _Run(downstream, threads, seed)
    unsubscribe = history.subscribe(run.note)
    try:
        with Harness(downstream) as harness, ThreadPoolExecutor(threads) as pool:
            first = run.claim("worker-0")
            harness.begin(first, *RESOURCES)
            for done in [pool.submit(run.work, number, rounds) for number in range(threads)]:
                done.result()
            run.look(harness)
    finally:
        unsubscribe()
    return run.events


class _Run:
    def __init__(self, downstream: Downstream, threads: int, seed: int) -> None:
        self.events: list[history.Event] = []
        self._downstream = downstream
        self._seed = seed
        self._together = threading.Barrier(threads)
        self._issuing = threading.Lock()
        # Above 2**53, where numbers that were made floats are told apart no more.
        self._numbers = count(2**53)
        self._effects = count(1)
        self._actors = {f"worker-{number}" for number in range(threads)}

    def note(self, event: history.Event) -> None:
        if event.actor in self._actors:
            self.events.append(event)

    def claim(self, actor: str) -> Writer:
        with self._issuing:
            token = Token(next(self._numbers), "shop", "l1")
            history.emit(history.Event("claim", "done", actor, "issuer", ("job",), str(token)))
        return Writer(actor, token)

    def work(self, number: int, rounds: int) -> None:
        """One thread's part. It keeps its token for a few rounds, whoever has claimed meanwhile."""
        actor = f"worker-{number}"
        chance = random.Random(f"{self._seed} {number}")
        try:
            with Harness(self._downstream).beside() as harness:
                writer = self.claim(actor)
                for _ in range(rounds):
                    self._together.wait(120)
                    if chance.random() < 0.3:
                        writer = self.claim(actor)
                    self._act(harness, writer, chance)
        except BaseException:
            self._together.abort()
            raise

    def _act(self, harness: Harness, writer: Writer, chance: random.Random) -> None:
        resources: Sequence[str] = (chance.choice(RESOURCES),)
        try:
            if chance.random() < 0.2:
                with harness.transaction() as target:
                    harness.raise_fence_in(target, writer, *resources)
            else:
                (resource,) = resources
                value = value_of(writer, next(self._effects))
                with harness.transaction() as target, history.effects(value):
                    with harness.fenced_in(target, writer, resource) as block:
                        block.write(resource, value)
        except (FenceRejected, ContentionError, OutcomeUnknownError):
            return
        guard: Guard[object] | AsyncGuard[object] = guard_for(target)
        history.emit(history.Event("commit", "done", writer.holder, guard.downstream))

    def look(self, harness: Harness) -> None:
        with harness.transaction() as target:
            place = guard_for(target).downstream
        for resource in RESOURCES:
            found = harness.look(resource)
            effects = (found,) if found is not None else ()
            event = history.Event("look", "done", "worker-0", place, (resource,), effects=effects, detail="last")
            self.events.append(event)
