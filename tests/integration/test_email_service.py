"""The relay as a service: many connections, order, pace, a server that is down, and the database under it."""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError
from support.outbox import CounterLeases, audit, mail, outbox_engine, recipients, row
from support.waiting import eventually

from adapters.email import (
    Answer,
    Breaker,
    Item,
    MemoryTransport,
    Outbox,
    Outgoing,
    Relay,
    RelayCounts,
    SmtpTransport,
    TransportUnavailable,
    _commits,
    _relay,
)
from adapters.email._breaker import Circuit, Pace
from adapters.email._claim import Claim
from adapters.email._claims import claim_plan
from adapters.email._commits import Commits, End
from adapters.email._hold import Database
from adapters.email._outcome import Settlement
from adapters.email._rescue import rescue_plan
from adapters.email._settle import Through, dispatch_plan, group_plan, release_plan, sent_plan, settle_plan
from adapters.email._states import RecipientState
from adapters.email.testing import HeldAnswer
from fencing import Lease
from scheduler.console.embedded import Drop, Exchange, SmtpSink

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


def smtp(sink: SmtpSink) -> SmtpTransport:
    return SmtpTransport("127.0.0.1", sink.port, local_hostname="relay.test", timeout=60)


def relay(engine: Engine, transport: Any, **options: Any) -> Relay:
    return Relay(engine, transport, leases=CounterLeases(engine), **options)


def put(engine: Engine, *keys: str, **options: Any) -> None:
    with engine.begin() as tx:
        OUTBOX.put_many(tx, [Item(message=mail(number), key=key, **options) for number, key in enumerate(keys)])


def states(engine: Engine) -> dict[str, int]:
    with engine.connect() as tx:
        return {state: number for state, number in OUTBOX.counts(tx).items() if number}


def make_due(engine: Engine) -> None:
    with engine.begin() as tx:
        tx.execute(text("update fencing_outbox set due_at = created_at"))


class Serving:
    """A relay that runs on a thread."""

    def __init__(self, service: Relay) -> None:
        self.stop = threading.Event()
        self._thread = threading.Thread(target=service.run, args=(self.stop,))

    def __enter__(self) -> threading.Event:
        self._thread.start()
        return self.stop

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


# -- late evidence about what a person stopped


@pytest.mark.parametrize(("target", "after"), [("pending", "uncertain"), ("sent", "sent")])
def test_late_evidence_sends_nothing_that_a_person_stopped_meanwhile(
    engine: Engine, target: RecipientState, after: str
) -> None:
    put(engine, "k0", policy="resend")
    database, leases = Database(engine), CounterLeases(engine)
    first, second = (Claim(name, leases.token(), 0.001) for name in ("first", "second"))
    [taken] = database.run(lambda dialect: claim_plan(first, 1, 5, dialect)).rows
    assert database.run(lambda dialect: dispatch_plan(first, {taken.id: {}}, dialect)) == {taken.id: "open"}
    eventually(lambda: database.run(lambda dialect: rescue_plan(second, 1, 5, dialect)), "its lease is over")
    assert row(engine, "k0")["state"] == "pending"
    with engine.begin() as tx:
        assert OUTBOX.cancel(tx, "k0", actor="ann", reason="a mistake").after == "uncertain"
    answers = dict.fromkeys(taken.recipients, (target, "its answer"))
    end = Settlement(target, 1, 60.0 if target == "pending" else None, "its answer", answers)
    said = database.run(lambda dialect: settle_plan(first, taken.id, end, dialect))
    assert (said, row(engine, "k0")["state"]) == ("evidence" if after == "sent" else "lost", after)
    assert ("evidence", "late" if after == "uncertain" else "sent") in audit(engine, "k0")


# -- nothing to take


class CountedLeases(CounterLeases):
    """Says when it was asked more often than it should have been."""

    def __init__(self, engine: Engine, most: int) -> None:
        super().__init__(engine)
        self.left = most
        self.too_many = threading.Event()

    def lease(self, name: str, *, ttl: float, wait: float = 0) -> AbstractContextManager[Lease]:
        self.left -= 1
        if self.left < 0:
            self.too_many.set()
        return super().lease(name, ttl=ttl, wait=wait)


