"""HTTP providers and the policies that lean on them, against a real HTTP server that compares keys."""

import base64
import uuid
from collections.abc import Iterator
from email import message_from_bytes
from email.policy import default
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from support.mail_provider import MailProvider
from support.outbox import CounterLeases, audit, mail, outbox_engine, recipients, row

from adapters.email import (
    Answer,
    Attachment,
    Backoff,
    CallableTransport,
    ConsoleTransport,
    Email,
    FileTransport,
    HttpTransport,
    MemoryTransport,
    Outbox,
    Outgoing,
    Provider,
    RedirectTransport,
    Reference,
    Relay,
    RelayCounts,
    TransportUnavailable,
    brevo,
    generic,
    loops,
    resend,
)
from scheduler.console.embedded import Postgres

OUTBOX = Outbox(from_="Shop <shop@example.org>")
BACKOFF = Backoff(attempts=5)


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def engine(
    request: pytest.FixtureRequest,
    postgres: Postgres,
    pg_names: Iterator[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Engine]:
    name = next(pg_names)
    made = outbox_engine(request.param, postgres.create_database(name), tmp_path_factory.mktemp("providers"))
    yield made
    made.dispose()
    postgres.drop_database(name)


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return count(1)


@pytest.fixture
def key(engine: Engine, numbers: Iterator[int]) -> Iterator[str]:
    yield f"k{next(numbers)}"
    with engine.begin() as tx:  # what a test left does not disturb the next one
        tx.execute(text("update fencing_outbox set state = 'cancelled', lease_until = null, lookup_at = null"))


@pytest.fixture
def provider() -> Iterator[MailProvider]:
    with MailProvider() as server:
        yield server


def relay(engine: Engine, transport: Any, **options: Any) -> Relay:
    return Relay(engine, transport, leases=CounterLeases(engine), backoff=BACKOFF, **options)


def http(server: MailProvider, **options: Any) -> HttpTransport:
    return HttpTransport(generic("test", server.url, **{"window": 1800, "headers": {}, **options}), timeout=60)


def put(engine: Engine, key: str, message: Email | None = None, **options: Any) -> None:
    with engine.begin() as tx:
        OUTBOX.put(tx, message or mail(), key=key, **options)


def make_due(engine: Engine, key: str, **columns: str) -> None:
    ago = "now() - interval '1 hour'" if engine.dialect.name == "postgresql" else "'2026-01-01 00:00:00.000000'"
    more = "".join(f", {name} = {value.replace('AGO', ago)}" for name, value in columns.items())
    with engine.begin() as tx:
        tx.execute(text(f"update fencing_outbox set due_at = {ago}{more} where key = :key"), {"key": key})


# -- keyed


def test_a_lost_answer_is_asked_for_again_under_the_same_key_and_arrives_once(
    engine: Engine, provider: MailProvider, key: str
) -> None:
    provider.faults.append("accept and drop")
    put(engine, key, policy="keyed")
    sender = relay(engine, http(provider))
    assert sender.run_once() == RelayCounts(claimed=1, retried=1)
    assert (row(engine, key)["state"], bool(row(engine, key)["in_doubt"])) == ("pending", True)
    make_due(engine, key)
    assert sender.run_once() == RelayCounts(claimed=1, sent=1)
    assert len(provider.accepted) == 1
    assert provider.requests[0] == provider.requests[1]
    assert not row(engine, key)["in_doubt"]


def test_the_key_is_the_same_whatever_the_time_zone_of_a_relays_session(
    engine: Engine, provider: MailProvider, key: str
) -> None:
    """Drivers give times in the session's zone (PGTZ, a setting of the role): the provider must not see another key."""
    provider.faults.append("accept and drop")
    put(engine, key, policy="keyed")
    assert relay(engine, http(provider)).run_once() == RelayCounts(claimed=1, retried=1)
    make_due(engine, key)
    elsewhere = {"options": "-c timezone=Asia/Tokyo"} if engine.dialect.name == "postgresql" else {}
    other = create_engine(engine.url, connect_args=elsewhere)
    try:
        assert relay(other, http(provider)).run_once() == RelayCounts(claimed=1, sent=1)
    finally:
        other.dispose()
    assert provider.requests[0] == provider.requests[1]
    assert len(provider.accepted) == 1


def test_past_the_providers_window_nothing_is_sent_again_by_itself(
    engine: Engine, provider: MailProvider, key: str
) -> None:
    """The same key afterwards would send again: the provider has forgotten it."""
    provider.faults.append("accept and drop")
    put(engine, key, policy="keyed")
    sender = relay(engine, http(provider))
    sender.run_once()
    provider.clock += 1801
    make_due(engine, key, key_until="AGO")
    assert sender.run_once() == RelayCounts(doubtful=1)
    assert (row(engine, key)["state"], recipients(engine, key)) == ("uncertain", {"reader1@example.org": "uncertain"})
    assert len(provider.requests) == 1
    assert audit(engine, key)[-1] == ("claim", "uncertain")


def test_a_window_that_ends_between_claim_and_hand_over_closes_the_gate(
    engine: Engine, provider: MailProvider, key: str
) -> None:
    provider.faults.append("accept and drop")
    put(engine, key, policy="keyed")
    transport = http(provider)
    relay(engine, transport).run_once()
    make_due(engine, key)
    rendered = transport._provider.body

    def late(parts: Any) -> Any:
        make_due(engine, key, key_until="AGO")
        return rendered(parts)

    object.__setattr__(transport._provider, "body", late)
    assert relay(engine, transport).run_once() == RelayCounts(claimed=1, uncertain=1)
    assert (row(engine, key)["state"], len(provider.requests)) == ("uncertain", 1)


def test_a_doubt_is_left_to_a_relay_with_the_provider_that_knows_the_key(
    engine: Engine, provider: MailProvider, key: str
) -> None:
    provider.faults.append("accept and drop")
    put(engine, key, policy="keyed")
    relay(engine, http(provider)).run_once()
    make_due(engine, key)
    memory = MemoryTransport()
    relay(engine, memory).run_once()
    assert (memory.sent, row(engine, key)["state"]) == ([], "pending")
    assert relay(engine, http(provider)).run_once().sent == 1


def test_a_transport_without_keys_holds_what_should_be_keyed(engine: Engine, key: str) -> None:
    put(engine, key, policy="keyed")
    assert relay(engine, MemoryTransport(lambda _: Answer("uncertain", "?"))).run_once().uncertain == 1
    assert row(engine, key)["state"] == "uncertain"


def test_a_message_that_a_person_has_sent_anew_is_another_one_to_the_provider(
    engine: Engine, provider: MailProvider, key: str
) -> None:
    put(engine, key, policy="keyed")
    sender = relay(engine, http(provider))
    sender.run_once()
    with engine.begin() as tx:
        OUTBOX.requeue(tx, key, actor="ann", reason="they deleted it")
    sender.run_once()
    assert len(provider.accepted) == 2


def test_another_payload_under_a_key_is_held(engine: Engine, provider: MailProvider, key: str) -> None:
    provider.faults.append((422, {}, {}))
    put(engine, key, policy="keyed")
    assert relay(engine, http(provider)).run_once() == RelayCounts(claimed=1, uncertain=1)


# -- what answers mean


@pytest.mark.parametrize(
    ("answer", "state", "attempts"),
    [
        ((200, {}, {}), "sent", 1),
        ((400, {"message": "bad"}, {}), "failed", 1),
        ((429, {}, {"Retry-After": "7200"}), "pending", 0),
        ((401, {}, {}), "pending", 0),
        ((302, {}, {"Location": "/"}), "pending", 0),
        ((409, {}, {}), "uncertain", 1),
        ((422, {"name": "invalid"}, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}), "uncertain", 1),
        ((500, {}, {}), "uncertain", 1),
        ("drop", "uncertain", 1),
    ],
)
def test_each_answer_has_its_meaning(
    engine: Engine, provider: MailProvider, key: str, answer: Any, state: str, attempts: int
) -> None:
    provider.faults.append(answer)
    put(engine, key)
    relay(engine, http(provider)).run_once()
    found = row(engine, key)
    assert (found["state"], found["attempts"]) == (state, attempts)


