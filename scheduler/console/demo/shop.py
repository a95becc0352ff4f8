"""The shop that ``fencing demo`` runs: one invoice a month, into a database, a cache and an e-mail, each fenced.

All of it is in :func:`open_shop`. ``careless.py`` is the same shop without guards.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import redis
from sqlalchemy import Connection, create_engine, text

from adapters.email import Email, Outbox, Relay, SmtpTransport
from adapters.redis import redis_key
from fencing import fenced_write
from fencing.errors import FenceRejected
from scheduler import Job, Scheduler
from scheduler.console.demo._addresses import Addresses

LEASE = 1.5
"""Seconds without a sign of life after which another worker takes the job over."""

INSERT = text("insert into invoice (name, token) values (:name, :token)")


def open_shop(where: Addresses, cron: str, work: Callable[[Job], None]) -> Scheduler:
    """Return the shop's scheduler, with its task, its schedule and its relay.

    ``cron``: when the invoice is due, in Dhaka, with a field for the second. ``work``: what takes a while before the
    first write.
    """
    database = create_engine(where.shop_url)
    cache = redis.Redis.from_url(where.redis)
    outbox = Outbox(from_="billing@shop.example")
    app = Scheduler(where.dsn, schema=where.schema)

    def invoice_of(job: Job) -> str:
        assert job.nominal is not None  # the local time that the schedule's rule named
        return where.invoice(job.nominal)

    # The marks of these resources are raised before the handler's first line.
    @app.task("send-invoice", lease=LEASE, fences=lambda job: [(database, invoice_of(job)), (cache, invoice_of(job))])
    def send_invoice(job: Job) -> None:
        invoice = invoice_of(job)
        work(job)  # the demo stops the first worker in here

        def insert(connection: Connection) -> None:
            connection.execute(INSERT, {"name": invoice, "token": str(job.token)})

        # A handler lets a refusal end it. This one tries every write, so that each is seen to be refused by its own
        # downstream, and not because the one before it was.
        with suppress(FenceRejected):
            fenced_write(database, invoice, effect=insert, once=job.key)
        with suppress(FenceRejected), fenced_write(cache, invoice) as commands:
            commands.set(redis_key(invoice, "sent-under"), str(job.token))
        with suppress(FenceRejected), database.begin() as tx:
            mail = Email(to="customer@example.com", subject=f"Your {invoice}", text="Please pay within 30 days.\n")
            outbox.put(tx, mail, key=invoice)

    app.schedule("monthly-invoices", cron, seconds=True, tz="Asia/Dhaka", task="send-invoice")
    app.add_service(Relay(database, SmtpTransport(where.smtp_host, where.smtp_port), leases=app, idle=0.1))
    return app
