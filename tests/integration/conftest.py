"""What the tests of the scheduler share."""

import pytest
from support.jobs import Tables

from scheduler import Scheduler


@pytest.fixture
def app(ground: tuple[Scheduler, Tables]) -> Scheduler:
    """The scheduler of a test's ``ground``, which each file lays for itself."""
    return ground[0]


@pytest.fixture
def tables(ground: tuple[Scheduler, Tables]) -> Tables:
    """The tables under it."""
    return ground[1]
