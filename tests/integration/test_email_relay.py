"""The relay against a real SMTP server that answers as it is told, on real databases."""

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, text
from support.outbox import CounterLeases, audit, mail, outbox_engine, recipients, row
from support.waiting import eventually

from adapters._tx import run, transaction_of
from adapters.email import Backoff, Delivery, Gate, Outbox, Outgoing, Relay, RelayCounts, SmtpTransport, diagnose
from adapters.email._claim import Claim
from adapters.email._claims import claim_plan
from adapters.email.testing._script import Answer, Exchange
from fencing import history
from fencing.errors import SchemaMissingError
from scheduler.console.embedded import Drop, Postgres, SmtpSink

OUTBOX = Outbox(from_="sender@example.org")


@pytest.fixture(params=["postgresql", "sqlite"])
def engine(request: pytest.FixtureRequest, pg_dsn: str, tmp_path: Path) -> Iterator[Engine]:
    made = outbox_engine(request.param, pg_dsn, tmp_path)
    yield made
    made.dispose()


@pytest.fixture
def pg(pg_dsn: str, tmp_path: Path) -> Iterator[Engine]:
    made = outbox_engine("postgresql", pg_dsn, tmp_path)
    yield made
    made.dispose()


def transport(sink: SmtpSink, **options: Any) -> SmtpTransport:
    return SmtpTransport("127.0.0.1", sink.port, local_hostname="relay.test", **{"timeout": 60.0, **options})


def relay(engine: Engine, sink: SmtpSink, **options: Any) -> Relay:
    carrier = options.pop("transport", None) or transport(sink)
    return Relay(engine, carrier, **{"leases": CounterLeases(engine), **options})


def put(engine: Engine, key: str, number: int = 1, **options: Any) -> None:
    changes = options.pop("changes", {})
    with engine.begin() as connection:
        OUTBOX.put(connection, mail(number, **changes), key=key, **options)


def make_due(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("update fencing_outbox set due_at = created_at"))


def state(engine: Engine, key: str = "k") -> str:
    return str(row(engine, key)["state"])


def once(answers: list[Answer]) -> Callable[[Exchange], Answer]:
    """A hook that gives these answers in turn, then the usual one."""
    left = iter(answers)
    return lambda exchange: next(left, None)


# -- the order of a hand-over


def test_the_row_is_claimed_at_rcpt_and_dispatching_before_data(engine: Engine, smtp_sink: SmtpSink) -> None:
    seen: list[tuple[str, str]] = []

    def look(exchange: Exchange) -> None:
        seen.append((exchange.phase, state(engine)))

    smtp_sink.on_mail = smtp_sink.on_rcpt = smtp_sink.on_data = smtp_sink.on_message = look
    put(engine, "k")
    assert relay(engine, smtp_sink).run_once() == RelayCounts(claimed=1, sent=1)
    assert seen == [("mail", "claimed"), ("rcpt", "claimed"), ("data", "dispatching"), ("message", "dispatching")]
    done = row(engine, "k")
    assert (done["state"], done["attempts"], done["lease_until"], done["last_error"]) == ("sent", 1, None, None)
    assert audit(engine, "k") == [("put", "pending"), ("settle", "sent")]


def test_no_transaction_is_open_while_the_server_takes_its_time(pg: Engine, pg_dsn: str, smtp_sink: SmtpSink) -> None:
    open_ones: list[int] = []

    def look(exchange: Exchange) -> None:
        with psycopg.connect(pg_dsn, autocommit=True) as connection:
            found = connection.execute(
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and xact_start is not null and pid <> pg_backend_pid()"
            ).fetchone()
        assert found is not None
        open_ones.append(found[0])

    smtp_sink.on_mail = smtp_sink.on_data = smtp_sink.on_message = look
    put(pg, "k")
    relay(pg, smtp_sink).run_once()
    assert open_ones == [0, 0, 0]


def test_the_bytes_arrive_as_they_were_frozen(engine: Engine, smtp_sink: SmtpSink) -> None:
    body = ".\n..\n.leading dot\n\nlast line without an end"
    put(engine, "k", changes={"text": body, "bcc": "spy@example.org"})
    with engine.connect() as connection:
        frozen = connection.execute(text("select message from fencing_outbox")).scalar_one()
    relay(engine, smtp_sink).run_once()
    [received] = smtp_sink.received
    assert received.data == bytes(frozen)
    assert received.rcpt_tos == ("reader1@example.org", "spy@example.org")
    assert received.mail_from == "sender@example.org"
    assert b"spy" not in received.data


def test_a_large_message_is_read_when_it_is_sent(engine: Engine, smtp_sink: SmtpSink) -> None:
    put(engine, "k", changes={"text": "0123456789\n" * 40_000})
    assert row(engine, "k")["size"] > 262_144
    assert relay(engine, smtp_sink).run_once().sent == 1
    assert len(smtp_sink.received[0].data) == row(engine, "k")["size"]


