"""The outbox's SMTP sink among the servers that are started here: its errors are theirs."""

from __future__ import annotations

from typing import Self

from adapters.email import testing
from scheduler.console.embedded._binaries import ServerNotInstalledError, ServerUnavailableError


class SmtpSink(testing.SmtpSink):
    """:class:`adapters.email.testing.SmtpSink`, whose ``start()`` fails as the other servers' does."""

    def start(self) -> Self:
        """Starts to listen. Raises :class:`ServerNotInstalledError` or :class:`ServerUnavailableError`."""
        try:
            return super().start()
        except ModuleNotFoundError as error:
            raise ServerNotInstalledError(
                f"the SMTP server is not here: the package {error.name} is not installed. "
                "Install it with pip install 'fencing-toolkit[demo]'"
            ) from error
        except OSError as error:
            raise ServerUnavailableError(str(error)) from error
