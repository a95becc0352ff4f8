"""What the demo sees in the servers themselves: nothing here is concluded from what it did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

import psycopg
import redis
from psycopg import sql
from sqlalchemy import create_engine

from adapters.redis import redis_key
from fencing import read_mark
from scheduler.console.demo._addresses import Addresses


@dataclass(frozen=True, slots=True)
class Attempt:
    """A line of the audit: the token's value, and how the attempt ended."""

    token: int
    outcome: str


class Look:
    """Connections of its own to the database and the cache, for looking only."""

    def __init__(self, where: Addresses) -> None:
        self._where = where
        self._database = psycopg.connect(where.dsn, autocommit=True)
        self._cache = redis.Redis.from_url(where.redis, decode_responses=True)
        self._engine = create_engine(where.shop_url)

    def close(self) -> None:
        """Close them."""
        self._database.close()
        self._cache.close()
        self._engine.dispose()

    def clock(self) -> datetime:
        """The database's clock."""
        now: datetime = self._one("select clock_timestamp()")
        return now

    def next_at(self) -> datetime | None:
        """When the schedule is next due."""
        due: datetime | None = self._one("select next_at from {schedule} where name = 'monthly-invoices'")
        return due

    def lease_left(self, job: int, token: int) -> float | None:
        """Seconds left of the job's lease under a token, by the database's clock; None if it is not leased to it."""
        left: float | None = self._one(
            "select extract(epoch from lease_until - clock_timestamp())::float8 from {job} "
            "where id = %s and token = %s and status = 'leased'",
            job,
            token,
        )
        return left

    def attempts(self, job: int) -> list[Attempt]:
        """The job's attempts, in the order in which they ended."""
        found = self._all("select token, outcome from {attempt} where job_id = %s order by ended_at", job)
        return [Attempt(*row) for row in found]

    def occurrences(self) -> int:
        """How many occurrences of the schedule became jobs."""
        return len(self._all("select from {occurrence} where schedule = 'monthly-invoices' and state = 'enqueued'"))

    def invoice_tokens(self) -> list[str]:
        """For each invoice, the token that its writer had."""
        return [token for (token,) in self._all("select token from {invoice} order by number")]

    def cached_token(self, invoice: str) -> str | None:
        """The token that the writer of the cached value had."""
        value: Any = self._cache.get(redis_key(invoice, "sent-under"))
        return value if value is None else str(value)

    def mails_waiting(self) -> int:
        """How many mails in the outbox are not at their end."""
        return len(self._all("select from {fencing_outbox} where state in ('pending', 'claimed', 'dispatching')"))

    def marks(self, invoice: str) -> dict[str, int | None]:
        """The value of the mark that each downstream keeps."""
        found = {
            "sql": read_mark(self._engine, invoice),
            "redis": read_mark(self._cache, invoice),
            "outbox": read_mark(self._engine, f"outbox/{invoice}"),
        }
        return {name: mark.token.value if mark else None for name, mark in found.items()}

    def _one(self, statement: LiteralString, *parameters: Any) -> Any:
        found = self._all(statement, *parameters)
        return found[0][0] if found else None

    def _all(self, statement: LiteralString, *parameters: Any) -> list[Any]:
        shop, scheduler = self._where.shop_schema, self._where.schema
        places = {name: sql.Identifier(shop, name) for name in ("invoice", "fencing_outbox")}
        places |= {name: sql.Identifier(scheduler, name) for name in ("job", "attempt", "occurrence", "schedule")}
        return self._database.execute(sql.SQL(statement).format(**places), parameters or None).fetchall()
