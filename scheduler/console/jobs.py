"""``fencing jobs``: look at jobs."""

from __future__ import annotations

from typing import Any

import click

from scheduler._audit import list_jobs, show_job, story
from scheduler._connect import Database, Link
from scheduler._sql import Statements
from scheduler._states import STATES
from scheduler.console._options import database_options, json_option, print_json, print_table


@click.group()
def jobs() -> None:
    """Look at jobs."""


@jobs.command("list")
@database_options
@click.option("--status", type=click.Choice(STATES))
@click.option("--task")
@click.option("--queue")
@click.option("--most", default=50, show_default=True, help="How many at most, newest first.")
@json_option
def list_(
    dsn: str | None, schema: str, status: str | None, task: str | None, queue: str | None, most: int, as_json: bool
) -> None:
    """List the newest jobs."""
    statements = Statements(schema)
    with Link(Database(dsn), "console").use("list jobs") as connection:
        found = list_jobs(connection, statements, status=status, task=task, queue=queue, most=most)
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
