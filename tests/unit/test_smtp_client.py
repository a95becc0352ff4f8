"""The relay's short way to a server's reply, over a real pair of sockets."""

from __future__ import annotations

import smtplib
import socket
from collections.abc import Iterator

import pytest

from adapters.email._smtp_client import Client, limit, limit_read


class Talk:
    """A client and its server's end of the connection."""

    def __init__(self) -> None:
        self.client = Client(local_hostname="here")
        self.server, self.client.sock = socket.socketpair()


@pytest.fixture
def talk() -> Iterator[Talk]:
    made = Talk()
    limit(made.client.sock, 60.0, 60.0)
    yield made
    made.server.close()
    made.client.close()


def test_a_reply_of_several_lines_is_one_and_what_follows_it_is_the_next(talk: Talk) -> None:
    talk.server.sendall(b"250-one\r\n250-\r\n250 two \r\n421 4.3.2 closing\r\n")
    assert talk.client.getreply() == (250, b"one\n\ntwo")
    assert talk.client.getreply() == (421, b"4.3.2 closing")


def test_a_reply_may_come_in_pieces(talk: Talk) -> None:
    long = b"x" * 6000  # more than is read at a time
    talk.server.sendall(b"250 " + long + b"\r\n")
    assert talk.client.getreply() == (250, long)


def test_a_reply_without_a_code_is_no_acceptance(talk: Talk) -> None:
    talk.server.sendall(b"hello\r\n")
    assert talk.client.getreply() == (-1, b"o")


def test_what_was_said_before_tls_is_not_heard_after_it(talk: Talk) -> None:
    """As in CVE-2011-0411: a stranger's reply, put in front of the encryption."""
    talk.server.sendall(b"220 go\r\n250 forged\r\n")
    assert talk.client.getreply() == (220, b"go")
    plain = talk.client.sock
    other, talk.client.sock = socket.socketpair()
    with plain, other:
        other.sendall(b"250 true\r\n")
        assert talk.client.getreply() == (250, b"true")


def test_a_silent_server_is_waited_for_no_longer_than_the_limit(talk: Talk) -> None:
    limit_read(talk.client.sock, 0.05)
    with pytest.raises(smtplib.SMTPServerDisconnected, match="timed out"):
        talk.client.getreply()
    assert talk.client.sock is None


def test_a_write_that_nobody_takes_ends_with_the_limit(talk: Talk) -> None:
    limit(talk.client.sock, 0.05, 60.0)
    with pytest.raises(smtplib.SMTPServerDisconnected):
        talk.client.send(b"x" * 2**24)


def test_a_server_that_goes_away_and_one_that_never_ends_its_line(talk: Talk) -> None:
    talk.server.sendall(b"2" * 20_000)
    with pytest.raises(smtplib.SMTPResponseException, match="no end"):
        talk.client.getreply()
    gone = Talk()
    gone.server.close()
    with pytest.raises(smtplib.SMTPServerDisconnected):
        gone.client.getreply()
    assert gone.client.sock is None
