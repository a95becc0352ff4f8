"""Sending everything to one address instead, for staging: nobody outside gets mail from a test."""

from __future__ import annotations

import email
import hashlib
from collections.abc import Mapping

from adapters.email._addresses import mailbox
from adapters.email._transport import Answer, Delivery, Gate, Outgoing, Session, Transport
from adapters.email._wire import AS_IT_IS


class RedirectTransport:
    """Another transport, with every message going to ``to`` alone.

    The headers ``To``, ``Cc`` and ``Bcc`` are replaced, and ``X-Redirected-From`` names who would have got it. The
    message goes under a key of its own, and look-ups are not passed on: what staging does must not count for
    production.
    """

    def __init__(self, inner: Transport, to: str) -> None:
        self._inner = inner
        self._to = mailbox("redirect_to", to).spec

    @property
    def name(self) -> str:
        """The name of the transport behind it, and to whom it goes."""
        return f"{self._inner.name} (redirected to {self._to})"

    def session(self) -> Session:
        """A session of the transport behind it."""
        return _RedirectSession(self._inner.session(), self._to)


class _RedirectSession:
    def __init__(self, inner: Session, to: str) -> None:
        self._inner = inner
        self._to = to

    def deliver(self, mail: Outgoing, gate: Gate) -> Delivery:
        def closed(refused: Mapping[str, Answer]) -> None:
            gate(dict.fromkeys(mail.recipients, refused[self._to]) if self._to in refused else {})

        key = hashlib.sha256(f"{self._to} {mail.key}".encode()).hexdigest()
        redirected = Outgoing(mail.mail_from, (self._to,), _redirected(mail, self._to), key, mail.again)
        delivery = self._inner.deliver(redirected, closed)
        answers = dict.fromkeys(mail.recipients, delivery.answers[self._to])
        return Delivery(answers, free=delivery.free, held=delivery.held, retry_after=delivery.retry_after)

    def close(self) -> None:
        self._inner.close()


def _redirected(mail: Outgoing, to: str) -> bytes:
    policy = AS_IT_IS.clone(utf8=not mail.message.isascii())
    message = email.message_from_bytes(mail.message, policy=policy)
    for name in ("To", "Cc", "Bcc"):
        del message[name]
    message["To"] = to
    message["X-Redirected-From"] = ", ".join(mail.recipients)
    return message.as_bytes()
