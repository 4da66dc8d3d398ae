"""Sorting and top-k compared with NumPy: every element type, axis, direction and length, with ties, NaN,
infinities and zeros of both signs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects import func, tensor
from tilewright.dialects.graph.reduce import Topk
from tilewright.ir.builder import Builder
from tilewright.ir.core import Module
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.symbolic import Dim, symbol
from tilewright.ir.types import (
    DType,
    TensorType,
    bf16,
    boolean,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from tilewright.lowering.pipeline import LoweringOptions, lower, tensor_passes
from tilewright.targets.gpu.rules import RULES

pytestmark = pytest.mark.every_isa

DTYPES = [f64, f32, f16, bf16, i8, u8, i16, u16, i32, u32, i64, u64, boolean]


def module_of(dtype: DType, shape: tuple[Dim, ...], k: Dim, axis: int = -1, largest: bool = True) -> Module:
    module = Module()
    f = func.Func(sym_name="main", arg_names=("x",), result_names=("values", "places"))
    module.body.append(f)
    b = Builder(f.body)
    b.insert(
        func.Return(
            list(
                b.insert(
                    Topk(f.body.add_arg(TensorType(dtype, shape), "x"), k=k, axis=axis, largest=largest)
                ).results
            )
        )
    )
    return module


def data(dtype: DType, *shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return numbers over the whole range with many ties; floats include all special values."""
    rng = np.random.default_rng(seed)
    if dtype is boolean:
        return rng.random(shape) < 0.5
    if dtype.is_float:
        x = (rng.standard_normal(shape) * 3).round(1)
        special = rng.integers(0, 12, shape)
        for k, value in enumerate((np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45)):
            x[special == k] = value
        return x.astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    x = rng.integers(info.min, info.max, shape, dtype=dtype.numpy, endpoint=True)
    return np.where(rng.random(shape) < 0.5, x % 5, x).astype(dtype.numpy)


def check(module: Module, x: np.ndarray[Any, Any], **options: Any) -> None:
    wanted = list(Interpreter(module).run("main", [x]))
    values, places = tw.compile(module, threads=1, **options)(x)
    np.testing.assert_array_equal(places, wanted[1])
    if x.dtype.name == "bfloat16":  # NumPy does not treat NaN of bfloat16 as equal.
        values, wanted[0] = values.astype(np.float32), wanted[0].astype(np.float32)
    np.testing.assert_array_equal(values, wanted[0])


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_element_types(dtype: DType, largest: bool) -> None:
    """All element types are sorted right, by selection (7 of 300) and by radix sort (all 300)."""
    for k in (7, 300):
        check(module_of(dtype, (3, 300), k, largest=largest), data(dtype, 3, 300))


@pytest.mark.parametrize(
    "n,k", [(1, 1), (15, 15), (16, 3), (64, 64), (65, 65), (67, 64), (257, 1), (1000, 999)]
)
def test_lengths(n: int, k: int) -> None:
    check(module_of(f32, (2, n), k), data(f32, 2, n, seed=n))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_axes(axis: int) -> None:
    shape = (70, 9, 11) if axis == 0 else (5, 80, 3) if axis == 1 else (2, 3, 90)
    for k in (4, shape[axis]):
        check(module_of(f32, shape, k, axis, largest=False), data(f32, *shape))


@pytest.mark.parametrize("target", ["cpu:x86-64-v2", "cpu:x86-64-v3"])
def test_narrower_vectors(target: str) -> None:
    for dtype in (f32, f16, i64):
        for k in (5, 130):
            check(module_of(dtype, (2, 130), k), data(dtype, 2, 130), target=target)


def test_reference_sorts_as_numpy() -> None:
    """The reference is stable and has NaN last in ascending order, like NumPy's sort of numbers without zeros
    of both signs.
    """
    x = data(f32, 4, 500)
    x[x == 0] = 0
    np.testing.assert_array_equal(tensor.sorted_places(x, False), np.argsort(x, axis=-1, kind="stable"))
    x = data(u64, 4, 500)
    np.testing.assert_array_equal(tensor.sorted_places(x, False), np.argsort(x, axis=-1, kind="stable"))


def test_symbolic_length() -> None:
    n = symbol("n", 5, 400)
    for k in (5, n):
        library = tw.compile(module_of(f32, (2, n), k))
        for length in (5, 64, 65, 400):
            x = data(f32, 2, length)
            places = tensor.sorted_places(x, True)[:, : 5 if k == 5 else length]
            np.testing.assert_array_equal(library(x)[1], places)


def test_by_counting() -> None:
    """On targets whose workers compute single elements, ranks by counting give the same order."""
    module = module_of(f32, (3, 40), 6, largest=False)
    x = data(f32, 3, 40)
    wanted = Interpreter(module).run("main", [x])
    options = LoweringOptions(panel=None, rules=RULES, row_groups=False)
    for step in tensor_passes(options):
        step(module)
        for found, value in zip(Interpreter(module).run("main", [x]), wanted, strict=True):
            np.testing.assert_array_equal(found, value)


def test_kernels_are_interpretable() -> None:
    """The kernels give the same results at the loop level as at the tensor level."""
    from tilewright.targets.cpu.target import cpu_target

    module = module_of(f32, (3, 40), 6)
    x = data(f32, 3, 40)
    wanted = Interpreter(module).run("main", [x])
    lowered = lower(module, cpu_target("cpu").lowering, lambda step, m: step(m))
    values, places = np.empty((3, 6), np.float32), np.empty((3, 6), np.int64)
    Interpreter(lowered.module).run("main", [x, values, places])
    np.testing.assert_array_equal(values, wanted[0])
    np.testing.assert_array_equal(places, wanted[1])
