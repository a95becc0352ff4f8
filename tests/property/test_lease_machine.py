"""The kit's machine of leases against the model, the scheduler's named leases and its claims, on a real server."""

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from support.jobs import installed
from support.lease_systems import JobLeases, NamedLeases
from support.planted import disposing

from fencing.testing import LeaseSystem, MemoryLeases, lease_machine
from scheduler.console.embedded import Postgres


@pytest.fixture(scope="module")
def dsn(postgres: Postgres, pg_names: Iterator[str]) -> Iterator[str]:
    database = next(pg_names)
    dsn = postgres.create_database(database)
    with installed(dsn):
        yield dsn
    postgres.drop_database(database)


def test_the_model_of_leases_passes() -> None:
    check(MemoryLeases(), 50)


@pytest.mark.timeout(600)  # not for the run: so that a failure can be shrunk before it is reported
@pytest.mark.parametrize("system", [NamedLeases, JobLeases])
def test_a_lease_is_had_by_one_at_a_time(system: type[NamedLeases | JobLeases], dsn: str) -> None:
    with disposing(system(dsn)) as made:
        check(made, 30)


def check(system: LeaseSystem, examples: int) -> None:
    run_state_machine_as_test(
        lease_machine(system),
        settings=settings(
            max_examples=examples, stateful_step_count=30, deadline=None, report_multiple_bugs=False, print_blob=True
        ),
    )
