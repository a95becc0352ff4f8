"""The outbox's tables. They stand in the database of the business data, so that a mail exists only if that
transaction commits.

Times are the database's: ``timestamptz`` on PostgreSQL; on SQLite, which has no such type, UTC text of fixed width
(``2026-01-31 12:00:00.000000``), which sorts by time.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    DateTime,
    Engine,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    and_,
    event,
    false,
    func,
    select,
    text,
)
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateIndex, CreateTable

from adapters.email._sql import DIALECTS, check_dialect
from adapters.email._states import ENDED_OTHERWISE, HELD, OPEN, PARKED, RECIPIENT_STATES, STATES, UNFINISHED, sql_list

metadata = MetaData()
"""The tables ``fencing_outbox``, ``fencing_outbox_recipient`` and ``fencing_outbox_event``, for Alembic's
``target_metadata``."""

_Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself for INTEGER PRIMARY KEY alone
_Time = DateTime(timezone=True)

outbox = Table(
    "fencing_outbox",
    metadata,
    Column("id", _Id, Identity(always=True), primary_key=True),
    Column("key", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("due_at", _Time, nullable=False, comment="not before; moves with every retry"),
    Column("expires_at", _Time, comment="not after; null: no end"),
    Column("policy", Text, nullable=False, comment="what happens when nobody knows whether it was sent"),
    Column("mail_from", Text, nullable=False, comment="the sender in the envelope"),
    Column("message_id", Text, nullable=False),
    Column("content", Text, nullable=False, comment="digests of what the message says, part by part, as JSON"),
    Column("message", LargeBinary, comment="the final bytes, without Bcc; null once they are purged"),
    Column("size", Integer, nullable=False, comment="bytes of message"),
    Column("tenant", Text, comment="whose it is, for people"),
    Column("order_key", Text, comment="sent one after the other, in the order in which they were put"),
    Column("waits", Boolean, nullable=False, server_default=false(), comment="another one of its order_key goes first"),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("generation", Integer, nullable=False, server_default=text("0"), comment="rises when it is sent anew"),
    # The newest claim. It stays after the end, so that an older token finds it.
    Column("owner", Text),
    Column("issuer", Text),
    Column("lineage", Text),
    Column("token", BigInteger),
    Column("lease_until", _Time, comment="of a claimed or dispatching row; null otherwise"),
    Column("dispatch", Text, comment="the newest hand-over to the transport"),
    Column("transport", Text, comment="through which it was handed over last"),
    Column("in_doubt", Boolean, nullable=False, server_default=false(), comment="it may have been sent before"),
    Column("key_until", _Time, comment="until when the provider compares the idempotency key"),
    Column("lookup_at", _Time, comment="of an uncertain row: when the provider is asked; null: never"),
    Column("lookups", Integer, nullable=False, server_default=text("0")),
    Column("last_error", Text),
    Column("created_at", _Time, nullable=False),
    Column("updated_at", _Time, nullable=False),
    UniqueConstraint("key", name="fencing_outbox_key"),
    CheckConstraint(f"state in {sql_list(STATES)}", name="fencing_outbox_state"),
    CheckConstraint(f"(state in {sql_list(HELD)}) = (lease_until is not null)", name="fencing_outbox_lease"),
    sqlite_autoincrement=True,  # an id is never used again: events outlive their row
)

# In the order of the claim, and with the waiting rows alone: one index that stays small however many were sent.
Index(
    "fencing_outbox_pending",
    outbox.c.priority.desc(),
    outbox.c.due_at,
    outbox.c.id,
    postgresql_where=text(OPEN),
    sqlite_where=text(OPEN),
)
Index(
    "fencing_outbox_parked",
    outbox.c.order_key,
    outbox.c.id,
    postgresql_where=text(PARKED),
    sqlite_where=text(PARKED),
)
Index(
    "fencing_outbox_held",
    outbox.c.lease_until,
    postgresql_where=outbox.c.state.in_(HELD),
    sqlite_where=outbox.c.state.in_(HELD),
)

Index(
    "fencing_outbox_uncertain",
    outbox.c.lookup_at,
    postgresql_where=outbox.c.state == "uncertain",
    sqlite_where=outbox.c.state == "uncertain",
)
# For people's lists: few messages end so, and among all that were sent they would be looked for one by one.
_OTHERWISE = text(f"state in {sql_list(ENDED_OTHERWISE)}")
Index("fencing_outbox_otherwise", outbox.c.state, outbox.c.id, postgresql_where=_OTHERWISE, sqlite_where=_OTHERWISE)
_IN_ORDER = and_(outbox.c.order_key.is_not(None), outbox.c.state.in_(UNFINISHED))
Index("fencing_outbox_order", outbox.c.order_key, outbox.c.id, postgresql_where=_IN_ORDER, sqlite_where=_IN_ORDER)

recipient = Table(
    "fencing_outbox_recipient",
    metadata,
    Column("outbox_id", _Id, ForeignKey("fencing_outbox.id", ondelete="CASCADE"), primary_key=True),
    Column("address", Text, primary_key=True),
    Column("position", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("reply", Text, comment="the server's last answer about this recipient"),
    Column("deferred_by", Text, comment="the dispatch in which the server said: later"),
    Column("updated_at", _Time, nullable=False),
    CheckConstraint(f"state in {sql_list(RECIPIENT_STATES)}", name="fencing_outbox_recipient_state"),
)

audit = Table(
    "fencing_outbox_event",
    metadata,
    Column("id", _Id, Identity(always=True), primary_key=True),
    # No foreign key: what happened stays when the row it happened to is purged.
    Column("outbox_id", _Id, nullable=False),
    Column("at", _Time, nullable=False),
    Column("kind", Text, nullable=False, comment="put, claim (those not claimed), dispatch (refused ones), settle, …"),
    Column("actor", Text, nullable=False),
    Column("token", Text, comment="issuer/lineage/value"),
    Column("dispatch", Text),
    Column("outcome", Text, nullable=False, comment="the state that it led to; lost: refused, the row was taken over"),
    Column("detail", Text),
    Column("reason", Text, comment="of a person's act"),
    Index("fencing_outbox_event_row", "outbox_id", "id"),
)

# What happened is not rewritten, by nobody: the database itself refuses it.
_KEPT = {
    "postgresql": (
        "create or replace function fencing_outbox_event_kept() returns trigger language plpgsql as $$ begin"
        " raise exception using message = 'fencing_outbox_event is append-only: ' || tg_op || ' is refused'; end $$",
        "do $$ begin if not exists (select 1 from pg_trigger where tgname = 'fencing_outbox_event_kept'"
        " and tgrelid = to_regclass('fencing_outbox_event')) then create trigger fencing_outbox_event_kept"
        " before update or delete or truncate on fencing_outbox_event"
        " for each statement execute function fencing_outbox_event_kept(); end if; end $$",
    ),
    "sqlite": tuple(
        f"create trigger if not exists fencing_outbox_event_no_{what} before {what} on fencing_outbox_event"
        f" begin select raise(abort, 'fencing_outbox_event is append-only: {what} is refused'); end"
        for what in ("update", "delete")
    ),
}


@event.listens_for(audit, "after_create")
def _keep(table: Table, connection: Connection, **_: Any) -> None:
    for statement in _KEPT.get(connection.dialect.name, ()):
        connection.exec_driver_sql(statement)


def ddl(dialect: str) -> str:
    """Return the statements of :func:`create_all` as text, for migrations written by hand.

    ``dialect``: ``"postgresql"`` or ``"sqlite"``. Raises ``ValueError`` for another one.
    """
    if dialect not in DIALECTS:
        raise ValueError(f"there is DDL for {' and '.join(DIALECTS)}, not for {dialect!r}")
    known = make_url(f"{dialect}://").get_dialect()()
    made: list[CreateTable | CreateIndex] = []
    for table in metadata.sorted_tables:
        made.append(CreateTable(table, if_not_exists=True))
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        made += [CreateIndex(index, if_not_exists=True) for index in indexes]
    texts = [str(one.compile(dialect=known)).strip() for one in made]
    return "".join(f"{one};\n" for one in (*texts, *_KEPT[dialect]))


def create_all(bind: Any) -> None:
    """Create the tables that are missing. May be called by many processes at once.

    ``bind``: a SQLAlchemy Engine (committed), Connection or Session (in the caller's transaction), or a psycopg
    Connection (likewise). For an async one: ``await connection.run_sync(create_all)``. Raises ``TypeError`` for any
    other bind.
    """
    if isinstance(bind, Engine):
        with bind.begin() as connection:
            _create(connection)
    elif isinstance(bind, Connection):
        _create(bind)
    elif isinstance(bind, Session):
        _create(bind.connection())
    elif callable(getattr(bind, "transaction", None)) and not hasattr(bind, "__aenter__"):
        with bind.transaction():
            bind.execute(f"select pg_advisory_xact_lock({_LOCK})")
            bind.execute(ddl("postgresql"))
    else:
        raise TypeError(
            "create_all() takes an Engine, Connection or Session of SQLAlchemy or a Connection of psycopg, not "
            f"{type(bind).__qualname__}; for an async one: await connection.run_sync(create_all)"
        )


# Two "create table if not exists" at once can collide in PostgreSQL's catalog. Any number will do if all take the
# same.
_LOCK = 0x6F7574626F78


def _create(connection: Connection) -> None:
    check_dialect(connection.dialect.name)
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    metadata.create_all(connection)
