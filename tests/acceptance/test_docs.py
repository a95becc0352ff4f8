"""Every code block of the README and the docs is run, page by page, as a reader would run it.

``python`` blocks of a page run in order in one namespace; one with a ``title`` is written to that file instead.
``console`` blocks run in between, as one shell script each, with ``fencing`` on the path. ``text`` and blocks without a
language are not run.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.etcd_server import Etcd
from support.servers import available

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def program(page: Path) -> str:
    """Put the page's blocks together into one Python program."""
    parts = ["import subprocess as _subprocess"]
    for language, title, body in BLOCK.findall(page.read_text("utf-8")):
        if language == "python" and title:
            parts.append(f"open({title!r}, 'w').write({body!r})")
        elif language == "python":
            parts.append(body)
        elif language == "console":
            script = "\n".join(line.removeprefix("$ ") for line in body.splitlines())
            parts.append(f"_subprocess.run(['bash', '-euc', {script!r}], check=True, timeout=240)")
    return "\n".join(parts)


WITH_BLOCKS = [
    page for page in PAGES if "```python" in page.read_text("utf-8") or "```console" in page.read_text("utf-8")
]


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.usefixtures("durable")
def test_the_blocks_of_the_page_run(page: Path, tmp_path: Path, pg_dsn: str, valkey_url: str) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path),
        "FENCING_DSN": pg_dsn,
        "REDIS_URL": valkey_url,
        "SHOP_URL": pg_dsn.replace("postgresql://", "postgresql+psycopg://", 1),
    }
    (tmp_path / "page.py").write_text(program(page))
    with contextlib.ExitStack() as stack:
        if "ETCD_URL" in page.read_text("utf-8"):
            with available():
                environment["ETCD_URL"] = stack.enter_context(Etcd()).url
        done = subprocess.run(
            [sys.executable, "page.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert done.returncode == 0, f"{page.name}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def test_the_pages_link_to_what_exists() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not broken


def test_the_readme_links_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    pages = [str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md"))]
    assert [page for page in pages if f"]({page})" not in readme] == []


def test_the_readmes_figures_are_those_of_the_comparison() -> None:
    [told] = [
        part for part in (ROOT / "README.md").read_text("utf-8").split("\n\n") if part.startswith("What it costs")
    ]
    compared = (ROOT / "docs" / "explanation" / "compared.md").read_text("utf-8")
    figures = re.findall(r"\d[\d,.]*\d", told)
    assert figures and [figure for figure in figures if figure not in compared] == []


def test_ci_calls_the_readmes_test_command() -> None:
    commands = re.findall(r"^```\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    test_command = commands[1].strip().split("&&")[-1].strip()
    assert test_command == ".venv/bin/python -m pytest"
    assert f"\n{test_command}\n" in (ROOT / ".ci" / "run").read_text("utf-8")