def test_a_provider_that_is_not_there_costs_no_attempt(engine: Engine, key: str) -> None:
    with MailProvider() as server:
        gone = http(server)
    put(engine, key)
    counts = relay(engine, gone).run_once()
    assert (counts.released, counts.uncertain) == (1, 0)
    assert (row(engine, key)["state"], row(engine, key)["attempts"]) == ("pending", 0)


# -- presets


FULL = Email(
    to=["Ann <ann@example.org>", "bob@example.org"],
    cc="cy@example.org",
    bcc="dan@example.org",
    reply_to="help@example.org",
    subject="Grüße",
    text="Hello.\n",
    html="<p>Hello.</p>",
    attachments=[Attachment("a.txt", b"attached", "text/plain")],
    headers={"X-Tag": "t"},
)


def test_resend(engine: Engine, provider: MailProvider, key: str) -> None:
    put(engine, key, FULL)
    assert relay(engine, HttpTransport(resend(provider.url), api_key="secret")).run_once().sent == 1
    body = provider.accepted[0]
    assert body.pop("headers")["X-Tag"] == "t"
    assert body == {
        "from": '"Shop" <shop@example.org>',
        "to": ['"Ann" <ann@example.org>', "bob@example.org"],
        "cc": ["cy@example.org"],
        "bcc": ["dan@example.org"],
        "reply_to": ["help@example.org"],
        "subject": "Grüße",
        "text": "Hello.\n",
        "html": "<p>Hello.</p>\n",
        "attachments": [
            {"filename": "a.txt", "content": base64.b64encode(b"attached").decode(), "content_type": "text/plain"}
        ],
    }
    provider.faults.append((409, {}, {}))  # of whatever kind: it is about a message that came before
    put(engine, f"{key}/conflict")
    assert relay(engine, HttpTransport(resend(provider.url), api_key="secret")).run_once().uncertain == 1
    headers = provider.headers[0]
    assert headers["Authorization"] == "Bearer secret"
    assert 32 <= len(headers["Idempotency-Key"]) <= 256