def test_what_is_due_and_may_not_be_taken_is_looked_at_now_and_then_and_holds_up_nothing(engine: Engine) -> None:
    """Another issuer's message; and one whose turn comes after a message that is tried again in an hour."""
    put(engine, "strange", "first", "second")
    with engine.begin() as tx:
        tx.execute(text("update fencing_outbox set issuer = 'other', lineage = 'x', token = 1 where key = 'strange'"))
        tx.execute(text("update fencing_outbox set order_key = 'o' where key <> 'strange'"))
        tx.execute(text("update fencing_outbox set due_at = '2100-01-01 00:00:00.000000' where key = 'first'"))
    leases, transport = CountedLeases(engine, most=4), MemoryTransport()
    service = Relay(engine, transport, leases=leases, idle=30)
    with Serving(service):
        assert not leases.too_many.wait(0.5)
        put(engine, "new")
        service.wake()
        eventually(lambda: states(engine).get("sent") == 1, "the new message is sent")


# -- several connections


def test_connections_serve_at_once_and_each_message_is_dispatching_before_its_content(
    engine: Engine, smtp_sink: SmtpSink
) -> None:
    together = threading.Barrier(3, timeout=60)
    seen: list[str] = []

    def look(exchange: Exchange) -> None:
        together.wait()  # three contents at the same moment, on three connections
        with engine.connect() as tx:
            address = exchange.rcpt_tos[0]
            seen.append(
                tx.execute(
                    text(
                        "select o.state from fencing_outbox o join fencing_outbox_recipient r on r.outbox_id = o.id"
                        " where r.address = :address"
                    ),
                    {"address": address},
                ).scalar_one()
            )

    smtp_sink.on_data = look
    put(engine, *(f"k{number}" for number in range(6)))
    assert relay(engine, smtp(smtp_sink), connections=3).run_once() == RelayCounts(claimed=6, sent=6)
    assert seen == ["dispatching"] * 6
    assert len({message.rcpt_tos for message in smtp_sink.received}) == 6
    assert set(recipients(engine, "k5").values()) == {"sent"}


def test_what_waits_for_a_commit_goes_together_with_the_next_one(pg: Engine) -> None:
    put(pg, "k0", "k1", "k2", "k3")
    claim = Claim("relay", CounterLeases(pg).token(), 60)
    first, *others = (row.id for row in Database(pg).run(lambda dialect: claim_plan(claim, 4, 5, dialect)).rows)
    commits = Commits(Database(pg), Through("smtp"), threading.Event())
    written, run = [], commits._line.run

    def counting(make: Any) -> Any:
        written.append(1)
        return run(make)

    commits._line.run = counting  # type: ignore[method-assign]
    answers: dict[int, str] = {}

    def gate(number: int) -> threading.Thread:
        thread = threading.Thread(target=lambda: answers.update({number: commits.gate(claim, number, {})}))
        thread.start()
        return thread

    with pg.begin() as held:
        held.execute(text("lock table fencing_outbox in exclusive mode"))
        threads = [gate(first)]
        eventually(lambda: bool(written) and not commits._gates, "the first one waits for the table")
        threads += [gate(number) for number in others]
        eventually(lambda: len(commits._gates) == 3, "the others wait for it")
    for thread in threads:
        thread.join(60)
    assert answers == dict.fromkeys((first, *others), "open")
    assert len(written) == 2
    commits.close()


