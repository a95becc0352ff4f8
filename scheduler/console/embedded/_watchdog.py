"""Makes a server's directory, and when its owner is gone ends what runs in it and removes it.

Run as a script it is the watchdog itself. It makes the directories, writes their names to its standard
output, separated by NUL, and closes it. Then it waits for one byte on its standard input. When the byte
or the end of the input arrives it ends the server: the pipe closes with the process that holds its other
end, even when that one is killed with SIGKILL. It removes only what it made. It uses nothing but the
standard library and is started with ``-I -S``, because it must come up fast and must not depend on what
the user's environment imports.

    python -I -S _watchdog.py PARENT_PID SIGNAL PROGRAMS MODE PREFIX...
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

GRACE = 2.0  # seconds from the polite signal to SIGKILL
PATIENCE = 20.0  # seconds after which what cannot be killed (a process in a dead disk's queue) is left


def members(directory: str, programs: Iterable[str]) -> list[int]:
    """The process ids of the given programs whose working directory is ``directory`` or lies in it.

    ``directory`` is a resolved path. The working directory tells more than the parent: backends of a
    PostgreSQL whose postmaster was killed have another parent, and still the same working directory. The
    program's name is compared too, so that a person's shell in the same directory is left alone.
    """
    wanted = frozenset(programs)
    if not Path("/proc/self/cwd").is_symlink():
        return _members_by_ps(directory, wanted)
    return [pid for pid, argv in _in_directory(directory) if not wanted.isdisjoint(argv)]


def _in_directory(directory: str) -> Iterator[tuple[int, set[str]]]:
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    for pid in pids:
        try:
            cwd = str(Path(f"/proc/{pid}/cwd").readlink()).removesuffix(" (deleted)")
            if cwd != directory and not cwd.startswith(directory + "/"):
                continue
            exe = str(Path(f"/proc/{pid}/exe").readlink()).removesuffix(" (deleted)")
            argv = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        except OSError:  # it ended meanwhile, is a zombie, or belongs to somebody else: not ours
            continue
        yield pid, {os.path.basename(word) for word in (exe, *argv)}  # noqa: PTH119 (any text, not a path)


def _members_by_ps(directory: str, programs: frozenset[str]) -> list[int]:
    """The same where there is no /proc: servers that name the directory in their arguments, and their children."""
    listing = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,command="], capture_output=True, text=True, check=False
    ).stdout
    rows = [(int(pid), int(ppid), command) for pid, ppid, command in (r.split(None, 2) for r in listing.splitlines())]
    leaders = {
        pid
        for pid, _, command in rows
        if directory in command and any(f"/{program}" in command for program in programs)
    } - {os.getpid()}
    return [pid for pid, ppid, _ in rows if pid in leaders or ppid in leaders]


def end(directory: str, programs: Iterable[str], first: int, grace: float = GRACE) -> None:
    """Ends every member of the directory: with the signal ``first``, then with SIGKILL after ``grace`` seconds.

    SIGCONT follows the first signal, since a stopped process answers nothing but SIGKILL.
    """
    asked: set[int] = set()
    begun = time.monotonic()
    quiet = 0
    while quiet < 2:  # twice, because reading /proc is not one atomic step
        alive = members(directory, programs)
        quiet = 0 if alive else quiet + 1
        waited = time.monotonic() - begun
        if waited > PATIENCE:
            return
        for pid in alive:
            if waited >= grace:
                send(pid, signal.SIGKILL)
            elif pid not in asked:
                asked.add(pid)
                send(pid, first)
                send(pid, signal.SIGCONT)
        if alive:
            time.sleep(0.01)


def send(pid: int, number: int) -> None:
    """Sends a signal; a process that is gone already is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def release_shared_memory(data: Path) -> None:
    """Frees the System V segment of a PostgreSQL that was killed and did not free it itself.

    The last numbers in ``postmaster.pid`` are the segment's key and id; an orderly end removes both.
    """
    try:
        fields = (data / "postmaster.pid").read_text().splitlines()[6].split()
        segment = int(fields[1])
    except (OSError, IndexError, ValueError):  # no such file, or not that far when it was killed
        return
    import ctypes  # only on this path: it costs more than the rest of the watchdog

    with contextlib.suppress(OSError):
        ctypes.CDLL(None).shmctl(segment, 0, None)  # 0 is IPC_RMID, on Linux and on the BSDs


def remove(directories: Iterable[str]) -> None:
    """Removes the directories, also when something in them is still being written for a moment."""
    for directory in directories:
        for _ in range(50):
            shutil.rmtree(directory, ignore_errors=True)
            if not Path(directory).exists():
                break
            time.sleep(0.02)


def end_and_remove(directories: list[str], programs: Iterable[str], first: int) -> None:
    """Ends the server in the first of the directories and removes all of them."""
    end(directories[0], programs, first)
    release_shared_memory(Path(directories[0]) / "data")
    remove(directories)


def wait_for_parent(parent: int) -> None:
    """Returns when a byte or the end of the standard input arrives, or when the parent is gone.

    The parent is watched by itself too, where the system can: a child that it forked without ``exec``
    holds a copy of the pipe, and the end of the input would come only with that child's end.
    """
    waiting = select.poll() if hasattr(select, "poll") else None
    if waiting is None:
        sys.stdin.buffer.read(1)
        return
    waiting.register(0, select.POLLIN)
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            waiting.register(os.pidfd_open(parent), select.POLLIN)
        if os.getppid() != parent:  # it was gone before it could be watched
            return
    waiting.poll()


def make(prefixes: Iterable[str], mode: int) -> list[str]:
    """Makes one new directory for each prefix (a path and the beginning of a name); their resolved paths."""
    made = []
    for prefix in prefixes:
        path = Path(f"{prefix}{os.urandom(5).hex()}")
        path.mkdir()
        path.chmod(mode)  # whatever the umask is
        made.append(str(path.resolve()))
    return made


def main(argv: list[str]) -> None:
    """The watchdog: makes the directories, waits for the parent's end, then cleans up after it."""
    parent, first, programs, mode, *prefixes = argv
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the parent's end is a reason to go
    os.chdir("/")
    directories = make(prefixes, int(mode, 8))
    with contextlib.suppress(BrokenPipeError):  # the parent is gone already: so much the sooner
        os.write(1, b"\0".join(os.fsencode(d) for d in directories))
    os.close(1)
    wait_for_parent(int(parent))
    end_and_remove(directories, programs.split(","), int(first))


if __name__ == "__main__":
    main(sys.argv[1:])