def test_brevo_says_that_a_key_was_used(engine: Engine, key: str) -> None:
    duplicate = (400, {"code": "duplicate_parameter", "message": "used"})
    with MailProvider(key="headers.idempotencyKey", in_body=True, window=1800, repeated=duplicate) as provider:
        provider.faults.append("accept and drop")
        put(engine, key, FULL, policy="keyed")
        sender = relay(engine, HttpTransport(brevo(provider.url), api_key="secret"))
        assert sender.run_once().retried == 1
        make_due(engine, key)
        assert sender.run_once().sent == 1
        (body,) = provider.accepted
        assert uuid.UUID(body["headers"]["idempotencyKey"])
        assert body["to"] == [{"email": "ann@example.org", "name": "Ann"}, {"email": "bob@example.org"}]
        assert "textContent" not in body
        assert provider.headers[0]["api-key"] == "secret"


def test_a_requeue_within_the_window_is_a_repetition_and_past_it_goes_out_by_whatever_relay(
    engine: Engine, key: str
) -> None:
    duplicate = (400, {"code": "duplicate_parameter", "message": "used"})
    with MailProvider(key="headers.idempotencyKey", in_body=True, window=1800, repeated=duplicate) as provider:
        sender = relay(engine, HttpTransport(brevo(provider.url), api_key="secret"))
        for one in ("within", "past"):
            provider.faults.append("accept and drop")
            put(engine, f"{key}/{one}", policy="keyed")
            sender.run_once()
            provider.faults.append((500, {}, {}))
            make_due(engine, f"{key}/{one}", attempts="4")  # the last but one
            assert sender.run_once().uncertain == 1
        with engine.begin() as tx:
            OUTBOX.requeue(tx, f"{key}/within", actor="ann", reason="nobody has it")
        assert sender.run_once().sent == 1
        assert len(provider.accepted) == 2
        make_due(engine, f"{key}/past", key_until="AGO")
        with engine.begin() as tx:
            OUTBOX.requeue(tx, f"{key}/past", actor="ann", reason="nobody has it")
        other = MemoryTransport()
        assert relay(engine, other).run_once().sent == 1
        assert len(other.sent) == 1


