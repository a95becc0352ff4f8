"""What a role needs to run applications and workers: read from the statements themselves, so that none is forgotten."""

from __future__ import annotations

import re
from collections import defaultdict
from importlib.resources import files

from psycopg import sql

from scheduler._sql import Statements, read

_WRITES = {
    "insert": re.compile(r"\binsert into \{schema\}\.(\w+)"),
    "update": re.compile(r"\bupdate \{schema\}\.(\w+)"),
    "delete": re.compile(r"\bdelete from \{schema\}\.(\w+)"),
}
_NUMBERED = re.compile(r"pg_get_serial_sequence\(\{(\w+)_literal\}, '(\w+)'\)")
_READS = re.compile(r"\b(?:from|join) \{schema\}\.(\w+)(?!\w|\()")
_UPSERT = re.compile(r"\binsert into \{schema\}\.(\w+)(?:(?!\binsert\b).)*?\bdo update\b", re.DOTALL)
# To lock a row takes the right to change it.
_LOCKS = re.compile(
    r"\bfrom \{schema\}\.(\w+)(?:(?!\bfrom \{schema\}).)*?\bfor (?:no key update|update|share|key share)", re.DOTALL
)


def grants(statements: Statements, role: str) -> list[str]:
    """Return the statements that let ``role`` run applications and workers, and no more; its owner migrates.

    ``role`` is a role's name. What is append-only (the audit) is granted without UPDATE.
    """
    needed: dict[str, set[str]] = defaultdict(set)
    needed["migration"].add("select")
    needed["job"].add("insert")  # COPY
    sequences: set[str] = set()
    for entry in files("scheduler").joinpath("sql").iterdir():
        text = read("sql", entry.name)
        for privilege, pattern in _WRITES.items():
            for table in pattern.findall(text):
                needed[table].add(privilege)
        for table in _UPSERT.findall(text):
            needed[table].add("update")
        for table in _READS.findall(text):
            needed[table].add("select")
        for table in _LOCKS.findall(text):
            needed[table].add("update")
        sequences.update("_".join([*found, "seq"]) for found in _NUMBERED.findall(text))
        for table in [table for table in needed if f".{table}" in text]:
            needed[table].add("select")  # RETURNING and conditions read
    del needed["token"]  # the sequence
    quoted, schema = sql.Identifier(role).as_string(None), f'"{statements.schema}"'
    lines = [f"grant usage on schema {schema} to {quoted};"]
    order = ("select", "insert", "update", "delete")
    for table, privileges in sorted(needed.items()):
        listed = ", ".join(one for one in order if one in privileges)
        lines.append(f'grant {listed} on table {schema}."{table}" to {quoted};')
    # The issuer moves its sequence on. Of the others numbers are only drawn, and where no statement draws one itself, a
    # row's number comes with the right to insert it.
    lines.append(f'grant usage, select, update on sequence {schema}."token" to {quoted};')
    lines += [f'grant usage on sequence {schema}."{name}" to {quoted};' for name in sorted(sequences)]
    lines.append(f"grant execute on all functions in schema {schema} to {quoted};")
    return lines
