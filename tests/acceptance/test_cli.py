"""The console script as a person calls it: exit status, what is on stdout, and what a mistake says."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from psycopg.conninfo import make_conninfo
from support.jobs import Hand
from support.waiting import eventually

from fencing import Token, raise_fence
from fencing.history import Event, JsonLines, Kind
from scheduler import Bury, Job, Scheduler
from scheduler.console.cli import COMMANDS


def fencing(*arguments: str, dsn: str = "", folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "FENCING_DSN"}
    if dsn:
        environment["FENCING_DSN"] = dsn
    return subprocess.run(
        [sys.executable, "-m", "scheduler", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        timeout=240,  # a bench among them
        check=False,
    )


@pytest.fixture
def app(pg_dsn: str) -> Scheduler:
    """An application with one job of each fate, already run."""
    app = Scheduler(pg_dsn)
    app.migrate()

    @app.task("ship")
    def ship(job: Job) -> object:
        return {"parcel": job.args["n"]} if job.args["n"] else Bury("nothing to ship")

    app.enqueue("ship", {"n": 1}, key="parcel-1")
    app.enqueue("ship", {"n": 0})
    app.run_until_idle()
    app.close()
    return app


def test_help_needs_no_database_and_lists_every_command() -> None:
    done = fencing("--help")
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


def test_migrate_says_what_it_did_and_then_that_there_is_nothing_to_do(pg_dsn: str) -> None:
    first, second = (json.loads(fencing("migrate", "--json", dsn=pg_dsn).stdout) for _ in range(2))
    assert first == {"schema": "fencing", "applied": ["0001_spine"]}
    assert second == {"schema": "fencing", "applied": []}
    other = fencing("migrate", "--schema", "second", "--issuer", "billing", dsn=pg_dsn)
    assert other.returncode == 0
    with psycopg.connect(pg_dsn) as connection:
        names = [connection.execute(f"select name from {schema}.issuer").fetchone() for schema in ("fencing", "second")]
    assert names[0][0].startswith("fencing-")
    assert names[1][0].startswith("billing-")


def test_a_bump_begins_a_new_lineage_above_every_number_and_is_audited(app: Scheduler, pg_dsn: str) -> None:
    before = json.loads(fencing("issuer", "show", "--json", dsn=pg_dsn).stdout)
    assert before["current"]
    assert fencing("issuer", "bump", dsn=pg_dsn).returncode == 2
    bumped = fencing("issuer", "bump", "--reason", "restored data alone", "--actor", "ann", "--json", dsn=pg_dsn)
    assert bumped.returncode == 0
    after = json.loads(fencing("issuer", "show", "--json", dsn=pg_dsn).stdout)
    with psycopg.connect(pg_dsn) as connection:
        newest = connection.execute("select max(token) from fencing.attempt").fetchone()[0]
        audited = connection.execute("select actor, reason from fencing.act where subject = 'issuer'").fetchall()
    assert after["floor"] == json.loads(bumped.stdout)["floor"] > newest
    assert (after["name"], after["lineage"] != before["lineage"]) == (before["name"], True)
    assert audited == [("ann", "restored data alone")]
    app.enqueue("ship", {"n": 1})
    app.run_until_idle()
    app.close()
    with psycopg.connect(pg_dsn) as connection:
        assert connection.execute("select max(token) from fencing.attempt").fetchone()[0] >= after["floor"]


def test_jobs_are_listed_and_their_stories_told(app: Scheduler, pg_dsn: str) -> None:
    listed = json.loads(fencing("jobs", "list", "--json", dsn=pg_dsn).stdout)
    assert [(job["id"], job["status"]) for job in listed] == [(2, "dead"), (1, "completed")]
    assert [
        job["id"] for job in json.loads(fencing("jobs", "list", "--status", "dead", "--json", dsn=pg_dsn).stdout)
    ] == [2]
    told = json.loads(fencing("jobs", "show", "1", "--json", dsn=pg_dsn).stdout)
    assert (told["result"], told["key"], told["attempts"][0]["outcome"]) == ({"parcel": 1}, "parcel-1", "completed")
    assert told["attempts"][0]["token"] == told["token"]
    text = fencing("jobs", "show", "2", dsn=pg_dsn)
    assert text.returncode == 0
    assert "nothing to ship" in text.stdout
    assert text.stdout.index("created") < text.stdout.index("attempt 1 claimed") < text.stdout.index("attempt 1 dead")


def test_what_is_not_there_is_told_from_a_wrong_call(app: Scheduler, pg_dsn: str) -> None:
    """One rule for all: status 1 where the same call would be right if something else were there."""
    why = ("--reason", "x")
    for arguments in (
        ("jobs", "show", "3"),
        ("jobs", "cancel", "3", *why),
        ("jobs", "bury", "3", *why),
        ("jobs", "replay", "3", *why),
        ("jobs", "cancel", "1", *why),  # it has ended already
        ("schedules", "show", "nightly"),
        ("schedules", "next", "nightly"),
        ("schedules", "pause", "nightly"),
        ("schedules", "delete", "nightly", *why),
        ("schedules", "backfill", "nightly", "2026-01-01Z", "2026-01-02Z"),
    ):
        done = fencing(*arguments, dsn=pg_dsn)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1), (arguments, done.stderr)


@pytest.mark.usefixtures("durable")
def test_the_doctor_is_content_with_a_fresh_install_and_names_what_is_broken(app: Scheduler, pg_dsn: str) -> None:
    well = fencing("doctor", "--json", dsn=pg_dsn)
    findings = {finding["check"]: finding["severity"] for finding in json.loads(well.stdout)}
    assert well.returncode == 0
    assert findings["issuer"] == "ok"
    assert findings["dead jobs"] == "warning"
    with psycopg.connect(pg_dsn, autocommit=True) as connection:
        # As after a failover to a server whose clock is behind the old server's last identity change.
        connection.execute("update fencing.issuer set floor = 9007199254740000")
    ill = fencing("doctor", dsn=pg_dsn)
    assert ill.returncode == 1
    assert "BROKEN" in ill.stdout
    assert "clock is behind" in ill.stdout


@pytest.mark.usefixtures("durable")
def test_the_doctor_compares_an_application_with_what_is_stored(app: Scheduler, pg_dsn: str, tmp_path: Path) -> None:
    tmp_path.joinpath("shop.py").write_text(
        "from scheduler import Scheduler\n"
        f"app = Scheduler({pg_dsn!r})\n"
        "app.task('ship')(lambda job: None)\n"
        "app.schedule('nightly', '0 3 * * *', tz='UTC', task='ship')\n"
    )

    def checks() -> dict[str, tuple[str, str]]:
        done = fencing("doctor", "shop:app", "--json", folder=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return {one["check"]: (one["severity"], one["message"]) for one in json.loads(done.stdout)}

    found = checks()
    assert found["tasks of waiting jobs"][0] == found["tasks of schedules"][0] == "ok"
    assert found["declared schedules"] == ("warning", "not as the application declares them: 'nightly' (not stored)")
    fencing("schedules", "sync", "shop:app", folder=tmp_path)
    found = checks()
    assert found["declared schedules"][0] == found["schedules of earlier code"][0] == "ok"
    app.task("pack")(print)
    app.schedule("yearly", "0 3 1 1 *", tz="UTC", task="ship")
    app.sync_schedules()
    app.enqueue("pack", queue="slow")
    app.enqueue("pack", exclusive="parcel")
    app.put_schedule("weekly", "0 3 * * 1", tz="UTC", task="pack", reason="a test")
    app.put_schedule("nightly", "0 4 * * *", tz="UTC", task="ship", reason="a test")
    app.close()
    found = checks()
    assert found["tasks of waiting jobs"] == (
        "warning",
        "jobs wait for tasks that it does not know: 'pack' in queue 'default', 'pack' in queue 'slow'",
    )
    assert found["tasks of schedules"][1].endswith("'weekly' (task 'pack')")
    assert found["declared schedules"][1].endswith("'nightly' (stored otherwise)")
    assert found["schedules of earlier code"] == (
        "warning",
        "an application declared them, and this one does not: 'yearly'",
    )


@pytest.mark.usefixtures("durable")
def test_the_doctor_sees_a_sequence_that_was_set_back_and_a_bump_mends_it(app: Scheduler, pg_dsn: str) -> None:
    with psycopg.connect(pg_dsn, autocommit=True) as connection:
        connection.execute("select setval('fencing.token', 5)")
    ill = fencing("doctor", "--json", dsn=pg_dsn)
    assert ill.returncode == 1
    [broken] = [one for one in json.loads(ill.stdout) if one["severity"] == "broken"]
    assert (broken["check"], "set back" in broken["message"]) == ("issuer", True)
    fencing("issuer", "bump", "--reason", "the sequence was set back", dsn=pg_dsn)
    assert fencing("doctor", dsn=pg_dsn).returncode == 0


def test_metrics_show_lag_outcomes_and_what_is_late(app: Scheduler, pg_dsn: str) -> None:
    with psycopg.connect(pg_dsn, autocommit=True) as connection:
        connection.execute("insert into fencing.queue (name, acceptable_lag, changed_at) values ('default', 5, now())")
        connection.execute(
            "insert into fencing.worker values ('gone', now(), now() - interval '2 m', '{mail}', 8, 1, 0.2, 3)"
        )
        connection.execute(
            "insert into fencing.job (queue, task, args, priority, due_at, max_attempts, created_at)"
            " values ('default', 'nobody knows', '{}', 0, now() - interval '100 s', 5, now())"
        )
        connection.execute("update fencing.measure set refused = 31, lost = 32")
    shown = fencing("metrics", dsn=pg_dsn)
    assert shown.returncode == 0, shown.stderr
    assert "LATE" in shown.stdout
    heading, row = (line.split() for line in shown.stdout.splitlines() if line.startswith(("queue", "default")))
    assert heading[-4:] == ["dead", "refused", "lost", "ended/s"]
    assert row[-4:-1] == ["1", "31", "32"]
    assert "completed 1, dead 1" in shown.stdout
    assert "worker gone: mail; 1 running" in shown.stdout
    measures = json.loads(fencing("metrics", "--json", dsn=pg_dsn).stdout)
    (queue,) = measures["queues"]
    assert (queue["claimed"], queue["due"], queue["lag_exceeded"]) == (2, 1, True)
    assert queue["lag"]["p99"] > 0
    assert fencing("metrics", "--window", "7200", dsn=pg_dsn).returncode == 2
    findings = {one["check"]: one for one in json.loads(fencing("doctor", "--json", dsn=pg_dsn).stdout)}
    assert findings["lag of queue 'default'"]["severity"] == "warning"
    assert "5 s are acceptable" in findings["lag of queue 'default'"]["message"]
    assert findings["worker gone"]["severity"] == "warning"


def test_the_doctor_sees_a_clock_that_a_test_left_behind(app: Scheduler, pg_dsn: str) -> None:
    with psycopg.connect(pg_dsn, autocommit=True) as connection:
        connection.execute(
            "create or replace function fencing.clock() returns timestamptz language sql volatile"
            " as 'select clock_timestamp() - interval ''1 hour'' '"
        )
    done = fencing("doctor", "--json", dsn=pg_dsn)
    assert done.returncode == 1
    assert {one["check"]: one["severity"] for one in json.loads(done.stdout)}["clock"] == "broken"


def test_the_doctor_looks_at_downstreams(tmp_path: Path, valkey_url: str) -> None:
    typo = fencing("doctor", "--target", f"sqlite:///{tmp_path}/x.db")
    assert (typo.returncode, (tmp_path / "x.db").exists()) == (1, False)
    assert "no SQLite database at" in typo.stderr
    (tmp_path / "x.db").touch()
    missing = fencing("doctor", "--target", f"sqlite:///{tmp_path}/x.db")
    assert missing.returncode == 1
    assert "create_all" in missing.stdout
    gone = ("--target", "postgresql://ann:secret@127.0.0.1:1/x", "--target", "redis://127.0.0.1:1")
    done = fencing("doctor", *gone, "--target", valkey_url, "--json")
    found = json.loads(done.stdout)
    assert [one["check"] for one in found if one["severity"] == "broken"] == ["reachable", "reachable"], done.stderr
    assert "redis-version" in {one["check"] for one in found}, "a server that is gone hides no other"
    assert (done.returncode, "secret" in done.stdout) == (1, False)
    done = fencing("doctor", "--target", valkey_url, "--json")
    assert {finding["where"].partition(":")[0] for finding in json.loads(done.stdout)} == {"redis"}


def test_the_doctor_finds_that_the_scheduler_s_server_is_gone_and_looks_at_the_downstreams_all_the_same(
    valkey_url: str,
) -> None:
    gone = "postgresql://ann:secret@127.0.0.1:1/x"
    done = fencing("doctor", "--dsn", gone, "--target", valkey_url, "--json")
    found = {one["check"]: one for one in json.loads(done.stdout)}
    assert (done.returncode, done.stderr) == (1, "")
    assert (found["reachable"]["severity"], found["reachable"]["where"]) == ("broken", "scheduler 'fencing'")
    assert "redis-version" in found
    assert "secret" not in done.stdout


@pytest.mark.usefixtures("durable")
def test_the_doctor_finds_marks_that_the_issuer_has_not_reached(app: Scheduler, pg_dsn: str, valkey_url: str) -> None:
    """The issuer's data were restored alone: the marks know better."""
    with app.lease("a", ttl=30) as lease, redis.Redis.from_url(valkey_url) as client:
        raise_fence(client, "a", token=lease.token)
        raise_fence(client, "b", token=Token(2**62, "another", "a"))
        arguments = ("doctor", "--target", valkey_url, "--json")
        found = json.loads(fencing(*arguments, dsn=pg_dsn).stdout)
        assert [one["severity"] for one in found if one["check"] == "issuer" and "redis" in one["where"]] == ["ok"]
        ahead = Token(lease.token.value + 1000, lease.token.issuer, lease.token.lineage)
        raise_fence(client, "c", token=ahead)
    done = fencing(*arguments, dsn=pg_dsn)
    assert done.returncode == 1
    [broken] = [one for one in json.loads(done.stdout) if one["severity"] == "broken"]
    assert (broken["check"], "issuer bump" in broken["remedy"], "'c'" in broken["message"]) == ("issuer", True, True)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("jobs", "list"), 2, "FENCING_DSN"),
        (("jobs", "list"), 2, "--dsn"),
        (("jobs", "list", "--dsn", "mysql://x/y"), 2, "PostgreSQL"),
        (("jobs", "list", "--dsn", "host=127.0.0.1 port=1 dbname=x"), 1, "connect"),
        (("migrate", "--dsn", "host=x", "--schema", "Robert'; drop"), 2, "schema="),
        (("worker", "no_such_module:app"), 2, "no_such_module"),
        (("worker", "json:dumps"), 2, "not a Scheduler"),
        (("worker", "json:dumps", "--log-level", "LOUD"), 2, "--log-level"),
        (("worker", "json"), 2, "MODULE:ATTRIBUTE"),
        (("bench", "--only", "nothing"), 2, "known"),
        (("bench", "scheduler", "--only", "drain", "nothing"), 2, "called nothing"),
        (("bench", "drain"), 2, "a benchmark goes after --only"),
        (("doctor", "json:dumps", "--dsn", "postgresql://x"), 2, "leave --dsn away"),
        (("doctor", "json:dumps", "--schema", "x"), 2, "leave --schema away"),
        (("outbox", "relay", "json:dumps", "--transport", "smtp://x", "--dsn", "dbname=x"), 2, "leave --dsn away"),
        (("doctor", "--target", "nonsense"), 2, "MODULE:ATTRIBUTE"),
        (("doctor", "--target", "no_such_module:engine"), 2, "no_such_module"),
        (("doctor", "--target", "json:engine"), 2, "'json' has no 'engine'"),
        (("doctor", "--target", "json:dumps"), 2, "no guard knows"),
        (("doctor", "--target", "foo://x"), 2, "no database under this URL"),
        (("jobs", "list", "--dsn", "postgresql://127.0.0.1:1/x", "--most", "-1"), 2, "--most"),
        (("schedules", "show", "x", "--dsn", "postgresql://127.0.0.1:1/x", "--most", "-1"), 2, "--most"),
        (("frobnicate",), 2, "No such command"),
    ],
)
def test_a_mistake_says_what_is_wrong_without_a_traceback(arguments: tuple[str, ...], status: int, says: str) -> None:
    done = fencing(*arguments)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("jobs", "list"), "migrate --print-grants"),
        (("migrate", "--schema", "another"), "may create and own the schema"),
    ],
)
def test_a_role_without_privileges_is_told_how_to_get_them(
    app: Scheduler, pg_dsn: str, arguments: tuple[str, ...], says: str
) -> None:
    name = f"bare_{os.getpid()}_{arguments[0]}"
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        owner.execute(f"create role {name} login")
        try:
            done = fencing(*arguments, dsn=make_conninfo(pg_dsn, user=name))
        finally:
            owner.execute(f"drop role {name}")
    assert (done.returncode, done.stdout) == (1, "")
    assert "permission denied" in done.stderr
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "status", "says"),
    [
        ("size = int('nine')", 2, "invalid literal"),
        ("app.schedule('nightly', '0 3 * * *', tz='UTC', task='ship')", 2, "no task 'ship' is registered"),
        ("import no_such_package", 1, "No module named 'no_such_package'"),
        ("import sho", 1, "No module named 'sho'"),  # with which the application's own name begins
        ("from adapters.redis import nothing", 1, "cannot import name 'nothing'"),
    ],
)
def test_an_application_that_cannot_be_imported_is_told_the_line(
    tmp_path: Path, line: str, status: int, says: str
) -> None:
    (tmp_path / "shop.py").write_text(f"from scheduler import Scheduler\napp = Scheduler()\n{line}\n")
    done = fencing("worker", "shop:app", folder=tmp_path)
    assert (done.returncode, done.stdout) == (status, "")
    assert says in done.stderr
    assert done.stderr.splitlines()[-1] == f"  in {tmp_path}/shop.py, line 3: {line}"


