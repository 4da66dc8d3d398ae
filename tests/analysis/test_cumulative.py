"""Cumulative sums and products run in one pass along every axis, in both directions, for every element type,
at sizes that do and do not fill vectors, and on targets with and without masked instructions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.analysis.cumulative import CumulativeReduction, match_cumulative
from tilewright.dialects import func, tensor
from tilewright.dialects.graph.reduce import Cumprod, Cumsum
from tilewright.ir.builder import Builder
from tilewright.ir.core import Module
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import DType, TensorType, bf16, f16, f32, f64, i8, i32, i64

from ..passes.tensor.test_fusion import build, check_passes

pytestmark = pytest.mark.every_isa

SHAPES = [(37,), (3, 129, 7), (2, 9, 1100), (1, 1)]


def module_of(make: Any, dtype: DType, shape: tuple[Any, ...], **options: Any) -> Module:
    module = Module()
    f = func.Func(sym_name="main", arg_names=("x",), result_names=("y",))
    module.body.append(f)
    b = Builder(f.body)
    b.insert(func.Return([b(make(f.body.add_arg(TensorType(dtype, shape), "x"), **options))]))
    return module


def numbers(dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(math.prod(shape))
    if dtype.is_float:
        return rng.uniform(0.5, 1.5, shape).astype(dtype.numpy)
    return rng.integers(-3, 4, shape).astype(dtype.numpy)


def check(module: Module, x: np.ndarray[Any, Any], target: str = "cpu") -> None:
    (wanted,) = Interpreter(module).run("main", [x])
    found = tw.compile(module, target=target, threads=1)(x)
    # Compiled code adds floating-point numbers in another order than the interpreter, so results differ by
    # rounding.
    tolerance = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}.get(x.dtype.name, 0)
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=tolerance)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("exclusive,reverse", [(False, False), (True, False), (False, True), (True, True)])
def test_axes_and_directions(shape: tuple[int, ...], exclusive: bool, reverse: bool) -> None:
    for axis in range(len(shape)):
        check(
            module_of(Cumsum, f32, shape, axis=axis, exclusive=exclusive, reverse=reverse),
            numbers(f32, shape),
        )


@pytest.mark.parametrize("dtype", [f64, f16, bf16, i8, i32, i64], ids=str)
def test_element_types(dtype: DType) -> None:
    for axis in (0, 1):
        check(module_of(Cumsum, dtype, (19, 83), axis=axis), numbers(dtype, (19, 83)))
    check(module_of(Cumprod, dtype, (3, 21), axis=1), numbers(dtype, (3, 21)))


@pytest.mark.parametrize("target", ["cpu:x86-64-v2", "cpu:x86-64-v3"])
def test_without_masks(target: str) -> None:
    for axis in (0, 1):
        check(module_of(Cumsum, f32, (11, 45), axis=axis, exclusive=True), numbers(f32, (11, 45)), target)


def test_symbolic_sizes() -> None:
    n, m = symbol("n", 0, 40), symbol("m", 1, 3000)
    for axis in (0, 1):
        library = tw.compile(module_of(Cumsum, f32, (n, m), axis=axis))
        for shape in ((0, 5), (1, 1), (3, 2100), (40, 17)):
            x = numbers(f32, shape)
            np.testing.assert_allclose(library(x), x.astype(np.float64).cumsum(axis), rtol=2e-5)


def test_not_a_number_stays() -> None:
    x = numbers(f32, (2, 50))
    x[0, 20] = np.nan
    found = tw.compile(module_of(Cumsum, f32, x.shape, axis=1))(x)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(x.cumsum(1)))


def test_one_pass() -> None:
    """A cumulative sum becomes one kernel that does one addition for each element."""
    (group,) = check_passes(build({"x": (40, 30)}, lambda b, x: b(Cumsum(x, axis=0, reverse=True))))
    assert group.kind == "cumulative"
    (op, _) = group.body.ops
    assert isinstance(op, tensor.Compute) and match_cumulative(op) == CumulativeReduction(0, True)
    module = module_of(Cumsum, f32, (4000, 1000), axis=0)
    assert tw.compile(module).metadata["kernels"][0]["flops"] <= 4000 * 1000
