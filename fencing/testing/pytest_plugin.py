"""The pytest option ``--fencing-downstream=MODULE:FACTORY``: the kit run on a downstream, with no file written.

pytest loads this wherever the distribution is installed; without the option it does nothing, and Hypothesis is
imported with the first downstream only.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from fencing.testing._downstream import LACKING, Downstream, check_methods

OPTION = "--fencing-downstream"
MARKER = "fencing_kit"
EXAMPLES = 100

_kits = pytest.StashKey["list[tuple[str, Downstream]]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("fencing", "fencing: prove an adapter")
    group.addoption(
        OPTION,
        action="append",
        default=[],
        metavar="MODULE:FACTORY",
        help="run the kit of fencing.testing, contract and state machine, on what FACTORY() returns: a Downstream "
        f"(several times for several). Its tests carry the marker {MARKER}.",
    )
    group.addoption(
        "--fencing-examples",
        type=int,
        default=EXAMPLES,
        metavar="N",
        help=f"how many examples the state machine tries on each of these downstreams (default {EXAMPLES})",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the downstreams that were asked for, before anything is collected."""
    config.addinivalue_line("markers", f"{MARKER}: a test of the kit that {OPTION} brought")
    if config.getoption("fencing_examples") < 1:
        raise pytest.UsageError("--fencing-examples takes a number from 1")
    config.stash[_kits] = [(text, _made(config, text)) for text in config.getoption("fencing_downstream")]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the kit's tests to those of the files, before ``-k`` and ``-m`` choose among them."""
    for text, downstream in config.stash[_kits]:
        kit = FencingKit.from_parent(session, name=text, nodeid=text, path=config.rootpath, downstream=downstream)
        kit.add_marker(MARKER)
        items.extend(session.genitems(kit))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what was not proved."""
    for text, downstream in config.stash.get(_kits, []):
        terminalreporter.write_sep("-", f"the kit on {downstream.name} ({text})")
        for capability in downstream.missing:
            terminalreporter.write_line(f"not proved, since it is not offered: {capability.name} ({capability.value})")
        if not downstream.missing:
            terminalreporter.write_line("offers everything that the kit asks for")
    if terminalreporter.hasopt("s"):
        return  # pytest tells every skip by itself
    skips = [report for report in terminalreporter.getreports("skipped") if MARKER not in report.keywords]
    told = [report.longrepr[2] for report in skips if isinstance(report.longrepr, tuple)]
    left_out = dict.fromkeys(reason.removeprefix("Skipped: ") for reason in told if LACKING in reason)
    if left_out:
        terminalreporter.write_sep("-", "the kit: not proved")
        for reason in left_out:
            terminalreporter.write_line(reason)


class FencingKit(pytest.Module):
    """A module that no file holds: the contract and the machine of one downstream."""

    def __init__(self, *, downstream: Downstream, **rest: Any) -> None:
        super().__init__(**rest)
        self._downstream = downstream

    def _getobj(self) -> ModuleType:
        from hypothesis import settings

        from fencing.testing import GuardContract, guard_machine

        made = self._downstream

        class TestContract(GuardContract):
            """The examples."""

            @pytest.fixture
            def downstream(self) -> Iterator[Downstream]:
                yield made

        machine = guard_machine(made).TestCase
        machine.settings = settings(
            max_examples=self.config.getoption("fencing_examples"),
            stateful_step_count=30,
            deadline=None,
            report_multiple_bugs=False,
        )
        machine.__doc__ = "The state machine."
        machine.__name__ = machine.__qualname__ = "TestMachine"
        module = ModuleType(f"fencing_kit_{made.name}")
        module.__dict__.update(TestContract=TestContract, TestMachine=machine)
        return module


def _made(config: pytest.Config, text: str) -> Downstream:
    """Import the factory and call it. Raises ``pytest.UsageError`` that says what is wrong."""
    module_name, _, path = text.partition(":")
    if not module_name or not path:
        raise pytest.UsageError(f"{OPTION} takes MODULE:FACTORY, not {text!r}")
    try:
        importlib.import_module("hypothesis")
    except ModuleNotFoundError as exc:
        raise pytest.UsageError(f"{OPTION} needs {exc.name}: pip install 'fencing-toolkit[testing]'") from exc
    here = str(config.invocation_params.dir)
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        raise pytest.UsageError(f"{OPTION}={text}: {exc}; looked in {here} and along sys.path") from exc
    for part in path.split("."):
        if not hasattr(found, part):
            raise pytest.UsageError(f"{OPTION}={text}: {found!r} has no attribute {part!r}")
        found = getattr(found, part)
    try:
        downstream = found if isinstance(found, Downstream) else found() if callable(found) else found
    except Exception as exc:
        raise pytest.UsageError(f"{OPTION}={text}: the factory raised {type(exc).__name__}: {exc}") from exc
    if not isinstance(downstream, Downstream):
        raise pytest.UsageError(
            f"{OPTION}={text}: the factory must return a fencing.testing.Downstream, not {downstream!r}"
        )
    try:
        check_methods(downstream)
    except TypeError as exc:
        raise pytest.UsageError(f"{OPTION}={text}: {exc}") from exc
    return downstream
