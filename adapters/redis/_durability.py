"""The durability option: how many replicas must have a write before it counts."""

from __future__ import annotations

import re
from dataclasses import dataclass

_WAIT = re.compile(r"wait:([1-9][0-9]{0,3}):([1-9][0-9]{0,8})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Durability:
    """``replicas`` must acknowledge within ``milliseconds``; 0 replicas: the primary's word is enough."""

    replicas: int = 0
    milliseconds: int = 0

    @classmethod
    def parse(cls, text: str, socket_timeout: float | None) -> Durability:
        """Read ``"none"`` or ``"wait:N:MS"`` (Redis command WAIT; N ≥ 1 replicas, MS ≥ 1 milliseconds).

        Raises ``ValueError`` for anything else, and for a wait that the client would not outwait
        (``socket_timeout`` in seconds).
        """
        if text == "none":
            return cls()
        match = _WAIT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(
                f'durability is "none" or "wait:N:MS" (N replicas within MS milliseconds, both from 1), not {text!r}'
            )
        replicas, milliseconds = int(match[1]), int(match[2])
        if socket_timeout is not None and milliseconds >= socket_timeout * 1000:
            raise ValueError(
                f"durability={text!r} waits longer than the client's socket_timeout of {socket_timeout:g} s, so its "
                "answer would never be heard: wait less, or give the client a longer timeout"
            )
        return cls(replicas, milliseconds)
