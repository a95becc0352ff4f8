"""The contract of transports against those that there are, each with a real other side."""

import io
import json
from collections import deque
from collections.abc import Iterator
from email.message import EmailMessage
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from support.mail_provider import Fault, MailProvider

from adapters.email import (
    CallableTransport,
    ConsoleTransport,
    FileTransport,
    HttpTransport,
    MemoryTransport,
    SmtpTransport,
    Transport,
    generic,
)
from adapters.email._redirect import RedirectTransport
from adapters.email.testing import (
    Behaviour,
    Drop,
    Exchange,
    HangUpAtDot,
    Hook,
    RefuseContent,
    RefuseRecipient,
    TransportContract,
    TransportSystem,
)
from adapters.email.testing._contract import READERS
from scheduler.console.embedded import SmtpSink


def break_after_data(exchange: Exchange) -> Drop | None:
    return Drop("354 go ahead") if exchange.phase == "data" else None


FAULTS: dict[Behaviour, Hook | None] = {
    Behaviour.TAKES: None,
    Behaviour.REFUSES_FOR_NOW: RefuseContent("451 4.3.0 not now"),
    Behaviour.REFUSES_FOR_GOOD: RefuseContent("552 5.3.4 too big"),
    Behaviour.REFUSES_ONE: RefuseRecipient(READERS[0]),
    Behaviour.LOSES_THE_ANSWER: HangUpAtDot(taken=True),
    Behaviour.BREAKS: break_after_data,
}


class SmtpSystem(TransportSystem):
    name = "SMTP"
    behaviours = frozenset(Behaviour)

    def __init__(self, sink: SmtpSink) -> None:
        self.sink = sink

    def transport(self) -> Transport:
        return SmtpTransport(self.sink.host, self.sink.port, local_hostname="relay.test", timeout=60, final_timeout=60)

    def behave(self, behaviour: Behaviour) -> None:
        if behaviour is Behaviour.ABSENT:
            self.sink.stop()
            return
        if self.sink._thread is None:
            self.sink.start()
        fault = FAULTS[behaviour]
        self.sink.faults[:] = [fault] if fault else []

    def received(self) -> list[bytes]:
        return [message.data for message in self.sink.received]


class TestSmtp(TransportContract):
    @pytest.fixture
    def system(self, smtp_sink: SmtpSink) -> Iterator[TransportSystem]:
        yield SmtpSystem(smtp_sink)


class HttpSystem(TransportSystem):
    name = "an HTTP provider"
    behaviours = frozenset(Behaviour) - {Behaviour.REFUSES_ONE}
    unchanged = False

    def __init__(self, provider: MailProvider) -> None:
        self.provider = provider

    def transport(self) -> Transport:
        return HttpTransport(generic("test", self.provider.url, window=1800, headers={}), timeout=60)

    def behave(self, behaviour: Behaviour) -> None:
        server = self.provider._server
        if behaviour is Behaviour.ABSENT:
            server.shutdown()
            server.server_close()
            return
        if server.fileno() < 0:
            self.provider._server = server = ThreadingHTTPServer(server.server_address[:2], server.RequestHandlerClass)  # type: ignore[arg-type]
            Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        faults: dict[Behaviour, Fault] = {
            Behaviour.REFUSES_FOR_NOW: (429, {"message": "slow down"}, {}),
            Behaviour.REFUSES_FOR_GOOD: (400, {"message": "no such address"}, {}),
            Behaviour.LOSES_THE_ANSWER: "accept and drop",
            Behaviour.BREAKS: "drop",
        }
        self.provider.faults = deque([faults[behaviour]] * 10 if behaviour in faults else [])

    def received(self) -> list[bytes]:
        return [body["subject"].encode() for body in self.provider.accepted]


class TestHttp(TransportContract):
    @pytest.fixture
    def system(self) -> Iterator[TransportSystem]:
        with MailProvider() as provider:
            yield HttpSystem(provider)


class RefusedError(Exception):
    """The function's own word for: nothing left."""


class FunctionSystem(TransportSystem):
    name = "a function"
    behaviours = frozenset(
        {Behaviour.TAKES, Behaviour.REFUSES_FOR_NOW, Behaviour.REFUSES_FOR_GOOD, Behaviour.LOSES_THE_ANSWER}
    )
    unchanged = False

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.behaviour = Behaviour.TAKES

    def transport(self) -> Transport:
        return CallableTransport(self._send, deferred=(RefusedError,), rejected=(ValueError,))

    def _send(self, message: EmailMessage, mail_from: str, recipients: tuple[str, ...]) -> None:
        if self.behaviour is Behaviour.REFUSES_FOR_NOW:
            raise RefusedError("not now")
        if self.behaviour is Behaviour.REFUSES_FOR_GOOD:
            raise ValueError("no such address")
        self.taken.append(message["Subject"].encode())
        if self.behaviour is Behaviour.LOSES_THE_ANSWER:
            raise ConnectionResetError("the connection is gone")

    def behave(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour

    def received(self) -> list[bytes]:
        return self.taken


class TestFunction(TransportContract):
    @pytest.fixture
    def system(self) -> TransportSystem:
        return FunctionSystem()


class LocalSystem(TransportSystem):
    """One that nothing refuses: files, memory, the console."""

    behaviours = frozenset({Behaviour.TAKES})

    def __init__(self, name: str, place: Path) -> None:
        self.name = name
        self.unchanged = name in ("files", "memory")
        self.memory = MemoryTransport()
        self.stream = io.StringIO()
        self.place = place

    def transport(self) -> Transport:
        made: dict[str, Any] = {
            "files": FileTransport(self.place),
            "memory": self.memory,
            "console": ConsoleTransport(self.stream),
            "redirected": RedirectTransport(self.memory, "qa@example.org"),
        }
        transport: Transport = made[self.name]
        return transport

    def behave(self, behaviour: Behaviour) -> None:
        assert behaviour is Behaviour.TAKES

    def received(self) -> list[bytes]:
        if self.name == "files":
            for envelope in self.place.glob("*.json"):
                assert json.loads(envelope.read_bytes())["recipients"]
            return [path.read_bytes() for path in sorted(self.place.glob("*.eml"))]
        if self.name == "memory":
            return [mail.message for mail in self.memory.sent]
        lines = [line for mail in self.memory.sent for line in mail.message.decode().splitlines()]
        lines += self.stream.getvalue().splitlines()
        return [line.removeprefix("Subject: ").encode() for line in lines if line.startswith("Subject: ")]


class TestLocal(TransportContract):
    @pytest.fixture(params=["files", "memory", "console", "redirected"])
    def system(self, request: pytest.FixtureRequest, tmp_path: Path) -> TransportSystem:
        return LocalSystem(request.param, tmp_path)
