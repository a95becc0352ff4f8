"""``fencing outbox`` as a person calls it, over PostgreSQL and SQLite, and the relay as a process."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from support.outbox import CounterLeases, audit, mail, outbox_engine, row, url_of
from support.processes import PythonProcess
from support.prometheus import scrape
from support.waiting import eventually

from adapters.email import Outbox, Relay, SmtpTransport
from adapters.email.testing import HangUpAtDot, HeldAnswer, RefuseContent
from scheduler import Scheduler
from scheduler.console.cli import main
from scheduler.console.embedded import SmtpSink

OUTBOX = Outbox(from_="sender@example.org")


class Console:
    """The console script, in this process."""

    def __init__(self, engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url_of(engine)
        self._capsys = capsys
        self.error = ""

    def __call__(self, *arguments: str, status: int = 0) -> str:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["outbox", *arguments, "--target", self.url])
        output, self.error = self._capsys.readouterr()
        assert (ended.value.code or 0) == status, output + self.error
        return output

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture(params=["postgresql", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    pg_dsn = request.getfixturevalue("pg_dsn") if request.param == "postgresql" else ""
    made = outbox_engine(request.param, pg_dsn, tmp_path)
    yield made
    made.dispose()


@pytest.fixture
def console(engine: Engine, capsys: pytest.CaptureFixture[str]) -> Console:
    return Console(engine, capsys)


def put(engine: Engine, *keys: str, **options: Any) -> None:
    with engine.begin() as connection:
        for number, key in enumerate(keys):
            OUTBOX.put(connection, mail(number), key=key, **options)


def relayed(engine: Engine, sink: SmtpSink) -> None:
    transport = SmtpTransport(sink.host, sink.port, local_hostname="relay.test")
    Relay(engine, transport, leases=CounterLeases(engine)).run_once()


def reasons(engine: Engine) -> list[tuple[str, str, str]]:
    with engine.connect() as connection:
        found = connection.execute(
            text("select kind, actor, reason from fencing_outbox_event where reason is not null order by id")
        )
        return [tuple(one) for one in found]


def test_it_lists_and_tells_the_whole_story(engine: Engine, console: Console, smtp_sink: SmtpSink) -> None:
    put(engine, "first", "second")
    put(engine, "third", tenant="blue")
    with smtp_sink.failing(RefuseContent("552 5.3.4 too big")):
        relayed(engine, smtp_sink)
    put(engine, "fourth")
    assert [entry["key"] for entry in console.json("list")] == ["fourth", "third", "second", "first"]
    assert [entry["key"] for entry in console.json("list", "--state", "failed", "--most", "2")] == ["third", "second"]
    assert [entry["key"] for entry in console.json("list", "--tenant", "blue")] == ["third"]
    third = console.json("list", "--tenant", "blue")[0]["id"]
    assert [entry["key"] for entry in console.json("list", "--before", str(third))] == ["second", "first"]
    table = console("list")
    assert "fourth" in table
    assert "552 5.3.4 too big" in table

    story = console.json("show", "first")
    assert story["entry"]["state"] == "failed"
    assert [one["address"] for one in story["recipients"]] == ["reader0@example.org"]
    assert [event["kind"] for event in story["events"]] == ["put", "settle"]
    shown = console("show", "first")
    assert "reader0@example.org" in shown
    assert "552 5.3.4 too big" in shown
    assert "Subject: Number 0" in console("show", "first", "--message")
    console("show", "nothing", status=1)
    assert console.error == "Error: no message under the key 'nothing'\n"


def test_an_uncertain_message_is_resolved_with_a_reason(engine: Engine, console: Console, smtp_sink: SmtpSink) -> None:
    put(engine, "a", "b", "c")
    with smtp_sink.failing(HangUpAtDot(taken=False)):
        relayed(engine, smtp_sink)
        relayed(engine, smtp_sink)
    stats = console.json("stats")
    assert (stats["uncertain"], stats["pending"]) == (3, 0)
    console("resolve", "a", "--sent", "--failed", "--reason", "which of the two?", status=2)
    assert "uncertain: 3" in console("stats")
    [act] = console.json("resolve", "a", "--sent", "--reason", "it is in the server's log", "--actor", "ann")
    assert act == {"key": "a", "id": act["id"], "before": "uncertain", "after": "sent", "warning": ""}
    assert console("resolve", "b", "--not-sent", "--reason", "nothing in the log") == "b: uncertain -> pending\n"
    assert console.json("resolve", "c", "--failed", "--reason", "too late now")[0]["after"] == "failed"
    relayed(engine, smtp_sink)
    assert [row(engine, key)["state"] for key in "abc"] == ["sent", "sent", "failed"]
    assert len(smtp_sink.received) == 1
    assert reasons(engine)[0] == ("resolve", "ann", "it is in the server's log")
    assert all(actor and "@" in actor for _, actor, _ in reasons(engine)[1:])
    console("resolve", "a", "--sent", "--reason", "again", status=1)
    assert "there is nothing to resolve" in console.error
    console("resolve", "a", "--reason", "what?", status=2)
    console("resolve", "a", "--sent", status=2)
    assert "--reason" in console.error
    assert len(reasons(engine)) == 3


def test_the_doctor_looks_at_the_outbox_too(
    engine: Engine, capsys: pytest.CaptureFixture[str], smtp_sink: SmtpSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def doctor() -> dict[str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["doctor", "--target", url_of(engine), "--json"])
        assert not ended.value.code
        return {finding["check"]: finding["severity"] for finding in json.loads(capsys.readouterr().out)}

    monkeypatch.delenv("FENCING_DSN", raising=False)
    put(engine, "a")
    assert doctor()["outbox.uncertain"] == "ok"
    with smtp_sink.failing(HangUpAtDot(taken=True)):
        relayed(engine, smtp_sink)
    assert doctor()["outbox.uncertain"] == "warning"
    with engine.begin() as connection:
        for table in ("fencing_outbox_event", "fencing_outbox_recipient", "fencing_outbox"):
            connection.execute(text(f"drop table {table}"))
    assert not any(check.startswith("outbox") for check in doctor())


def test_acts_on_several_messages_are_all_or_none(engine: Engine, console: Console, smtp_sink: SmtpSink) -> None:
    put(engine, "a", "b")
    relayed(engine, smtp_sink)
    put(engine, "c")
    console("cancel", "c", "a", "--reason", "wrong price", status=1)
    assert "which is sent: it is at its end already" in console.error
    assert row(engine, "c")["state"] == "pending"
    assert console("cancel", "c", "--reason", "wrong price") == "c: pending -> cancelled\n"
    console("requeue", "a", "nobody", "--reason", "lost by the reader", status=1)
    assert "no message under the key 'nobody'" in console.error
    assert row(engine, "a")["state"] == "sent"
    assert [act["after"] for act in console.json("requeue", "a", "b", "--reason", "lost by the readers")] == [
        "pending"
    ] * 2
    console("requeue", "c", "--reason", "the price was right")
    assert console.error == ""
    relayed(engine, smtp_sink)
    assert len(smtp_sink.received) == 5


def test_requeueing_what_is_being_handed_over_is_allowed_and_warned(
    engine: Engine, console: Console, smtp_sink: SmtpSink
) -> None:
    import threading

    put(engine, "a")
    held = HeldAnswer()
    smtp_sink.faults.append(held)
    sending = threading.Thread(target=relayed, args=(engine, smtp_sink))
    sending.start()
    assert held.arrived.wait(60)
    assert console("requeue", "a", "--reason", "the reader waits") == "a: dispatching -> pending\n"
    assert "is handing it over at this moment: it may arrive twice" in console.error
    held.release()
    sending.join(60)
    assert row(engine, "a")["state"] == "pending"
    assert ("requeue", "pending") in audit(engine, "a")


def test_a_purge_can_be_tried_dry(engine: Engine, console: Console, smtp_sink: SmtpSink) -> None:
    put(engine, "a", "b")
    relayed(engine, smtp_sink)
    put(engine, "c")
    why = ("--reason", "they are two days old", "--older-than")
    size = sum(row(engine, key)["size"] for key in "ab")
    assert console.json("purge", "--dry-run", "--older-than", "0") == {
        "rows": 2,
        "bytes": size,
        "what": "bodies",
        "dry_run": True,
    }
    console("purge", "--older-than", "0", status=2)
    assert "--reason" in console.error
    assert all(row(engine, key)["message"] is not None for key in "ab")
    assert console("purge", "--dry-run", *why, "1d") == "would purge the bodies of 0 messages, 0 bytes\n"
    assert console("purge", *why, "0s") == f"purged the bodies of 2 messages, {size} bytes\n"
    assert [row(engine, key)["message"] is None for key in "abc"] == [True, True, False]
    console("show", "a", "--message", status=1)
    assert console.json("purge", "--what", "rows", "--state", "sent", *why, "0")["rows"] == 2
    assert [entry["key"] for entry in console.json("list")] == ["c"]
    console("purge", *why, "soon", status=2)
    assert "no duration such as 12h, 30d or 4w" in console.error


def test_what_is_wrong_with_the_database_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    typo = create_engine(f"sqlite:///{tmp_path}/empty.db")
    console = Console(typo, capsys)
    for call in (("list",), ("stats",), ("cancel", "a", "--reason", "x")):
        console(*call, status=1)
        assert f"no SQLite database at {tmp_path}/empty.db: there is no such file" in console.error
        assert not (tmp_path / "empty.db").exists()
    (tmp_path / "empty.db").touch()
    console("list", status=1)
    assert "create_all" in console.error
    for url, told in (
        ("postgresql://nobody@127.0.0.1:1/nothing", "postgresql+psycopg://nobody@127.0.0.1:1/nothing"),
        ("nonsense://x", "no database under this URL"),
        ("nonsense", "--target takes a URL or MODULE:ATTRIBUTE"),
        ("mysql+pymysql://nobody@localhost:1/x", "--target: the outbox stands in PostgreSQL or SQLite, not in mysql"),
        ("json:dumps", "json:dumps is a function, not a SQLAlchemy Engine"),
    ):
        console.url = url
        console("list", status=1 if "127.0.0.1" in url else 2)
        assert told in console.error
        assert "Traceback" not in console.error


@pytest.fixture
def served(pg_dsn: str, tmp_path: Path) -> Iterator[tuple[Engine, str]]:
    """A database with the scheduler's tables and the outbox's, and a module that names both."""
    app = Scheduler(pg_dsn)
    app.migrate()
    app.close()
    engine = outbox_engine("postgresql", pg_dsn, tmp_path)
    (tmp_path / "shopmail.py").write_text(f"from scheduler import Scheduler\napp = Scheduler({pg_dsn!r})\n")
    yield engine, pg_dsn
    engine.dispose()


def relay_process(folder: Path, dsn: str, sink: SmtpSink, *arguments: str) -> PythonProcess:
    return PythonProcess(
        "from scheduler.console.cli import main; main()",
        *("outbox", "relay", *arguments),
        env={"FENCING_DSN": dsn, "FENCING_SMTP": f"smtp://{sink.host}:{sink.port}"},
        cwd=folder,
    )


def test_the_relay_serves_until_sigterm_and_finishes_what_it_has_in_hand(
    served: tuple[Engine, str], smtp_sink: SmtpSink, tmp_path: Path
) -> None:
    engine, dsn = served
    put(engine, "a", "b", "c")
    held = HeldAnswer()
    smtp_sink.faults.append(held)
    with relay_process(tmp_path, dsn, smtp_sink, "shopmail:app") as process:
        assert held.arrived.wait(60)
        process.send(signal.SIGTERM)
        eventually(lambda: "finishes what it has in hand" in process.errors, "it has heard the signal")
        held.release()
        assert process.wait() == 0, process.errors
    assert [row(engine, key)["state"] for key in "abc"] == ["sent", "pending", "pending"]
    assert row(engine, "b")["owner"] is None or row(engine, "b")["lease_until"] is None
    assert len(smtp_sink.received) == 1


def test_a_relay_serves_the_outbox_to_prometheus(
    served: tuple[Engine, str], smtp_sink: SmtpSink, tmp_path: Path
) -> None:
    engine, dsn = served
    put(engine, "a", "b", "c")
    held = HeldAnswer()
    smtp_sink.faults.append(held)
    with relay_process(tmp_path, dsn, smtp_sink, "shopmail:app", "--metrics-port", "0") as process:
        assert held.arrived.wait(60)
        found = scrape(int(re.findall(r"http://127.0.0.1:(\d+)/metrics", process.errors)[0]))
        held.release()
    assert found["fencing_outbox_up"] == 1
    assert (found["fencing_outbox_claimed"], found["fencing_outbox_dispatching"]) == (2, 1)
    assert (found["fencing_outbox_pending"], found["fencing_outbox_uncertain"]) == (0, 0)
    assert found["fencing_relay_breaker_open"] == 0
    assert sum(value for name, value in found.items() if name.startswith("fencing_outbox_unfinished[")) >= 1


def test_one_batch_with_the_schedulers_own_database(
    served: tuple[Engine, str], smtp_sink: SmtpSink, tmp_path: Path
) -> None:
    engine, dsn = served
    put(engine, "a", "b")
    options = ("--once", "--json", "--connections", "2", "--rate", "1000", "--redirect-to", "qa@example.org")
    with relay_process(tmp_path, dsn, smtp_sink, *options) as process:
        assert process.wait() == 0, process.errors
        assert json.loads(process.line())["sent"] == 2
    assert [one.rcpt_tos for one in smtp_sink.received] == [("qa@example.org",)] * 2
    assert row(engine, "a")["issuer"].startswith("fencing-")
    smtp_sink.stop()
    put(engine, "c")
    with relay_process(tmp_path, dsn, smtp_sink, "--once") as away:
        assert away.wait() == 1, away.errors
        assert "is not usable" in away.line()
    assert row(engine, "c")["attempts"] == 0


@pytest.mark.parametrize(
    ("transport", "told"),
    [
        ("ftp://host", "--transport takes smtp://, smtp+starttls://, smtps:// or MODULE:TRANSPORT"),
        ("smtp://host/path", "nothing behind it"),
        ("smtp://host:nan", "--transport: Port"),
        ("json:dumps", "json:dumps is a function, without name and session()"),
    ],
)
def test_a_mail_server_that_cannot_be_meant_is_told(
    transport: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["outbox", "relay", "--dsn", "postgresql://nobody@127.0.0.1:1/nothing", "--transport", transport])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_a_mail_servers_address_has_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from scheduler.console._engines import transport_of

    monkeypatch.setenv("FENCING_SMTP_PASSWORD", "from the environment")
    made: Any = transport_of("smtp+starttls://ann%40example.org@mail.example.org")
    settings = made._settings
    assert (settings.host, settings.port, settings.starttls, settings.tls) == ("mail.example.org", 587, True, False)
    assert (settings.user, settings.password) == ("ann@example.org", "from the environment")
    other: Any = transport_of("smtps://bob:p%3Aw@mail.example.org:4650")
    assert (other.name, other._settings.password) == ("smtps://mail.example.org:4650", "p:w")