@pytest.mark.parametrize(
    ("preset", "answer"),
    [
        (brevo, (400, {"code": "duplicate_parameter", "message": "twice"}, {})),
        (lambda url: loops("cl1", url), (409, {}, {})),
    ],
)
@pytest.mark.parametrize("policy", ["hold", "keyed"])
def test_a_first_hand_over_that_is_called_a_repetition_is_no_word_that_it_was_sent(
    engine: Engine, provider: MailProvider, key: str, preset: Any, answer: Any, policy: Any
) -> None:
    """Whoever used the key, or whatever else the provider means: it was not a hand-over of this message in doubt."""
    put(engine, key, policy=policy)
    sender = relay(engine, HttpTransport(preset(provider.url), api_key="secret"))
    for _ in range(3):
        provider.faults.append(answer)
        assert sender.run_once().uncertain == 1
        assert row(engine, key)["state"] == "uncertain"
        assert "no hand-over is in doubt" in row(engine, key)["last_error"]
        with engine.begin() as tx:
            OUTBOX.requeue(tx, key, actor="ann", reason="nobody has it")
    assert provider.accepted == []


def test_a_provider_that_calls_a_repetition_what_another_transport_may_have_sent_is_not_believed(
    engine: Engine, provider: MailProvider, key: str
) -> None:
    put(engine, key, policy="resend")
    assert relay(engine, MemoryTransport(lambda _: Answer("uncertain", "no answer"))).run_once().retried == 1
    make_due(engine, key)
    provider.faults.append((400, {"code": "duplicate_parameter", "message": "twice"}, {}))
    assert relay(engine, HttpTransport(brevo(provider.url), api_key="secret")).run_once().uncertain == 1
    assert row(engine, key)["state"] == "uncertain"


def test_loops_takes_one_recipient_and_a_template(engine: Engine, provider: MailProvider, key: str) -> None:
    transport = HttpTransport(loops("cl123", provider.url), api_key="secret")
    put(engine, key, FULL)
    put(engine, f"{key}/one")
    assert relay(engine, transport).run_once() == RelayCounts(claimed=2, sent=1, failed=1)
    (body,) = provider.accepted
    assert body == {
        "email": "reader1@example.org",
        "transactionalId": "cl123",
        "dataVariables": {"subject": "Number 1", "text": "Hello.\n", "html": ""},
    }
    assert len(provider.headers[0]["Idempotency-Key"]) <= 100
    assert "one recipient" in row(engine, key)["last_error"]


def test_recipients_in_no_header_do_not_see_each_other(engine: Engine, provider: MailProvider, key: str) -> None:
    put(engine, key, Email(to=[], bcc=["a@example.org", "b@example.org"], subject="s", text="t"))
    relay(engine, http(provider)).run_once()
    assert (row(engine, key)["state"], provider.requests) == ("failed", [])


def test_the_secret_stands_in_no_name() -> None:
    transport = HttpTransport(resend("https://user:pass@api.example.org/emails"), api_key="secret")
    assert transport.name == "resend+https://api.example.org"
    assert "secret" not in repr(transport)
    away = HttpTransport(resend("http://user:pass@127.0.0.1:9/emails"), api_key="secret")
    mail = Outgoing("a@example.org", ("b@example.org",), b"Subject: x\r\nTo: b@example.org\r\n\r\nx\r\n", "a" * 64)
    with pytest.raises(TransportUnavailable, match=r"127\.0\.0\.1:9") as caught:
        away.session().deliver(mail, lambda refused: None)
    assert "pass" not in str(caught.value)
    with pytest.raises(ValueError, match="api_key is empty"):
        HttpTransport(resend())
    for key in ("secret\n", "sécret"):  # found out at the first request, nobody would know whether it was sent
        with pytest.raises(ValueError, match=r"api_key .*line end") as refused:
            HttpTransport(resend(), api_key=key)
        assert "cret" not in str(refused.value)
    with pytest.raises(ValueError, match="'X-Account'"):
        HttpTransport(generic("x", "http://x", window=1, headers={"X-Account": "ä"}))
    with pytest.raises(ValueError, match="url"):
        HttpTransport(generic("x", "ftp://x", window=1, headers={}))
    with pytest.raises(ValueError, match="32"):
        generic("x", "http://x", window=1, length=8)


# -- reconcile


