"""SMTP (RFC 5321), driven phase by phase with the stdlib's client.

``smtplib``'s own ``sendmail`` cannot say how far it came. Here a refusal of ``MAIL``, ``RCPT`` or ``DATA`` and a
connection that broke before the final dot was written are known to have had no effect; only a final dot without an
answer is not known.
"""

from __future__ import annotations

import re
import smtplib
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field

from adapters.email._transport import Answer, Delivery, Fate, Gate, GateClosed, Outgoing, TransportUnavailable

_STUFF = re.compile(rb"(?m)^\.")
_CLOSING = 421  # "service not available, closing transmission channel": in answer to any command (RFC 5321 §3.8)


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

    def close(self) -> None:
        """QUIT, as far as the server still listens."""
        smtp, self._smtp = self._smtp, None
        if smtp is not None and smtp.sock is not None:
            try:
                smtp.sock.settimeout(min(5.0, self._settings.timeout))
                smtp.quit()
            except (smtplib.SMTPException, OSError):
                smtp.close()

    def deliver(self, mail: Outgoing, gate: Gate) -> Delivery:
        """Hand a message over; see :class:`~adapters.email._transport.Session`."""
        if self._smtp is not None:
            # A server may close a kept connection whenever it likes. That shows at the first command, and costs one
            # new connection.
            delivery = self._attempt(self._smtp, mail, gate, reused=True)
            if delivery is not None:
                return delivery
        delivery = self._attempt(self._connect(), mail, gate, reused=False)
        assert delivery is not None  # only a reused connection may ask for another
        return delivery

    def _attempt(self, smtp: smtplib.SMTP, mail: Outgoing, gate: Gate, *, reused: bool) -> Delivery | None:
        """One transaction. ``None``: the kept connection was gone at the first command; nothing happened."""
        lacking = _lacking(smtp, mail)
        if lacking:
            return Delivery(_all(mail.recipients, "rejected", lacking))
        talk = _Transaction(smtp, mail, self._settings.final_timeout)
        try:
            reply = talk.mail()
        except OSError as exc:
            self._drop()
            return (
                None if reused else Delivery(_all(mail.recipients, "deferred", f"the connection broke at MAIL: {exc}"))
            )
        if reply.code == _CLOSING:
            self._drop()
            return None if reused else Delivery(_all(mail.recipients, "deferred", str(reply)), free=True)
        try:
            delivery = talk.go_on(reply, gate)
        except _Broken as broken:
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
                smtp = smtplib.SMTP_SSL(*place, timeout=settings.timeout, context=settings.context)
            else:
                smtp = smtplib.SMTP(*place, timeout=settings.timeout)
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
        except (smtplib.SMTPException, OSError) as exc:
            if smtp is not None:
                smtp.close()
            raise TransportUnavailable(f"smtp://{settings.host}:{settings.port} is not usable: {_told(exc)}") from exc
        self._smtp = smtp
        return smtp

    def _reset(self, smtp: smtplib.SMTP) -> None:
        try:
            code, _ = smtp.rset()
        except (smtplib.SMTPException, OSError):
            code = _CLOSING
        if code != 250:
            self._drop()

    def _drop(self) -> None:
        smtp, self._smtp = self._smtp, None
        if smtp is not None:
            smtp.close()


@dataclass(frozen=True, slots=True)
class _Reply:
    code: int
    text: str

    def __str__(self) -> str:
        return f"{self.code} {self.text}"

    @property
    def fate(self) -> Fate:
        """Of a refusal: for good if the server says 5xx, else for now."""
        return "rejected" if 500 <= self.code <= 599 else "deferred"


class _Broken(Exception):
    """The connection is of no more use; what is known all the same."""

    def __init__(self, answers: dict[str, Answer], *, free: bool = False) -> None:
        super().__init__()
        self.answers = answers
        self.free = free