def test_rows_go_in_the_order_of_priority_due_time_and_id(engine: Engine, smtp_sink: SmtpSink) -> None:
    early = datetime.now(UTC) - timedelta(hours=1)
    put(engine, "a", 1)
    put(engine, "b", 2, priority=5)
    put(engine, "c", 3, due_at=early)
    put(engine, "d", 4, priority=-5, due_at=early)
    put(engine, "e", 5, priority=5)
    put(engine, "f", 6, due_at=datetime.now(UTC) + timedelta(hours=1), priority=9)
    one = relay(engine, smtp_sink, batch=1)
    assert [one.run_once().sent for _ in range(6)] == [1, 1, 1, 1, 1, 0]
    order = [received.rcpt_tos[0].removesuffix("@example.org")[-1] for received in smtp_sink.received]
    assert order == ["2", "5", "3", "1", "4"]


def test_what_expired_before_it_was_sent_is_not_sent(engine: Engine, smtp_sink: SmtpSink) -> None:
    put(engine, "k", due_at=datetime(2026, 1, 1, tzinfo=UTC), expires_at=datetime(2026, 1, 2, tzinfo=UTC))
    assert relay(engine, smtp_sink).run_once() == RelayCounts(expired=1)
    assert (state(engine), smtp_sink.received) == ("expired", [])
    assert audit(engine, "k")[-1] == ("claim", "expired")


def test_one_connection_is_kept_for_a_batch(engine: Engine, smtp_sink: SmtpSink) -> None:
    connections: set[str] = set()
    for number in range(5):
        put(engine, f"k{number}", number)
    # One of them is refused in the middle: the envelope of the next one starts clean.
    smtp_sink.on_rcpt = once([None, "550 5.1.1 no such user"])
    smtp_sink.on_message = lambda exchange: connections.add(threading.current_thread().name)
    assert relay(engine, smtp_sink).run_once() == RelayCounts(claimed=5, sent=4, failed=1)
    assert [len(received.rcpt_tos) for received in smtp_sink.received] == [1, 1, 1, 1]


# -- answers of the server


def test_each_recipient_has_a_result_of_its_own_and_only_those_refused_for_now_are_tried_again(
    engine: Engine, smtp_sink: SmtpSink
) -> None:
    smtp_sink.on_rcpt = lambda exchange: {"b@example.org": "450 4.2.0 greylisted", "c@example.org": "550 no"}.get(
        exchange.rcpt
    )
    put(engine, "k", changes={"to": ["a@example.org", "b@example.org", "c@example.org"]})
    one = relay(engine, smtp_sink)
    assert one.run_once() == RelayCounts(claimed=1, retried=1)
    assert recipients(engine, "k") == {"a@example.org": "sent", "b@example.org": "pending", "c@example.org": "failed"}
    assert one.run_once().claimed == 0
    smtp_sink.on_rcpt = None
    make_due(engine)
    assert one.run_once() == RelayCounts(claimed=1, failed=1)  # somebody never got it
    assert [received.rcpt_tos for received in smtp_sink.received] == [("a@example.org",), ("b@example.org",)]
    assert recipients(engine, "k") == {"a@example.org": "sent", "b@example.org": "sent", "c@example.org": "failed"}
    assert smtp_sink.received[0].data == smtp_sink.received[1].data


@pytest.mark.parametrize("phase", ["mail", "rcpt", "data", "message"])
def test_a_refusal_for_now_is_tried_again_later_and_one_for_good_is_not(
    engine: Engine, smtp_sink: SmtpSink, phase: str
) -> None:
    setattr(smtp_sink, f"on_{phase}", once(["451 4.7.1 try later", "554 5.7.1 no"]))
    put(engine, "k")
    one = relay(engine, smtp_sink)
    assert one.run_once() == RelayCounts(claimed=1, retried=1)
    again = row(engine, "k")
    assert (again["state"], again["attempts"]) == ("pending", 1)
    assert "451 4.7.1 try later" in again["last_error"]
    assert one.run_once().claimed == 0  # the next time is in the row
    with engine.connect() as connection:
        wait = (
            "due_at - updated_at"
            if engine.dialect.name == "postgresql"
            else "strftime('%s', due_at) - strftime('%s', updated_at)"
        )
        waits = connection.execute(text(f"select {wait} from fencing_outbox")).scalar_one()
    assert (waits.total_seconds() if isinstance(waits, timedelta) else waits) >= 59
    make_due(engine)
    assert one.run_once() == RelayCounts(claimed=1, failed=1)
    assert (state(engine), row(engine, "k")["attempts"]) == ("failed", 2)
    assert recipients(engine, "k") == {"reader1@example.org": "failed"}
    assert smtp_sink.received == []


def test_attempts_come_to_an_end(engine: Engine, smtp_sink: SmtpSink) -> None:
    smtp_sink.on_rcpt = lambda exchange: "450 4.2.0 later"
    put(engine, "k")
    one = relay(engine, smtp_sink, backoff=Backoff(attempts=2))
    assert one.run_once().retried == 1
    make_due(engine)
    assert one.run_once().failed == 1
    assert "given up after 2 attempts" in row(engine, "k")["last_error"]
    assert recipients(engine, "k") == {"reader1@example.org": "failed"}


