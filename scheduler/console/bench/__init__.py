"""``fencing bench``: the project against hand-written baselines, side by side in one run."""

from __future__ import annotations

import sys

import click

from scheduler.console._options import dsn_option, json_option, print_json, print_table
from scheduler.console.bench._frame import Bench, Result, measure
from scheduler.console.bench.guards import BENCHES as GUARDS
from scheduler.console.bench.scheduler import BENCHES as SCHEDULER

__all__ = ["bench"]

GROUPS: dict[str, list[Bench]] = {"scheduler": SCHEDULER, "guards": GUARDS}


@click.command()
@click.argument("groups", nargs=-1, type=click.Choice(list(GROUPS)))
@click.option("--only", multiple=True, metavar="NAME", help="Run these benchmarks only.")
@click.option("--rounds", default=5, show_default=True, help="Rounds; in each, ours and the baseline take turns.")
@click.option("--scale", default=1.0, show_default=True, help="A part of the full amount of work, for a quick look.")
@dsn_option
@json_option
def bench(
    groups: tuple[str, ...], only: tuple[str, ...], rounds: int, scale: float, dsn: str | None, as_json: bool
) -> None:
    """Measure against baselines on an embedded server, or the one given with --dsn (in schemas of its own).

    Prints the median and the spread of each. Exit status 1 if a goal was missed.
    """
    chosen = [one for group in groups or GROUPS for one in GROUPS[group] if not only or one.name in only]
    if not chosen:
        known = ", ".join(one.name for group in GROUPS.values() for one in group)
        raise click.UsageError(f"no benchmark is called {' or '.join(only)} (known: {known})")
    if rounds < 1 or scale <= 0:
        raise click.UsageError("--rounds is at least 1 and --scale above 0")
    results = measure(chosen, rounds, scale, dsn, lambda line: click.echo(line, err=True))
    if as_json:
        print_json({result.bench.name: result.as_json() for result in results})
    else:
        _print(results)
    sys.exit(0 if all(result.ok for result in results) else 1)


def _print(results: list[Result]) -> None:
    print_table(
        ["name", "unit", "ours", "spread", "baseline", "spread", "ratio", "goal", ""],
        [
            [
                result.bench.name,
                result.bench.unit,
                f"{result.ours:,.0f}",
                f"{min(result.all_ours):,.0f}-{max(result.all_ours):,.0f}",
                f"{result.base:,.0f}",
                f"{min(result.all_base):,.0f}-{max(result.all_base):,.0f}",
                f"{result.ratio:.2f}",
                f"{'≥' if result.bench.better == 'higher' else '≤'} {result.bench.goal:.2f}",
                "ok" if result.ok else "MISSED",
            ]
            for result in results
        ],
    )
    for result in results:
        click.echo(f"{result.bench.name}: {result.bench.what}")
