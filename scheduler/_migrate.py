"""Migrations: numbered SQL files, each applied once, under a lock, in one transaction."""

from __future__ import annotations

import re
import secrets

from scheduler._connect import Connection, translated
from scheduler._issuer import clock_floor
from scheduler._sql import Statements
from scheduler.errors import DatabaseError, NotMigratedError

_ISSUER = re.compile(r"[a-z0-9._-]{1,54}", re.ASCII)


OLDEST_SERVER = 130_000
"""The oldest PostgreSQL that has what the tables and statements use."""

_BEGINNING = (
    ("to_regnamespace({name_literal})", "create schema {schema}"),
    (
        "to_regclass({migration_literal})",
        "create table {schema}.migration (number integer primary key, name text not null, "
        "applied_at timestamptz not null default clock_timestamp())",
    ),
)
"""How to find what migrations need themselves, and how to make it."""


def migrate(connection: Connection, statements: Statements, issuer: str | None = None) -> list[str]:
    """Create or update the scheduler's schema; return the names of the migrations that were applied.

    ``issuer`` names the issuer at install (default: the schema's name). A random suffix is added, so that the tokens
    of two installs, say of staging and production, are never compared. Safe to run from many processes at once: they
    take turns. What is there is not asked for again, so that who may not create a schema can fill one, and a role with
    nothing but its grants finds that there is nothing to do.
    """
    name = issuer or statements.schema.replace("_", "-").strip("-")
    if not _ISSUER.fullmatch(name):
        raise ValueError(f"an issuer's name is 1 to 54 of a-z 0-9 . _ -, not {name!r}")
    if connection.info.server_version < OLDEST_SERVER:
        have, least = (version // 10_000 for version in (connection.info.server_version, OLDEST_SERVER))
        raise DatabaseError(f"migrate: this server is PostgreSQL {have}; the scheduler needs {least} or newer")
    applied = []
    with translated("migrate"), connection.transaction():
        connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 7))", (f"fencing:{statements.schema}",))
        for there, create in _BEGINNING:
            if connection.execute(statements.fill(f"select {there} is null")).fetchone() == (True,):
                connection.execute(statements.fill(create))
        done = {row[0] for row in connection.execute(statements.fill("select number from {schema}.migration"))}
        for number, title, text in statements.migrations:
            if number in done:
                continue
            connection.execute(text, prepare=False)
            connection.execute(
                statements.fill("insert into {schema}.migration (number, name) values (%s, %s)"), (number, title)
            )
            applied.append(f"{number:04d}_{title}")
        _install_issuer(connection, statements, f"{name}-{secrets.token_hex(4)}")
    return applied


def _install_issuer(connection: Connection, statements: Statements, name: str) -> None:
    row = connection.execute(
        statements.fill(
            "select (extract(epoch from {schema}.clock() - timestamptz '2025-01-01 00:00:00+00') * 1000)::bigint "
            "where not exists (select from {schema}.issuer)"
        )
    ).fetchone()
    if row is None:
        return
    floor = max(clock_floor(row[0], 0), 1)
    connection.execute(
        statements.fill(
            "insert into {schema}.issuer (name, lineage, identity, floor, changed_at) "
            "select %s, gen_random_uuid()::text, {schema}.identity(), "
            "setval({token_literal}, %s, false), {schema}.clock()"
        ),
        (name, floor),
    )


def check_migrated(connection: Connection, statements: Statements) -> list[str]:
    """Raise :class:`NotMigratedError` unless every migration that this code knows was applied; return those that it
    does not know, of newer code."""
    with translated(f"look for the schema {statements.schema!r}"):
        rows = connection.execute(statements.fill("select number, name from {schema}.migration order by number"))
        applied: dict[int, str] = dict(rows.fetchall())
    known = {number for number, _, _ in statements.migrations}
    missing = [f"{number:04d}" for number in sorted(known - applied.keys())]
    if missing:
        raise NotMigratedError(
            f"schema {statements.schema!r} lacks migrations {', '.join(missing)}; run `fencing migrate`"
        )
    return [f"{number:04d}_{name}" for number, name in applied.items() if number not in known]