@pytest.mark.parametrize(
    ("phase", "answer", "end"),
    [
        ("mail", Drop(), "pending"),
        ("rcpt", Drop(), "pending"),
        ("data", Drop(), "pending"),
        ("message", Drop(accepted=True), "uncertain"),
        ("message", Drop(accepted=False), "uncertain"),
        ("message", "421 4.3.2 shutting down", "pending"),
        ("message", "354 what", "uncertain"),
        ("message", Drop("250 OK"), "sent"),
    ],
)
def test_only_a_final_dot_without_an_answer_is_uncertain(
    engine: Engine, smtp_sink: SmtpSink, phase: str, answer: Answer, end: str
) -> None:
    setattr(smtp_sink, f"on_{phase}", once([answer]))
    put(engine, "k")
    one = relay(engine, smtp_sink)
    one.run_once()
    assert state(engine) == end
    make_due(engine)
    one.run_once()
    copies = len(smtp_sink.received)
    if end == "uncertain":
        assert (state(engine), recipients(engine, "k")) == ("uncertain", {"reader1@example.org": "uncertain"})
        assert copies == (1 if answer == Drop(accepted=True) else 0)
    else:
        assert (state(engine), copies) == ("sent", 1)


def test_a_connection_that_breaks_within_the_content_had_no_effect(smtp_sink: SmtpSink) -> None:
    # The server closes after its 354: so much content cannot be written to the end, and its final dot never is.
    smtp_sink.on_data = once([Drop("354 go ahead")])
    session = transport(smtp_sink).session()
    head = b"Subject: x\r\n\r\n"
    large = Outgoing("a@example.org", ("b@example.org",), head + b"0123456789abcdef\r\n" * 1_500_000)
    first = session.deliver(large, lambda refused: None)
    assert [answer.fate for answer in first.answers.values()] == ["deferred"]
    assert "within the content" in first.answers["b@example.org"].reply
    again = session.deliver(Outgoing("a@example.org", ("b@example.org",), head), lambda refused: None)
    session.close()
    assert [answer.fate for answer in again.answers.values()] == ["sent"]
    assert len(smtp_sink.received) == 1


def test_a_slow_line_is_no_broken_one() -> None:
    """Each block of the content has the timeout to itself: the whole may take longer."""
    content = b"Subject: x\r\n\r\n" + b"0123456789abcdef\r\n" * 400_000
    timeout = 2.0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                connection.sendall(b"220 slow\r\n")
                for answer in (b"250 slow", b"250 ok", b"250 ok", b"354 go"):
                    lines.readline()
                    connection.sendall(answer + b"\r\n")
                began = time.monotonic()
                left = len(content) + 3
                while left:
                    block = lines.read(min(left, 131_072))
                    if not block:
                        return  # the client gave up
                    left -= len(block)
                    # As slow as makes the whole last one timeout and a half.
                    while time.monotonic() - began < 1.5 * timeout * (1 - left / len(content)):
                        threading.Event().wait(0.005)
                connection.sendall(b"250 taken\r\n")
                lines.readline()

        thread = threading.Thread(target=serve)
        thread.start()
        session = SmtpTransport("127.0.0.1", listener.getsockname()[1], local_hostname="x", timeout=timeout).session()
        connection = session._connect()
        assert connection.sock is not None
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)  # so little fits on the way
        delivery = session.deliver(Outgoing("a@example.org", ("b@example.org",), content), lambda refused: None)
        session.close()
        thread.join(60)
    assert delivery.answers["b@example.org"].fate == "sent"


def test_an_answer_that_does_not_come_in_time_is_uncertain(engine: Engine, smtp_sink: SmtpSink) -> None:
    release = threading.Event()

    def think(exchange: Exchange) -> None:
        release.wait(60)

    smtp_sink.on_message = think
    put(engine, "k")
    counts = relay(engine, smtp_sink, transport=transport(smtp_sink, final_timeout=0.3)).run_once()
    release.set()
    assert counts == RelayCounts(claimed=1, uncertain=1)
    smtp_sink.wait_for(1)  # the server took it all the same
    assert relay(engine, smtp_sink).run_once().claimed == 0
    assert len(smtp_sink.received) == 1


def test_the_lease_is_renewed_while_the_server_thinks(engine: Engine, smtp_sink: SmtpSink) -> None:
    release, asked = threading.Event(), threading.Event()

    def think(exchange: Exchange) -> None:
        asked.set()
        release.wait(60)

    smtp_sink.on_message = think
    put(engine, "k")
    put(engine, "k2", 2)
    results: list[RelayCounts] = []
    one = relay(engine, smtp_sink, lease=3)
    thread = threading.Thread(target=lambda: results.append(one.run_once()))
    thread.start()
    assert asked.wait(60)
    first = row(engine, "k")["lease_until"]

    def renewed_twice(seen: set[Any] = set()) -> bool:  # noqa: B006 - on purpose: what was seen so far
        seen.add(row(engine, "k")["lease_until"])
        return len(seen) > 2

    eventually(renewed_twice, "the lease was renewed twice")
    assert row(engine, "k")["lease_until"] > first
    assert relay(engine, smtp_sink).run_once() == RelayCounts()  # nothing is taken over
    release.set()
    thread.join(60)
    assert results == [RelayCounts(claimed=2, sent=2)]
    assert len(smtp_sink.received) == 2


