"""Fenced writes to SQL databases: PostgreSQL, MariaDB, MySQL and SQLite, through SQLAlchemy and psycopg.

The mark of a resource is a row of ``fencing_mark`` in the same database as the data, raised and locked in the
transaction that writes the data.
"""

from adapters.sql._administer import adopt, compact, keep_refusals
from adapters.sql._guard import SqlGuard, guard_for
from adapters.sql._protect import protect, protected, unfenced, unprotect
from adapters.sql._protect_list import Protected
from adapters.sql._retain import AppliedKey, PurgedKeys, purge_applied, read_applied
from adapters.sql._rowmark import row_mark_columns
from adapters.sql._rows import RowGuard
from adapters.sql._schema import create_all, ddl, metadata, tables
from adapters.sql._statement import Written, fenced_statement

__all__ = [
    "AppliedKey",
    "Protected",
    "PurgedKeys",
    "RowGuard",
    "SqlGuard",
    "Written",
    "adopt",
    "compact",
    "create_all",
    "ddl",
    "fenced_statement",
    "guard_for",
    "keep_refusals",
    "metadata",
    "protect",
    "protected",
    "purge_applied",
    "read_applied",
    "row_mark_columns",
    "tables",
    "unfenced",
    "unprotect",
]
