"""Planes that become channels: stores of an unrolled loop are shuffled into contiguous vectors."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.numpy as tnp


@pytest.mark.parametrize("width", [5, 16, 35])
@pytest.mark.parametrize("channels", [2, 3, 4, 5])
@pytest.mark.parametrize("border", [0, 1])
def test_planes_become_channels(channels: int, width: int, border: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, channels, 9, width)).astype(np.float32)
    pads = ((0, 0), (0, 0), (border, border), (border, border))
    library = tw.compile(lambda x: tnp.transpose(tnp.pad(x, pads), (0, 2, 3, 1)) * 2, (x,), cache=False)
    np.testing.assert_array_equal(library(x), np.pad(x, pads).transpose(0, 2, 3, 1) * 2)
    text = library.ir("llvm")
    if channels <= 4:
        assert "shufflevector" in text and "masked.scatter" not in text


@pytest.mark.parametrize("parts", [(32, 32), (16, 48), (48, 32, 16)])
def test_ranges_of_a_padded_concatenation(parts: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(3, 6, 5, n)).astype(np.float32) for n in parts]
    pads = ((0, 0), (1, 1), (1, 1), (0, 0))
    library = tw.compile(
        lambda *x: tnp.pad(tnp.maximum(tnp.concatenate(x, -1), 0), pads), tuple(arrays), cache=False
    )
    np.testing.assert_array_equal(library(*arrays), np.pad(np.maximum(np.concatenate(arrays, -1), 0), pads))
