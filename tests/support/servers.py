"""Which servers the tests run against, and what happens when one is not there."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from scheduler.console.embedded import ServerNotInstalledError

IN_CI = os.environ.get("CI") == "true"

PG_BINDIR = os.environ.get("FENCING_TEST_PG_BINDIR") or None  # the directory of another PostgreSQL's programs
REDIS = os.environ.get("FENCING_TEST_REDIS") or None  # another Redis's or Valkey's server program


def unavailable(reason: str) -> NoReturn:
    """Ends a test whose server is missing: a failure in CI, where it has to be, and a loud skip elsewhere."""
    if IN_CI:
        pytest.fail(f"a server is missing, and CI must not skip: {reason}", pytrace=False)
    pytest.skip(f"SERVER MISSING, NOT TESTED: {reason}")


def debian_postgres() -> Path:
    """The programs of Debian's PostgreSQL, the newest that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        unavailable("no PostgreSQL in /usr/lib/postgresql: apt-get install postgresql")
    return found[-1].parent


@contextlib.contextmanager
def available() -> Iterator[None]:
    """Around the start of a server: one that is not installed ends the test; one that does not start is an error."""
    try:
        yield
    except ServerNotInstalledError as error:
        unavailable(str(error))
