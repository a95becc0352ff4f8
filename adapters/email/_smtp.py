"""`SmtpTransport`: a mail server, and the connection to it that is kept from message to message."""

from __future__ import annotations

import smtplib
import socket
import ssl
import time
from dataclasses import dataclass, field

from adapters.email._smtp_client import Client, TlsClient, limit
from adapters.email._smtp_transaction import Broken, Needs, Reply, Transaction, answer_all, lacking
from adapters.email._transport import Delivery, Gate, GateClosed, Outgoing, TransportUnavailable

_RESTED = 10.0
"""Seconds without use after which a kept connection is asked whether it is still there."""

_PATIENCE = 5.0
"""Seconds to wait for that answer: a firewall that forgot the connection never lets one through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    host: str
    port: int
    starttls: bool
    tls: bool
    user: str
    password: str = field(repr=False)
    context: ssl.SSLContext
    local_hostname: str | None
    timeout: float
    final_timeout: float


class SmtpTransport:
    """A mail server.

    ``tls`` speaks TLS from the first byte (port 465), ``starttls`` asks for it and insists. ``user`` and ``password``
    are sent by AUTH. ``context`` is the TLS context (the default one verifies the server). ``local_hostname`` is what
    EHLO says of us. ``timeout`` is how long a command may take, in seconds (RFC 5321 §4.5.3.2 wants 5 minutes),
    ``final_timeout`` how long the answer to the final dot may (10 minutes there: giving up earlier turns slow
    deliveries into uncertain ones).
    """

    def __init__(
        self,
        host: str,
        port: int = 25,
        *,
        starttls: bool = False,
        tls: bool = False,
        user: str = "",
        password: str = "",
        context: ssl.SSLContext | None = None,
        local_hostname: str | None = None,
        timeout: float = 300.0,
        final_timeout: float = 600.0,
    ) -> None:
        if starttls and tls:
            raise ValueError(
                "starttls= and tls= exclude each other: tls is for a port that speaks TLS from the first byte"
            )
        if not host:
            raise ValueError("host is empty: name the mail server")
        if bool(user) != bool(password):
            raise ValueError("user= and password= go together: one of them is empty")
        if timeout <= 0 or final_timeout <= 0:
            raise ValueError(f"timeouts are seconds above 0, not timeout={timeout!r}, final_timeout={final_timeout!r}")
        self._settings = _Settings(
            host=host,
            port=port,
            starttls=starttls,
            tls=tls,
            user=user,
            password=password,
            context=context or ssl.create_default_context(),
            local_hostname=local_hostname,
            timeout=timeout,
            final_timeout=final_timeout,
        )

    @property
    def name(self) -> str:
        """``smtp://host:port``, or ``smtps``."""
        return f"smtp{'s' if self._settings.tls else ''}://{self._settings.host}:{self._settings.port}"

    def __repr__(self) -> str:
        return f"<SmtpTransport {self.name}>"

    def session(self) -> SmtpSession:
        """A new session; it connects at the first message."""
        return SmtpSession(self._settings)


class SmtpSession:
    """One connection, kept from message to message."""

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings
        self._smtp: smtplib.SMTP | None = None
        self._used = 0.0

    def close(self) -> None:
        """QUIT, as far as the server still listens."""
        smtp, self._smtp = self._smtp, None
        if smtp is not None and smtp.sock is not None:
            try:
                smtp.sock.settimeout(min(5.0, self._settings.timeout))
                smtp.quit()
            except OSError:
                smtp.close()

    def deliver(self, mail: Outgoing, gate: Gate) -> Delivery:
        """Hand a message over; see :class:`~adapters.email._transport.Session`."""
        if self._smtp is not None and time.monotonic() - self._used > _RESTED and not self._is_there(self._smtp):
            self._drop()
        if self._smtp is not None:
            # A server may close a kept connection whenever it likes. That shows at the first command, and costs one
            # new connection.
            delivery = self._attempt(self._smtp, mail, gate, reused=True)
            if delivery is not None:
                self._used = time.monotonic()
                return delivery
        delivery = self._attempt(self._connect(), mail, gate, reused=False)
        self._used = time.monotonic()
        assert delivery is not None  # only a reused connection may ask for another
        return delivery

    def _attempt(self, smtp: smtplib.SMTP, mail: Outgoing, gate: Gate, *, reused: bool) -> Delivery | None:
        """One transaction. ``None``: the kept connection was gone at the first command; nothing happened."""
        needs = Needs.of(mail)
        why = lacking(smtp, mail, needs)
        if why:
            return Delivery(answer_all(mail.recipients, "rejected", why))
        talk = Transaction(smtp, mail, needs, self._settings.timeout, self._settings.final_timeout)
        try:
            try:
                talk.mail()
            except Broken:
                if reused:
                    self._drop()
                    return None
                raise
            delivery = talk.go_on(gate)
        except Broken as broken:
            self._drop()
            return Delivery(broken.answers, free=broken.free)
        except GateClosed:
            self._reset(smtp)  # the envelope must not stay open for the next message
            raise
        except BaseException:
            self._drop()  # who knows where in the conversation
            raise
        if any(answer.fate != "sent" for answer in delivery.answers.values()):
            self._reset(smtp)
        return delivery

    def _connect(self) -> smtplib.SMTP:
        settings = self._settings
        place = settings.host, settings.port, settings.local_hostname
        smtp: smtplib.SMTP | None = None
        try:
            if settings.tls:
                smtp = TlsClient(*place, timeout=settings.timeout, context=settings.context)
            else:
                smtp = Client(*place, timeout=settings.timeout)
            assert smtp.sock is not None
            # The final dot is a short write after a long one: without this it waits for the delayed acknowledgement
            # of the other.
            smtp.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            smtp.ehlo_or_helo_if_needed()
            if settings.starttls:
                smtp.starttls(context=settings.context)
                smtp.ehlo_or_helo_if_needed()
            if settings.user:
                smtp.login(settings.user, settings.password)
            limit(smtp.sock, settings.timeout, settings.timeout)
        except (OSError, ValueError) as exc:  # a host or password with characters that cannot be sent is the latter
            if smtp is not None:
                smtp.close()
            raise TransportUnavailable(f"smtp://{settings.host}:{settings.port} is not usable: {_told(exc)}") from exc
        self._smtp = smtp
        self._used = time.monotonic()
        return smtp

    def _is_there(self, smtp: smtplib.SMTP) -> bool:
        """NOOP, with less patience than for a command: a rested connection may lead nowhere."""
        assert smtp.sock is not None
        usual = smtp.sock.gettimeout()
        try:
            smtp.sock.settimeout(min(_PATIENCE, self._settings.timeout))
            found = smtp.noop()[0] == 250
            smtp.sock.settimeout(usual)
        except OSError:
            return False
        return found

    def _reset(self, smtp: smtplib.SMTP) -> None:
        try:
            clear = smtp.rset()[0] == 250
        except OSError:
            clear = False
        if not clear:
            self._drop()

    def _drop(self) -> None:
        smtp, self._smtp = self._smtp, None
        if smtp is not None:
            smtp.close()


def _told(exc: BaseException) -> str:
    if isinstance(exc, smtplib.SMTPResponseException):
        text = exc.smtp_error
        return str(Reply.of(exc.smtp_code, text if isinstance(text, bytes) else text.encode()))
    return f"{type(exc).__name__}: {exc}"
