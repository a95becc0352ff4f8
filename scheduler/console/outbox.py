"""``fencing outbox``: what a person does about mail, and the relay as a service."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from adapters.email import Act, Details, Entry, Outbox, Purged, Resolution
from adapters.email._states import FINISHED, STATES, State
from scheduler.console._engines import outbox_engine_of, transaction
from scheduler.console._options import (
    act_options,
    actor_option,
    dsn_option,
    json_option,
    print_json,
    print_table,
    read_duration,
)
from scheduler.console._outbox_relay import relay

F = TypeVar("F", bound=Callable[..., Any])


def _target(command: F) -> F:
    target = click.option(
        "--target",
        envvar="FENCING_OUTBOX",
        metavar="URL|MODULE:ENGINE",
        help="The database with the outbox's tables, as a SQLAlchemy URL (default: $FENCING_OUTBOX, then --dsn).",
    )
    return target(dsn_option(command))


def _ask(target: str | None, dsn: str | None, question: Callable[[Outbox, Any], Any]) -> Any:
    place = target or dsn
    if not place:
        raise click.UsageError("no database: pass --target or --dsn, or set FENCING_OUTBOX or FENCING_DSN")
    with transaction(outbox_engine_of(place)) as tx:
        return question(Outbox(), tx)


@click.group()
def outbox() -> None:
    """Look at mail, act on it, relay it. Every act is audited, with who and why."""


@outbox.command("list")
@_target
@click.option("--state", type=click.Choice(STATES), help="Those in this state.")
@click.option("--tenant", help="Those of this tenant.")
@click.option("--order-key", help="Those that wait for each other under this key.")
@click.option("--before", type=int, metavar="ID", help="Go on with those older than this one.")
@click.option("--most", type=click.IntRange(1), default=50, show_default=True, help="How many at most, newest first.")
@json_option
def list_(
    target: str | None,
    dsn: str | None,
    state: State | None,
    tenant: str | None,
    order_key: str | None,
    before: int | None,
    most: int,
    as_json: bool,
) -> None:
    """List the newest messages."""
    found: list[Entry] = _ask(
        target,
        dsn,
        lambda outbox, tx: outbox.list(tx, state=state, tenant=tenant, order_key=order_key, before=before, limit=most),
    )
    if as_json:
        print_json([asdict(entry) for entry in found])
        return
    print_table(
        ["id", "key", "state", "policy", "attempts", "due", "changed", "last error"],
        [
            [
                entry.id,
                entry.key,
                entry.state + (" (in doubt)" if entry.in_doubt and entry.state != "uncertain" else ""),
                entry.policy,
                entry.attempts,
                entry.due_at,
                entry.updated_at,
                _short(entry.last_error),
            ]
            for entry in found
        ],
    )


@outbox.command()
@click.argument("key")
@_target
@click.option("--message", is_flag=True, help="Print the message itself, byte for byte, and nothing else.")
@json_option
def show(key: str, target: str | None, dsn: str | None, message: bool, as_json: bool) -> None:
    """Tell the whole story of a message: envelope, recipients with the server's words, audit."""
    if message:
        content: bytes | None = _ask(target, dsn, lambda outbox, tx: outbox.message(tx, key))
        if content is None:
            raise click.ClickException(f"no message under the key {key!r}, or its bytes were purged")
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    found: Details | None = _ask(target, dsn, lambda outbox, tx: outbox.show(tx, key))
    if found is None:
        raise click.ClickException(f"no message under the key {key!r}")
    if as_json:
        print_json(asdict(found))
        return
    _print_details(found)


@outbox.command()
@click.argument("key")
@click.option("--sent", is_flag=True, help="You found out that it was sent.")
@click.option("--not-sent", is_flag=True, help="You found out that it was not: send it now.")
@click.option("--failed", is_flag=True, help="It was not, and is given up.")
@act_options
@_target
@json_option
def resolve(
    key: str,
    sent: bool,
    not_sent: bool,
    failed: bool,
    reason: str,
    actor: str,
    target: str | None,
    dsn: str | None,
    as_json: bool,
) -> None:
    """End the doubt about an uncertain message."""
    if sent + not_sent + failed != 1:
        raise click.UsageError("say what you found out: one of --sent, --not-sent and --failed")
    resolution: Resolution = "sent" if sent else "not-sent" if not_sent else "failed"
    _act(
        as_json,
        target,
        dsn,
        [key],
        lambda outbox, tx, one: outbox.resolve(tx, one, resolution, actor=actor, reason=reason),
    )


