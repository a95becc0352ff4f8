"""Constructs of SQLAlchemy Core as text and parameters for psycopg."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.sql.elements import ClauseElement

_DIALECT: Any = PGDialect_psycopg()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class _Compiled:
    text: str
    literals: Mapping[str, Any]
    processors: Mapping[str, Callable[[Any], Any]]


_known: WeakKeyDictionary[ClauseElement, _Compiled] = WeakKeyDictionary()


def compiled(construct: ClauseElement, params: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the text of ``construct`` and its parameters with ``params``, prepared as their types say.

    Raises ``sqlalchemy.exc.CompileError`` for what PostgreSQL has no text for, ``KeyError`` for a missing parameter.
    """
    one = _known.get(construct)
    if one is None:
        one = _known[construct] = _compile(construct)
    values = {**one.literals, **params}
    for name, process in one.processors.items():
        values[name] = process(values[name])
    return one.text, values


def _compile(construct: ClauseElement) -> _Compiled:
    made: Any = construct.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
    processors = {}
    for bind, name in made.bind_names.items():
        process = bind.type.dialect_impl(_DIALECT).bind_processor(_DIALECT)
        if process is not None:
            processors[name] = process
    literals = {name: bind.effective_value for bind, name in made.bind_names.items() if not bind.required}
    return _Compiled(made.string, literals, processors)
