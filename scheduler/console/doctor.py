"""``fencing doctor``: what in the set-up would break a promise."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict

import click

from fencing import Finding
from fencing.errors import FencingError
from scheduler import Scheduler
from scheduler.console._options import database_options, json_option, load_app_alone, print_json
from scheduler.console._targets import Issued, diagnose_target

_SIGNS = {"ok": "ok     ", "warning": "WARNING", "broken": "BROKEN "}


@click.command()
@click.argument("app", metavar="[MODULE:APP]", required=False)
@database_options
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="URL|MODULE:ATTR",
    help="A downstream too: a SQLAlchemy or redis:// URL, or an engine, client or guard in your code.",
)
@json_option
def doctor(app: str | None, dsn: str | None, schema: str, targets: tuple[str, ...], as_json: bool) -> None:
    """Check the scheduler's database and downstreams. Exit status 1 if a promise is broken.

    With MODULE:APP the database is that application's, and what it declares is compared with what is stored.
    """
    findings = list(_findings(app, dsn, schema, targets))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            _print(finding)
    sys.exit(1 if any(finding.severity == "broken" for finding in findings) else 0)


def _findings(path: str | None, dsn: str | None, schema: str, targets: tuple[str, ...]) -> Iterator[Finding]:
    issued = None
    if path or dsn or not targets:
        app = load_app_alone(path, "MODULE:APP") if path else Scheduler(dsn, schema=schema)
        try:
            found = app.diagnose()
            if targets and not any(finding.severity == "broken" for finding in found):
                issued = Issued(*app.issued())
        except FencingError as exc:  # it must not hide what the targets have to say
            found = [_unreachable(path or f"scheduler {schema!r}", exc)]
        finally:
            app.close()
        yield from found
    for target in targets:
        yield from diagnose_target(target, issued)


def _unreachable(where: str, exc: FencingError) -> Finding:
    return Finding(
        "reachable",
        "broken",
        where,
        str(exc),
        "nothing is known about it, and nothing can be claimed or enqueued",
        "see that the server runs, that its address is right and that it lets this user in",
    )


def _print(finding: Finding) -> None:
    click.echo(f"{_SIGNS[finding.severity]}  {finding.where}: {finding.check}: {finding.message}")
    if finding.severity != "ok":
        click.echo(f"         breaks: {finding.breaks}\n         do:     {finding.remedy}")
