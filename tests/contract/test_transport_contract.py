"""The contract of transports has teeth: each planted fault is noticed, and a sound transport passes."""

import pytest
from support.planted_transports import BUGS, ListSession, failing


def test_a_sound_transport_passes() -> None:
    assert failing(ListSession) == []


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_fault_is_noticed(name: str) -> None:
    seen_at, session = BUGS[name]
    assert failing(session), f"{name!r}, seen at {seen_at}, is not noticed"
