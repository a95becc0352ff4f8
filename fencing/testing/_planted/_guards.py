"""Guards that are wrong on purpose, one small fault each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any, NoReturn

from fencing._law import Mark, OnMissing, Verdict, judge, reject
from fencing._token import Token
from fencing.errors import ContentionError, OutcomeUnknownError, StaleTokenError
from fencing.testing._downstream import Capability, Downstream
from fencing.testing._memory import MemoryGuard, MemoryStore
from fencing.testing._memory_downstream import MakeGuard, MemoryDownstream, RecordingDownstream, RecordingGuard, Tape
from fencing.testing._planted._bug import PlantedBug


class _OtherLaw(MemoryGuard):
    """A guard whose verdicts are not the law's."""

    @staticmethod
    def verdict(mark: Token | None, presented: Token, on_missing: OnMissing) -> Verdict:
        return judge(mark, presented, on_missing)

    def refuse(self, verdict: Verdict, resource: str, token: Token, mark: Mark | None) -> NoReturn:
        reject(verdict, resource, token, mark, self.downstream)

    def _admit(self, resources: tuple[str, ...], token: Token, holder: str, on_missing: OnMissing) -> None:
        for resource in resources:
            mark = self._marks.get(resource)
            verdict = self.verdict(mark.token if mark else None, token, on_missing)
            if not verdict.accepted:
                self.refuse(verdict, resource, token, mark)
            self._marks[resource] = Mark(token, holder, datetime.now(UTC))


class StrictlyGreater(_OtherLaw):
    """Only a higher token is taken: the holder's second write is refused."""

    @staticmethod
    def verdict(mark: Token | None, presented: Token, on_missing: OnMissing) -> Verdict:
        """``>`` where ``>=`` is meant."""
        found = judge(mark, presented, on_missing)
        return Verdict.STALE if found is Verdict.REPEATED else found


class ComparesFloats(_OtherLaw):
    """Numbers are compared as doubles, as by ``tonumber`` in Lua: 2**53 + 1 equals 2**53."""

    @staticmethod
    def verdict(mark: Token | None, presented: Token, on_missing: OnMissing) -> Verdict:
        """``float`` where ``int`` is meant."""
        found = judge(mark, presented, on_missing)
        if mark and found is Verdict.STALE and float(mark.value) == float(presented.value):
            return Verdict.REPEATED
        return found


class MissingIsZero(_OtherLaw):
    """A mark that is not there counts as the lowest: a lost one is permission."""

    @staticmethod
    def verdict(mark: Token | None, presented: Token, on_missing: OnMissing) -> Verdict:
        """``or 0``."""
        return judge(mark, presented, "create")


class IgnoresLineage(_OtherLaw):
    """An equal number is the holder's, whichever server gave it out."""

    @staticmethod
    def verdict(mark: Token | None, presented: Token, on_missing: OnMissing) -> Verdict:
        """The lineage is not looked at."""
        found = judge(mark, presented, on_missing)
        return Verdict.REPEATED if found is Verdict.LINEAGE_CONFLICT else found


class IgnoresIssuer(_OtherLaw):
    """A number is a number: those of another issuer are compared too."""

    @staticmethod
    def verdict(mark: Token | None, presented: Token, on_missing: OnMissing) -> Verdict:
        """The issuer is not looked at."""
        if mark is None:
            return judge(mark, presented, on_missing)
        return judge(Token(mark.value, presented.issuer, mark.lineage), presented, on_missing)


class SaysOnlyFenced(_OtherLaw):
    """Every refusal is the same word, with nothing to go by."""

    def refuse(self, verdict: Verdict, resource: str, token: Token, mark: Mark | None) -> NoReturn:
        """No facts."""
        raise StaleTokenError("fenced")


class ForgettingStore(MemoryStore):
    """Values and marks in one record: removing the value removes the mark."""

    def __init__(self, marks: Callable[[], dict[str, Mark]]) -> None:
        super().__init__()
        self._marks = marks

    def delete(self, key: str) -> None:
        """Forget the whole record."""
        super().delete(key)
        self._marks().pop(key, None)


class DeleteDropsMark(MemoryGuard):
    """A resource that was deleted and made again starts anew."""

    def __init__(self, on_missing: OnMissing = "create") -> None:
        super().__init__(on_missing)
        self.store = ForgettingStore(lambda: self._marks)


class KeepsMarkOnRollback(MemoryGuard):
    """Values are rolled back, the mark that was raised with them is not: a phantom stops the live holder."""

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        values = dict(self.store.values)
        try:
            yield
        except BaseException:
            self.store.values = values
            raise


class RaisesOneByOne(MemoryGuard):
    """Marks are raised as they are looked at, and stay raised when a later one refuses."""

    @contextmanager
    def open(self, resources: tuple[str, ...], token: Token, holder: str) -> Iterator[MemoryStore]:
        """Admit before the transaction begins."""
        before = dict(self._marks)
        self._admit(resources, token, holder, self._on_missing)
        raised, self._marks = self._marks, before
        with super().open(resources, token, holder) as store:
            yield store
        self._marks = raised

    def raise_fence(self, resources: tuple[str, ...], token: Token, holder: str) -> None:
        """The same."""
        self._admit(resources, token, holder, "create")


