"""What gets lost: marks beneath the guard, marks that are forgotten on purpose, and the answers to writes."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import rule

from fencing.testing._downstream import Capability
from fencing.testing._machine._base import Names, claims, name_sets, names, needs
from fencing.testing._machine._writes import KEYS, Writes
from fencing.testing._model import Model, described, outcome
from fencing.testing._workers import Claim

times = st.sampled_from((1, 20))
"""How many answers are lost: one, so that asking again helps, or all that an adapter asks for."""


class Losses(Writes):
    """The law is kept under losses, or what is told is that nobody knows."""

    @needs(Capability.LOSE)
    @rule(resource=names)
    def lose(self, resource: str) -> None:
        """The mark is gone, the value is not: with "reject" only a raised fence makes another, which may be older."""
        self.harness.lose(resource)
        self.model.marks.pop(resource, None)
        self.witness.saw_lost(resource)
        self.workers.forget_raised(resource)

    @needs(Capability.COMPACT)
    @rule(below=claims)
    def compact(self, below: Claim) -> None:
        """Old marks are forgotten. Without them tokens under the floor are refused, whoever still holds one."""
        self.harness.compact(below.token)
        for name in self.model.compact(below.token):
            self.witness.saw_forgotten(name, below.token)

    @needs(Capability.LOSE_REPLY)
    @rule(claim=claims, resources=name_sets, times=times, again=st.booleans())
    def answer_is_lost(self, claim: Claim, resources: Names, times: int, again: bool) -> None:
        """A write whose answer gets lost: it was made or not, and what is told is true. Then perhaps once more."""
        values = self.values(claim, resources)
        self.last = (claim, resources, values)

        def call() -> None:
            with self.harness.losing_replies(times):
                self.send(claim, resources, values)

        self._found_out(claim, resources, lambda model: model.write(claim, resources, values), call)
        if again:
            self.compared_write(claim, resources, values)

    @needs(Capability.LOSE_REPLY, Capability.ONCE)
    @rule(claim=claims, resources=name_sets, key=st.sampled_from(KEYS), times=times)
    def answer_to_an_effect_is_lost(self, claim: Claim, resources: Names, key: str, times: int) -> None:
        """An effect under a key whose answer gets lost, then the same again: it is applied once."""
        value = self.value(claim)
        values = dict.fromkeys(resources, value)

        def call() -> None:
            with self.harness.losing_replies(times):
                self.harness.apply(claim, *resources, values=values, result=[value], once=key)

        self._found_out(claim, resources, lambda model: model.apply_once(claim, resources, values, key, [value]), call)
        self.compared_effect(claim, resources, key, value)

    def _found_out(
        self, claim: Claim, names: Names, act: Callable[[Model], object], call: Callable[[], object]
    ) -> None:
        """Hold what was told against what is there, and take over which of both it was."""
        before, after = self.model, self.model.copy()
        law, told = outcome(lambda: act(after)), outcome(call)
        marks, values = self.snapshot()
        there = [model for model in (after, before) if model.same_as(marks, values)]
        if told.unknown:
            assert there, (
                f"nobody knows whether {claim} wrote to {names}, and {self.downstream.name} shows "
                f"{described(marks, values)}: neither what was there nor what the write would have made of it"
            )
        else:
            assert told == law or told.contended, (
                f"the answer to {claim} for {names} was lost: the law says {law}, {self.downstream.name} "
                f"({self.model.on_missing}) said {told}"
            )
            there = [after if told.accepted else before]
        [self.model, *_] = there
        if self.model is after and law.accepted:
            self.witness.saw_accepted(claim, names, writes=before.values != after.values)
