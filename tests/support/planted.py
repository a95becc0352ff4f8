"""Planted bugs in our own adapters: their SQL and Lua with one small fault, on real servers."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from adapters._tx import _errors
from adapters.redis import _core, _script
from adapters.redis._wire import packed, word
from adapters.sql import _options
from adapters.sql._dialect import Dialect
from fencing import errors
from fencing.testing import Downstream, PlantedBug
from fencing.testing._kill import SUITES as KIT
from fencing.testing._kill import Runner
from support.downstreams import PsycopgDownstream, RedisDownstream, SqlDownstream
from support.mark_races import race
from support.purge_races import race as purge

Edit = Callable[[Dialect], Mapping[str, str]]
"""The statements of a dialect that are to be others."""

_EQUAL = "or (m.value = excluded.value and m.lineage = excluded.lineage)"


class NotPlantedError(Exception):
    """No assertion: it would pass for the suite's having noticed the bug."""


def edited(text: str, old: str, new: str) -> str:
    """The text with one thing changed, which must be there: a bug that is not planted is not found either."""
    if old not in text:
        raise NotPlantedError(f"the text to plant a bug in has changed: {old!r} is not in it")
    return text.replace(old, new)


def _upserts(sql: Dialect, old: str, new: str) -> Mapping[str, str]:
    return {"raise_one": edited(sql.raise_one, old, new), "raise_many": edited(sql.raise_many, old, new)}


def _strictly_greater(sql: Dialect) -> Mapping[str, str]:
    return _upserts(sql, _EQUAL, "")


def _no_lineage(sql: Dialect) -> Mapping[str, str]:
    return _upserts(sql, " and m.lineage = excluded.lineage", "")


def _no_issuer(sql: Dialect) -> Mapping[str, str]:
    return _upserts(sql, "m.issuer = excluded.issuer", "true")


def _doubles(sql: Dialect) -> Mapping[str, str]:
    older = "m.value < excluded.value"
    double = "double precision" if sql.name == "postgresql" else "real"
    wide = f"cast(m.value as {double}) = cast(excluded.value as {double})"
    changed = _upserts(sql, _EQUAL, f"or ({wide} and m.lineage = excluded.lineage)")
    return {name: edited(text, older, older) for name, text in changed.items()}


def _missing_is_permission(sql: Dialect) -> Mapping[str, str]:
    return {"raise_existing": sql.raise_many}


def _no_lock_on_repeat(sql: Dialect) -> Mapping[str, str]:
    """What the newest token already is, is only looked at."""
    same = """select 1, 0 from fencing_mark where resource = cast(:resource as text)
        and issuer = cast(:issuer as text) and value = cast(:value as bigint) and lineage = cast(:lineage as text)"""
    insert = edited(sql.raise_one, " where ", " where not exists (select from same) and ")
    return {
        "raise_one": f"with same as ({same}), raised as ({insert}) select * from same union all select * from raised"
    }


def _floor_not_held(sql: Dialect) -> Mapping[str, str]:
    """Who makes a mark looks at the floor, and does not keep it where it is."""
    return {"read_floors": edited(sql.read_floors, " for share", "")}


def _check_by_snapshot(sql: Dialect) -> Mapping[str, str]:
    """The mark is looked at by a plain select, and written whatever it has become."""
    newer = """select from fencing_mark where resource = cast(:resource as text) and (issuer <> cast(:issuer as text)
        or value > cast(:value as bigint)
        or (value = cast(:value as bigint) and lineage <> cast(:lineage as text)))"""
    where = sql.raise_one.rindex("where m.issuer")
    end = sql.raise_one.rindex("returning")
    unconditional = sql.raise_one[:where] + sql.raise_one[end:]
    return {"raise_one": edited(unconditional, " where ", f" where not exists ({newer}) and ")}


def _horizon_not_read(sql: Dialect) -> Mapping[str, str]:
    """A key that has no record is new, whatever was purged."""
    return {"read_horizon": "select cast(null as timestamptz)"}


def _horizon_by_snapshot(sql: Dialect) -> Mapping[str, str]:
    """The horizon is looked at as it was when the transaction began."""
    return {"read_horizon": edited(sql.read_horizon, " for share", "")}


def _purged_by_beginning_alone(sql: Dialect) -> Mapping[str, str]:
    """What began long ago is forgotten though it was applied just now."""
    return {"purge_applied": edited(sql.purge_applied, "applied_at < cast(:applied as timestamptz)", "true")}


@contextlib.contextmanager
def _edited_sql(edit: Edit, make: Callable[[], Any]) -> Iterator[Any]:
    def broken(build: Callable[..., Dialect]) -> Callable[..., Dialect]:
        def rebuilt(*options: Any) -> Dialect:
            sql = build(*options)
            return dataclasses.replace(sql, **edit(sql))

        return rebuilt

    builders = {name: broken(build) for name, build in _options._BUILDERS.items()}
    with mock.patch.dict(_options._BUILDERS, builders), disposing(make()) as made:
        yield made


@contextlib.contextmanager
def _contention_is_stale(make: Callable[[], Any]) -> Iterator[Any]:
    def stale(downstream: str, why: str) -> errors.FencingError:
        return errors.StaleTokenError(f"{downstream}: fenced ({why})", downstream=downstream)

    with mock.patch.object(_errors, "_contention", stale), disposing(make()) as made:
        yield made


