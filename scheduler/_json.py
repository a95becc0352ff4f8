"""Values as JSON text that PostgreSQL can store, and text made fit for it. Pure."""

from __future__ import annotations

import json
import re

MAX_JSON = 1 << 20
"""The largest value, in bytes of JSON.

Larger things belong in a table or a bucket of their own, and their name in the value.
"""

# An escaped NUL, and not a backslash (escaped itself) before the letters "u0000".
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

# Made once: json.dumps would make one for each value.
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


def json_text(value: object, what: str) -> str:
    """Return ``value`` as JSON text. ``what`` names it in errors, for example "the arguments of 'send'".

    Raises ``TypeError`` for what JSON cannot hold, ``ValueError`` for what PostgreSQL's jsonb cannot, or is too large.
    """
    try:
        text = _encode(value)
    except (TypeError, ValueError, RecursionError) as exc:
        raise TypeError(f"{what} are not JSON ({exc}); use None, numbers, texts, lists and dictionaries") from exc
    try:
        size = len(text.encode())
    except UnicodeEncodeError as exc:
        raise ValueError(f"{what} hold half of a surrogate pair, which is no text ({exc})") from exc
    if size > MAX_JSON:
        raise ValueError(f"{what} are {size:,} bytes of JSON, at most {MAX_JSON:,} are taken")
    if "u0000" in text and _NUL.search(text):
        raise ValueError(f"{what} hold a NUL character, which PostgreSQL cannot store")
    return text


def storable(text: str, most: int) -> str:
    """Return the last ``most`` characters of ``text``, with what PostgreSQL cannot store replaced."""
    return text[-most:].encode(errors="backslashreplace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")