def test_the_connections_at_work_commit_together(pg: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    put(pg, "k0", "k1", "k2", "k3")
    claim = Claim("relay", CounterLeases(pg).token(), 60)
    numbers = [row.id for row in Database(pg).run(lambda dialect: claim_plan(claim, 4, 5, dialect)).rows]
    commits = Commits(Database(pg), Through("smtp"), threading.Event())
    together: list[int] = []
    run = commits._line.run

    def counting(make: Any) -> Any:
        with pg.connect() as tx:
            together.append(
                tx.execute(text("select count(*) from fencing_outbox where state = 'claimed'")).scalar_one()
            )
        return run(make)

    commits._line.run = counting  # type: ignore[method-assign]
    monkeypatch.setattr(_commits, "_GATHER", 600.0)  # nobody's moment is over in this test
    with commits.delivery(), commits.delivery():
        first = threading.Thread(target=lambda: commits.gate(claim, numbers[0], {}))
        first.start()
        eventually(lambda: bool(commits._gates), "the first one waits for another")
        commits.gate(claim, numbers[1], {})
        first.join(20)
    assert together == [4]
    with commits.delivery():  # one that is alone waits for nobody
        commits.gate(claim, numbers[2], {})
    assert together == [4, 2]
    monkeypatch.setattr(_commits, "_GATHER", 0.001)
    with commits.delivery(), commits.delivery():  # nor one that nobody joins, for long
        commits.gate(claim, numbers[3], {})
    assert together == [4, 2, 1]
    commits.close()


def test_a_row_in_somebodys_open_transaction_holds_up_itself_alone(pg: Engine, smtp_sink: SmtpSink) -> None:
    keys = [f"k{number}" for number in range(6)]
    put(pg, *keys)
    reached, go_on = threading.Event(), threading.Event()

    def wait(exchange: Exchange) -> None:
        if exchange.mail_from and "reader0@example.org" in str(exchange.rcpt):
            reached.set()
            go_on.wait(20)

    smtp_sink.on_rcpt = wait
    with pg.connect() as person, Serving(relay(pg, smtp(smtp_sink), connections=3, batch=6, idle=0.05)):
        assert reached.wait(20)
        OUTBOX.cancel(person, "k0", actor="p", reason="not yet committed")
        person.execute(text("set local idle_in_transaction_session_timeout = 0"))  # a slow machine is no fault
        go_on.set()
        eventually(lambda: states(pg).get("sent") == 5, "the others are sent meanwhile", timeout=60)
        person.commit()
        eventually(lambda: states(pg) == {"sent": 5, "cancelled": 1}, "it is cancelled")
        eventually(lambda: audit(pg, "k0")[-1] in {("dispatch", "lost"), ("settle", "lost")}, "its relay was refused")
    assert len(smtp_sink.received) == 5


def test_a_few_ends_wait_for_more_and_not_for_long(pg: Engine) -> None:
    put(pg, *(f"k{number}" for number in range(12)))
    claim = Claim("relay", CounterLeases(pg).token(), 60)
    numbers = [row.id for row in Database(pg).run(lambda dialect: claim_plan(claim, 12, 5, dialect)).rows]
    commits = Commits(Database(pg), Through("smtp"), threading.Event())
    commits._ended.wait = lambda _=None: go_on.wait(20)  # type: ignore[method-assign, assignment]
    go_on = threading.Event()

    def end(number: int) -> None:
        sent = Settlement("sent", 1, None, "250", {f"reader{numbers.index(number)}@example.org": ("sent", "250 OK")})
        commits.end(End(claim, number, sent, True, lambda: 60.0, lambda _: None))

    for number in numbers[:8]:
        commits.gate(claim, number, {})
    with ExitStack() as at_work:
        for _ in range(3):
            at_work.enter_context(commits.delivery())
        end(numbers[0])
        end(numbers[1])
        commits.gate(claim, numbers[8], {})
        assert states(pg) == {"claimed": 3, "dispatching": 9}
        end(numbers[2])
        commits.gate(claim, numbers[9], {})
        assert states(pg) == {"claimed": 2, "dispatching": 7, "sent": 3}
    end(numbers[3])
    with commits.delivery():  # a connection that is alone leaves nothing behind it in doubt
        commits.gate(claim, numbers[10], {})
    assert states(pg) == {"claimed": 1, "dispatching": 7, "sent": 4}
    end(numbers[4])
    go_on.set()  # its time is over, and no hand-over came
    eventually(lambda: states(pg) == {"claimed": 1, "dispatching": 6, "sent": 5}, "it is written by itself")
    commits.close()


def test_a_hand_over_whose_wait_is_broken_off_leaves_the_others_theirs(
    pg: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(pg, "k0", "k1", "k2")
    claim = Claim("relay", CounterLeases(pg).token(), 60)
    numbers = [row.id for row in Database(pg).run(lambda dialect: claim_plan(claim, 3, 5, dialect)).rows]
    commits = Commits(Database(pg), Through("smtp"), threading.Event())
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda number=number: gate(number)) for number in numbers[1:]]

    def gate(number: int) -> None:
        try:
            answers.append(commits.gate(claim, number, {}))
        except Exception as exc:  # noqa: BLE001 - which one it is is asked below
            answers.append(exc)

    def interrupted(make: Any) -> Any:
        commits._line.run = run  # type: ignore[method-assign]
        monkeypatch.setattr(_commits, "_GATHER", 0.01)
        threads[1].start()
        eventually(lambda: len(commits._gates) == 1, "another one waits")
        raise KeyboardInterrupt

    run, commits._line.run = commits._line.run, interrupted  # type: ignore[method-assign]
    monkeypatch.setattr(_commits, "_GATHER", 600.0)
    with commits.delivery(), commits.delivery():
        threads[0].start()
        eventually(lambda: len(commits._gates) == 1, "one goes with it")
        with pytest.raises(KeyboardInterrupt):
            commits.gate(claim, numbers[0], {})
        for thread in threads:
            thread.join(20)
    assert sorted(map(str, answers)) == ["open", "the commit was broken off: KeyboardInterrupt()"]
    commits.close()


