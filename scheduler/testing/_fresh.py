"""A schema of its own for a test: made, used by the application, and thrown away."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from scheduler._app import Scheduler
from scheduler._connect import Database
from scheduler._sql import Statements


@contextmanager
def fresh(app: Scheduler, dsn: str | None = None) -> Iterator[Scheduler]:
    """Let ``app`` use a new, migrated schema for the length of the block; drop it afterwards.

    ``dsn``: in which database (None: the application's own). Its tasks, schedules, queues and hooks stay as they were
    declared; what it had connected to is closed before and after. No worker of ``app`` may be running meanwhile.
    """
    before = app._database, app._statements
    app.close()
    app._database = app._database if dsn is None else Database(dsn)
    app._statements = Statements(f"fencing_test_{secrets.token_hex(4)}")
    try:
        app.migrate()
        yield app
    finally:
        try:
            with app._here().link.use("drop the test's schema") as connection:
                connection.execute(app._statements.fill("drop schema if exists {schema} cascade"))
        finally:
            app.close()
            app._database, app._statements = before
