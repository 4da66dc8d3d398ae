"""Products of few tiles and long sums: several blocks share a sum, a second kernel adds up their parts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.devices import need, running

import tilewright as tw
import tilewright.numpy as tnp


def normal(dtype: Any, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90", "hip:gfx90a", "opencl"])
def test_results(target: str) -> None:
    need(target)
    x, y = normal(np.float16, 64, 2048), normal(np.float16, 2048, 64, seed=1)
    library = tw.compile(lambda x, y: tnp.maximum(x @ y, 0), (x, y), target=target)
    assert len(library.kernels) == 2
    runs = [np.asarray(running(library)(x, y)) for _ in range(2)]
    np.testing.assert_array_equal(*runs)
    wanted = np.maximum(x.astype(np.float64) @ y.astype(np.float64), 0)
    np.testing.assert_allclose(runs[0].astype(np.float64), wanted, atol=2e-3 * wanted.max())


def test_the_order_of_blocks_does_not_matter() -> None:
    """Checked runs take blocks in a random order and find blocks that add to one element."""
    x, y = normal(ml_dtypes.bfloat16, 64, 1024), normal(ml_dtypes.bfloat16, 1024, 64, seed=1)
    library = tw.compile(lambda x, y: x @ y, (x, y), target="cuda:sm_80")
    first = np.asarray(library.simulated()(x, y))
    np.testing.assert_array_equal(first, np.asarray(library.simulated(checked=True)(x, y)))


@pytest.mark.parametrize(
    ("shape", "kernels"),
    [
        ((64, 2048, 64), 2),
        ((64, 900, 64), 1),  # too short a sum
        ((704, 2048, 640), 1),  # as many tiles as multiprocessors
        ((2, 2048, 64), 1),  # few rows have no tiles
    ],
)
def test_choice(shape: tuple[int, int, int], kernels: int) -> None:
    m, k, n = shape
    x, y = np.zeros((m, k), np.float16), np.zeros((k, n), np.float16)
    assert len(tw.compile(lambda x, y: x @ y, (x, y), target="cuda:sm_80").kernels) == kernels
