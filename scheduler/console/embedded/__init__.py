"""Real servers, started here and gone without a trace: PostgreSQL, Valkey and an SMTP sink.

The quick start and the tests use them. PostgreSQL and Valkey each live in a directory of their own under
the system's directory for temporary files, listen on 127.0.0.1 only, and have a *watchdog*: a small
process that stops the server and removes the directory as soon as the process that started it is gone,
however it went. The SMTP sink runs in the caller's process.

They accept every local connection without a password. Keep nothing in them that other people on the same
machine must not see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scheduler.console.embedded._binaries import ServerNotInstalledError, ServerUnavailableError
from scheduler.console.embedded._postgres import Postgres, Standby
from scheduler.console.embedded._valkey import Valkey

if TYPE_CHECKING:
    from adapters.email.testing import Drop as Drop
    from adapters.email.testing import Exchange as Exchange
    from adapters.email.testing import Received as Received
    from scheduler.console.embedded._smtp import SmtpSink as SmtpSink

__all__ = [
    "Drop",
    "Exchange",
    "Postgres",
    "Received",
    "ServerNotInstalledError",
    "ServerUnavailableError",
    "SmtpSink",
    "Standby",
    "Valkey",
]


def __getattr__(name: str) -> Any:
    # When it is asked for: it brings the outbox's drivers, which a server's watchdog has no use for.
    if name == "SmtpSink":
        from scheduler.console.embedded._smtp import SmtpSink

        return SmtpSink
    if name in ("Drop", "Exchange", "Received"):
        from adapters.email import testing

        return getattr(testing, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