@outbox.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@act_options
@_target
@json_option
def requeue(keys: tuple[str, ...], reason: str, actor: str, target: str | None, dsn: str | None, as_json: bool) -> None:
    """Have messages sent (again), all of them or none.

    One that may arrive twice, such as one that is being handed over at this moment, is requeued all the same; a
    warning says so.
    """
    _act(as_json, target, dsn, keys, lambda outbox, tx, one: outbox.requeue(tx, one, actor=actor, reason=reason))


@outbox.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@act_options
@_target
@json_option
def cancel(keys: tuple[str, ...], reason: str, actor: str, target: str | None, dsn: str | None, as_json: bool) -> None:
    """Stop messages that were not handed over yet, all of them or none."""
    _act(as_json, target, dsn, keys, lambda outbox, tx, one: outbox.cancel(tx, one, actor=actor, reason=reason))


@outbox.command()
@click.option(
    "--older-than", type=read_duration, metavar="DURATION", required=True, help="Of the end of a message: 12h, 30d, 4w."
)
@click.option(
    "--what",
    type=click.Choice(["bodies", "rows"]),
    default="bodies",
    show_default=True,
    help="bodies keeps the rows, so that a late put of the same key stays a no-op; rows frees the keys.",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(FINISHED),
    default=FINISHED,
    show_default=True,
    help="Those that ended so; may be given more than once.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@click.option("--reason", default="", help="Why; kept in the audit. Wanted unless it is a dry run.")
@actor_option
@_target
@json_option
def purge(
    older_than: timedelta,
    what: Any,
    states: tuple[State, ...],
    dry_run: bool,
    reason: str,
    actor: str,
    target: str | None,
    dsn: str | None,
    as_json: bool,
) -> None:
    """Take the bytes of messages that ended long ago, or their rows. What waits or is uncertain is never purged."""
    if not dry_run and not reason:
        raise click.UsageError("say why: --reason TEXT, which the audit keeps. A --dry-run needs none")
    rows = size = 0
    start: int | None = 0
    options: dict[str, Any] = {"what": what, "states": states, "dry_run": dry_run, "actor": actor, "reason": reason}
    while start is not None:
        options["start"] = start
        part: Purged = _ask(target, dsn, lambda outbox, tx: outbox.purge(tx, older_than=older_than, **options))
        rows, size, start = rows + part.rows, size + part.bytes, part.more
    if as_json:
        print_json({"rows": rows, "bytes": size, "what": what, "dry_run": dry_run})
    else:
        click.echo(f"{'would purge' if dry_run else 'purged'} the {what} of {rows} messages, {size} bytes")


@outbox.command()
@_target
@json_option
def stats(target: str | None, dsn: str | None, as_json: bool) -> None:
    """Count what is not finished, and say how long it waits."""
    found = _ask(target, dsn, lambda outbox, tx: outbox.stats(tx))
    if as_json:
        print_json(asdict(found))
    else:
        for name, value in asdict(found).items():
            if name != "by_transport":
                click.echo(f"{name}: {value:.1f}" if isinstance(value, float) else f"{name}: {value}")
        for name, counts in found.by_transport.items():
            click.echo(f"{name}: " + ", ".join(f"{state} {count}" for state, count in counts.items()))


outbox.add_command(relay)


def _act(
    as_json: bool,
    target: str | None,
    dsn: str | None,
    keys: Sequence[str],
    act: Callable[[Outbox, Any, str], Act],
) -> None:
    done: list[Act] = _ask(target, dsn, lambda outbox, tx: [act(outbox, tx, key) for key in keys])
    if as_json:
        print_json([asdict(one) for one in done])
        return
    for one in done:
        click.echo(f"{one.key}: {one.before} -> {one.after}")
        if one.warning:
            click.echo(f"warning: {one.key}: {one.warning}", err=True)


def _print_details(found: Details) -> None:
    entry = asdict(found.entry)
    click.echo(f"message {entry.pop('id')}: {entry.pop('key')}, {entry.pop('state')}")
    for name, value in entry.items():
        if value is not None and value is not False:
            click.echo(f"  {name}: {value.isoformat(sep=' ') if isinstance(value, datetime) else value}")
    click.echo()
    print_table(
        ["recipient", "state", "the server's words"],
        [[one.address, one.state, one.reply] for one in found.recipients],
    )
    click.echo()
    print_table(
        ["at", "what", "outcome", "who", "token", "detail", "reason"],
        [
            [
                event.at and event.at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3],
                event.kind,
                event.outcome,
                event.actor,
                event.token and event.token.rpartition("/")[2],
                event.detail,
                event.reason,
            ]
            for event in found.events
        ],
    )


def _short(text: str | None) -> str | None:
    line = " ".join(text.split()) if text else None
    return line if line is None or len(line) <= 60 else f"{line[:59]}…"
