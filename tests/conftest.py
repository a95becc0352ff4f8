"""The servers that the tests talk to: real ones, one of each for the whole run, clean for every test.

``FENCING_TEST_PG_BINDIR`` and ``FENCING_TEST_REDIS`` choose another PostgreSQL (the directory of its
programs) and another Redis or Valkey (the server's program) than the ones of the wheels.
"""

import itertools
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, settings
from support import kill_matrix, sql_doors
from support.mariadb import MariaDB
from support.servers import IN_CI, PG_BINDIR, REDIS, available
from support.waiting import eventually

from scheduler.console.embedded import Postgres, SmtpSink, Valkey

# In CI the same examples every time. A busy machine is not a failure, here or there: no deadline.
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("by hand", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if IN_CI else "by hand")

# Where the tests were started with `&` in a script, Ctrl-C is ignored, in each process that they start too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The common server is killed with its files, if at all: what it would write to the disk at every commit, at every new
# and dropped database, is what a test would wait for most of its time. Servers of a test's own keep what they promise.
# Nor does a vacuum come by, which changes plans and holds a lock now and then.
QUICK = {"fsync": False, "autovacuum": False}


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The PostgreSQL of this run. Do not stop, restart or configure it: others use it (see ``pg_server``)."""
    with ExitStack() as stack:
        with available():
            server = stack.enter_context(Postgres(bindir=PG_BINDIR, settings=QUICK))
        yield server


@pytest.fixture
def durable(postgres: Postgres) -> Iterator[None]:
    """The run's PostgreSQL keeps over a power cut what was committed, as every other one should."""

    def put(change: str, value: str) -> None:
        with postgres.connect() as connection:
            connection.execute(f"alter system {change}".encode())
            connection.execute("select pg_reload_conf()")
            eventually(lambda: connection.execute("show fsync").fetchone() == (value,), "the setting is taken over")

    put("set fsync = on", "on")
    yield
    put("reset fsync", "off")


@pytest.fixture(scope="session")
def pg_names() -> Iterator[str]:
    return (f"test_{number}" for number in itertools.count(1))


@pytest.fixture
def pg_dsn(postgres: Postgres, pg_names: Iterator[str]) -> Iterator[str]:
    """The address of a new, empty database of this test's own."""
    name = next(pg_names)
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture(scope="module")
def bank(postgres: Postgres, pg_names: Iterator[str]) -> Iterator[str]:
    """The address of a database of this module's with the guard's tables and the ledger."""
    with sql_doors.postgresql_bank(postgres, next(pg_names)) as address:
        yield address


@pytest.fixture
def pg(bank: str) -> str:
    """The same, emptied for this test."""
    return sql_doors.empty(bank)


@pytest.fixture
def pg_server() -> Iterator[Callable[..., Postgres]]:
    """Starts PostgreSQL servers of the test's own, to be stopped, killed, or given a standby at will."""
    with ExitStack() as stack:

        def start(**options: object) -> Postgres:
            options.setdefault("bindir", PG_BINDIR)
            with available():
                return stack.enter_context(Postgres(**options))  # type: ignore[arg-type]

        yield start


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    """The MariaDB of this run: Debian's, for which there is no wheel."""
    with ExitStack() as stack:
        with available():
            server = stack.enter_context(MariaDB())
        yield server


@pytest.fixture(scope="module")
def mariadb_bank(mariadb: MariaDB, pg_names: Iterator[str]) -> Iterator[str]:
    """A MariaDB database of this module's with the guard's tables and the ledger, for ``sql_doors.empty_mysql``."""
    name = next(pg_names)
    address = mariadb.create_database(name)
    sql_doors.prepare(address)
    yield address
    mariadb.drop_database(name)


@pytest.fixture(scope="session")
def valkey() -> Iterator[Valkey]:
    """The Valkey of this run. Do not stop or configure it: others use it (see ``valkey_server``)."""
    with ExitStack() as stack:
        with available():
            server = stack.enter_context(Valkey(program=REDIS))
        yield server


@pytest.fixture
def valkey_url(valkey: Valkey) -> str:
    """The address of the run's Valkey, emptied for this test."""
    valkey.command("FLUSHALL")
    valkey.command("SCRIPT", "FLUSH")
    return valkey.url


@pytest.fixture
def valkey_server() -> Iterator[Callable[..., Valkey]]:
    """Starts Valkey servers of the test's own: to be killed, replicated, configured at will."""
    with ExitStack() as stack:

        def start(**options: object) -> Valkey:
            options.setdefault("program", REDIS)
            with available():
                return stack.enter_context(Valkey(**options))  # type: ignore[arg-type]

        yield start


@pytest.fixture
def smtp_sink() -> Iterator[SmtpSink]:
    """An SMTP server of this test's own; set its hooks to script its answers."""
    with ExitStack() as stack:
        with available():
            sink = stack.enter_context(SmtpSink())
        yield sink


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    """Print the kill matrix of the planted bugs, where they were planted."""
    if matrix := kill_matrix.lines():
        terminalreporter.section("kill matrix")
        for line in matrix:
            terminalreporter.write_line(line)
