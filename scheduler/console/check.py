"""``fencing check``: can a recorded history be explained without a broken promise?"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from fencing.history import Checked, Event, Violation, check_history, draw_html, draw_text, read_events
from scheduler.console._options import json_option, print_json

_AROUND = 60
"""Events that are drawn at most: those that show a violation, and what happened to the same resource between them."""


@click.command()
@click.argument("histories", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--html",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Draw what happened (the first violation, or everything) as one page.",
)
@json_option
def check(histories: tuple[Path, ...], html: Path | None, as_json: bool) -> None:
    """Check histories (JSON lines, see fencing.history) of one machine: an accepted stale write, a token that fell,
    a lost or doubled effect. Several files are checked as one history.

    Exit status 1 if there is no explanation; the fewest events that show it are printed and drawn.
    """
    if html is not None and not html.parent.is_dir():
        raise click.BadParameter(f"{html.parent} is not a directory", param_hint="--html")
    events = [event for path in histories for event in _read(path)]
    if not events:  # a recording that never began must not pass for a good one
        raise ValueError(f"no event in {', '.join(map(str, histories))}: there is nothing to check")
    checked = check_history(events)
    if html is not None:
        html.write_text(_page(events, checked), "utf-8")
    if as_json:
        print_json(asdict(checked) | {"explained": checked.explained})
    else:
        click.echo(str(checked))
        if checked.explained:
            click.echo("explained: no promise is broken")
        else:
            click.echo(f"\n{checked.violations[0].rule}, the events that show it:\n")
            click.echo(draw_text(checked.violations[0].events))
    if not checked.explained:
        sys.exit(1)


def _read(path: Path) -> list[Event]:
    try:
        return read_events(path)
    except ValueError as exc:
        raise ValueError(f"{path}: {exc}") from exc


def _page(events: Sequence[Event], checked: Checked) -> str:
    if checked.explained:
        return draw_html(events, title="A history without a broken promise", facts=[("everything is explained", True)])
    first = checked.violations[0]
    return draw_html(
        _around(events, first),
        title=f"{first.rule}: {first.resource}",
        lead=f"{first.text}.",
        facts=[(str(violation), False) for violation in checked.violations],
    )


def _around(events: Iterable[Event], violation: Violation) -> list[Event]:
    """The violation's events, and those between them that touch the same resource or stop and wake the same actors."""
    first, last = min(e.began for e in violation.events), max(e.ended for e in violation.events)
    actors = {event.actor for event in violation.events}
    near = [
        event
        for event in events
        if first <= event.ended
        and event.began <= last
        and (
            (event.downstream, violation.resource) in {(violation.downstream, name) for name in event.resources}
            or (event.actor in actors and event.kind in ("claim", "pause", "wake", "kill", "expire", "rescue"))
        )
    ]
    return near if len(near) <= _AROUND else list(violation.events)
