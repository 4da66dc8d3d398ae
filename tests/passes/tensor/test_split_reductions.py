"""Long reductions to few results run as two kernels, with the pieces in parallel: values do not change, and
the order of additions is fixed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import nn
from tilewright.dialects import graph
from tilewright.dialects.graph.reduce import Argmax, ReduceMax, ReduceProd, ReduceSum
from tilewright.ir import notes
from tilewright.ir.constant import Constant
from tilewright.ir.types import DType, bf16, f32

from .test_fusion import build, check_passes

pytestmark = pytest.mark.every_isa


@pytest.mark.parametrize(
    "shape,axes,kernels",
    [
        ((300001,), (0,), 2),  # The length has no equal pieces.
        ((2, 140000), (1,), 2),
        ((700, 601), (0, 1), 2),
        ((3, 70, 601, 5), (1, 2), 2),
        ((20000, 16), (0,), 2),
        ((8, 40000), (1,), 2),
        ((9, 40000), (1,), 1),  # sums along rows: each result is work of its own
        ((64, 4096), (1,), 1),
        ((4, 4096), (1,), 1),  # too little work
        ((100, 4000), (1,), 1),  # Enough results for all workers.
    ],
)
def test_pieces(shape: tuple[int, ...], axes: tuple[int, ...], kernels: int) -> None:
    module = build({"x": shape}, lambda b, x: b(ReduceSum(x, axes=axes)))
    assert len(check_passes(module)) == kernels
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    once, twice = (tw.compile(module, threads=threads)(x) for threads in (1, 2))
    np.testing.assert_allclose(once, x.sum(axes, dtype=np.float64), rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(once, twice)


def test_a_softmax_of_long_rows_stays_one_kernel() -> None:
    library = tw.compile(lambda x: nn.functional.softmax(x, axis=-1), (np.zeros((16, 16384), np.float32),))
    assert [k.kind for k in library.kernels.values()] == ["rows"]


@pytest.mark.parametrize("make", [ReduceMax, ReduceProd, Argmax], ids=lambda c: c.__name__)
def test_combiners(make: Any) -> None:
    x = np.random.default_rng(0).uniform(0.999, 1.001, (3, 100003)).astype(np.float32)
    options = {"axis": 1} if make is Argmax else {"axes": (1,)}
    module = build({"x": x.shape}, lambda b, v: b(make(v, **options)))
    wanted = {ReduceMax: np.max, ReduceProd: np.prod, Argmax: np.argmax}[make](x.astype(np.float64), axis=1)
    np.testing.assert_allclose(tw.compile(module)(x), wanted, rtol=1e-4)


def test_what_a_body_computes_from_its_place_is_kept() -> None:
    """Index values in the body, such as a mask of the lower triangle, are shifted with the pieces."""
    module = build(
        {"x": (601, 700)}, lambda b, x: b(ReduceSum(b(graph.Triangular(x, upper=False)), axes=(0, 1)))
    )
    check_passes(module)


def product(m: int, k: int, n: int, constant: bool, dtype: DType = f32) -> tuple[Any, tuple[Any, ...], Any]:
    """Return a module of ``relu(a @ b)``, its inputs, and the result in float64."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(dtype.numpy) for s in ((m, k), (k, n)))
    wanted = np.maximum(a.astype(np.float64) @ b.astype(np.float64), 0)
    if constant:
        module = build({"a": a.shape}, lambda g, x: relu(g, x, g(graph.Constant(value=Constant(b)))), dtype)
        return module, (a,), wanted
    return build({"a": a.shape, "b": b.shape}, relu, dtype), (a, b), wanted


def relu(g: Any, x: Any, y: Any) -> Any:
    return g(graph.Relu(g(graph.Matmul(x, y))))


@pytest.mark.parametrize("constant", [True, False], ids=["weight", "input"])
@pytest.mark.parametrize(
    "m,k,n,pieces",
    [
        (32, 8192, 32, 8),
        (33, 8190, 30, 8),  # The length has no equal pieces.
        (1, 65536, 20, 8),
        (64, 4096, 128, 4),  # two tiles
        (6, 4096, 512, 1),  # enough tiles
        (32, 500, 32, 1),  # a short sum
        (1, 1024, 20, 1),  # too little work
    ],
)
def test_contractions(m: int, k: int, n: int, pieces: int, constant: bool) -> None:
    module, inputs, wanted = product(m, k, n, constant)
    library = tw.compile(module, threads=2)
    assert library.ir("tensor").count(notes.CONTRACTION.key) == 1
    assert (f'"f32", "{pieces}, {m}, {n}"' in library.ir("loop")) == (pieces > 1)
    once, twice = tw.compile(module, threads=1)(*inputs), library(*inputs)
    np.testing.assert_allclose(once, wanted, rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(once, twice)


@pytest.mark.parametrize("k,pieces", [(8192, 8), (8190, 1)])
def test_pieces_of_interleaved_rows(k: int, pieces: int) -> None:
    """Packed groups of rows are divided into equal pieces only, because after the last row of a piece there
    are rows of the next one instead of zeros.
    """
    module, inputs, wanted = product(32, k, 32, constant=True, dtype=bf16)
    library = tw.compile(module)
    assert (f'"f32", "{pieces}, 32, 32"' in library.ir("loop")) == (pieces > 1)
    np.testing.assert_allclose(library(*inputs).astype(np.float64), wanted, rtol=2e-2, atol=2)


def test_passes_of_contractions() -> None:
    module, _, _ = product(3, 8190, 40, constant=True)
    assert len(check_passes(module)) == 2


def test_attention_stays_whole() -> None:
    """Attention stays one kernel, besides the packing of keys: the weighted values are summed where the
    weights are computed.
    """

    def attention(g: Any, q: Any, k: Any, v: Any) -> Any:
        scores = g(graph.Matmul(q, g(graph.Transpose(k, permutation=(1, 0)))))
        return g(graph.Matmul(g(graph.Softmax(scores, axis=-1)), v))

    module = build({"q": (128, 64), "k": (4096, 64), "v": (4096, 64)}, attention)
    assert notes.CONTRACTION.key in tw.compile(module).ir("tensor")
    assert '"8, 128, 64"' not in tw.compile(module).ir("loop")
