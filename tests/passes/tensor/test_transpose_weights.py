"""The weights of a depthwise convolution are transposed to be read along the lanes; values do not change."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dialects import func, graph, tensor
from tilewright.dialects.tensor_builder import TensorBuilder
from tilewright.ir.builder import Builder
from tilewright.ir.constant import Constant
from tilewright.ir.core import Module
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.types import TensorType, f32
from tilewright.ir.verifier import verify
from tilewright.passes.tensor.mark_contractions import mark_contractions
from tilewright.passes.tensor.transpose_weights import transpose_weights


def depthwise(channels_last: bool) -> Module:
    module = Module()
    f = func.Func(sym_name="main", arg_names=("x",), result_names=("y",))
    module.body.append(f)
    shape = (6, 7, 5) if channels_last else (5, 6, 7)
    x = f.body.add_arg(TensorType(f32, shape))
    b = Builder(f.body)
    t = TensorBuilder(b)
    weights = np.random.default_rng(0).standard_normal((5, 1, 3, 2)).astype(np.float32)
    source, w = t.wrap(x), t.wrap(b(graph.Constant(value=Constant(weights))))

    def element(*i: Any) -> Any:
        *where, r, s = i
        y, column, c = where if channels_last else (where[1], where[2], where[0])
        at = (y + r, column + s, c) if channels_last else (c, y + r, column + s)
        return source[at] * w[c, 0, r, s]

    out = (4, 6, 5) if channels_last else (5, 4, 6)
    b.insert(func.Return([t.reduce("sum", out, (3, 2), element).value]))
    verify(module)
    return module


def read_of_constant(module: Module) -> tensor.Read:
    (compute,) = (op for op in module.walk() if isinstance(op, tensor.Compute))
    (read,) = (r for r in compute.reads if isinstance(r.source.defining_op, graph.Constant))
    return read


def test_channels_last() -> None:
    module = depthwise(channels_last=True)
    x = np.random.default_rng(1).standard_normal((6, 7, 5)).astype(np.float32)
    (before,) = Interpreter(module).run("main", [x])
    transpose_weights(module)
    verify(module)
    (after,) = Interpreter(module).run("main", [x])
    np.testing.assert_array_equal(before, after)
    read = read_of_constant(module)
    assert read.source.type.shape == (1, 3, 2, 5)
    assert [str(e) for e in read.indices] == ["0", "r0", "r1", "i2"]


def test_channels_first_is_left_alone() -> None:
    """With channels first the weights stay, because lanes run along the image's rows and a weight is a single
    number.
    """
    module = depthwise(channels_last=False)
    transpose_weights(module)
    assert read_of_constant(module).source.type.shape == (5, 1, 3, 2)


def test_a_convolution_whose_operands_are_read_in_place() -> None:
    """The last axis of the sum, along which the image is contiguous, becomes the weight's innermost one."""
    module = Module()
    f = func.Func(sym_name="main", arg_names=("x",), result_names=("y",))
    module.body.append(f)
    x = f.body.add_arg(TensorType(f32, (6, 7, 5)))
    b = Builder(f.body)
    t = TensorBuilder(b)
    weights = np.random.default_rng(0).standard_normal((4, 5, 3, 2)).astype(np.float32)
    source, w = t.wrap(x), t.wrap(b(graph.Constant(value=Constant(weights))))
    result = t.reduce(
        "sum", (4, 6, 4), (3, 2, 5), lambda y, z, o, r, s, c: source[(y + r, z + s, c)] * w[o, c, r, s]
    )
    b.insert(func.Return([result.value]))
    mark_contractions(module)
    image = np.random.default_rng(1).standard_normal((6, 7, 5)).astype(np.float32)
    (before,) = Interpreter(module).run("main", [image])
    transpose_weights(module)
    verify(module)
    (after,) = Interpreter(module).run("main", [image])
    np.testing.assert_array_equal(before, after)
    read = read_of_constant(module)
    assert read.source.type.shape == (4, 3, 2, 5)
    assert [str(e) for e in read.indices] == ["i2", "r0", "r1", "r2"]
