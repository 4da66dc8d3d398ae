"""Lookups at computed and constant indices, at both ends of the table and with negative indices."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects import func, graph
from tilewright.ir.builder import Builder
from tilewright.ir.constant import Constant
from tilewright.ir.core import Module
from tilewright.ir.types import DType, TensorType, bf16, f32, f64, i8, i64

pytestmark = pytest.mark.every_isa


@pytest.mark.parametrize("dtype", [f32, f64, bf16, i8], ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_along_every_axis(axis: int, dtype: DType) -> None:
    rng = np.random.default_rng(axis)
    x = rng.integers(-100, 100, (11, 37, 21)).astype(dtype.numpy)
    n = x.shape[axis]
    places = np.concatenate([[0, n - 1, -1, -n], rng.integers(-n, n, 50)])
    module = Module()
    f = func.Func(sym_name="main", arg_names=("x", "i"), result_names=("y", "z"))
    module.body.append(f)
    b = Builder(f.body)
    table, where = (
        f.body.add_arg(TensorType(dtype, x.shape), "x"),
        f.body.add_arg(TensorType(i64, places.shape), "i"),
    )
    constant = b(graph.Constant(value=Constant(np.where(places < 0, places + n, places))))
    b.insert(func.Return([b(graph.Gather(table, i, axis=axis)) for i in (where, constant)]))
    for y in tw.compile(module)(x, places):
        np.testing.assert_array_equal(y, np.take(x, places, axis, mode="wrap"))
