"""`GuardContract`: what every adapter keeps, one example and one sentence each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fencing.testing._contract._blocks import Failing, Several, Values
from fencing.testing._contract._effects import Concurrent, Effects, SetUp
from fencing.testing._contract._losses import Losses
from fencing.testing._contract._names import Names
from fencing.testing._contract._verdicts import MissingMarks, Raising, Verdicts
from fencing.testing._downstream import LACKING, Downstream
from fencing.testing._harness import Harness


class GuardContract(
    Verdicts, MissingMarks, Raising, Losses, Failing, Several, Values, Names, Concurrent, Effects, SetUp
):
    """Example tests for an adapter.

    Subclass it under a name that pytest collects, and give it a fixture ``downstream`` that makes your
    :class:`Downstream`::

        class TestMyGuard(GuardContract):
            @pytest.fixture
            def downstream(self):
                return MyDownstream()

    An example that needs what the downstream does not offer is skipped, and says so.
    """

    @pytest.fixture
    def harness(self, request: pytest.FixtureRequest, downstream: Downstream) -> Iterator[Harness]:
        """The downstream, empty, for one example."""
        facts = request.function.__dict__
        lacking = [one.value for one in facts.get("needs", ()) if not downstream.can(one)]
        if lacking:
            pytest.skip(f"{downstream.name}{LACKING}{'; '.join(lacking)}")
        with Harness(downstream, facts.get("on_missing")) as harness:
            yield harness
