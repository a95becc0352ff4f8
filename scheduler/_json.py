"""Values as JSON text that PostgreSQL can store, and text made fit for it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

MAX_JSON = 1 << 20
"""The largest value, in bytes of JSON.

Larger things belong in a table or a bucket of their own, and their name in the value.
"""

# An escaped NUL, and not a backslash (escaped itself) before the letters "u0000".
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

# Made once: json.dumps would make one for each value.
_encoder = json.JSONEncoder(allow_nan=False, ensure_ascii=False)
_encode, _default = _encoder.encode, _encoder.default
_decode = json.JSONDecoder().raw_decode


def json_text(value: object, what: str) -> str:
    """Return ``value`` as JSON text. ``what`` names it in errors, for example "the arguments of 'send'".

    Raises ``TypeError`` for what JSON cannot hold, ``ValueError`` for what PostgreSQL's jsonb cannot, or is too large.
    """
    try:
        text = _encode(value)
    except (TypeError, ValueError, RecursionError) as exc:
        raise TypeError(json_refusal(what, exc)) from exc
    refuse_unstorable(text, what)
    return text


def json_refusal(what: str, exc: BaseException) -> str:
    """Say why ``what`` cannot be written as JSON, after the encoder's error."""
    return f"{what} are not JSON ({exc}); use None, numbers, texts, lists and dictionaries"


def refuse_unstorable(text: str, what: str) -> None:
    """Raise ``ValueError`` for JSON text that PostgreSQL's jsonb cannot hold, or that is too large."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as exc:
        raise ValueError(f"{what} hold half of a surrogate pair, which is no text ({exc})") from exc
    if size > MAX_JSON:
        raise ValueError(f"{what} are {size:,} bytes of JSON, at most {MAX_JSON:,} are taken")
    if "u0000" in text and _NUL.search(text):
        raise ValueError(f"{what} hold a NUL character, which PostgreSQL cannot store")


def encoder() -> Callable[[object], str]:
    """Return a function that writes values as JSON text, without the checks of :func:`json_text`; for one thread.

    ``JSONEncoder.encode`` makes an encoder in C for each value, which costs more than using it. Making it once is not
    documented: what does not do as it should is not used.
    """
    try:
        within = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
            {}, _default, json.encoder.encode_basestring, None, ": ", ", ", False, False, False
        )
        if "".join(within({"ä": [1, 2.5, None, "\n"]}, 0)) == '{"ä": [1, 2.5, null, "\\n"]}':
            return lambda value: "".join(within(value, 0))
    except (AttributeError, TypeError):
        pass
    return _encode


def json_value(data: str | bytes) -> Any:
    """Return the value of JSON that the database holds and sends, in UTF-8.

    ``json.loads`` would find out about the encoding first, which takes longer than to read a job's arguments.
    """
    return _decode(data if isinstance(data, str) else data.decode())[0]


def storable(text: str, most: int) -> str:
    """Return the last ``most`` characters of ``text``, with what PostgreSQL cannot store replaced."""
    return text[-most:].encode(errors="backslashreplace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")
