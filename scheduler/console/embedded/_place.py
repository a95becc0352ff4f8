"""A server's own place: a directory, the programs that run in it, and the watchdog over both."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from scheduler.console.embedded import _watchdog
from scheduler.console.embedded._binaries import RunAs, ServerUnavailableError, run_as

# The program waits for a line. If this process dies before it could write it, the shell ends at the end of
# its input; if it dies later, the watchdog finds the program by its working directory. Between the two
# there is no moment in which a program could be left behind.
_GO = 'read -r go && exec "$@" </dev/null'

_RANDOM = 10  # characters that the watchdog appends to a prefix


class Place:
    """A new directory in the directory for temporary files; it goes, with all that runs in it, by ``remove()``.

    Or with the process that made it. ``programs`` are the names of the programs that belong to it,
    ``first`` is the signal that asks them to end at once. ``path`` is resolved and belongs to the caller;
    ``home`` in it belongs to the server's user and is the programs' working directory; ``log`` takes what
    they write. ``longest`` is the longest path that the server makes in ``home`` for a socket, if any: when
    the system does not allow it, ``sockets`` is a second directory, with a short path.
    """

    def __init__(self, prefix: str, programs: Sequence[str], first: signal.Signals, *, socket: str = "") -> None:
        self.owner = os.getpid()
        self.identity = run_as()
        self._programs = tuple(programs)
        self._first = first
        prefixes = [f"{tempfile.gettempdir()}/{prefix}"]
        if socket and _too_long(prefixes[0], socket):
            prefixes.append("/tmp/fencing-socket-")  # short, and new: the watchdog makes it
        self._watchdog, self._directories = self._start_watchdog(prefixes)
        self.path = self._directories[0]
        self.home = self.path / "home"
        self.log = self.path / "log"
        try:
            self._furnish()
        except BaseException:
            self.remove()
            raise

    @property
    def sockets(self) -> Path:
        """A private directory of the server's user for its Unix socket."""
        return self._directories[-1] if len(self._directories) > 1 else self.home

    def give(self, path: Path) -> None:
        """Makes the server's user the owner of a file or a directory, and of everything in it."""
        if not self.identity:
            return
        owner = (self.identity["user"], self.identity["group"])
        os.chown(path, *owner)
        for parent, directories, files in os.walk(path):
            for entry in (*directories, *files):
                os.chown(Path(parent, entry), *owner, follow_symlinks=False)

    def spawn(self, command: Sequence[str], *, as_caller: bool = False) -> subprocess.Popen[bytes]:
        """Starts a program as the server's user, or as the caller, in a session of its own.

        A session of its own, because Ctrl-C in a terminal signals the whole foreground group, and what
        should follow is the orderly close by the caller.
        """
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            child = subprocess.Popen(
                ["/bin/sh", "-c", _GO, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.home,
                env=_environment(),
                umask=0o077,
                start_new_session=True,
                **(RunAs() if as_caller else self.identity),
            )
        finally:
            os.close(log)
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError), child.stdin as go:
            go.write(b"go\n")
        return child

    def run(
        self, command: Sequence[str], *, as_caller: bool = False, meanwhile: Callable[[], object] | None = None
    ) -> None:
        """Runs a tool to its end; ``meanwhile`` is called once beside it. A failure tells what the tool said."""
        before = len(self.told())
        with self.spawn(command, as_caller=as_caller) as child:
            if meanwhile is not None:
                meanwhile()
        if child.returncode != 0:
            said = tail(self.told()[before:])
            raise ServerUnavailableError(f"{Path(command[0]).name} ended with {child.returncode}. It said:\n{said}")

    def told(self) -> str:
        """Everything that the programs have written so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def members(self) -> list[int]:
        """The processes of the place's programs that are alive in it."""
        return _watchdog.members(str(self.path), self._programs)

    def kill_all(self) -> None:
        """Kills them with SIGKILL and returns when none is left."""
        _watchdog.end(str(self.path), self._programs, signal.SIGKILL, grace=0)

    def remove(self) -> None:
        """Lets the watchdog do its work now, and does it here should the watchdog be gone."""
        assert self._watchdog.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._watchdog.stdin as order:
            order.write(b".")
        self._watchdog.wait()
        if self.path.exists():
            _watchdog.end_and_remove([str(path) for path in self._directories], self._programs, self._first)

    def _start_watchdog(self, prefixes: list[str]) -> tuple[subprocess.Popen[bytes], list[Path]]:
        """The watchdog makes the directories itself: so there is never one that nobody will remove."""
        # Root's directory must let the server's user through; what that user has in it is private.
        mode = "711" if self.identity else "700"
        arguments = [str(self.owner), str(int(self._first)), ",".join(self._programs), mode, *prefixes]
        watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", _watchdog.__file__, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        assert watchdog.stdout is not None
        with watchdog.stdout as names:
            directories = [Path(os.fsdecode(name)) for name in names.read().split(b"\0") if name]
        if not directories:
            raise ServerUnavailableError(
                f"no directory for a server could be made in {tempfile.gettempdir()}: "
                f"the watchdog ({sys.executable}) ended with {watchdog.wait()}"
            )
        return watchdog, directories

    def _furnish(self) -> None:
        self.home.mkdir(mode=0o700)
        self.give(self.home)
        if self.sockets != self.home:
            self.sockets.chmod(0o700)
            self.give(self.sockets)
        # Asked by doing it, as the server's user: the way to the directory may be closed to that user.
        probe = subprocess.run(["/bin/sh", "-c", 'cd "$1"', "sh", self.home], cwd="/", check=False, **self.identity)
        if probe.returncode != 0:
            raise ServerUnavailableError(
                "the user 'nobody', as whom servers run when root starts them, cannot enter "
                f"{tempfile.gettempdir()}; set TMPDIR to a directory that everybody may enter, such as /tmp"
            )


def tail(text: str, lines: int = 20) -> str:
    """The last lines of a log, to be shown in an error."""
    return "\n".join(text.splitlines()[-lines:]) or "(it wrote nothing)"


def _too_long(prefix: str, socket: str) -> bool:
    limit = 107 if sys.platform == "linux" else 103  # bytes of a Unix socket's path, without the final NUL
    directory = os.path.realpath(os.path.dirname(prefix))  # noqa: PTH120 (a prefix, not a path)
    path = f"{directory}/{os.path.basename(prefix)}{'x' * _RANDOM}/home/{socket}"  # noqa: PTH119
    return len(os.fsencode(path)) > limit


def _environment() -> dict[str, str]:
    """The caller's environment without what would steer PostgreSQL's tools, and with a fixed language."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}
