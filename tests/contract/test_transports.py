"""The contract of transports against those that there are, each with a real other side."""

from collections.abc import Iterator

import pytest

from adapters.email import SmtpTransport, Transport
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
        return SmtpTransport(self.sink.host, self.sink.port, local_hostname="relay.test", timeout=20, final_timeout=20)

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
