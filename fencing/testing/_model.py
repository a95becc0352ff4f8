"""The model that a downstream must answer as, and a witness that judges by nothing but what it saw accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fencing._law import Mark, OnMissing, check_resources, judge, reject
from fencing._token import Token
from fencing.errors import ContentionError, FenceRejected, KeyConflictError, OutcomeUnknownError
from fencing.testing._harness import Writer


class GaveUpError(Exception):
    """The writer's own code failed in the middle: what the suites raise inside a block."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended: ``accepted``, or the class of its error with the facts that it carried."""

    end: str
    resource: str | None = None
    presented: Token | None = None
    mark: Token | None = None
    holder: str | None = None

    def __str__(self) -> str:
        if self.mark is None:
            return self.end
        return f"{self.end} (on {self.resource!r}: presented {self.presented}, mark {self.mark} of {self.holder})"

    @property
    def accepted(self) -> bool:
        """Whether it was written."""
        return self.end == "accepted"

    @property
    def unknown(self) -> bool:
        """Whether it was written or not, which nobody knows."""
        return self.end == OutcomeUnknownError.__name__

    @property
    def contended(self) -> bool:
        """Whether nothing was decided, so that it may be tried again."""
        return self.end == ContentionError.__name__


def outcome(call: Callable[[], object]) -> Outcome:
    """Run ``call`` and say how it ended. An error that is no answer (a driver's own) passes on."""
    try:
        call()
    except FenceRejected as exc:
        return Outcome(type(exc).__name__, exc.resource, exc.presented, exc.mark, exc.holder)
    except (ContentionError, KeyConflictError, OutcomeUnknownError, GaveUpError) as exc:
        return Outcome(type(exc).__name__)
    return Outcome("accepted")


class Model:
    """The law over dictionaries: what each resource's mark and value should be. Copies are independent."""

    def __init__(self, on_missing: OnMissing) -> None:
        self.on_missing = on_missing
        self.marks: dict[str, Mark] = {}
        self.values: dict[str, str] = {}
        self.applied: dict[str, tuple[tuple[str, ...], Any]] = {}
        self.floors: dict[str, int] = {}

    def copy(self) -> Model:
        """The same state, apart."""
        twin = Model(self.on_missing)
        twin.marks, twin.values, twin.applied = dict(self.marks), dict(self.values), dict(self.applied)
        twin.floors = dict(self.floors)
        return twin

    def same_as(self, marks: Mapping[str, Mark | None], values: Mapping[str, str | None]) -> bool:
        """Whether what was read is what should be there (the time of a mark is the downstream's own)."""
        return all(_facts(self.marks.get(name)) == _facts(mark) for name, mark in marks.items()) and all(
            self.values.get(name) == value for name, value in values.items()
        )

    def raise_fence(self, writer: Writer, resources: tuple[str, ...]) -> None:
        """Raise the marks of all resources or of none."""
        self._admit(writer, resources, "create")

    def write(self, writer: Writer, resources: tuple[str, ...], values: Mapping[str, str | None]) -> None:
        """Judge, then set the values; None removes one."""
        self._admit(writer, resources, self.on_missing)
        for name, value in values.items():
            if value is None:
                self.values.pop(name, None)
            else:
                self.values[name] = value

    def apply_once(
        self, writer: Writer, resources: tuple[str, ...], values: Mapping[str, str | None], key: str, result: Any
    ) -> Any:
        """Judge, then apply the effect unless its key was; return what every caller of the key is given."""
        twin = self.copy()
        twin.write(writer, resources, {})
        meaning = check_resources(resources)
        known, stored = twin.applied.get(key, (meaning, result))
        if known != meaning:
            raise KeyConflictError(f"the key {key!r} stands for {known}", key=key)
        if key not in twin.applied:
            twin.write(writer, resources, values)
            twin.applied[key] = (meaning, result)
        self.marks, self.values, self.applied = twin.marks, twin.values, twin.applied
        return stored

    def compact(self, below: Token) -> list[str]:
        """Forget the issuer's older marks, and set the floor, which never falls. Returns whose marks they were."""
        self.floors[below.issuer] = max(below.value, self.floors.get(below.issuer, 0))
        old = [
            name
            for name, mark in self.marks.items()
            if mark.token.issuer == below.issuer and mark.token.value < below.value
        ]
        for name in old:
            del self.marks[name]
        return old

    def _admit(self, writer: Writer, resources: tuple[str, ...], on_missing: OnMissing) -> None:
        names = check_resources(resources)
        for name in names:
            mark = self.marks.get(name)
            verdict = judge(
                mark.token if mark else None, writer.token, on_missing, self.floors.get(writer.token.issuer, 0)
            )
            if not verdict.accepted:
                reject(verdict, name, writer.token, mark, "the model")
        self.marks.update(dict.fromkeys(names, Mark(writer.token, writer.holder, None)))


