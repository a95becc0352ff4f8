"""``fencing issuer``: look at the issuer of tokens, and move it on by hand."""

from __future__ import annotations

import json

import click

from scheduler._connect import Database, Link
from scheduler._issuer import BUMP, LIMIT, SHIFT, change, lock_state
from scheduler._sql import Statements
from scheduler.console._options import act_options, database_options, json_option, print_json
from scheduler.errors import IssuerError


@click.group()
def issuer() -> None:
    """Look at the issuer of tokens, and move it on by hand."""


@issuer.command()
@database_options
@json_option
def show(dsn: str | None, schema: str, as_json: bool) -> None:
    """Show the issuer's name, lineage and floor, and whether the server is still the one that it issued on."""
    statements = Statements(schema)
    with Link(Database(dsn), "console").use("show the issuer") as connection:
        with connection.transaction(force_rollback=True):
            state, _ = lock_state(connection, statements)
    facts = {
        "name": state.name,
        "lineage": state.lineage,
        "floor": state.floor,
        "identity": state.identity,
        "live_identity": state.live_identity,
        "current": state.current,
    }
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        click.echo(f"{name}: {value}")


@issuer.command()
@act_options
@database_options
@json_option
def bump(reason: str, actor: str, dsn: str | None, schema: str, as_json: bool) -> None:
    """Begin a new lineage above every number that can have been issued.

    Your duty after what nothing inside can see: a restore of data alone, a snapshot of a whole machine. Running jobs
    keep their tokens and settle. The floor is 2**31 above the last number, or the clock's, whichever is higher.
    """
    statements = Statements(schema)
    with Link(Database(dsn), "console").use("bump the issuer") as connection, connection.transaction():
        state, clock_ms = lock_state(connection, statements)
        seed = max(clock_ms, 0) << SHIFT
        if seed >= LIMIT:
            raise IssuerError("the database's clock is beyond the year 2164, or wrong: set it first")
        floor = change(connection, statements, seed, above=BUMP)
        connection.execute(
            statements["act"],
            {
                "actor": actor,
                "kind": "issuer bumped",
                "subject": "issuer",
                "reason": reason,
                "before": json.dumps({"lineage": state.lineage, "floor": state.floor}),
                "after": json.dumps({"floor": floor}),
            },
        )
    if as_json:
        print_json({"floor": floor})
    else:
        click.echo(f"new lineage of {state.name}; tokens start at {floor}")
