"""``fencing marks`` as a person calls it, over SQL databases and Redis."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import sqlalchemy as sa

from adapters.sql import create_all
from fencing import Token, errors, raise_fence
from scheduler.console.cli import main
from scheduler.console.embedded import Valkey

HELD, ETCD = Token(41, "old-lock", "a"), Token(3, "etcd", "c1")


class Console:
    """The console script, in this process, with the downstream as its target."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self._capsys = capsys

    def __call__(self, *arguments: str, status: int = 0) -> str:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["marks", *arguments, "--target", self.url])
        output, error = self._capsys.readouterr()
        assert (ended.value.code or 0) == status, output + error
        return output + error

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture(params=["sqlite", "redis"])
def ground(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[tuple[Console, Any]]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'shop.db'}"
        engine = sa.create_engine(url)
        create_all(engine)
        yield Console(url, capsys), engine
        engine.dispose()
    else:
        server: Valkey = request.getfixturevalue("valkey")
        client = redis.Redis.from_url(server.url)
        yield Console(server.url, capsys), client
        client.close()


def test_a_resource_is_looked_at_and_given_to_another_issuer(ground: tuple[Console, Any], tmp_path: Path) -> None:
    console, target = ground
    name = f"{tmp_path.name}/7"  # the server is shared
    raise_fence(target, name, token=HELD)
    with pytest.raises(errors.IssuerMismatchError):
        raise_fence(target, name, token=ETCD)
    [listed] = console.json("list", tmp_path.name)
    assert (listed["resource"], listed["token"]) == (name, str(HELD))
    assert str(HELD) in console("list", tmp_path.name)
    shown = console.json("show", name)
    assert shown["mark"]["token"] == str(HELD)
    assert "IssuerMismatchError" in shown["refusals"][0]
    assert "reason" in console("adopt", name, str(ETCD), status=2)
    console("adopt", name, str(ETCD), "--reason", "moved, ticket 315", "--actor", "ann")
    raise_fence(target, name, token=ETCD)
    story = console("show", name)
    assert "ticket 315" in story
    assert "ann" in story
    assert console.json("show", f"{tmp_path.name}/none")["mark"] is None


def test_marks_are_compacted_in_sql_alone(ground: tuple[Console, Any], tmp_path: Path) -> None:
    console, target = ground
    name = f"{tmp_path.name}/8"
    raise_fence(target, name, token=HELD)
    call = ("compact", "old-lock/a/42", "--idle", "0", "--reason", "yearly")
    if isinstance(target, redis.Redis):
        assert "for SQL databases" in console(*call, status=2)
        return
    assert console.json(*call) == {"removed": 1, "floor": "old-lock/a/42"}
    with pytest.raises(errors.StaleTokenError):
        raise_fence(target, name, token=HELD)


def test_what_is_no_target_or_token_is_refused(ground: tuple[Console, Any]) -> None:
    console, target = ground
    assert "token" in console("compact", "42", "--reason", "x", status=2).lower()
    if isinstance(target, redis.Redis):
        assert "takes a TOKEN" in console("adopt", "a", "etcd", "--reason", "x", status=1)
    console.url = "sqlite:////nowhere/at/all.db"
    assert "no SQLite database at /nowhere/at/all.db" in console("list", status=1)
