"""`TransportContract`: what the relay counts on from every transport, one example and one sentence each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import pytest

from adapters.email._transport import Answer, Delivery, GateClosed, Outgoing, Session, TransportUnavailable
from adapters.email.testing._system import Behaviour, TransportSystem

Test = TypeVar("Test", bound=Callable[..., Any])

SENDER = "sender@example.org"
READERS = ("ann@example.org", "bob@example.org")


def needs(*behaviours: Behaviour) -> Callable[[Test], Test]:
    """Mark an example that is left out where the other side cannot be made to do this."""

    def mark(test: Test) -> Test:
        test.__dict__["needs"] = behaviours
        return test

    return mark


def message(number: int) -> bytes:
    """Bytes that a careless transport changes: lines of dots, empty ones, spaces at an end, a long one."""
    head = f"Message-ID: <{number}@example.org>\r\nFrom: {SENDER}\r\nTo: {READERS[0]}\r\nSubject: {number}\r\n\r\n"
    return f"{head}.\r\n..\r\n\r\nFrom here on \r\n{'x' * 900}\r\n\r\n".encode()


class Hand:
    """A session, and a gate that remembers how it was asked."""

    def __init__(self, system: TransportSystem, session: Session) -> None:
        self.system = system
        self.session = session
        self.asked: list[tuple[dict[str, Answer], int]] = []
        self.shut: BaseException | None = None

    def gate(self, refused: Mapping[str, Answer]) -> None:
        """Let it pass, or raise."""
        self.asked.append((dict(refused), len(self.system.received())))
        if self.shut is not None:
            raise self.shut

    def deliver(self, number: int = 1, recipients: tuple[str, ...] = READERS) -> Delivery:
        """Hand one message over."""
        mail = Outgoing(mail_from=SENDER, recipients=recipients, message=message(number), key=f"{number:064x}")
        delivery = self.session.deliver(mail, self.gate)
        assert set(delivery.answers) == set(recipients), "each recipient has an answer, and nobody else has one"
        return delivery

    def arrived(self, *numbers: int) -> bool:
        """Whether the other side has taken these messages, in this order, and no others."""
        expected = [message(number) if self.system.unchanged else str(number).encode() for number in numbers]
        found = self.system.received()
        assert found == expected, f"the other side has taken {found}, where it should have {expected}"
        return True


def fates(delivery: Delivery) -> set[str]:
    """What became of the recipients."""
    return {answer.fate for answer in delivery.answers.values()}


class TransportContract:
    """Example tests for a transport.

    Subclass it under a name that pytest collects, and give it a fixture ``system`` that makes your
    :class:`TransportSystem`, anew for each example::

        class TestMyTransport(TransportContract):
            @pytest.fixture
            def system(self):
                with MyServer() as server:
                    yield MySystem(server)

    An example that needs what the other side cannot be made to do is skipped, and says so.
    """

    @pytest.fixture
    def hand(self, request: pytest.FixtureRequest, system: TransportSystem) -> Iterator[Hand]:
        """One session."""
        lacking = [one.value for one in request.function.__dict__.get("needs", ()) if one not in system.behaviours]
        if lacking:
            pytest.skip(f"the other side of {system.name} is never like this: {'; '.join(lacking)}")
        session = system.transport().session()
        yield Hand(system, session)
        session.close()

    def test_it_has_a_name_for_people(self, system: TransportSystem) -> None:
        """One line, which is written into the audit and shown by every tool."""
        name = system.transport().name
        assert isinstance(name, str)
        assert name.strip() == name != ""
        assert "\n" not in name

    def test_a_session_that_was_not_used_can_be_closed_and_used_again(self, hand: Hand) -> None:
        """Closing is a goodbye, not an end."""
        hand.session.close()
        hand.session.close()
        assert fates(hand.deliver()) == {"sent"}
        hand.session.close()
        assert fates(hand.deliver(2)) == {"sent"}

    def test_what_is_taken_is_sent_once_and_unchanged(self, hand: Hand) -> None:
        """Each recipient's answer is ``sent``, and what arrives is what was handed over."""
        delivery = hand.deliver()
        assert fates(delivery) == {"sent"}
        assert hand.arrived(1)

    def test_the_gate_is_asked_once_before_anything_leaves(self, hand: Hand) -> None:
        """Behind the gate a message may be out; before it, nothing is."""
        hand.deliver()
        assert hand.asked == [({}, 0)]

    def test_behind_a_closed_gate_nothing_leaves(self, hand: Hand) -> None:
        """``GateClosed`` comes out as it is, and the session is good for the next message."""
        hand.shut = GateClosed("taken over")
        with pytest.raises(GateClosed) as caught:
            hand.deliver(1)
        assert caught.value is hand.shut
        assert hand.arrived()
        hand.shut = None
        assert fates(hand.deliver(2)) == {"sent"}
        assert hand.arrived(2)

    def test_a_gate_that_fails_is_a_closed_one(self, hand: Hand) -> None:
        """Whatever it raises comes out, and nothing leaves."""
        hand.shut = RuntimeError("the database is away")
        with pytest.raises(RuntimeError, match="the database is away"):
            hand.deliver(1)
        assert hand.arrived()
        hand.shut = None
        assert fates(hand.deliver(2)) == {"sent"}

    def test_one_session_carries_one_message_after_the_other(self, hand: Hand) -> None:
        """Each once, in order, to its own recipients."""
        for number in range(3):
            assert fates(hand.deliver(number, (READERS[number % 2],))) == {"sent"}
        assert hand.arrived(0, 1, 2)

    @needs(Behaviour.REFUSES_FOR_NOW)
    def test_a_refusal_for_now_is_deferred(self, hand: Hand) -> None:
        """Nothing was taken, the same message may be tried again, and the next one is not touched by it."""
        hand.system.behave(Behaviour.REFUSES_FOR_NOW)
        delivery = hand.deliver(1)
        assert fates(delivery) == {"deferred"}
        assert all(answer.reply for answer in delivery.answers.values()), "people are told in whose words"
        assert hand.arrived()
        hand.system.behave(Behaviour.TAKES)
        assert fates(hand.deliver(2)) == {"sent"}
        assert fates(hand.deliver(1)) == {"sent"}
        assert hand.arrived(2, 1)

    @needs(Behaviour.REFUSES_FOR_GOOD)
    def test_a_refusal_for_good_is_rejected(self, hand: Hand) -> None:
        """It is not tried again, and the next message is not touched by it."""
        hand.system.behave(Behaviour.REFUSES_FOR_GOOD)
        delivery = hand.deliver(1)
        assert fates(delivery) == {"rejected"}
        assert all(answer.reply for answer in delivery.answers.values()), "people are told in whose words"
        assert hand.arrived()
        hand.system.behave(Behaviour.TAKES)
        assert fates(hand.deliver(2)) == {"sent"}

    @needs(Behaviour.REFUSES_ONE)
    def test_a_refused_recipient_keeps_the_message_from_nobody_else(self, hand: Hand) -> None:
        """The others have it, and the gate was told of the refusal, so that it is written down before the content."""
        hand.system.behave(Behaviour.REFUSES_ONE)
        delivery = hand.deliver()
        assert {address: answer.fate for address, answer in delivery.answers.items()} == {
            READERS[0]: "deferred",
            READERS[1]: "sent",
        }
        assert hand.arrived(1)
        [(told, before)] = hand.asked
        assert before == 0
        assert {address: answer.fate for address, answer in told.items()} == {READERS[0]: "deferred"}

    @needs(Behaviour.LOSES_THE_ANSWER)
    def test_an_answer_that_was_lost_is_uncertain(self, hand: Hand) -> None:
        """Never a guess: neither sent nor deferred. The session finds its way back to the next message."""
        hand.system.behave(Behaviour.LOSES_THE_ANSWER)
        assert fates(hand.deliver(1)) == {"uncertain"}
        hand.system.behave(Behaviour.TAKES)
        assert fates(hand.deliver(2)) == {"sent"}
        assert hand.arrived(1, 2)

    @needs(Behaviour.BREAKS)
    def test_a_connection_that_breaks_before_the_message_is_complete_claims_nothing(self, hand: Hand) -> None:
        """``deferred`` if the transport knows that nothing can have been taken, else ``uncertain``; never ``sent``."""
        hand.system.behave(Behaviour.BREAKS)
        assert fates(hand.deliver(1)) <= {"deferred", "uncertain"}
        hand.system.behave(Behaviour.TAKES)
        assert fates(hand.deliver(2)) == {"sent"}
        assert hand.arrived(2)

    @needs(Behaviour.ABSENT)
    def test_an_absent_server_is_no_fault_of_the_message(self, hand: Hand) -> None:
        """``TransportUnavailable``, or an answer that costs no attempt: the relay waits for the server."""
        hand.system.behave(Behaviour.ABSENT)
        try:
            delivery = hand.deliver(1)
        except TransportUnavailable as unavailable:
            assert str(unavailable)
        else:
            assert delivery.free
            assert fates(delivery) == {"deferred"}
        assert hand.arrived()
        hand.system.behave(Behaviour.TAKES)
        assert fates(hand.deliver(2)) == {"sent"}
