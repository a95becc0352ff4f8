"""The other side of a relay process: orders, lines, SIGSTOP, SIGCONT and SIGKILL."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRAM = "scheduler.console.bench._fault_relay"
_ROOT = Path(__file__).resolve().parents[3]  # where the packages are: found from every directory
PATIENCE = 240.0
"""Seconds to wait for a line: it has never taken one, on a machine with nothing else to do."""


class RelayProcess:
    """A relay in a process of its own. A context manager: it is killed at the end, whatever state it is in."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the one who started it
        )
        self._rest = b""
        self._greeted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def order(self, order: dict[str, Any]) -> None:
        """Let it begin, once it has imported what it needs."""
        if not self._greeted:
            self.expect("ready")
            self._greeted = True
        self.tell(json.dumps(order))

    def tell(self, line: str = "") -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    def line(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        give_up = time.monotonic() + PATIENCE
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, give_up - time.monotonic()))
            more = os.read(self._process.stdout.fileno(), 65_536) if ready else b""
            if not more:
                self._log.seek(0)
                what = "has ended" if ready else f"says nothing for {PATIENCE:g} s"
                raise RuntimeError(f"the relay process {what}: {self._log.read().decode(errors='replace')[-2000:]}")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def expect(self, word: str) -> None:
        """Its next line is this one."""
        line = self.line()
        if line != word:
            raise RuntimeError(f"the relay process was expected to say {word!r}, and said {line!r}")

    def stop(self) -> None:
        """SIGSTOP; returns when the kernel says that every thread of it stands still."""
        self._process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self._process.returncode = os.waitstatus_to_exitcode(status)
            raise RuntimeError("the relay process ended instead of being stopped")

    def wake(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._log.close()
