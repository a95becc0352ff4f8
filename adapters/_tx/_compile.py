"""Constructs of SQLAlchemy Core as text and parameters for psycopg."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from weakref import ref

from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.sql.elements import ClauseElement

from adapters._tx._plan import encoded

_DIALECT: Any = PGDialect_psycopg()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class _Compiled:
    text: str | bytes
    literals: Mapping[str, Any]
    defaults: Mapping[str, Any]
    processors: Mapping[str, Callable[[Any], Any]]
    calls: Mapping[str, Callable[[], Any]]
    """What gives the values of parameters that say so, each time."""
    expanding: Any
    """The compiler, if the text depends on how many values a parameter has (``IN``); else None."""
    plain: bool
    """Whether there is nothing to make or to process."""


# By identity, for as long as the construct lives: a WeakKeyDictionary takes as long as all the rest of compiled().
_known: dict[int, tuple[ref[ClauseElement], _Compiled]] = {}


def compiled(construct: ClauseElement, params: Mapping[str, Any]) -> tuple[str | bytes, Mapping[str, Any]]:
    """Return the text of ``construct`` and its parameters with ``params``, prepared as their types say.

    Columns that the construct does not name have their Python-side defaults, as through SQLAlchemy. Raises
    ``sqlalchemy.exc.CompileError`` for what PostgreSQL has no text for, ``KeyError`` for a missing parameter, and
    ``TypeError`` for a default that asks for SQLAlchemy's execution context.
    """
    known = _known.get(id(construct))
    one = known[1] if known is not None and known[0]() is construct else _remember(construct)
    if one.plain:
        return one.text, {**one.literals, **params}
    made = {
        name: default.arg if default.is_scalar else default.arg(_NoContext()) for name, default in one.defaults.items()
    }
    called = {name: call() for name, call in one.calls.items() if name not in params}
    values = {**one.literals, **called, **made, **params}
    if one.expanding is None:
        for name, process in one.processors.items():
            values[name] = process(values[name])
        return one.text, values
    state = one.expanding.construct_expanded_state(values)
    values = dict(state.parameters)
    for name, process in {**one.processors, **state.processors}.items():
        if name in values:
            values[name] = process(values[name])
    return encoded(state.statement), values


def _remember(construct: ClauseElement) -> _Compiled:
    number = id(construct)

    def forget(gone: ref[ClauseElement]) -> None:
        known = _known.get(number)
        if known is not None and known[0] is gone:
            del _known[number]

    made = _compile(construct)
    _known[number] = (ref(construct, forget), made)
    return made


def _compile(construct: ClauseElement) -> _Compiled:
    made: Any = construct.compile(dialect=_DIALECT)
    processors = {}
    for bind, name in made.bind_names.items():
        process = bind.type.dialect_impl(_DIALECT).bind_processor(_DIALECT)
        if process is not None:
            processors[name] = process
    calls = {name: bind.callable for bind, name in made.bind_names.items() if bind.callable is not None}
    literals = {
        name: bind.value for bind, name in made.bind_names.items() if not bind.required and bind.callable is None
    }
    unnamed = [(column, column.default) for column in made.insert_prefetch]
    unnamed += [(column, column.onupdate) for column in made.update_prefetch]
    # Asked for only then: a construct that is no INSERT or UPDATE has no such names.
    defaults = {made._within_exec_param_key_getter(column): default for column, default in unnamed}
    expanding = made if made.post_compile_params or made.literal_execute_params else None
    plain = not (defaults or processors or calls or expanding)
    return _Compiled(encoded(made.string), literals, defaults, processors, calls, expanding, plain)


class _NoContext:
    """What a default's function is passed; nearly none looks at it."""

    def __getattr__(self, name: str) -> NoReturn:
        raise TypeError(
            f"a column's default asks for {name} of SQLAlchemy's execution context, which a psycopg connection does "
            "not have: pass the column's value, or use a connection of SQLAlchemy"
        )
