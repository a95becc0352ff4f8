"""The nemesis of a torture run meets processes that end by themselves."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from scheduler.console.demo._process import WorkerProcess
from scheduler.console.torture._nemesis import Nemesis, Victim
from scheduler.console.torture._network import Network
from scheduler.console.torture._servers import Servers


class Stops(random.Random):
    """Always chooses to stop a process."""

    def choices(self, population: Sequence[Any], *_: Any, **__: Any) -> list[Any]:  # type: ignore[override]
        return ["stopped"]


class Dying(Victim):
    """Its process ends between the look whether it runs and what is done to it."""

    def supervise(self) -> None:
        super().supervise()
        os.kill(self.process.pid, signal.SIGKILL)
        if self.reaped:
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    reaped = False


@pytest.mark.parametrize("dead", [False, True], ids=["it is dying", "it is dead"])
def test_a_process_that_ends_just_before_it_is_stopped_is_no_error_and_no_fault(tmp_path: Path, dead: bool) -> None:
    numbers = iter(range(9))
    with Network() as network:
        links = network.link(9), network.link(9)
        victim = Dying(links, lambda _: WorkerProcess(tmp_path, next(numbers), "scheduler.console.torture._process"))
        victim.reaped = dead
        nemesis = Nemesis([victim], cast(Servers, None), 1)
        try:
            assert nemesis._to_processes(Stops()) is None
            victim.supervise()
            assert victim.past[0].pid != victim.process.pid
        finally:
            victim.close()
