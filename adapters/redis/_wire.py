"""Commands as bytes (Redis serialization protocol: an array of bulk strings)."""

from __future__ import annotations


def word(content: bytes) -> bytes:
    """One word of a command."""
    return b"$%d\r\n%b\r\n" % (len(content), content)


_SMALL = tuple(word(b"%d" % value) for value in range(256))


def number(value: int) -> bytes:
    """A number as a word."""
    return _SMALL[value] if 0 <= value < 256 else word(b"%d" % value)


def packed(*words: str | int) -> bytes:
    """A whole command."""
    body = [number(item) if isinstance(item, int) else word(item.encode()) for item in words]
    return b"*%d\r\n%b" % (len(words), b"".join(body))
