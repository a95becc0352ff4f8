"""``fencing metrics``: how the queues stand and what the workers did lately."""

from __future__ import annotations

from dataclasses import asdict

import click

from scheduler import Measures, Scheduler
from scheduler.console._options import database_options, json_option, print_json, print_table


@click.command()
@database_options
@click.option(
    "--window",
    type=click.FloatRange(60, 3600),
    default=300,
    show_default=True,
    help="Over how many seconds; it begins at a full minute.",
)
@json_option
def metrics(dsn: str | None, schema: str, window: float, as_json: bool) -> None:
    """Show lag, outcomes, stuck jobs and workers. What a worker counted is here five seconds later."""
    app = Scheduler(dsn, schema=schema)
    measures = app.measure(window)
    app.close()
    if as_json:
        print_json(asdict(measures))
    else:
        _print(measures)


def _print(measures: Measures) -> None:
    click.echo(f"{measures.at:%Y-%m-%d %H:%M:%S%z}, the last {measures.window:.0f} s\n")
    if measures.queues:
        print_table(
            [
                "queue",
                "due",
                "oldest due",
                "acceptable",
                "lag p50",
                "p95",
                "p99",
                "running",
                "expired",
                "dead",
                "refused",
                "lost",
                "ended/s",
            ],
            [
                [
                    queue.queue,
                    queue.due,
                    _seconds(queue.oldest_due) + (" LATE" if queue.lag_exceeded else ""),
                    _seconds(queue.acceptable_lag),
                    _seconds(queue.lag.p50),
                    _seconds(queue.lag.p95),
                    _seconds(queue.lag.p99),
                    queue.running,
                    queue.expired,
                    queue.dead,
                    queue.refused,
                    queue.lost,
                    f"{queue.per_second:.1f}",
                ]
                for queue in measures.queues
            ],
        )
        click.echo()
    if measures.tasks:
        print_table(
            ["task", "queue", "run p50", "p95", "p99", "outcomes"],
            [
                [
                    task.task,
                    task.queue,
                    _seconds(task.run.p50),
                    _seconds(task.run.p95),
                    _seconds(task.run.p99),
                    ", ".join(f"{name} {count}" for name, count in sorted(task.outcomes.items())),
                ]
                for task in measures.tasks
            ],
        )
        click.echo()
    for job in measures.stuck:
        click.echo(f"stuck: job {job.id} ({job.task}) of {job.owner} has been running for {_seconds(job.running)}")
    for worker in measures.workers:
        click.echo(
            f"worker {worker.owner}: {', '.join(worker.queues)}; {worker.running} running; "
            f"seen {_seconds(worker.silent)} ago; the database's clock is {worker.clock_skew:+.3f} s from its own; "
            f"listened again {worker.listen_reconnects} times"
        )
    if not measures.workers:
        click.echo("no worker has been seen in the last hour")


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
