"""Fenced writes to SQL databases: PostgreSQL and SQLite, through SQLAlchemy and psycopg.

The mark of a resource is a row of ``fencing_mark`` in the same database as the data, raised and locked in the
transaction that writes the data.
"""

from adapters.sql._guard import SqlGuard, guard_for
from adapters.sql._schema import create_all, ddl, metadata, tables

__all__ = ["SqlGuard", "create_all", "ddl", "guard_for", "metadata", "tables"]