def looking(server: MailProvider) -> Provider:
    path = "/emails/{key}"
    return generic(
        "test", server.url, window=1800, headers={}, look_up=Reference(path=path, read=lambda found: found["state"])
    )


@pytest.mark.parametrize(
    ("known", "state"), [("sent", "sent"), ("failed", "failed"), ("absent", "pending"), (None, "uncertain")]
)
def test_the_provider_is_asked_before_anything_is_sent_again(
    engine: Engine, provider: MailProvider, key: str, known: str | None, state: str
) -> None:
    provider.faults.append("accept and drop")
    put(engine, key, policy="reconcile")
    sender = relay(engine, HttpTransport(looking(provider), timeout=60))
    assert sender.run_once().uncertain == 1
    assert sender.run_once() == RelayCounts()  # not at once: its lists may be behind
    make_due(engine, key, lookup_at="AGO")
    if known is not None:
        provider.found[f"/emails/{provider.headers[0]['Idempotency-Key']}"] = {"state": known}
    assert sender.run_once().looked_up == 1
    assert provider.paths == [f"/emails/{provider.headers[0]['Idempotency-Key']}"]
    assert (row(engine, key)["state"], len(provider.requests)) == (state, 1)
    if state == "pending":
        assert sender.run_once().sent == 1
    if state == "uncertain":
        assert row(engine, key)["lookup_at"] is not None  # asked again later
    else:
        assert ("look_up", state) in audit(engine, key)


def test_what_a_person_resolved_meanwhile_is_not_looked_up(engine: Engine, provider: MailProvider, key: str) -> None:
    provider.faults.append("drop")
    put(engine, key, policy="reconcile")
    transport = HttpTransport(looking(provider), timeout=60)
    relay(engine, transport).run_once()
    make_due(engine, key, lookup_at="AGO")
    inner = transport._look_up

    def slow(outgoing: Outgoing) -> Any:
        with engine.begin() as tx:
            OUTBOX.resolve(tx, key, "failed", actor="ann", reason="not needed")
        provider.found[f"/emails/{outgoing.key}"] = {"state": "absent"}
        return inner(outgoing)

    transport.look_up = slow
    assert relay(engine, transport).run_once().looked_up == 0
    assert row(engine, key)["state"] == "failed"


# -- a person's requeue


def test_what_is_requeued_in_flight_and_then_refused_is_uncertain_and_its_late_evidence_is_its_own(
    engine: Engine, key: str
) -> None:
    """The first relay may have sent it, so the second one's refusal proves nothing about the message."""
    seen: list[str] = []

    def in_flight(outgoing: Outgoing) -> Answer:
        with engine.begin() as tx:
            assert "may arrive twice" in OUTBOX.requeue(tx, key, actor="ann", reason="the reader waits").warning
        counts = relay(engine, MemoryTransport(lambda again: Answer("rejected", "550 no"))).run_once()
        assert counts == RelayCounts(claimed=1, uncertain=1)
        seen.append(row(engine, key)["state"])
        return Answer("sent", "250 ok")

    put(engine, key)
    assert relay(engine, MemoryTransport(in_flight)).run_once() == RelayCounts(claimed=1, lost=1)
    assert (seen, row(engine, key)["state"]) == (["uncertain"], "uncertain")
    assert audit(engine, key)[-1] == ("evidence", "late")


def test_late_evidence_spares_no_copy_that_a_person_wants(engine: Engine, key: str) -> None:
    def in_flight(outgoing: Outgoing) -> Answer:
        with engine.begin() as tx:
            OUTBOX.requeue(tx, key, actor="ann", reason="the reader waits")
        return Answer("sent", "250 ok")

    put(engine, key)
    assert relay(engine, MemoryTransport(in_flight)).run_once() == RelayCounts(claimed=1, lost=1)
    assert (row(engine, key)["state"], audit(engine, key)[-1]) == ("pending", ("evidence", "late"))
    assert relay(engine, MemoryTransport()).run_once().sent == 1
    assert not row(engine, key)["in_doubt"]


# -- resend


