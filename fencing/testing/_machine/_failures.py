"""Writes that fail, are taken back, or meet each other."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from fencing.testing._downstream import Capability
from fencing.testing._machine._base import Base, Names, Values, claims, name_sets, needs, put
from fencing.testing._model import GaveUpError, Model, Outcome, described, outcome
from fencing.testing._workers import Claim


@dataclass(frozen=True, slots=True)
class _Act:
    """A raise or a write, what it does to the model, and how it ended at the downstream."""

    claim: Claim
    names: Names
    values: Values
    raises: bool
    end: Outcome

    def explained_by(self, model: Model) -> bool:
        """Whether the law says what the downstream said. Contention decides nothing, and so nothing happened."""
        return self.end.contended or outcome(lambda: self.on(model)) == self.end

    def on(self, model: Model) -> None:
        """Do it to the model."""
        if self.raises:
            model.raise_fence(self.claim, self.names)
        else:
            model.write(self.claim, self.names, self.values)


class Failures(Base):
    """Blocks that raise, transactions that are rolled back, and a write in a block."""

    @needs(Capability.ATOMIC)
    @rule(claim=claims, resources=name_sets)
    def crash_in_the_block(self, claim: Claim, resources: Names) -> None:
        """The worker's code fails after it wrote, inside the block."""
        values = self.values(claim, resources)

        def call() -> None:
            with self.harness.fenced(claim, *resources) as block:
                put(block, values)
                raise GaveUpError

        # A guard that judges when the block ends has not judged yet.
        found, failed = outcome(call), Outcome(GaveUpError.__name__)
        law = self._law(claim, resources, raises=False)
        assert found == failed or (found == law and not law.accepted), (
            f"{claim} fails while it writes {resources}, and is told {found}; the law says {law}"
        )

    @needs(Capability.ROLLBACK)
    @rule(claim=claims, resources=name_sets, raises=st.booleans())
    def roll_back(self, claim: Claim, resources: Names, raises: bool) -> None:
        """The transaction of an accepted write, or of a raised fence, is rolled back."""

        def call() -> None:
            with self.harness.transaction() as target:
                self._do(target, claim, resources, raises=raises)
                raise GaveUpError

        law, found = self._law(claim, resources, raises=raises), outcome(call)
        expected = Outcome(GaveUpError.__name__) if law.accepted else law
        assert found == expected, (
            f"{claim} rolls back what it did to {resources}, and is told {found}; the law says {law}"
        )

    @needs(Capability.CONCURRENT)
    @rule(
        outer=claims,
        inner=st.none() | claims,
        resources=name_sets,
        others=st.none() | name_sets,
        repeats=st.booleans(),
        wrote=st.booleans(),
        raises=st.booleans(),
    )
    def cut_in(
        self,
        outer: Claim,
        inner: Claim | None,
        resources: Names,
        others: Names | None,
        repeats: bool,
        wrote: bool,
        raises: bool,
    ) -> None:
        """Another worker's whole write happens while a first one's block is open, before or after its own writing.

        ``inner``: that other one, None for whoever takes the first one's job over now. ``others``: what it writes to,
        None for the same. ``repeats``: the first one has written once before. What both were told and what stands there
        afterwards must be what one after the other would have made.
        """
        inner = inner or self.workers.succeed(outer)
        others, raises = others or resources, raises and self.downstream.can(Capability.RAISE)
        outer_values, inner_values = self.values(outer, resources), self.values(inner, others)
        if repeats:
            self.compared_write(outer, resources, self.values(outer, resources))
        inner_ends: list[Outcome] = []

        def cut() -> None:
            if raises:
                self.send_raise(inner, others)
            else:
                self.send(inner, others, inner_values)

        def call() -> None:
            with self.harness.fenced(outer, *resources) as block:
                if wrote:
                    put(block, outer_values)
                inner_ends.append(outcome(cut))
                if not wrote:
                    put(block, outer_values)

        acts = [_Act(outer, resources, outer_values, raises=False, end=outcome(call))]
        acts += [_Act(inner, others, inner_values, raises=raises, end=end) for end in inner_ends]
        self._explain(acts)

    def _explain(self, acts: list[_Act]) -> None:
        """Find the order in which the acts, one after the other, would have made all that was said and is there."""
        marks, values = self.snapshot()
        for order in permutations(acts):
            model = self.model.copy()
            if all(act.explained_by(model) for act in order) and model.same_as(marks, values):
                self.model = model
                for act in order:
                    if act.end.accepted:
                        self.witness.saw_accepted(act.claim, act.names, writes=not act.raises)
                return
        said = "; ".join(f"{act.claim} {'raises' if act.raises else 'writes'} {act.names}: {act.end}" for act in acts)
        raise AssertionError(
            f"two at once, the second inside the block of the first: {said}. Afterwards there is "
            f"{described(marks, values)}. No order of the two explains that"
        )

    def _do(self, target: Any, claim: Claim, names: Names, *, raises: bool) -> None:
        """Raise the marks, or write, in a transaction that is open."""
        if raises and self.downstream.can(Capability.RAISE):
            self.harness.raise_fence_in(target, claim, *names)
        else:
            self.send_in(target, claim, names, self.values(claim, names))

    def _law(self, claim: Claim, names: Names, *, raises: bool) -> Outcome:
        """What the law says of it, without its happening."""
        raises = raises and self.downstream.can(Capability.RAISE)
        act = _Act(claim, names, {}, raises, Outcome("accepted"))
        return outcome(lambda: act.on(self.model.copy()))
