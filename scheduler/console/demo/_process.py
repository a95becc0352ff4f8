"""The demo's side of a worker process: orders, its event record, SIGSTOP and SIGCONT."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from fencing.history import Event, read_events

PROGRAM = "scheduler.console.demo._worker"
_ROOT = Path(__file__).resolve().parents[3]  # where the packages are: found from every directory


class WorkerProcess:
    """A worker, from its start to its end. It is started early, since it imports for a while, and waits for orders."""

    def __init__(self, directory: Path, number: int, program: str = PROGRAM) -> None:
        self.record = directory / f"worker-{number}.jsonl"
        self._log = directory / f"worker-{number}.log"
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", program, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=directory,
                env={**os.environ, "PYTHONPATH": path},
                # Ctrl-C in a terminal signals the whole foreground group; the demo ends its workers itself.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def events(self) -> list[Event]:
        """What it has recorded so far."""
        return read_events(self.record) if self.record.exists() else []

    @property
    def log(self) -> str:
        """What it has written to its standard output and error."""
        return self._log.read_text(errors="replace")

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def order(self, orders: dict[str, Any]) -> None:
        """Let it begin."""
        self._tell(json.dumps({**orders, "record": str(self.record)}))

    def go_on(self) -> None:
        """Let the work in the middle of its handler end."""
        self._tell("")

    def stop(self) -> str:
        """SIGSTOP; return the state that the system shows once every thread of it stands still."""
        self._process.send_signal(signal.SIGSTOP)
        # The kernel reports the stop when the last of its threads has stopped.
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self._process.returncode = os.waitstatus_to_exitcode(status)
            raise RuntimeError(f"worker {self.pid} ended instead of being stopped")
        return _state(self.pid)

    def wake(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM, and do not wait."""
        self._process.terminate()

    def wait(self, timeout: float) -> None:
        """Wait for its end. Raises ``subprocess.TimeoutExpired``."""
        self._process.wait(timeout)

    def end(self, timeout: float) -> None:
        """SIGTERM, and wait for its orderly end. Raises ``subprocess.TimeoutExpired``."""
        self.terminate()
        self.wait(timeout)

    def close(self) -> None:
        """Kill it if it is still there; a stopped one too."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone, which whoever waits for it will see
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()


def _state(pid: int) -> str:
    """The state's letter, ``T`` for stopped; where there is no /proc, what waitpid said."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "T"
    return stat.rpartition(")")[2].split()[0]