def test_a_folder_of_the_applications_that_hides_a_package_of_ours_is_named(tmp_path: Path) -> None:
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "__init__.py").touch()
    (tmp_path / "shop_jobs.py").write_text("from adapters.sql import create_all\n")
    call = "from scheduler.console.cli import main; main(['worker', 'shop_jobs:app'])"  # as the console script does
    done = subprocess.run(
        [sys.executable, "-P", "-c", call], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 1
    assert f"is shadowed by {tmp_path}/adapters" in done.stderr
    assert "rename that folder" in done.stderr


def test_a_checkout_beside_the_installed_copy_is_not_to_be_renamed(tmp_path: Path) -> None:
    for file in ("fencing/__init__.py", "fencing/_registry.py", "adapters/__init__.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    call = "from scheduler.console.cli import main; main(['worker', 'shop_jobs:app'])"  # as the console script does
    done = subprocess.run(
        [sys.executable, "-P", "-c", call], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 1
    assert f"pip install -e {tmp_path}" in done.stderr
    assert "rename" not in done.stderr


def test_grants_are_printed_and_nothing_is_asked_of_a_database() -> None:
    done = fencing("migrate", "--print-grants", "--role", "Shop App", "--schema", "jobs")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == 'grant usage on schema "jobs" to "Shop App";'
    assert 'grant select, insert, update, delete on table "jobs"."job" to "Shop App";' in lines
    assert all(line.startswith("grant ") and line.endswith(' to "Shop App";') for line in lines)


def test_bench_prints_one_ratio_for_each_name(pg_dsn: str) -> None:
    """With next to no work: the figures say nothing, but everything that would be measured runs."""
    done = fencing("bench", "scheduler", "--json", "--rounds", "1", "--scale", "0.01", dsn=pg_dsn)
    assert done.returncode in (0, 1), done.stderr
    figures = json.loads(done.stdout)
    flat = {"old_snapshot", "finished_rows", "future_rows", "many_workers"}
    assert set(figures) == {"drain", "latency_p50", "latency_p99", "enqueue", "materialise"} | flat
    for one in figures.values():
        assert set(one) == {"ours", "base", "ratio", "better", "goal", "ok"}
        reached = one["ratio"] >= one["goal"] if one["better"] == "higher" else one["ratio"] <= one["goal"]
        assert one["ok"] == reached
    assert done.returncode == (0 if all(one["ok"] for one in figures.values()) else 1)


def test_a_schema_that_is_not_there_is_said_so(pg_dsn: str) -> None:
    for arguments in (("jobs", "list"), ("doctor",)):
        done = fencing(*arguments, dsn=pg_dsn)
        assert done.returncode == 1
        assert "fencing migrate" in done.stdout + done.stderr
        assert "LINE 1" not in done.stdout + done.stderr, "an excerpt of our SQL is of no use to whoever reads this"


def test_lists_show_what_was_asked_for(app: Scheduler, pg_dsn: str) -> None:
    app.task("pack")(lambda job: Bury("no box"))
    app.enqueue_many("pack", [1, 2], queue="boxes")
    app.run_until_idle(["boxes"])
    app.enqueue("pack", queue="boxes")
    app.close()

    def listed(*arguments: str) -> list[int]:
        done = fencing(*arguments, "--json", dsn=pg_dsn)
        assert done.returncode == 0, done.stderr
        return [job["id"] for job in json.loads(done.stdout)]

    assert listed("jobs", "list") == [5, 4, 3, 2, 1]
    assert listed("jobs", "list", "--queue", "boxes") == [5, 4, 3]
    assert listed("jobs", "list", "--task", "ship") == [2, 1]
    assert listed("jobs", "list", "--status", "ready") == [5]
    assert listed("jobs", "list", "--most", "2") == [5, 4]
    assert listed("jobs", "list", "--most", "2", "--before", "4") == [3, 2]
    assert listed("dead", "list") == [2, 3, 4]
    assert listed("dead", "list", "--queue", "boxes") == [3, 4]
    assert listed("dead", "list", "--task", "ship") == [2]
    assert listed("dead", "list", "--since", "2100-01-01T00:00Z") == []
    assert listed("dead", "list", "--most", "1") == [2]
    assert listed("dead", "list", "--most", "1", "--after", "2") == [3]
    replay = ("dead", "replay", "--queue", "boxes", "--reason", "x", "--json")
    assert json.loads(fencing(*replay, "--limit", "1", dsn=pg_dsn).stdout)["replayed"] == [3]
    told = fencing("jobs", "show", "2", dsn=pg_dsn).stdout
    assert re.search(r"^  token: fencing-\w+/[\w-]+/\d+$", told, re.MULTILINE)
    for window in (60, 3600):
        measured = json.loads(fencing("metrics", "--window", str(window), "--json", dsn=pg_dsn).stdout)
        assert window <= measured["window"] <= window + 60


def test_a_worker_does_what_its_options_say(app: Scheduler, pg_dsn: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from scheduler import Scheduler\napp = Scheduler()\napp.task('ship')(lambda job: None)\n"
    )
    app.enqueue_many("ship", range(3), queue="mail")
    here = app.enqueue("ship", queue="here").id
    app.close()
    options = ["--queue", "mail", "--queue", "more", "--concurrency", "3", "--batch", "1", "--metrics-port", "0"]
    command = [sys.executable, "-m", "scheduler", "worker", "shop:app", *options, "--log-format", "json", "--json"]
    with (
        psycopg.connect(pg_dsn, autocommit=True) as connection,
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "FENCING_DSN": pg_dsn},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as worker,
    ):
        try:
            eventually(
                lambda: (
                    connection.execute(
                        "select 3 = (select count(*) from fencing.job where queue = 'mail' and status = 'completed')"
                        " and exists (select from fencing.worker where running = 0)"
                    ).fetchone()
                    == (True,)
                ),
                "its jobs are done",
            )
            told = connection.execute("select queues, concurrency from fencing.worker").fetchall()
            worker.send_signal(signal.SIGTERM)
            output, errors = worker.communicate(timeout=60)
        finally:
            worker.kill()
        claims = connection.execute(
            "select count(distinct a.claimed_at) from fencing.attempt a join fencing.job j on j.id = a.job_id"
            " where j.queue = 'mail'"
        ).fetchone()
    assert worker.returncode == 0, errors
    assert told == [(["mail", "more"], 3)]
    assert claims == (3,), "one claim for each"
    assert json.loads(output)["completed"] == 3
    lines = [json.loads(line)["message"] for line in errors.splitlines()]
    assert any("metrics at http://127.0.0.1:" in line for line in lines)
    assert any("queues mail, more; tasks ship" in line for line in lines)
    assert json.loads(fencing("jobs", "show", str(here), "--json", dsn=pg_dsn).stdout)["status"] == "ready"


def test_a_job_is_found_by_its_key(app: Scheduler, pg_dsn: str) -> None:
    (job,) = json.loads(fencing("jobs", "list", "--key", "parcel-1", "--json", dsn=pg_dsn).stdout)
    assert (job["id"], job["key"]) == (1, "parcel-1")


def test_a_dead_job_is_listed_replayed_buried_and_cancelled_from_the_command_line(app: Scheduler, pg_dsn: str) -> None:
    (dead,) = json.loads(fencing("dead", "list", "--error", "nothing", "--since", "1h", "--json", dsn=pg_dsn).stdout)
    assert (dead["id"], dead["task"], dead["reason"]) == (2, "ship", "nothing to ship")
    assert "nothing to ship" in fencing("dead", "list", dsn=pg_dsn).stdout
    assert json.loads(fencing("dead", "list", "--task", "other", "--json", dsn=pg_dsn).stdout) == []

    tried = fencing("dead", "replay", "--task", "ship", "--reason", "x", "--dry-run", dsn=pg_dsn)
    assert tried.stdout == "1 jobs would be ready again: 2\n"
    done = fencing("dead", "replay", "2", "--reason", "stock is back", "--actor", "ann", "--json", dsn=pg_dsn)
    assert json.loads(done.stdout) == {"dry_run": False, "replayed": [2], "skipped": {}}
    again = fencing("dead", "replay", "2", "--reason", "x", dsn=pg_dsn)
    assert again.returncode == 1
    assert "job 2 stays: it is not dead" in again.stdout

    buried = fencing("jobs", "bury", "2", "--reason", "no", "--actor", "ann", "--json", dsn=pg_dsn)
    assert json.loads(buried.stdout) == {"id": 2, "before": "ready", "state": "dead", "fenced": True}
    assert fencing("jobs", "replay", "2", "--reason", "x", dsn=pg_dsn).stdout == "job 2 is ready again\n"
    assert fencing("jobs", "cancel", "2", "--reason", "x", dsn=pg_dsn).stdout == "job 2 was ready, now cancelled\n"
    wrong = fencing("jobs", "cancel", "2", "--reason", "x", dsn=pg_dsn)
    assert (wrong.returncode, wrong.stderr) == (
        1,
        "fencing: job 2 is cancelled already: it is neither waiting nor running\n",
    )

    told = fencing("jobs", "show", "2", dsn=pg_dsn).stdout
    place = 0
    for words in (
        "created",
        "attempt 1 dead",
        "job replayed",
        "stock is back",
        "job buried",
        "job replayed",
        "job cancelled",
    ):
        place = told.index(words, place) + 1


SHOP = """
import sqlalchemy
from adapters.sql import create_all
from scheduler import Scheduler

shop = sqlalchemy.create_engine("sqlite:///shop.db")
create_all(shop)
app = Scheduler()
app.task("ship", fences=lambda job: [(shop, "parcel/1")])(print)
"""


def test_a_running_job_is_cancelled_and_fenced_where_its_application_is_named(
    app: Scheduler, pg_dsn: str, tmp_path: Path
) -> None:
    (tmp_path / "shop_jobs.py").write_text(SHOP)
    numbers = [app.enqueue("ship").id for _ in range(2)]
    app.close()
    hand = Hand(pg_dsn, {"ship": 30.0})
    assert len(hand.claim()) == 2
    hand.close()
    named = ["--app", "shop_jobs:app", "--reason", "x"]
    done = fencing("jobs", "cancel", str(numbers[0]), *named, "--json", dsn=pg_dsn, folder=tmp_path)
    assert json.loads(done.stdout) == {"id": numbers[0], "before": "leased", "state": "cancelled", "fenced": True}
    plain = fencing("jobs", "cancel", str(numbers[1]), "--reason", "x", dsn=pg_dsn)
    assert "raised by the next worker that knows the task" in plain.stdout
    assert "fences not raised yet" in fencing("jobs", "show", str(numbers[1]), dsn=pg_dsn).stdout
    assert "fences raised" in fencing("jobs", "show", str(numbers[0]), dsn=pg_dsn).stdout
    both = fencing("jobs", "cancel", "1", *named, "--dsn", pg_dsn, folder=tmp_path)
    assert both.returncode == 2
    assert "leave --dsn away" in both.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["dead", "replay", "--reason", "x"], "say which"),
        (["dead", "replay", "--all", "--task", "t", "--reason", "x"], "say which"),
        (["dead", "replay", "--all"], "Missing option '--reason'"),
        (["dead", "list", "--since", "yesterday"], "is no moment"),
        (["dead", "list", "--since", "2026-11-29T09:00:00"], "has no offset"),
        (["dead", "list", "--since", "2026-11-29"], "write 2026-11-29+00:00"),
        (["jobs", "cancel", "1"], "Missing option '--reason'"),
    ],
)
def test_an_act_that_does_not_say_what_or_why_is_a_wrong_call(arguments: list[str], says: str) -> None:
    done = fencing(*arguments, dsn="postgresql://nowhere")
    assert done.returncode == 2
    assert says in done.stderr


