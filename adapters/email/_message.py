"""What a caller hands to the outbox: a stdlib `EmailMessage`, or the small `Email`, which is turned into one here."""

from __future__ import annotations

import email.policy
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from email.message import EmailMessage

from adapters.email._addresses import Mailbox, check_text, mailbox, mailboxes, sequence

_ADDRESSES = ("from", "sender", "to", "cc", "bcc", "reply-to")
_STRUCTURE = ("mime-version", "content-type", "content-transfer-encoding", "content-disposition")
_TOKEN = r"[!#$%&'*+.^_`{|}~0-9A-Za-z-]+"  # RFC 2045 §5.1
_MEDIA_TYPE = re.compile(rf"""{_TOKEN}/{_TOKEN}([ \t]*;[ \t]*{_TOKEN}=({_TOKEN}|"[^"\\]*"))*""")
_RESERVED = frozenset((*_ADDRESSES, *_STRUCTURE, "subject", "date", "message-id"))


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that goes with an :class:`Email`: its name, its bytes, its media type (RFC 2045)."""

    filename: str
    content: bytes
    type: str = "application/octet-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Email:
    """A message. An address is ``user@example.org`` or ``Name <user@example.org>``; one text is one address, several
    are a sequence.

    ``bcc`` goes into the envelope only. ``from_`` falls back on the outbox's. ``headers`` are further ones
    (``List-Unsubscribe``). Nothing is checked here: ``Outbox.put`` does, and names the field.
    """

    to: str | Iterable[str]
    subject: str
    text: str
    html: str | None = None
    cc: str | Iterable[str] = ()
    bcc: str | Iterable[str] = ()
    reply_to: str | Iterable[str] = ()
    from_: str = ""
    attachments: Iterable[Attachment] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


def build(message: Email, default_from: str) -> EmailMessage:
    """Make the stdlib's message of it, with ``Bcc`` as a header still (freezing takes it out).

    Raises ``ValueError`` or ``TypeError`` naming the field.
    """
    built = EmailMessage(policy=email.policy.SMTP)
    sender = message.from_ or default_from
    if not sender:
        raise ValueError("from_ is empty: give the message a from_, or the Outbox one for all of them")
    _set_addresses(built, "From", (mailbox("from_", sender),))
    _set_addresses(built, "To", mailboxes("to", message.to))
    _set_addresses(built, "Cc", mailboxes("cc", message.cc))
    _set_addresses(built, "Bcc", mailboxes("bcc", message.bcc))
    _set_addresses(built, "Reply-To", mailboxes("reply_to", message.reply_to))
    built["Subject"] = check_text("subject", message.subject)
    if not isinstance(message.headers, Mapping):
        raise TypeError(f"headers is a mapping, empty for none, not {type(message.headers).__name__}")
    for name, value in message.headers.items():
        if not isinstance(name, str):
            raise TypeError(f"headers[{name!r}] is no header: its name is text, not {type(name).__name__}")
        if name.lower() in _RESERVED:
            raise ValueError(
                f"headers[{name!r}] is set from a field of its own, or by the outbox: leave it out of headers"
            )
        built[check_header_name(name)] = check_text(f"headers[{name!r}]", value)
    built.set_content(_content("text", message.text))
    if message.html is not None:
        built.add_alternative(_content("html", message.html), subtype="html")
    for number, attachment in enumerate(sequence("attachments", message.attachments)):
        _attach(built, f"attachments[{number}]", attachment)
    return built


def check_header_name(name: str) -> str:
    """Return ``name`` if it is one of visible ASCII without a colon (RFC 5322 §3.6.8). Raises ``ValueError``."""
    if (
        not isinstance(name, str)
        or not name
        or any(not "!" <= character <= "~" or character == ":" for character in name)
    ):
        raise ValueError(f"{name!r} is no header name: it is made of visible ASCII characters without a colon")
    return name


def _set_addresses(built: EmailMessage, header: str, boxes: tuple[Mailbox, ...]) -> None:
    if boxes:
        built[header] = tuple(box.header() for box in boxes)


def _content(field: str, text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{field} is text, not {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise ValueError(
            f"{field} holds a lone surrogate at position {exc.start}: it is not encodable as UTF-8"
        ) from exc
    return text


def _attach(built: EmailMessage, field: str, attachment: Attachment) -> None:
    if not isinstance(attachment, Attachment):
        raise TypeError(f"{field} is an Attachment, not {type(attachment).__name__}")
    if not isinstance(attachment.content, bytes):
        raise TypeError(f"{field}.content is bytes, not {type(attachment.content).__name__}")
    main, _, sub = check_text(f"{field}.type", attachment.type).partition("/")
    if not _MEDIA_TYPE.fullmatch(attachment.type):
        raise ValueError(f"{field}.type is a media type such as application/pdf, not {attachment.type!r}")
    if main in ("multipart", "message"):
        raise ValueError(f"{field}.type is {attachment.type!r}: pass an EmailMessage for a message inside a message")
    built.add_attachment(
        attachment.content, maintype=main, subtype=sub, filename=check_text(f"{field}.filename", attachment.filename)
    )
