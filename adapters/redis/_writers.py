"""Writers: by what the script tells a write that is repeated from a new one.

As in an NFS session (RFC 8881, section 2.10.6) or Kafka's idempotent producer: a writer has one write under way at
a time, each with the next sequence number, and the server keeps the number and the reply of a writer's last one.
What comes again is answered from there; what comes late, after its successor, is not executed.
"""

from __future__ import annotations

import os
from binascii import hexlify
from collections import deque

from adapters.redis._wire import word
from fencing._token import Token

_GENERATIONS = 4096


# How often this process has become another one: a child of a fork goes on with its parent's writers otherwise.
_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class Writer:
    """One writer: its number, and that of the write that it has under way."""

    __slots__ = ("_field", "_sequence", "words")

    words: bytes
    """The field of a mark in which its last write is remembered, and the stamp of the one under way, as two words."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Become another writer: the numbers of this one are taken."""
        self._field = word(b"writer:%b" % os.urandom(8).hex().encode())
        self._sequence = 0
        self.begin()

    def begin(self) -> None:
        """Stamp the next write: its number, and a nonce, so that a copied process does not pass for the original."""
        self._sequence += 1
        # As many digits each time: their order is that of the numbers as text too, which the script makes use of.
        self.words = b"%b$33\r\n%016d:%b\r\n" % (self._field, self._sequence, hexlify(os.urandom(8)))


class Writers:
    """A guard's idle writers, and the generations of marks: when a mark has last forgotten the writers of its token."""

    def __init__(self) -> None:
        self._idle: deque[Writer] = deque()
        self._forks = _forks
        self._generations: dict[str, tuple[Token, int]] = {}

    def take(self) -> Writer:
        """A writer for one write, given its stamp."""
        if self._forks != _forks:  # after a fork the parent goes on with the same ones
            self._idle = deque()
            self._forks = _forks
        try:
            writer = self._idle.pop()
        except IndexError:
            return Writer()
        writer.begin()
        return writer

    def give(self, writer: Writer) -> None:
        """Its write is over, whatever came of it."""
        if self._forks == _forks:
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
