"""Transports without a mail server: any function, files, the console, memory."""

from __future__ import annotations

import email
import json
import os
import sys
import threading
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any, TextIO

from adapters.email._transport import Answer, Delivery, Fate, Gate, Outgoing, Session
from adapters.email._wire import AS_IT_IS


class CallableTransport:
    """Any function that sends: a Django or Anymail backend, an SDK.

    ``function(message, mail_from, recipients)`` gets an :class:`email.message.EmailMessage` and the envelope. What it
    returns means that the message was sent; what it raises means that nobody knows, unless the exception is one of
    ``rejected`` (refused for good) or ``deferred`` (refused for now): name there only what proves that nothing left.
    """

    def __init__(
        self,
        function: Callable[[EmailMessage, str, tuple[str, ...]], Any],
        *,
        name: str = "",
        rejected: tuple[type[Exception], ...] = (),
        deferred: tuple[type[Exception], ...] = (),
    ) -> None:
        if not callable(function):
            raise TypeError(f"function is a callable, not {type(function).__name__}")
        self.name = name or f"callable://{getattr(function, '__qualname__', type(function).__qualname__)}"
        self._function = function
        self._rejected = rejected
        self._deferred = deferred

    def session(self) -> Session:
        """A session that calls the function."""
        return _Effect(self._send)

    def _send(self, mail: Outgoing) -> Answer:
        message = email.message_from_bytes(mail.message, policy=AS_IT_IS.clone(utf8=not mail.message.isascii()))
        try:
            returned = self._function(message, mail.mail_from, mail.recipients)
        except self._rejected as exc:
            return Answer("rejected", f"{type(exc).__name__}: {exc}")
        except self._deferred as exc:
            return Answer("deferred", f"{type(exc).__name__}: {exc}")
        return Answer("sent", "" if returned is None else f"returned {returned!r:.200}")


class FileTransport:
    """Writes each message into ``directory``: ``KEY.eml`` with its bytes, ``KEY.json`` with its envelope.

    A message that is written again has the same name and the same bytes.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self.name = f"file://{self._directory}"

    def session(self) -> Session:
        """A session that writes files."""
        return _Effect(self._write, "deferred")

    def _write(self, mail: Outgoing) -> Answer:
        self._directory.mkdir(parents=True, exist_ok=True)
        envelope = {"mail_from": mail.mail_from, "recipients": list(mail.recipients)}
        self._put(f"{mail.key}.json", json.dumps(envelope, indent=2).encode())
        self._put(f"{mail.key}.eml", mail.message)
        return Answer("sent", f"written to {mail.key}.eml")

    def _put(self, name: str, content: bytes) -> None:
        # Whoever watches the directory sees whole files alone.
        hidden = self._directory / f".{name}.{os.getpid()}.{threading.get_ident()}"
        with hidden.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(self._directory / name)


class ConsoleTransport:
    """Prints each message to ``stream`` (the standard output). For development."""

    name = "console://"

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def session(self) -> Session:
        """A session that prints."""
        return _Effect(self._print)

    def _print(self, mail: Outgoing) -> Answer:
        text = mail.message.decode("utf-8", "replace").replace("\r\n", "\n")
        head = f"---- from {mail.mail_from} to {', '.join(mail.recipients)}"
        with self._lock:
            print(head, text, sep="\n", file=self._stream or sys.stdout, flush=True)
        return Answer("sent", "printed")


class MemoryTransport:
    """Keeps each message in the list ``sent``. For tests.

    ``answer``, if given, decides about each message instead: it returns an :class:`Answer`, and what it does not
    answer as ``sent`` is not kept.
    """

    name = "memory://"

    def __init__(self, answer: Callable[[Outgoing], Answer] | None = None) -> None:
        self.sent: list[Outgoing] = []
        self._answer = answer

    def session(self) -> Session:
        """A session that keeps."""
        return _Effect(self._keep)

    def _keep(self, mail: Outgoing) -> Answer:
        found = Answer("sent", "kept") if self._answer is None else self._answer(mail)
        if found.fate == "sent":
            self.sent.append(mail)
        return found


class _Effect:
    """A session around one function that has an effect from its first line on."""

    def __init__(self, effect: Callable[[Outgoing], Answer], on_error: Fate = "uncertain") -> None:
        self._effect = effect
        self._on_error = on_error

    def deliver(self, mail: Outgoing, gate: Gate) -> Delivery:
        """Pass the gate, then have the effect."""
        gate({})
        try:
            answer = self._effect(mail)
        except Exception as exc:  # noqa: BLE001 - what an unknown function raised says nothing about what it did
            answer = Answer(self._on_error, f"{type(exc).__name__}: {exc}")
        return Delivery(dict.fromkeys(mail.recipients, answer))

    def close(self) -> None:
        """Nothing is open."""
