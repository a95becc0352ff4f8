"""``fencing migrate`` and ``fencing worker``."""

from __future__ import annotations

from dataclasses import asdict

import click

from scheduler import Scheduler
from scheduler._grants import grants
from scheduler._sql import Statements
from scheduler.console._logs import set_up_logging
from scheduler.console._options import (
    database_options,
    json_option,
    load_app,
    log_format_option,
    log_level_option,
    print_json,
)


@click.command()
@database_options
@click.option("--issuer", help="Name of the token issuer at install (default: the schema's). A random suffix is added.")
@click.option("--print-grants", is_flag=True, help="Print what a role needs that is not the owner; change nothing.")
@click.option("--role", default="fencing_app", show_default=True, help="The role that --print-grants is for.")
@json_option
def migrate(dsn: str | None, schema: str, issuer: str | None, print_grants: bool, role: str, as_json: bool) -> None:
    """Create or update the scheduler's tables, as the role that owns them."""
    if print_grants:
        lines = grants(Statements(schema), role)
        if as_json:
            print_json({"schema": schema, "role": role, "grants": lines})
        else:
            click.echo("\n".join(lines))
        return
    app = Scheduler(dsn, schema=schema)
    applied = app.migrate(issuer)
    app.close()
    if as_json:
        print_json({"schema": schema, "applied": applied})
    else:
        click.echo(f"schema {schema}: " + (", ".join(applied) if applied else "up to date"))


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--queue", "queues", multiple=True, default=["default"], show_default=True, help="May be given more than once."
)
@click.option("--concurrency", default=8, show_default=True, help="Handlers at the same time, each on a thread.")
@click.option("--batch", type=int, help="The most jobs that one claim takes (default: 500).")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics on this port.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="The address that this is served on.")
@log_level_option
@log_format_option
@json_option
def worker(
    app: str,
    queues: tuple[str, ...],
    concurrency: int,
    batch: int | None,
    metrics_port: int | None,
    metrics_host: str,
    log_level: str,
    log_format: str,
    as_json: bool,
) -> None:
    """Run a worker for MODULE:APP until SIGTERM or SIGINT; then drain. A second signal does not wait."""
    set_up_logging(log_level, log_format)
    scheduler = load_app(app)
    try:
        counts = scheduler.run_worker(queues, concurrency, batch, metrics_port=metrics_port, metrics_host=metrics_host)
    finally:
        scheduler.close()
    if as_json:
        print_json(asdict(counts))
    else:
        click.echo(", ".join(f"{name} {value}" for name, value in asdict(counts).items()), err=True)
