"""Statistics of the channels of images and of the columns of matrices: threads divide the columns."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.targets.llvm.rules.rows import PART_VECTORS


def statistics(x: Any, scale: Any) -> Any:
    """Scaled mean and variance of the last axis's elements, as batch normalization computes them."""
    x = tnp.astype(x, np.float32)
    axes = tuple(range(x.ndim - 1))
    mean = tnp.mean(x, axes)
    variance = tnp.mean((x - mean) ** 2, axes)
    return mean * 0.1 + scale, variance * scale


def nests_with_sums(library: Any) -> list[str]:
    """The text of each kernel that sums, from its first loop on."""
    kernels = re.split(r"loop\.kernel @", library.ir("loop"))[1:]
    return [k[k.index("loop.for") :] for k in kernels if 'combiners = ["sum"]' in k]


@pytest.mark.every_isa
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "step"),
    [
        ((40, 128), 1),
        ((2, 5, 7, 160), 1),  # a number of vectors that four do not divide
        ((2, 5, 7, 96), 1),
        ((3, 11, 64 + 37), 1),  # no whole number of vectors
        ((4, 5, 256), 2),  # every other channel
        ((9, 1), 1),
    ],
)
def test_values(shape: tuple[int, ...], step: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) + 2).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    scale = rng.standard_normal(-(-shape[-1] // step)).astype(np.float32)
    library = tw.compile(lambda x, scale: statistics(x[..., ::step], scale), (x, scale), threads=2)
    part = x[..., ::step].astype(np.float64)
    axes = tuple(range(part.ndim - 1))
    mean, variance = library(x, scale)
    np.testing.assert_allclose(mean, part.mean(axes) * 0.1 + scale, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(variance, part.var(axes) * scale, rtol=5e-6, atol=2e-6)
    once = tw.compile(lambda x, scale: statistics(x[..., ::step], scale), (x, scale), threads=1)(x, scale)
    np.testing.assert_array_equal(mean, once[0])
    np.testing.assert_array_equal(variance, once[1])


@pytest.mark.parametrize("columns", [128, 160, 96, 256, 1008])
def test_threads_divide_the_columns(columns: int) -> None:
    x, scale = np.ones((4, 20, columns), np.float32), np.ones(columns, np.float32)
    library = tw.compile(statistics, (x, scale), target="cpu:x86-64-v4", threads=2)
    nests = nests_with_sums(library)
    assert nests
    for nest in nests:
        first = nest[: nest.index("\n")]
        assert 'kind = "parallel"' in first, first
        (last,) = re.search(r"in 0\.\.(\d+) ", first).groups()  # type: ignore[union-attr]
        part = columns // (int(last) + 1)
        assert part * (int(last) + 1) == columns and part % 16 == 0 and part <= PART_VECTORS * 16