class ChecksThenWrites(RecordingGuard):
    """The token is checked when the block begins, and what it recorded is written when it ends."""

    @contextmanager
    def open(self, resources: tuple[str, ...], token: Token, holder: str) -> Iterator[Any]:
        """Two steps with the caller's code between them."""
        with self._transaction():
            self._admit(resources, token, holder, self._on_missing)
        tape = Tape(self.store)
        yield tape
        tape.play()


class TrustsARepeat(RecordingGuard):
    """A holder whose token is the mark already is not looked at again when its write lands."""

    @contextmanager
    def open(self, resources: tuple[str, ...], token: Token, holder: str) -> Iterator[Any]:
        """The mark's row is neither written nor locked where the token is equal."""
        marks = [self._marks.get(resource) for resource in resources]
        if not all(mark and mark.token == token for mark in marks):
            with super().open(resources, token, holder) as tape:
                yield tape
            return
        tape = Tape(self.store)
        yield tape
        tape.play()


class JudgesKeyFirst(MemoryGuard):
    """A key that was applied is answered before anybody looks at the token."""

    def apply(
        self,
        resources: tuple[str, ...],
        token: Token,
        holder: str,
        effect: Callable[[MemoryStore], Any],
        once: str | None,
        fingerprint: str | None,
        began_at: datetime | None = None,
    ) -> Any:
        """The stored result, whoever asks."""
        if once in self._applied:
            return self._applied[once][1]
        return super().apply(resources, token, holder, effect, once, fingerprint, began_at)


class MarksInTheProcess(MemoryDownstream):
    """Values are kept by the store, marks by the process: a restart forgets them."""

    name = "memory that reopens"
    capabilities = MemoryDownstream.capabilities | {Capability.REOPEN}

    def reopen(self) -> None:
        """Another process, the same store."""
        store = self.guard.store
        self.guard = self._make(self.guard._on_missing)
        self.guard.store = store


class ForgetsWithoutFloor(MemoryGuard):
    """Old marks are removed, and nothing remembers up to where."""

    def compact(self, below: Token) -> int:
        """No floor."""
        removed = super().compact(below)
        self._floors.clear()
        return removed


class TellsLostAsNotDone(MemoryDownstream):
    """A commit whose answer is lost passes for one that was not made."""

    name = "memory that guesses"

    def _answer(self) -> None:
        try:
            super()._answer()
        except OutcomeUnknownError as exc:
            raise ContentionError("nothing was written; try again", downstream=self.name) from exc


def _bug(name: str, seen_at: str, make: Callable[[], Downstream]) -> PlantedBug:
    return PlantedBug(name, seen_at, "guard", ("contract", "machine"), lambda: nullcontext(make()))


def _in_memory(make: MakeGuard) -> Callable[[], Downstream]:
    return lambda: MemoryDownstream(make)


def _recording(make: MakeGuard) -> Callable[[], Downstream]:
    return lambda: RecordingDownstream(make)


GUARD_BUGS: tuple[PlantedBug, ...] = (
    _bug("strict >", "mithril (measured)", _in_memory(StrictlyGreater)),
    _bug("tonumber", "fencekit, mithril, shiftlock (measured)", _in_memory(ComparesFloats)),
    _bug("check, then write", "mithril, openbao, syncguard's docs", _recording(ChecksThenWrites)),
    _bug("missing means zero", "allkeys-lru (measured)", _in_memory(MissingIsZero)),
    _bug("delete drops the mark", "utopia-php/cache #76", _in_memory(DeleteDropsMark)),
    _bug("mark forgotten on restart", "elasticsearch #101178, redpanda #28589", MarksInTheProcess),
    _bug("equal token of another lineage", "two promoted standbys (measured)", _in_memory(IgnoresLineage)),
    _bug("another issuer's token", "cubefs #1862", _in_memory(IgnoresIssuer)),
    _bug("no lock on repeat", "plain check, then write to another row (measured)", _recording(TrustsARepeat)),
    _bug("phantom mark after a rollback", "redpanda #31110", _in_memory(KeepsMarkOnRollback)),
    _bug("marks raised one by one", "redislock #70", _in_memory(RaisesOneByOne)),
    _bug("one vague refusal", "celld #183", _in_memory(SaysOnlyFenced)),
    _bug("no floor where marks were removed", "slatedb #1622", _in_memory(ForgetsWithoutFloor)),
    _bug("a lost answer told as nothing done", "redis-py 8's retries (measured)", TellsLostAsNotDone),
    _bug("key before token", "microsoft-agentic-harness #127", _in_memory(JudgesKeyFirst)),
)
"""Faults of a guard, planted in the model guards."""
