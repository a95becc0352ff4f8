"""TLS and AUTH against a real server: what is asked for is insisted on, and a refusal is no fault of the message."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.handlers import Sink
from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword
from support.certificates import CERTIFICATE, KEY

from adapters.email import Outgoing, SmtpTransport, TransportUnavailable
from adapters.email.testing._sink import _serve

MAIL = Outgoing("a@example.org", ("b@example.org",), b"Subject: x\r\n\r\nHello.\r\n")


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    path = tmp_path / "pair.pem"
    path.write_text(KEY + CERTIFICATE)
    return path


@pytest.fixture
def trusting(pair: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(pair))


@contextmanager
def server(pair: Path, *, tls: bool, **options: Any) -> Iterator[int]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair)
    implicit = context if tls else None
    starttls = {} if tls or options.pop("plain", False) else {"tls_context": context}
    loop = asyncio.new_event_loop()
    made = loop.run_until_complete(
        loop.create_server(
            lambda: SMTP(Sink(), hostname="localhost", loop=loop, **starttls, **options), "127.0.0.1", 0, ssl=implicit
        )
    )
    thread = threading.Thread(target=_serve, args=(loop, made), daemon=True)
    thread.start()
    try:
        yield made.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def fate(transport: SmtpTransport) -> str:
    session = transport.session()
    try:
        return session.deliver(MAIL, lambda refused: None).answers["b@example.org"].fate
    finally:
        session.close()


def test_starttls_and_implicit_tls_with_a_verified_certificate(pair: Path, trusting: ssl.SSLContext) -> None:
    with server(pair, tls=False, require_starttls=True) as port:
        assert fate(SmtpTransport("127.0.0.1", port, starttls=True, context=trusting)) == "sent"
    with server(pair, tls=True) as port:
        assert fate(SmtpTransport("localhost", port, tls=True, context=trusting)) == "sent"


def test_a_certificate_that_nobody_vouches_for_is_refused(pair: Path) -> None:
    with server(pair, tls=False) as port, pytest.raises(TransportUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        fate(SmtpTransport("127.0.0.1", port, starttls=True))
    with server(pair, tls=True) as port, pytest.raises(TransportUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        fate(SmtpTransport("127.0.0.1", port, tls=True))


def test_a_server_without_starttls_gets_nothing_in_the_clear(pair: Path, trusting: ssl.SSLContext) -> None:
    with server(pair, tls=False, plain=True) as port, pytest.raises(TransportUnavailable, match="STARTTLS"):
        fate(SmtpTransport("127.0.0.1", port, starttls=True, context=trusting))


def test_user_and_password_are_sent_and_a_wrong_one_makes_the_server_unavailable(
    pair: Path, trusting: ssl.SSLContext
) -> None:
    def check(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        good = isinstance(data, LoginPassword) and (data.login, data.password) == (b"me", b"secret")
        return AuthResult(success=good, handled=False)

    with server(pair, tls=False, authenticator=check, auth_required=True) as port:
        options = {"starttls": True, "context": trusting, "user": "me"}
        assert fate(SmtpTransport("127.0.0.1", port, password="secret", **options)) == "sent"
        with pytest.raises(TransportUnavailable, match="535") as caught:
            fate(SmtpTransport("127.0.0.1", port, password="wrong", **options))
        assert "wrong" not in str(caught.value)
        with pytest.raises(TransportUnavailable, match="ascii") as caught:
            fate(SmtpTransport("127.0.0.1", port, password="sécret", **options))
        assert "cret" not in str(caught.value)


def test_a_host_that_can_be_none_makes_the_server_unavailable() -> None:
    with pytest.raises(TransportUnavailable, match=r"mail\.\.example"):
        fate(SmtpTransport("mail..example"))
