"""A real SMTP server that keeps what it is given, and whose answers a test can script."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from adapters.email.testing._script import Answer, Exchange, Hook, Phase, Received


@dataclass
class SmtpSink:
    """An SMTP server in this process, on a thread and an event loop of its own, on 127.0.0.1.

    Each hook is called for its phase, on a thread of its own, so that it may block. It returns the reply to send
    (``"450 4.7.1 later"``), ``None`` for the usual one, or a ``Drop``. Hooks may be set and changed at any time.
    ``faults`` are hooks that are asked in every phase, in order, where the phase's own hook has no answer: the first
    answer counts. ``size_limit`` is the number of bytes announced as SIZE; ``smtputf8`` says whether SMTPUTF8 is
    offered. ``received`` grows with every accepted message. Port 0 means: any.
    """

    on_mail: Hook | None = None
    on_rcpt: Hook | None = None
    on_data: Hook | None = None  # the command DATA, before the payload
    on_message: Hook | None = None  # the final dot
    size_limit: int = 32 * 2**20
    smtputf8: bool = True
    host: str = "127.0.0.1"
    port: int = 0
    received: list[Received] = field(default_factory=list)
    faults: list[Hook] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._arrived = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Starts to listen; ``port`` is the real one when this returns, and stays over ``stop()`` and ``start()``.

        Raises ``ModuleNotFoundError`` without aiosmtpd, ``OSError`` for a port that is taken.
        """
        if self._thread is not None:
            raise RuntimeError(f"this SMTP server is running already, on port {self.port}")
        if importlib.util.find_spec("aiosmtpd") is None:
            raise ModuleNotFoundError(
                "the SMTP server is not here: the package aiosmtpd is not installed. "
                "Install it with pip install 'fencing-toolkit[testing]'",
                name="aiosmtpd",
            )
        loop = asyncio.new_event_loop()
        try:
            # Before the thread runs the loop: a taken port is an error of this call.
            server = loop.run_until_complete(self._listen(loop))
        except OSError as error:
            loop.close()
            raise OSError(f"no SMTP server on {self.host}:{self.port}: {error}") from error
        self.port = server.sockets[0].getsockname()[1]
        self._loop = loop
        self._thread = threading.Thread(target=_serve, args=(loop, server), name="smtp-sink", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends every connection and the thread. A hook that still blocks is left behind, its answer unused."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop = self._thread = None

    @contextmanager
    def failing(self, *faults: Hook) -> Iterator[None]:
        """With these faults for the length of the block."""
        self.faults.extend(faults)
        try:
            yield
        finally:
            for fault in faults:
                self.faults.remove(fault)

    def wait_for(self, count: int, timeout: float = 60) -> list[Received]:
        """What was received, once it is at least ``count`` messages; ``TimeoutError`` after ``timeout`` seconds."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.received) >= count, timeout):
                raise TimeoutError(f"{len(self.received)} of {count} messages arrived within {timeout:g} s")
            return list(self.received)

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> asyncio.Server:
        from adapters.email.testing._session import Session  # needs the extra

        return await loop.create_server(
            lambda: Session(self._hook, self._keep, size_limit=self.size_limit, smtputf8=self.smtputf8, loop=loop),
            self.host,
            self.port,
        )

    def _hook(self, phase: Phase) -> Hook | None:
        own = {"mail": self.on_mail, "rcpt": self.on_rcpt, "data": self.on_data, "message": self.on_message}[phase]
        hooks = [hook for hook in (own, *self.faults) if hook is not None]
        if len(hooks) < 2:
            return hooks[0] if hooks else None

        def first_answer(exchange: Exchange) -> Answer:
            answers = (hook(exchange) for hook in hooks)
            return next((answer for answer in answers if answer is not None), None)

        return first_answer

    def _keep(self, message: Received) -> None:
        with self._arrived:
            self.received.append(message)
            self._arrived.notify_all()


def _serve(loop: asyncio.AbstractEventLoop, server: asyncio.Server) -> None:
    loop.run_forever()  # until stop()
    server.close()
    loop.run_until_complete(_hang_up())
    loop.close()


async def _hang_up() -> None:
    sessions = asyncio.all_tasks() - {asyncio.current_task()}
    for session in sessions:
        session.cancel()  # aiosmtpd closes the connection of a cancelled session
    await asyncio.gather(*sessions, return_exceptions=True)
    await asyncio.sleep(0)  # a closed transport tells its protocol in the next round
