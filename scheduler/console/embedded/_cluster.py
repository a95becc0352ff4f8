"""The data directory of an embedded PostgreSQL: new, from a backup, or from a running server."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from scheduler.console.embedded._binaries import ServerUnavailableError

Setting = str | int | float | bool

SUPERUSER = "postgres"


def initdb(program: Path, data: Path) -> list[str]:
    """The command that makes a new cluster.

    Not synced to the disk at once (the first checkpoint does it), no password, and nothing that is taken
    from the environment's language.
    """
    return [
        str(program),
        *("--pgdata", str(data), "--username", SUPERUSER, "--auth", "trust"),
        *("--encoding", "UTF8", "--locale", "C", "--no-sync"),
    ]


def pg_basebackup(program: Path, target: Path, dsn: str) -> list[str]:
    """The command that copies a running server's cluster, with the log needed to start the copy."""
    return [
        str(program),
        *("--pgdata", str(target), "--dbname", dsn),
        *("--checkpoint", "fast", "--wal-method", "stream", "--no-sync", "--no-password"),
    ]


def copy_backup(backup: Path, data: Path) -> None:
    """Copies a base backup; the original stays as it is."""
    if not (backup / "PG_VERSION").is_file() or not (backup / "postgresql.conf").is_file():
        raise ServerUnavailableError(
            f"{backup} is not a PostgreSQL data directory with its configuration in it; "
            "give the directory that base_backup() or pg_basebackup made"
        )
    if any((backup / "pg_tblspc").iterdir()):
        raise ServerUnavailableError(
            f"{backup} has tablespaces outside of itself (see its pg_tblspc); a copy would write into the original's"
        )
    # Not copied: the marks of a running server, and those of a standby, since the copy is to lead.
    others = shutil.ignore_patterns("postmaster.pid", "postmaster.opts", "standby.signal", "recovery.signal")
    shutil.copytree(backup, data, symlinks=True, ignore=others)
    data.chmod(0o700)


def configure(data: Path, settings: Mapping[str, Setting]) -> None:
    """Appends settings to ``postgresql.conf``; the last word there wins, and ALTER SYSTEM wins over it."""
    lines = [f"{_checked(name)} = {_literal(value)}\n" for name, value in settings.items()]
    with (data / "postgresql.conf").open("a") as file:
        file.writelines(["\n# Set by the one who started this server.\n", *lines])


def _checked(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", name):
        raise ValueError(f"{name!r} is not the name of a PostgreSQL setting")
    return name


def _literal(value: Setting) -> str:
    text = ("on" if value else "off") if isinstance(value, bool) else str(value)
    if "\n" in text:
        raise ValueError(f"a PostgreSQL setting has one line, not {text!r}")
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
