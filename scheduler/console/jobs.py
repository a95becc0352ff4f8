"""``fencing jobs``: look at jobs, and end or replay one."""

from __future__ import annotations

from typing import Any

import click

from scheduler import Scheduler
from scheduler._acts import Ending
from scheduler._audit import list_jobs, show_job, story
from scheduler._connect import Database, Link
from scheduler._sql import Statements
from scheduler._states import STATES
from scheduler.console._options import (
    act_options,
    database_options,
    json_option,
    load_app_alone,
    print_json,
    print_table,
)


@click.group()
def jobs() -> None:
    """Look at jobs, and end or replay one."""


@jobs.command("list")
@database_options
@click.option("--status", type=click.Choice(STATES), help="Those in this state.")
@click.option("--task", help="Those of this task.")
@click.option("--queue", help="Those in this queue.")
@click.option("--key", help="Those enqueued under this key.")
@click.option("--before", type=int, metavar="ID", help="Go on with those older than this one.")
@click.option(
    "--most", default=50, show_default=True, type=click.IntRange(min=1), help="How many at most, newest first."
)
@json_option
def list_(
    dsn: str | None,
    schema: str,
    status: str | None,
    task: str | None,
    queue: str | None,
    key: str | None,
    before: int | None,
    most: int,
    as_json: bool,
) -> None:
    """List the newest jobs."""
    statements = Statements(schema)
    with Link(Database(dsn), "console").use("list jobs") as connection:
        found = list_jobs(
            connection, statements, status=status, task=task, queue=queue, key=key, before=before, most=most
        )
    if as_json:
        print_json(found)
        return
    print_table(
        ["id", "task", "queue", "status", "attempt", "due", "key", "token"],
        [
            [
                job["id"],
                job["task"],
                job["queue"],
                job["status"] + (f": {job['reason']}" if job["reason"] else ""),
                f"{job['attempt']}/{job['max_attempts']}",
                job["due_at"],
                job["key"],
                job["token"],
            ]
            for job in found
        ],
    )


@jobs.command()
@click.argument("job_id", type=int, metavar="ID")
@database_options
@json_option
def show(job_id: int, dsn: str | None, schema: str, as_json: bool) -> None:
    """Tell the whole story of a job, in order."""
    statements = Statements(schema)
    with Link(Database(dsn), "console").use("show a job") as connection:
        job = show_job(connection, statements, job_id)
    if job is None:
        raise click.ClickException(f"no job {job_id} in schema {schema!r}")
    if as_json:
        print_json(job)
        return
    _print_head(job)
    print_table(
        ["at", "what", "who", "token", "detail"],
        [
            [step.at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3], step.what, step.who, step.token, step.detail]
            for step in story(job)
        ],
    )
    if job["error"]:
        click.echo(f"\nlast error:\n{job['error'].rstrip()}")


@jobs.command()
@click.argument("job_id", type=int, metavar="ID")
@act_options
@click.option("--app", "path", metavar="MODULE:APP", help="Raise the job's fences from here, not from a worker.")
@database_options
@json_option
def cancel(job_id: int, reason: str, actor: str, path: str | None, dsn: str | None, schema: str, as_json: bool) -> None:
    """End a job as cancelled, whether it waits or runs.

    A running job is taken from its worker: its lease is lost, its settlement refused, and its declared fences are
    raised by --app or by any worker that knows the task, so that its writes end.
    """
    _end(job_id, "cancelled", reason, actor, path, dsn, schema, as_json)


@jobs.command()
@click.argument("job_id", type=int, metavar="ID")
@act_options
@click.option("--app", "path", metavar="MODULE:APP", help="Raise the job's fences from here, not from a worker.")
@database_options
@json_option
def bury(job_id: int, reason: str, actor: str, path: str | None, dsn: str | None, schema: str, as_json: bool) -> None:
    """End a job as dead, whether it waits or runs; otherwise as cancel. It can be replayed."""
    _end(job_id, "dead", reason, actor, path, dsn, schema, as_json)


def _end(
    job_id: int,
    state: Ending,
    reason: str,
    actor: str,
    path: str | None,
    dsn: str | None,
    schema: str,
    as_json: bool,
) -> None:
    app = load_app_alone(path, "--app") if path else Scheduler(dsn, schema)
    ended = (app.cancel if state == "cancelled" else app.bury)(job_id, reason=reason, actor=actor)
    app.close()
    if as_json:
        print_json(ended._asdict())
        return
    click.echo(f"job {job_id} was {ended.before}, now {ended.state}")
    if not ended.fenced:
        click.echo("its fences are raised by the next worker that knows the task; until then its old holder can write")


@jobs.command()
@click.argument("job_id", type=int, metavar="ID")
@act_options
@database_options
@json_option
def replay(job_id: int, reason: str, actor: str, dsn: str | None, schema: str, as_json: bool) -> None:
    """Let a dead or cancelled job run again, now, with its key and from its first attempt on."""
    app = Scheduler(dsn, schema)
    app.replay(job_id, reason=reason, actor=actor)
    app.close()
    if as_json:
        print_json({"id": job_id, "state": "ready"})
    else:
        click.echo(f"job {job_id} is ready again")


def _print_head(job: dict[str, Any]) -> None:
    click.echo(
        f"job {job['id']}: {job['task']} in queue {job['queue']}, {job['status']}"
        + (f" ({job['reason']})" if job["reason"] else "")
    )
    for name in ("key", "args", "due_at", "schedule", "nominal", "result"):
        if job[name] is not None:
            click.echo(f"  {name}: {job[name]}")
    if job["token"]:
        click.echo(f"  token: {job['issuer']}/{job['lineage']}/{job['token']}")
    click.echo()
