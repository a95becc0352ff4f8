"""Addresses: checked by email-validator, domains turned into A-labels (RFC 5890) for the envelope and the headers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from email.headerregistry import Address
from typing import TypeVar

try:
    from email_validator import EmailNotValidError, validate_email
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        f"adapters.email needs {exc.name}: pip install 'fencing-toolkit[email]'", name=exc.name
    ) from exc

T = TypeVar("T")

_NAMED = re.compile(r"\s*(?P<name>.*?)\s*<(?P<spec>[^<>]*)>\s*")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Mailbox:
    """One checked address: ``name`` for the header, ``spec`` (``local@a-label-domain``) for the envelope."""

    name: str
    local: str
    domain: str

    @property
    def spec(self) -> str:
        """The form that goes into ``MAIL`` and ``RCPT``. Its local part is not ASCII if SMTPUTF8 (RFC 6531) is
        needed."""
        return f"{self.local}@{self.domain}"

    def header(self) -> Address:
        """The form that goes into a header."""
        return Address(display_name=self.name, username=self.local, domain=self.domain)


def check_text(field: str, text: str) -> str:
    """Return ``text`` if it can stand in a header.

    Raises ``ValueError`` naming ``field`` for a line break (Unicode's too), NUL or other control character: a line
    break in a header starts another header, or the body (RFC 5322 §2.2).
    """
    if not isinstance(text, str):
        raise TypeError(f"{field} is text, not {type(text).__name__}")
    for position, character in enumerate(text):
        if (character < " " and character != "\t") or character in "\x7f\x85\u2028\u2029":
            raise ValueError(
                f"{field} holds the control character {character!r} at position {position}: "
                "a header is one line; take it out or replace it with a space"
            )
        if "\ud800" <= character <= "\udfff":
            raise ValueError(f"{field} holds a lone surrogate at position {position}: it is not encodable as UTF-8")
    return text


def mailbox(field: str, text: str) -> Mailbox:
    """Read ``user@example.org`` or ``Name <user@example.org>``. Raises ``ValueError`` naming ``field``.

    Whether a domain exists is the mail server's to say, so an intranet name without a dot passes; names that RFC 6761
    reserves (``localhost``, ``.local``, ``.invalid``; not ``.test``) do not.
    """
    check_text(field, text)
    named = _NAMED.fullmatch(text)
    name, spec = (_display_name(field, named["name"]), named["spec"]) if named else ("", text.strip())
    try:
        checked = validate_email(spec, check_deliverability=False, globally_deliverable=False, test_environment=True)
    except EmailNotValidError as exc:
        raise ValueError(f"{field} is not an e-mail address: {text!r}: {exc}") from exc
    if not checked.ascii_domain:
        raise ValueError(f"{field}: the domain of {text!r} has no ASCII form")
    return Mailbox(name, checked.local_part, checked.ascii_domain)


def _display_name(field: str, text: str) -> str:
    quoted = _QUOTED.fullmatch(text)
    if quoted:
        return re.sub(r"\\(.)", r"\1", quoted[1])
    # Without this, "a@example.org, Bob <b@example.org>" would be Bob alone under a long name: one recipient lost in
    # silence.
    if re.search(r'[,;@<>"]', text):
        raise ValueError(
            f'{field}: the display name {text!r} holds one of , ; @ < > ": quote it, or pass a list of addresses'
        )
    return text


def sequence(field: str, given: Iterable[T]) -> Iterable[T]:
    """Return ``given`` if it can be iterated over. Raises ``TypeError`` naming ``field``."""
    if not isinstance(given, Iterable):
        raise TypeError(f"{field} is a sequence, empty for none, not {type(given).__name__}")
    return given


def mailboxes(field: str, given: str | Iterable[str]) -> tuple[Mailbox, ...]:
    """Read one address or several. One text is one address: a comma in it is an error, not a list."""
    if isinstance(given, str):
        return (mailbox(field, given),)
    return tuple(mailbox(f"{field}[{number}]", text) for number, text in enumerate(sequence(field, given)))


def distinct(boxes: Iterable[Mailbox]) -> tuple[str, ...]:
    """The envelope addresses, each once, in order. Local parts are compared exactly: only their server may fold them
    (RFC 5321 §2.4)."""
    return tuple(dict.fromkeys(box.spec for box in boxes))
