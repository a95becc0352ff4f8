"""The mark in the guarded row itself: its columns, and the statements on one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Integer,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.sql import visitors
from sqlalchemy.sql.dml import Update
from sqlalchemy.sql.elements import ClauseElement

from adapters.sql._one import refuse_foreign
from adapters.sql._postgresql import limits
from adapters.sql._schema import FREE, ORIGIN

ISSUER, LINEAGE, VALUE, HOLDER = NAMES = ("fence_issuer", "fence_lineage", "fence_value", "fence_holder")


def row_mark_columns() -> list[Column[Any]]:
    """Return new columns ``fence_issuer``, ``fence_lineage``, ``fence_value`` and ``fence_holder`` for a ``Table``.

    All empty: the row has no mark yet. In a class of the ORM name each by ``mapped_column``, or pass the columns of a
    ``Table`` by ``__table__``.
    """
    return [
        Column(ISSUER, ORIGIN),
        Column(LINEAGE, ORIGIN),
        Column(VALUE, BigInteger),
        Column(HOLDER, FREE),
    ]


class RowStatements:
    """The statements on one table. Made once and kept, so that their texts are."""

    def __init__(self, table: Table) -> None:
        self.table = table
        keys = list(table.primary_key.columns)
        self.keys = tuple(one.name for one in keys)
        self._is_key = and_(*(one == bindparam(f"fencing_key_{one.name}", type_=one.type) for one in keys))
        marks = [table.c[name] for name in NAMES]
        self.look = select(*marks).where(self._is_key)
        self.lock = self.look.with_for_update()
        self.marked = (
            select(*marks, *keys)
            .where(table.c[VALUE].is_not(None))
            .order_by(*keys)
            .limit(bindparam("fencing_limit", type_=Integer))
            .offset(bindparam("fencing_place", type_=Integer))
        )
        self.issuers = (
            select(table.c[ISSUER], func.count(), func.max(table.c[VALUE]))
            .group_by(table.c[ISSUER])
            .order_by(table.c[ISSUER])
        )
        self.remove = delete(table).where(self._is_key)
        self._admitted = and_(
            table.c[ISSUER] == bindparam("fencing_issuer", type_=table.c[ISSUER].type),
            or_(
                table.c[VALUE] < bindparam("fencing_value", type_=BigInteger),
                and_(
                    table.c[VALUE] == bindparam("fencing_value", type_=BigInteger),
                    table.c[LINEAGE] == bindparam("fencing_lineage", type_=table.c[LINEAGE].type),
                ),
            ),
        )
        self._marked = {
            name: bindparam(f"fencing_{name.removeprefix('fence_')}", type_=table.c[name].type) for name in NAMES
        }
        self._made: dict[tuple[Any, ...], tuple[ClauseElement, Any]] = {}

    def change(self, dialect: str, values: Mapping[str, Any], limit_ms: int | None) -> ClauseElement:
        """Change the row ``fencing_key_…`` and its mark, if the mark in it admits the token.

        For PostgreSQL and SQLite; MariaDB and MySQL have no answer to trust. A row if it did. If it did not,
        PostgreSQL's lock timeout is lowered still.
        """

        def make() -> ClauseElement:
            changed = self._update(values).where(self._admitted)
            if dialect == "sqlite":
                return changed.returning(literal_column("1"))
            limited, restored = limits(limit_ms)
            return changed.where(text(limited)).returning(literal_column(restored))

        return self._kept(("change", dialect, limit_ms), values, make)

    def first_change(self, values: Mapping[str, Any]) -> ClauseElement:
        """Change the row and give it its first mark."""
        return self._kept("first", values, lambda: self._update(values).where(self.table.c[VALUE] == null()))

    def forced_change(self, values: Mapping[str, Any]) -> ClauseElement:
        """Change the row, which is locked and whose mark was judged."""
        return self._kept("forced", values, lambda: self._update(values))

    def add(self, values: Mapping[str, Any]) -> ClauseElement:
        """Insert the row with its mark."""
        return self._kept("add", values, lambda: insert(self.table).values({**self._values(values), **self._marked}))

    def _update(self, values: Mapping[str, Any]) -> Update:
        # Once for each expression that is kept: one statement checks the mark and changes the row.
        for value in values.values():
            if isinstance(value, ColumnElement):
                for element in visitors.iterate(value):
                    refuse_foreign(element, self.table, "RowGuard.update()")
        return update(self.table).where(self._is_key).values({**self._values(values), **self._marked})

    def _values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: value
            if isinstance(value, ColumnElement)
            else bindparam(f"fencing_set_{name}", type_=self.table.c[name].type)
            for name, value in values.items()
        }

    def _kept(self, what: Any, values: Mapping[str, Any], make: Callable[[], ClauseElement]) -> ClauseElement:
        # An expression counts as itself: one that is made anew for each call has a new text each time.
        key = (what, *values, *[id(one) if isinstance(one, ColumnElement) else None for one in values.values()])
        found = self._made.get(key)
        if found is None:
            if len(self._made) >= _KEPT:
                self._made.clear()
            # With the expressions, so that no other one can have their ids.
            found = self._made[key] = (make(), [one for one in values.values() if isinstance(one, ColumnElement)])
        return found[0]


_KEPT = 256
