"""``fencing dead``: look at dead jobs, and replay many."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from scheduler import Scheduler
from scheduler._audit import headline
from scheduler._connect import Database, Link
from scheduler._replay import DeadFilter, list_dead
from scheduler._sql import Statements
from scheduler.console._options import act_options, database_options, json_option, print_json, print_table, read_moment

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGO = re.compile(r"(\d{1,9})([smhd])")


def _moment(_: click.Context, __: click.Parameter, value: str | None) -> datetime | None:
    """Read a moment: ISO 8601 with its offset, or how long ago."""
    if value is None:
        return None
    ago = _AGO.fullmatch(value)
    try:
        if ago:
            return datetime.now(UTC) - timedelta(seconds=int(ago[1]) * _UNITS[ago[2]])
        moment = read_moment(value)
    except (ValueError, OverflowError) as exc:
        raise click.BadParameter(
            f"{value!r} is no moment ({exc}): 2026-11-29T09:00:00+00:00, or 90s, 30m, 2h, 3d ago"
        ) from exc
    if moment.tzinfo is None:
        raise click.BadParameter(f"{value!r} has no offset: write {value}+00:00 for UTC")
    return moment


def filter_options(command: F) -> F:
    """Add the conditions that choose dead jobs."""
    for option in (
        click.option(
            "--since", callback=_moment, help="Died then or later: ISO 8601 with offset, or 90s, 30m, 2h, 3d ago."
        ),
        click.option("--error", help="Its reason or last error contains this text."),
        click.option("--queue", help="Of this queue."),
        click.option("--task", help="Of this task."),
    ):
        command = option(command)
    return command


@click.group()
def dead() -> None:
    """Look at dead jobs, and replay many."""


@dead.command("list")
@filter_options
@click.option("--after", default=0, metavar="ID", help="Go on with those of higher numbers than this one.")
@click.option("--most", default=50, show_default=True, type=click.IntRange(min=1), help="How many at most.")
@database_options
@json_option
def list_(
    task: str | None,
    queue: str | None,
    error: str | None,
    since: datetime | None,
    after: int,
    most: int,
    dsn: str | None,
    schema: str,
    as_json: bool,
) -> None:
    """List dead jobs, in the order of their numbers."""
    statements, which = Statements(schema), DeadFilter(task, queue, error, since)
    with Link(Database(dsn), "console").use("list dead jobs") as connection:
        found = list_dead(connection, statements, which, most=most, after=after)
    if as_json:
        print_json(found)
        return
    print_table(
        ["id", "task", "queue", "attempt", "died", "key", "reason", "last error"],
        [
            [
                job["id"],
                job["task"],
                job["queue"],
                f"{job['attempt']}/{job['max_attempts']}",
                job["finished_at"],
                job["key"],
                job["reason"],
                headline(job["error"])[:100],
            ]
            for job in found
        ],
    )


@dead.command()
@click.argument("job_ids", type=int, metavar="[ID]...", nargs=-1)
@filter_options
@click.option("--all", "every", is_flag=True, help="Every dead job: for when no other condition is given.")
@click.option("--limit", type=click.IntRange(min=1), help="How many at most.")
@click.option("--dry-run", is_flag=True, help="Change nothing; say which would be replayed.")
@act_options
@database_options
@json_option
def replay(
    job_ids: tuple[int, ...],
    task: str | None,
    queue: str | None,
    error: str | None,
    since: datetime | None,
    every: bool,
    limit: int | None,
    dry_run: bool,
    reason: str,
    actor: str,
    dsn: str | None,
    schema: str,
    as_json: bool,
) -> None:
    """Let dead jobs run again: those of these IDs, or all that fit the conditions.

    They keep their keys. One whose key is alive is skipped. In batches: each is replayed whole or not at all.
    """
    conditions = any(value is not None for value in (task, queue, error, since))
    if sum((bool(job_ids), conditions, every)) != 1:
        raise click.UsageError("say which: IDs, or conditions (--task, --queue, --error, --since), or --all")
    app = Scheduler(dsn, schema)
    done = app.replay_dead(
        ids=job_ids or None,
        reason=reason,
        actor=actor,
        task=task,
        queue=queue,
        error=error,
        since=since,
        limit=limit,
        dry_run=dry_run,
    )
    app.close()
    if as_json:
        print_json({"dry_run": dry_run, "replayed": done.ids, "skipped": done.skipped})
    else:
        for number, why in sorted(done.skipped.items()):
            click.echo(f"job {number} stays: {why}")
        shown = ", ".join(map(str, done.ids[:20])) + (", …" if len(done.ids) > 20 else "")
        click.echo(
            f"{len(done.ids)} jobs {'would be' if dry_run else 'are'} ready again" + (f": {shown}" if shown else "")
        )
    if done.skipped:
        raise SystemExit(1)
