"""Commands as bytes (Redis serialization protocol: an array of bulk strings)."""

from __future__ import annotations


def word(content: bytes) -> bytes:
    """One word of a command."""
    return b"$%d\r\n%b\r\n" % (len(content), content)


def number(value: int) -> bytes:
    """A number as a word."""
    return word(b"%d" % value)


def packed(*words: str | bytes | int) -> bytes:
    """A whole command."""
    return b"*%d\r\n" % len(words) + b"".join(
        number(item) if isinstance(item, int) else word(item.encode() if isinstance(item, str) else item)
        for item in words
    )
