"""First layers of networks on images in 16 bits: three channels are padded to four with a channel of
zeros.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import tilewright as tw


@pytest.mark.parametrize(("channels", "stride"), [(3, 2), (2, 1), (1, 1), (4, 1)])
def test_first_layer(channels: int, stride: int) -> None:
    """The results are those of float32 up to rounding, and a NaN in the image affects only the windows that
    contain it.
    """
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Conv2d(channels, 24, 5, stride, padding=2), nn.ReLU()).eval()
    x = torch.randn(1, channels, 21, 18)
    library = tw.compile(layer, (x,), precision="bf16", cache=False)
    assert "group = 2" in library.ir("loop")
    x[0, channels - 1, 7, 9] = np.nan
    with torch.no_grad():
        wanted = layer(x).numpy()
    found = library(x.numpy())
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-2)


def test_float32_is_left_alone() -> None:
    layer = nn.Conv2d(3, 8, 3, padding=1).eval()
    text = tw.compile(layer, (torch.randn(1, 3, 9, 9),), cache=False).ir("tensor")
    assert "1x11x11x3xf32" in text and "x4xf32" not in text
