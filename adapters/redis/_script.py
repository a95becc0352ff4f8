"""The script, and a call of it as bytes."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import Final, Literal, TypeAlias

from adapters.redis._keys import mark_key
from adapters.redis._recorder import Tape
from adapters.redis._wire import number, packed, word
from fencing._token import Token

OnMissing: TypeAlias = Literal["reject", "create", "raise"]
"""What the script does where a mark is missing; ``"raise"`` makes it whatever the server's eviction policy."""

_SOURCE: Final = files(__package__).joinpath("write.lua").read_text(encoding="utf-8")
_SHA: Final = hashlib.sha1(_SOURCE.encode(), usedforsecurity=False).hexdigest()
_EVALSHA: Final = word(b"EVALSHA") + word(_SHA.encode())
_FIXED_WORDS: Final = 10  # EVALSHA, the script, the number of keys, and the first seven arguments

LOAD: Final = packed("SCRIPT", "LOAD", _SOURCE)
"""The command that makes the server know the script."""


class Call:
    """A call of the script, ready but for what is known at the last moment."""

    __slots__ = ("_after", "_before")

    def __init__(
        self,
        resources: tuple[str, ...],
        token: Token,
        holder: str,
        on_missing: OnMissing,
        write_id: bytes,
        tape: Tape | None,
    ) -> None:
        count = len(resources)
        keys, size, commands = (tape.keys, tape.size, tape.words) if tape else ((), 0, ())
        self._before = b"".join(
            (
                b"*%d\r\n" % (_FIXED_WORDS + count + len(keys) + size),
                _EVALSHA,
                number(count + len(keys)),
                _marks(resources),
                *keys,
                _shown(count, token, holder, on_missing),
                word(write_id),
            )
        )
        self._after = b"".join(commands)

    def packed(self, seen: int, protocol: int) -> bytes:
        """The command; ``seen`` is a lower bound of the writes that the first mark counts under this token."""
        return b"".join((self._before, number(seen), number(protocol), self._after))


# The same for all writes of a job, or of a tight loop.


@lru_cache(maxsize=1024)
def _marks(resources: tuple[str, ...]) -> bytes:
    return b"".join(word(mark_key(resource).encode()) for resource in resources)


@lru_cache(maxsize=1024)
def _shown(count: int, token: Token, holder: str, on_missing: OnMissing) -> bytes:
    words = (str(token), holder, on_missing)
    # A name may hold what UTF-8 cannot: it is for people to read.
    return number(count) + b"".join(word(item.encode("utf-8", "backslashreplace")) for item in words)
