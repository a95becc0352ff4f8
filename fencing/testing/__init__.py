"""The kit that proves an adapter keeps the law (extra ``testing``).

The author of an adapter writes one small class, a :class:`Downstream`, and gets :class:`GuardContract`, example tests
to subclass in pytest, and :func:`guard_machine`, a Hypothesis state machine. pytest and Hypothesis are imported once
one of these is asked for.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from fencing.testing._downstream import Capability, Downstream
from fencing.testing._memory import AsyncMemoryGuard, MemoryGuard, MemoryStore
from fencing.testing._memory_downstream import MemoryDownstream, RecordingDownstream, RecordingGuard

if TYPE_CHECKING:
    from fencing.testing._contract import GuardContract as GuardContract
    from fencing.testing._machine import guard_machine as guard_machine

_LAZY = {"GuardContract": "_contract", "guard_machine": "_machine"}

__all__ = [
    "AsyncMemoryGuard",
    "Capability",
    "Downstream",
    "GuardContract",
    "MemoryDownstream",
    "MemoryGuard",
    "MemoryStore",
    "RecordingDownstream",
    "RecordingGuard",
    "guard_machine",
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
