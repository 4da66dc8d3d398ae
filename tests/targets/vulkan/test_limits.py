"""Limits of devices that a library meets when it runs."""

from __future__ import annotations

import numpy as np
import pytest
from tests.devices import need

import tilewright as tw
from tilewright.errors import DeviceError


def test_a_buffer_that_the_device_does_not_bind() -> None:
    """Mesa's lavapipe binds 128 MiB of a buffer; a descriptor of a part would lose the rest."""
    need("vulkan")
    example = np.ones(100, np.float32)
    library = tw.compile(lambda x: x + 1, (example,), dims={"x": {0: "n"}}, target="vulkan", cache=False)
    assert library(np.ones(1000, np.float32)).sum() == 2000
    large = np.ones(40_000_000, np.float32)
    try:
        found = library(large)
    except DeviceError as error:
        message = r"kernel '\w+' has a buffer of 160000000 bytes; the device '.*' binds \d+ at most"
        with pytest.raises(DeviceError, match=message + r" \(maxStorageBufferRange\)"):
            raise error
    else:
        assert (np.asarray(found) == 2).all()