def test_a_closed_kept_connection_is_opened_again_and_costs_no_attempt(engine: Engine, smtp_sink: SmtpSink) -> None:
    put(engine, "k1", 1, priority=1)
    put(engine, "k2", 2)
    put(engine, "k3", 3, priority=-1)
    smtp_sink.on_mail = once([None, "421 4.4.2 idle too long", None, Drop()])
    assert relay(engine, smtp_sink).run_once() == RelayCounts(claimed=3, sent=3)
    assert [row(engine, key)["attempts"] for key in ("k1", "k2", "k3")] == [1, 1, 1]


def test_421_costs_no_attempt_and_two_in_a_row_end_the_batch(engine: Engine, smtp_sink: SmtpSink) -> None:
    for number in range(4):
        put(engine, f"k{number}", number)
    smtp_sink.on_rcpt = lambda exchange: "421 4.3.2 shutting down"
    counts = relay(engine, smtp_sink).run_once()
    assert (counts.retried, counts.released) == (2, 2)
    assert counts.unavailable
    assert [row(engine, f"k{number}")["attempts"] for number in range(4)] == [0, 0, 0, 0]
    smtp_sink.on_rcpt = None
    make_due(engine)
    assert relay(engine, smtp_sink).run_once().sent == 4


def test_a_message_that_makes_the_server_hang_up_stops_no_other(engine: Engine, smtp_sink: SmtpSink) -> None:
    put(engine, "poison", 0, priority=1)
    for number in range(1, 4):
        put(engine, f"k{number}", number)
    smtp_sink.on_message = lambda exchange: "421 no" if exchange.rcpt_tos == ("reader0@example.org",) else None
    assert relay(engine, smtp_sink).run_once() == RelayCounts(claimed=4, sent=3, retried=1)
    assert len(smtp_sink.received) == 3


def test_a_server_that_is_down_burns_no_attempts_and_gives_everything_back(engine: Engine, smtp_sink: SmtpSink) -> None:
    for number in range(3):
        put(engine, f"k{number}", number)
    smtp_sink.stop()
    one = relay(engine, smtp_sink)
    counts = one.run_once()
    assert (counts.claimed, counts.released) == (3, 3)
    assert "is not usable" in counts.unavailable
    assert [(row(engine, f"k{number}")["state"], row(engine, f"k{number}")["attempts"]) for number in range(3)] == [
        ("pending", 0)
    ] * 3
    smtp_sink.start()
    assert one.run_once() == RelayCounts(claimed=3, sent=3)


# -- what a server can take


def test_a_local_part_that_is_not_ascii_needs_smtputf8(engine: Engine) -> None:
    put(engine, "k", changes={"to": "jörg@bücher.example"})
    put(engine, "cc", 2, changes={"to": ["a@example.org", "jörg@example.org"]})
    with SmtpSink(smtputf8=False) as sink:
        phases: list[str] = []
        sink.on_mail = lambda exchange: phases.append(exchange.phase)
        assert relay(engine, sink).run_once() == RelayCounts(claimed=2, failed=2)
        assert phases == []  # not a word was said about it
    assert "does not offer SMTPUTF8" in row(engine, "k")["last_error"]
    put(engine, "k3", 3, changes={"to": "jörg@bücher.example"})
    with SmtpSink() as sink:
        assert relay(engine, sink).run_once().sent == 1
        assert sink.received[0].rcpt_tos == ("jörg@xn--bcher-kva.example",)


def test_a_domain_that_is_not_ascii_needs_nothing(engine: Engine) -> None:
    put(engine, "k", changes={"to": "joerg@bücher.example"})
    with SmtpSink(smtputf8=False) as sink:
        assert relay(engine, sink).run_once().sent == 1
        assert sink.received[0].rcpt_tos == ("joerg@xn--bcher-kva.example",)
        assert sink.received[0].data.isascii()


def test_a_message_larger_than_the_server_takes_fails_before_it_is_sent(engine: Engine) -> None:
    put(engine, "k", changes={"text": "0123456789\n" * 1000})
    with SmtpSink(size_limit=1000) as sink:
        assert relay(engine, sink).run_once().failed == 1
    assert "takes at most 1000" in row(engine, "k")["last_error"]


# -- several relays


def test_rows_in_another_relays_open_claim_are_passed_over(pg: Engine, smtp_sink: SmtpSink) -> None:
    for number in range(4):
        put(pg, f"k{number}", number)
    claim = Claim("another", CounterLeases(pg).token(), 60.0)
    impatient = create_engine(pg.url, connect_args={"options": "-c lock_timeout=3s"})
    with pg.connect() as connection:
        tx = transaction_of(connection)
        batch = run(claim_plan(claim, 2, 10, "postgresql"), tx)  # type: ignore[arg-type]
        assert [found.key for found in batch.rows] == ["k0", "k1"]
        assert relay(impatient, smtp_sink).run_once() == RelayCounts(claimed=2, sent=2)
        connection.commit()
    assert relay(impatient, smtp_sink).run_once() == RelayCounts()
    assert [state(pg, f"k{number}") for number in range(4)] == ["claimed", "claimed", "sent", "sent"]
    impatient.dispose()


