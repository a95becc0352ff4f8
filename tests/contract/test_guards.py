"""The kit's examples against every guard that there is, through every kind of connection, session and client."""

from collections.abc import Iterator

import pytest
from support import downstreams

from fencing.testing import Downstream, GuardContract


@pytest.fixture(scope="module", params=downstreams.NAMES)
def downstream(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Downstream]:
    with downstreams.downstream(request.param, request, tmp_path_factory.mktemp("kit")) as made:
        yield made


class TestGuards(GuardContract):
    pass
