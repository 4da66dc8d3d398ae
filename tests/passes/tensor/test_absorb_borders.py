"""Products of bytes read images without the constants around them."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.dialects import graph as g
from tilewright.dialects import tensor
from tilewright.ir import notes
from tilewright.ir.builder import Builder
from tilewright.ir.constant import Constant
from tilewright.ir.core import Module, Value
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.types import i8, i32
from tilewright.lowering.pipeline import tensor_passes
from tilewright.targets.mcu.target import mcu_target

from .test_fusion import build


def padded(zero: int) -> Module:
    """A convolution of an image of bytes with `zero` around it, which is a result, too."""

    def body(b: Builder, x: Value) -> list[Value]:
        image = b(g.ReduceMax(b(g.Cast(x, dtype=i8)), axes=(0,), keepdims=False))
        w = np.random.default_rng(0).integers(-9, 9, (3, 8, 3, 3)).astype(np.int8)
        wide = b(g.Pad(image, None, low=(0, 1, 2, 0), high=(0, 1, 0, 0), value=zero))
        y = b(
            g.Conv(
                wide, b(g.Constant(value=Constant(w))), None, strides=(2, 1), padding=((0, 0), (0, 0)),
                dilations=(1, 1), dtype=i32, layout="channels_last",
            )
        )  # fmt: skip
        return [b(g.Neg(image)), y]

    return build({"x": (2, 1, 6, 5, 8)}, body)


@pytest.mark.parametrize("processor", ["cortex-m4", "cortex-m55"])
@pytest.mark.parametrize("zero", [0, -7])
def test_guards_replace_a_padded_copy(processor: str, zero: int) -> None:
    module = padded(zero)
    inputs = [np.arange(480, dtype=np.float32).reshape(2, 1, 6, 5, 8) % 19 - 9]
    wanted = Interpreter(module).run("main", inputs)
    for step in tensor_passes(mcu_target(processor).lowering):
        step(module)
    for y, z in zip(Interpreter(module).run("main", inputs), wanted, strict=True):
        np.testing.assert_array_equal(y, z)
    products = [op for op in module.walk() if notes.CONTRACTION.present(op)]
    reads = [r for op in products if isinstance(op, tensor.Compute) for r in op.reads]
    assert [bool(r.guard) for r in reads].count(True) == 1