def test_check_explains_a_history_or_shows_the_fewest_events_that_it_cannot(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    moment = itertools.count(1)

    def write(path: Path, kind: Kind, value: int, **more: Any) -> None:
        record = JsonLines(path)
        began, ended = next(moment), next(moment)
        record(Event(kind, "accepted", "me", "db", ("a",), f"i/l/{value}", began=began, ended=ended, **more))
        record.close()

    write(good, "write", 1)
    write(bad, "raise", 2)
    for path in (good, bad):
        done = fencing("check", str(path))
        assert (done.returncode, done.stderr) == (0, "")
        assert "explained: no promise is broken" in done.stdout
    write(good, "write", 1)
    page = tmp_path / "page.html"
    done = fencing("check", str(good), str(bad), "--html", str(page))
    assert done.returncode == 1
    assert "stale write accepted: 'a' in db: i/l/1 was accepted after i/l/2" in done.stdout
    assert "stale write accepted: a" in page.read_text("utf-8")
    told = json.loads(fencing("check", str(good), str(bad), "--json").stdout)
    assert (told["explained"], len(told["violations"][0]["events"])) == (False, 2)
    done = fencing("check", str(good), "--html", str(tmp_path / "nowhere" / "page.html"))
    assert (done.returncode, "nowhere is not a directory" in done.stderr) == (2, True)
    for wrong, told in (
        ("rubbish\n", "line 1 of the history is not JSON"),
        ("[1]\n", "line 1 of the history is not an event: it is not an object"),
        ("", "there is nothing to check"),
    ):
        bad.write_text(wrong)
        done = fencing("check", str(bad))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("fencing: ")
        assert told in done.stderr
