"""The fault matrix in one process and without waiting: at each point of a hand-over another relay takes over.

For planted bugs: a run takes a second, where the matrix with real processes takes twenty.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping

from sqlalchemy import Engine, text

from adapters.email import Answer, Backoff, Delivery, Gate, MemoryTransport, Outbox, Outgoing, Relay, Session
from adapters.email._claim import Claim
from adapters.email._claims import claim_plan
from adapters.email._hold import Database
from scheduler.console.bench._fault_relay import POINTS
from scheduler.console.bench._faults import POLICIES, Cell, Policy, problems
from support.outbox import CounterLeases, mail, row

OUTBOX = Outbox(from_="sender@example.org")
PAST = "'2000-01-01 00:00:00.000000'"  # on SQLite
_numbers = itertools.count(1)


class Meeting:
    """A transport over a list, whose sessions do something at one point of the first hand-over."""

    name = "meeting://"

    def __init__(self, point: str, act: Callable[[], None], fate: Callable[[Outgoing], Mapping[str, Answer]]) -> None:
        self.sent: list[bytes] = []
        self._point = point
        self._act: Callable[[], None] | None = act
        self._fate = fate

    def session(self) -> Session:
        return self

    def reach(self, point: str) -> None:
        if point == self._point and self._act is not None:
            act, self._act = self._act, None
            act()

    def deliver(self, mail: Outgoing, gate: Gate) -> Delivery:
        self.reach("claimed")
        self.reach("rcpt")
        gate({})
        self.reach("dispatching")
        self.sent.append(mail.message)
        answers = self._fate(mail)
        self.reach("answered")
        return Delivery(answers)

    def close(self) -> None:
        pass


def taken(mail: Outgoing) -> Mapping[str, Answer]:
    return dict.fromkeys(mail.recipients, Answer("sent", "250"))


def lost(mail: Outgoing) -> Mapping[str, Answer]:
    return dict.fromkeys(mail.recipients, Answer("uncertain", "no answer came"))


def partly(mail: Outgoing) -> Mapping[str, Answer]:
    return {**taken(mail), mail.recipients[0]: Answer("deferred", "450 busy")}


def hand_over(engine: Engine, max_examples: int = 0, seed: int | None = None) -> tuple[str, int]:
    """A suite for planted bugs: what is wrong first, empty if nothing is, and after how many cases. On SQLite."""
    count = 0
    for case in _cases(engine):
        count += 1
        try:
            found = case()
        except AssertionError as error:
            found = str(error)
        with engine.begin() as tx:  # what a case left does not disturb the next one
            tx.execute(text("update fencing_outbox set state = 'cancelled', lease_until = null, lookup_at = null"))
        if found:
            return found, count
    return "", count


def _cases(engine: Engine) -> Iterator[Callable[[], str]]:
    yield lambda: _too_late_to_claim(engine)
    yield lambda: _lost_answer(engine)
    yield lambda: _one_refused(engine)
    for policy, point in itertools.product(POLICIES, POINTS):
        yield lambda policy=policy, point=point: _overtaken(engine, policy, point)
    for point in POINTS[:-1]:
        yield lambda point=point: _while_another_holds_it(engine, point)


def _put(engine: Engine, policy: Policy, **more: object) -> str:
    key = f"k{next(_numbers)}"
    with engine.begin() as tx:
        OUTBOX.put(tx, mail(1, **more), key=key, policy=policy)
    return key


def _relay(engine: Engine, transport: object) -> Relay:
    return Relay(engine, transport, leases=CounterLeases(engine), backoff=Backoff(0.001, 0.0))  # type: ignore[arg-type]


def _until_settled(engine: Engine, key: str, relay: Relay) -> None:
    for _ in range(100):
        if row(engine, key)["state"] in ("sent", "failed", "uncertain"):
            return
        relay.run_once()
        time.sleep(0.002)
    raise AssertionError(f"{key} does not come to an end: it is {row(engine, key)['state']}")


def _end_lease(engine: Engine) -> None:
    with engine.begin() as tx:
        tx.execute(text(f"update fencing_outbox set lease_until = {PAST} where lease_until is not null"))


def _overtaken(engine: Engine, policy: Policy, point: str) -> str:
    """Its lease ends at the point, another relay does all that it can, and the first one goes on."""
    key = _put(engine, policy)
    others = MemoryTransport()

    def meanwhile() -> None:
        _end_lease(engine)
        _until_settled(engine, key, _relay(engine, others))

    transport = Meeting(point, meanwhile, taken)
    _relay(engine, transport).run_once()
    before = row(engine, key)
    _until_settled(engine, key, _relay(engine, others))
    after = row(engine, key)
    with engine.connect() as tx:
        frozen = OUTBOX.message(tx, key)
    copies = [*transport.sent, *(one.message for one in others.sent)]
    kept = before["state"] != "sent" or (after["state"], after["dispatch"]) == ("sent", before["dispatch"])
    identical = all(copy == frozen for copy in copies)
    return "; ".join(problems([Cell(point, "stop", policy, len(copies), after["state"], identical, kept)]))


def _while_another_holds_it(engine: Engine, point: str) -> str:
    """The other relay has only just claimed it when the first one goes on."""
    key = _put(engine, "resend")
    held: dict[str, object] = {}

    def meanwhile() -> None:
        _end_lease(engine)
        claim = Claim("another", CounterLeases(engine).token(), 60.0)
        for _ in range(200):
            if Database(engine).run(lambda dialect: claim_plan(claim, 20, 60, dialect)).rows:
                break
        held.update(row(engine, key))

    transport = Meeting(point, meanwhile, taken)
    _relay(engine, transport).run_once()
    if point in ("claimed", "rcpt") and transport.sent:
        return f"overtaken at {point}, it sent all the same"
    after = row(engine, key)
    if (after["state"], after["token"], after["lease_until"]) != (held["state"], held["token"], held["lease_until"]):
        return f"overtaken at {point}, it changed what another holds: {after['state']} under {after['token']}"
    return ""


def _too_late_to_claim(engine: Engine) -> str:
    """A relay draws its token, sleeps, and claims after another one has had the message."""
    key = _put(engine, "hold")
    old = CounterLeases(engine).token()
    transport = Meeting("", lambda: None, lambda mail: dict.fromkeys(mail.recipients, Answer("deferred", "451")))
    _relay(engine, transport).run_once()
    with engine.begin() as tx:
        tx.execute(text(f"update fencing_outbox set due_at = {PAST} where key = :key"), {"key": key})
    batch = Database(engine).run(lambda dialect: claim_plan(Claim("late", old, 60.0), 20, 60, dialect))
    return "a message was claimed under an older token than it had seen" if batch.rows else ""


def _lost_answer(engine: Engine) -> str:
    key = _put(engine, "hold")
    transport = Meeting("", lambda: None, lost)
    relay = _relay(engine, transport)
    for _ in range(3):
        relay.run_once()
        time.sleep(0.002)
    state = row(engine, key)["state"]
    ok = len(transport.sent) == 1 and state == "uncertain"
    return "" if ok else f"after a lost answer it is {state}, and was handed over {len(transport.sent)} times"


def _one_refused(engine: Engine) -> str:
    key = _put(engine, "hold", to=["ann@example.org", "bob@example.org"])
    _relay(engine, Meeting("", lambda: None, partly)).run_once()
    state = row(engine, key)["state"]
    return "" if state == "pending" else f"one recipient was told to wait, and the message is {state}"
