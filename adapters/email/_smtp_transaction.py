"""SMTP (RFC 5321), driven phase by phase with the stdlib's client.

``smtplib``'s own ``sendmail`` cannot say how far it came. Here a refusal of ``MAIL``, ``RCPT`` or ``DATA`` and a
connection that broke before the final dot was written are known to have had no effect; only a final dot without an
answer is not known.
"""

from __future__ import annotations

import re
import smtplib
import ssl
from collections.abc import Iterable
from dataclasses import dataclass

from adapters.email._smtp_client import limit_read
from adapters.email._transport import Answer, Delivery, Fate, Gate, Outgoing

CLOSING = 421
"""Service not available, closing transmission channel: an answer to any command (RFC 5321 §3.8)."""

BLOCK_BYTES = 65_536
"""Sent at a time, each with the timeout to itself (RFC 5321 §4.5.3.2.5): a slow line is no broken one."""

_DOT = b".\r\n"
_STUFF = re.compile(rb"(?m)^\.")


@dataclass(frozen=True, slots=True)
class Reply:
    """What the server said."""

    code: int
    text: str

    @classmethod
    def of(cls, code: int, text: bytes) -> Reply:
        """From smtplib's form; a reply of several lines becomes one."""
        return cls(code, text.decode("utf-8", "replace").replace("\n", " "))

    def __str__(self) -> str:
        return f"{self.code} {self.text}"

    @property
    def refuses(self) -> bool:
        """Whether it is a refusal of this command, after which the conversation goes on."""
        return 400 <= self.code <= 599 and self.code != CLOSING

    @property
    def fate(self) -> Fate:
        """Of what it does not accept: for good if the server says 5xx, else for now."""
        return "rejected" if 500 <= self.code <= 599 else "deferred"


class Broken(Exception):
    """The connection is of no more use. ``answers``: what is known all the same."""

    def __init__(self, answers: dict[str, Answer], *, free: bool = False) -> None:
        super().__init__()
        self.answers = answers
        self.free = free


