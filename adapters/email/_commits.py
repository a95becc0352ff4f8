"""Group commit: what several connections have to write at one moment goes into one transaction.

Each message still commits `dispatching` under its token before its content, and how it ended after it. But while one
commit waits for the disk, the words of the other connections collect, and the next commit takes all of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError

from adapters._tx import Plan, Statement
from adapters.email._claim import Claim
from adapters.email._hold import Database
from adapters.email._outcome import Settlement
from adapters.email._settle import Gated, Settled, Through, dispatch_plan, group_plan, is_plain, sent_plan, settle_plan
from adapters.email._transport import Answer
from fencing._lease import lease_clock
from fencing.errors import OutcomeUnknownError

_log = logging.getLogger(__name__)

_LINGER = 0.05
"""Seconds for which a known end waits for the next commit that is made anyway, before it gets one of its own."""

_GATHER = 0.002
"""Seconds for which a hand-over waits for the other connections that are at work, to commit with them."""

_SETTLE_FOR = 600.0
"""Seconds for which a running relay offers a known result to a database that does not answer. Nobody can take the row
over in that time either."""


_LOCKED_MS = 1000
"""Milliseconds to wait for a row that somebody's open transaction has. The others wait meanwhile."""

_AGAIN = (0.1, 5.0)
"""Seconds until what could not be written is offered again: at first, and at most."""


class _Claimed(Protocol):
    claim: Claim


T = TypeVar("T", bound=_Claimed)


class _Gate:
    """A hand-over that waits for its commit, on a lock of its own: who commits wakes those whose commit it was.

    ``leads``: it commits for all, or is about to.
    """

    def __init__(self, claim: Claim, number: int, refused: Mapping[str, Answer]) -> None:
        self.claim = claim
        self.number = number
        self.refused = refused
        self.answer: Gated | None = None
        self.error: Exception | None = None
        self.leads = False
        self._woken = threading.Lock()
        self._woken.acquire()

    @property
    def decided(self) -> bool:
        """Whether it has its answer or its error."""
        return self.answer is not None or self.error is not None

    def wait(self, seconds: float | None) -> bool:
        """Wait until somebody calls :meth:`wake`, or for so long; whether somebody did."""
        return self._woken.acquire(timeout=-1 if seconds is None else seconds)

    def wake(self) -> None:
        """It is decided, or it is its turn to commit, or nobody commits any more."""
        if self._woken.locked():
            self._woken.release()


@dataclass(eq=False, slots=True)
class End:
    """How a row ended, on its way into the database.

    ``opened``: whether its content could leave. ``remaining`` says for how many seconds the claim lasts. ``written``
    is called once with what became of it.
    """

    claim: Claim
    number: int
    settlement: Settlement
    opened: bool
    remaining: Callable[[], float]
    written: Callable[[Settled], None]
    _give_up: float | None = field(init=False, default=None)

    def is_given_up(self, stopping: bool, settle_for: float) -> bool:
        """Whether it was offered for long enough, to be asked after each failure: for ``settle_for`` seconds, and as
        long as the claim lasts; when the relay stops, only for that."""
        if self._give_up is None:
            self._give_up = lease_clock() + max(self.remaining(), settle_for)
        return self.remaining() <= 0 if stopping else lease_clock() > self._give_up


