"""The mail server of a benchmark, in a process of its own: ``python -m scheduler.console.bench._sink PARENT_PID``.

It says its port, and at each line of its standard input how many messages it has taken since it was told to forget
them, which the line ``forget`` does after its answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adapters.email.testing import SmtpSink
from scheduler.console._parent import die_with

_ROOT = Path(__file__).resolve().parents[3]


class SinkProcess:
    """The server, seen from the benchmark."""

    host = "127.0.0.1"

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.port = int(self._line())

    def taken(self) -> int:
        """How many messages it has taken since this was asked last."""
        return self._ask("forget")

    def taken_so_far(self) -> int:
        """The same, and it goes on counting from there."""
        return self._ask("")

    def _ask(self, line: str) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return int(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the mail server of the benchmark has ended")
        return line


@contextmanager
def sink_process() -> Iterator[SinkProcess]:
    """Start it; it ends with the block."""
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "scheduler.console.bench._sink", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        yield SinkProcess(process)
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    with SmtpSink() as sink:
        print(sink.port, flush=True)
        for line in sys.stdin:
            count = len(sink.received)
            if line.strip() == "forget":
                del sink.received[:count]
            print(count, flush=True)
