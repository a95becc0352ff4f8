"""Dialogues: what a guard asks its server, as a generator that knows no socket.

A dialogue yields requests, and a driver (``_drive``) with a connection, blocking or asyncio, sends back the answers and
throws in the client's errors. So both kinds of client run the same code, which holds every decision.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")

Command: TypeAlias = bytes
Pause: TypeAlias = float
Request: TypeAlias = Command | Pause | None
"""A command to send, and have its answer; seconds to wait; or ``None``: have a connection, return its protocol (2, 3).

What a driver throws in at ``None`` happened before anything was sent. It keeps the connection until that is lost or the
dialogue ends."""

Dialogue: TypeAlias = Generator[Request, Any, T]

PAUSES: Final = (0.0, 0.0, 0.1)
"""Seconds before each sending of the same request: a lost reply is asked for this often, so that a call ends."""