@contextlib.contextmanager
def _edited_lua(changes: list[tuple[str, str]], make: Callable[[], Any]) -> Iterator[Any]:
    source = _script._SOURCE
    for old, new in changes:
        source = edited(source, old, new)
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    with (
        mock.patch.object(_script, "_EVALSHA", word(b"EVALSHA") + word(sha.encode())),
        mock.patch.object(_core, "LOAD", packed("SCRIPT", "LOAD", source)),
        disposing(make()) as made,
    ):
        yield made


@contextlib.contextmanager
def disposing(made: Any) -> Iterator[Any]:
    """The downstream, for a block."""
    try:
        yield made
    finally:
        made.dispose()


MACHINE = ("contract", "machine")
_EQUAL_VALUE = "if its_value == value then return 'lineage' end"
_NUMERIC = "if tonumber(its_value) == tonumber(value) then return its_lineage ~= lineage and 'lineage' or nil end"
_SET = "redis.call('HSET', KEYS[i], 'token', token, 'holder', holder, 'at', '0')"

SQL: dict[str, tuple[str, tuple[str, ...], Edit]] = {
    "strict >": ("mithril (measured)", MACHINE, _strictly_greater),
    "equal token of another lineage": ("two promoted standbys (measured)", MACHINE, _no_lineage),
    "another issuer's token": ("no report known", MACHINE, _no_issuer),
    "compared as doubles": ("fencekit, mithril, shiftlock (measured, in Lua)", MACHINE, _doubles),
    "missing mark is permission": ("allkeys-lru (measured)", MACHINE, _missing_is_permission),
}
# The same text as SQLite's, where the machine has found it in a tenth of the time.
POSTGRESQL: dict[str, tuple[str, tuple[str, ...], Edit]] = {
    **{name: (seen_at, ("contract",), edit) for name, (seen_at, _, edit) in SQL.items()},
    "no lock on repeat": (
        "plain check, then write to another row (measured)",
        ("contract", "race"),
        _no_lock_on_repeat,
    ),
    "floor read without a lock": ("slatedb #1622", ("race",), _floor_not_held),
    "check by a plain select": ("mithril, openbao", ("race",), _check_by_snapshot),
    "purged keys are new": ("keys valid 30 min, 1 h (Brevo, Nylas)", ("purge",), _horizon_not_read),
    "horizon by the snapshot": ("no report known", ("purge",), _horizon_by_snapshot),
    "purged by beginning alone": ("no report known", ("purge",), _purged_by_beginning_alone),
}
LUA: dict[str, tuple[str, tuple[str, ...], list[tuple[str, str]]]] = {
    "tonumber": (
        "fencekit, mithril, shiftlock (measured)",
        MACHINE,
        [(_EQUAL_VALUE, _NUMERIC), ("larger(value, its_value)", "(tonumber(value) > tonumber(its_value))")],
    ),
    "equal token of another lineage": (
        "two promoted standbys (measured)",
        MACHINE,
        [(_EQUAL_VALUE, "if its_value == value then return end")],
    ),
    "strict >": (
        "mithril (measured)",
        MACHINE,
        [
            ("last[1] == token and", "false and"),
            ("elseif mark[1] ~= token then", "elseif true then"),
            (_EQUAL_VALUE, "if its_value == value then return its_lineage ~= lineage and 'lineage' or 'stale' end"),
        ],
    ),
    "missing mark is permission": (
        "allkeys-lru (measured)",
        MACHINE,
        [("if on_missing == 'reject' then return {'missing', i - 1} end", "")],
    ),
    "marks raised one by one": (
        "no report known",
        MACHINE,
        [
            (
                "advances[#advances + 1] = KEYS[i]\n      elseif",
                f"{_SET} advances[#advances + 1] = KEYS[i]\n      elseif",
            )
        ],
    ),
}


def sqlite_bugs(file: Path) -> list[PlantedBug]:
    """Faults of the guard for SQLite."""
    return [_sql_bug(name, *facts, "sqlite", lambda: SqlDownstream("SQLite", file)) for name, facts in SQL.items()]


def postgresql_bugs(dsn: str) -> list[PlantedBug]:
    """Faults of the guard for PostgreSQL."""
    bugs = [_sql_bug(name, *facts, "postgresql", lambda: PsycopgDownstream(dsn)) for name, facts in POSTGRESQL.items()]
    seen = "macro #6346"
    plant = lambda: _contention_is_stale(lambda: PsycopgDownstream(dsn))  # noqa: E731
    return [*bugs, PlantedBug("contention told as fenced", seen, "postgresql", ("machine",), plant)]


def _sql_bug(
    name: str, seen_at: str, suites: tuple[str, ...], edit: Edit, layer: str, make: Callable[[], Downstream]
) -> PlantedBug:
    return PlantedBug(name, seen_at, layer, suites, lambda: _edited_sql(edit, make))


def valkey_bugs(url: str) -> list[PlantedBug]:
    """Faults of the script for Redis."""

    def bug(name: str, seen_at: str, suites: tuple[str, ...], changes: list[tuple[str, str]]) -> PlantedBug:
        return PlantedBug(name, seen_at, "valkey", suites, lambda: _edited_lua(changes, lambda: RedisDownstream(url)))

    return [bug(name, *facts) for name, facts in LUA.items()]


SUITES: Mapping[str, Runner] = {
    **KIT,
    "race": lambda downstream, max_examples, seed: race(downstream),
    "purge": lambda downstream, max_examples, seed: purge(downstream),
}
