"""The SMTP sink keeps what it accepts, and answers as a test tells it to."""

import smtplib
import socket
import threading
import time

import pytest
from support.waiting import eventually

from scheduler.console.embedded import Drop, Exchange, Received, ServerUnavailableError, SmtpSink

MESSAGE = "Subject: hello\r\n\r\n.a line that begins with a dot\r\n..\r\nthe end\r\n"


def connect(sink: SmtpSink) -> smtplib.SMTP:
    return smtplib.SMTP(sink.host, sink.port, timeout=20)


def envelope(client: smtplib.SMTP, *recipients: str) -> None:
    client.ehlo()
    assert client.mail("a@example.org")[0] == 250
    for recipient in recipients or ("b@example.org",):
        assert client.rcpt(recipient)[0] == 250


def test_it_keeps_envelope_and_bytes_as_they_were_sent(smtp_sink: SmtpSink) -> None:
    with connect(smtp_sink) as client:
        client.sendmail("a@example.org", ["b@example.org", "c@example.org"], MESSAGE)
        client.sendmail("a@example.org", ["d@example.org"], b"\xff\x00 8 bit\r\n", ["BODY=8BITMIME"])
    first, second = smtp_sink.wait_for(2)
    assert first == Received("a@example.org", ("b@example.org", "c@example.org"), MESSAGE.encode())
    assert second.data == b"\xff\x00 8 bit\r\n"


def test_it_takes_addresses_beyond_ascii_if_it_says_so(smtp_sink: SmtpSink) -> None:
    with connect(smtp_sink) as client:
        client.ehlo()
        assert client.has_extn("smtputf8")
        client.sendmail("ü@example.org", ["ä@example.org"], MESSAGE, ["SMTPUTF8"])
    assert smtp_sink.wait_for(1)[0].rcpt_tos == ("ä@example.org",)


def test_without_smtputf8_it_neither_offers_nor_takes_it() -> None:
    with SmtpSink(smtputf8=False) as sink, connect(sink) as client:
        client.ehlo()
        assert not client.has_extn("smtputf8")
        assert client.docmd("MAIL FROM:<a@example.org> SMTPUTF8")[0] in (501, 555)


def test_it_announces_its_size_and_refuses_more() -> None:
    with SmtpSink(size_limit=100) as sink, connect(sink) as client:
        client.ehlo()
        assert client.esmtp_features["size"] == "100"
        with pytest.raises(smtplib.SMTPSenderRefused) as refused:
            client.sendmail("a@example.org", ["b@example.org"], "x" * 101)
        assert refused.value.smtp_code == 552
        client.ehlo()
        client.mail("a@example.org")
        client.rcpt("b@example.org")
        assert client.data("x" * 200)[0] == 552
        assert sink.received == []


def test_each_phase_asks_its_hook_and_sends_its_reply(smtp_sink: SmtpSink) -> None:
    asked: list[Exchange] = []

    def refuse(exchange: Exchange) -> str | None:
        asked.append(exchange)
        seen = [e.phase for e in asked].count(exchange.phase)
        return f"45{len(asked) % 10} 4.7.1 not yet" if seen == 1 else None

    smtp_sink.on_mail = smtp_sink.on_rcpt = smtp_sink.on_data = smtp_sink.on_message = refuse
    with connect(smtp_sink) as client:
        client.ehlo()
        assert client.mail("a@example.org") == (451, b"4.7.1 not yet")
        assert client.mail("a@example.org")[0] == 250
        assert client.rcpt("b@example.org")[0] == 453
        assert client.rcpt("c@example.org")[0] == 250
        assert client.docmd("DATA")[0] == 455
        assert client.data(MESSAGE)[0] == 457
        client.mail("a@example.org")
        client.rcpt("d@example.org")
        assert client.data(MESSAGE)[0] == 250
    assert asked[2] == Exchange("rcpt", "a@example.org", (), rcpt="b@example.org")
    assert asked[4] == Exchange("data", "a@example.org", ("c@example.org",))
    assert asked[6] == Exchange("message", "a@example.org", ("c@example.org",), data=MESSAGE.encode())
    assert smtp_sink.received == [Received("a@example.org", ("d@example.org",), MESSAGE.encode())]


def test_a_blocked_hook_holds_its_own_client_only(smtp_sink: SmtpSink) -> None:
    asked, go = threading.Event(), threading.Event()

    def hold(exchange: Exchange) -> None:
        if exchange.mail_from == "slow@example.org":
            asked.set()
            assert go.wait(60)

    smtp_sink.on_message = hold
    with connect(smtp_sink) as slow, connect(smtp_sink) as quick:
        sending = threading.Thread(target=slow.sendmail, args=("slow@example.org", ["b@example.org"], MESSAGE))
        sending.start()
        assert asked.wait(60)
        quick.sendmail("quick@example.org", ["b@example.org"], MESSAGE)
        assert [m.mail_from for m in smtp_sink.wait_for(1)] == ["quick@example.org"]
        go.set()
        assert [m.mail_from for m in smtp_sink.wait_for(2)] == ["quick@example.org", "slow@example.org"]
        sending.join()


