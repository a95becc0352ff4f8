"""The words in which a test scripts the SMTP sink."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Phase = Literal["mail", "rcpt", "data", "message"]


@dataclass(frozen=True)
class Received:
    """One message that the server accepted, or was told to count as accepted."""

    mail_from: str
    rcpt_tos: tuple[str, ...]  # the accepted ones, in the client's order
    data: bytes  # as on the wire, dots unstuffed, lines ended by CR LF
    at: int = field(default_factory=time.monotonic_ns, compare=False)  # nanoseconds of the monotonic clock


@dataclass(frozen=True)
class Exchange:
    """What a hook is asked about: the phase, and the envelope as far as it is known.

    ``phase`` is ``mail``, ``rcpt``, ``data`` (the command, before the payload) or ``message`` (the final
    dot). ``rcpt`` is the recipient in question, in its phase only; ``rcpt_tos`` those accepted before;
    ``data`` the payload, in the phase ``message`` only. ``taken`` is how many messages this connection has brought
    before.
    """

    phase: Phase
    mail_from: str
    rcpt_tos: tuple[str, ...] = ()
    rcpt: str = ""
    data: bytes = b""
    taken: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Drop:
    """An answer that ends the connection: without a word, or right after ``reply``.

    ``accepted`` says, at the final dot, whether the message counts as received; without it, it does if the
    reply begins with 2. ``Drop(accepted=True)`` is the server that took the message and lost the answer.
    """

    reply: str | None = None
    accepted: bool | None = None


Answer = str | Drop | None
Hook = Callable[[Exchange], Answer]
