"""The application under torture: accounts, and jobs that change them in three places, with guards or without."""

from __future__ import annotations

import random
import smtplib
import time
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any

import redis
from sqlalchemy import Connection, Engine, create_engine, text

from adapters.email import Backoff, Breaker, Email, Outbox, Relay, SmtpTransport
from adapters.redis import RedisGuard, redis_key
from fencing import Token, fenced_write, history
from scheduler import Job, Retry, Scheduler

ACCOUNTS = 6
ALL_ACCOUNTS = tuple(f"account/{number}" for number in range(ACCOUNTS))
LEASE = 1.0
"""Seconds: short, so that pauses of a second or two outlast it."""
RELAY_LEASE = 3.0
"""The same of a relay's batch."""

EFFECTS = """
create table if not exists effect (
    number bigint generated always as identity primary key,
    account text not null, name text not null, token bigint not null
)
"""
INSERT = text("insert into effect (account, name, token) values (:account, :name, :token)")


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a process finds the servers: its own links to them."""

    postgres: int
    valkey: int
    smtp: int
    durability: str

    @property
    def dsn(self) -> str:
        """For the scheduler."""
        # A commit whose reply never comes ends by the kernel's word, not in two hours.
        return f"postgresql://postgres@127.0.0.1:{self.postgres}/postgres?connect_timeout=5&tcp_user_timeout=5000"

    def engine(self) -> Engine:
        """For the application's own tables."""
        return create_engine(self.dsn.replace("postgresql:", "postgresql+psycopg:"), pool_pre_ping=True)

    def cache(self) -> redis.Redis:
        """For the application's cache."""
        return redis.Redis(port=self.valkey, socket_timeout=3, socket_connect_timeout=3, decode_responses=True)


def account_of(job: Job) -> str:
    """The resource that a job changes."""
    return f"account/{job.args['account']}"


def open_app(where: Addresses, *, fenced: bool) -> Scheduler:
    """The scheduler with its one task."""
    app = Scheduler(where.dsn)
    work = _Fenced(where) if fenced else _Unfenced(where)
    # Attempts enough for everything that a nemesis can do to one job.
    app.task("change", lease=LEASE, retry=Retry(1000, base=0.05, cap=0.5), fences=work.fences, max_yields=10_000)(
        work.change
    )
    return app


def open_relay(where: Addresses) -> tuple[Scheduler, Relay]:
    """A relay, and what it takes its leases from."""
    app = Scheduler(where.dsn)
    transport = SmtpTransport("127.0.0.1", where.smtp)
    # Soon again after all that a nemesis does: pauses of minutes, as for other people's servers, would be waited for.
    soon: dict[str, Any] = {"backoff": Backoff(0.1, 0.4, 2.0, 1000), "breaker": Breaker(0.1, 1.0), "idle": 0.1}
    relay = Relay(where.engine(), transport, leases=app, lease=RELAY_LEASE, batch=5, **soon)
    return app, relay


class _Fenced:
    def __init__(self, where: Addresses) -> None:
        self._engine = where.engine()
        self._guard = RedisGuard(where.cache(), durability=where.durability)
        self._outbox = Outbox(from_="torture@shop.example")

    def fences(self, job: Job) -> list[tuple[Any, str]]:
        return [(self._engine, account_of(job)), (self._guard, account_of(job))]

    def change(self, job: Job) -> None:
        account, name = account_of(job), job.key
        _take_a_while()

        def insert(connection: Connection) -> None:
            connection.execute(INSERT, {"account": account, "name": name, "token": job.token.value})

        with history.effects(name):
            fenced_write(self._engine, account, effect=insert, once=name)
        once_each = effect_of(job)
        with history.effects(once_each), fenced_write(self._guard, account) as commands:
            commands.rpush(redis_key(account, "effects"), once_each)
        with self._engine.begin() as tx:
            self._outbox.put(tx, Email(to="customer@example.com", subject=name, text=account), key=name)


class _Unfenced:
    """The same as most code is written. It tells the record what a guard would have told."""

    def __init__(self, where: Addresses) -> None:
        self._engine = where.engine()
        self._cache = where.cache()
        self._smtp = where.smtp

    def fences(self, job: Job) -> list[tuple[Any, str]]:
        return []

    def change(self, job: Job) -> None:
        account, name = account_of(job), job.key
        _take_a_while()
        with _told(job, "postgresql:postgres", account, name), self._engine.begin() as tx:
            tx.execute(INSERT, {"account": account, "name": name, "token": job.token.value})
        once_each = effect_of(job)
        with _told(job, "redis:unfenced", account, once_each):
            self._cache.rpush(redis_key(account, "effects"), once_each)
        mail = EmailMessage()
        mail["From"], mail["To"], mail["Subject"] = "torture@shop.example", "customer@example.com", name
        mail.set_content(account)
        with smtplib.SMTP("127.0.0.1", self._smtp) as server:
            server.send_message(mail)


class _told:
    """Emit an accepted write when the block ends well, an unknown one otherwise."""

    def __init__(self, job: Job, downstream: str, account: str, effect: str) -> None:
        self._facts = (job.lease.holder, downstream, (account,), str(job.token))
        self._effect = effect
        self._began = time.monotonic_ns()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        outcome: history.Outcome = "unknown" if error else "accepted"
        history.emit(history.Event("write", outcome, *self._facts, effects=(self._effect,), began=self._began))


def effect_of(job: Job) -> str:
    """The name of what one attempt does where nothing remembers the keys of earlier ones."""
    token: Token = job.token
    return f"{job.key}@{token.value}"


def _take_a_while() -> None:
    time.sleep(random.choice((0.0, 0.0, 0.01, 0.05, 0.3)))
