"""Trigonometric functions of angles of any size."""

from __future__ import annotations

import numpy as np
import pytest
from tests.devices import need, running

import tilewright as tw
import tilewright.numpy as tnp


@pytest.mark.parametrize("target", ["vulkan", "webgpu", "opencl", "cuda", "hip", "metal"])
def test_angles_of_any_size(target: str) -> None:
    need(target)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(1000) * 10.0 ** rng.uniform(-3, 37, 1000)
    # The last number is the float32 that is nearest to a multiple of pi / 2.
    special = [0, np.inf, -np.inf, np.nan, 1e30, -1e30, 99999.9, 100000.0, 100000.02, 16367173 * 2.0**72]
    x = np.concatenate([x, special]).astype(np.float32)
    library = tw.compile(lambda x: (tnp.sin(x), tnp.cos(x), tnp.tan(x)), (x,), target=target, cache=False)
    for found, function in zip(running(library)(x), (np.sin, np.cos, np.tan), strict=True):
        with np.errstate(invalid="ignore"):
            wanted = function(x.astype(np.float64))
        np.testing.assert_allclose(found, wanted, rtol=6e-7, atol=0)
