"""A frozen message taken apart again, for providers that want fields instead of bytes. The same bytes always give the
same fields."""

from __future__ import annotations

import base64
import email
import email.policy
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any, cast

from adapters.email._transport import Outgoing

_OWN = frozenset(("from", "sender", "to", "cc", "bcc", "reply-to", "subject", "date", "mime-version"))


@dataclass(frozen=True, slots=True)
class Address:
    """An address with the name that goes with it, or an empty one."""

    name: str
    spec: str

    def __str__(self) -> str:
        quoted = self.name.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{quoted}" <{self.spec}>' if self.name else self.spec


@dataclass(frozen=True, slots=True)
class File:
    """An attachment: ``content`` in base64, ``content_id`` without brackets or empty."""

    filename: str
    type: str
    content: str
    content_id: str


@dataclass(frozen=True, slots=True)
class Parts:
    """What a message says. ``to``, ``cc`` and ``bcc`` name only those who are still to be served; ``bcc`` those who
    stand in no header."""

    sender: Address
    to: tuple[Address, ...]
    cc: tuple[Address, ...]
    bcc: tuple[Address, ...]
    reply_to: tuple[Address, ...]
    subject: str
    text: str | None
    html: str | None
    files: tuple[File, ...]
    headers: dict[str, str]


def parts_of(mail: Outgoing) -> Parts:
    """Take a message apart."""
    message = email.message_from_bytes(mail.message, policy=email.policy.default)
    served = set(mail.recipients)
    to, cc = (tuple(box for box in _boxes(message, name) if box.spec in served) for name in ("To", "Cc"))
    named = {box.spec for box in (*to, *cc)}
    if not to:
        to, cc = cc, ()  # providers want somebody in "to"
    text, html = message.get_body(("plain",)), message.get_body(("html",))
    return Parts(
        sender=(_boxes(message, "From") or (Address("", mail.mail_from),))[0],
        to=to,
        cc=cc,
        bcc=tuple(Address("", spec) for spec in mail.recipients if spec not in named),
        reply_to=_boxes(message, "Reply-To"),
        subject=str(message["Subject"] or ""),
        text=_content(text),
        html=_content(html),
        files=tuple(_file(part, number) for number, part in enumerate(_attached(message), 1)),
        headers={name: str(value) for name, value in message.items() if not _is_own(name)},
    )


def _is_own(name: str) -> bool:
    return name.lower() in _OWN or name.lower().startswith("content-")


def _boxes(message: EmailMessage, header: str) -> tuple[Address, ...]:
    found = []
    for value in message.get_all(header, ()):
        found += [Address(box.display_name, box.addr_spec) for box in value.addresses]
    return tuple(found)


def _content(part: Any) -> str | None:
    return None if part is None else cast(str, part.get_content()).replace("\r\n", "\n")


def _attached(message: EmailMessage) -> list[EmailMessage]:
    shown = [part for part in (message.get_body(("plain",)), message.get_body(("html",))) if part is not None]
    return [part for part in message.walk() if not part.is_multipart() and not any(part is body for body in shown)]


def _file(part: EmailMessage, number: int) -> File:
    data = part.get_payload(decode=True)
    return File(
        part.get_filename() or f"part-{number}",
        part.get_content_type(),
        base64.b64encode(data if isinstance(data, bytes) else b"").decode("ascii"),
        str(part.get("Content-ID", "")).strip("<> "),
    )
