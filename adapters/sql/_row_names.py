"""The names of rows as resources: from a row's key, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import DateTime, Integer, Table, Uuid

from fencing._law import check_resources


class RowNames:
    """The names of one table's rows.

    ``columns``: those of the primary key. ``resource``: the name from the key, ``TABLE/KEY`` if None. ``parse``: the
    reverse of it.
    """

    def __init__(
        self,
        table: Table,
        columns: tuple[str, ...],
        resource: Callable[[Mapping[str, Any]], str] | None,
        parse: Callable[[str], Any] | None,
    ) -> None:
        self._table = table
        self._columns = columns
        self._name = resource
        self._parse = parse
        self._prefix = f"{table.fullname}/"
        self._spell = {name: spell for name in columns if (spell := _spelling(table.c[name].type)) is not None}

    def resource(self, key: Mapping[str, Any]) -> str:
        """Return the name of the row with this key."""
        if self._name is not None:
            return check_resources((self._name(key),))[0]
        if len(key) == 1:
            (part,) = key.values()
            if type(part) is int:
                return f"{self._prefix}{part}"
        return check_resources((self._prefix + "/".join(str(key[name]) for name in self._columns),))[0]

    def key(self, key: Any) -> Mapping[str, Any]:
        """Return the key by column, in one spelling of several. Raises ``ValueError`` for what cannot be one."""
        names = self._columns
        if type(key) is int and len(names) == 1:
            return {names[0]: key}
        if isinstance(key, Mapping):
            given = dict(key)
        else:
            parts = key if isinstance(key, tuple) else (key,)
            given = dict(zip(names, parts, strict=True)) if len(parts) == len(names) else {}
        if set(given) != set(names):
            raise ValueError(f"the key of {self._table.fullname} is {', '.join(names)}; it cannot be {key!r}")
        for name, spell in self._spell.items():
            try:
                given[name] = spell(given[name])
            except (TypeError, ValueError, AttributeError, OverflowError) as exc:
                raise ValueError(f"{self._table.fullname}.{name} cannot be {given[name]!r}: {exc}") from exc
        return given

    def key_of(self, name: str) -> Mapping[str, Any]:
        """Return the key of the row whose resource is ``name``. Raises ``ValueError`` for a name that is no row's."""
        if self._parse is not None:
            return self.key(self._parse(name))
        if self._name is not None:
            raise ValueError(
                f"the rows of {self._table.fullname} have names of your own: RowGuard(..., key=) says how a row's key "
                f"is read from one such as {name!r}"
            )
        key = self._read(name.removeprefix(self._prefix)) if name.startswith(self._prefix) else None
        if key is None or self.resource(key) != name:
            raise ValueError(
                f"{name!r} names no row of {self._table.fullname}: its resources are "
                f"{self._prefix}{'/'.join(self._columns).upper()}"
            )
        return key

    def is_one(self, name: str) -> bool:
        """Whether the name can be that of a row."""
        try:
            return self.resource(self.key_of(name)) == name
        except ValueError:
            return False

    def _read(self, text: str) -> Mapping[str, Any] | None:
        parts = [text] if len(self._columns) == 1 else text.split("/")
        if len(parts) != len(self._columns):
            return None
        key: dict[str, Any] = {}
        for column, part in zip(self._columns, parts, strict=True):
            try:
                kind: Any = self._table.c[column].type.python_type
            except NotImplementedError:
                kind = object
            if kind not in (int, str, UUID):
                raise TypeError(
                    f"{self._table.fullname}.{column} is no integer, text or UUID: RowGuard(..., key=) says how a "
                    "row's key is read from the name of its resource"
                )
            try:
                key[column] = kind(part)
            except ValueError:
                return None
        return key


def _spelling(kind: Any) -> Callable[[Any], Any] | None:
    """What makes one value of all that a database takes for the same: two names of one row would be two marks."""
    if isinstance(kind, Integer):
        return _integer
    if isinstance(kind, Uuid):
        return _uuid if kind.as_uuid else lambda value: str(_uuid(value))
    if isinstance(kind, DateTime):
        return _moment
    return None


def _integer(value: Any) -> int:
    number = int(value)
    if not isinstance(value, str | bytes) and number != value:
        raise ValueError("it is no whole number")
    return number


def _uuid(value: Any) -> UUID:
    return value if isinstance(value, UUID) else UUID(value)


def _moment(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) and value.utcoffset() is not None else value
