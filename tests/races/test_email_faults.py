"""A relay is stopped or killed at each point of a hand-over. Under ``hold`` no message is ever there twice."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from support.outbox import CounterLeases, audit, mail, outbox_engine, recipients, row, url_of
from support.processes import PythonProcess
from support.waiting import eventually

from adapters.email import Outbox, Relay, SmtpTransport
from fencing.history import read_events
from scheduler.console.embedded import SmtpSink

LEASE = 60.0  # seconds: it runs out when the test says so
TESTS = Path(__file__).parent.parent

PROGRAM = """
    import json, sys
    from dataclasses import asdict
    from sqlalchemy import create_engine
    from adapters.email import Relay, SmtpTransport
    from fencing import history
    from support.outbox import CounterLeases, PausingTransport

    url, port, point, lease, batch, events = sys.argv[1:]
    history.subscribe(history.JsonLines(events))
    engine = create_engine(url)
    transport = PausingTransport(SmtpTransport("127.0.0.1", int(port), local_hostname="relay.test"), point)
    relay = Relay(engine, transport, leases=CounterLeases(engine), lease=float(lease), batch=int(batch))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(relay.run_once())), flush=True)
"""

StartRelay = Callable[..., PythonProcess]


@pytest.fixture(params=["postgresql", "sqlite"])
def engine(request: pytest.FixtureRequest, pg_dsn: str, tmp_path: Path) -> Iterator[Engine]:
    made = outbox_engine(request.param, pg_dsn, tmp_path)
    yield made
    made.dispose()


@pytest.fixture
def start(engine: Engine, smtp_sink: SmtpSink, tmp_path: Path) -> Iterator[StartRelay]:
    """Starts a relay in a process of its own that waits for a word at ``point``, and lets it begin a batch."""
    running: list[PythonProcess] = []

    def run(point: str, *, batch: int = 20) -> PythonProcess:
        arguments = [url_of(engine), str(smtp_sink.port), point, str(LEASE), str(batch), str(tmp_path / "events")]
        process = PythonProcess(PROGRAM, *arguments, env={"PYTHONPATH": str(TESTS)})
        running.append(process)
        process.expect("ready")
        process.tell("begin")
        return process

    yield run
    for process in running:
        process.close()


def relay_of(engine: Engine, sink: SmtpSink) -> Relay:
    transport = SmtpTransport("127.0.0.1", sink.port, local_hostname="relay.test")
    return Relay(engine, transport, leases=CounterLeases(engine), lease=LEASE)


def end_leases(engine: Engine) -> None:
    """What is claimed now has been held for too long."""
    with engine.begin() as connection:
        connection.execute(text("update fencing_outbox set lease_until = created_at where lease_until is not null"))


def put(engine: Engine, *keys: str) -> None:
    with engine.begin() as connection:
        for number, key in enumerate(keys):
            Outbox(from_="sender@example.org").put(connection, mail(number), key=key)


def run_until(relay: Relay, engine: Engine, key: str, state: str) -> None:
    def reached() -> bool:
        relay.run_once()
        return bool(row(engine, key)["state"] == state)

    eventually(reached, f"{key} is {state}")


# After which point the message may have been handed over, and how often it is at the server in the end.
BEFORE_THE_GATE = ("claimed", "rcpt")


@pytest.mark.parametrize("point", ["claimed", "rcpt", "dispatching", "answered"])
def test_a_relay_that_was_stopped_and_wakes_up_is_refused_and_no_copy_is_added(
    engine: Engine, start: StartRelay, smtp_sink: SmtpSink, tmp_path: Path, point: str
) -> None:
    put(engine, "k")
    stopped = start(point)
    stopped.expect(point)
    stopped.pause()
    first_token = row(engine, "k")["token"]
    end_leases(engine)
    end = "sent" if point in BEFORE_THE_GATE else "uncertain"
    run_until(relay_of(engine, smtp_sink), engine, "k", end)
    settled = row(engine, "k")

    stopped.resume()
    stopped.tell("go on")
    counts = json.loads(stopped.line())

    assert counts["lost"] == 1
    assert len(smtp_sink.received) == 1
    assert recipients(engine, "k") == {"reader0@example.org": "sent"}
    events = [(e.kind, e.outcome) for e in read_events(tmp_path / "events")]
    if point in BEFORE_THE_GATE:
        assert row(engine, "k") == settled
        assert settled["token"] > first_token
        assert events[-1] == ("send", "refused")
        assert ("dispatch", "lost") in audit(engine, "k")
    else:
        assert events[-2:] == [("send", "accepted"), ("settle", "lost")]
        # The doubt was about this very hand-over, and its relay is the one who knows.
        assert (counts["evidence"], row(engine, "k")["state"]) == (1, "sent")
        assert audit(engine, "k")[-1] == ("evidence", "sent")


@pytest.mark.parametrize("point", ["claimed", "rcpt", "dispatching", "answered"])
def test_a_message_of_a_killed_relay_is_sent_by_another_or_shown_as_uncertain(
    engine: Engine, start: StartRelay, smtp_sink: SmtpSink, point: str
) -> None:
    put(engine, "k")
    killed = start(point)
    killed.expect(point)
    killed.kill()
    end_leases(engine)
    relay = relay_of(engine, smtp_sink)
    if point in BEFORE_THE_GATE:
        run_until(relay, engine, "k", "sent")
        assert len(smtp_sink.received) == 1
        assert row(engine, "k")["attempts"] == 2  # the kill counts as one
    else:
        run_until(relay, engine, "k", "uncertain")
        assert len(smtp_sink.received) == (0 if point == "dispatching" else 1)
        assert relay.run_once().claimed == 0
        assert "may or may not have been sent" in row(engine, "k")["last_error"]
    assert ("rescue", "uncertain" if point not in BEFORE_THE_GATE else "pending") in audit(engine, "k")


def test_a_relay_that_was_killed_after_it_wrote_down_the_end_leaves_nothing_to_do(
    engine: Engine, start: StartRelay, smtp_sink: SmtpSink
) -> None:
    put(engine, "k")
    killed = start("none")
    assert json.loads(killed.line())["sent"] == 1
    killed.kill()
    assert relay_of(engine, smtp_sink).run_once().claimed == 0
    assert len(smtp_sink.received) == 1
    assert row(engine, "k")["state"] == "sent"


def test_two_relays_on_one_table_send_each_message_once(engine: Engine, start: StartRelay, smtp_sink: SmtpSink) -> None:
    keys = [f"k{number}" for number in range(60)]
    put(engine, *keys)
    one, other = start("none", batch=4), start("none", batch=4)

    def drained() -> bool:
        sent = [json.loads(process.line())["sent"] for process in (one, other)]
        one.tell("again")
        other.tell("again")
        return sent == [0, 0]

    eventually(drained, "both relays found nothing more", timeout=60)
    assert sorted(message.rcpt_tos[0] for message in smtp_sink.received) == sorted(
        f"reader{number}@example.org" for number in range(60)
    )


def test_of_a_batch_that_was_killed_half_way_nothing_is_lost_and_nothing_doubled(
    engine: Engine, start: StartRelay, smtp_sink: SmtpSink
) -> None:
    keys = [f"k{number}" for number in range(10)]
    put(engine, *keys)
    killed = start("answered")
    for _ in range(4):
        killed.expect("answered")
        killed.tell("go on")
    killed.expect("answered")
    killed.kill()
    end_leases(engine)
    relay = relay_of(engine, smtp_sink)

    def settled() -> bool:
        relay.run_once()
        with engine.connect() as connection:
            counts = Outbox().counts(connection)
        return bool(counts["sent"] == 9 and counts["uncertain"] == 1)

    eventually(settled, "nine are sent and one is uncertain")
    assert sorted(message.rcpt_tos[0] for message in smtp_sink.received) == sorted(
        f"reader{number}@example.org" for number in range(10)
    )
