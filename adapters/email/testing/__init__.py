"""For tests of what sends mail (extra ``testing``): a real SMTP server that can be told to fail, and a contract for
transports.

:class:`SmtpSink` is the server; the words that follow it here are its faults. As a fixture, ``smtp_sink``, it comes
with ``pytest_plugins = ["adapters.email.testing.plugin"]``. The author of a transport writes a
:class:`TransportSystem` and gets :class:`TransportContract`, example tests to subclass in pytest.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from adapters.email.testing._faults import (
    FakeClock,
    Greylist,
    HangUpAtDot,
    HeldAnswer,
    RefuseContent,
    RefuseRecipient,
    RefuseReuse,
    SlowAnswer,
    times,
)
from adapters.email.testing._script import Answer, Drop, Exchange, Hook, Received
from adapters.email.testing._sink import SmtpSink
from adapters.email.testing._system import Behaviour, TransportSystem

if TYPE_CHECKING:
    from adapters.email.testing._contract import TransportContract as TransportContract

__all__ = [
    "Answer",
    "Behaviour",
    "Drop",
    "Exchange",
    "FakeClock",
    "Greylist",
    "HangUpAtDot",
    "HeldAnswer",
    "Hook",
    "Received",
    "RefuseContent",
    "RefuseRecipient",
    "RefuseReuse",
    "SlowAnswer",
    "SmtpSink",
    "TransportContract",
    "TransportSystem",
    "times",
]


def __getattr__(name: str) -> Any:
    if name != "TransportContract":  # the only one that needs pytest
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if "pytest" in sys.modules:
        sys.modules["pytest"].register_assert_rewrite(f"{__name__}._contract")  # its asserts show what they compared
    try:
        from adapters.email.testing._contract import TransportContract
    except ModuleNotFoundError as exc:
        if exc.name != "pytest":
            raise
        raise ModuleNotFoundError(
            "adapters.email.testing.TransportContract needs pytest: pip install 'fencing-toolkit[testing]'",
            name=exc.name,
        ) from exc
    return TransportContract
