"""What workers send to the downstream, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from fencing.testing._downstream import Capability
from fencing.testing._machine._base import Base, Names, claims, name_sets, names, needs, one_of
from fencing.testing._workers import Claim

KEYS = ("charge-1", "charge-2")


class Writes(Base):
    """Raised fences, writes, removals, repeats, effects under a key, and a read that becomes a write."""

    @needs(Capability.RAISE)
    @rule(claim=claims, resources=name_sets)
    def raise_fence(self, claim: Claim, resources: Names) -> None:
        """A careful worker raises the fence before it reads or writes."""
        end = self.compare(
            f"{claim} raises the fence of {resources}",
            lambda model: model.raise_fence(claim, resources),
            lambda: self.send_raise(claim, resources),
        )
        if end.accepted:
            self.witness.saw_accepted(claim, resources, writes=False)

    @rule(claim=claims, resources=name_sets)
    def write(self, claim: Claim, resources: Names) -> None:
        """A worker writes, whatever became of its lease."""
        self.compared_write(claim, resources, self.values(claim, resources))

    @rule(resources=name_sets, newest_first=st.booleans())
    def everybody_writes(self, resources: Names, newest_first: bool) -> None:
        """Up to four who believe to hold something write to the same resources, one after the other."""
        for claim in sorted(self.workers.usable[-4:], key=lambda one: one.token.value, reverse=newest_first):
            self.compared_write(claim, resources, self.values(claim, resources))

    @precondition(lambda self: self.last is not None)
    @rule()
    def retry(self) -> None:
        """The last write is sent once more, as by a worker that did not trust the answer."""
        assert self.last is not None
        self.compared_write(*self.last)

    @needs(Capability.DELETE)
    @rule(claim=claims, resource=names)
    def delete(self, claim: Claim, resource: str) -> None:
        """A worker removes the value; the mark must stay."""
        self.compared_write(claim, (resource,), {resource: None})

    @rule(claim=claims, resource=names)
    def read(self, claim: Claim, resource: str) -> None:
        """A worker reads, outside of any fence, what it is going to change."""
        mark = self.model.marks.get(resource)
        raised = mark is not None and mark.token == claim.token
        self.workers.remember(claim, resource, self.harness.look(resource), raised=raised)

    @precondition(lambda self: self.workers.readers)
    @rule(claim=one_of(lambda machine: machine.workers.readers))
    def modify(self, claim: Claim) -> None:
        """A worker writes what it made of what it read. If it had raised the fence before, that was still true."""
        reading = self.workers.recall(claim)
        resource = reading.resource
        before, by = self.harness.look(resource), self.witness.last_writer(resource)
        end = self.compared_write(claim, (resource,), {resource: self.value(claim, reading.value)})
        if end.accepted and reading.raised and before != reading.value:
            assert by == claim.token, (
                f"{claim} raised the fence of {resource!r}, read {reading.value!r} and was allowed to write, but "
                f"meanwhile {by} had made it {before!r}"
            )

    @rule(claim=claims, resource=names)
    def read_inside(self, claim: Claim, resource: str) -> None:
        """A worker reads through the handle: it sees what stands there under its fence."""
        seen: list[Callable[[], str | None]] = []

        def call() -> None:
            with self.harness.fenced(claim, resource) as block:
                seen.append(block.read(resource))

        expected = self.model.values.get(resource)
        end = self.compare(f"{claim} reads {resource!r}", lambda model: model.write(claim, (resource,), {}), call)
        if end.accepted:
            self.witness.saw_accepted(claim, (resource,), writes=False)
            found = seen[0]()
            assert found == expected, f"{claim} read {found!r} through the handle, where {expected!r} stands"

    @needs(Capability.ONCE)
    @rule(claim=claims, resources=name_sets, key=st.sampled_from(KEYS))
    def apply_once(self, claim: Claim, resources: Names, key: str) -> None:
        """A worker applies an effect under a key, which somebody may have applied before."""
        self.compared_effect(claim, resources, key, self.value(claim))

    def compared_effect(self, claim: Claim, resources: Names, key: str, value: str) -> None:
        """An effect under a key that sets a value, and gives it back."""
        told: list[Any] = []
        promised: list[Any] = []
        values = dict.fromkeys(resources, value)

        def call() -> None:
            told.append(self.harness.apply(claim, *resources, values=values, result=[value], once=key))

        end = self.compare(
            f"{claim} applies {key!r} to {resources}",
            lambda model: promised.append(model.apply_once(claim, resources, values, key, [value])),
            call,
        )
        if end.accepted:
            [(back, ran)] = told
            assert [back] == promised, f"{key!r} gave {back!r} back, not {promised[0]!r}"
            self.witness.saw_accepted(claim, resources, writes=ran > 0)

    @needs(Capability.REOPEN)
    @rule()
    def reopen(self) -> None:
        """The downstream is closed and opened again; marks and values must still be there."""
        self.harness.reopen()
