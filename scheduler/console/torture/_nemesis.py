"""The nemesis: what goes wrong, when, and to whom. Chosen by a seed; how it meets the work is up to the machine."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from scheduler.console.demo._process import WorkerProcess
from scheduler.console.torture._network import Link
from scheduler.console.torture._servers import Servers

MARKERS = (b"COMMIT", b"complete", b"fencing_mark", b"EVALSHA")
"""What a request holds whose reply gets lost: a commit, a settlement, a guarded statement, a fenced write in Redis."""


class Victim:
    """A process's place: the process that is in it now, and its links. Killed, it is replaced."""

    def __init__(self, links: tuple[Link, Link], start: Callable[[int], WorkerProcess]) -> None:
        self.links = links
        self._start = start
        self.process = start(0)
        self.past: list[WorkerProcess] = []

    def replace(self, skew: int) -> None:
        """Kill it and start another, whose clock is ``skew`` seconds off."""
        self.process.close()
        self.past.append(self.process)
        self.process = self._start(skew)

    def supervise(self) -> None:
        """Start it again if it has ended by itself: one that is started while the database is away gives up."""
        if self.process.ended:
            self.replace(0)

    def close(self) -> None:
        """Kill the process that is in it."""
        self.process.close()


class Nemesis:
    """Two threads that do harm, one to processes and links, one to servers, until :meth:`stop`.

    ``faults`` counts what was done, by kind. An error in the nemesis itself ends the run: :meth:`stop` raises it.
    """

    def __init__(self, victims: Sequence[Victim], servers: Servers, seed: int) -> None:
        self.faults: Counter[str] = Counter()
        self._victims = victims
        self._servers = servers
        self._stopping = threading.Event()
        self._errors: list[BaseException] = []
        small = random.Random(f"processes {seed}")
        large = random.Random(f"servers {seed}")
        self._threads = [
            threading.Thread(target=self._harm, args=(small, self._to_processes, 0.2), name="nemesis-processes"),
            threading.Thread(target=self._harm, args=(large, self._to_servers, 2.0), name="nemesis-servers"),
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End, with everything running and connected again."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        for victim in self._victims:
            for link in victim.links:
                link.go_on()
        if self._errors:
            raise self._errors[0]

    def _harm(self, chance: random.Random, act: Callable[[random.Random], str | None], gap: float) -> None:
        try:
            while not self._stopping.wait(chance.uniform(gap / 2, gap * 1.5)):
                if kind := act(chance):
                    self.faults[kind] += 1
        except BaseException as exc:  # noqa: BLE001 - raised again by stop()
            self._errors.append(exc)

    def _to_processes(self, chance: random.Random) -> str | None:
        victim = chance.choice(self._victims)
        link = chance.choice(victim.links)
        kind = chance.choices(
            ("stopped", "killed", "clock skewed", "cut", "delayed", "half-open", "reply lost"), (6, 3, 1, 2, 2, 3, 5)
        )[0]
        for one in self._victims:
            one.supervise()
        if kind == "stopped":
            try:
                victim.process.stop()
            except (RuntimeError, ChildProcessError):
                return None  # it ended by itself a moment ago
            self._stopping.wait(chance.uniform(0.2, 3.0))
            victim.process.wake()
        elif kind in ("killed", "clock skewed"):
            victim.replace(0 if kind == "killed" else chance.choice((-3600, 3600)))
        elif kind == "cut":
            link.cut()
        elif kind == "reply lost":
            link.lose_reply(chance.choice(MARKERS))
        else:
            if kind == "delayed":
                link.delay(chance.uniform(0.05, 0.5))
            else:
                link.stand_still()
            self._stopping.wait(chance.uniform(0.5, 2.5))
            link.go_on()
        return kind

    def _to_servers(self, chance: random.Random) -> str:
        servers = self._servers
        harms: dict[str, tuple[Callable[[], Any], Callable[[], Any] | None]] = {
            "PostgreSQL restarted": (servers.restart_postgres, None),
            "PostgreSQL killed": (servers.crash_postgres, None),
            "PostgreSQL failed over": (servers.fail_over_postgres, servers.let_standby_fall_behind),
            "Valkey failed over": (servers.fail_over_valkey, servers.let_replica_fall_behind),
        }
        kind = chance.choice(list(harms))
        harm, fall_behind = harms[kind]
        if fall_behind is not None and not servers.synchronous:
            # On one machine a standby that nobody waits for has everything all the same, and would lose nothing.
            fall_behind()
            self._stopping.wait(chance.uniform(0.1, 1.0))
        harm()
        return kind
