"""The servers of the demo: its own, or given ones in which it has a schema and keys of its own."""

from __future__ import annotations

import secrets
import smtplib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self
from zoneinfo import ZoneInfo

import click
import psycopg
import redis
from sqlalchemy import create_engine, text
from sqlalchemy.schema import CreateSchema

import adapters.email
import adapters.sql
from adapters.redis import redis_key
from adapters.redis._keys import mark_key
from scheduler import Scheduler
from scheduler._connect import normalise_dsn
from scheduler.console.demo._addresses import Addresses
from scheduler.console.demo._janitor import Janitor
from scheduler.console.embedded import Postgres, SmtpSink, Valkey


DHAKA = ZoneInfo("Asia/Dhaka")
"""The zone of the shop's schedule."""

_NAMES = {"postgres": "PostgreSQL", "valkey": "Valkey", "redis": "Redis"}

# Numbers come from a sequence, so that two invoices for one month are possible, as they are in life.
_INVOICE = """
create table invoice (number bigint generated always as identity primary key, name text not null, token text not null)
"""


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller gave: a database, a Redis, a mail server (host, port). None for one of our own."""

    dsn: str | None = None
    redis: str | None = None
    smtp: tuple[str, int] | None = None


class Stage:
    """Real servers for one run, from ``with`` to its end.

    ``versions`` says what they are, by kind: ``{"postgres": "18.6", "valkey": "9.1.2"}``. ``sink`` is our own mail
    server, None if one was given.
    """

    def __init__(self, given: Given) -> None:
        self._given = given
        self._stack = ExitStack()
        self.versions: dict[str, str] = {}
        self.sink: SmtpSink | None = None
        self.addresses: Addresses

    def __enter__(self) -> Self:
        with self._stack:
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def titles(self) -> list[str]:
        """The servers' names with their versions."""
        return [f"{_NAMES[kind]} {version}" for kind, version in self.versions.items()]

    @property
    def redis_name(self) -> str:
        """What the server is that speaks Redis's protocol."""
        return next(_NAMES[kind] for kind in self.versions if kind != "postgres")

    def janitor(self) -> Janitor:
        """Whoever removes what is made in the given servers."""
        where = self.addresses
        today = datetime.now(DHAKA)
        invoices = {where.invoice(moment) for moment in (today, today + timedelta(days=1))}
        return Janitor(
            dsn=where.dsn if self._given.dsn else None,
            schemas=[where.schema, where.shop_schema],
            redis=where.redis if self._given.redis else None,
            keys=[key for invoice in invoices for key in (mark_key(invoice), redis_key(invoice, "sent-under"))],
        )

    def furnish(self) -> None:
        """Make the scheduler's and the shop's tables."""
        app = Scheduler(self.addresses.dsn, schema=self.addresses.schema)
        app.migrate(issuer="shop")
        app.close()
        engine = create_engine(self.addresses.shop_url)
        with engine.begin() as connection:
            connection.execute(CreateSchema(self.addresses.shop_schema))
            connection.execute(text(_INVOICE))
        adapters.sql.create_all(engine)
        adapters.email.create_all(engine)
        engine.dispose()

    def _start(self) -> None:
        postgres = None if self._given.dsn else Postgres()
        valkey = None if self._given.redis else Valkey()
        for server in (postgres, valkey):
            if server is not None:
                self._stack.callback(server.close)
        # Side by side: initdb takes the longest, and the others fit into its time.
        with ThreadPoolExecutor(max_workers=2) as pool:
            starts = [pool.submit(server.start) for server in (postgres, valkey) if server is not None]
            smtp = self._given.smtp or self._start_sink()
            for start in starts:
                start.result()
        dsn = postgres.dsn() if postgres else normalise_dsn(self._given.dsn)
        url = valkey.url if valkey else self._given.redis
        assert url is not None
        run = f"fencing_demo_{secrets.token_hex(4)}"
        self.versions["postgres"] = postgres.version if postgres else _postgres_version(dsn)
        kind, version = ("valkey", valkey.version) if valkey else _redis_version(url)
        self.versions[kind] = version
        if self._given.smtp:
            _greet(*smtp)
        self.addresses = Addresses(
            dsn=dsn,
            schema=run,
            shop_schema=f"{run}_shop",
            redis=url,
            smtp_host=smtp[0],
            smtp_port=smtp[1],
            prefix="" if valkey else f"{run}/",
        )

    def _start_sink(self) -> tuple[str, int]:
        self.sink = self._stack.enter_context(SmtpSink())
        return self.sink.host, self.sink.port


def _postgres_version(dsn: str) -> str:
    try:
        with psycopg.connect(dsn, connect_timeout=10) as connection:
            number = connection.info.server_version
    except psycopg.Error as exc:
        raise click.ClickException(f"--dsn: no PostgreSQL can be used there: {exc}") from exc
    return f"{number // 10000}.{number % 10000}"


def _redis_version(url: str) -> tuple[str, str]:
    try:
        with redis.Redis.from_url(url, socket_connect_timeout=10) as client:
            facts: dict[str, Any] = client.info("server")
    except (redis.RedisError, ValueError) as exc:
        raise click.ClickException(f"--redis: no Redis or Valkey can be used there: {exc}") from exc
    if "valkey_version" in facts:
        return "valkey", str(facts["valkey_version"])
    return "redis", str(facts["redis_version"])


def _greet(host: str, port: int) -> None:
    try:
        with smtplib.SMTP(host, port, timeout=10) as server:
            server.noop()
    except OSError as exc:
        raise click.ClickException(f"--smtp: no mail server can be used at {host}:{port}: {exc}") from exc
