"""One change of one row that carries its mark, and the mark as its statements answer it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters._tx import Rows
from adapters.sql._options import Write
from fencing._law import Mark
from fencing._token import Token
from fencing.errors import ContentionError


class Row:
    """One change of one row."""

    __slots__ = ("holder", "key", "makes", "resource", "token", "values")

    def __init__(
        self,
        resource: str,
        key: Mapping[str, Any],
        token: Token,
        holder: str,
        values: Mapping[str, Any],
        makes: bool = False,
    ) -> None:
        self.resource = resource
        self.key = key
        self.token = token
        self.holder = holder
        self.values = values
        self.makes = makes

    def name(self, exc: ContentionError) -> None:
        """Give a contention its facts."""
        exc.resource, exc.presented = self.resource, self.token

    def write(self) -> Write:
        """What it is to ``fencing_mark``."""
        return Write((self.resource,), self.token, self.holder)

    def without_values(self) -> Row:
        """The same row, whose mark alone is raised."""
        return Row(self.resource, self.key, self.token, self.holder, {})

    def making(self) -> Row:
        """The same row, whose mark is made if it is missing, whatever ``on_missing`` says."""
        return Row(self.resource, self.key, self.token, self.holder, self.values, makes=True)

    def params(self) -> dict[str, Any]:
        """What its statements are sent with."""
        return params_of(self.key, self.values, self.token, self.holder)


def params_of(key: Mapping[str, Any], values: Mapping[str, Any], token: Token, holder: str) -> dict[str, Any]:
    """The parameters of the statements on a row."""
    made: dict[str, Any] = {
        "fencing_issuer": token.issuer,
        "fencing_lineage": token.lineage,
        "fencing_value": token.value,
        "fencing_holder": holder,
    }
    for name, value in key.items():
        made[f"fencing_key_{name}"] = value
    for name, value in values.items():
        made[f"fencing_set_{name}"] = value
    return made


def mark_in(rows: Rows) -> Mark | None:
    """The mark of the row, None if there is no row or none in it."""
    if not rows or rows[0][2] is None:
        return None
    issuer, lineage, value, holder = rows[0]
    return Mark(Token(value, issuer, lineage), holder or "", None)