def test_a_relay_that_is_stopped_inside_a_transaction_does_not_hold_its_rows_for_ever(pg: Engine) -> None:
    put(pg, "k")
    claim = Claim("stopped", CounterLeases(pg).token(), 60.0)
    with pg.connect() as connection:
        run(claim_plan(claim, 1, 10, "postgresql"), transaction_of(connection))  # type: ignore[arg-type]
        setting = connection.execute(text("show idle_in_transaction_session_timeout")).scalar_one()
        connection.rollback()
        assert setting == "20s"
        assert connection.execute(text("show idle_in_transaction_session_timeout")).scalar_one() == "0"


# -- tokens


def test_a_relay_with_an_older_token_or_another_issuer_claims_nothing(engine: Engine, smtp_sink: SmtpSink) -> None:
    leases = CounterLeases(engine)
    old = leases.token()
    smtp_sink.on_rcpt = once(["450 4.2.0 later"])
    put(engine, "k")
    relay(engine, smtp_sink, leases=leases).run_once()
    make_due(engine)
    before = row(engine, "k")

    class Stale(CounterLeases):
        def token(self) -> Any:
            return old

    events: list[history.Event] = []
    forget = history.subscribe(events.append)
    stale = relay(engine, smtp_sink, leases=Stale(engine)).run_once()
    foreign = relay(engine, smtp_sink, leases=CounterLeases(engine, issuer="other")).run_once()
    forget()
    assert stale == foreign == RelayCounts(refused=True)
    assert [(event.kind, event.outcome) for event in events] == [("claim", "refused")] * 2
    assert row(engine, "k") == before
    assert relay(engine, smtp_sink, leases=leases).run_once().sent == 1


def test_what_expires_in_a_relays_hands_is_not_sent(engine: Engine, smtp_sink: SmtpSink) -> None:
    end = datetime.now(UTC) + timedelta(seconds=2)
    put(engine, "k", expires_at=end)

    def outlast(exchange: Exchange) -> Answer:
        eventually(lambda: datetime.now(UTC) > end, "it has expired")
        return None

    smtp_sink.on_rcpt = outlast
    sender = relay(engine, smtp_sink)
    counts = sender.run_once()
    while not counts.expired:  # found out by this machine's clock a moment before the database's
        assert counts == RelayCounts(claimed=1, released=1)
        counts = sender.run_once()
    assert (state(engine), smtp_sink.received) == ("expired", [])


def test_what_a_person_took_from_the_relays_is_open_to_another_issuer(engine: Engine, smtp_sink: SmtpSink) -> None:
    """The scheduler that gave the first token may be gone for ever. An older token of the same issuer stays refused."""
    leases = CounterLeases(engine)
    old = leases.token()

    class Stale(CounterLeases):
        def token(self) -> Any:
            return old

    smtp_sink.on_rcpt = once(["450 4.2.0 later"])
    put(engine, "k")
    relay(engine, smtp_sink, leases=leases).run_once()
    with engine.begin() as tx:
        OUTBOX.cancel(tx, "k", actor="ann", reason="its scheduler is gone")
        OUTBOX.requeue(tx, "k", actor="ann", reason="its scheduler is gone")
    assert relay(engine, smtp_sink, leases=Stale(engine)).run_once() == RelayCounts(refused=True)
    smtp_sink.on_rcpt = once(["450 4.2.0 later"])
    foreign = relay(engine, smtp_sink, leases=CounterLeases(engine, issuer="other"))
    assert foreign.run_once() == RelayCounts(claimed=1, retried=1)
    make_due(engine)
    assert relay(engine, smtp_sink, leases=leases).run_once() == RelayCounts(refused=True)
    assert foreign.run_once() == RelayCounts(claimed=1, sent=1)


def test_the_record_of_an_end_reaches_back_to_before_it_was_written(pg: Engine, smtp_sink: SmtpSink) -> None:
    """Between the commit and the record a relay may be stopped, and the row be another's by then."""
    put(pg, "k")
    events: list[history.Event] = []
    with pg.connect() as person:
        smtp_sink.on_message = lambda _: person.execute(text("select from fencing_outbox for update")) and None
        forget = history.subscribe(events.append)
        serving = threading.Thread(target=relay(pg, smtp_sink).run_once, daemon=True)
        serving.start()
        waiting = text(
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )
        # A look in a transaction would see the same ever again.
        with pg.connect().execution_options(isolation_level="AUTOCOMMIT") as looking:
            eventually(lambda: looking.execute(waiting).scalar(), "the end waits for the row")
        before = time.monotonic_ns()
        person.rollback()
        serving.join()
        forget()
    assert state(pg) == "sent"
    assert [event.began < before for event in events if event.kind == "settle"] == [True]


