"""Where only one element of a dimension of a result is read, only that element is computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.analysis.axis_roles import Roles
from tilewright.dialects import graph, tensor
from tilewright.dialects.simd import Panel
from tilewright.ir.builder import Builder
from tilewright.ir.constant import Constant
from tilewright.ir.core import Value
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import DType, bf16, i8
from tilewright.nn import functional as F

from .test_fusion import OPTIONS, SEQ, build, check_passes, weight

pytestmark = pytest.mark.every_isa


def part(b: Builder, x: Value, start: Any, stop: Any) -> Value:
    """Elements [start, stop) of dimension 1 of `x` [batch, n, k]."""
    starts, stops = (0, start, 0), (x.type.shape[0], stop, x.type.shape[2])
    y: Value = b(graph.Slice(x, starts=starts, stops=stops, steps=(1, 1, 1)))
    return y


def block(b: Builder, x: Value) -> Value:
    """A feed-forward block behind a normalization: [batch, n, 24]."""
    h = b(graph.RmsNorm(x, weight(b, 24), axes=(-1,), epsilon=1e-5))
    h = b(graph.Silu(b(graph.Matmul(h, weight(b, 24, 48)))))
    y: Value = b(graph.Add(x, b(graph.Matmul(h, weight(b, 48, 24)))))
    return y


def products(groups: list[tensor.Group]) -> list[tuple[Any, ...]]:
    """The shapes of the results of kernels with a product."""
    return [g.results[0].type.shape for g in groups if g.kind == "contraction"]


@pytest.mark.parametrize("n", [9, SEQ])
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_block_behind_which_one_token_is_read(n: Any, place: str) -> None:
    def body(b: Builder, x: Value) -> Value:
        y = block(b, x)
        y = part(b, y, 0, 1) if place == "first" else part(b, y, n - 1, n)
        result: Value = b(graph.Matmul(y, weight(b, 24, 10)))
        return result

    groups = check_passes(build({"x": (2, n, 24)}, body), **({} if n == 9 else {"seq": 5}))
    assert products(groups) == [(2, 48), (2, 24), (2, 10)]


def test_results_of_which_more_is_read_stay_whole() -> None:
    def different(b: Builder, x: Value) -> list[Value]:
        y = block(b, x)
        return [b(graph.Relu(part(b, y, k, k + 1))) for k in (0, 3)]

    def whole(b: Builder, x: Value) -> list[Value]:
        y = block(b, x)
        return [b(graph.Relu(part(b, y, 0, 1))), y]

    for body in (different, whole):
        assert products(check_passes(build({"x": (2, 9, 24)}, body))) == [(18, 48), (18, 24)]


def test_a_place_that_may_lie_outside_leaves_the_result_whole() -> None:
    n = symbol("seq", 0, 16)  # a text may have no fourth token

    def body(b: Builder, x: Value) -> Value:
        third = b(graph.Constant(value=Constant(np.array(3))))
        y: Value = b(graph.Gather(block(b, x), third, axis=1))
        return y

    groups = check_passes(build({"x": (2, n, 24)}, body), seq=5)
    assert products(groups) == [(2 * n, 48), (2 * n, 24)]


@pytest.mark.parametrize("n", [1, 2, 17])
def test_the_last_token_of_causal_attention(n: int) -> None:
    """One query of the last token attends to all keys."""
    random = np.random.default_rng(0)
    w = [random.standard_normal(shape).astype(np.float32) / 6 for shape in ((32, 96), (32, 32))]

    def layer(x: Any) -> Any:
        q, k, v = (
            (x @ w[0][:, 32 * i : 32 * i + 32]).reshape(1, x.shape[1], 4, 8).transpose(0, 2, 1, 3)
            for i in range(3)
        )
        y = F.attention(q, k, v, causal=True).transpose(0, 2, 1, 3)
        return x + y.reshape(1, x.shape[1], 32) @ w[1]

    def last(x: Any) -> Any:
        return layer(layer(x))[:, -1]

    def every(x: Any) -> Any:
        return layer(layer(x))

    x = random.standard_normal((1, n, 32)).astype(np.float32)
    dims = {"x": {1: "n<=32"}}
    found, whole = (tw.compile(f, (x[:, :1].repeat(2, 1),), dims=dims, check=True)(x) for f in (last, every))
    np.testing.assert_allclose(found, whole[:, -1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("factors", [i8, bf16])
@pytest.mark.parametrize("alone", [False, True])
def test_quantized_weights_stay_packed(factors: DType, alone: bool) -> None:
    """A product reads one row of what others read whole, or of what it reads `alone`."""
    random = np.random.default_rng(0)
    codes = random.integers(-127, 128, (48, 64)).astype(np.int8)
    scales = random.uniform(0.001, 0.002, (48, 2)).astype(np.float32)

    def body(b: Builder, x: Value) -> list[Value]:
        h = b(graph.Relu(b(graph.Matmul(x, weight(b, 64, 64)))))
        constants = [b(graph.Constant(value=Constant(a))) for a in (codes, scales)]
        y = part(b, b(graph.QuantizedMatMul(h, *constants, factors=factors)), 6, 7)
        return [y] if alone else [y, h]

    options = replace(OPTIONS, panel=lambda *_: Panel(16, 4))
    groups = check_passes(build({"x": (1, 7, 64)}, body), options)
    packed = [op for g in groups for op in g.body.ops if isinstance(op, tensor.Compute) and quantized(op)]
    assert len(packed) == 1


def quantized(op: tensor.Compute) -> bool:
    """Whether a computation multiplies by packed weights."""
    roles = Roles.of(op)
    return roles is not None and roles.quantized is not None