class _Transaction:
    """MAIL to the final dot, on a connection that is ready for it."""

    def __init__(self, smtp: smtplib.SMTP, mail: Outgoing, final_timeout: float) -> None:
        self._smtp = smtp
        self._mail = mail
        self._final_timeout = final_timeout
        self._accepted: list[str] = []
        self._refused: dict[str, Answer] = {}

    def mail(self) -> _Reply:
        """MAIL. A broken connection is an ``OSError``, which smtplib's errors are."""
        options = []
        if self._smtp.has_extn("size"):
            options.append(f"SIZE={len(self._mail.message)}")
        if _needs_utf8(self._mail):
            options.append("SMTPUTF8")
        if not self._mail.message.isascii():
            options.append("BODY=8BITMIME")
        self._smtp.command_encoding = "utf-8" if _needs_utf8(self._mail) else "ascii"
        return self._command(" ".join((f"MAIL FROM:<{self._mail.mail_from}>", *options)))

    def go_on(self, reply: _Reply, gate: Gate) -> Delivery:
        """Everything after the answer to MAIL. Raises :class:`_Broken`, and what the gate raises."""
        if reply.code != 250:
            return Delivery(_all(self._mail.recipients, reply.fate, str(reply)))
        for address in self._mail.recipients:
            self._rcpt(address)
        accepted = tuple(self._accepted)
        if not accepted:
            return Delivery(self._refused)
        gate(self._refused)
        reply = self._before_effect("DATA", accepted)
        if reply.code != 354:
            answers = self._with(accepted, reply.fate, str(reply))
            if reply.code == _CLOSING or 200 <= reply.code <= 399:
                raise _Broken(answers, free=reply.code == _CLOSING)
            return Delivery(answers)
        return self._content(accepted)

    def _rcpt(self, address: str) -> None:
        reply = self._before_effect(f"RCPT TO:<{address}>", self._mail.recipients)
        if reply.code == _CLOSING:
            raise _Broken(_all(self._mail.recipients, "deferred", str(reply)), free=True)
        if reply.code in (250, 251):
            self._accepted.append(address)
            return
        # 552 after accepted ones is an old server's "too many recipients": for now, not for good (RFC 5321
        # §4.5.3.1.10).
        fate: Fate = "deferred" if reply.code == 552 and self._accepted else reply.fate
        self._refused[address] = Answer(fate, str(reply))

    def _content(self, accepted: tuple[str, ...]) -> Delivery:
        smtp = self._smtp
        try:
            smtp.send(_STUFF.sub(b"..", self._mail.message))
        except OSError as exc:
            # The final dot was not written, and a server must not deliver without it (RFC 5321 §4.1.1.4).
            raise _Broken(self._with(accepted, "deferred", f"the connection broke within the content: {exc}")) from exc
        try:
            assert smtp.sock is not None
            usual = smtp.sock.gettimeout()
            smtp.sock.settimeout(self._final_timeout)
            smtp.send(b".\r\n")
            reply = _Reply(*_decoded(*smtp.getreply()))
            smtp.sock.settimeout(usual)
        except OSError as exc:
            text = f"the content was sent and no answer came: {exc}"
            raise _Broken(self._with(accepted, "uncertain", text)) from exc
        if 200 <= reply.code <= 299:
            return Delivery(self._with(accepted, "sent", str(reply)))
        if not 400 <= reply.code <= 599:
            raise _Broken(self._with(accepted, "uncertain", f"the answer to the content means nothing: {reply}"))
        answers = self._with(accepted, reply.fate, str(reply))
        if reply.code == _CLOSING:
            raise _Broken(answers, free=True)
        return Delivery(answers)

    def _before_effect(self, command: str, concerned: tuple[str, ...]) -> _Reply:
        try:
            return self._command(command)
        except OSError as exc:
            text = f"the connection broke at {command.partition(' ')[0]}: {exc}"
            raise _Broken(self._with(concerned, "deferred", text)) from exc

    def _command(self, line: str) -> _Reply:
        return _Reply(*_decoded(*self._smtp.docmd(line)))

    def _with(self, addresses: Iterable[str], fate: Fate, text: str) -> dict[str, Answer]:
        return {**_all(addresses, fate, text), **self._refused}


def _all(addresses: Iterable[str], fate: Fate, text: str) -> dict[str, Answer]:
    return dict.fromkeys(addresses, Answer(fate, text))


def _decoded(code: int, text: bytes) -> tuple[int, str]:
    return code, text.decode("utf-8", "replace").replace("\n", " ")


def _needs_utf8(mail: Outgoing) -> bool:
    """Whether the envelope or a header holds an address that only SMTPUTF8 (RFC 6531) can carry."""
    return (
        not "".join((mail.mail_from, *mail.recipients)).isascii()
        or not mail.message.partition(b"\r\n\r\n")[0].isascii()
    )


def _lacking(smtp: smtplib.SMTP, mail: Outgoing) -> str:
    """Why this server can never take the message, or nothing."""
    if _needs_utf8(mail) and not smtp.has_extn("smtputf8"):
        return "an address is not ASCII and the server does not offer SMTPUTF8 (RFC 6531)"
    if not mail.message.isascii() and not smtp.has_extn("8bitmime"):
        return "the content is not 7-bit and the server does not offer 8BITMIME (RFC 6152)"
    limit = smtp.esmtp_features.get("size", "")
    if limit.isdecimal() and 0 < int(limit) < len(mail.message):
        return f"the message has {len(mail.message)} bytes and the server takes at most {limit} (RFC 1870)"
    return ""


def _told(exc: BaseException) -> str:
    if isinstance(exc, smtplib.SMTPResponseException):
        return str(
            _Reply(
                *_decoded(
                    exc.smtp_code, exc.smtp_error if isinstance(exc.smtp_error, bytes) else exc.smtp_error.encode()
                )
            )
        )
    return f"{type(exc).__name__}: {exc}"