def test_the_same_bytes_are_sent_again(engine: Engine, key: str) -> None:
    answers = iter([Answer("uncertain", "?"), Answer("sent", "ok")])
    seen: list[Outgoing] = []

    def answer(outgoing: Outgoing) -> Answer:
        seen.append(outgoing)
        return next(answers)

    put(engine, key, policy="resend")
    sender = relay(engine, MemoryTransport(answer))
    assert sender.run_once().retried == 1
    make_due(engine, key)
    assert sender.run_once().sent == 1
    assert seen[0] == seen[1]


def test_what_expired_in_doubt_is_uncertain_and_not_expired(engine: Engine, key: str) -> None:
    put(engine, key, policy="resend")
    relay(engine, MemoryTransport(lambda _: Answer("uncertain", "?"))).run_once()
    make_due(engine, key, expires_at="AGO")
    assert relay(engine, MemoryTransport()).run_once() == RelayCounts(doubtful=1)
    assert row(engine, key)["state"] == "uncertain"


# -- transports without a server


class NotSent(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "state"), [(None, "sent"), (NotSent("full"), "pending"), (OSError("reset"), "uncertain")]
)
def test_any_function_can_send_and_what_it_raises_is_no_proof(
    engine: Engine, key: str, error: Exception | None, state: str
) -> None:
    calls: list[Any] = []

    def send(message: Any, mail_from: str, to: tuple[str, ...]) -> None:
        calls.append((message["Subject"], mail_from, to))
        if error is not None:
            raise error

    put(engine, key)
    relay(engine, CallableTransport(send, deferred=(NotSent,))).run_once()
    assert calls == [("Number 1", "shop@example.org", ("reader1@example.org",))]
    assert row(engine, key)["state"] == state


def test_files_console_and_memory(engine: Engine, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, transport in enumerate((FileTransport(tmp_path / "out"), ConsoleTransport(), MemoryTransport())):
        put(engine, f"{key}/{number}")
        assert relay(engine, transport).run_once().sent == 1
    (written,) = (tmp_path / "out").glob("*.eml")
    with engine.connect() as tx:
        assert written.read_bytes() == OUTBOX.message(tx, f"{key}/0")
    assert "to reader1@example.org" in capsys.readouterr().out


def test_staging_sends_everything_to_one_address(engine: Engine, provider: MailProvider, key: str) -> None:
    memory = MemoryTransport()
    put(engine, key, FULL)
    assert relay(engine, memory, redirect_to="dev@example.net").run_once().sent == 1
    (sent,) = memory.sent
    assert sent.recipients == ("dev@example.net",)
    message = message_from_bytes(sent.message, policy=default)
    assert (message["To"], message["Cc"]) == ("dev@example.net", None)
    redirected = message["X-Redirected-From"].strip()
    assert redirected == "ann@example.org, bob@example.org, cy@example.org, dan@example.org"
    assert set(recipients(engine, key).values()) == {"sent"}
    put(engine, f"{key}/http", FULL)
    assert relay(engine, http(provider), redirect_to="dev@example.net").run_once().sent == 1
    assert (provider.accepted[0]["to"], provider.accepted[0].get("cc")) == (["dev@example.net"], None)


def test_staging_has_keys_of_its_own(engine: Engine, provider: MailProvider, key: str, tmp_path: Path) -> None:
    """What staging does must not count for production, nor one message of it for another."""
    brevo_there = HttpTransport(brevo(provider.url), api_key="secret")
    for number, transport in enumerate((http(provider), brevo_there, FileTransport(tmp_path))):
        for one in ("a", "b"):
            put(engine, f"{key}/{number}/{one}")
        assert relay(engine, transport, redirect_to="dev@example.net").run_once().sent == 2
    given = [headers["Idempotency-Key"] for headers in provider.headers[:2]]
    given += [body["headers"]["idempotencyKey"] for body in provider.requests[2:]]
    assert len(set(given)) == 4
    memory = MemoryTransport()
    message = Outgoing("a@example.org", ("b@example.org",), b"Subject: x\r\n\r\nx\r\n", "a" * 64, again=True)
    RedirectTransport(memory, "dev@example.net").session().deliver(message, lambda refused: None)
    assert memory.sent[0].key != message.key
    assert memory.sent[0].again
    assert len([path for path in tmp_path.iterdir() if path.suffix == ".eml"]) == 2
