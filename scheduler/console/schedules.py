"""``fencing schedules``: look at schedules, pause, resume, delete and backfill them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from scheduler import Occurrence, Scheduler
from scheduler.console._options import (
    actor_option,
    database_options,
    json_option,
    load_app,
    print_json,
    print_table,
    read_moment,
    reason_option,
)
from scheduler.errors import LedgerHorizonError, ScheduleError

F = TypeVar("F", bound=Callable[..., Any])

_because = click.option("--reason", default="no reason given", show_default=True, help="Why; kept in the audit.")


class _Moment(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            moment = read_moment(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a time such as 2026-11-29T09:00Z", param, ctx)
        if moment.tzinfo is None:
            self.fail(f"{value!r} has no zone: write {value}Z, or with its offset, {value}+01:00", param, ctx)
        return moment


@click.group()
def schedules() -> None:
    """Look at schedules; pause, resume, delete or backfill one."""


@schedules.command("list")
@click.option("--deleted", is_flag=True, help="Those that were deleted, too.")
@database_options
@json_option
def list_(deleted: bool, dsn: str | None, schema: str, as_json: bool) -> None:
    """List the schedules in the database."""
    with _scheduler(dsn, schema) as app:
        found = app.list_schedules(deleted=deleted)
    if as_json:
        print_json([one.as_json() for one in found])
        return
    print_table(
        ["name", "rule", "zone", "task", "queue", "state", "next", "overlap", "waiting", "live"],
        [
            [
                one.name,
                one.expr,
                one.tz,
                one.task,
                one.queue,
                one.state,
                one.next_at,
                one.overlap,
                one.waiting,
                one.live,
            ]
            for one in found
        ],
    )


@schedules.command()
@click.argument("name")
@click.option(
    "--most",
    default=20,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many of its newest occurrences at most.",
)
@database_options
@json_option
def show(name: str, most: int, dsn: str | None, schema: str, as_json: bool) -> None:
    """Show a schedule, its newest occurrences and everything that was done to it."""
    with _scheduler(dsn, schema) as app:
        told = app.show_schedule(name, most=most)
    if as_json:
        print_json({**told.schedule.as_json(), "occurrences": told.occurrences, "acts": told.acts})
        return
    one = told.schedule
    click.echo(f"schedule {one.name}: {one.expr} in {one.tz}, task {one.task}, {one.state}, revision {one.revision}")
    for title, value in (
        ("next", one.next_at),
        ("overlap", one.overlap),
        ("catch-up", one.catch_up),
        ("args", one.args),
        ("put there by", f"release {one.release}" if one.release else "a person"),
        ("zone data", one.zone_version),
        ("begins", one.begins_at),
        ("made up to", one.materialised_until),
    ):
        click.echo(f"  {title}: {value if value is not None else '-'}")
    click.echo()
    print_table(
        ["local time", "due", "state", "job", "its state", "why"],
        [
            [row[key] for key in ("nominal", "due_at", "state", "job_id", "job_status", "reason")]
            for row in told.occurrences
        ],
    )
    click.echo()
    print_table(
        ["at", "what", "who", "why"], [[act[key] for key in ("at", "kind", "actor", "reason")] for act in told.acts]
    )


@schedules.command("next")
@click.argument("name", required=False)
@click.argument("number", type=int, required=False)
@click.option("-n", "--count", default=10, show_default=True, help="How many; the same as a number after the name.")
@database_options
@json_option
def next_(name: str | None, number: int | None, count: int, dsn: str | None, schema: str, as_json: bool) -> None:
    """Tell when a schedule is due next: NAME, or NAME and how many; without a name, all that are not paused."""
    if name is not None and name.isdecimal() and number is None:
        number, name = int(name), None
    count = count if number is None else number
    with _scheduler(dsn, schema) as app:
        names = [name] if name else [one.name for one in app.list_schedules() if one.state == "active"]
        found = [(one, at) for one in names for at in app.next_occurrences(one, count)]
    found = sorted(found, key=lambda pair: pair[1].due_at)[:count]
    if as_json:
        print_json([_plain(*pair) for pair in found])
        return
    print_table(
        ["schedule", "due", "local time", "second of two", "merged"],
        [
            [one, at.due_at.astimezone(UTC), at.nominal, "yes" if at.fold else "", at.merged if at.merged > 1 else ""]
            for one, at in found
        ],
    )


@schedules.command()
@click.argument("name")
@_because
@actor_option
@database_options
@json_option
def pause(name: str, reason: str, actor: str, dsn: str | None, schema: str, as_json: bool) -> None:
    """Pause a schedule: nothing of it is due until it is resumed. Jobs that are due stay."""
    with _scheduler(dsn, schema) as app:
        changed = app.pause_schedule(name, reason=reason, actor=actor)
    _said(as_json, name, "paused", changed)


@schedules.command()
@click.argument("name")
@_because
@actor_option
@database_options
@json_option
def resume(name: str, reason: str, actor: str, dsn: str | None, schema: str, as_json: bool) -> None:
    """Let a paused schedule go on from now. What was due meanwhile does not run: see backfill."""
    with _scheduler(dsn, schema) as app:
        changed = app.resume_schedule(name, reason=reason, actor=actor)
    _said(as_json, name, "active", changed)


@schedules.command()
@click.argument("name")
@reason_option
@actor_option
@database_options
@json_option
def delete(name: str, reason: str, actor: str, dsn: str | None, schema: str, as_json: bool) -> None:
    """Delete a schedule. Jobs that are due stay; a new release that declares the name brings it back."""
    with _scheduler(dsn, schema) as app:
        app.delete_schedule(name, reason=reason, actor=actor)
    _said(as_json, name, "deleted", True)


@schedules.command()
@click.argument("name")
@click.argument("start", type=_Moment())
@click.argument("end", type=_Moment())
@click.option("--force", is_flag=True, help="Also before what the ledger is sure to know: that may run again.")
@click.option("--dry-run", is_flag=True, help="Only say what would be made.")
@_because
@actor_option
@database_options
@json_option
def backfill(
    name: str,
    start: datetime,
    end: datetime,
    force: bool,
    dry_run: bool,
    reason: str,
    actor: str,
    dsn: str | None,
    schema: str,
    as_json: bool,
) -> None:
    """Make the occurrences of the past after START and up to END that the ledger does not have.

    START and END are times with a zone or offset, such as 2026-11-01T00:00Z.
    """
    with _scheduler(dsn, schema) as app:
        try:
            found = app.backfill_schedule(name, start, end, force=force, dry_run=dry_run, reason=reason, actor=actor)
        except LedgerHorizonError as exc:
            raise click.ClickException(f"{exc} (--force)") from exc
    if as_json:
        print_json([{**_plain(name, one.occurrence), "state": one.state} for one in found])
        return
    print_table(["local time", "due", "state"], [[o.nominal, o.due_at, state] for o, state in found])
    made = sum(one.state != "present" for one in found)
    click.echo(f"{'would make' if dry_run else 'made'} {made} of {len(found)} occurrences")


@schedules.command()
@click.argument("path", metavar="MODULE:APP")
@click.option("--last", is_flag=True, help="This is the last deploy, also if an older release was seen before it.")
@json_option
def sync(path: str, last: bool, as_json: bool) -> None:
    """Store the schedules that MODULE:APP declares, as its workers do when they start. Exit status 1 if one was not."""
    app = load_app(path)
    answers = app.sync_schedules(last=last)
    app.close()
    if as_json:
        print_json(answers)
    else:
        print_table(["schedule", ""], [[name, answer] for name, answer in answers.items()])
    if not set(answers.values()) <= {"added", "changed", "unchanged"}:
        raise SystemExit(1)


@contextmanager
def _scheduler(dsn: str | None, schema: str) -> Iterator[Scheduler]:
    app = Scheduler(dsn, schema=schema)
    try:
        yield app
    except ScheduleError as exc:  # no call here brings a rule or a zone: it is the stored one, or this machine's data
        raise click.ClickException(str(exc)) from exc
    finally:
        app.close()


def _plain(schedule: str, occurrence: Occurrence) -> dict[str, Any]:
    return {"schedule": schedule, **asdict(occurrence)}


def _said(as_json: bool, name: str, state: str, changed: bool) -> None:
    if as_json:
        print_json({"name": name, "state": state, "changed": changed})
    else:
        click.echo(f"schedule {name}: {state}" + ("" if changed else " already"))
