"""Running a suite against a planted bug until the first example that notices it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.stateful import run_state_machine_as_test

from fencing.testing._contract import GuardContract
from fencing.testing._downstream import Downstream
from fencing.testing._harness import Harness
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


def kill(bug: PlantedBug, suite: Suite, *, max_examples: int = 200) -> Kill:
    """Run the suite against the bug: the same examples each time, no shrinking, at most ``max_examples`` of them."""
    began = time.monotonic()
    with bug.plant() as downstream:
        by, examples = _by_contract(downstream) if suite == "contract" else _by_machine(downstream, max_examples)
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


def _by_machine(downstream: Downstream, max_examples: int) -> tuple[str, int]:
    examples, failed = 0, 0

    class Counted(guard_machine(downstream)):  # type: ignore[misc]
        def __init__(self) -> None:
            nonlocal examples
            examples += 1
            super().__init__()

        def teardown(self) -> None:
            nonlocal failed
            if isinstance(sys.exception(), Exception) and not failed:
                failed = examples
            super().teardown()

    try:
        run_state_machine_as_test(
            Counted,
            settings=settings(
                max_examples=max_examples,
                stateful_step_count=30,
                derandomize=True,
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
