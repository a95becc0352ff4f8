"""Writers: by what the script tells a write that is repeated from a new one.

As in an NFS session (RFC 8881, section 2.10.6) or Kafka's idempotent producer: a writer has one write under way at
a time, each with the next sequence number, and the server keeps the number and the reply of a writer's last one.
What comes again is answered from there; what comes late, after its successor, is not executed.
"""

from __future__ import annotations

import os
from collections import deque

from fencing._token import Token

_GENERATIONS = 4096


def _random() -> bytes:
    return os.urandom(8).hex().encode()


class Writer:
    """One writer: its ``id``, and the ``stamp`` of the write that it has under way."""

    __slots__ = ("_sequence", "id", "stamp")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Become another writer: the numbers of this one are taken."""
        self.id = _random()
        self._sequence = 0
        self.begin()

    def begin(self) -> None:
        """Stamp the next write: its number, and a nonce, so that a copied process does not pass for the original."""
        self._sequence += 1
        self.stamp = b"%d:%b" % (self._sequence, _random())


class Writers:
    """A guard's idle writers, and the generations of marks: how often a mark has forgotten the writers of its token."""

    def __init__(self) -> None:
        self._idle: deque[Writer] = deque()
        self._process = os.getpid()
        self._generations: dict[str, tuple[Token, int]] = {}

    def take(self) -> Writer:
        """A writer for one write, given its stamp."""
        if self._process != os.getpid():  # after a fork the parent goes on with the same ones
            self._idle = deque()
            self._process = os.getpid()
        try:
            writer = self._idle.pop()
        except IndexError:
            return Writer()
        writer.begin()
        return writer

    def give(self, writer: Writer) -> None:
        """Its write is over, whatever came of it."""
        if self._process == os.getpid():
            self._idle.append(writer)

    def generation(self, resource: str, token: Token) -> int:
        """The generation of the resource's mark under the token when last heard of, or 0."""
        known = self._generations.get(resource)
        return known[1] if known and known[0] == token else 0

    def heard(self, resource: str, token: Token, generation: int) -> None:
        """Remember a generation. To forget one is harmless: it costs a question to the server."""
        if len(self._generations) >= _GENERATIONS:
            self._generations.clear()
        self._generations[resource] = (token, generation)
