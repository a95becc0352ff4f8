"""Structured fields (RFC 9651): lists of strings with parameters, read as strictly as its section 4.2 says.

Only what the two fields here are made of is given out; what else a sender may add in a parameter is read by the same
rules and left aside, so that a field may grow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

MAX_LENGTH: Final = 8192
"""The longest field that is read, in characters: what common servers take for a whole line."""

_OWS = re.compile(r"[ \t]*", re.ASCII)
_SP = re.compile(r" *", re.ASCII)
_KEY = re.compile(r"[a-z*][a-z0-9_\-.*]*", re.ASCII)
_STRING = re.compile(r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"', re.ASCII)
_DISPLAY = re.compile(r'%"((?:[\x20-\x21\x23-\x24\x26-\x7e]|%[0-9a-f]{2})*)"', re.ASCII)
# Types that no field here uses, and that a parameter of somebody else's may have: integer and decimal, token, byte
# sequence, boolean, date.
_OTHER = re.compile(
    r"-?(?:\d{1,12}\.\d{1,3}|\d{1,15})(?![\d.])|[A-Za-z*][!#$%&'*+\-.^_`|~\w:/]*|:[A-Za-z0-9+/=]*:|\?[01]|@-?\d{1,15}(?![\d.])",
    re.ASCII,
)

Item: TypeAlias = tuple[str, Mapping[str, str | None]]
"""A string and its parameters; a parameter that is no string is ``None``."""


def parse_list(text: str) -> list[Item]:
    """Read a list whose members are strings or display strings. Raises ``ValueError`` that says where it is wrong."""
    reader = _Reader(text)
    items: list[Item] = []
    reader.skip(_SP)
    while not reader.at_end:
        items.append(reader.item())
        reader.skip(_OWS)
        if reader.at_end:
            break
        reader.expect(",")
        reader.skip(_OWS)
        if reader.at_end:
            raise reader.wrong("a member after the comma")
    return items


def parse_item(text: str) -> Item:
    """Read one string or display string with its parameters. Raises ``ValueError`` that says where it is wrong."""
    reader = _Reader(text)
    reader.skip(_SP)
    item = reader.item()
    reader.skip(_SP)
    if not reader.at_end:
        raise reader.wrong("the end")
    return item


def serialize_string(text: str) -> str:
    """A string, or where it has characters beyond ASCII a display string."""
    if re.fullmatch(r"[\x20-\x7e]*", text, re.ASCII):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    encoded = (
        f"%{byte:02x}" if byte in (0x25, 0x22) or not 0x20 <= byte <= 0x7E else chr(byte) for byte in text.encode()
    )
    return '%"' + "".join(encoded) + '"'


def serialize_item(value: str, parameters: Sequence[tuple[str, str]] = ()) -> str:
    """One string with its parameters."""
    return serialize_string(value) + "".join(f";{key}={serialize_string(text)}" for key, text in parameters)


class _Reader:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise ValueError(f"the field has {len(text)} characters, more than {MAX_LENGTH}")
        self._text = text.rstrip(" ")
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._text)

    def wrong(self, expected: str) -> ValueError:
        return ValueError(f"at character {self._at} of {self._text[:200]!r}: expected {expected}")

    def skip(self, what: re.Pattern[str]) -> None:
        match = what.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def take(self, what: re.Pattern[str]) -> re.Match[str] | None:
        match = what.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def expect(self, character: str) -> None:
        if not self._text.startswith(character, self._at):
            raise self.wrong(f"{character!r}")
        self._at += 1

    def item(self) -> Item:
        value = self.string()
        if value is None:
            raise self.wrong("a string")
        parameters: dict[str, str | None] = {}
        while self._text.startswith(";", self._at):
            self._at += 1
            self.skip(_SP)
            key = self.take(_KEY)
            if key is None:
                raise self.wrong("the name of a parameter")
            parameters[key[0]] = None
            if self._text.startswith("=", self._at):
                self._at += 1
                parameters[key[0]] = self.string()
                if parameters[key[0]] is None and self.take(_OTHER) is None:
                    raise self.wrong("the value of a parameter")
        return value, parameters

    def string(self) -> str | None:
        plain = self.take(_STRING)
        if plain is not None:
            return re.sub(r'\\(["\\])', r"\1", plain[1])
        display = self.take(_DISPLAY)
        if display is None:
            return None
        try:
            return re.sub(
                rb"%([0-9a-f]{2})", lambda hexed: bytes.fromhex(hexed[1].decode()), display[1].encode()
            ).decode()
        except UnicodeDecodeError as exc:
            raise self.wrong("UTF-8 in the display string before here") from exc
