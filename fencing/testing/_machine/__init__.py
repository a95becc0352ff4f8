"""`guard_machine`: workers that claim, pause, expire, wake and write, in any order, held to the law after each step."""

from __future__ import annotations

from fencing.testing._downstream import Downstream
from fencing.testing._machine._failures import Failures
from fencing.testing._machine._losses import Losses
from fencing.testing._machine._meanwhile import Meanwhile


class GuardMachine(Meanwhile, Losses, Failures):
    """Workers with leases and tokens on one downstream; :func:`guard_machine` says on which."""


def guard_machine(downstream: Downstream) -> type[GuardMachine]:
    """Return the state machine for a downstream.

    It is a Hypothesis ``RuleBasedStateMachine``, whose ``TestCase`` pytest and unittest can run. Workers claim jobs,
    are paused, lose their leases, wake, raise the fence or forget to, read, write, write again, crash in between.
    After each step what the downstream answered must be what the law says, with its facts, and so must every mark and
    value. A witness that knows no law holds the promises against it in their own words. What the downstream cannot do
    is left out, and shown by pytest's ``--hypothesis-show-statistics``.
    """
    return type("GuardMachine", (GuardMachine,), {"downstream": downstream, "__doc__": GuardMachine.__doc__})
