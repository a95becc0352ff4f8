"""A real MariaDB for the tests: Debian's, on a directory of its own that goes when the run ends."""

import os
import signal
from pathlib import Path

import pymysql

from scheduler.console.embedded import ServerNotInstalledError
from scheduler.console.embedded._place import Place
from scheduler.console.embedded._server import Server
from support.waiting import eventually

PROGRAM = Path(os.environ.get("FENCING_TEST_MARIADB") or "/usr/sbin/mariadbd")
"""MariaDB's or MySQL's server program."""


class MariaDB(Server):
    """A server without privileges, system tables and durability: nothing here is about surviving a crash of its."""

    _name = "MariaDB"

    def __init__(self, *, start_timeout: float = 60) -> None:
        super().__init__(port=None, start_timeout=start_timeout)

    def url(self, database: str, driver: str = "pymysql") -> str:
        """The address of a database for SQLAlchemy."""
        return f"mysql+{driver}://root@127.0.0.1:{self.port}/{database}?charset=utf8mb4"

    def connect(self, database: str | None = None) -> "pymysql.connections.Connection":
        """A bare connection in autocommit."""
        return pymysql.connect(host="127.0.0.1", port=self.port, user="root", database=database, autocommit=True)

    def execute(self, sql: str) -> list[tuple[object, ...]]:
        """One statement on a connection of its own."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def wait_until_blocked(self, what: str, thread: int | None = None) -> None:
        """Returns once a transaction, or that of the connection ``thread``, waits for a lock."""
        sql = "select trx_mysql_thread_id from information_schema.innodb_trx where trx_state = 'LOCK WAIT'"
        if thread is not None:
            sql += f" and trx_mysql_thread_id = {thread}"
        # Whoever asks more often than every 0.1 s is told the same again and again: InnoDB keeps its answer.
        eventually(lambda: self.execute(sql), what, pause=0.15)

    def create_database(self, name: str) -> str:
        """Makes an empty database; returns its address."""
        self.execute(f"create database {name} character set utf8mb4")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drops it."""
        self.execute(f"drop database {name}")

    def _make_place(self) -> Place:
        if not PROGRAM.exists():
            raise ServerNotInstalledError(
                f"there is no {PROGRAM}: apt-get install mariadb-server (.ci/debian-servers does), "
                "or name a server program in FENCING_TEST_MARIADB"
            )
        return Place("fencing-mariadb-", [PROGRAM.resolve().name], signal.SIGKILL)

    def _prepare(self, place: Place) -> None:
        data = place.home / "data"
        data.mkdir()
        place.give(data)

    def _command(self, port: int) -> list[str]:
        home = self._place.home
        return [
            str(PROGRAM.resolve()),
            "--no-defaults",
            f"--datadir={home / 'data'}",
            f"--socket={home / 'socket'}",
            f"--pid-file={home / 'pid'}",
            f"--tmpdir={home}",
            f"--port={port}",
            "--bind-address=127.0.0.1",
            "--skip-grant-tables",
            "--skip-networking=0",
            "--skip-log-bin",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=64M",
            "--innodb-lock-wait-timeout=60",
            "--performance-schema=OFF",
            "--default-storage-engine=InnoDB",
        ]

    def _answers(self) -> bool:
        try:
            [(path,)] = self.execute("select @@socket")
        except (OSError, pymysql.err.Error):
            return False
        return path == str(self._place.home / "socket")
