"""Freezing: from a message to its envelope and the bytes that are sent, whoever sends them and however often it is
tried."""

from __future__ import annotations

import email.policy
import hashlib
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from email.errors import NonASCIILocalPartDefect, ObsoleteHeaderDefect
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

from adapters.email._addresses import Mailbox, check_text, distinct, mailbox
from adapters.email._content import LINE_END, as_text, digests
from adapters.email._message import Email, build, check_header_name
from adapters.email._wire import MAX_LINE_BYTES, WholeWords

MAX_BYTES = 25_000_000
MAX_RECIPIENTS = 100
"""What every server takes for one message (RFC 5321 §4.5.3.1.8)."""

_HARMLESS = (NonASCIILocalPartDefect, ObsoleteHeaderDefect)
_RESENT = ("Resent-To", "Resent-Cc", "Resent-Bcc")
_ADDRESS_HEADERS = ("From", "Sender", "To", "Cc", "Bcc", "Reply-To")


@dataclass(frozen=True, slots=True)
class Frozen:
    """A message as it is stored: envelope, final bytes with CRLF line ends, and what its content was, part by
    part."""

    mail_from: str
    recipients: tuple[str, ...]
    message: bytes
    message_id: str
    content: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What a message may have at most."""

    max_bytes: int
    max_recipients: int


def freeze(
    message: EmailMessage | Email, key: str, limits: Limits, *, default_from: str = "", envelope_from: str = ""
) -> Frozen:
    """Check the message, and make its final bytes and its envelope.

    Raises ``ValueError`` or ``TypeError`` that names the field, and says what to do. The message passed in stays as
    it is.
    """
    final = _own_copy(message, default_from)
    boxes = {name: _boxes(final, name) for name in _ADDRESS_HEADERS}
    mail_from = mailbox("envelope_from", envelope_from).spec if envelope_from else _sender(boxes)
    recipients = _recipients(boxes, limits)
    _check_headers(final)
    for name, found in boxes.items():
        del final[name]
        if found and name != "Bcc":
            final[name] = tuple(box.header() for box in found)
    parts = digests(final, (mail_from, *recipients), boxes)
    unique = hashlib.sha256(f"{key}\0{as_text(parts)}".encode()).hexdigest()
    _complete(final, unique, boxes["From"][0].domain)
    shown = [box.local for name, found in boxes.items() if name != "Bcc" for box in found]
    content = _bytes(final, utf8=not "".join((mail_from, *recipients, *shown)).isascii())
    if len(content) > limits.max_bytes:
        raise ValueError(
            f"the message has {len(content)} bytes with its attachments encoded, more than the limit of "
            f"{limits.max_bytes}: send a link instead of the attachment, or raise max_bytes if your server takes it"
        )
    return Frozen(mail_from, recipients, content, str(final["Message-ID"]), as_text(parts))


def _own_copy(message: EmailMessage | Email, default_from: str) -> EmailMessage:
    if isinstance(message, Email):
        return build(message, default_from)
    if not isinstance(message, EmailMessage) or not isinstance(message.policy, email.policy.EmailPolicy):
        raise TypeError(
            f"message is an Email or an email.message.EmailMessage, not {type(message).__name__}; "
            "parse legacy messages with policy=email.policy.default"
        )
    copy = deepcopy(message)
    for name in copy:
        try:
            values = copy.get_all(name, ())
        except Exception as exc:  # headers are parsed when they are read, and the parser stumbles in many ways
            raise ValueError(f"{name} is not well formed: {exc}") from exc
        if name.lower() in ("date", "message-id"):
            for value in values:
                _check_form(name, value)
    if not copy["From"] and default_from:
        copy["From"] = (mailbox("from_", default_from).header(),)
    return copy


def _boxes(message: EmailMessage, header: str) -> tuple[Mailbox, ...]:
    found = []
    for value in message.get_all(header, ()):
        check_text(header, str(value))
        _check_form(header, value)
        for number, address in enumerate(value.addresses):
            checked = mailbox(f"{header}[{number}]", address.addr_spec)
            found.append(Mailbox(address.display_name, checked.local, checked.domain))
    return tuple(found)


def _check_form(header: str, value: Any) -> None:
    faults = [defect for defect in value.defects if not isinstance(defect, _HARMLESS)]
    if faults:
        raise ValueError(f"{header} is not well formed: {value!s:.200}: {faults[0]}")


def _sender(boxes: dict[str, tuple[Mailbox, ...]]) -> str:
    if not boxes["From"]:
        raise ValueError("From is missing: set the message's From header, or from_= for the Outbox")
    if len(boxes["From"]) > 1 and not boxes["Sender"]:
        raise ValueError("From holds several addresses: such a message needs a Sender header (RFC 5322 §3.6.2)")
    return (boxes["Sender"] or boxes["From"])[0].spec


def _recipients(boxes: dict[str, tuple[Mailbox, ...]], limits: Limits) -> tuple[str, ...]:
    recipients = distinct((*boxes["To"], *boxes["Cc"], *boxes["Bcc"]))
    if not recipients:
        raise ValueError("to is empty: a message needs at least one address in To, Cc or Bcc")
    if len(recipients) > limits.max_recipients:
        raise ValueError(
            f"the message has {len(recipients)} recipients, more than the limit of {limits.max_recipients}: "
            "put several messages, each under a key of its own"
        )
    return recipients


def _check_headers(message: EmailMessage) -> None:
    for name in _RESENT:
        if message[name] is not None:
            # They would be the envelope, and one of them a secret (RFC 5322 §3.6.6).
            raise ValueError(
                f"{name} is not served: the outbox sends to those in To, Cc and Bcc; name its readers there, and take "
                f"{name} out of the message"
            )
    for part in message.walk():
        for name, value in part.items():
            check_text(check_header_name(name), str(value))


def _complete(final: EmailMessage, unique: str, domain: str) -> None:
    """Set what the message lacks. The names are made from key and content, so that nobody who writes the content can
    guess a boundary."""
    if not final["Message-ID"]:
        del final["Message-ID"]
        final["Message-ID"] = f"<{unique[:40]}@{domain}>"
    if not final["Date"]:
        del final["Date"]
        final["Date"] = format_datetime(datetime.now(UTC))
    if not final["MIME-Version"]:
        final["MIME-Version"] = "1.0"
    for number, part in enumerate(final.walk()):
        if part.get_content_maintype() == "multipart" and part.get_boundary() is None:
            part.set_boundary(f"=_{unique[:48]}_{number}")


def _bytes(final: EmailMessage, *, utf8: bool) -> bytes:
    # cte_type 7bit: the body goes through servers without 8BITMIME (RFC 6152). utf8: local parts that are not ASCII
    # need SMTPUTF8 anyway.
    policy = WholeWords(linesep="\r\n", cte_type="7bit", utf8=utf8)
    try:
        written = final.as_bytes(policy=policy)
    except (LookupError, UnicodeError) as exc:
        raise ValueError(
            f"a text part is not in the charset that its Content-Type names: {exc}; name the right one, or attach it "
            "as application/octet-stream"
        ) from exc
    # Only CRLF, everywhere: a server that takes a bare CR or LF for a line end can be made to see a second message.
    content = LINE_END.sub(b"\r\n", written)
    if b"\x00" in content:
        raise ValueError("the message holds a NUL byte outside of an encoded attachment: mail servers refuse it")
    for number, line in enumerate(content.split(b"\r\n"), 1):
        if len(line) > MAX_LINE_BYTES:
            raise ValueError(
                f"line {number} of the message has {len(line)} bytes, more than {MAX_LINE_BYTES} (RFC 5322 §2.1.1): "
                "set the content with a transfer encoding such as quoted-printable"
            )
    return content if content.endswith(b"\r\n") else content + b"\r\n"
