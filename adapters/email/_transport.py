"""The port between the relay and what carries a message away: prepare, pass the gate, hand over, say what is known.

The gate is the moment after which a message may be out. A transport does all that has no effect first, calls the
gate, and only then sends the first byte that might have one. So a relay that was overtaken is stopped before anything
leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Fate = Literal["sent", "deferred", "rejected", "uncertain"]
"""What became of one recipient: taken over by the server; refused for now; refused for good; not known."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message as it goes out: the envelope with the recipients still to be served, and the frozen bytes.

    ``key`` names this sending to a provider that compares keys: 64 hexadecimal digits, the same each time that the
    same bytes are handed over for the same recipients, and another one for every other message of every outbox.
    ``again``: an earlier hand-over through this transport may have sent it.
    """

    mail_from: str
    recipients: tuple[str, ...]
    message: bytes
    key: str = ""
    again: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one recipient, and in whose words (the server's reply, or what went wrong)."""

    fate: Fate
    reply: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """What is known after one hand-over: an answer for each recipient.

    ``free``: it was no fault of the message, so no attempt is counted. ``held``: handing it over again would not end
    the doubt, whatever the policy. ``retry_after``: seconds that the server asked for.
    """

    answers: Mapping[str, Answer]
    free: bool = field(default=False, kw_only=True)
    held: bool = field(default=False, kw_only=True)
    retry_after: float | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class LookUp:
    """What a provider says about an earlier hand-over, and in which words. ``absent``: it never got the message."""

    found: Literal["sent", "failed", "absent", "unknown"]
    reply: str


Gate = Callable[[Mapping[str, Answer]], None]
"""Called with the recipients refused so far. Raises :class:`GateClosed`: nothing may be handed over."""


class GateClosed(Exception):
    """The row is another relay's by now, or the lease is over: clear the connection and let this pass through."""


class TransportUnavailable(Exception):
    """The server cannot be reached or wants nobody now. Nothing was handed over; the message has no part in it."""


class Session(Protocol):
    """A connection that is opened when needed and used again. For one thread."""

    def deliver(self, mail: Outgoing, gate: Gate) -> Delivery:
        """Hand ``mail`` over, calling ``gate`` once, right before the first byte that can have an effect.

        Raises :class:`TransportUnavailable`, and what the gate raises. After the gate, whatever is not known for
        certain is answered as ``uncertain``.
        """

    def close(self) -> None:
        """Say goodbye. A later ``deliver`` opens a new connection."""


class Transport(Protocol):
    """Where messages go.

    A transport may have two more members, which policies use. ``key_window``: for how many seconds after a hand-over
    its provider compares ``Outgoing.key``, so that the same message is not sent twice (``keyed``).
    ``look_up(mail) -> LookUp``: what the provider knows about a message that may have been handed over
    (``reconcile``).
    """

    @property
    def name(self) -> str:
        """For people, without secrets: ``smtp://mail.example.org:587``."""

    def session(self) -> Session:
        """A new session; nothing is opened yet."""


def key_window(transport: Transport) -> float | None:
    """For how long the transport's provider compares keys, in seconds; None if it does not."""
    window: float | None = getattr(transport, "key_window", None)
    return window


def look_up_of(transport: Transport) -> Callable[[Outgoing], LookUp] | None:
    """How the transport's provider is asked about a message, or None."""
    function: Any = getattr(transport, "look_up", None)
    return function if callable(function) else None
