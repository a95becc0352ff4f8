"""A PgBouncer in transaction mode before a server of the tests."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from scheduler.console.embedded._ports import free_port
from support.servers import IN_CI, PG_BINDIR, unavailable
from support.waiting import eventually

_SETTINGS = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 4
server_reset_query =
"""


@contextlib.contextmanager
def pgbouncer(dsn: str) -> Iterator[str]:
    """Start one for this database; yields the address through it. Its clients share a few server connections."""
    program = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if program is None:
        if IN_CI and PG_BINDIR:  # the leg on Debian's servers installs it
            unavailable("no pgbouncer: .ci/debian-servers installs it")
        pytest.skip("SERVER MISSING, NOT TESTED: no pgbouncer here; .ci/debian-servers installs it")
    there = urlsplit(dsn)
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="fencing-pgbouncer-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "users").write_text(f'"{there.username}" ""\n')
        (folder / "ini").write_text(
            _SETTINGS.format(host=there.hostname, port=there.port, own_port=port, folder=folder)
        )
        # It does not run as root.
        user = "nobody" if os.geteuid() == 0 else None
        process = subprocess.Popen(
            [program, "-q", str(folder / "ini")], user=user, stderr=subprocess.PIPE, text=True, cwd="/"
        )
        address = dsn.replace(f":{there.port}/", f":{port}/")
        try:

            def answers() -> bool:
                assert process.poll() is None, process.stderr.read() if process.stderr else ""
                with contextlib.suppress(psycopg.OperationalError), psycopg.connect(address, connect_timeout=2):
                    return True
                return False

            eventually(answers, "pgbouncer answers")
            yield address
        finally:
            process.kill()
            process.communicate()
