"""What the embedded servers share: how one starts, stops, is killed and starts again."""

import os
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from scheduler.console.embedded._binaries import ServerUnavailableError
from scheduler.console.embedded._place import Place, tail
from scheduler.console.embedded._ports import free_port


class Server(ABC):
    """One server process with a directory of its own, from the first start to ``close()``.

    A server is started by ``start()`` or by entering it as a context manager, can be stopped, killed and
    started again on the same port with the same data, and is gone with its directory after ``close()``,
    after the ``with`` block, or with the process that started it, whatever comes first.
    """

    _name: ClassVar[str]

    def __init__(self, *, port: int | None, start_timeout: float) -> None:
        self._chosen_port = port
        self._port = port
        self._start_timeout = start_timeout
        self._own_place: Place | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """The server's own directory, a resolved path; it exists from the first start to ``close()``."""
        return self._place.path

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
    def pids(self) -> list[int]:
        """The process ids of the server and of everything that it has started."""
        return self._place.members()

    @property
    def running(self) -> bool:
        """Whether the server's process is there (stopped by SIGSTOP it is there, and answers nothing)."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """Everything that the server and its tools have written to their log so far."""
        return self._place.told()

    def start(self) -> Self:
        """Starts the server and returns when it answers; the first start makes its directory and data."""
        if self.running:
            raise RuntimeError(f"this {self._name} is running already (process {self.pid})")
        first = self._own_place is None
        try:
            if first:
                self._own_place = self._make_place()
                self._prepare(self._own_place)
            self._mine()
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
        self._mine()
        return self.start()

    def kill(self) -> None:
        """Kills the server and all its processes with SIGKILL, as a power cut would; its files stay."""
        self._mine()
        if self._process is not None:
            self._process.kill()  # first, so that it does not react to the end of the others
        self._place.kill_all()
        self._reap()

    def close(self) -> None:
        """Ends the server and removes its directory. Any number of times; in a forked child it does nothing."""
        place = self._own_place
        if place is None or place.owner != os.getpid():
            return
        self._own_place = None
        place.remove()  # as it happens after a crash of this process: one way, always used
        self._reap()
        self._port = self._chosen_port

    @property
    def _place(self) -> Place:
        if self._own_place is None:
            raise RuntimeError(f"this {self._name} was not started yet, or is closed: it has no directory")
        return self._own_place

    @abstractmethod
    def _make_place(self) -> Place:
        """Makes the server's directory."""

    @abstractmethod
    def _prepare(self, place: Place) -> None:
        """Makes the data and the configuration in the new directory."""

    @abstractmethod
    def _command(self, port: int) -> list[str]:
        """The program and its arguments; it stays in the foreground and logs to its standard error."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether this server, and no other one on its port, really answers a client now."""

    def _mine(self) -> None:
        if self._place.owner != os.getpid():
            raise RuntimeError(f"this {self._name} belongs to process {self._place.owner}, which started it")

    def _launch(self) -> None:
        """Starts the process on its port; on another one when somebody took a port that was only just chosen."""
        give_up = time.monotonic() + self._start_timeout
        while True:
            port = self._port or free_port()
            before = len(self.log)
            self._process = self._place.spawn(self._command(port))
            if self._is_ready(port, give_up):
                return
            self._reap()
            told = self.log[before:]
            if "Address already in use" not in told:
                raise ServerUnavailableError(f"the {self._name} did not start. The end of its log:\n{tail(told)}")
            if self._chosen_port is not None or time.monotonic() > give_up:
                raise ServerUnavailableError(f"the {self._name} did not start: port {port} of 127.0.0.1 is taken")
            if self._port is not None:  # it starts again, and its clients know this port: wait for it
                time.sleep(0.1)

    def _is_ready(self, port: int, give_up: float) -> bool:
        """Waits until the process that was just started answers; false when it ended before it did."""
        known, self._port = self._port, port
        while self.running:
            if self._answers():
                return True
            if time.monotonic() > give_up:
                end = tail(self.log)
                self.kill()
                raise ServerUnavailableError(
                    f"the {self._name} did not answer within {self._start_timeout:g} s. The end of its log:\n{end}"
                )
            time.sleep(0.01)
        self._port = known
        return False

    def _signal_and_wait(self, number: int, timeout: float) -> None:
        """Signals the running server and waits for its end; after ``timeout`` seconds kills it."""
        self._mine()
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reap()

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            self._process = None
