"""What a message says, as one digest for each part of it that a person would name.

The same content under the same key must be recognised although a caller that runs twice makes another Date,
Message-ID and MIME boundary each time. So those are left out, and so are transfer encodings, which carry no meaning.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from email.message import Message
from typing import cast

from adapters.email._addresses import Mailbox

LINE_END = re.compile(rb"\r\n|\r|\n")

_NAMED_APART = frozenset(
    ["from", "sender", "to", "cc", "bcc", "reply-to", "subject", "date", "message-id", "mime-version"]
)
_KINDS = {"text/plain": "text", "text/html": "html"}


def digests(message: Message, envelope: tuple[str, ...], boxes: Mapping[str, tuple[Mailbox, ...]]) -> dict[str, str]:
    """The digests by part: the envelope, each address header of ``boxes``, subject, headers, text, html, attachments,
    structure."""
    pieces: dict[str, list[str | bytes]] = {"envelope": list(envelope), "subject": [str(message["Subject"] or "")]}
    for header, found in boxes.items():
        pieces[header.lower()] = [piece for box in found for piece in (box.name, box.spec)]
    pieces["headers"] = [
        piece for name, value in message.items() if _is_extra(name) for piece in (name.lower(), str(value))
    ]
    pieces.update(text=[], html=[], attachments=[], structure=[])
    for part, piece in _leaves(message):
        pieces[part].append(piece)
    return {part: _digest(found) for part, found in pieces.items() if found}


def as_text(parts: Mapping[str, str]) -> str:
    """The digests as text that is equal for equal content."""
    return json.dumps(dict(parts), sort_keys=True, separators=(",", ":"))


def differing(stored: str, offered: str) -> tuple[str, ...]:
    """Which parts are not the same in two contents, in their :func:`as_text` form."""
    old, new = json.loads(stored), json.loads(offered)
    return tuple(sorted(part for part in {*old, *new} if old.get(part) != new.get(part)))


def _digest(pieces: list[str | bytes]) -> str:
    total = hashlib.sha256()
    for piece in pieces:
        data = piece.encode("utf-8", "surrogateescape") if isinstance(piece, str) else piece
        total.update(b"%d:" % len(data) + data)
    return total.hexdigest()


def _is_extra(name: str) -> bool:
    return name.lower() not in _NAMED_APART and not name.lower().startswith("content-")


def _leaves(part: Message) -> Iterator[tuple[str, str | bytes]]:
    """The MIME tree as (name of the part, piece of its content)."""
    kind = part.get_content_type()
    yield "structure", kind
    if part.is_multipart():
        for child in cast("list[Message]", part.get_payload()):
            if kind == "message/rfc822":
                # Its headers are content of the outer message, all but those that a second rendering makes anew.
                kept = [
                    (name.lower(), str(value))
                    for name, value in child.items()
                    if name.lower() not in ("date", "message-id")
                ]
                yield "attachments", json.dumps([header for header in kept if not header[0].startswith("content-")])
            yield from _leaves(child)
        yield "structure", "end"
        return
    filename, disposition = part.get_filename(), part.get_content_disposition()
    name = "attachments" if filename is not None or disposition == "attachment" else _KINDS.get(kind, "attachments")
    yield name, json.dumps([kind, filename, disposition, part.get("Content-ID")])
    data = part.get_payload(decode=True)
    content = data if isinstance(data, bytes) else str(data).encode("utf-8", "surrogateescape")
    yield name, LINE_END.sub(b"\n", content) if part.get_content_maintype() == "text" else content
