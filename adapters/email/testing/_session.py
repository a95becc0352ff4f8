"""One SMTP connection of the sink: aiosmtpd's protocol, with the script's answers in it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

from aiosmtpd.smtp import SMTP, Envelope

from adapters.email.testing._script import Answer, Drop, Exchange, Hook, Phase, Received


class Session(SMTP):
    """One connection. ``script`` gives the hook of a phase at that moment, ``keep`` takes what is accepted."""

    def __init__(
        self,
        script: Callable[[Phase], Hook | None],
        keep: Callable[[Received], None],
        *,
        size_limit: int,
        smtputf8: bool,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._script = script
        self._keep = keep
        self._taken = 0
        super().__init__(
            self,  # it is its own handler: the handle_... methods below
            data_size_limit=size_limit,
            enable_SMTPUTF8=smtputf8,
            hostname="localhost",  # not getfqdn(), which may wait for a name server
            loop=loop,
        )

    async def handle_MAIL(
        self, server: SMTP, session: Any, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """Answers MAIL FROM."""
        reply = await self._reply(Exchange("mail", address, taken=self._taken), "250 OK")
        if reply.startswith("2"):
            envelope.mail_from = address
            envelope.mail_options.extend(options)
        return reply

    async def handle_RCPT(
        self, server: SMTP, session: Any, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        """Answers RCPT TO."""
        so_far = Exchange("rcpt", envelope.mail_from or "", tuple(envelope.rcpt_tos), rcpt=address, taken=self._taken)
        reply = await self._reply(so_far, "250 OK")
        if reply.startswith("2"):
            envelope.rcpt_tos.append(address)
            envelope.rcpt_options.extend(options)
        return reply

    async def smtp_DATA(self, arg: str) -> None:
        """Answers the command DATA; aiosmtpd goes on from there when the answer is the usual one."""
        assert self.envelope is not None
        if self.envelope.rcpt_tos:
            recipients = tuple(self.envelope.rcpt_tos)
            so_far = Exchange("data", self.envelope.mail_from or "", recipients, taken=self._taken)
            reply = await self._reply(so_far, "354")
            if not reply.startswith("3"):
                await self.push(reply)
                return
        await super().smtp_DATA(arg)

    async def handle_DATA(self, server: SMTP, session: Any, envelope: Envelope) -> str:
        """Answers the final dot. The decision stands also when the client is gone before it is made."""
        content = envelope.original_content or b""
        recipients = tuple(envelope.rcpt_tos)
        exchange = Exchange("message", envelope.mail_from or "", recipients, data=content, taken=self._taken)
        answer = await asyncio.shield(asyncio.ensure_future(self._decide(exchange)))
        return await self._speak(answer, "250 OK")

    async def handle_exception(self, error: Exception) -> str:
        """What the client is told when a hook fails: so the test that wrote the hook sees why."""
        return f"500 5.3.0 {type(error).__name__}: {' '.join(str(error).split())}"

    async def _decide(self, exchange: Exchange) -> Answer:
        answer = await _ask(self._script(exchange.phase), exchange)
        reply = answer.reply or "" if isinstance(answer, Drop) else answer or "250"
        accepted = answer.accepted if isinstance(answer, Drop) and answer.accepted is not None else reply[:1] == "2"
        if accepted:
            self._taken += 1
            self._keep(Received(exchange.mail_from, exchange.rcpt_tos, exchange.data))
        return answer

    async def _reply(self, exchange: Exchange, usual: str) -> str:
        return await self._speak(await _ask(self._script(exchange.phase), exchange), usual)

    async def _speak(self, answer: Answer, usual: str) -> str:
        """The reply for aiosmtpd to send; after a ``Drop`` it never returns."""
        if not isinstance(answer, Drop):
            return answer or usual
        if answer.reply is not None:
            await self.push(answer.reply)
        if self.transport is not None:
            self.transport.close()  # after what is still to be written
        await asyncio.Event().wait()  # until the lost connection cancels this coroutine
        raise AssertionError("unreachable")


async def _ask(hook: Hook | None, exchange: Exchange) -> Answer:
    """Calls a hook on a daemon thread: a pool's threads would be waited for when the process ends."""
    if hook is None:
        return None
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Answer] = loop.create_future()

    def settle(answer: Answer, error: Exception | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(answer)
        else:
            future.set_exception(error)

    def call() -> None:
        answer: Answer = None
        failure: Exception | None = None
        try:
            answer = hook(exchange)
        except Exception as error:  # noqa: BLE001 (raised where it is awaited: the client is answered with 500)
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the sink was stopped meanwhile
            loop.call_soon_threadsafe(settle, answer, failure)

    threading.Thread(target=call, name=f"smtp-{exchange.phase}", daemon=True).start()
    return await future