def test_every_batch_has_a_new_token(engine: Engine, smtp_sink: SmtpSink) -> None:
    put(engine, "k1", 1)
    put(engine, "k2", 2)
    one = relay(engine, smtp_sink, batch=1)
    assert (one.run_once().sent, one.run_once().sent) == (1, 1)
    assert row(engine, "k1")["token"] < row(engine, "k2")["token"]
    assert row(engine, "k1")["token"] > 2**53


def test_the_own_lease_is_looked_at_once_more_after_dispatching_was_committed(
    pg: Engine, pg_dsn: str, smtp_sink: SmtpSink
) -> None:
    """The commit of ``dispatching`` hangs until the lease is over: nothing is sent, and the row is given back."""
    put(pg, "k")
    with pg.begin() as connection:
        connection.execute(
            text(
                "create function hold() returns trigger language plpgsql as $$ begin"
                " perform pg_advisory_xact_lock(1); return null; end $$"
            )
        )
        connection.execute(
            text(
                "create constraint trigger hold after update on fencing_outbox deferrable initially deferred"
                " for each row when (new.state = 'dispatching' and old.state = 'claimed') execute function hold()"
            )
        )
    phases: list[str] = []
    smtp_sink.on_data = lambda exchange: phases.append(exchange.phase)
    results: list[RelayCounts] = []
    with psycopg.connect(pg_dsn, autocommit=True) as blocker:
        blocker.execute("select pg_advisory_lock(1)")
        thread = threading.Thread(target=lambda: results.append(relay(pg, smtp_sink, lease=2).run_once()))
        thread.start()

        def over() -> bool:
            found = blocker.execute(
                "select lease_until < clock_timestamp() and exists(select 1 from pg_locks where not granted)"
                " from fencing_outbox"
            ).fetchone()
            return bool(found and found[0])

        eventually(over, "the lease is over while the commit still hangs")
        blocker.execute("select pg_advisory_unlock(1)")
    thread.join(60)
    assert results == [RelayCounts(claimed=1, released=1)]
    assert (phases, smtp_sink.received, state(pg)) == ([], [], "pending")
    assert row(pg, "k")["attempts"] == 0


def test_the_end_of_an_overtaken_hand_over_is_evidence_about_it_and_about_no_other(
    engine: Engine, smtp_sink: SmtpSink
) -> None:
    """While the server thinks, the row is found by another relay after its lease. What the first one learns ends the
    doubt about its own hand-over; once a person had the message sent again, it changes nothing."""

    def overtake(exchange: Exchange) -> None:
        with engine.begin() as connection:
            connection.execute(text("update fencing_outbox set lease_until = created_at where state = 'dispatching'"))
        assert relay(engine, smtp_sink).run_once() == RelayCounts(rescued=1)
        assert state(engine, "k") == "uncertain" or state(engine, "other") == "uncertain"
        if b"reader2" in exchange.data:
            with engine.begin() as connection:
                Outbox().requeue(connection, "other", actor="ann", reason="it is urgent")
                connection.execute(text("update fencing_outbox set due_at = expires_at where key = 'other'"))

    smtp_sink.on_message = overtake
    put(engine, "k")
    events: list[history.Event] = []
    forget = history.subscribe(events.append)
    counts = relay(engine, smtp_sink).run_once()
    forget()
    assert counts == RelayCounts(claimed=1, lost=1, evidence=1)
    assert (state(engine), len(smtp_sink.received)) == ("sent", 1)
    assert (row(engine, "k")["attempts"], recipients(engine, "k")) == (1, {"reader1@example.org": "sent"})
    assert [(event.kind, event.outcome) for event in events] == [
        ("claim", "accepted"),
        ("rescue", "done"),
        ("send", "accepted"),
        ("settle", "lost"),
    ]
    assert audit(engine, "k")[-2:] == [("rescue", "uncertain"), ("evidence", "sent")]

    put(engine, "other", 2, expires_at=datetime(2999, 1, 1, tzinfo=UTC))
    assert relay(engine, smtp_sink).run_once() == RelayCounts(claimed=1, lost=1)
    assert (state(engine, "other"), row(engine, "other")["attempts"]) == ("pending", 0)
    assert audit(engine, "other")[-2:] == [("requeue", "pending"), ("evidence", "late")]
    with engine.begin() as connection:
        Outbox().cancel(connection, "other", actor="ann", reason="no more")
        act = Outbox().requeue(connection, "other", actor="ann", reason="after all")
    assert "reported later: sent" in act.warning


def test_552_after_accepted_recipients_means_too_many_of_them_and_alone_it_is_final(
    engine: Engine, smtp_sink: SmtpSink
) -> None:
    """RFC 5321 §4.5.3.1.10: some servers still say so, and the rest is to be tried later."""
    smtp_sink.on_rcpt = lambda exchange: "552 too many recipients" if exchange.rcpt_tos else None
    put(engine, "k", changes={"to": ["a@example.org", "b@example.org"]})
    relay(engine, smtp_sink).run_once()
    assert (state(engine), recipients(engine, "k")) == (
        "pending",
        {"a@example.org": "sent", "b@example.org": "pending"},
    )
    smtp_sink.on_rcpt = lambda exchange: "552 mailbox full"
    put(engine, "alone", 2)
    relay(engine, smtp_sink).run_once()
    assert state(engine, "alone") == "failed"


