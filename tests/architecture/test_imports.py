"""What imports what: the rules of ``pyproject.toml``, and what is really loaded in a fresh process."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = """
import sys
before = set(sys.modules)
import {module}
new = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(new - set(sys.stdlib_module_names)))
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_rules_are_kept() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", ["fencing", "fencing.history", "fencing.testing"])
def test_the_law_loads_the_standard_library_only(module: str) -> None:
    assert run(LOADED.format(module=module)) == "fencing"


@pytest.mark.parametrize(
    ("module", "others"),
    [
        ("adapters", {"sqlalchemy", "psycopg", "redis"}),
        ("adapters.sql", {"redis", "email_validator", "hypothesis", "pytest"}),
        ("adapters.redis", {"sqlalchemy", "psycopg", "email_validator", "hypothesis", "pytest"}),
        ("adapters.email", {"redis", "hypothesis", "pytest"}),
        ("scheduler", {"adapters", "redis", "sqlalchemy", "click", "hypothesis", "pytest"}),
    ],
)
def test_a_package_loads_no_others_driver(module: str, others: set[str]) -> None:
    assert set(run(LOADED.format(module=module)).split()) & others == set()


@pytest.mark.parametrize("missing", ["hypothesis", "pytest"])
def test_the_kit_can_be_imported_without(missing: str) -> None:
    told = run(f"""
import sys
sys.modules[{missing!r}] = None
import fencing.testing
fencing.testing.MemoryGuard(), fencing.testing.Downstream, fencing.testing.GUARD_BUGS
try:
    fencing.testing.kill
except ModuleNotFoundError as error:
    print(error)
""")
    assert f"needs {missing}" in told
    assert "fencing-toolkit[testing]" in told


def test_the_kit_names_what_it_does_not_have() -> None:
    import fencing.testing

    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        fencing.testing.nonsense  # noqa: B018
