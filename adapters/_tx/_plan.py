"""Plans: SQL work as a generator that decides everything and executes nothing."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

Rows: TypeAlias = list[tuple[Any, ...]]
"""What a statement answered: plain tuples, empty for a statement without a result set."""


@dataclass(slots=True)
class Statement:
    """SQL text with named parameters written ``:name``, or a construct of SQLAlchemy Core; and their values.

    A construct is kept by who sends it again: its text is made once for as long as it lives. With ``params=None`` the
    text goes to the driver as it is, without parameters. Never changed; not frozen, which costs three times as much.
    """

    sql: Any
    params: Any = field(default_factory=dict)


@dataclass(slots=True)
class BeforeCommit(Statement):
    """A text to be executed in the transaction just before it commits, once (SQLAlchemy only)."""


Plan: TypeAlias = Generator[Statement, Rows, T]
"""Yields statements and is sent their rows; an error of a statement is thrown in at its yield; returns its result."""

_PARAMETER = re.compile(r"(?<![:\w\\]):(\w+)(?!:)")


@lru_cache(maxsize=512)
def to_pyformat(sql: str) -> str:
    """Turn ``:name`` into psycopg's ``%(name)s``; a cast ``::type`` is left alone, as by SQLAlchemy's ``text()``."""
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


def encoded(text: str) -> str | bytes:
    """Give psycopg a text that it need not encode, and read through to know it again, each time.

    ASCII is the same in every encoding that a client of PostgreSQL can have.
    """
    return text.encode() if text.isascii() else text