def test_a_partly_deferred_hand_over_that_was_lost_leaves_the_deferred_ones_pending(
    engine: Engine, smtp_sink: SmtpSink
) -> None:
    """It is known who was refused before the content; of the others alone nobody knows."""

    def overtake(exchange: Exchange) -> None:
        with engine.begin() as connection:
            connection.execute(text("update fencing_outbox set lease_until = created_at"))
        relay(engine, smtp_sink).run_once()
        assert (state(engine), recipients(engine, "k")) == ("uncertain", expected)

    expected = {"a@example.org": "uncertain", "b@example.org": "pending", "c@example.org": "failed"}
    smtp_sink.on_rcpt = lambda exchange: {"b@example.org": "450 later", "c@example.org": "550 no"}.get(exchange.rcpt)
    smtp_sink.on_message = overtake
    put(engine, "k", changes={"to": ["a@example.org", "b@example.org", "c@example.org"]})
    relay(engine, smtp_sink).run_once()
    # The first relay's word: one got it, and the one that was deferred alone is served next.
    assert (state(engine), recipients(engine, "k")) == ("pending", {**expected, "a@example.org": "sent"})


# -- transports that fail


class Crashing:
    """A transport with a fault of its own, before or after the gate."""

    name = "crashing"

    def __init__(self, after_gate: bool) -> None:
        self._after_gate = after_gate

    def session(self) -> "Crashing":
        return self

    def deliver(self, mail: Outgoing, gate: Gate) -> Delivery:
        if self._after_gate:
            gate({})
        raise RuntimeError("a bug")

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("after_gate", "end"), [(False, "pending"), (True, "uncertain")])
def test_a_fault_of_the_transport_is_uncertain_after_the_gate_and_only_then(
    engine: Engine, smtp_sink: SmtpSink, after_gate: bool, end: str
) -> None:
    put(engine, "k1", 1)
    put(engine, "k2", 2)
    relay(engine, smtp_sink, transport=Crashing(after_gate)).run_once()
    assert [(row(engine, key)["state"], row(engine, key)["attempts"]) for key in ("k1", "k2")] == [(end, 1)] * 2
    assert "RuntimeError: a bug" in row(engine, "k1")["last_error"]


def test_a_message_that_kills_its_relay_each_time_ends_as_failed(engine: Engine, smtp_sink: SmtpSink) -> None:
    class Dying(Crashing):
        def deliver(self, mail: Outgoing, gate: Gate) -> Delivery:
            # As if the process had been killed: whatever it would still do finds no row of its own.
            with engine.begin() as connection:
                connection.execute(text("update fencing_outbox set lease_until = created_at, owner = 'gone'"))
            raise SystemExit

    put(engine, "k")
    backoff = Backoff(attempts=3)
    for _ in range(3):
        with pytest.raises(SystemExit):
            relay(engine, smtp_sink, transport=Dying(False), backoff=backoff).run_once()
    assert relay(engine, smtp_sink, backoff=backoff).run_once().rescued == 1
    assert (state(engine), row(engine, "k")["attempts"]) == ("failed", 3)
    assert "was gone before" in row(engine, "k")["last_error"]
    assert smtp_sink.received == []


# -- the service


def test_it_runs_until_it_is_told_to_stop_and_gives_the_rest_back(engine: Engine, smtp_sink: SmtpSink) -> None:
    stop, release, asked = threading.Event(), threading.Event(), threading.Event()

    def hold(exchange: Exchange) -> None:
        asked.set()
        release.wait(60)

    smtp_sink.on_message = hold
    for number in range(4):
        put(engine, f"k{number}", number)
    thread = threading.Thread(target=relay(engine, smtp_sink).run, args=(stop,))
    thread.start()
    assert asked.wait(60)
    stop.set()
    release.set()
    thread.join(60)
    assert not thread.is_alive()
    with engine.connect() as connection:
        counts = OUTBOX.counts(connection)
    assert (counts["sent"], counts["pending"]) == (1, 3)
    assert len(smtp_sink.received) == 1


def test_it_looks_at_once_when_it_is_woken(engine: Engine, smtp_sink: SmtpSink) -> None:
    stop = threading.Event()
    one = relay(engine, smtp_sink, idle=3600.0)
    thread = threading.Thread(target=one.run, args=(stop,))
    put(engine, "k1", 1)
    thread.start()
    smtp_sink.wait_for(1)
    eventually(lambda: state(engine, "k1") == "sent", "the first is settled")
    put(engine, "k2", 2)

    def woken() -> bool:
        one.wake()
        return len(smtp_sink.received) == 2

    eventually(woken, "the second was sent although an hour is not over")
    stop.set()
    thread.join(60)
    assert not thread.is_alive()


