"""The servers: PostgreSQL with a streaming standby, Valkey with a replica, a mail server; and their failovers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import redis
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from adapters.redis import RedisGuard
from adapters.sql import SqlGuard
from fencing import Mark
from fencing.history import Event
from scheduler.console.embedded import Postgres, SmtpSink, Standby, Valkey
from scheduler.console.torture._network import Link, Network
from scheduler.console.torture._work import ALL_ACCOUNTS

STANDBY = "second"
"""The name by which the primary knows its standby, and with a synchronous one waits for it."""


class Servers:
    """All of them. To be used as a context manager; everything is gone after it.

    ``synchronous``: a commit waits for the standby, so that a failover loses nothing that was acknowledged.
    """

    def __init__(self, network: Network, *, synchronous: bool) -> None:
        self._network = network
        self.synchronous = synchronous
        # Commits cost no disk's time here; what is tortured is who knows what, and a killed server recovers its log.
        names = STANDBY if synchronous else ""
        self.postgres: Postgres = Postgres(settings={"synchronous_standby_names": names, "max_wal_senders": 4})
        self.standby: Standby | None = None
        self.valkey = Valkey()
        self.replica: Valkey | None = None
        self.sink = SmtpSink()
        self.failovers: list[Event] = []
        """Each with the marks that the accounts have after it."""
        self._postgres_links: list[Link] = []
        self._valkey_links: list[Link] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            stack.callback(self._close)
            self.postgres.start()
            self.valkey.start()
            stack.enter_context(self.sink)
            self._attach()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def links(self) -> tuple[Link, Link]:
        """A process's own way to PostgreSQL and to Valkey."""
        postgres, valkey = self._network.link(self.postgres.port), self._network.link(self.valkey.port)
        self._postgres_links.append(postgres)
        self._valkey_links.append(valkey)
        return postgres, valkey

    def restart_postgres(self) -> None:
        """An orderly restart."""
        self.postgres.restart()

    def crash_postgres(self) -> None:
        """kill -9 of the server, and its start again."""
        self.postgres.kill()
        self.postgres.start_again()

    def let_standby_fall_behind(self) -> None:
        """The standby gets nothing any more: a failover to it loses what is committed from now on."""
        assert self.standby is not None
        self.standby.stop_receiving()

    def let_replica_fall_behind(self) -> None:
        """The same of Valkey's replica."""
        assert self.replica is not None
        self.replica.replica_of(None)

    def fail_over_postgres(self) -> None:
        """The primary is killed, the standby promoted, its address moved, and a new standby attached."""
        old, standby = self.postgres, self.standby
        assert standby is not None
        old.kill()
        standby.promote()
        self._note("postgresql", _marks_in_postgres(standby))
        self.postgres, self.standby = standby, None
        for link in self._postgres_links:
            link.lead_to(standby.port)
        old.close()
        self._attach()

    def fail_over_valkey(self) -> None:
        """The primary is killed, the replica promoted, its address moved, and a new replica attached."""
        old, replica = self.valkey, self.replica
        assert replica is not None
        old.kill()
        replica.replica_of(None)
        self._note("redis", _marks_in_valkey(replica))
        self.valkey, self.replica = replica, None
        for link in self._valkey_links:
            link.lead_to(replica.port)
        old.close()
        self._attach()

    def _note(self, downstream: str, marks: Mapping[str, Mark]) -> None:
        """Nobody reaches a server now: the old one is dead, and no link leads to the new one yet."""
        at = time.monotonic_ns()
        self.failovers.append(Event("failover", "done", "nemesis", downstream, began=at, ended=at))
        for account in ALL_ACCOUNTS:
            token = str(marks[account].token) if account in marks else ""
            self.failovers.append(
                Event("failover", "done", "nemesis", downstream, (account,), token, began=at, ended=at)
            )

    def _attach(self) -> None:
        """See that there is a standby and a replica, and that they follow."""
        if self.replica is None:
            self.replica = Valkey()
            self.replica.start()
            self.replica.replica_of(self.valkey)
        if self.standby is None:
            self.standby = self.postgres.standby(name=STANDBY)
            self.standby.start()
            wanted = "sync" if self.synchronous else "async"
            _wait(lambda: self._standby_state() == wanted, f"the standby follows as {wanted}")

    def _standby_state(self) -> str:
        with self.postgres.connect() as connection:
            row = connection.execute(
                "select sync_state from pg_stat_replication where application_name = %s and state = 'streaming'",
                [STANDBY],
            ).fetchone()
        return str(row[0]) if row else ""

    def _close(self) -> None:
        for server in (self.standby, self.postgres, self.replica, self.valkey):
            if server is not None:
                with contextlib.suppress(Exception):
                    server.close()


def _marks_in_postgres(server: Postgres) -> dict[str, Mark]:
    engine = create_engine(server.dsn().replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    return _marks(SqlGuard().on(engine))


def _marks_in_valkey(server: Valkey) -> dict[str, Mark]:
    with redis.Redis(port=server.port) as client:
        return _marks(RedisGuard(client))


def _marks(guard: Any) -> dict[str, Mark]:
    return dict(guard.list_marks("account/", 2 * len(ALL_ACCOUNTS)))


def _wait(holds: Callable[[], bool], what: str, timeout: float = 60) -> None:
    give_up = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > give_up:
            raise TimeoutError(f"{what}: not within {timeout:g} s")
        time.sleep(0.05)
