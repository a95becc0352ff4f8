"""`lease_machine`: owners that take named leases, lose them without knowing, renew and give them back too late."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fencing._lease import Lease, current_lease
from fencing.errors import LeaseLostError, LeaseUnavailableError
from fencing.testing._leases import LeaseSystem

OWNERS = ("ada", "bob")
NAMES = ("reindex", "report")
TTL = 60.0
"""Seconds, longer than any example takes: leases end when the machine says so."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A ``with source.lease(...)`` block that somebody is in, in a context of its own as each thread has one."""

    owner: str
    lease: Lease
    manager: AbstractContextManager[Lease]
    context: Context

    def leave(self) -> None:
        self.context.run(self.manager.__exit__, None, None, None)

    def __repr__(self) -> str:
        return f"{self.owner}'s {self.lease.name!r} under {self.lease.token}"


def lease_machine(system: LeaseSystem) -> type[LeaseMachine]:
    """Return the Hypothesis state machine for a system that hands out leases.

    After each step a lease can be had exactly if nobody holds it, whoever came too late to give it back, and every
    token is higher than all before it.
    """
    return type("LeaseMachine", (LeaseMachine,), {"system": system, "__doc__": LeaseMachine.__doc__})


class LeaseMachine(RuleBasedStateMachine):
    """Owners and their leases; :func:`lease_machine` says of which system."""

    system: ClassVar[LeaseSystem]

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[_Block] = []
        self._live: dict[str, Lease] = {}
        self._newest: Lease | None = None

    @initialize(owners=st.lists(st.sampled_from(OWNERS), min_size=2, max_size=3))
    def begin(self, owners: list[str]) -> None:
        """A lease that has changed hands, and whose former holders have not noticed."""
        self.system.fresh()
        for owner in owners:
            self.take_over(owner, NAMES[0])

    def teardown(self) -> None:
        """Everybody leaves, whatever becomes of one of them."""
        with ExitStack() as everybody:
            for block in self.blocks:
                everybody.callback(block.leave)

    @rule(owner=st.sampled_from(OWNERS), name=st.sampled_from(NAMES))
    def acquire(self, owner: str, name: str) -> None:
        """An owner asks for a lease, perhaps while another of its threads still believes to have it."""
        manager = self.system.source(owner).lease(name, ttl=TTL, wait=0)
        context = copy_context()
        holder = self._live.get(name)
        try:
            lease = context.run(manager.__enter__)
        except LeaseUnavailableError:
            assert holder is not None, f"{owner} was not given the lease {name!r}, which nobody holds"
            return
        self.blocks.append(_Block(owner, lease, manager, context))
        assert holder is None, f"{owner} was given the lease {name!r}, which {holder.holder} holds under {holder.token}"
        assert lease.name == name
        assert context.run(current_lease) is lease
        lease.ensure()
        newest = self._newest
        assert newest is None or newest.token < lease.token, (
            f"{owner} was given {lease.token} for {name!r}, after {newest and newest.token} had been handed out"
        )
        self._newest = self._live[name] = lease

    @rule(owner=st.sampled_from(OWNERS), name=st.sampled_from(NAMES))
    def take_over(self, owner: str, name: str) -> None:
        """A lease ends, its holder does not notice, and an owner takes it at once."""
        if self._live.pop(name, None) is not None:
            self.system.run_out(name)
        self.acquire(owner, name)

    @precondition(lambda self: self.system.renews)
    @rule(owner=st.sampled_from(OWNERS))
    def renew(self, owner: str) -> None:
        """An owner renews all that it believes to hold, and learns what it has lost; nobody's live lease is touched."""
        self.system.renew(owner)
        for block in self.blocks:
            held = self._live.get(block.lease.name) is block.lease
            if held:
                assert not block.lease.is_lost, f"{block!r} is lost, though nobody else has it: {owner} renewed"
            elif block.owner == owner:
                assert block.lease.is_lost, f"{block!r} was renewed, though it had ended"

    @precondition(lambda self: self.blocks)
    @rule(block=st.runner().flatmap(lambda machine: st.sampled_from(machine.blocks)), owner=st.sampled_from(OWNERS))
    def leave(self, block: _Block, owner: str) -> None:
        """Somebody leaves its block, in time or long after the lease was somebody else's, and an owner asks for it."""
        self.blocks.remove(block)
        block.leave()
        name = block.lease.name
        try:
            block.lease.ensure()
        except LeaseLostError:
            pass
        else:
            raise AssertionError(f"{block!r} was given back, and its lease still says that it holds")
        if self._live.get(name) is block.lease:
            del self._live[name]
        self.acquire(owner, name)
