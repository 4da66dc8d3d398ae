"""Projections of one tensor are merged into one product."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dialects import graph as g
from tilewright.ir.constant import Constant
from tilewright.ir.types import f32, i4, i8
from tilewright.passes.graph.merge_matmuls import merge_matmuls

from .graphs import BATCH, SEQ, build, outputs, run, weight

X = {"x": (BATCH, SEQ, 6)}


def linear(b: Any, x: Any, n: int, bias: bool, seed: int) -> Any:
    y = b(g.Matmul(x, weight(b, 6, n, seed=seed)))
    return b(g.Add(y, weight(b, n, seed=seed))) if bias else y


def test_projections_with_and_without_bias() -> None:
    def body(b: Any, x: Any) -> Any:
        h = b(g.Relu(x))
        q, k, v = (linear(b, h, n, bias, n) for n, bias in ((4, True), (2, False), (3, True)))
        return [b(g.Neg(q)), k, b(g.Softmax(v))]

    module = build(X, body)
    assert run(module, merge_matmuls) == {
        "Relu": 1,
        "Matmul": 1,
        "Add": 1,
        "Slice": 3,
        "Neg": 1,
        "Softmax": 1,
    }
    slices = [v.defining_op for v in outputs(module)]
    assert slices[1].starts == (0, 0, 4) and slices[1].stops[-1] == 6


def test_products_of_different_tensors_stay() -> None:
    module = build(X, lambda b, x: [linear(b, x, 4, True, 1), linear(b, b(g.Relu(x)), 4, True, 2)])
    assert run(module, merge_matmuls) == {"Matmul": 2, "Add": 2, "Relu": 1}


def test_a_gate_stays_apart() -> None:
    def body(b: Any, x: Any) -> Any:
        return b(g.Mul(b(g.Silu(linear(b, x, 4, False, 1))), linear(b, x, 4, False, 2)))

    assert run(build(X, body), merge_matmuls)["Matmul"] == 2


def test_a_product_read_twice() -> None:
    def body(b: Any, x: Any) -> Any:
        y = b(g.Matmul(x, weight(b, 6, 4)))
        return [b(g.Add(y, weight(b, 4))), b(g.Neg(y)), linear(b, x, 2, False, 5)]

    assert run(build(X, body), merge_matmuls) == {"Matmul": 1, "Slice": 2, "Add": 1, "Neg": 1}


def quantized(b: Any, x: Any, n: int, groups: int = 2, factors: Any = i8) -> Any:
    rng = np.random.default_rng(n)
    qvalues = rng.integers(-8, 8, (n, 64), np.int8).astype(i4.numpy)
    scales = (rng.random((n, groups)) * 0.1).astype(np.float16)
    parts = (
        b(g.Constant(value=Constant(array, name)))
        for array, name in ((qvalues, f"w{n}.qvalues"), (scales, f"w{n}.scales"))
    )
    return b(g.QuantizedMatMul(x, *parts, factors=factors))


def test_projections_with_qvalues_of_few_bits() -> None:
    def body(b: Any, x: Any) -> Any:
        v = b(g.Add(quantized(b, x, 5), weight(b, 5)))
        return [b(g.Neg(quantized(b, x, 8))), quantized(b, x, 3), b(g.Softmax(v))]

    module = build({"x": (BATCH, SEQ, 64)}, body)
    assert run(module, merge_matmuls) == {"QuantizedMatMul": 1, "Add": 1, "Slice": 3, "Neg": 1, "Softmax": 1}
    (product,) = (op for op in module.walk() if isinstance(op, g.QuantizedMatMul))
    qvalues, scales = (v.defining_op.value for v in (product.qvalues, product.scales))
    assert qvalues.shape == (16, 64) and scales.shape == (16, 2)
    assert [name for name, _ in qvalues.parameters] == ["w5.qvalues", "w8.qvalues", "w3.qvalues"]


def test_products_with_other_groups_or_factors_stay() -> None:
    def body(b: Any, x: Any) -> Any:
        return [quantized(b, x, 8), quantized(b, x, 5, groups=4), quantized(b, x, 3, factors=f32)]

    assert run(build({"x": (BATCH, 64)}, body), merge_matmuls) == {"QuantizedMatMul": 3}
