"""The kit's state machine against one guard for each of the four stores, and for both ports."""

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from support.downstreams import downstream

from fencing.testing import MemoryDownstream, guard_machine
from fencing.testing._machine import _base

# How many examples, of thirty steps each: fewer where a step is a round trip to a server.
EXAMPLES = {
    "memory": 40,
    "memory-recording": 40,
    "sqlite-connection": 25,
    "sqlite-async": 10,
    "postgresql-connection": 25,
    "postgresql-psycopg": 20,
    "postgresql-async-session": 10,
    "postgresql REPEATABLE READ": 6,
    "postgresql SERIALIZABLE": 6,
    "mysql-connection": 8,
    "mysql-async-session": 4,
    "mysql READ COMMITTED": 6,
    "mysql SERIALIZABLE": 6,
    "valkey": 30,
    "valkey-async": 15,
}


@pytest.mark.timeout(600)  # not for the run: so that a failure can be shrunk before it is reported
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_guard_answers_as_the_law(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    profile = settings(
        max_examples=EXAMPLES[name], stateful_step_count=30, deadline=None, report_multiple_bugs=False, print_blob=True
    )
    with downstream(name, request, tmp_path) as made:
        run_state_machine_as_test(guard_machine(made), settings=profile)


def test_an_older_write_after_a_lost_mark_is_the_laws_own_and_no_lost_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_base, "event", lambda _: None)  # Hypothesis takes none where it does not lead
    resource, machine = _base.RESOURCES[0], guard_machine(MemoryDownstream())()
    machine.begin(base=8, policy="create", holders=[("ada", "shop/l1"), ("bob", "shop/l1")], catches=False)
    try:
        older, newer = machine.workers.usable
        machine.raise_fence(newer, (resource,))
        machine.write(newer, (resource,))
        machine.read(newer, resource)
        machine.lose(resource)
        machine.write(older, (resource,))
        machine.everything_is_as_the_law_says()
        machine.modify(newer)
        machine.everything_is_as_the_law_says()
    finally:
        machine.teardown()
