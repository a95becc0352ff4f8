"""The ways in which mail servers fail, as hooks for the SMTP sink: each is asked in every phase, and has an answer in
one."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from adapters.email.testing._script import Answer, Drop, Exchange, Hook


@dataclass(frozen=True, slots=True)
class SlowAnswer:
    """The answer to the final dot takes its time, in seconds. The message is taken."""

    seconds: float

    def __call__(self, exchange: Exchange) -> Answer:
        """Wait, then the usual answer."""
        if exchange.phase == "message":
            time.sleep(self.seconds)
        return None


@dataclass(frozen=True, slots=True)
class HeldAnswer:
    """The answer to the final dot comes once the test calls :meth:`release`, at the latest after ``most`` seconds.

    ``arrived`` is set when the first final dot is there: by then the client waits.
    """

    most: float = 60.0
    arrived: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)

    def __call__(self, exchange: Exchange) -> Answer:
        """Wait for the test."""
        if exchange.phase == "message":
            self.arrived.set()
            self._released.wait(self.most)
        return None

    def release(self) -> None:
        """Answer now, and from now on at once."""
        self._released.set()


@dataclass(frozen=True, slots=True)
class HangUpAtDot:
    """The connection ends at the final dot, without an answer; ``taken`` says whether the message counts as received.

    The client cannot tell the two apart.
    """

    taken: bool

    def __call__(self, exchange: Exchange) -> Answer:
        """Drop the connection."""
        return Drop(accepted=self.taken) if exchange.phase == "message" else None


@dataclass(frozen=True, slots=True)
class RefuseRecipient:
    """One recipient is refused, the others are not."""

    address: str
    reply: str = "450 4.2.1 this mailbox is busy, try later"

    def __call__(self, exchange: Exchange) -> Answer:
        """The reply, to that ``RCPT``."""
        return self.reply if exchange.phase == "rcpt" and exchange.rcpt == self.address else None


@dataclass(frozen=True, slots=True)
class RefuseReuse:
    """A connection is good for one message: at the next ``MAIL`` the server says 421 and hangs up."""

    reply: str = "421 4.7.0 one message for each connection"

    def __call__(self, exchange: Exchange) -> Answer:
        """Hang up on a connection that has brought a message."""
        return Drop(self.reply) if exchange.phase == "mail" and exchange.taken else None


@dataclass(frozen=True, slots=True)
class RefuseContent:
    """The content is refused after the final dot."""

    reply: str = "552 5.3.4 the message is too big"

    def __call__(self, exchange: Exchange) -> Answer:
        """The reply, to the final dot."""
        return self.reply if exchange.phase == "message" else None


@dataclass(slots=True)
class FakeClock:
    """A clock that stands still until it is told how far to go."""

    now: float = 0.0

    def advance(self, seconds: float) -> None:
        """Let so much time pass."""
        self.now += seconds


@dataclass(slots=True)
class Greylist:
    """A sender and recipient that were never seen are told to come again after ``seconds`` of ``clock`` (RFC 6647).

    The clock is the server's, a fake one: ``greylist.clock.advance(60)``. The sender's own delay is its own matter.
    """

    seconds: float = 60.0
    clock: FakeClock = field(default_factory=FakeClock)
    reply: str = "450 4.7.1 greylisted, try later"
    _first: dict[tuple[str, str], float] = field(default_factory=dict)

    def __call__(self, exchange: Exchange) -> Answer:
        """The reply, to a ``RCPT`` that comes too early."""
        if exchange.phase != "rcpt":
            return None
        first = self._first.setdefault((exchange.mail_from, exchange.rcpt), self.clock.now)
        return self.reply if self.clock.now < first + self.seconds else None


def times(count: int, fault: Hook) -> Hook:
    """The same fault, but only for the first ``count`` answers that it gives."""
    lock = threading.Lock()
    left = count

    def limited(exchange: Exchange) -> Answer:
        nonlocal left
        with lock:
            if left <= 0:
                return None
            answer = fault(exchange)
            if answer is not None:
                left -= 1
            return answer

    return limited
