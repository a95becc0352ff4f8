"""The state of the machine, how it compares the downstream with the law, and what its rules draw from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition

from fencing._law import Mark, OnMissing
from fencing._token import MAX_VALUE
from fencing.errors import FenceRejected
from fencing.testing._downstream import Capability, Downstream
from fencing.testing._harness import Block, Harness, Writer
from fencing.testing._model import Model, Outcome, Witness, described, outcome, value_of
from fencing.testing._quiet import Quiet
from fencing.testing._workers import FIRST_SERVERS, JOBS, NAMES, Claim, Workers

Rule = TypeVar("Rule", bound=Callable[..., Any])
Names = tuple[str, ...]
Values = dict[str, str | None]
"""What a write does: the values that it sets; None removes one."""

RESOURCES = ("invoice/1", "lager/öl {7}")
BASES = (0, 8, 2**31 - 2, 2**53 - 1, MAX_VALUE - 5)
"""What the issuers had handed out before: the next numbers cross the edges where a digit, a word or a float ends."""


class Base(RuleBasedStateMachine):
    """One example: an empty downstream, workers, the model that it must answer as, and the witness."""

    downstream: ClassVar[Downstream]

    def __init__(self) -> None:
        super().__init__()
        self.workers = Workers(0)
        self.witness = Witness()
        self.model = Model("create")
        self.last: tuple[Writer, Names, Values] | None = None
        self.catches = False
        self._harness: Harness | None = None
        self._quiet = Quiet()
        self._numbers = 0
        for capability in self.downstream.missing:
            event(f"not proved, since {self.downstream.name} does not offer it: {capability.value}")

    @property
    def harness(self) -> Harness:
        """The downstream in this example."""
        assert self._harness is not None
        return self._harness

    @property
    def policies(self) -> list[OnMissing]:
        """The ``on_missing`` options of the downstream."""
        offered: list[tuple[Capability, OnMissing]] = [(Capability.CREATE, "create"), (Capability.REJECT, "reject")]
        return [policy for capability, policy in offered if self.downstream.can(capability)]

    @initialize(
        base=st.sampled_from(BASES),
        policy=st.runner().flatmap(lambda machine: st.sampled_from(machine.policies)),
        holders=st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(FIRST_SERVERS)), min_size=2, max_size=4),
        catches=st.booleans(),
    )
    def begin(self, base: int, policy: OnMissing, holders: list[tuple[str, str]], catches: bool) -> None:
        """An empty downstream, issuers that have handed out numbers up to ``base``, a job that has changed hands.

        ``catches``: whether the workers catch a refusal inside their transaction, and commit it.
        """
        self.workers = Workers(base)
        self.catches = catches
        for holder, server in holders:
            self.workers.take_over(holder, JOBS[0], server)
        self.model = Model(policy)
        self._quiet.__enter__()
        self._harness = Harness(self.downstream, policy)
        self._harness.__enter__()

    def teardown(self) -> None:
        """End the example."""
        try:
            if self._harness is not None:
                self._harness.__exit__(None, None, None)
        finally:
            self._quiet.__exit__(None, None, None)

    @invariant()
    def everything_is_as_the_law_says(self) -> None:
        """Marks and values, seen from outside."""
        marks, values = self.snapshot()
        for name, value in values.items():
            self.witness.saw_value(name, value)
        assert self.model.same_as(marks, values), (
            f"{self.downstream.name} shows {described(marks, values)}; by the law it is "
            f"{described(self.model.marks, self.model.values)}"
        )

    def snapshot(self) -> tuple[dict[str, Mark | None], Values]:
        """Marks and values as they are now."""
        return self.harness.marks(*RESOURCES), {name: self.harness.look(name) for name in RESOURCES}

    def value(self, claim: Claim, basis: str | None = None) -> str:
        """A new value of the claim's holder."""
        self._numbers += 1
        return value_of(claim, self._numbers, basis)

    def values(self, claim: Claim, names: Names) -> Values:
        """The same new value for several resources."""
        return dict.fromkeys(names, self.value(claim))

    def compare(self, what: str, model: Callable[[Model], object], call: Callable[[], object]) -> Outcome:
        """Let the model and the downstream answer; they must say the same, with the same facts."""
        expected = outcome(lambda: model(self.model))
        found = outcome(call)
        assert found == expected, (
            f"{what}: the law says {expected}, {self.downstream.name} ({self.model.on_missing}) said {found}"
        )
        return found

    def compared_write(self, writer: Writer, names: Names, values: Values) -> Outcome:
        """One write, in a transaction of its own."""
        self.last = (writer, names, values)
        end = self.compare(
            f"{writer} writes {values}",
            lambda model: model.write(writer, names, values),
            lambda: self.send(writer, names, values),
        )
        if end.accepted:
            self.witness.saw_accepted(writer, names, writes=True)
        return end

    def send(self, writer: Writer, names: Names, values: Mapping[str, str | None]) -> None:
        """One write, without a model."""
        self.transact(lambda target: self.send_in(target, writer, names, values))

    def send_raise(self, writer: Writer, names: Names) -> None:
        """One raised fence, without a model."""
        self.transact(lambda target: self.harness.raise_fence_in(target, writer, *names))

    def transact(self, act: Callable[[Any], None]) -> None:
        """Do it in a transaction of its own. If it is refused there, nothing of it may be in what is committed."""
        refused: FenceRejected | None = None
        with self.harness.transaction() as target:
            try:
                act(target)
            except FenceRejected as exc:
                if not self.catches:
                    raise
                refused = exc
        if refused is not None:
            raise refused

    def send_in(self, target: Any, writer: Writer, names: Names, values: Mapping[str, str | None]) -> None:
        """One write in a transaction that is open."""
        with self.harness.fenced_in(target, writer, *names) as block:
            put(block, values)


def put(block: Block, values: Mapping[str, str | None]) -> None:
    """Set and remove values through the handle."""
    for name, value in values.items():
        if value is None:
            block.delete(name)
        else:
            block.write(name, value)


def needs(*wanted: Capability) -> Callable[[Rule], Rule]:
    """For rules that need a downstream that can do this."""

    def mark(method: Rule) -> Rule:
        guarded: Rule = precondition(lambda machine: machine.downstream.can(*wanted))(method)
        return guarded

    return mark


def one_of(find: Callable[[Any], list[Any]]) -> Any:
    """Draw one of what the machine has at that moment."""
    return st.runner().flatmap(lambda machine: st.sampled_from(find(machine)))


claims = one_of(lambda machine: machine.workers.usable)
awake = one_of(lambda machine: machine.workers.awake)
dispensable = one_of(lambda machine: machine.workers.dispensable)
servers = one_of(lambda machine: machine.workers.servers)
leased_jobs = one_of(lambda machine: machine.workers.leased_jobs)
free_jobs = one_of(lambda machine: machine.workers.free_jobs)
names = st.sampled_from(RESOURCES)
name_sets = st.runner().flatmap(
    lambda machine: st.lists(
        names, min_size=1, max_size=2 if machine.downstream.can(Capability.SEVERAL) else 1, unique=True
    ).map(tuple)
)