@pytest.mark.parametrize(
    ("drop", "kept"),
    [
        (Drop(), 0),
        (Drop(accepted=True), 1),
        (Drop("250 2.0.0 taken"), 1),
        (Drop("250 2.0.0 taken", accepted=False), 0),
        (Drop("421 4.3.2 going down"), 0),
    ],
)
def test_the_connection_ends_at_the_final_dot_before_or_after_the_answer(
    smtp_sink: SmtpSink, drop: Drop, kept: int
) -> None:
    smtp_sink.on_message = lambda exchange: drop
    with socket.create_connection((smtp_sink.host, smtp_sink.port), 20) as client:
        lines = ["EHLO me", "MAIL FROM:<a@example.org>", "RCPT TO:<b@example.org>", "DATA"]
        with client.makefile("rb") as replies:
            assert replies.readline().startswith(b"220")
            for line in lines:
                client.sendall(line.encode() + b"\r\n")
                while replies.readline()[3:4] == b"-":
                    pass
            client.sendall(b"hello\r\n.\r\n")
            assert replies.read().decode() == (f"{drop.reply}\r\n" if drop.reply else "")
    assert len(smtp_sink.received) == kept


@pytest.mark.parametrize("phase", ["mail", "rcpt", "data"])
@pytest.mark.parametrize("reply", [None, "421 4.3.2 going down"])
def test_the_connection_ends_in_any_phase(smtp_sink: SmtpSink, phase: str, reply: str | None) -> None:
    setattr(smtp_sink, f"on_{phase}", lambda exchange: Drop(reply))
    with connect(smtp_sink) as client:
        client.ehlo()
        if phase != "mail":
            client.mail("a@example.org")
        if phase == "data":
            client.rcpt("b@example.org")
        command = {"mail": "MAIL FROM:<a@example.org>", "rcpt": "RCPT TO:<b@example.org>", "data": "DATA"}[phase]
        if reply is not None:
            assert client.docmd(command)[0] == 421
        with pytest.raises(smtplib.SMTPServerDisconnected):
            client.docmd(command)
        client.close()
    assert smtp_sink.received == []


def test_the_connection_ends_amid_the_payload(smtp_sink: SmtpSink) -> None:
    """After 354: the client sends into a closed connection, and the final dot never arrives."""
    smtp_sink.on_data = lambda exchange: Drop("354 go ahead")
    with connect(smtp_sink) as client:
        envelope(client)
        with pytest.raises((smtplib.SMTPServerDisconnected, OSError)):
            client.data("x" * 2**22)
        client.close()
    assert smtp_sink.received == []


def test_a_message_counts_although_its_client_left_before_the_answer(smtp_sink: SmtpSink) -> None:
    """As at a real server: the final dot had arrived, and nobody reads the answer."""
    asked, go = threading.Event(), threading.Event()

    def hold(exchange: Exchange) -> None:
        asked.set()
        assert go.wait(60)

    smtp_sink.on_message = hold
    client = connect(smtp_sink)
    envelope(client)
    client.docmd("DATA")
    client.send(b"hello\r\n.\r\n")
    assert asked.wait(60)
    client.close()
    with connect(smtp_sink) as other:  # the loop has seen the other one leave once it has answered this one twice
        other.noop()
        other.noop()
    go.set()
    assert [m.data for m in smtp_sink.wait_for(1)] == [b"hello\r\n"]


def test_a_hook_that_fails_is_answered_with_its_error_and_keeps_nothing(smtp_sink: SmtpSink) -> None:
    def fail(exchange: Exchange) -> None:
        raise ValueError("the script is wrong")

    smtp_sink.on_message = fail
    with connect(smtp_sink) as client:
        envelope(client)
        code, text = client.data(MESSAGE)
    assert code == 500
    assert b"the script is wrong" in text
    assert smtp_sink.received == []


def test_waiting_ends_with_how_many_there_are(smtp_sink: SmtpSink) -> None:
    with pytest.raises(TimeoutError, match=r"0 of 1 messages arrived within 0.05 s"):
        smtp_sink.wait_for(1, timeout=0.05)


def test_stopping_does_not_wait_for_a_blocked_hook_and_ends_every_connection(smtp_sink: SmtpSink) -> None:
    asked, go = threading.Event(), threading.Event()

    def hold(exchange: Exchange) -> None:
        asked.set()
        go.wait(60)

    smtp_sink.on_mail = hold
    client, idle = connect(smtp_sink), connect(smtp_sink)
    client.ehlo()

    def ask() -> None:
        with pytest.raises(smtplib.SMTPException):
            client.mail("a@example.org")

    asking = threading.Thread(target=ask)
    asking.start()
    assert asked.wait(60)
    begun = time.monotonic()
    smtp_sink.stop()
    assert time.monotonic() - begun < 10
    with pytest.raises(smtplib.SMTPServerDisconnected):
        idle.noop()
    asking.join(60)
    assert not asking.is_alive()
    go.set()
    client.close()
    idle.close()
    eventually(lambda: "smtp-mail" not in {t.name for t in threading.enumerate()}, "the hook's thread has ended")


def test_it_comes_back_on_the_same_port(smtp_sink: SmtpSink) -> None:
    port = smtp_sink.port
    smtp_sink.stop()
    with pytest.raises(ConnectionRefusedError):
        connect(smtp_sink)
    smtp_sink.start()
    assert smtp_sink.port == port
    with connect(smtp_sink) as client:
        client.sendmail("a@example.org", ["b@example.org"], MESSAGE)
    smtp_sink.wait_for(1)


def test_a_taken_port_is_an_error_of_start(smtp_sink: SmtpSink) -> None:
    with pytest.raises(ServerUnavailableError, match=f"no SMTP server on 127.0.0.1:{smtp_sink.port}"):
        SmtpSink(port=smtp_sink.port).start()
    with pytest.raises(RuntimeError, match="running already"):
        smtp_sink.start()
