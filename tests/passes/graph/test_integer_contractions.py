"""Contractions of quantized numbers become products of 8-bit integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.dialects import graph as g
from tilewright.ir.core import Module
from tilewright.ir.types import DType, f32, i4, i8, i32, u4, u8
from tilewright.passes.graph.fold_constants import fold_constants
from tilewright.passes.graph.integer_contractions import integer_contractions

from .graphs import BATCH, build, literal, operators, run

RNG = np.random.default_rng(0)


def numbers(shape: tuple[int, ...], dtype: DType) -> np.ndarray[Any, Any]:
    info = np.iinfo(dtype.numpy)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype.numpy)


def difference(b: Any, q: Any, zero: Any) -> Any:
    """Return ``q - zero`` in i32."""
    return b(
        g.Sub(
            b(g.Cast(q, dtype=i32)), zero if not isinstance(zero, (int, list)) else literal(b, zero, np.int32)
        )
    )


def real(b: Any, q: Any, zero: Any, scale: Any) -> Any:
    return b(g.Mul(b(g.Cast(difference(b, q, zero), dtype=f32)), literal(b, scale)))


def factors(module: Module) -> list[tuple[str, ...]]:
    """Return the types of the factors of every contraction."""
    found = (op for op in module.walk() if isinstance(op, (g.Matmul, g.Conv)))
    return [tuple(v.type.dtype.name for v in op.operands[:2]) for op in found]


@pytest.mark.parametrize("a", [i8, u8])
@pytest.mark.parametrize("zero", [0, 3, list(range(5))], ids=["none", "one", "columns"])
@pytest.mark.parametrize("weight", [i8, u8])
def test_matmul_integer(a: DType, weight: DType, zero: Any) -> None:
    def body(b: Any, x: Any) -> Any:
        w = literal(b, numbers((7, 5), weight))
        return b(g.Matmul(difference(b, x, [[[7]], [[-2]], [[4]]]), difference(b, w, zero)))

    module = build({"x": ((3, BATCH, 7), a)}, body)
    run(module, integer_contractions, fold_constants)
    assert {f[0] for f in factors(module)} == {a.name} and {f[1] for f in factors(module)} <= {"i8", "ui8"}


def test_two_inputs_with_zero_points_of_run_time() -> None:
    module = build(
        {"x": ((BATCH, 6, 7), u8), "y": ((7, 5), i8), "a": ((6, 1), i32), "c": ((5,), i32)},
        lambda b, x, y, a, c: b(g.Matmul(difference(b, x, a), difference(b, y, c))),
    )
    assert run(module, integer_contractions)["ReduceSum"] == 2
    assert factors(module) == [("ui8", "i8")]


def test_a_zero_point_that_keeps_8_bits_goes_into_the_weight() -> None:
    module = build(
        {"x": ((4, 7), u8)},
        lambda b, x: b(
            g.Matmul(b(g.Cast(x, dtype=i32)), difference(b, literal(b, numbers((7, 5), u8)), 128))
        ),
    )  # fmt: skip
    assert run(module, integer_contractions, fold_constants) == {"Matmul": 1}
    assert factors(module) == [("ui8", "i8")]


def test_dequantized_factors_behind_transposes_and_reshapes() -> None:
    def body(b: Any, x: Any) -> Any:
        left = b(g.Reshape(b(g.Transpose(real(b, x, 3, 0.1), permutation=(1, 0, 2))), shape=(6, 4)))
        scales = RNG.uniform(0.1, 0.2, (5, 1)).astype(np.float32)
        return b(
            g.Matmul(
                left, b(g.Transpose(real(b, literal(b, numbers((5, 4), i8)), 0, scales), permutation=(1, 0)))
            )
        )

    module = build({"x": ((3, 2, 4), u8)}, body)
    run(module, integer_contractions, fold_constants)
    assert factors(module) == [("ui8", "i8")]


@pytest.mark.parametrize("weight", [i4, u4])
@pytest.mark.parametrize("zero", [0, 3])
def test_weights_of_four_bits_become_bytes(weight: DType, zero: int) -> None:
    def body(b: Any, x: Any) -> Any:
        low, high = weight.limits
        w = literal(b, RNG.integers(low, high + 1, (7, 5)).astype(weight.numpy))
        return b(g.Matmul(real(b, x, 3, 0.5), real(b, w, zero, 0.25)))

    module = build({"x": ((BATCH, 7), u8)}, body)
    run(module, integer_contractions, fold_constants)
    assert factors(module) == [("ui8", "i8")]


@pytest.mark.parametrize("zero", [0, 9, "run time"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_conv(zero: Any, groups: int) -> None:
    def body(b: Any, x: Any, z: Any) -> Any:
        w = difference(b, literal(b, numbers((4, 4 // groups, 3, 2), u8)), 128)
        options = {"strides": (2, 1), "padding": ((1, 1), (0, 1)), "dilations": (1, 2), "groups": groups}
        return b(g.Conv(difference(b, x, z if zero == "run time" else zero), w, None, **options))

    module = build({"x": ((BATCH, 4, 6, 7), u8), "z": ((), i32)}, body)
    run(module, integer_contractions, fold_constants)
    assert factors(module) == [("ui8", "i8")]


def test_conv_whose_weight_keeps_its_zero_points() -> None:
    def body(b: Any, x: Any) -> Any:
        zeros = np.arange(5, dtype=np.int32).reshape(5, 1, 1, 1)
        extremes = np.where(RNG.random((5, 3, 2, 2)) < 0.5, 0, 255).astype(np.uint8)
        w = difference(b, literal(b, extremes), literal(b, zeros))
        options = {"strides": (1, 1), "padding": ((1, 0), (0, 1)), "dilations": (1, 1)}
        return b(g.Conv(difference(b, x, -3), w, None, **options))

    module = build({"x": ((BATCH, 3, 6, 7), i8)}, body)
    run(module, integer_contractions, fold_constants)
    assert factors(module) == [("i8", "ui8"), ("i8", "i8")]


def test_requantization_divides_by_no_scale() -> None:
    def body(b: Any, x: Any) -> Any:
        product = b(g.Matmul(real(b, x, 3, 0.5), real(b, literal(b, numbers((7, 5), i8)), 0, 0.25)))
        y = b(g.Relu(b(g.Add(product, literal(b, RNG.standard_normal(5).astype(np.float32))))))
        return b(g.Round(b(g.Div(y, literal(b, 2.0)))))  # Powers of two keep results exact.

    assert "Div" not in run(build({"x": ((4, 7), u8)}, body), integer_contractions, fold_constants)


@pytest.mark.parametrize("case", ["scale along k", "long sums", "one real factor", "constants"])
def test_left_alone(case: str) -> None:
    depth = 33_100 if case == "long sums" else 7
    scale = np.ones((depth, 1), np.float32) if case == "scale along k" else np.float32(0.1)

    def body(b: Any, x: Any, y: Any) -> Any:
        w = real(b, literal(b, numbers((depth, 5), i8)), 0, scale)
        left = (
            y
            if case == "one real factor"
            else real(b, literal(b, numbers((4, 7), i8)) if case == "constants" else x, 0, 0.1)
        )
        return b(g.Matmul(left, w))

    module = build({"x": ((4, depth), u8), "y": (4, depth)}, body)
    before = operators(module)
    integer_contractions(module)
    assert operators(module) == before