def test_a_running_relay_gives_back_what_it_has_not_begun(engine: Engine, smtp_sink: SmtpSink) -> None:
    arrived, go_on = threading.Event(), threading.Event()

    def wait(exchange: Exchange) -> None:
        arrived.set()
        go_on.wait(60)

    smtp_sink.on_message = wait
    put(engine, *(f"k{number}" for number in range(10)))
    with Serving(relay(engine, smtp(smtp_sink), connections=2, batch=10, idle=0.05)) as stop:
        assert arrived.wait(60)
        stop.set()
        go_on.set()
    found = states(engine)
    assert found.pop("sent") == len(smtp_sink.received) <= 2
    assert found == {"pending": 10 - len(smtp_sink.received)}


def test_what_was_not_begun_is_given_back_while_a_stopping_relay_waits_for_an_answer(
    engine: Engine, smtp_sink: SmtpSink
) -> None:
    """The answer to a final dot may take ten minutes; another relay can serve the others meanwhile."""
    held = HeldAnswer(most=300)
    put(engine, *(f"k{number}" for number in range(5)))
    with smtp_sink.failing(held), Serving(relay(engine, smtp(smtp_sink), idle=0.05)) as stop:
        try:
            assert held.arrived.wait(60)
            assert states(engine) == {"claimed": 4, "dispatching": 1}
            stop.set()
            eventually(lambda: states(engine) == {"pending": 4, "dispatching": 1}, "they are given back")
        finally:
            held.release()
    assert states(engine) == {"pending": 4, "sent": 1}


def test_an_end_that_cannot_be_written_keeps_no_other_from_it(engine: Engine) -> None:
    """PostgreSQL refuses NUL in text, and a server may say anything."""
    put(engine, "k0", "k1", "k2")
    answers = {"reader1@example.org": Answer("rejected", "550 no\x00\x01 such user")}
    transport = MemoryTransport(lambda sent: answers.get(sent.recipients[0], Answer("sent", "250 \x00 ok")))
    assert relay(engine, transport).run_once() == RelayCounts(claimed=3, sent=2, failed=1)
    assert row(engine, "k1")["last_error"].endswith("550 no   such user")


class _Away:
    """A database that has gone and does not come back."""

    dialect = "postgresql"

    def line(self) -> None:
        """Nobody asks it."""

    def run(self, make: Any) -> Any:
        """Lost."""
        raise OperationalError("update", {}, Exception("server closed the connection"))


