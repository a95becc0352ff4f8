"""``fencing bench``: the project against hand-written baselines, side by side in one run."""

from __future__ import annotations

import importlib
import sys

import click

from scheduler.console._options import dsn_option, json_option, print_json, print_table
from scheduler.console.bench._frame import NO_GOAL, Bench, Result, Servers, measure

__all__ = ["bench"]

GROUPS = ("scheduler", "guards", "outbox")
"""Each is a module here with a list ``BENCHES``, imported when it is asked for: it may need an extra."""

FAULTS = "outbox-faults"
"""The name of what measures no speed: copies of a message under faults."""


@click.command()
@click.argument("words", nargs=-1, metavar=f"[{'|'.join((*GROUPS, FAULTS))}]...")
@click.option("--only", multiple=True, metavar="NAME ...", help="Run these benchmarks only.")
@click.option("--rounds", default=5, show_default=True, help="Rounds; in each, ours and the baseline take turns.")
@click.option("--scale", default=1.0, show_default=True, help="A part of the full amount of work, for a quick look.")
@dsn_option
@click.option("--redis", metavar="URL", help="A Redis or Valkey server to use instead of an embedded one.")
@click.option("--mariadb", metavar="URL", help="A MariaDB or MySQL too, as a SQLAlchemy URL (mysql+pymysql://…).")
@json_option
def bench(
    words: tuple[str, ...],
    only: tuple[str, ...],
    rounds: int,
    scale: float,
    dsn: str | None,
    redis: str | None,
    mariadb: str | None,
    as_json: bool,
) -> None:
    """Measure against baselines on embedded servers, or on those given (in schemas and under keys of its own).

    Prints the median and the spread of each. Exit status 1 if a goal was missed. outbox-faults, by itself, stops and
    kills relays at each point of a hand-over, and counts the copies of the message; 1 if a promise was broken.
    """
    groups = [word for word in words if word in (*GROUPS, FAULTS)]
    # After the first name of --only the others are words like those.
    others = [word for word in words if word not in groups]
    if others and not only:
        raise click.UsageError(
            f"{others[0]!r} is not one of {', '.join((*GROUPS, FAULTS))}; a benchmark goes after --only"
        )
    only = (*only, *others)
    if FAULTS in groups:
        if len(groups) > 1 or only:
            raise click.UsageError(f"{FAULTS} is run by itself")
        importlib.import_module(f"{__name__}._faults").run(dsn, as_json)
        return
    known = {one.name: one for group in groups or GROUPS for one in _benches(group)}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise click.UsageError(f"no benchmark here is called {' or '.join(unknown)} (known: {', '.join(known)})")
    if rounds < 1 or scale <= 0:
        raise click.UsageError("--rounds is at least 1 and --scale above 0")
    chosen = [one for name, one in known.items() if not only or name in only]
    with Servers(dsn, redis, mariadb) as servers:
        for one in chosen:
            if not servers.have(one):
                click.echo(f"{one.name} is left out: it needs --{one.needs}", err=True)
        chosen = [one for one in chosen if servers.have(one)]
        results = measure(chosen, rounds, scale, servers, lambda line: click.echo(line, err=True))
    if as_json:
        print_json({result.bench.name: result.as_json() for result in results})
    else:
        _print(results)
    sys.exit(0 if all(result.ok for result in results) else 1)


def _benches(group: str) -> list[Bench]:
    benches: list[Bench] = importlib.import_module(f"{__name__}.{group}").BENCHES
    return benches


def _print(results: list[Result]) -> None:
    print_table(
        ["name", "unit", "ours", "spread", "baseline", "spread", "ratio", "goal", ""],
        [
            [
                result.bench.name,
                result.bench.unit,
                f"{result.ours:,.4g}",
                f"{min(result.all_ours):,.4g}-{max(result.all_ours):,.4g}",
                f"{result.base:,.4g}",
                f"{min(result.all_base):,.4g}-{max(result.all_base):,.4g}",
                f"{result.ratio:.2f}",
                "none"
                if result.bench.goal == NO_GOAL
                else f"{'≥' if result.bench.better == 'higher' else '≤'} {result.bench.goal:.2f}",
                "ok" if result.ok else "MISSED",
            ]
            for result in results
        ],
    )
    for result in results:
        click.echo(f"{result.bench.name}: {result.bench.what}")
