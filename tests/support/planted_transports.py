"""A sound transport over a list, and the same with one small fault each: the contract has to notice every one."""

import contextlib
from collections.abc import Callable, Mapping

import pytest

from adapters.email import Answer, Delivery, Gate, GateClosed, Outgoing, Session, Transport, TransportUnavailable
from adapters.email.testing import Behaviour, TransportContract, TransportSystem
from adapters.email.testing._contract import Hand


class ListSystem(TransportSystem):
    """The other side is a list, and does as it is told."""

    name = "a list"
    behaviours = frozenset(Behaviour)

    def __init__(self, session: "Callable[[ListSystem], Session]") -> None:
        self.taken: list[bytes] = []
        self.behaviour = Behaviour.TAKES
        self._session = session

    def transport(self) -> Transport:
        system = self

        class ListTransport:
            name = "list://"

            def session(self) -> Session:
                return system._session(system)

        return ListTransport()

    def behave(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour

    def received(self) -> list[bytes]:
        return list(self.taken)


class ListSession:
    """The sound one, in the steps that the broken ones change."""

    def __init__(self, system: ListSystem) -> None:
        self.system = system

    def deliver(self, mail: Outgoing, gate: Gate) -> Delivery:
        """Prepare, ask the gate, hand over."""
        behaviour = self.system.behaviour
        if behaviour is Behaviour.ABSENT:
            return self.absent(mail)
        refused = {mail.recipients[0]: self.one_refused()} if behaviour is Behaviour.REFUSES_ONE else {}
        self.pass_gate(gate, refused)
        if behaviour is Behaviour.REFUSES_FOR_NOW:
            return self.all(mail, self.for_now())
        if behaviour is Behaviour.REFUSES_FOR_GOOD:
            return self.all(mail, self.for_good())
        if behaviour is Behaviour.BREAKS:
            return self.all(mail, self.broken())
        self.system.taken.append(self.content(mail))
        if behaviour is Behaviour.LOSES_THE_ANSWER:
            return self.all(mail, self.lost())
        return self.some(mail, refused)

    def close(self) -> None:
        """Nothing is open."""

    def absent(self, mail: Outgoing) -> Delivery:
        raise TransportUnavailable("nobody listens")

    def pass_gate(self, gate: Gate, refused: Mapping[str, Answer]) -> None:
        gate(refused)

    def content(self, mail: Outgoing) -> bytes:
        return mail.message

    def all(self, mail: Outgoing, answer: Answer) -> Delivery:
        return Delivery(dict.fromkeys(mail.recipients, answer))

    def some(self, mail: Outgoing, refused: Mapping[str, Answer]) -> Delivery:
        return Delivery({**dict.fromkeys(mail.recipients, Answer("sent", "250")), **refused})

    def one_refused(self) -> Answer:
        return Answer("deferred", "450 busy")

    def for_now(self) -> Answer:
        return Answer("deferred", "451 not now")

    def for_good(self) -> Answer:
        return Answer("rejected", "550 no")

    def broken(self) -> Answer:
        return Answer("deferred", "the connection broke")

    def lost(self) -> Answer:
        return Answer("uncertain", "no answer came")


class AsksTheGateAfterwards(ListSession):
    def deliver(self, mail: Outgoing, gate: Gate) -> Delivery:
        delivery = super().deliver(mail, lambda _: None)
        gate({})
        return delivery


class AsksNoGate(ListSession):
    def pass_gate(self, gate: Gate, refused: Mapping[str, Answer]) -> None:
        pass


class AsksTwice(ListSession):
    def pass_gate(self, gate: Gate, refused: Mapping[str, Answer]) -> None:
        gate(refused)
        gate(refused)


class PassesAClosedGate(ListSession):
    def pass_gate(self, gate: Gate, refused: Mapping[str, Answer]) -> None:
        with contextlib.suppress(GateClosed):
            gate(refused)


class KeepsRefusalsFromTheGate(ListSession):
    def pass_gate(self, gate: Gate, refused: Mapping[str, Answer]) -> None:
        gate({})


class StaysShut(ListSession):
    """After a gate that was closed the envelope is still open, and the next message goes nowhere."""

    shut = False

    def deliver(self, mail: Outgoing, gate: Gate) -> Delivery:
        if self.shut:
            return self.all(mail, Answer("deferred", "503 nested MAIL command"))
        self.shut = True
        delivery = super().deliver(mail, gate)
        self.shut = False
        return delivery


class TakesALostAnswerForARefusal(ListSession):
    def lost(self) -> Answer:
        return Answer("deferred", "timed out")


class TakesALostAnswerForSuccess(ListSession):
    def lost(self) -> Answer:
        return Answer("sent", "it will have arrived")


class GivesUpAtOnce(ListSession):
    def for_now(self) -> Answer:
        return Answer("rejected", "451 not now")


class NeverGivesUp(ListSession):
    def for_good(self) -> Answer:
        return Answer("deferred", "550 no")


class SaysNothingOfTheRefused(ListSession):
    def some(self, mail: Outgoing, refused: Mapping[str, Answer]) -> Delivery:
        return Delivery({address: Answer("sent", "250") for address in mail.recipients if address not in refused})


class CountsTheRefusedAsSent(ListSession):
    def some(self, mail: Outgoing, refused: Mapping[str, Answer]) -> Delivery:
        return self.all(mail, Answer("sent", "250"))


class RewritesTheContent(ListSession):
    def content(self, mail: Outgoing) -> bytes:
        return mail.message.replace(b"\r\n.", b"\r\n")


class BlamesTheMessage(ListSession):
    def absent(self, mail: Outgoing) -> Delivery:
        return self.all(mail, Answer("deferred", "nobody listens"))


class ForgetsWhatItWasTold(ListSession):
    def for_good(self) -> Answer:
        return Answer("rejected", "")


class IsOverWhenClosed(ListSession):
    closed = False

    def close(self) -> None:
        self.closed = True

    def deliver(self, mail: Outgoing, gate: Gate) -> Delivery:
        if self.closed:
            return self.all(mail, Answer("deferred", "the session is closed"))
        return super().deliver(mail, gate)


NOT_SEEN = "no report known"
BUGS: dict[str, tuple[str, type[ListSession]]] = {
    "the gate is asked afterwards": ("wolverine #585, evc-team-relay #115", AsksTheGateAfterwards),
    "no gate": ("django-post_office (measured)", AsksNoGate),
    "the gate is asked twice": (NOT_SEEN, AsksTwice),
    "a closed gate is passed": ("marin #8107", PassesAClosedGate),
    "refusals are kept from the gate": (NOT_SEEN, KeepsRefusalsFromTheGate),
    "the envelope stays open": ("boulder #3191, swiftmailer #1265", StaysShut),
    "a lost answer is a refusal": ("freescout #5457", TakesALostAnswerForARefusal),
    "a lost answer is success": ("mailpile #735", TakesALostAnswerForSuccess),
    "4xx is permanent": ("zope.sendmail (measured)", GivesUpAtOnce),
    "5xx is tried again": ("django-mailer (measured)", NeverGivesUp),
    "the refused are not told of": ("django-mailer (measured)", SaysNothingOfTheRefused),
    "the refused count as sent": ("courier #62, repoze.sendmail #48", CountsTheRefusedAsSent),
    "the content is rewritten": ("sendemail #9", RewritesTheContent),
    "an absent server costs an attempt": ("civicrm-core #11840", BlamesTheMessage),
    "the server's words are lost": ("fluent-smtp #248, smtp-connection #28", ForgetsWhatItWasTold),
    "closed for ever": ("lettre #743", IsOverWhenClosed),
}


def failing(session: type[ListSession]) -> list[str]:
    """The examples of the contract that fail, by name."""
    found = []
    for name, example in vars(TransportContract).items():
        if not name.startswith("test_"):
            continue
        system = ListSystem(session)
        try:
            if "hand" in example.__code__.co_varnames:
                example(TransportContract(), Hand(system, system.transport().session()))
            else:
                example(TransportContract(), system)
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - an assertion, or what the transport raised
            found.append(name)
    return found
