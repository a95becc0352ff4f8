"""``--fencing-downstream=MODULE:FACTORY`` as a user types it: the kit with no file written."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fencing.testing import MemoryDownstream
from fencing.testing.pytest_plugin import _made

MODULE = """
from fencing.testing import Capability, Downstream, GUARD_BUGS, MemoryDownstream, RecordingDownstream

def sound():
    return RecordingDownstream()

def broken():
    [bug] = [bug for bug in GUARD_BUGS if bug.name == "check, then write"]
    return bug.plant().__enter__()

class Boastful(MemoryDownstream):
    capabilities = MemoryDownstream.capabilities | {Capability.REOPEN}

number = 7
instance = MemoryDownstream()
"""
TEST_OF_THE_USER = "def test_of_the_user():\n    assert True\n"


CONTRACT_OF_THE_USER = """
import pytest
from fencing.testing import GuardContract, RecordingDownstream

class TestMine(GuardContract):
    @pytest.fixture
    def downstream(self):
        return RecordingDownstream()
"""


def run_pytest(place: Path, *arguments: str, first: str = "") -> subprocess.CompletedProcess[str]:
    (place / "shopkit.py").write_text(MODULE)
    (place / "test_shop.py").write_text(TEST_OF_THE_USER)
    code = f"{first}\nimport pytest, sys\nsys.exit(pytest.main(sys.argv[1:]))"
    plugin = ("-p", "fencing.testing.pytest_plugin", "-p", "no:cacheprovider")
    return subprocess.run(
        [sys.executable, "-c", code, *plugin, *arguments],
        cwd=place,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_kit_runs_beside_the_users_tests(tmp_path: Path) -> None:
    done = run_pytest(
        tmp_path,
        "-v",
        "--fencing-downstream=shopkit:sound",
        "--fencing-downstream=shopkit:instance",
        "--fencing-examples=5",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for line in (
        "test_shop.py::test_of_the_user PASSED",
        "shopkit:sound::TestContract::test_check_and_write_are_one_step PASSED",
        "shopkit:sound::TestContract::test_a_key_is_applied_once SKIPPED",
        "shopkit:sound::TestMachine::runTest PASSED",
        "shopkit:instance::TestContract::test_a_key_is_applied_once PASSED",
    ):
        assert line in done.stdout
    assert "the kit on recording memory (shopkit:sound)" in done.stdout
    assert "not proved, since it is not offered: ONCE (once=KEY: an effect applied at most once)" in done.stdout


def test_the_kit_alone_finds_a_broken_one(tmp_path: Path) -> None:
    # Without the machine: it would take its time to find the shortest story.
    chosen = ("-m", "fencing_kit", "-k", "TestContract")
    done = run_pytest(tmp_path, *chosen, "--fencing-downstream=shopkit:broken")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED shopkit:broken::TestContract::test_check_and_write_are_one_step" in done.stdout
    assert "2 deselected" in done.stdout


def test_what_a_contract_of_the_users_leaves_out_is_printed(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(CONTRACT_OF_THE_USER)
    chosen = ("test_mine.py", "-k", "key or stale_write or outlive")
    done = run_pytest(tmp_path, *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the kit: not proved" in done.stdout
    assert done.stdout.count("recording memory does not offer: once=KEY: an effect applied at most once") == 1
    assert done.stdout.count("recording memory does not offer: being closed and opened again") == 1
    told = run_pytest(tmp_path, *chosen, "-rs").stdout
    assert "the kit: not proved" not in told
    assert "recording memory does not offer: once=KEY" in told


def test_the_option_does_nothing_where_it_is_not_given_and_names_its_extra(tmp_path: Path) -> None:
    without = "import sys\nsys.modules['hypothesis'] = None"
    done = run_pytest(tmp_path, "-q", first=without)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    asked = run_pytest(tmp_path, "--fencing-downstream=shopkit:sound", first=without)
    assert asked.returncode == pytest.ExitCode.USAGE_ERROR
    assert "needs hypothesis: pip install 'fencing-toolkit[testing]'" in asked.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("shopkit", "takes MODULE:FACTORY, not 'shopkit'"),
        (":make", "takes MODULE:FACTORY"),
        ("shopkit_that_is_not_there:make", "No module named 'shopkit_that_is_not_there'"),
        ("shopkit:nothing", "has no attribute 'nothing'"),
        ("fencing.testing:Downstream", "the factory raised TypeError: Can't instantiate abstract class"),
        ("shopkit:number", "must return a fencing.testing.Downstream, not 7"),
        (
            "shopkit:Boastful",
            r"Boastful \(memory\) declares Capability.REOPEN .* write reopen\(\), or leave REOPEN out",
        ),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shopkit.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shopkit", raising=False)
    config: Any = SimpleNamespace(invocation_params=SimpleNamespace(dir=tmp_path))
    with pytest.raises(pytest.UsageError, match=told):
        _made(config, text)
    assert isinstance(_made(config, "shopkit:instance"), MemoryDownstream)
    monkeypatch.delitem(sys.modules, "shopkit")
