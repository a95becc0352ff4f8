"""The contract of transports has teeth: each planted fault is noticed, and a sound transport passes."""

import pytest
from support.planted_transports import BUGS, ListSession, ListSystem

from adapters.email.testing import TransportContract
from adapters.email.testing._contract import Hand


def failing(session: type[ListSession]) -> list[str]:
    """The examples that fail, by name."""
    found = []
    for name, example in vars(TransportContract).items():
        if not name.startswith("test_"):
            continue
        system = ListSystem(session)
        try:
            if "hand" in example.__code__.co_varnames:
                example(TransportContract(), Hand(system, system.transport().session()))
            else:
                example(TransportContract(), system)
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 - an assertion, or what the transport raised
            found.append(name)
    return found


def test_a_sound_transport_passes() -> None:
    assert failing(ListSession) == []


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_fault_is_noticed(name: str) -> None:
    seen_at, session = BUGS[name]
    assert failing(session), f"{name!r}, seen at {seen_at}, is not noticed"
