"""The fixture, for ``pytest_plugins = ["adapters.email.testing.plugin"]`` in a ``conftest.py``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from adapters.email.testing._sink import SmtpSink


@pytest.fixture
def smtp_sink() -> Iterator[SmtpSink]:
    """A real SMTP server of this test's own, on ``smtp_sink.host`` and ``smtp_sink.port``.

    It keeps what it takes in ``received``, and fails as ``smtp_sink.faults`` or ``with smtp_sink.failing(...)`` say.
    """
    with SmtpSink() as sink:
        yield sink
