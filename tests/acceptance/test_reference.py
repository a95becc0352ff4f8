"""The reference names all that is public: each name of a package's ``__all__``, each option of each command."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from inspect import isclass, isfunction
from pathlib import Path

import click
import pytest

from scheduler.console.cli import cli

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
COMMON = {"--json", "--dsn", "--schema"}  # told above the table of commands

PUBLIC = [
    "fencing",
    "fencing.history",
    "fencing.testing",
    "scheduler",
    "scheduler.testing",
    "adapters.sql",
    "adapters.redis",
    "adapters.email",
    "adapters.email.testing",
    "adapters.http",
    "adapters.etcd",
]
FOR_THE_REGISTRY = {"guard_for"}


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_in_the_reference(package: str) -> None:
    text = "\n".join(page.read_text("utf-8") for page in sorted(REFERENCE.glob("*.md")))
    module = importlib.import_module(package)
    names = set(module.__all__) - FOR_THE_REGISTRY
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", text)) == []
    coded = {name: value for name, value in vars(module).items() if isclass(value) or isfunction(value)}
    assert sorted(name for name in names & coded.keys() if not coded[name].__doc__) == []


@pytest.mark.parametrize("package", ["fencing.errors", "scheduler.errors"])
def test_every_error_is_in_the_reference(package: str) -> None:
    text = "\n".join(page.read_text("utf-8") for page in sorted(REFERENCE.glob("*.md")))
    errors = [name for name, value in vars(importlib.import_module(package)).items() if _is_error(value)]
    assert sorted(name for name in errors if name not in text) == []


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


Options = Iterator[tuple[str, list[click.Option]]]


def _commands(command: click.Command, path: tuple[str, ...], context: click.Context) -> Options:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _commands(found, (*path, name), click.Context(found, parent=context))
    else:
        yield " ".join(path), [one for one in command.params if isinstance(one, click.Option)]


def test_the_commands_and_their_options_are_those_of_the_reference() -> None:
    text = (REFERENCE / "cli.md").read_text("utf-8")
    told: dict[str, set[str]] = {}
    known = {
        name: {max(one.opts, key=len) for one in options} for name, options in _commands(cli, (), click.Context(cli))
    }
    for row in re.findall(r"^\| (`.*?) \| ", text, re.MULTILINE):
        command = max((name for name in known if row.startswith(f"`{name}")), key=len)
        told.setdefault(command, set()).update(re.findall(r"--[a-z-]+", row))
    told["schedules resume"] = told["schedules pause"]  # one row for both
    told["dead replay"] |= told["dead list"] - {"--after", "--most"}  # "the same conditions"
    everywhere = set(re.findall(r"--[a-z-]+", re.sub(r"^\|.*$", "", text, flags=re.MULTILINE))) | COMMON
    assert {name: missing for name in known if (missing := known[name] - told.get(name, set()) - everywhere)} == {}
    assert {name: unreal for name in known if (unreal := told[name] - known[name])} == {}


def test_every_command_and_option_says_what_it_is_for() -> None:
    silent = []
    for name, options in _commands(cli, (), click.Context(cli)):
        silent += [f"{name} {one.opts[0]}" for one in options if not one.help]
    assert silent == []
