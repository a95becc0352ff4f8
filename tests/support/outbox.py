"""What the outbox's tests share: databases with its tables, tokens, and a transport that can be stopped at a point."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, text

import adapters.email
import adapters.sql
from adapters.email import Answer, Delivery, Email, Gate, Outgoing, Session, Transport
from fencing import Lease, Token
from fencing._lease import holding, lease_clock

FAR = 3600.0  # seconds


def outbox_engine(kind: str, pg_dsn: str, directory: Path) -> Engine:
    """An engine on a new database (``postgresql`` or ``sqlite``) with the outbox's and the guard's tables."""
    url = pg_dsn.replace("postgresql://", "postgresql+psycopg://") if kind == "postgresql" else sqlite_url(directory)
    engine = create_engine(url)
    adapters.sql.create_all(engine)
    adapters.email.create_all(engine)
    CounterLeases.create(engine)
    return engine


def sqlite_url(directory: Path) -> str:
    return f"sqlite:///{directory}/outbox.db"


def url_of(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


class CounterLeases:
    """A source of leases for tests: the tokens come from a row of the database, and no lease of it ever ends.

    So what a test sees end is the relay's own hold on its rows.
    """

    def __init__(self, engine: Engine, issuer: str = "test") -> None:
        self._engine = engine
        self._issuer = issuer

    @staticmethod
    def create(engine: Engine) -> None:
        with engine.begin() as connection:
            connection.execute(text("create table test_token (value bigint not null)"))
            connection.execute(text("insert into test_token values (9007199254740993)"))

    def token(self) -> Token:
        with self._engine.begin() as connection:
            value = connection.execute(text("update test_token set value = value + 1 returning value")).scalar_one()
        return Token(value, self._issuer, "l1")

    @contextmanager
    def lease(self, name: str, *, ttl: float, wait: float = 0) -> Iterator[Lease]:
        lease = Lease(self.token(), name, "test", deadline=lease_clock() + FAR)
        with holding(lease):
            yield lease
        lease.end("released")


def mail(number: int = 1, **changes: Any) -> Email:
    """A small message to one recipient."""
    return Email(**{"to": f"reader{number}@example.org", "subject": f"Number {number}", "text": "Hello.\n", **changes})


def row(engine: Engine, key: str) -> dict[str, Any]:
    """The row of a message."""
    with engine.connect() as connection:
        found = connection.execute(text("select * from fencing_outbox where key = :key"), {"key": key})
        return dict(found.mappings().one())


def recipients(engine: Engine, key: str) -> dict[str, str]:
    """The state of each recipient of a message."""
    with engine.connect() as connection:
        found = connection.execute(
            text(
                "select r.address, r.state from fencing_outbox_recipient r join fencing_outbox o on o.id = r.outbox_id"
                " where o.key = :key order by r.position"
            ),
            {"key": key},
        )
        return dict(found.all())


def audit(engine: Engine, key: str) -> list[tuple[str, str]]:
    """What the audit says of a message, as (kind, outcome) in order."""
    with engine.connect() as connection:
        found = connection.execute(
            text(
                "select e.kind, e.outcome from fencing_outbox_event e join fencing_outbox o on o.id = e.outbox_id"
                " where o.key = :key order by e.id"
            ),
            {"key": key},
        )
        return [(kind, outcome) for kind, outcome in found]


class PausingTransport:
    """A transport that stops for a word on the standard input when it comes to ``point``, and says so.

    ``claimed``: before anything was said to the server. ``rcpt``: the recipients are accepted. ``dispatching``: that
    is committed, and the content follows next. ``answered``: the server took the message, and nothing is written down.
    """

    def __init__(self, inner: Transport, point: str) -> None:
        self.inner = inner
        self.point = point
        self.name = inner.name

    def session(self) -> Session:
        return _PausingSession(self.inner.session(), self.reach)

    def reach(self, point: str) -> None:
        if point == self.point:
            print(point, flush=True)
            sys.stdin.readline()


class _PausingSession:
    def __init__(self, inner: Session, reach: Callable[[str], None]) -> None:
        self._inner = inner
        self._reach = reach

    def deliver(self, mail: Outgoing, gate: Gate) -> Delivery:
        def pausing(refused: Mapping[str, Answer]) -> None:
            self._reach("rcpt")
            gate(refused)
            self._reach("dispatching")

        self._reach("claimed")
        delivery = self._inner.deliver(mail, pausing)
        self._reach("answered")
        return delivery

    def close(self) -> None:
        self._inner.close()
