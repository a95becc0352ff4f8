"""Fixtures for an application's tests.

In its ``conftest.py``: ``pytest_plugins = ["scheduler.testing.pytest_plugin"]``.

- ``fencing_dsn``: a PostgreSQL for the whole run: that of ``--fencing-dsn`` or ``$FENCING_TEST_DSN``, or one that is
  started for the run and vanishes with it (extra ``demo``).
- ``fencing_fresh``: ``fencing_fresh(app)`` lets the application use a new, migrated schema there until the test ends.
- ``fencing_clock``: ``fencing_clock(app)`` returns a :class:`~scheduler.testing.Clock`, put back when the test ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from scheduler._app import Scheduler
from scheduler.testing._clock import Clock
from scheduler.testing._fresh import fresh


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--fencing-dsn``."""
    parser.getgroup("fencing").addoption(
        "--fencing-dsn",
        default=os.environ.get("FENCING_TEST_DSN"),
        help="The PostgreSQL in which tests make their schemas (default: $FENCING_TEST_DSN, else one is started).",
    )


@pytest.fixture(scope="session")
def fencing_dsn(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a PostgreSQL database in which tests may make schemas."""
    given = request.config.getoption("--fencing-dsn")
    if given:
        yield given
        return
    from scheduler.console.embedded import Postgres, ServerNotInstalledError

    with ExitStack() as stack:
        try:
            server = stack.enter_context(Postgres())
        except ServerNotInstalledError as error:
            pytest.fail(f"no --fencing-dsn or $FENCING_TEST_DSN was given, and {error}", pytrace=False)
        yield server.create_database("fencing_tests")


@pytest.fixture
def fencing_fresh(fencing_dsn: str) -> Iterator[Callable[[Scheduler], Scheduler]]:
    """Let an application use a new, migrated schema until the test ends."""
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(fresh(app, fencing_dsn))


@pytest.fixture
def fencing_clock(fencing_fresh: object) -> Iterator[Callable[[Scheduler], Clock]]:
    """Make the clock of an application that the test sets; it is put back when the test ends."""
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(Clock(app))
