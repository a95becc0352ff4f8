"""The shop of ``fencing demo --unfenced``: as ``shop.py``, with no guard anywhere, as most code is written.

The scheduler still hands out a token with every claim. Nobody looks at it.
"""

from __future__ import annotations

import smtplib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import EmailMessage

import redis
from sqlalchemy import create_engine

from adapters.redis import redis_key
from fencing import history
from scheduler import Job, Scheduler
from scheduler.console.demo._addresses import Addresses
from scheduler.console.demo.shop import INSERT, LEASE


def open_shop(where: Addresses, cron: str, work: Callable[[Job], None]) -> Scheduler:
    """Return the shop's scheduler, with its task and its schedule. See ``shop.py``."""
    database = create_engine(where.shop_url)
    cache = redis.Redis.from_url(where.redis)
    app = Scheduler(where.dsn, schema=where.schema)

    @app.task("send-invoice", lease=LEASE)
    def send_invoice(job: Job) -> None:
        assert job.nominal is not None
        invoice = where.invoice(job.nominal)
        work(job)
        with _recorded(job, "write", "postgresql", invoice), database.begin() as tx:
            tx.execute(INSERT, {"name": invoice, "token": str(job.token)})
        with _recorded(job, "write", "redis", invoice):
            cache.set(redis_key(invoice, "sent-under"), str(job.token))
        with _recorded(job, "send", "smtp", invoice), smtplib.SMTP(where.smtp_host, where.smtp_port) as server:
            mail = EmailMessage()
            mail["From"], mail["To"] = "billing@shop.example", "customer@example.com"
            mail["Subject"] = f"Your {invoice}"
            mail.set_content("Please pay within 30 days.\n")
            server.send_message(mail)

    app.schedule("monthly-invoices", cron, seconds=True, tz="Asia/Dhaka", task="send-invoice")
    return app


@contextmanager
def _recorded(job: Job, kind: history.Kind, downstream: str, resource: str) -> Iterator[None]:
    """Tell the event record what a guard would have told."""
    yield
    history.emit(history.Event(kind, "accepted", job.lease.holder, downstream, (resource,), str(job.token)))
