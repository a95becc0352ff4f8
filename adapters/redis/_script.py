"""The script, and a call of it as bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
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

_KEPT: Final = 256


@dataclass(frozen=True, slots=True)
class Frame:
    """What is the same in all calls of a holder whose commands have as many keys and words: nearly all of it."""

    of_token: Token
    opening: bytes
    """Up to the keys of the commands."""
    token: bytes
    terms: bytes


class Frames:
    """Makes frames, and keeps some, for jobs that write on."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], Frame] = {}

    def of(
        self,
        resources: tuple[str, ...],
        token: Token,
        holder: str,
        on_missing: OnMissing,
        protocol: int,
        known: int | str,
        tape: Tape | None,
    ) -> Frame:
        """``known``: the generation of the first mark as far as known, and ``/`` and a moment by the server's clock
        before the write was first sent, if it was (microseconds since 1970).
        """
        keys, size = (len(tape.keys), tape.size) if tape is not None else (0, 0)
        # The token by identity, which its frame keeps: its own hash takes longer than the rest here.
        key = (id(token), resources, holder, on_missing, protocol, known, keys, size)
        found = self._kept.get(key)
        if found is not None:
            return found
        if len(self._kept) >= _KEPT:
            self._kept.clear()
        marks = len(resources)
        frame = self._kept[key] = Frame(
            token,
            b"*%d\r\n" % (_FIXED_WORDS + marks + keys + size)
            + _EVALSHA
            + number(marks + keys)
            + b"".join(word(mark_key(resource).encode()) for resource in resources),
            word(str(token).encode()),
            # A name may hold what UTF-8 cannot: it is for people to read.
            number(marks)
            + word(holder.encode("utf-8", "backslashreplace"))
            + word(f"{on_missing} {protocol} {known}".encode()),
        )
        return frame


def call(frame: Frame, writer: Writer | None, tape: Tape | None, act: str = "") -> bytes:
    """The command that runs the script. ``act``: who adopts the resource and why, in place of a writer's stamp."""
    keys, commands = (tape.keys, tape.words) if tape is not None else ((), ())
    stamp = writer.words if writer is not None else _NO_WRITER + word(act.encode("utf-8", "backslashreplace"))
    return b"".join((frame.opening, *keys, frame.token, stamp, frame.terms, *commands))
