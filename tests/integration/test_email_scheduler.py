"""The outbox with the scheduler: its tokens for puts and relays, the relay as a service of the worker."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from support.outbox import mail, outbox_engine, row
from support.waiting import eventually

from adapters.email import Outbox, Relay, RelayCounts, SmtpTransport
from fencing import raise_fence
from fencing.errors import StaleTokenError
from scheduler import Job, Scheduler
from scheduler.console.embedded import SmtpSink

OUTBOX = Outbox(from_="sender@example.org")


@pytest.fixture
def engine(pg_dsn: str, tmp_path: Path) -> Iterator[Engine]:
    made = outbox_engine("postgresql", pg_dsn, tmp_path)
    yield made
    made.dispose()


@pytest.fixture
def app(pg_dsn: str) -> Iterator[Scheduler]:
    made = Scheduler(pg_dsn)
    made.migrate()
    yield made
    made.close()


def relay(engine: Engine, app: Scheduler, sink: SmtpSink) -> Relay:
    transport = SmtpTransport("127.0.0.1", sink.port, local_hostname="relay.test")
    return Relay(engine, transport, leases=app, idle=0.05)


def test_what_a_job_puts_is_sent_by_a_relay_in_the_worker(engine: Engine, app: Scheduler, smtp_sink: SmtpSink) -> None:
    @app.task("greet")
    def greet(job: Job) -> None:
        with engine.begin() as connection:
            OUTBOX.put(connection, mail(), key=f"greeting/{job.args['n']}")

    app.add_service(relay(engine, app, smtp_sink))
    app.enqueue("greet", {"n": 1})
    stop = threading.Event()
    worker = threading.Thread(target=app.run_worker, kwargs={"stop": stop})
    worker.start()
    smtp_sink.wait_for(1, timeout=60)
    eventually(lambda: row(engine, "greeting/1")["state"] == "sent", "it is settled")
    stop.set()
    worker.join(60)
    assert not worker.is_alive()
    assert len(smtp_sink.received) == 1
    with engine.connect() as connection:
        put, sent = connection.execute(text("select token from fencing_outbox_event order by id")).scalars()
        assert int(sent.rpartition("/")[2]) > int(put.rpartition("/")[2])  # the relay's own token, of the same issuer
        assert connection.execute(text("select count(*) from fencing.lease")).scalar_one() == 0


def test_a_put_under_a_named_lease_is_fenced_by_its_token(engine: Engine, app: Scheduler, smtp_sink: SmtpSink) -> None:
    with app.lease("monthly", ttl=30) as old:
        pass
    with app.lease("monthly", ttl=30), engine.begin() as connection:
        assert OUTBOX.put(connection, mail(), key="k").created
    with engine.connect() as connection, pytest.raises(StaleTokenError):
        OUTBOX.put(connection, mail(), key="k", token=old.token)
    raise_fence(engine, "outbox/other", token=row_token(app))
    with engine.connect() as connection, pytest.raises(StaleTokenError):
        OUTBOX.put(connection, mail(2), key="other", token=old.token)
    assert relay(engine, app, smtp_sink).run_once() == RelayCounts(claimed=1, sent=1)


def row_token(app: Scheduler) -> object:
    with app.lease("another", ttl=30) as lease:
        return lease.token
