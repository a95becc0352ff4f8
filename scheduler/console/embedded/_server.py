"""What the embedded servers share: a directory, a watchdog, a process and its life."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from scheduler.console.embedded import _watchdog
from scheduler.console.embedded._binaries import RunAs, ServerUnavailableError, run_as
from scheduler.console.embedded._ports import free_port

_GO = 'read -r go && exec "$@" </dev/null'


class Server(ABC):
    """One server process with a directory of its own, from the first start to ``close()``.

    A server is started by ``start()`` or by entering it as a context manager, can be stopped, killed and
    started again on the same port with the same data, and is gone with its directory after ``close()``,
    after the ``with`` block, or with the process that started it, whatever comes first.
    """

    _name: ClassVar[str]
    _programs: tuple[str, ...]
    _watchdog_signal: ClassVar[signal.Signals]

    def __init__(self, *, port: int | None, start_timeout: float) -> None:
        self._wanted_port = port
        self._port = port
        self._start_timeout = start_timeout
        self._directories: list[Path] = []
        self._identity: RunAs = RunAs()
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """The server's own directory, a resolved path; it exists from the first start to ``close()``."""
        if not self._directories:
            raise RuntimeError(f"this {self._name} was not started yet, or is closed: it has no directory")
        return self._directories[0]

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1; it stays the same over restarts."""
        if self._port is None:
            raise RuntimeError(f"this {self._name} was not started yet: it has no port")
        return self._port

    @property
    def pid(self) -> int:
        """The process id of the running server (PostgreSQL: the postmaster's)."""
        if self._process is None:
            raise RuntimeError(f"this {self._name} is not running: it has no process id")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server's process lives (it may be stopped by SIGSTOP and answer nothing)."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """Everything that the server and its tools have written to their log so far."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> Self:
        """Starts the server and returns when it answers; the first start makes its directory and data."""
        self._check_owner()
        if self.running:
            raise RuntimeError(f"this {self._name} is running already (process {self.pid})")
        first = not self._directories
        try:
            if first:
                self._make_directories()
                self._prepare()
            self._launch()
        except BaseException:
            if first:
                self.close()
            elif self.running:
                self.kill()
            raise
        return self

    def start_again(self) -> Self:
        """Starts a server that was stopped or killed: same data, same port; recovers first if it must."""
        if not self._directories:
            raise RuntimeError(f"this {self._name} has no data to start again with: start() it first")
        return self.start()

    def kill(self) -> None:
        """Kills the server and all its processes with SIGKILL, as a power cut would; its files stay."""
        self._check_owner()
        for pid in self._members():
            _watchdog.send(pid, signal.SIGKILL)
        _watchdog.end(str(self.directory), self._programs, signal.SIGKILL, grace=0)
        self._reap()

    def close(self) -> None:
        """Stops the server, in order if that works, and removes its directory. Any number of times."""
        if os.getpid() != self._owner:  # a forked child's copy: the server belongs to the parent
            return
        try:
            if self.running:
                self._stop_for_good()
        finally:
            self._dismiss_watchdog()

    @abstractmethod
    def _prepare(self) -> None:
        """Makes the data and the configuration in the new directory."""

    @abstractmethod
    def _command(self, port: int) -> list[str]:
        """The program and its arguments; it stays in the foreground and logs to its standard error."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server really answers a client now."""

    @abstractmethod
    def _stop_for_good(self) -> None:
        """Stops the running server within seconds; its data is not needed any more."""

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise RuntimeError(f"this {self._name} belongs to process {self._owner}, which started it")

    def _make_directories(self) -> None:
        """Starts the watchdog, which makes the directories: so there is never one that nobody will remove."""
        self._identity = run_as()
        # Root's directory must let the server's user through; that user's own files in it are private.
        mode = "711" if self._identity else "700"
        arguments = [str(os.getpid()), str(int(self._watchdog_signal)), ",".join(self._programs), mode]
        # A session of its own: Ctrl-C in a terminal signals the whole foreground group, and the orderly
        # close in the parent is what should follow it.
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", _watchdog.__file__, *arguments, *self._prefixes()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        assert self._watchdog.stdout is not None
        with self._watchdog.stdout as names:
            self._directories = [Path(os.fsdecode(name)) for name in names.read().split(b"\0") if name]
        if not self._directories:
            raise ServerUnavailableError(
                f"no directory for the {self._name} could be made in {tempfile.gettempdir()}; "
                f"its watchdog ended with {self._watchdog.wait()} ({sys.executable})"
            )

    def _prefixes(self) -> list[str]:
        """The path and the beginning of the name of each directory to make; the first is the server's."""
        return [f"{tempfile.gettempdir()}/fencing-{self._name.lower()}-"]

    def _dismiss_watchdog(self) -> None:
        """Lets the watchdog do its work now, and does it here if the watchdog is gone."""
        directories, self._directories = [str(d) for d in self._directories], []
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            assert watchdog.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                watchdog.stdin.write(b".")
                watchdog.stdin.close()
            watchdog.wait()
        if directories and Path(directories[0]).exists():
            _watchdog.end_and_remove(directories, self._programs, self._watchdog_signal)
        self._reap()

    def _launch(self) -> None:
        """Starts the process on the port, and on another one when somebody took it meanwhile."""
        give_up = time.monotonic() + self._start_timeout
        while True:
            port = self._port or free_port()
            before = len(self.log)
            self._process = self._spawn(self._command(port), self._identity)
            if self._wait_until_ready(port, give_up):
                return
            self._reap()
            told = self.log[before:]
            if "Address already in use" not in told or time.monotonic() > give_up:
                raise ServerUnavailableError(f"the {self._name} did not start. The end of its log:\n{_tail(told)}")
            if self._wanted_port is not None:
                raise ServerUnavailableError(f"the {self._name} did not start: port {port} on 127.0.0.1 is taken")
            if self._port is not None:  # restarting: clients know this port, so wait for it
                time.sleep(0.1)

    def _wait_until_ready(self, port: int, give_up: float) -> bool:
        known, self._port = self._port, port
        while self.running:
            if self._answers():
                return True
            if time.monotonic() > give_up:
                tail = _tail(self.log)
                self.kill()
                raise ServerUnavailableError(
                    f"the {self._name} did not answer within {self._start_timeout:g} s. The end of its log:\n{tail}"
                )
            time.sleep(0.01)
        self._port = known
        return False

    def _spawn(self, command: list[str], identity: RunAs) -> subprocess.Popen[bytes]:
        """Starts a program in the server's directory, in a session of its own, logging to the server's log.

        The program waits in a shell for a line from here. If this process dies before it could write the
        line, the shell ends; if it dies later, the watchdog finds the program by its working directory.
        There is no moment in between.
        """
        log = os.open(self.directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            child = subprocess.Popen(
                ["/bin/sh", "-c", _GO, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._home(),
                env=self._environment(),
                umask=0o077,
                start_new_session=True,
                **identity,
            )
        finally:
            os.close(log)
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        child.stdin.close()
        return child

    def _run(
        self, command: list[str], *, as_caller: bool = False, meanwhile: Callable[[], object] | None = None
    ) -> None:
        """Runs a tool of the server to its end, as the server's user or as the caller."""
        before = len(self.log)
        with self._spawn(command, RunAs() if as_caller else self._identity) as child:
            if meanwhile is not None:
                meanwhile()
            code = child.wait()
        if code != 0:
            raise ServerUnavailableError(
                f"{Path(command[0]).name} ended with {code}. It said:\n{_tail(self.log[before:])}"
            )

    def _home(self) -> Path:
        """The server's user's own private place in ``directory``, and its working directory."""
        home = self.directory / "home"
        if not home.exists():
            home.mkdir(mode=0o700)
            self._give(home)
        return home

    def _give(self, path: Path) -> None:
        if self._identity:
            os.chown(path, self._identity["user"], self._identity["group"])

    def _environment(self) -> dict[str, str]:
        """The caller's environment without what would steer PostgreSQL's tools, and with a fixed language."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
        return {**kept, "LC_ALL": "C", "TZ": "UTC"}

    def _members(self) -> list[int]:
        return _watchdog.members(str(self.directory), self._programs)

    def _signal_and_wait(self, number: int, timeout: float) -> None:
        """Signals the running server and waits for its end; after ``timeout`` seconds kills it."""
        if self._process is None:
            return
        _watchdog.send(self._process.pid, number)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reap()

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            self._process = None


def _tail(text: str, lines: int = 20) -> str:
    return "\n".join(text.splitlines()[-lines:]) or "(it wrote nothing)"
