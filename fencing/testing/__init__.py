"""The kit that proves an adapter keeps the law (extra ``testing``).

The author of an adapter writes one small class, a :class:`Downstream`, and gets :class:`GuardContract`, example tests
to subclass in pytest, and :func:`guard_machine`, a Hypothesis state machine. Whoever hands out leases writes a
:class:`LeaseSystem` and gets :func:`lease_machine`. Whoever has recorded a history asks :func:`check_history`. pytest
and Hypothesis are imported once they are needed.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from fencing.history import Checked, check_history
from fencing.testing._concurrent import concurrent_history
from fencing.testing._downstream import Capability, Downstream
from fencing.testing._leases import LeaseSystem, MemoryLeases
from fencing.testing._memory import AsyncMemoryGuard, MemoryGuard, MemoryStore
from fencing.testing._memory_downstream import MemoryDownstream, RecordingDownstream, RecordingGuard
from fencing.testing._planted import GUARD_BUGS, LEASE_BUGS, PlantedBug

if TYPE_CHECKING:
    from fencing.testing._contract import GuardContract as GuardContract
    from fencing.testing._kill import Kill as Kill
    from fencing.testing._kill import kill as kill
    from fencing.testing._lease_machine import lease_machine as lease_machine
    from fencing.testing._machine import guard_machine as guard_machine

_LAZY = {
    "GuardContract": "_contract",
    "Kill": "_kill",
    "guard_machine": "_machine",
    "kill": "_kill",
    "lease_machine": "_lease_machine",
}

__all__ = [
    "GUARD_BUGS",
    "LEASE_BUGS",
    "AsyncMemoryGuard",
    "Capability",
    "Checked",
    "Downstream",
    "GuardContract",
    "Kill",
    "LeaseSystem",
    "MemoryDownstream",
    "MemoryGuard",
    "MemoryLeases",
    "MemoryStore",
    "PlantedBug",
    "RecordingDownstream",
    "RecordingGuard",
    "check_history",
    "concurrent_history",
    "guard_machine",
    "kill",
    "lease_machine",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "GuardContract" and "pytest" in sys.modules:
        sys.modules["pytest"].register_assert_rewrite(f"{__name__}._contract")  # its asserts show what they compared
    try:
        module = importlib.import_module(f"{__name__}.{_LAZY[name]}")
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] not in ("hypothesis", "pytest"):
            raise
        raise ModuleNotFoundError(
            f"fencing.testing.{name} needs {exc.name}: pip install 'fencing-toolkit[testing]'", name=exc.name
        ) from exc
    return getattr(module, name)
