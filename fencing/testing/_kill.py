"""Running a suite against a planted bug until the first example that notices it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from fencing.testing._contract import GuardContract
from fencing.testing._downstream import Downstream
from fencing.testing._harness import Harness
from fencing.testing._lease_machine import lease_machine
from fencing.testing._machine import guard_machine
from fencing.testing._planted import PlantedBug, Suite


@dataclass(frozen=True, slots=True)
class Kill:
    """What became of a bug in a suite.

    ``by``: what noticed it, empty if nothing did. ``examples``: how many were run, the one that noticed it included.
    ``seconds`` of wall time.
    """

    bug: PlantedBug
    suite: Suite
    by: str
    examples: int
    seconds: float

    @property
    def killed(self) -> bool:
        """Whether the suite has teeth for this bug."""
        return bool(self.by)


def kill(bug: PlantedBug, suite: Suite, *, max_examples: int = 200, seed: int | None = None) -> Kill:
    """Run the suite against the bug, without shrinking, for at most ``max_examples``.

    The same examples each time; with a ``seed`` others.
    """
    began = time.monotonic()
    with bug.plant() as system:
        if suite == "contract":
            by, examples = _by_contract(system)
        else:
            machine = guard_machine(system) if suite == "machine" else lease_machine(system)
            by, examples = _by_machine(machine, max_examples, seed)
    return Kill(bug, suite, by, examples, time.monotonic() - began)


def _by_contract(downstream: Downstream) -> tuple[str, int]:
    examples = 0
    for name, test in _tests(GuardContract):
        if not downstream.can(*getattr(test, "needs", ())):
            continue
        examples += 1
        try:
            with Harness(downstream, getattr(test, "on_missing", None)) as harness:
                test(GuardContract(), harness)
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - whatever it is, it was noticed
            return name, examples
    return "", examples


def _tests(contract: type) -> Iterator[tuple[str, Any]]:
    """The examples in the order in which pytest runs them."""
    for part in contract.__mro__:
        yield from ((name, test) for name, test in vars(part).items() if name.startswith("test_"))


def _by_machine(machine: type[RuleBasedStateMachine], max_examples: int, seed: int | None) -> tuple[str, int]:
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
    except Exception as exc:  # noqa: BLE001 - whatever it is, it was noticed
        return str(exc).partition("\n")[0] or type(exc).__name__, failed
    return "", examples
