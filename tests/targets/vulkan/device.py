"""Whether this machine has a device with Vulkan; Mesa's software driver (lavapipe) is one."""

from __future__ import annotations

from functools import cache

import numpy as np

import tilewright as tw
from tilewright.errors import DeviceError
from tilewright.targets.vulkan import toolchain


@cache
def lacking() -> str:
    """Why artifacts for Vulkan do not run here; empty if they do."""
    if reason := toolchain.missing():
        return reason
    try:
        tw.compile(lambda x: x + 1, (np.ones(1, np.float32),), target="vulkan", cache=False)(
            np.ones(1, np.float32)
        )
    except DeviceError as error:
        if "was not found" not in str(error) and "has no devices" not in str(error):
            raise
        return str(error)
    return ""


__all__ = ["lacking"]
