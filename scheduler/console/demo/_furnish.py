"""The demo's things in its servers: made before the story, and removed after it from those that were given."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from sqlalchemy import create_engine, text
from sqlalchemy.schema import CreateSchema

import adapters.email
import adapters.sql
from adapters.redis import redis_key
from adapters.redis._keys import mark_key
from scheduler import Scheduler
from scheduler._connect import normalise_dsn
from scheduler.console.demo._addresses import Addresses
from scheduler.console.demo._given import Given
from scheduler.console.demo._janitor import Janitor
from scheduler.console.demo._stage import Stage

DHAKA = ZoneInfo("Asia/Dhaka")
"""The zone of the shop's schedule."""

# Numbers come from a sequence, so that two invoices for one month are possible, as they are in life.
_INVOICE = """
create table invoice (number bigint generated always as identity primary key, name text not null, token text not null)
"""


@dataclass(frozen=True, slots=True)
class Venue:
    """Where the story plays: the addresses, and what the servers are, by kind (``{"postgres": "18.6", …}``)."""

    addresses: Addresses
    versions: dict[str, str]

    @property
    def redis_name(self) -> str:
        """What the server is that speaks Redis's protocol."""
        return "Valkey" if "valkey" in self.versions else "Redis"

    @property
    def title(self) -> str:
        """The servers' names with their versions."""
        return f"PostgreSQL {self.versions['postgres']} and {self.redis_name} {self.versions[self.redis_name.lower()]}"


def find_venue(stage: Stage, versions: Mapping[str, str]) -> Venue:
    """Wait for the servers, and name what is to be made there. ``versions`` are those of the given ones."""
    stage.wait()
    given, postgres, valkey, sink = stage.given, stage.postgres, stage.valkey, stage.sink
    known = dict(versions)
    if postgres:
        known["postgres"] = postgres.version
    if valkey:
        known["valkey"] = valkey.version
    run = f"fencing_demo_{secrets.token_hex(4)}"
    host, port = (sink.host, sink.port) if sink else given.smtp or ("", 0)
    addresses = Addresses(
        dsn=postgres.dsn() if postgres else normalise_dsn(given.dsn),
        schema=run,
        shop_schema=f"{run}_shop",
        redis=valkey.url if valkey else given.redis or "",
        smtp_host=host,
        smtp_port=port,
        prefix="" if valkey else f"{run}/",
    )
    return Venue(addresses, known)


def janitor(given: Given, where: Addresses) -> Janitor:
    """Whoever removes what is made in the given servers."""
    today = datetime.now(DHAKA)
    invoices = {where.invoice(moment) for moment in (today, today + timedelta(days=1))}
    return Janitor(
        dsn=where.dsn if given.dsn else None,
        schemas=[where.schema, where.shop_schema],
        redis=where.redis if given.redis else None,
        keys=[key for invoice in invoices for key in (mark_key(invoice), redis_key(invoice, "sent-under"))],
    )


def furnish(where: Addresses) -> None:
    """Make the scheduler's and the shop's tables."""
    app = Scheduler(where.dsn, schema=where.schema)
    app.migrate(issuer="shop")
    app.close()
    engine = create_engine(where.shop_url)
    with engine.begin() as connection:
        connection.execute(CreateSchema(where.shop_schema))
        connection.execute(text(_INVOICE))
        adapters.sql.create_all(connection)
        adapters.email.create_all(connection)
    engine.dispose()
