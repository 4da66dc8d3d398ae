"""Results of 8 and 16 bits whose last vector holds a single element: nothing after it is written."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects import func
from tilewright.dialects import graph as g
from tilewright.dialects.scalar import cast_array
from tilewright.ir.builder import Builder
from tilewright.ir.core import Module
from tilewright.ir.types import DType, TensorType, f32, i8, i16, i32, u8

pytestmark = pytest.mark.every_isa


@pytest.mark.parametrize("source,target", [(i32, i8), (f32, i8), (f32, u8), (f32, i16)], ids=lambda t: t.name)
@pytest.mark.parametrize("turned", [False, True])
def test_one_element_is_left(source: DType, target: DType, turned: bool) -> None:
    x = np.random.default_rng(0).uniform(-300, 300, (17, 24)).astype(source.numpy)
    if source.is_float:
        x.reshape(-1)[:6] = [np.nan, np.inf, -np.inf, -0.5, 255.5, 127.9]
    module = Module()
    main = func.Func(sym_name="main", arg_names=("x",), result_names=("y",))
    module.body.append(main)
    b = Builder(main.body)
    y = b(g.Cast(main.body.add_arg(TensorType(source, x.shape), "x"), dtype=target))
    b.insert(
        func.Return(
            [
                b(g.Transpose(y, permutation=(1, 0)))
                if turned
                else b(g.Slice(y, starts=(0, 0), stops=(17, 17), steps=(1, 1)))
            ]
        )
    )
    expected = cast_array(x, target)
    expected = expected.T if turned else expected[:, :17]
    memory = np.full(expected.size + 256, 77, target.numpy)
    out = memory[128 : 128 + expected.size].reshape(expected.shape)
    tw.compile(module)(x, out=out)
    np.testing.assert_array_equal(out, expected)
    assert (memory[:128] == 77).all() and (memory[128 + expected.size :] == 77).all()
