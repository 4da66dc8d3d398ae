"""Long reductions to few results in two kernels: same values, the pieces in parallel, a fixed order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects import graph
from tilewright.dialects.graph.reduce import Argmax, ReduceMax, ReduceProd, ReduceSum

from .test_fusion import build, check_passes


@pytest.mark.parametrize(
    "shape,axes,kernels",
    [
        ((300001,), (0,), 2),  # no equal pieces
        ((2, 140000), (1,), 2),
        ((700, 601), (0, 1), 2),
        ((3, 70, 601, 5), (1, 2), 2),
        ((20000, 16), (0,), 2),
        ((4, 4096), (1,), 1),  # too little work
        ((100, 4000), (1,), 1),  # results enough for all workers
    ],
)
def test_pieces(shape: tuple[int, ...], axes: tuple[int, ...], kernels: int) -> None:
    module = build({"x": shape}, lambda b, x: b(ReduceSum(x, axes=axes)))
    assert len(check_passes(module)) == kernels
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    once, twice = (tw.compile(module, threads=threads)(x) for threads in (1, 2))
    np.testing.assert_allclose(once, x.sum(axes, dtype=np.float64), rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(once, twice)


@pytest.mark.parametrize("make", [ReduceMax, ReduceProd, Argmax], ids=lambda c: c.__name__)
def test_combiners(make: Any) -> None:
    x = np.random.default_rng(0).uniform(0.999, 1.001, (3, 100003)).astype(np.float32)
    options = {"axis": 1} if make is Argmax else {"axes": (1,)}
    module = build({"x": x.shape}, lambda b, v: b(make(v, **options)))
    wanted = {ReduceMax: np.max, ReduceProd: np.prod, Argmax: np.argmax}[make](x.astype(np.float64), axis=1)
    np.testing.assert_allclose(tw.compile(module)(x), wanted, rtol=1e-4)


def test_what_a_body_computes_from_its_place_is_kept() -> None:
    """Index values in the body (a mask of the lower triangle) move with the pieces."""
    module = build({"x": (601, 700)}, lambda b, x: b(ReduceSum(b(graph.Triangular(x, upper=False)), axes=(0, 1))))
    check_passes(module)