class Transaction:
    """MAIL to the final dot, on a connection that is ready for it. Its methods raise :class:`Broken`."""

    def __init__(self, smtp: smtplib.SMTP, mail: Outgoing, needs: Needs, timeout: float, final_timeout: float) -> None:
        self._smtp = smtp
        self._mail = mail
        self._needs = needs
        self._timeout = timeout
        self._final_timeout = final_timeout
        self._refusal: Reply | None = None
        self._accepted: list[str] = []
        self._refused: dict[str, Answer] = {}

    def mail(self) -> None:
        """MAIL: the first command, so the one that finds out whether a kept connection is still there."""
        options = []
        if self._smtp.has_extn("size"):
            options.append(f"SIZE={len(self._mail.message)}")
        if self._needs.utf8:
            options.append("SMTPUTF8")
        if self._needs.eight_bit:
            options.append("BODY=8BITMIME")
        self._smtp.command_encoding = "utf-8" if self._needs.utf8 else "ascii"
        self._refusal = self._command(" ".join((f"MAIL FROM:<{self._mail.mail_from}>", *options)), (250,))

    def go_on(self, gate: Gate) -> Delivery:
        """Everything after MAIL. Raises what the gate raises, too."""
        if self._refusal is not None:
            return Delivery(answer_all(self._mail.recipients, self._refusal.fate, str(self._refusal)))
        for address in self._mail.recipients:
            self._rcpt(address)
        if not self._accepted:
            return Delivery(self._refused)
        gate(self._refused)
        refusal = self._command("DATA", (354,))
        if refusal is not None:
            return Delivery(self._answers(refusal.fate, str(refusal)))
        return self._content()

    def _rcpt(self, address: str) -> None:
        reply = self._command(f"RCPT TO:<{address}>", (250, 251))
        if reply is None:
            self._accepted.append(address)
            return
        # 552 after accepted ones is an old server's "too many recipients": for now, not for good (RFC 5321
        # §4.5.3.1.10).
        fate: Fate = "deferred" if reply.code == 552 and self._accepted else reply.fate
        self._refused[address] = Answer(fate, str(reply))

    def _content(self) -> Delivery:
        smtp = self._smtp
        assert smtp.sock is not None
        message = self._mail.message
        stuffed = _STUFF.sub(b"..", message) if b"\n." in message or message[:1] == b"." else message
        # A write that fails did not hand over its last bytes. So on a plain connection the final dot goes with the
        # last block, in one packet; through TLS, where a record may be under way all the same, it goes alone.
        alone = isinstance(smtp.sock, ssl.SSLSocket)
        content = memoryview(stuffed if alone else stuffed + _DOT)
        try:
            for start in range(0, len(content), BLOCK_BYTES):
                smtp.send(content[start : start + BLOCK_BYTES])
        except OSError as exc:
            # The final dot was not written, and a server must not deliver without it (RFC 5321 §4.1.1.4).
            raise Broken(self._answers("deferred", f"the connection broke within the content: {exc}")) from exc
        try:
            limit_read(smtp.sock, self._final_timeout)
            if alone:
                smtp.send(_DOT)
            reply = Reply.of(*smtp.getreply())
            limit_read(smtp.sock, self._timeout)
        except OSError as exc:
            raise Broken(self._answers("uncertain", f"the content was sent and no answer came: {exc}")) from exc
        if reply.refuses:
            return Delivery(self._answers(reply.fate, str(reply)))
        if reply.code == CLOSING:
            raise Broken(self._answers("deferred", str(reply)), free=True)
        if not 200 <= reply.code <= 299:
            raise Broken(self._answers("uncertain", f"the answer to the content means nothing: {reply}"))
        return Delivery(self._answers("sent", str(reply)))

    def _command(self, line: str, accepted: tuple[int, ...]) -> Reply | None:
        """A command without effect: it is accepted or refused, which is returned, and any other answer ends the
        conversation."""
        try:
            code, text = self._smtp.docmd(line)
        except OSError as exc:
            told = f"the connection broke at {line.partition(' ')[0]}: {exc}"
            raise Broken(self._answers("deferred", told)) from exc
        if code in accepted:
            return None
        reply = Reply.of(code, text)
        if not reply.refuses:
            raise Broken(self._answers("deferred", str(reply)), free=reply.code == CLOSING)
        return reply

    def _answers(self, fate: Fate, text: str) -> dict[str, Answer]:
        """That fate for everybody who was not refused by name."""
        return {**answer_all(self._mail.recipients, fate, text), **self._refused}


def answer_all(addresses: Iterable[str], fate: Fate, text: str) -> dict[str, Answer]:
    """The same answer for each."""
    return dict.fromkeys(addresses, Answer(fate, text))


@dataclass(frozen=True, slots=True)
class Needs:
    """What a message asks of the server beyond RFC 5321: looked at once, for every byte is."""

    utf8: bool
    eight_bit: bool

    @classmethod
    def of(cls, mail: Outgoing) -> Needs:
        """``utf8``: the envelope or a header holds an address that only SMTPUTF8 (RFC 6531) can carry."""
        eight_bit = not mail.message.isascii()
        utf8 = not "".join((mail.mail_from, *mail.recipients)).isascii() or (
            eight_bit and not mail.message.partition(b"\r\n\r\n")[0].isascii()
        )
        return cls(utf8, eight_bit)


def lacking(smtp: smtplib.SMTP, mail: Outgoing, needs: Needs) -> str:
    """Why this server can never take the message, or nothing."""
    if needs.utf8 and not smtp.has_extn("smtputf8"):
        return "an address is not ASCII and the server does not offer SMTPUTF8 (RFC 6531)"
    if needs.eight_bit and not smtp.has_extn("8bitmime"):
        return "the content is not 7-bit and the server does not offer 8BITMIME (RFC 6152)"
    limit = smtp.esmtp_features.get("size", "")
    if limit.isdecimal() and 0 < int(limit) < len(mail.message):
        return f"the message has {len(mail.message)} bytes and the server takes at most {limit} (RFC 1870)"
    return ""
