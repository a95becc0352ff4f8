"""Running a suite against a planted bug until the first example that notices it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from fencing.errors import FencingError
from fencing.testing._contract import GuardContract
from fencing.testing._downstream import Downstream
from fencing.testing._harness import Harness
from fencing.testing._lease_machine import lease_machine
from fencing.testing._leases import LeaseSystem
from fencing.testing._machine import guard_machine
from fencing.testing._planted import PlantedBug

Runner = Callable[[Any, int, int | None], tuple[str, int]]
"""A suite: it takes the broken system, the most examples to run, and a seed, and returns what noticed the bug (empty if
nothing did) and after how many examples."""


@dataclass(frozen=True, slots=True)
class Kill:
    """What became of a bug in a suite.

    ``by``: what noticed it, empty if nothing did. ``examples``: how many were run, the one that noticed it included.
    ``seconds`` of wall time.
    """

    bug: PlantedBug
    suite: str
    by: str
    examples: int
    seconds: float

    @property
    def killed(self) -> bool:
        """Whether the suite has teeth for this bug."""
        return bool(self.by)


def run_contract(downstream: Downstream, max_examples: int, seed: int | None) -> tuple[str, int]:
    """The contract, in the order of its tests, whatever the limit and the seed."""
    examples = 0
    for name, test in _tests(GuardContract):
        if not downstream.can(*getattr(test, "needs", ())):
            continue
        examples += 1
        try:
            with Harness(downstream, getattr(test, "on_missing", None)) as harness:
                test(GuardContract(), harness)
        except (AssertionError, FencingError, pytest.fail.Exception):
            return name, examples
    return "", examples


def run_guard_machine(downstream: Downstream, max_examples: int, seed: int | None) -> tuple[str, int]:
    """The state machine of a guard."""
    return run_machine(guard_machine(downstream), max_examples, seed)


def run_lease_machine(system: LeaseSystem, max_examples: int, seed: int | None) -> tuple[str, int]:
    """The state machine of leases."""
    return run_machine(lease_machine(system), max_examples, seed)


SUITES: Mapping[str, Runner] = {
    "contract": run_contract,
    "machine": run_guard_machine,
    "leases": run_lease_machine,
}


def kill(
    bug: PlantedBug,
    suite: str,
    *,
    max_examples: int = 200,
    seed: int | None = None,
    suites: Mapping[str, Runner] = SUITES,
) -> Kill:
    """Run one of the ``suites`` against the bug, without shrinking, for at most ``max_examples``.

    The same examples each time; with a ``seed`` others.
    """
    began = time.monotonic()
    with bug.plant() as system:
        by, examples = suites[suite](system, max_examples, seed)
    return Kill(bug, suite, by, examples, time.monotonic() - began)


def _tests(contract: type) -> Iterator[tuple[str, Any]]:
    """The examples in the order in which pytest runs them."""
    for part in contract.__mro__:
        yield from ((name, test) for name, test in vars(part).items() if name.startswith("test_"))


def run_machine(machine: type[RuleBasedStateMachine], max_examples: int, seed: int | None) -> tuple[str, int]:
    """Any state machine, to its first failing example."""
    examples, failed = 0, 0

    class Counted(machine):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            nonlocal examples
            examples += 1
            super().__init__()

        def teardown(self) -> None:
            nonlocal failed
            if isinstance(sys.exception(), Exception) and not failed:
                failed = examples
            super().teardown()

    if seed is not None:
        hypothesis.seed(seed)(Counted)
    try:
        run_state_machine_as_test(
            Counted,
            settings=settings(
                max_examples=max_examples,
                stateful_step_count=30,
                derandomize=seed is None,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
                verbosity=Verbosity.quiet,
            ),
        )
    except (AssertionError, FencingError) as exc:
        return str(exc).partition("\n")[0] or type(exc).__name__, failed
    return "", examples
