"""Threads that write to a downstream at once, and the history that this leaves."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from fencing import history
from fencing._ports import AsyncGuard, Guard
from fencing._registry import guard_for
from fencing._token import Token
from fencing.errors import ContentionError, FenceRejected, OutcomeUnknownError
from fencing.testing._downstream import Capability, Downstream
from fencing.testing._harness import Harness, Writer
from fencing.testing._model import value_of
from fencing.testing._quiet import Quiet

RESOURCES = ("account/1", "account/2")

_DWELL = 0.001
"""Seconds for which a thread stays inside its block at most, before it writes. A check apart from its write is seen
only if somebody comes between, and threads of one process change places by themselves too seldom for that."""


def concurrent_history(
    downstream: Downstream, *, threads: int = 4, rounds: int = 20, seed: int = 0
) -> list[history.Event]:
    """Let threads claim, raise, write and look at once, older holders among them, then look at what is there.

    Return what happened, for :func:`check_history`. ``downstream`` must stand being used by several threads
    (``Capability.THREADS``); it is made empty first. In each round every thread does one thing, and all begin together.
    """
    run = _Run(downstream, threads, seed)
    unsubscribe = history.subscribe(run.note)
    try:
        with Quiet(), Harness(downstream) as harness, ThreadPoolExecutor(threads) as pool:
            first = run.claim("worker-0")
            harness.begin(first, *RESOURCES)
            run.find_place(harness)
            for done in [pool.submit(run.work, number, rounds) for number in range(threads)]:
                done.result()
            for resource in RESOURCES:
                run.look(harness, "worker-0", resource)
    finally:
        unsubscribe()
    return run.events


class _Run:
    def __init__(self, downstream: Downstream, threads: int, seed: int) -> None:
        self.events: list[history.Event] = []
        self._downstream = downstream
        self._place = ""
        self._seed = seed
        self._together = threading.Barrier(threads)
        self._issuing = threading.Lock()
        # Above 2**53, where numbers that were made floats are told apart no more.
        self._numbers = count(2**53)
        self._effects = count(1)
        self._actors = {f"worker-{number}" for number in range(threads)}

    def find_place(self, harness: Harness) -> None:
        """What the guard calls the downstream, for what is found there."""
        with harness.transaction() as target:
            self._place = guard_for(target).downstream

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
                    if chance.random() < 0.3:
                        self.look(harness, actor, chance.choice(RESOURCES))
        except BaseException:
            self._together.abort()
            raise

    def _act(self, harness: Harness, writer: Writer, chance: random.Random) -> None:
        several = self._downstream.can(Capability.SEVERAL) and chance.random() < 0.3
        resources = tuple(chance.sample(RESOURCES, 2 if several else 1))  # two in either order
        try:
            if chance.random() < 0.2:
                with harness.transaction() as target:
                    harness.raise_fence_in(target, writer, *resources)
            else:
                value = value_of(writer, next(self._effects))
                with harness.transaction() as target, history.effects(value):
                    with harness.fenced_in(target, writer, *resources) as block:
                        if chance.random() < 0.7:
                            time.sleep(chance.random() * _DWELL)
                        for resource in resources:
                            block.write(resource, value)
        except (FenceRejected, ContentionError, OutcomeUnknownError):
            return
        guard: Guard[object] | AsyncGuard[object] = guard_for(target)
        history.emit(history.Event("commit", "done", writer.holder, guard.downstream))

    def look(self, harness: Harness, actor: str, resource: str) -> None:
        """What is there now. Later writes hide what was lost, so that it is asked in between too."""
        began = time.monotonic_ns()
        found = harness.look(resource)
        effects = (found,) if found is not None else ()
        self.events.append(
            history.Event("look", "done", actor, self._place, (resource,), effects=effects, detail="last", began=began)
        )