def _facts(mark: Mark | None) -> tuple[Token, str] | None:
    return (mark.token, mark.holder) if mark else None


def described(marks: Mapping[str, Mark | None], values: Mapping[str, str | None]) -> str:
    """Marks and values in a few words."""
    names = sorted({*marks, *values})
    facts = ((name, marks.get(name), values.get(name)) for name in names)
    return (
        "; ".join(
            f"{name!r}: {value!r}, {f'mark {mark.token} of {mark.holder}' if mark else 'no mark'}"
            for name, mark, value in facts
            if mark or value
        )
        or "nothing"
    )


class Witness:
    """The promises in their own words, held against what the downstream itself said and shows. It knows no law.

    It reads numbers with Python's own ``<``, and the token of a value's writer out of the value.
    """

    def __init__(self) -> None:
        self._newest: dict[str, Token] = {}
        self._writers: dict[str, list[Token]] = {}
        self._lost: set[str] = set()
        self._closed: dict[tuple[str, str], int] = {}

    def saw_accepted(self, writer: Writer, resources: tuple[str, ...], *, writes: bool) -> None:
        """A write (or a raised fence) was accepted: nothing newer may have been accepted before it."""
        token = writer.token
        for name in resources:
            floor = self._closed.get((name, token.issuer), 0)
            assert floor <= token.value, f"{name!r} took {token}, though its mark was forgotten under the floor {floor}"
            newest = self._newest.get(name, token)
            assert newest.issuer == token.issuer, f"{name!r} took {token} after another issuer's {newest}"
            assert newest.value <= token.value, f"{name!r} took the older {token} after {newest}"
            assert newest.value < token.value or newest.lineage == token.lineage, (
                f"{name!r} took {token} of one lineage and {newest} of another"
            )
            self._newest[name] = token
            if writes:
                if name in self._lost:
                    self._lost.remove(name)
                    self._writers[name] = []
                self._writers.setdefault(name, []).append(token)

    def saw_lost(self, name: str) -> None:
        """The mark was taken away: what comes next may be older than all before, if it is taken at all."""
        self._newest.pop(name, None)
        self._lost.add(name)

    def saw_forgotten(self, name: str, below: Token) -> None:
        """The mark was compacted: what comes next may be of any issuer, and of the old one nothing below the floor."""
        self.saw_lost(name)
        self._closed[name, below.issuer] = below.value

    def last_writer(self, name: str) -> Token | None:
        """The token of the last accepted write, of a value or of its removal."""
        return self._writers.get(name, [None])[-1]

    def saw_value(self, name: str, value: str | None) -> None:
        """The value is there for all to see: the newest of those whose writes were accepted must have written it."""
        if value is None:
            return
        writers = self._writers.get(name, [])
        assert writers, f"{name!r} holds {value!r}, and no write to it was accepted"
        newest = max(token.value for token in writers)
        assert written_by(value) == newest, f"{name!r} holds {value!r}, though {newest} was accepted as well"


def value_of(writer: Writer, number: int, basis: str | None = None) -> str:
    """A value that says who wrote it, and, read before written, what it was made of."""
    return f"{writer.token.value} {writer.holder} #{number}" + (f" from {basis.split(' ')[2]}" if basis else "")


def written_by(value: str) -> int:
    """The token's number in a value."""
    return int(value.partition(" ")[0])
