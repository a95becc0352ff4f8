"""What may be one statement with the guard: an UPDATE or DELETE of a row by its key, an INSERT of values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    Delete,
    Insert,
    Integer,
    Table,
    Text,
    Update,
    column,
    insert,
    literal_column,
    select,
    text,
    true,
    type_coerce,
)
from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import BinaryExpression, BindParameter, BooleanClauseList, ClauseElement, ColumnClause
from sqlalchemy.sql.operators import and_, eq

from adapters.sql._postgresql import move


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """A statement that was looked at."""

    plain: Any
    """As it is, but that it always answers with rows on databases with RETURNING."""
    returns: bool
    """Whether the caller asked for rows."""
    adds: bool
    """Whether it inserts."""
    parts: Any
    """What :func:`one_statement` builds on."""


def effect_of(statement: Any) -> Effect:
    """Return what ``statement`` does. Raises ``TypeError`` or ``ValueError`` for one that needs a snapshot of its own.

    While the guard waits for the mark, others commit. In one statement with the guard, whatever reads other rows reads
    them as they were before the wait: an ``INSERT … WHERE NOT EXISTS`` doubled an invoice so. A row that is updated or
    deleted by its key is read again once it is locked.
    """
    if not isinstance(statement, Update | Delete | Insert):
        raise TypeError(
            "fenced_statement() takes an update(), delete() or insert() of SQLAlchemy Core, which it can look into, "
            f"not {type(statement).__qualname__}; for anything else use fenced_write()"
        )
    return _look_into(statement)


@lru_cache(maxsize=512)
def one_statement(effect: Effect, schema: str | None, limit_ms: int | None) -> ClauseElement:
    """Return guard and effect as one statement for PostgreSQL.

    It raises a mark that is there; with none, or refused, nothing happens. Its rows: those of the effect. Of an INSERT
    one row for the mark that moved, a 1 for the row inserted (else null), and what the effect returns. With no row,
    the lock timeout may be lowered still.
    """
    moved = text(move(schema, limit_ms)).columns(column("restored", Text)).cte("fencing_moved")
    if not effect.adds:
        # As a scalar: joined, SQLAlchemy would warn of a cartesian product.
        gated: ClauseElement = effect.plain.where(select(moved.c.restored).scalar_subquery().is_not(None))
        return gated
    statement, returning = effect.parts
    table: Any = statement.table
    values = {table.c[getattr(name, "key", name)]: value for name, value in _values(statement).items()}
    shown = [
        (type_coerce(value, one.type) if isinstance(value, BindParameter) else value).label(None)
        for one, value in values.items()
    ]
    one = literal_column("1", Integer).label("fencing_one")
    named = [item.label(f"fencing_column_{place}") for place, item in enumerate(returning)]
    rows = select(*shown).select_from(moved).where(moved.c.restored.is_not(None))
    done = insert(table).from_select(list(values), rows).returning(one, *named).cte("fencing_effect")
    return select(*done.c).select_from(moved.outerjoin(done, true()))


@lru_cache(maxsize=512)
def _look_into(statement: Any) -> Effect:
    table = statement.table
    if not isinstance(table, Table):
        raise TypeError(f"fenced_statement() writes to a table, not to {table!r}")
    returning = tuple(statement._all_selected_columns) if statement._returning else ()
    for part in (statement, *_filled_in(statement, table)):
        for element in visitors.iterate(part):
            if element is not statement:
                refuse_foreign(element, table, "fenced_statement()")
    if isinstance(statement, Insert):
        _check_insert(statement)
    else:
        _check_key(statement, table)
    bare = statement if not returning else _without_returning(statement)
    plain = statement if returning else statement.returning(literal_column("1", Integer))
    return Effect(plain, bool(returning), isinstance(statement, Insert), (bare, returning))


def _filled_in(statement: Any, table: Table) -> list[Any]:
    """The expressions that SQLAlchemy adds for columns which the statement does not name."""
    if isinstance(statement, Delete):
        return []
    named = {getattr(name, "key", name) for name in _values(statement)}
    added: list[Any] = [
        one.default if isinstance(statement, Insert) else one.onupdate for one in table.c if one.key not in named
    ]
    return [one.arg for one in added if one is not None and one.is_clause_element]


def _without_returning(statement: Any) -> Any:
    copy = statement._generate()
    copy._returning = ()
    copy.__dict__.pop("_all_selected_columns", None)  # remembered of the original
    return copy


def refuse_foreign(element: Any, table: Table, whose: str) -> None:
    """Raise ``ValueError`` for a part of a statement that reads other rows than the one that it changes."""
    if element is table:
        return
    foreign_column = isinstance(element, ColumnClause) and (
        element.is_literal or (element.table is not None and element.table is not table)
    )
    reads = element.__visit_name__ in _READS or foreign_column
    if reads:
        raise ValueError(
            f"{whose} cannot take what reads other rows ({element.__visit_name__}): they would be read as "
            "they were before the guard waited for the mark. Use fenced_write(), where the effect is a statement of "
            "its own"
        )


_READS = frozenset(
    {
        "select",
        "compound_select",
        "subquery",
        "scalar_select",
        "grouping_select",
        "select_statement_grouping",
        "cte",
        "alias",
        "lateral",
        "join",
        "table",
        "table_valued_alias",
        "values",
        "textclause",
        "text_select",
        "textual_select",
        "exists",
        "insert",
        "update",
        "delete",
    }
)


def _values(statement: Insert | Update) -> dict[Any, Any]:
    return dict(getattr(statement, "_values", None) or {})


def _check_insert(statement: Insert) -> None:
    if statement.select is not None or statement._multi_values:
        raise ValueError("fenced_statement() takes an INSERT of the values of one row; for others use fenced_write()")
    if getattr(statement, "_post_values_clause", None) is not None:
        raise ValueError(
            "fenced_statement() cannot take ON CONFLICT, which reads a row that is there; use fenced_write()"
        )
    if not _values(statement):
        raise ValueError("fenced_statement() needs the values in the statement: insert(table).values(n=bindparam('n'))")


def _check_key(statement: Any, table: Table) -> None:
    keys = set(table.primary_key.columns)
    if not keys:
        raise ValueError(f"fenced_statement() changes a row by its primary key, which {table.fullname} does not have")
    missing = keys - set(_compared(statement.whereclause))
    if missing:
        names = ", ".join(sorted(one.name for one in missing))
        raise ValueError(
            f"fenced_statement() changes one row by its key: its WHERE must say {names} = value (and may say more with "
            "AND). Rows found by another condition would be those from before the guard waited; use fenced_write()"
        )


def _compared(condition: Any) -> list[Any]:
    """The columns that a condition compares with a value."""
    if isinstance(condition, BooleanClauseList) and condition.operator is and_:
        return [one for clause in condition.clauses for one in _compared(clause)]
    if isinstance(condition, BinaryExpression) and condition.operator is eq:
        sides = (condition.left, condition.right)
        if any(isinstance(side, BindParameter) for side in sides):
            return [side for side in sides if not isinstance(side, BindParameter)]
    return []
