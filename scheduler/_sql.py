"""The statements: one a file under ``sql/``, read once, with the schema's name filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from importlib.resources import files
from typing import Any, get_args

from psycopg import sql as composing

from scheduler._connect import Connection
from scheduler._overlap import Overlap
from scheduler._states import OUTCOMES, OWN_OUTCOMES, STATES

TURNS = 4
"""How many claims look at the jobs at a time. More of them meet: each passes over what the others are taking, and locks
what others took since its snapshot, so that these wait for it with their settlements."""

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,39}", re.ASCII)
_PLACE = re.compile(r"\{([a-z_]+)\}")


class Statements:
    """All statements for one schema.

    ``schema`` is a plain lower-case identifier of at most 40 characters (``ValueError`` otherwise).
    """

    def __init__(self, schema: str) -> None:
        if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
            raise ValueError(
                f"schema= takes a plain identifier (a-z, 0-9, _; at most 40 characters; not pg_…), not {schema!r}"
            )
        self.schema = schema
        self.channel = f"{schema}_due"
        self.revoked_channel = f"{schema}_revoked"
        self._parts = {
            "schema": f'"{schema}"',
            "schema_literal": _literal(schema),
            "token_literal": _literal(f'"{schema}".token'),
            "clock_literal": _literal(f'"{schema}".clock()'),
            "turn": _turn(schema),
            "name_literal": _literal(f'"{schema}"'),
            "migration_literal": _literal(f'"{schema}".migration'),
            "job_literal": _literal(f'"{schema}".job'),
            "release_literal": _literal(f'"{schema}".release'),
            "channel_literal": _literal(self.channel),
            "revoked_channel_literal": _literal(self.revoked_channel),
            "states": ", ".join(map(_literal, STATES)),
            "outcomes": ", ".join(map(_literal, OUTCOMES)),
            "own_outcomes": ", ".join(map(_literal, OWN_OUTCOMES)),
            "overlaps": ", ".join(map(_literal, get_args(Overlap))),
        }
        self._filled: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        """Return the statement of ``sql/NAME.sql``."""
        if name not in self._filled:
            self._filled[name] = self.fill(read("sql", f"{name}.sql"))
        return self._filled[name]

    def fill(self, text: str, more: Mapping[str, str] | None = None) -> str:
        """Put the schema and other parts in the places written ``{name}``. An unknown place is a ``KeyError``."""
        parts = {**self._parts, **(more or {})}
        return _PLACE.sub(lambda place: parts[place[1]], text)

    def claim(self, *, guarded: bool) -> str:
        """Return the claim: with exclusive jobs and limited queues (``guarded``), or without."""
        arm = self.fill(read("sql", "claim_arm.sql"))
        seen = ", (select sum(most) from quota)::bigint as seen"
        parts = {"guarded": "", "arms": arm, "claimed": "", "says": seen}
        if guarded:
            parts = {
                "guarded": self.fill(read("sql", "claim_guarded.sql")),
                "arms": f"{arm}\nunion all\nselect id, priority, due_at from guarded",
                "claimed": ", claimed as (",
                "says": read("sql", "claim_guarded_says.sql"),
            }
        return self.fill(read("sql", "claim.sql"), parts)

    @cached_property
    def migrations(self) -> list[tuple[int, str, str]]:
        """(number, name, text) of each migration, in order."""
        found = []
        for entry in files("scheduler").joinpath("migrations").iterdir():
            if entry.name.endswith(".sql"):
                number, _, name = entry.name.removesuffix(".sql").partition("_")
                found.append((int(number), name, self.fill(entry.read_text("utf-8"))))
        return sorted(found)


class Run:
    """A connection with the statements of one schema, for what asks several of them in turn."""

    def __init__(self, connection: Connection, statements: Statements) -> None:
        self.connection = connection
        self.statements = statements

    def __call__(self, statement: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run ``sql/NAME.sql``; return its rows."""
        cursor = self.connection.execute(self.statements[statement], parameters)
        return cursor.fetchall() if cursor.description else []


def read(*path: str) -> str:
    """Return the text of a file of this package, without the comments that are for its reader."""
    text = files("scheduler").joinpath(*path).read_text("utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("--"))


def _turn(schema: str) -> str:
    """Whether this transaction has one of the few turns to claim: it takes the first that is free."""
    taken = (f"pg_try_advisory_xact_lock(hashtext({_literal(f'{schema} claim')}), {number})" for number in range(TURNS))
    return f"({' or '.join(taken)})"


def _literal(text: str) -> str:
    return str(composing.Literal(text).as_string(None))