def test_run_once_offers_what_it_knows_for_as_long_as_its_claim_lasts_and_then_returns(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, ends_at, said = [100.0], 105.0, list[str]()
    monkeypatch.setattr(_commits, "lease_clock", lambda: clock[0])
    sent = Settlement("sent", 1, None, "250", {"reader@example.org": ("sent", "250 OK")})
    given: list[float] = []

    class Watched(Commits):
        def __init__(self, *args: Any, settle_for: float) -> None:
            super().__init__(*args, settle_for=settle_for)
            given.append(settle_for)

    monkeypatch.setattr(_relay, "Commits", Watched)
    put(engine, "k0")
    assert relay(engine, MemoryTransport()).run_once() == RelayCounts(claimed=1, sent=1)
    commits = Commits(cast(Database, _Away()), Through("smtp"), threading.Event(), settle_for=given[0])
    claim = Claim("relay", CounterLeases(engine).token(), 60)
    commits._failed = [End(claim, 1, sent, True, lambda: max(0.0, ends_at - clock[0]), said.append)]
    for clock[0] in (100.0, 104.9):
        assert not commits._offer_again()
        assert said == []
    clock[0] = 105.1
    assert commits._offer_again()
    assert said == ["lost"]


# -- order


def test_messages_of_one_order_key_go_one_after_the_other(engine: Engine, smtp_sink: SmtpSink) -> None:
    put(engine, "a1", "a2", "a3", order_key="a")
    put(engine, "free")
    smtp_sink.on_rcpt = lambda exchange: "450 later" if exchange.rcpt == "reader0@example.org" and busy else None
    busy = True
    with engine.begin() as tx:  # a later one with a higher priority waits all the same
        tx.execute(text("update fencing_outbox set priority = 5 where key = 'a3'"))
        OUTBOX.put(tx, mail(9), key="other", order_key="b")
    sender = relay(engine, smtp(smtp_sink))
    counts = sender.run_once()
    assert (counts.claimed, counts.sent, counts.retried) == (3, 1, 2)  # a1 and free are deferred; other is sent
    assert sender.run_once().claimed == 0  # the first one waits for its retry, and the others for it
    busy = False
    make_due(engine)
    for _ in range(4):
        sender.run_once()
    order = [message.rcpt_tos[0] for message in smtp_sink.received]
    assert [address for address in order if address in ("reader1@example.org", "reader2@example.org")] == [
        "reader1@example.org",
        "reader2@example.org",
    ]
    assert states(engine) == {"sent": 5}


@pytest.mark.parametrize(("fate", "next_goes"), [("rejected", True), ("uncertain", False)])
def test_a_failed_message_lets_the_next_one_go_and_an_uncertain_one_does_not(
    engine: Engine, fate: Any, next_goes: bool
) -> None:
    put(engine, "a1", "a2", order_key="a")
    sender = relay(engine, MemoryTransport(lambda _: Answer(fate, "?")))
    sender.run_once()
    assert sender.run_once().claimed == (1 if next_goes else 0)
    with engine.begin() as tx:
        if not next_goes:
            OUTBOX.resolve(tx, "a1", "sent", actor="ann", reason="it is in the server's log")
    if not next_goes:
        assert sender.run_once().claimed == 1


def test_a_message_that_missed_its_call_is_found_by_the_sweep(engine: Engine) -> None:
    """It was put while the one before ended: each of the two transactions saw the other one too late."""
    put(engine, "a1", order_key="a")
    sender = relay(engine, MemoryTransport())
    sender.run_once()
    put(engine, "a2", order_key="a")
    assert not row(engine, "a2")["waits"]
    with engine.begin() as tx:
        tx.execute(text("update fencing_outbox set waits = true where key = 'a2'"))
        assert OUTBOX.stats(tx).parked == 1
    assert sender.run_once() == RelayCounts(claimed=1, sent=1)


def test_a_message_behind_another_one_is_parked_until_that_is_cancelled(engine: Engine) -> None:
    put(engine, "a1", "a2", "a3", order_key="a")
    put(engine, "a4", order_key="a")
    assert [bool(row(engine, key)["waits"]) for key in ("a1", "a2", "a3", "a4")] == [False, True, True, True]
    with engine.begin() as tx:
        OUTBOX.cancel(tx, "a1", actor="ann", reason="it is the wrong invoice")
    assert [bool(row(engine, key)["waits"]) for key in ("a2", "a3", "a4")] == [False, True, True]
    memory = MemoryTransport()
    sender = relay(engine, memory)
    while sender.run_once().claimed:
        pass
    assert [sent.recipients[0] for sent in memory.sent] == [
        "reader1@example.org",
        "reader2@example.org",
        "reader0@example.org",
    ]


# -- pace and breaker


def test_a_rate_is_kept_over_all_connections() -> None:
    pace, stop = Pace(50.0), threading.Event()
    began = time.monotonic()
    for _ in range(11):
        pace.wait(stop)
    assert time.monotonic() - began >= 0.19  # ten turns after the first, each a fiftieth of a second
    assert pace.share(100, 1.0) == 50
    assert Pace(None).share(100, 1.0) == 100


def test_a_rate_is_no_reason_to_wait_when_nothing_is_left(engine: Engine) -> None:
    put(engine, "k0")
    began = time.monotonic()
    assert relay(engine, MemoryTransport(), rate=0.001).run_once() == RelayCounts(claimed=1, sent=1)
    assert time.monotonic() - began < 100  # and not a thousand seconds


def test_a_breaker_opens_lets_one_try_and_closes() -> None:
    circuit = Circuit(Breaker(first=600, cap=600))
    assert (circuit.state, circuit.remaining()) == ("closed", 0)
    circuit.fail()
    assert circuit.state == "open"
    assert 0 < circuit.remaining() <= 600
    circuit._until = time.monotonic()  # as when the pause is over
    assert (circuit.state, circuit.remaining()) == ("half-open", 0)
    circuit.succeed()
    assert circuit.state == "closed"
    assert Breaker(first=1, cap=60).pause(50) <= 60
    with pytest.raises(ValueError, match="cap"):
        Breaker(first=2, cap=1)


def test_a_server_that_is_down_is_left_alone_and_costs_nothing(engine: Engine) -> None:
    down, tries = threading.Event(), []
    down.set()

    class Flaky:
        name = "flaky://"

        def session(self) -> Any:
            return self

        def deliver(self, sent: Outgoing, gate: Any) -> Any:
            tries.append(sent.recipients)
            if down.is_set():
                raise TransportUnavailable("it is down")
            return MemoryTransport().session().deliver(sent, gate)

        def close(self) -> None:
            pass

    put(engine, *(f"k{number}" for number in range(5)))
    service = relay(engine, Flaky(), idle=0.02, breaker=Breaker(first=0.02, cap=0.2))
    with Serving(service):
        eventually(lambda: len(tries) >= 3, "it was tried a few times")
        eventually(lambda: service.status().unavailable == "it is down", "it says so")
        assert service.status().breaker in ("open", "half-open")
        down.clear()
        eventually(lambda: states(engine) == {"sent": 5}, "all are sent")
        assert service.status().breaker == "closed"
    with engine.connect() as tx:
        assert {entry.attempts for entry in OUTBOX.list(tx)} == {1}


# -- greylisting


def test_greylisting_is_outlasted_and_one_copy_arrives(engine: Engine, smtp_sink: SmtpSink) -> None:
    """450 for a minute: the first retry comes later than that."""
    smtp_sink.on_rcpt = lambda exchange: "450 4.2.0 greylisted, come back in 60 seconds"
    put(engine, "k0")
    sender = relay(engine, smtp(smtp_sink))
    assert sender.run_once().retried == 1
    with engine.connect() as tx:
        (entry,) = OUTBOX.list(tx)
    assert (entry.due_at - entry.updated_at).total_seconds() >= 60
    smtp_sink.on_rcpt = None
    make_due(engine)
    assert sender.run_once().sent == 1
    assert len(smtp_sink.received) == 1


def test_a_kept_connection_that_was_idle_is_asked_before_it_is_used(engine: Engine, smtp_sink: SmtpSink) -> None:
    session = smtp(smtp_sink).session()
    mailing = Outgoing("a@example.org", ("b@example.org",), b"Subject: x\r\n\r\nx\r\n")
    assert session.deliver(mailing, lambda _: None).answers["b@example.org"].fate == "sent"
    session._used -= 60  # type: ignore[attr-defined]
    smtp_sink.on_mail = lambda exchange: Drop("421 too long idle") if not gone.is_set() and not gone.set() else None
    gone = threading.Event()
    assert session.deliver(mailing, lambda _: None).answers["b@example.org"].fate == "sent"
    assert len(smtp_sink.received) == 2
    session.close()


def test_a_relay_that_was_only_stopped_spares_the_copy_that_its_policy_would_send(engine: Engine) -> None:
    """Its row was found after its lease and waits to be sent again, when it comes back and knows that it was sent."""

    def overtaken(sent: Outgoing) -> Answer:
        with engine.begin() as tx:
            tx.execute(text("update fencing_outbox set lease_until = created_at"))
        claim = Claim("another", CounterLeases(engine).token(), 60)
        Database(engine).run(lambda dialect: rescue_plan(claim, 10, 5, dialect))
        assert (row(engine, "k0")["state"], bool(row(engine, "k0")["in_doubt"])) == ("pending", True)
        return Answer("sent", "250 ok")

    put(engine, "k0", policy="resend")
    memory = MemoryTransport(overtaken)
    assert relay(engine, memory).run_once() == RelayCounts(claimed=1, lost=1, evidence=1)
    assert (row(engine, "k0")["state"], bool(row(engine, "k0")["in_doubt"]), len(memory.sent)) == ("sent", False, 1)


def test_an_older_token_writes_nothing_about_a_row_in_the_same_state_under_a_newer_one(engine: Engine) -> None:
    database, leases = Database(engine), CounterLeases(engine)
    put(engine, "k0")
    older, newer = (Claim("same owner", leases.token(), 60) for _ in range(2))

    def claimed(claim: Claim) -> int:
        with engine.begin() as tx:
            tx.execute(text("update fencing_outbox set lease_until = created_at where lease_until is not null"))
        return database.run(lambda dialect: claim_plan(claim, 1, 5, dialect)).rows[0].id

    number = claimed(older)
    assert claimed(newer) == number
    before = row(engine, "k0")
    end = Settlement("sent", 1, None, "250 ok", {"reader0@example.org": ("sent", "250 ok")})
    later = Settlement("pending", 1, 60.0, "450 later", {"reader0@example.org": ("pending", "450 later")})
    dispatched = database.run(lambda dialect: dispatch_plan(older, {number: {}}, dialect))
    assert dispatched == {number: "lost"}
    assert database.run(lambda dialect: release_plan(older, [number], dialect)) == 0
    assert database.run(lambda dialect: settle_plan(older, number, later, dialect)) == "lost"
    assert row(engine, "k0") == before
    assert database.run(lambda dialect: dispatch_plan(newer, {number: {}}, dialect)) == {number: "open"}
    before = row(engine, "k0")
    assert database.run(lambda dialect: sent_plan(older, {number: end}, dialect)) == set()
    assert database.run(lambda dialect: settle_plan(older, number, end, dialect)) == "lost"
    if engine.dialect.name == "postgresql":
        through = Through("smtp")
        assert database.run(lambda _: group_plan(older, {number: end}, [number], through)) == (set(), set())
        assert row(engine, "k0") == before
        assert database.run(lambda _: group_plan(newer, {number: end}, [], through)) == ({number}, set())
        assert (row(engine, "k0")["state"], recipients(engine, "k0")) == ("sent", {"reader0@example.org": "sent"})
    else:
        assert row(engine, "k0") == before


def test_what_a_rescue_wrote_is_not_taken_for_this_relays_own_word(engine: Engine) -> None:
    """The row is pending, as this relay would have it, and under its token still; what it knows is not in there."""
    database, leases = Database(engine), CounterLeases(engine)
    put(engine, "k0", policy="resend")
    stopped, other = (Claim(name, leases.token(), 60) for name in ("stopped", "other"))
    (claimed,) = database.run(lambda dialect: claim_plan(stopped, 1, 5, dialect)).rows
    database.run(lambda dialect: dispatch_plan(stopped, {claimed.id: {}}, dialect))
    with engine.begin() as tx:
        tx.execute(text("update fencing_outbox set lease_until = created_at"))
    assert database.run(lambda dialect: rescue_plan(other, 1, 5, dialect))[0].state == "pending"
    later = Settlement("pending", 1, 60.0, "450 later", {"reader0@example.org": ("pending", "450 later")})
    assert database.run(lambda dialect: settle_plan(stopped, claimed.id, later, dialect)) == "lost"
    assert audit(engine, "k0")[-1] == ("evidence", "late")


def test_whether_its_turn_has_come_is_the_claims_to_decide(engine: Engine) -> None:
    """Parking is a hint: a row that is not parked and stands behind another one is left alone all the same."""
    put(engine, "a1", "a2", order_key="a")
    with engine.begin() as tx:
        tx.execute(text("update fencing_outbox set waits = false"))
    memory = MemoryTransport()
    assert relay(engine, memory).run_once() == RelayCounts(claimed=1, sent=1)
    assert [sent.recipients for sent in memory.sent] == [("reader0@example.org",)]