class Commits:
    """The writes of all connections of a relay.

    A known end that could not be written is offered again for ``settle_for`` seconds, and as long as its claim lasts.
    """

    def __init__(
        self, database: Database, through: Through, stop: threading.Event, settle_for: float = _SETTLE_FOR
    ) -> None:
        self._database = database
        self._line = database.line()
        self._through = through
        self._stop = stop
        self._settle_for = settle_for
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._gates: list[_Gate] = []
        self._ends: list[End] = []
        self._failed: list[End] = []  # the settler's alone
        self._again = 0.0
        self._at_work = 0
        self._led = False  # one of the gates commits for all, or is about to
        self._idle = False  # the thread of the ends waits for the first of them
        self._closed = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def delivery(self) -> Iterator[None]:
        """A connection is at work on a message for the block. Of how many are, depends who waits for whom."""
        with self._changed:
            self._at_work += 1
        try:
            yield
        finally:
            with self._changed:
                self._at_work -= 1

    def gate(self, claim: Claim, number: int, refused: Mapping[str, Answer]) -> Gated:
        """Commit ``dispatching`` for the row; returns when that is on disk, or refused. Raises what the database
        raised: then it may or may not have been committed, and nothing may be handed over."""
        gate = _Gate(claim, number, refused)
        with self._changed:
            self._gates.append(gate)
            if not self._led and self._are_enough():
                self._led = gate.leads = True
        try:
            while not gate.leads and not gate.decided:
                self._await(gate)
            if not gate.decided:
                with self._turn:
                    self._commit(with_gates=True)
        finally:
            self._hand_on(gate)
        if gate.error is not None:
            raise gate.error
        assert gate.answer is not None
        return gate.answer

    def _await(self, gate: _Gate) -> None:
        """Wait for the answer or the lead. Where nobody has it, take it after a moment."""
        with self._changed:
            led = self._led
        if gate.wait(None if led else _GATHER):
            return
        with self._changed:
            if not self._led and gate in self._gates:
                self._led = gate.leads = True

    def _hand_on(self, gate: _Gate) -> None:
        """Who has committed, or should have, or does not wait any more, sees to those who still do."""
        with self._changed:
            left = not gate.decided and gate in self._gates
            if left:
                self._gates.remove(gate)  # its wait was broken off
            if gate.leads:
                self._led = False
            elif not left:
                return
            if self._gates and not self._led:
                first = self._gates[0]
                if self._are_enough():
                    self._led = first.leads = True
                first.wake()

    def _are_enough(self) -> bool:
        """Whether all connections that are at work wait at the gate; whoever comes last commits for all, so that
        nobody is woken for that.

        A commit costs much the same for one row and for ten, more than all the rest of a message. The server pays for
        a small group too: it is woken for each connection by itself.
        """
        return len(self._gates) >= self._at_work

    def end(self, end: End) -> None:
        """Hand in how a row ended. It is written with the next commit, or by itself a moment later."""
        with self._changed:
            self._ends.append(end)
            if self._thread is None:
                self._thread = threading.Thread(target=self._linger, name="outbox-settler", daemon=True)
                self._thread.start()
            elif self._idle:
                self._changed.notify_all()

    def flush(self) -> None:
        """Write what was handed in so far, if the database takes it."""
        with self._turn:
            self._commit(with_gates=False)

    def close(self) -> None:
        """End the thread. What is not written by then is lost to the audit, and its row will be uncertain."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        self._ended.set()
        if thread is not None:
            thread.join()
        self.flush()
        self._offer_again()
        with self._turn:
            self._line.close()

    def _linger(self) -> None:
        pause = _AGAIN[0]
        while True:
            with self._changed:
                self._idle = True
                rest = max(0.0, self._again - time.monotonic()) if self._failed else None
                self._changed.wait_for(lambda: self._ends or self._closed, rest)
                self._idle = False
                if self._closed:
                    return
                seen = self._ends[0] if self._ends else None
            if seen is not None:
                self._ended.wait(_LINGER)
                with self._changed:
                    left = bool(self._ends) and self._ends[0] is seen
                if left:
                    self.flush()
            if self._failed and time.monotonic() >= self._again:
                pause = _AGAIN[0] if self._offer_again() else min(pause * 2, _AGAIN[1])
                self._again = time.monotonic() + pause

    def _offer_again(self) -> bool:
        """Try what could not be written, without holding up anybody else. Whether all of it is dealt with."""
        with self._changed:
            ends, self._failed = self._failed, []
        self._one_by_one(ends)
        return not self._failed

    def _commit(self, *, with_gates: bool) -> None:
        gates: list[_Gate] = []
        with self._changed:
            if with_gates:
                gates, self._gates = self._gates, []
            ends: list[End] = []
            # To write known ends costs as much as the commit itself, whether it is one or ten. So they collect, but
            # never more than one for each connection: a kill would leave them all in doubt.
            if not gates or len(self._ends) >= self._at_work:
                ends, self._ends = self._ends, []
        try:
            self._write(gates, ends)
        except BaseException as exc:
            _decide([gate for gate in gates if not gate.decided], RuntimeError(f"the commit was broken off: {exc!r}"))
            raise

    def _write(self, gates: list[_Gate], ends: list[End]) -> None:
        if self._database.dialect == "postgresql":
            gates, ends = self._at_once(gates, ends)
        if not gates and not ends:
            return
        try:
            settled, gated = self._database.run(lambda dialect: self._plan(ends, gates, dialect))
        except Exception as exc:  # noqa: BLE001 - each waiting connection is told
            if len(gates) < 2 or _gone(exc):
                _decide(gates, exc)
            else:  # one that cannot be written must not keep the others from it
                for gate in gates:
                    self._write([gate], [])
            self._one_by_one(ends)
            return
        for gate in gates:
            gate.answer = gated[gate.claim.token.value, gate.number]
            gate.wake()
        for end in ends:
            end.written(settled[end])

    def _at_once(self, gates: list[_Gate], ends: list[End]) -> tuple[list[_Gate], list[End]]:
        """Write what is as usual, in one statement for each claim; returns the rest."""
        plain = [end for end in ends if end.opened and is_plain(end.settlement)]
        usual = [gate for gate in gates if not gate.refused]
        rest = [gate for gate in gates if gate.refused], [end for end in ends if end not in plain]
        written: dict[int, list[End]] = _by_claim(plain)
        for token, waiting in _by_claim(usual).items():
            some = {end.number: end for end in written.pop(token, [])}
            ours = {gate.number: gate for gate in waiting}
            self._write_at_once(waiting[0].claim, some, ours, rest)
        for lone in written.values():
            self._write_at_once(lone[0].claim, {end.number: end for end in lone}, {}, rest)
        return rest

    def _write_at_once(
        self, claim: Claim, ends: dict[int, End], gates: dict[int, _Gate], rest: tuple[list[_Gate], list[End]]
    ) -> None:
        said = {number: end.settlement for number, end in ends.items()}
        try:
            written, opened = self._line.run(lambda _: group_plan(claim, said, list(gates), self._through))
        except Exception as exc:  # noqa: BLE001 - each waiting connection is told; ends are offered again
            _decide(gates.values(), exc)
            rest[1].extend(ends.values())
            return
        for number, gate in gates.items():
            if number in opened:
                gate.answer = "open"
                gate.wake()
            else:
                rest[0].append(gate)
        for number, end in ends.items():
            if number in written:
                end.written("done")
            else:
                rest[1].append(end)

    def _one_by_one(self, ends: list[End]) -> None:
        """After a failure: an end that cannot be written must not keep the others from it."""
        kept, exc = [], None
        for end in ends:
            try:
                settled, _ = self._database.run(lambda dialect, end=end: self._plan([end], [], dialect))  # type: ignore[misc]
            except Exception as again:  # noqa: BLE001 - it is the only record of what happened: offered again
                exc = again
                kept.append(end)
                if _gone(again):
                    kept += ends[ends.index(end) + 1 :]
                    break
            else:
                end.written(settled[end])
        for end in [end for end in kept if end.is_given_up(self._stop.is_set(), self._settle_for)]:
            _log.error("outbox: the end of row %d (%s) was never written", end.number, end.settlement.target)
            kept.remove(end)
            end.written("lost")
        if kept:
            _log.warning("outbox: the end of %d rows could not be written, trying again: %s", len(kept), exc)
            with self._changed:
                self._failed += kept
                self._changed.notify_all()

    def _plan(
        self, ends: list[End], gates: list[_Gate], dialect: str
    ) -> Plan[tuple[dict[End, Settled], dict[tuple[int, int], Gated]]]:
        if dialect == "postgresql":
            yield Statement(f"select set_config('lock_timeout', '{_LOCKED_MS}', true)")
        settled: dict[End, Settled] = {}
        for token, some in _by_claim(ends).items():
            plain = {end.number: end.settlement for end in some if end.opened and is_plain(end.settlement)}
            written: set[int] = set()
            if plain:
                written = yield from sent_plan(some[0].claim, plain, dialect)
            for end in some:
                assert end.claim.token.value == token
                settled[end] = (
                    "done"
                    if end.number in written
                    else (yield from settle_plan(end.claim, end.number, end.settlement, dialect, opened=end.opened))
                )
        gated: dict[tuple[int, int], Gated] = {}
        for token, waiting in _by_claim(gates).items():
            rows = {gate.number: gate.refused for gate in waiting}
            answers = yield from dispatch_plan(waiting[0].claim, rows, dialect, self._through)
            gated.update({(token, number): answer for number, answer in answers.items()})
        return settled, gated


def _by_claim(waiting: list[T]) -> dict[int, list[T]]:
    groups: dict[int, list[T]] = {}
    for one in waiting:
        groups.setdefault(one.claim.token.value, []).append(one)
    return groups


def _decide(gates: Iterable[_Gate], error: Exception) -> None:
    for gate in gates:
        gate.error = error
        gate.wake()


def _gone(exc: Exception) -> bool:
    """Whether the database itself is away, so that asking it again at once is of no use."""
    return isinstance(exc, OperationalError | InterfaceError | OutcomeUnknownError)
