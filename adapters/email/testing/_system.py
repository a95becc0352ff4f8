"""`TransportSystem`: what the author of a transport writes, so that the contract can try it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum

from adapters.email._transport import Transport


class Behaviour(Enum):
    """What the other side does with a message. These decide which examples are run."""

    TAKES = "it takes the message, and says so"
    REFUSES_FOR_NOW = "it refuses every recipient or the content for now"
    REFUSES_FOR_GOOD = "it refuses every recipient or the content for good"
    REFUSES_ONE = "it refuses the first recipient for now, and takes the message for the others"
    LOSES_THE_ANSWER = "it takes the message, and its answer never arrives"
    BREAKS = "the connection breaks before the message is complete"
    ABSENT = "it cannot be reached"


class TransportSystem(ABC):
    """A transport and the other side of it: a server of the test's own, that can be told what to do."""

    name: str
    """For reports."""

    behaviours: frozenset[Behaviour]
    """What the other side can be made to do; at least ``TAKES``."""

    unchanged: bool = True
    """Whether the other side is given the very bytes. If not, because it wants fields, :meth:`received` returns the
    subject of each message in their place."""

    @abstractmethod
    def transport(self) -> Transport:
        """Return the transport, which talks to the other side of this example."""

    @abstractmethod
    def behave(self, behaviour: Behaviour) -> None:
        """From now on the other side does this with every message. At first it takes them."""

    @abstractmethod
    def received(self) -> list[bytes]:
        """Return the messages that the other side has taken, in order, whether or not it answered."""
