"""Options and output that the commands share."""

from __future__ import annotations

import getpass
import importlib
import importlib.util
import json
import os
import re
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from fencing._registry import check_packages
from scheduler import Scheduler

_OURS = Path(__file__).parents[2]
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DAY = re.compile(r"(\d{4}-\d\d-\d\d)(Z|[+-]\d\d:\d\d)?")


def who() -> str:
    """Say who acts: the user and the host."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        name = f"uid {os.getuid()}"
    return f"{name}@{socket.gethostname()}"


reason_option = click.option("--reason", required=True, help="Why; kept in the audit.")
actor_option = click.option("--actor", default=who, show_default="you@here", help="Who; kept in the audit.")

F = TypeVar("F", bound=Callable[..., Any])

dsn_option = click.option("--dsn", envvar="FENCING_DSN", help="The scheduler's database (default: $FENCING_DSN).")
schema_option = click.option("--schema", default="fencing", show_default=True, help="The schema of its tables.")
log_level_option = click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], case_sensitive=False),
    default="INFO",
    show_default=True,
    help="The least that is logged.",
)
log_format_option = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines for people, or one JSON object a line.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout and nothing else.")


def database_options(command: F) -> F:
    """Add ``--dsn`` and ``--schema``."""
    return dsn_option(schema_option(command))


def act_options(command: F) -> F:
    """Add ``--reason`` and ``--actor``: what the audit keeps of an act."""
    return reason_option(actor_option(command))


def read_moment(text: str) -> datetime:
    """Read ISO 8601, with a zone if there is one; a day alone is its midnight.

    Python takes the sign of an offset that follows a day for what stands before the time of day.
    """
    day = _DAY.fullmatch(text)
    return datetime.fromisoformat(f"{day[1]}T00:00{day[2] or ''}" if day else text)


def read_duration(text: str) -> timedelta:
    """A number of seconds, or one with a unit: 90, 30m, 12h, 30d, 4w."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no duration such as 12h, 30d or 4w")
    try:
        return timedelta(seconds=float(found[1]) * _UNITS[found[2]])
    except OverflowError as exc:
        raise click.BadParameter(f"{text!r} is longer than time goes") from exc


def attribute_of(text: str, what: str) -> Any:
    """Import MODULE:ATTRIBUTE; the current folder is looked in too. ``what`` begins an error."""
    module_name, _, attribute = text.partition(":")
    if not module_name or not attribute:
        raise click.UsageError(f"{what} takes a URL or MODULE:ATTRIBUTE, not {text!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
        check_packages()  # a folder of theirs here may have the name of one of ours
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name and f"{module_name}.".startswith(f"{exc.name}."):
            raise click.UsageError(
                f"{what}: no module {exc.name!r} from here; run `fencing` where it can be imported"
            ) from exc
        _note_place(exc)
        raise
    except Exception as exc:
        _note_place(exc)
        raise
    if not hasattr(module, attribute):
        raise click.UsageError(f"{what}: module {module_name!r} has no {attribute!r}")
    return getattr(module, attribute)


def _note_place(exc: Exception) -> None:
    """Note which line of theirs could not be executed: the last one that was reached as a module was loaded."""
    ours = tuple(str(_OURS / package) + os.sep for package in ("fencing", "scheduler", "adapters"))
    lines = [frame for frame in traceback.extract_tb(exc.__traceback__) if frame.name == "<module>"]
    theirs = [frame for frame in lines if not frame.filename.startswith(ours)] or lines
    if theirs:
        exc.add_note(f"  in {theirs[-1].filename}, line {theirs[-1].lineno}: {theirs[-1].line}")


def need(command: str, *modules: str) -> None:
    """Refuse a command that lacks modules of the extra ``demo``, naming all of them."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise click.ClickException(
            f"`fencing {command}` needs {', '.join(missing)}: pip install 'fencing-toolkit[demo]'"
        )


def load_app(path: str) -> Scheduler:
    """Return the :class:`Scheduler` that ``MODULE:ATTRIBUTE`` names; the current folder is looked in too."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise click.UsageError(f"name the application as MODULE:ATTRIBUTE, for example shop.jobs:app, not {path!r}")
    app = attribute_of(path, "the application")
    if not isinstance(app, Scheduler):
        raise click.UsageError(f"{path} is a {type(app).__name__}, not a Scheduler")
    return app


def load_app_alone(path: str, named: str) -> Scheduler:
    """As :func:`load_app`, and refuse a database beside it: it brings its own, and the other would not be looked at."""
    context = click.get_current_context()
    for name in ("dsn", "schema"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{named} brings its own database: leave --{name} away, or {named}")
    return load_app(path)


def print_json(value: Any) -> None:
    """Print one JSON value; times in ISO 8601."""
    click.echo(json.dumps(value, default=_plain, ensure_ascii=False))


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime | date) else str(value)


def print_table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows under headings, each column as wide as it needs."""
    cells = [[str(_cell(value)) for value in row] for row in rows]
    widths = [max(len(line[column]) for line in [list(headings), *cells]) for column in range(len(headings))]
    for line in [list(headings), *cells]:
        click.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def _cell(value: Any) -> Any:
    if value is None:
        return "-"
    return value.isoformat(sep=" ", timespec="seconds") if isinstance(value, datetime) else value
