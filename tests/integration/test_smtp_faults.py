"""The faults that the SMTP sink can be told to show, and what the relay makes of each."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from support.outbox import CounterLeases, mail, outbox_engine, recipients, row

from adapters.email import Backoff, Outbox, Relay, SmtpTransport
from adapters.email.testing import (
    Greylist,
    HangUpAtDot,
    HeldAnswer,
    RefuseContent,
    RefuseRecipient,
    RefuseReuse,
    SlowAnswer,
    times,
)
from scheduler.console.embedded import SmtpSink


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = outbox_engine("sqlite", "", tmp_path)
    yield made
    made.dispose()


@pytest.fixture
def relay(engine: Engine, smtp_sink: SmtpSink) -> Relay:
    transport = SmtpTransport(smtp_sink.host, smtp_sink.port, local_hostname="relay.test")
    return Relay(engine, transport, leases=CounterLeases(engine), backoff=Backoff(minimum=30.0, base=0.0))


def put(engine: Engine, *keys: str, **changes: object) -> None:
    with engine.begin() as connection:
        for number, key in enumerate(keys):
            Outbox(from_="sender@example.org").put(connection, mail(number, **changes), key=key)


def make_due(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("update fencing_outbox set due_at = '2000-01-01 00:00:00.000000'"))


def test_a_slow_answer_is_waited_for(engine: Engine, relay: Relay, smtp_sink: SmtpSink) -> None:
    put(engine, "k")
    with smtp_sink.failing(SlowAnswer(0.05)):
        assert relay.run_once().sent == 1


def test_a_held_answer_shows_the_moment_in_between(engine: Engine, relay: Relay, smtp_sink: SmtpSink) -> None:
    put(engine, "k")
    held = HeldAnswer()
    smtp_sink.faults.append(held)
    sending = threading.Thread(target=relay.run_once)
    sending.start()
    assert held.arrived.wait(60)
    assert row(engine, "k")["state"] == "dispatching"
    held.release()
    sending.join(60)
    assert row(engine, "k")["state"] == "sent"


@pytest.mark.parametrize("taken", [True, False])
def test_a_hang_up_at_the_dot_looks_the_same_whether_it_was_taken(
    engine: Engine, relay: Relay, smtp_sink: SmtpSink, taken: bool
) -> None:
    put(engine, "k")
    smtp_sink.faults.append(HangUpAtDot(taken=taken))
    assert relay.run_once().uncertain == 1
    assert len(smtp_sink.received) == int(taken)


def test_one_recipient_is_refused_for_now(engine: Engine, relay: Relay, smtp_sink: SmtpSink) -> None:
    put(engine, "k", to=["ann@example.org", "bob@example.org"])
    with smtp_sink.failing(RefuseRecipient("ann@example.org")):
        assert relay.run_once().retried == 1
    assert recipients(engine, "k") == {"ann@example.org": "pending", "bob@example.org": "sent"}
    make_due(engine)
    assert relay.run_once().sent == 1
    assert [one.rcpt_tos for one in smtp_sink.received] == [("bob@example.org",), ("ann@example.org",)]


def test_a_connection_is_good_for_one_message(engine: Engine, relay: Relay, smtp_sink: SmtpSink) -> None:
    put(engine, "k1", "k2", "k3")
    with smtp_sink.failing(RefuseReuse()):
        assert relay.run_once().sent == 3
    assert row(engine, "k3")["attempts"] <= 1


def test_the_content_is_refused_for_good(engine: Engine, relay: Relay, smtp_sink: SmtpSink) -> None:
    put(engine, "k")
    smtp_sink.faults.append(RefuseContent())
    assert relay.run_once().failed == 1
    assert "552 5.3.4" in row(engine, "k")["last_error"]


def test_a_minute_of_greylisting_passes_when_the_test_says_so(
    engine: Engine, relay: Relay, smtp_sink: SmtpSink
) -> None:
    put(engine, "k")
    greylist = Greylist()
    smtp_sink.faults.append(greylist)
    assert relay.run_once().retried == 1
    greylist.clock.advance(59)
    make_due(engine)
    assert relay.run_once().retried == 1
    greylist.clock.advance(1)
    make_due(engine)
    assert relay.run_once().sent == 1
    assert len(smtp_sink.received) == 1


def test_a_fault_can_be_limited(engine: Engine, relay: Relay, smtp_sink: SmtpSink) -> None:
    put(engine, "k1", "k2")
    smtp_sink.faults.append(times(1, RefuseContent()))
    counts = relay.run_once()
    assert (counts.failed, counts.sent) == (1, 1)


def test_a_phases_own_hook_is_asked_first(engine: Engine, relay: Relay, smtp_sink: SmtpSink) -> None:
    put(engine, "k1", "k2")
    smtp_sink.faults.append(RefuseContent())
    smtp_sink.on_message = times(1, lambda exchange: "250 2.0.0 taken")
    counts = relay.run_once()
    assert (counts.failed, counts.sent) == (1, 1)
