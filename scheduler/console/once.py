"""``fencing once``: the records of effects that were applied under a key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any, TypeVar

import click
from sqlalchemy.exc import SQLAlchemyError

from adapters.sql import AppliedKey, PurgedKeys, purge_applied, read_applied
from scheduler.console._engines import engine_of
from scheduler.console._options import act_options, json_option, print_json, read_duration

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def _target(command: F) -> F:
    target = click.option(
        "--target", required=True, metavar="URL|MODULE:ENGINE", help="The database that was written to."
    )
    schema = click.option("--schema", help="The schema of the guard's tables there (default: the connection's own).")
    return target(schema(command))


def _ask(target: str, question: Callable[[Any], T]) -> T:
    engine = engine_of(target)
    try:
        return question(engine)
    except SQLAlchemyError as exc:
        where = engine.url.render_as_string()
        raise click.ClickException(f"{where}: {str(getattr(exc, 'orig', None) or exc).strip()}") from exc
    finally:
        engine.dispose()


@click.group()
def once() -> None:
    """Look at the records of effects that were applied under a once= key, and purge old ones."""


@once.command()
@click.argument("key")
@_target
@json_option
def show(key: str, target: str, schema: str | None, as_json: bool) -> None:
    """Say whether the effect of a key was applied: when, by whom, with what result."""
    found: AppliedKey | None = _ask(target, lambda engine: read_applied(engine, key, schema=schema))
    if found is None:
        raise click.ClickException(f"no record of the key {key!r}: it was not applied, or its record was purged")
    facts = {**asdict(found), "token": str(found.token)}
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        click.echo(f"{name}: {value}")


@once.command()
@click.option(
    "--older-than",
    type=read_duration,
    metavar="DURATION",
    required=True,
    help="Of the work: 30d, 12w. No replay is older.",
)
@click.option(
    "--batch", type=click.IntRange(1), default=1000, show_default=True, help="Records a transaction looks at."
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@act_options
@_target
@json_option
def purge(
    older_than: timedelta,
    batch: int,
    dry_run: bool,
    reason: str,
    actor: str,
    target: str,
    schema: str | None,
    as_json: bool,
) -> None:
    """Remove the records of work that began longer ago; a key without a record is then refused to such work."""
    done: PurgedKeys = _ask(
        target,
        lambda engine: purge_applied(
            engine, older_than, dry_run=dry_run, reason=reason, actor=actor, batch=batch, schema=schema
        ),
    )
    if as_json:
        print_json({**asdict(done), "dry_run": dry_run})
        return
    would = "would be " if dry_run else ""
    click.echo(f"{done.removed} records {would}removed, {done.left} {would}left")
    click.echo(f"{'would be ' if dry_run else ''}refused without a record: work from before {done.horizon}")
