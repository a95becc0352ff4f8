"""``fencing schedules`` as a person calls it."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.jobs import Tables, installed_beside

from scheduler import Scheduler
from scheduler.console.cli import cli, main
from scheduler.console.embedded import Postgres

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[str]:
    yield postgres.create_database("schedules_cli")
    postgres.drop_database("schedules_cli")


@pytest.fixture
def tables(database: str) -> Iterator[Tables]:
    with installed_beside(database) as (app, tables):
        tables.set_clock(f"timestamptz '{NOON.isoformat()}'")
        app.task("report")(print)
        for name, expr in (("hourly", "0 * * * *"), ("nightly", "30 2 * * *")):
            app.put_schedule(name, expr, tz="Europe/Berlin", task="report", reason="set up", actor="ann")
        yield tables


def call(tables: Tables, *arguments: str) -> Result:
    return CliRunner().invoke(
        cli, ["schedules", *arguments, "--schema", tables.schema], env={"FENCING_DSN": tables.dsn}
    )


def data(tables: Tables, *arguments: str) -> Any:
    done = call(tables, *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_schedules_are_listed_and_shown(tables: Tables) -> None:
    listed = data(tables, "list")
    assert [(one["name"], one["state"], one["expr"], one["tz"]) for one in listed] == [
        ("hourly", "active", "0 * * * *", "Europe/Berlin"),
        ("nightly", "active", "30 2 * * *", "Europe/Berlin"),
    ]
    assert listed[1]["next_at"] == "2026-03-03T01:30:00+00:00"
    shown = data(tables, "show", "nightly")
    assert (shown["acts"][0]["actor"], shown["acts"][0]["reason"]) == ("ann", "set up")
    text = call(tables, "list").output + call(tables, "show", "nightly").output
    assert all(word in text for word in ("nightly", "30 2 * * *", "Europe/Berlin", "ann", "schedule added"))


def test_the_next_occurrences_of_one_and_of_all(tables: Tables) -> None:
    spring = datetime(2026, 3, 28, 12, tzinfo=UTC)
    tables.set_clock(f"timestamptz '{spring.isoformat()}'")
    one = data(tables, "next", "nightly", "-n", "2")
    assert [row["due_at"] for row in one] == ["2026-03-29T01:00:00+00:00", "2026-03-30T00:30:00+00:00"]
    assert one[0]["nominal"] == "2026-03-29T02:30:00"
    assert data(tables, "next", "nightly", "2") == one
    every = data(tables, "next", "-n", "14")
    assert data(tables, "next", "14") == every
    assert [row["schedule"] for row in every].count("nightly") == 1
    data(tables, "pause", "hourly")
    assert {row["schedule"] for row in data(tables, "next")} == {"nightly"}
    assert len(data(tables, "next", "hourly")) == 10, "a paused one by its name"
    assert "2026-03-29 02:30:00" in call(tables, "next", "nightly").output


def test_a_schedule_is_paused_resumed_and_deleted(tables: Tables) -> None:
    by = ("--actor", "ben", "--reason", "month's end")
    assert data(tables, "pause", "nightly", *by) == {"name": "nightly", "state": "paused", "changed": True}
    assert data(tables, "pause", "nightly", *by)["changed"] is False
    assert call(tables, "resume", "nightly").output == "schedule nightly: active\n"
    assert call(tables, "delete", "nightly").exit_code == 2, "a reason is wanted"
    assert data(tables, "delete", "nightly", *by)["state"] == "deleted"
    assert "it was deleted" in str(call(tables, "next", "nightly").exception), "it is not due any more"
    assert [one["name"] for one in data(tables, "list")] == ["hourly"]
    assert [one["state"] for one in data(tables, "list", "--deleted")] == ["active", "deleted"]
    acts = [(act["kind"], act["actor"]) for act in data(tables, "show", "nightly")["acts"]]
    assert acts[1] == ("schedule paused", "ben")
    assert [kind for kind, _ in acts] == ["schedule added", "schedule paused", "schedule resumed", "schedule deleted"]


def test_a_backfill_is_looked_at_and_made_once(tables: Tables) -> None:
    window = ("backfill", "hourly", "2026-03-02T08:30Z", "2026-03-02T12:30+01:00")
    look = data(tables, *window, "--dry-run")
    assert [row["state"] for row in look] == ["enqueued"] * 3
    assert tables.jobs() == []
    assert data(tables, *window) == look
    assert [row["state"] for row in data(tables, *window)] == ["present"] * 3
    assert len(tables.jobs()) == 3
    assert "made 0 of 3 occurrences" in call(tables, *window).output
    long_ago = ("backfill", "hourly", "2024-01-01T00:30Z", "2024-01-01T02:30Z")
    refused = call(tables, *long_ago)
    assert refused.exit_code == 1
    assert "--force" in refused.output
    assert len(data(tables, *long_ago, "--force")) == 2


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("show", "nothing"), 1, "no schedule 'nothing'"),
        (("pause", "nothing"), 1, "no schedule 'nothing'"),
        (("next", "hourly", "-n", "0"), 2, "from 1"),
        (("backfill", "hourly", "yesterday", "2026-03-02T12:00Z"), 2, "not a time"),
        (("backfill", "hourly", "2026-03-02T12:00", "2026-03-02T12:00Z"), 2, "has no zone"),
        (("backfill", "hourly", "2026-03-02T11:00Z", "2026-03-09T12:00Z"), 2, "what is still to come"),
    ],
)
def test_a_mistake_is_said(
    tables: Tables,
    arguments: tuple[str, ...],
    status: int,
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["schedules", *arguments, "--schema", tables.schema, "--dsn", tables.dsn])
    assert ended.value.code == status
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [("resume", "nightly"), ("backfill", "nightly", "2026-03-01T12:00Z", "2026-03-02T12:00Z")],
    ids=lambda arguments: arguments[0],
)
def test_zone_data_that_is_older_than_a_schedule_s_is_no_wrong_call(
    tables: Tables, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same one is right where the package is newer."""
    call(tables, "pause", "nightly")
    tables.rows("update {s}.schedule set zone_version = '2999a', zone_hash = 'x'")
    with pytest.raises(SystemExit) as ended:
        main(["schedules", *arguments, "--schema", tables.schema, "--dsn", tables.dsn])
    assert ended.value.code == 1
    assert "update the tzdata package" in capsys.readouterr().err


