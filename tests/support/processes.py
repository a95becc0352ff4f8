"""Real processes that a test starts, stops in the middle, continues and kills."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from support.waiting import eventually


class PythonProcess:
    """A Python program in a process of its own that talks to the test in lines.

    The program prints lines (``print(..., flush=True)``; its output is unbuffered anyway) and reads lines
    from its standard input. What it writes to its standard error is shown when a wait for it fails. On
    leaving the ``with`` block it is killed, with its process group if it has one of its own.
    """

    def __init__(
        self,
        code: str | Path,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        own_group: bool = False,
        user: str | int | None = None,
        group: str | int | None = None,
        cwd: str | os.PathLike[str] | None = None,
        python: str = sys.executable,
    ) -> None:
        program = [str(code)] if isinstance(code, Path) else ["-c", textwrap.dedent(code)]
        self._own_group = own_group
        self._process = subprocess.Popen(
            [python, "-u", *program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
            start_new_session=own_group,
            user=user,
            group=group,
            extra_groups=None if user is None else [],
            cwd=cwd,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it is gone."""
        return self._process.poll() is not None

    @property
    def errors(self) -> str:
        """What it has written to its standard error so far."""
        return "".join(self._errors)

    def line(self, timeout: float = 60) -> str:
        """Its next line, without the line's end; fails when none comes within ``timeout`` seconds, or it ended."""
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"no line within {timeout:g} s; standard error:\n{self.errors}") from None
        if line is None:
            self._lines.put(None)
            self._process.wait(timeout)
            for reader in self._readers:
                reader.join(timeout)
            raise AssertionError(f"it ended with {self._process.returncode}; standard error:\n{self.errors}")
        return line

    def expect(self, text: str, timeout: float = 60) -> None:
        """Its next line is exactly this one."""
        line = self.line(timeout)
        assert line == text, f"expected the line {text!r}, got {line!r}; standard error:\n{self.errors}"

    def tell(self, text: str) -> None:
        """Writes a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def pause(self, timeout: float = 60) -> None:
        """SIGSTOP; returns when the system says that every thread of it is stopped."""
        self.send(signal.SIGSTOP)
        eventually(lambda: set(thread_states(self.pid)) == {"T"}, f"process {self.pid} is stopped", timeout)

    def resume(self) -> None:
        """SIGCONT."""
        self.send(signal.SIGCONT)

    def kill(self) -> int:
        """SIGKILL; returns its exit status once it is gone."""
        self.send(signal.SIGKILL)
        return self.wait()

    def send(self, number: int) -> None:
        """Sends a signal to the process alone."""
        self._process.send_signal(number)

    def send_group(self, number: int) -> None:
        """Sends a signal to its process group, as a terminal does; it must have been started with ``own_group``."""
        assert self._own_group, "without a group of its own the signal would reach the tests themselves"
        os.killpg(self.pid, number)

    def wait(self, timeout: float = 60) -> int:
        """Its exit status (negative: the signal); fails when it has not ended after ``timeout`` seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout:g} s; standard error:\n{self.errors}") from None

    def close(self) -> None:
        """Kills it if it still runs, and closes the pipes."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a line that it never read
            self._process.stdin.close()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as output:
            for line in output:
                self._errors.append(line)


def thread_states(pid: int) -> list[str]:
    """The state letter of each of the process's threads (``R``, ``S``, ``T``, ``Z``, ...); empty when it is gone."""
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            states.append(stat.read_text().rpartition(")")[2].split()[0])
    return states


def processes_in(directory: str | os.PathLike[str]) -> dict[int, str]:
    """The processes that name the directory in their command line or work in it, by id, with that command line.

    Zombies are not among them: they run nothing, and only their parent can remove them.
    """
    wanted = str(directory)
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if wanted in command or str((entry / "cwd").readlink()).startswith(wanted):
                found[int(entry.name)] = command
    return found
