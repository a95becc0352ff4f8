"""``fencing marks``: what a downstream has seen, and what a person does about it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import click
from sqlalchemy.exc import SQLAlchemyError

from fencing import AsyncGuard, Explanation, Mark, Token, explain, list_marks
from fencing._registry import guard_for
from scheduler.console._options import act_options, json_option, print_json, print_table
from scheduler.console._targets import target_of

F = TypeVar("F", bound=Callable[..., Any])


def _target(command: F) -> F:
    target = click.option(
        "--target",
        required=True,
        metavar="URL|MODULE:ATTR",
        help="The downstream: a SQLAlchemy or Redis URL, or an engine, client or guard of yours.",
    )
    return target(command)


def _ask(target: str, question: Callable[[Any], Any]) -> Any:
    """Ask the guard of a target; an asynchronous one on a loop of its own."""

    async def awaited(guard: Any) -> Any:
        return await question(guard)

    try:
        guard = guard_for(target_of(target))
    except TypeError as exc:
        raise click.UsageError(f"--target: {exc}") from exc
    try:
        return asyncio.run(awaited(guard)) if isinstance(guard, AsyncGuard) else question(guard)
    except SQLAlchemyError as exc:
        raise click.ClickException(f"{guard.downstream}: {str(getattr(exc, 'orig', None) or exc).strip()}") from exc
    except TypeError as exc:
        raise click.ClickException(str(exc)) from exc


def _sql(guard: Any, what: str) -> Any:
    """The guard, if it is one of a SQL database."""
    from adapters.sql._guard import SqlTargetGuard

    if not isinstance(guard, SqlTargetGuard):
        raise click.UsageError(f"`fencing marks {what}` is for SQL databases, not for {guard.downstream}")
    return guard


@click.group()
def marks() -> None:
    """Look at the marks of a downstream; give a resource to another issuer, compact."""


@marks.command("list")
@click.argument("prefix", default="")
@_target
@click.option("--most", type=click.IntRange(1), default=50, show_default=True, help="How many at most, by name.")
@json_option
def list_(prefix: str, target: str, most: int, as_json: bool) -> None:
    """List the marks of the resources whose names begin with PREFIX."""
    found: list[tuple[str, Mark]] = _ask(target, lambda guard: list_marks(guard, prefix, limit=most))
    if as_json:
        print_json(
            [{"resource": name, "token": str(one.token), "holder": one.holder, "at": one.at} for name, one in found]
        )
        return
    print_table(["resource", "token", "holder", "at"], [[name, one.token, one.holder, one.at] for name, one in found])


@marks.command()
@click.argument("resource")
@_target
@json_option
def show(resource: str, target: str, as_json: bool) -> None:
    """Say who holds a resource, since when, who was refused, and what people did to it."""
    found: Explanation = _ask(target, lambda guard: explain(guard, resource))
    if not as_json:
        click.echo(str(found))
        return
    mark = found.mark
    print_json(
        {
            "downstream": found.downstream,
            "resource": found.resource,
            "mark": mark and {"token": str(mark.token), "holder": mark.holder, "at": mark.at},
            "refusals": [str(one) for one in found.refusals],
            "acts": list(found.acts),
        }
    )


@marks.command()
@click.argument("resource")
@click.argument("to", metavar="TOKEN|ISSUER")
@act_options
@_target
@json_option
def adopt(resource: str, to: str, reason: str, actor: str, target: str, as_json: bool) -> None:
    """Give a resource to another issuer: from its TOKEN (issuer/lineage/value) on, or by the ISSUER's name alone.

    End the holders under the old issuer first: nothing tells a late one from an early one across issuers.
    """
    whose = Token.parse(to) if "/" in to else to

    def act(guard: Any) -> Any:
        from adapters.sql import adopt as give
        from adapters.sql._guard import SqlTargetGuard

        if isinstance(guard, SqlTargetGuard):
            return give(guard, resource, whose, reason, actor=actor)
        if not hasattr(guard, "adopt"):
            raise TypeError(f"{guard.downstream} cannot give a resource away: its guard has no adopt")
        if not isinstance(whose, Token):
            raise TypeError(f"{guard.downstream} takes a TOKEN (issuer/lineage/value), not an issuer's name")
        return guard.adopt(resource, whose, reason=reason, actor=actor)

    given = _ask(target, act)
    if as_json:
        print_json({"resource": resource, "mark": None if given is None else str(given)})
    else:
        click.echo(f"{resource}: given to {given or whose}")


@marks.command()
@click.argument("below", metavar="TOKEN")
@click.option("--idle", type=float, default=3600.0, show_default=True, help="Spare marks raised in so many seconds.")
@act_options
@_target
@json_option
def compact(below: str, idle: float, reason: str, actor: str, target: str, as_json: bool) -> None:
    """Remove the marks of TOKEN's issuer below it, and refuse its older tokens from then on.

    TOKEN (issuer/lineage/value) is no newer than the oldest one with which somebody may still write.
    """

    def act(guard: Any) -> Any:
        from adapters.sql import compact as remove

        return remove(_sql(guard, "compact"), Token.parse(below), idle=idle, reason=reason, actor=actor)

    removed = _ask(target, act)
    if as_json:
        print_json({"removed": removed, "floor": below})
    else:
        click.echo(f"{removed} marks removed; without a mark, tokens below {below} are refused")
