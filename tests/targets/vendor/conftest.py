"""The simulated device of tests of vendors' libraries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tilewright.errors import ArtifactError
from tilewright.runtime.simulated_device import SimulatedDriver, simulated_driver


@pytest.fixture
def driver() -> Iterator[SimulatedDriver]:
    try:
        found = simulated_driver("cuda", True)
        found.add('extern "C" __global__ void tw_nothing() {}')
    except ArtifactError as error:
        pytest.skip(str(error))
    found.reset()
    yield found
