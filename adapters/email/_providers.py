"""HTTP providers, as data: where the message and its key go, and what each answer means.

The presets say what the providers' public documentation says; none of it was tried against the providers themselves.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from adapters.email._parts import Address, Parts

Meaning = Literal["sent", "repeated", "rejected", "deferred", "unavailable", "uncertain", "held"]
"""What an answer says about the message.

``sent``: taken over, now or by an earlier request with the same key. ``repeated``: nothing was done, for the key was
used before. If a hand-over of ours is in doubt, that was it, and the message is sent; else it is ``held``.
``rejected``: refused for good. ``deferred``: refused for now. ``unavailable``: the provider wants nothing now, or not
from us; no attempt is counted. ``uncertain``: not known. ``held``: not known, and asking again would not help.
"""

Body = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The provider's idempotency key: in the HTTP header ``name``, or in the body under the path ``name``
    (``headers.idempotencyKey``).

    ``window``: seconds for which the provider compares it, counted from the first request. ``length``: its most
    characters. ``as_uuid``: it has to be a UUID.
    """

    name: str = "Idempotency-Key"
    where: Literal["header", "body"] = "header"
    window: float
    length: int = 255
    as_uuid: bool = False

    def __post_init__(self) -> None:
        if self.length < 32:
            raise ValueError(f"a key of at most {self.length} characters does not tell messages apart; 32 are needed")

    def value(self, key: str) -> str:
        """The key as this provider wants it, from the 64 hexadecimal digits of ``Outgoing.key``."""
        return str(uuid.UUID(key[:32])) if self.as_uuid else key[: self.length]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """How a provider is asked about a message: GET ``path``, in which ``{key}`` stands for the key.

    ``read`` turns the JSON answer to a 2xx into what it means: ``"sent"``, ``"failed"``, ``"absent"`` (it never got
    the message: only where its lists are complete) or ``"unknown"``. A 404 means ``missing``.
    """

    path: str
    read: Callable[[Any], Literal["sent", "failed", "absent", "unknown"]]
    missing: Literal["absent", "unknown"] = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One provider. ``body`` makes the JSON of a message; ``headers`` are sent with each request, ``{api_key}`` in
    them filled in.

    ``statuses``: what an HTTP status means. Without an entry 2xx is ``sent``, 401, 403 and 3xx ``unavailable``, 408
    ``uncertain``, 429 ``unavailable``, other 4xx ``rejected`` and all else ``uncertain``. ``codes`` come first: what
    the text in the answer's field ``code_field`` means. ``one_recipient``: a message to several is refused.
    """

    name: str
    url: str
    body: Callable[[Parts], Body]
    headers: Mapping[str, str] = field(default_factory=dict)
    key: Key | None = None
    statuses: Mapping[int, Meaning] = field(default_factory=dict)
    codes: Mapping[str, Meaning] = field(default_factory=dict)
    code_field: str = "code"
    look_up: Reference | None = None
    one_recipient: bool = False

    def meaning(self, status: int, code: str) -> Meaning:
        """What an answer means."""
        found = self.codes.get(code) or self.statuses.get(status)
        if found is not None:
            return found
        if 200 <= status <= 299:
            return "sent"
        if status in (401, 403, 429) or 300 <= status <= 399:
            return "unavailable"
        return "rejected" if 400 <= status <= 499 and status != 408 else "uncertain"


_BEARER = {"Authorization": "Bearer {api_key}"}


def resend(url: str = "https://api.resend.com/emails") -> Provider:
    """Resend: key in ``Idempotency-Key``, up to 256 characters, compared for 24 hours; the same key with another
    payload, or while the first request is still running, is a 409 (resend.com/docs, read, not tried)."""
    return Provider(
        name="resend",
        url=url,
        body=_resend,
        headers=_BEARER,
        key=Key(window=86_400, length=256),
        code_field="name",
        statuses={409: "uncertain"},
        codes={
            "invalid_idempotent_request": "held",
            "concurrent_idempotent_requests": "uncertain",
            "daily_quota_exceeded": "unavailable",
            "monthly_quota_exceeded": "unavailable",
        },
    )


def brevo(url: str = "https://api.brevo.com/v3/smtp/email") -> Provider:
    """Brevo: a UUID in the body's ``headers.idempotencyKey``, compared for 30 minutes; a key that was used is the
    error ``duplicate_parameter``, and nothing is sent (developers.brevo.com, read, not tried; an older page says 15
    minutes, which is what is counted on here). Other faults of a request have that name, too: without an earlier
    hand-over in doubt it is no word that the message was sent."""
    return Provider(
        name="brevo",
        url=url,
        body=_brevo,
        headers={"api-key": "{api_key}"},
        key=Key(name="headers.idempotencyKey", where="body", window=900, as_uuid=True),
        codes={"duplicate_parameter": "repeated", "not_enough_credits": "unavailable"},
    )


def loops(transactional_id: str, url: str = "https://app.loops.so/api/v1/transactional") -> Provider:
    """Loops: sends its own template ``transactional_id`` with the data variables ``subject``, ``text`` and ``html``;
    one recipient. Key in ``Idempotency-Key``, up to 100 characters, compared for 24 hours; a key that was used is a
    409 (loops.so/docs, read, not tried)."""

    def body(parts: Parts) -> Body:
        variables = {"subject": parts.subject, "text": parts.text or "", "html": parts.html or ""}
        files = [{"filename": file.filename, "contentType": file.type, "data": file.content} for file in parts.files]
        return _filled(
            email=(*parts.to, *parts.bcc)[0].spec,
            transactionalId=transactional_id,
            dataVariables=variables,
            attachments=files,
        )

    return Provider(
        name="loops",
        url=url,
        body=body,
        headers=_BEARER,
        key=Key(window=86_400, length=100),
        statuses={409: "repeated"},
        one_recipient=True,
    )


def generic(
    name: str,
    url: str,
    *,
    window: float,
    key: str = "Idempotency-Key",
    length: int = 255,
    headers: Mapping[str, str] = _BEARER,
    body: Callable[[Parts], Body] | None = None,
    look_up: Reference | None = None,
) -> Provider:
    """A provider that follows the draft standard of the Idempotency-Key header (draft-ietf-httpapi-idempotency-key-
    header): a repeated request gets the first answer again, 409 while that is running, 422 if the payload differs.

    ``window`` is its own to say: seconds for which it compares keys. ``body``: by default the fields ``from``,
    ``to``, ``cc``, ``bcc``, ``reply_to``, ``subject``, ``text``, ``html``, ``headers`` and ``attachments``.
    """
    return Provider(
        name=name,
        url=url,
        body=body or _resend,
        headers=headers,
        key=Key(name=key, window=window, length=length),
        statuses={409: "uncertain", 422: "held"},
        look_up=look_up,
    )


def _filled(**fields: Any) -> Body:
    return {name: value for name, value in fields.items() if value not in (None, "", (), [], {})}


def _texts(addresses: tuple[Address, ...]) -> list[str]:
    return [str(address) for address in addresses]


def _resend(parts: Parts) -> Body:
    to, bcc = (parts.to, parts.bcc) if parts.to else (parts.bcc, ())
    files = [
        _filled(filename=file.filename, content=file.content, content_type=file.type, content_id=file.content_id)
        for file in parts.files
    ]
    return {
        **_filled(cc=_texts(parts.cc), bcc=_texts(bcc), reply_to=_texts(parts.reply_to)),
        **_filled(text=parts.text, html=parts.html, headers=parts.headers, attachments=files),
        "from": str(parts.sender),
        "to": _texts(to),
        "subject": parts.subject,
    }


def _brevo(parts: Parts) -> Body:
    def boxes(addresses: tuple[Address, ...]) -> list[Body]:
        return [_filled(email=address.spec, name=address.name) for address in addresses]

    to, bcc = (parts.to, parts.bcc) if parts.to else (parts.bcc, ())
    return _filled(
        sender=boxes((parts.sender,))[0],
        to=boxes(to),
        cc=boxes(parts.cc),
        bcc=boxes(bcc),
        replyTo=boxes(parts.reply_to[:1])[0] if parts.reply_to else None,
        subject=parts.subject,
        textContent=parts.text if parts.html is None else None,  # the two exclude each other
        htmlContent=parts.html,
        attachment=[{"name": file.filename, "content": file.content} for file in parts.files],
        headers=dict(parts.headers),
    )
