"""The script, and a call of it as bytes."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import Final, Literal, TypeAlias

from adapters.redis._keys import mark_key
from adapters.redis._recorder import Tape
from adapters.redis._wire import number, packed, word
from adapters.redis._writers import Writer
from fencing._token import Token

OnMissing: TypeAlias = Literal["reject", "create", "raise", "adopt"]
"""What the script does where a mark is missing; ``"raise"`` makes it whatever the server's eviction policy, and
``"adopt"`` does so and takes it from another issuer."""

_SOURCE: Final = files(__package__).joinpath("write.lua").read_text(encoding="utf-8")
_SHA: Final = hashlib.sha1(_SOURCE.encode(), usedforsecurity=False).hexdigest()
_EVALSHA: Final = word(b"EVALSHA") + word(_SHA.encode())
_FIXED_WORDS: Final = 9  # EVALSHA, the script, the number of keys, and the first six arguments
_NO_WRITER: Final = word(b"writer:")

LOAD: Final = packed("SCRIPT", "LOAD", _SOURCE)
"""The command that makes the server know the script."""


def call(
    resources: tuple[str, ...],
    token: Token,
    holder: str,
    on_missing: OnMissing,
    writer: Writer | None,
    tape: Tape | None,
    *,
    act: str = "",
    generation: int,
    since: int | None,
    protocol: int,
) -> bytes:
    """The command that runs the script; ``generation`` is that of the first mark as far as known, ``since`` how many
    microseconds ago the write was first sent, if it was.

    ``act``: who adopts the resource and why, in place of a writer's stamp.
    """
    known = generation if since is None else f"{generation}/{since}"
    keys, size, commands = (tape.keys, tape.size, tape.words) if tape else ((), 0, ())
    return b"".join(
        (
            b"*%d\r\n" % (_FIXED_WORDS + len(resources) + len(keys) + size),
            _EVALSHA,
            _marks(resources, len(keys)),
            *keys,
            _text(token),
            *(writer.words if writer else (_NO_WRITER, word(act.encode("utf-8", "backslashreplace")))),
            _terms(len(resources), holder, f"{on_missing} {protocol} {known}"),
            *commands,
        )
    )


# The same for all writes of a job, or of a tight loop.


@lru_cache(maxsize=1024)
def _marks(resources: tuple[str, ...], keys: int) -> bytes:
    return number(len(resources) + keys) + b"".join(word(mark_key(resource).encode()) for resource in resources)


@lru_cache(maxsize=1024)
def _text(token: Token) -> bytes:
    return word(str(token).encode())


@lru_cache(maxsize=1024)
def _terms(marks: int, holder: str, others: str) -> bytes:
    # A name may hold what UTF-8 cannot: it is for people to read.
    return number(marks) + word(holder.encode("utf-8", "backslashreplace")) + word(others.encode())