def test_a_worker_says_when_it_has_ended(tables: Tables, tmp_path: Path) -> None:
    """So that after a rollback the older release need not wait to be sure."""
    (tmp_path / "shop_of_one.py").write_text(
        "from scheduler import Scheduler\n"
        f"app = Scheduler({tables.dsn!r}, schema={tables.schema!r})\n"
        "app.task('report')(print)\n"
        "app.schedule('daily', '0 9 * * *', tz='UTC', task='report')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "scheduler", "worker", "shop_of_one:app"], cwd=tmp_path, stderr=subprocess.PIPE
    ) as worker:
        try:
            tables.wait_for_session("claim")  # by then it hears signals
            assert len(tables.rows("select release from {s}.presence")) == 1
            worker.send_signal(signal.SIGTERM)
            _, errors = worker.communicate(timeout=60)
        finally:
            worker.kill()
    assert worker.returncode == 0, errors.decode()
    assert tables.rows("select release from {s}.presence") == []
    assert tables.schedule("daily")["release"] is not None


def test_a_deploy_stores_what_it_declares(tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shop_of_schedules.py").write_text(
        "from scheduler import Scheduler\n"
        f"app = Scheduler({tables.dsn!r}, schema={tables.schema!r})\n"
        "app.task('report')(print)\n"
        "app.schedule('daily', '0 9 * * *', tz='UTC', task='report')\n"
    )
    older = Scheduler(tables.dsn, schema=tables.schema)
    older.task("report")(print)
    older.schedule("daily", "0 8 * * *", tz="UTC", task="report")

    def sync(*more: str) -> Result:
        return CliRunner().invoke(cli, ["schedules", "sync", "shop_of_schedules:app", "--json", *more])

    assert json.loads(sync().stdout) == {"daily": "added"}
    assert older.sync_schedules() == {"daily": "changed"}
    deferred = sync()
    assert (deferred.exit_code, json.loads(deferred.stdout)) == (1, {"daily": "deferred"})
    assert json.loads(sync("--last").stdout) == {"daily": "changed"}
    assert older.sync_schedules() == {"daily": "deferred"}, "until it is over"
    tables.set_clock(f"timestamptz '{(NOON + timedelta(minutes=10)).isoformat()}'")
    older.close()
