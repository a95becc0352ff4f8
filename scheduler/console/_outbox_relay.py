"""``fencing outbox relay``: a relay as a long-running service, or for one batch."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import asdict

import click

from adapters.email import Relay
from scheduler import Scheduler
from scheduler._prometheus import serving
from scheduler.console._engines import outbox_engine_of, transport_of
from scheduler.console._logs import set_up_logging
from scheduler.console._options import (
    database_options,
    json_option,
    load_app_alone,
    log_format_option,
    log_level_option,
    print_json,
)
from scheduler.console._outbox_metrics import OutboxCollector


@click.command()
@click.argument("app", metavar="[MODULE:APP]", required=False)
@click.option(
    "--transport",
    envvar="FENCING_SMTP",
    required=True,
    metavar="URL|MODULE:TRANSPORT",
    help="smtp://, smtp+starttls:// or smtps://[USER@]HOST[:PORT] with the password in $FENCING_SMTP_PASSWORD, or a "
    "transport of yours (default: $FENCING_SMTP).",
)
@click.option(
    "--target",
    envvar="FENCING_OUTBOX",
    metavar="URL|MODULE:ENGINE",
    help="The database with the outbox's tables (default: $FENCING_OUTBOX, then the scheduler's).",
)
@database_options
@click.option("--batch", default=20, show_default=True, help="Messages taken at a time.")
@click.option("--lease", default=60.0, show_default=True, help="Seconds after which another relay takes them over.")
@click.option("--connections", default=1, show_default=True, help="Messages under way at once, each on its own.")
@click.option("--rate", type=float, help="The most messages a second of this relay (default: no limit).")
@click.option("--redirect-to", default="", metavar="ADDRESS", help="Send everything to this address alone: staging.")
@click.option("--name", default="outbox", show_default=True, help="The name of the relay's lease.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics on this port.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="The address to serve them on.")
@click.option("--once", is_flag=True, help="Send one batch, say what became of it, and end.")
@log_level_option
@log_format_option
@json_option
def relay(
    app: str | None,
    transport: str,
    target: str | None,
    dsn: str | None,
    schema: str,
    batch: int,
    lease: float,
    connections: int,
    rate: float | None,
    redirect_to: str,
    name: str,
    metrics_port: int | None,
    metrics_host: str,
    once: bool,
    log_level: str,
    log_format: str,
    as_json: bool,
) -> None:
    """Send what is in the outbox until SIGTERM or SIGINT; then finish the message in hand and give the rest back.

    Its tokens come from the scheduler MODULE:APP, or the one in --dsn and --schema. Any number of relays may serve one
    table. A second signal does not wait: what was being handed over will be uncertain.
    """
    set_up_logging(log_level, log_format)
    leases = load_app_alone(app, "MODULE:APP") if app else Scheduler(dsn, schema=schema)
    engine = outbox_engine_of(target or leases._database.conninfo)
    service = Relay(
        engine,
        transport_of(transport),
        leases=leases,
        batch=batch,
        lease=lease,
        connections=connections,
        rate=rate,
        redirect_to=redirect_to,
        name=name,
    )
    try:
        if once:
            counts = asdict(service.run_once())
            if as_json:
                print_json(counts)
            else:
                click.echo(", ".join(f"{what} {value}" for what, value in counts.items() if value) or "nothing was due")
            sys.exit(1 if counts["unavailable"] else 0)
        stop = threading.Event()
        _stop_on_signals(stop)
        with serving("the relay", metrics_host, metrics_port, OutboxCollector(service, engine.connect)):
            service.run(stop)
    finally:
        leases.close()
        engine.dispose()


def _stop_on_signals(stop: threading.Event) -> None:
    def heard(number: int, _: object) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, heard)