def test_it_survives_the_mail_server_and_missing_tables(pg_dsn: str, tmp_path: Path, smtp_sink: SmtpSink) -> None:
    bare = create_engine(pg_dsn.replace("postgresql://", "postgresql+psycopg://"))
    with bare.begin() as connection:
        connection.execute(text("create table placeholder ()"))
    stop = threading.Event()
    smtp_sink.stop()
    one = Relay(bare, transport(smtp_sink), leases=CounterLeases(bare), idle=0.02)
    with pytest.raises(SchemaMissingError, match=r"adapters\.email\.create_all"):
        one.run_once()
    thread = threading.Thread(target=one.run, args=(stop,))
    thread.start()
    made = outbox_engine("postgresql", pg_dsn, tmp_path)
    put(made, "k")
    eventually(lambda: row(made, "k")["owner"] is not None, "it was claimed")
    smtp_sink.start()
    smtp_sink.wait_for(1, timeout=60)
    eventually(lambda: state(made) == "sent", "it is sent")
    stop.set()
    thread.join(60)
    assert len(smtp_sink.received) == 1
    bare.dispose()
    made.dispose()


def test_the_end_is_written_after_a_restart_of_the_database(
    pg_server: Callable[..., Postgres], smtp_sink: SmtpSink, tmp_path: Path
) -> None:
    """The server takes the message while the database restarts: what is known is offered until it can be written."""
    server = pg_server()
    engine = outbox_engine("postgresql", server.create_database("mail"), tmp_path)
    put(engine, "k")
    restarts = itertools.count()

    def restart(exchange: Exchange) -> None:
        next(restarts)
        server.restart()

    smtp_sink.on_message = restart
    assert relay(engine, smtp_sink).run_once() == RelayCounts(claimed=1, sent=1)
    assert (state(engine), len(smtp_sink.received), next(restarts)) == ("sent", 1, 1)
    engine.dispose()


def test_dispatching_is_on_disk_before_the_content_even_if_the_session_does_not_ask_for_it(
    pg_server: Callable[..., Postgres], smtp_sink: SmtpSink, tmp_path: Path
) -> None:
    """``kill -9`` of the server with asynchronous commit: the hand-over is not forgotten, so it is not repeated."""
    server = pg_server(settings={"synchronous_commit": "off", "wal_writer_delay": "10s"})
    engine = outbox_engine("postgresql", server.create_database("mail"), tmp_path)
    put(engine, "k")
    with engine.begin() as connection:
        connection.execute(text("set local synchronous_commit = on"))
        connection.execute(text("create table now_all_of_it_is_on_disk ()"))

    def crash(exchange: Exchange) -> Answer:
        server.kill()
        server.start()
        return Drop(accepted=True)

    smtp_sink.on_message = crash
    relay(engine, smtp_sink, lease=2).run_once()

    def looked() -> bool:
        relay(engine, smtp_sink).run_once()
        return state(engine) in ("uncertain", "sent")

    eventually(looked, "the row's end is known or uncertain")
    assert len(smtp_sink.received) == 1
    engine.dispose()


# -- what an operator sees


def test_findings_say_what_is_wrong(engine: Engine, smtp_sink: SmtpSink) -> None:
    assert {finding.severity for finding in diagnose(engine)} == {"ok"}
    for number, issuer in enumerate(("one", "two")):
        put(engine, f"k{number}", number)
        smtp_sink.on_rcpt = once(["450 later"])
        relay(engine, smtp_sink, leases=CounterLeases(engine, issuer)).run_once()
    with engine.begin() as connection:
        connection.execute(
            text("update fencing_outbox set due_at = :past where key = 'k0'"),
            {
                "past": datetime(2026, 1, 1, tzinfo=UTC)
                if engine.dialect.name == "postgresql"
                else "2026-01-01 00:00:00.000000"
            },
        )
        connection.execute(
            text("update fencing_outbox set state = 'dispatching', lease_until = created_at where key = 'k1'")
        )
    found = {finding.check: finding.severity for finding in diagnose(engine)}
    assert found == {
        "outbox.tables": "ok",
        "outbox.uncertain": "ok",
        "outbox.due": "warning",
        "outbox.leases": "warning",
        "outbox.issuer": "broken",
    }


def test_nonsense_is_refused_when_the_relay_is_made(engine: Engine, smtp_sink: SmtpSink) -> None:
    leases = CounterLeases(engine)
    with pytest.raises(TypeError, match="Engine"):
        Relay("postgresql://", transport(smtp_sink), leases=leases)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="LeaseSource"):
        Relay(engine, transport(smtp_sink), leases=object())  # type: ignore[arg-type]
    for options in ({"batch": 0}, {"lease": 0.0}, {"idle": -1.0}, {"name": ""}):
        with pytest.raises(ValueError, match=next(iter(options))):
            Relay(engine, transport(smtp_sink), leases=leases, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="exclude"):
        SmtpTransport("mail", tls=True, starttls=True)
    with pytest.raises(ValueError, match="together"):
        SmtpTransport("mail", user="me")
    assert "secret" not in repr(SmtpTransport("mail", user="me", password="secret"))
