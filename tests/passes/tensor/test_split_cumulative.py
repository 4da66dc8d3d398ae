"""Long running combinations in pieces: the same results, and many lines in place of one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.analysis.cumulative import match_cumulative
from tilewright.dialects import func, scalar, tensor
from tilewright.ir.builder import Builder
from tilewright.ir.core import Module
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.symbolic import Dim, symbol
from tilewright.ir.types import TensorType, f32
from tilewright.ir.verifier import verify
from tilewright.passes.tensor.split_cumulative import PIECE, SHORT, split_cumulative

N = symbol("n", 1, None)


def running(combiner: str, shape: tuple[Dim, ...], axis: int, reverse: bool) -> Module:
    """A module that computes ``combiner over r of x[..., r, ...] + 1`` along an axis."""
    module = Module()
    f = func.Func(sym_name="main", arg_names=("x",), result_names=("y",))
    module.body.append(f)
    x = f.body.add_arg(TensorType(f32, shape), "x")
    axes = tuple(symbol(f"i{k}", 0, n - 1) for k, n in enumerate(shape))
    last = shape[axis] - 1
    r = symbol("r0", 0, last - axes[axis] if reverse else axes[axis])
    where = list(axes)
    where[axis] = last - r if reverse else r
    op = tensor.Compute(axes=axes, reduce_axes=(r,), combiner=combiner, result_types=[TensorType(f32, shape)])
    body = Builder(op.body)
    read = body(tensor.Read(x, (), None, indices=tuple(where), guard=()))
    one = body(scalar.Constant(value=1.0, dtype=f32))
    body.insert(tensor.Yield([body(scalar.BINARY["add"](read, one))]))
    Builder(f.body).insert(op)
    Builder(f.body).insert(func.Return([op.result]))
    verify(module)
    return module


def cumulative(module: Module) -> list[Any]:
    found = [op for op in module.walk() if isinstance(op, tensor.Compute)]
    return [op.shape[run.axis] for op in found if (run := match_cumulative(op)) is not None]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((256,), 0), ((3, 300), 1), ((150, 2), 0), ((2, 133, 3), 1)])
@pytest.mark.parametrize("combiner", ["sum", "max", "prod"])
def test_results(combiner: str, shape: tuple[int, ...], axis: int, reverse: bool) -> None:
    module = running(combiner, shape, axis, reverse)
    x = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    x = x * 0.01 if combiner == "prod" else x
    function = {"sum": np.cumsum, "max": np.maximum.accumulate, "prod": np.cumprod}[combiner]
    wanted = function(np.flip(x, axis) + 1 if reverse else x + 1, axis)
    wanted = np.flip(wanted, axis) if reverse else wanted
    split_cumulative(module)
    verify(module)
    assert max(cumulative(module)) < SHORT
    np.testing.assert_allclose(Interpreter(module).run("main", [x])[0], wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("n", [1, 31, 32, 33, 1500])
def test_unknown_lengths(n: int) -> None:
    module = running("sum", (N,), 0, False)
    split_cumulative(module)
    verify(module)
    assert cumulative(module).count(PIECE) == 3
    x = np.random.default_rng(0).uniform(-1, 1, n).astype(np.float32)
    found = Interpreter(module).run("main", [x])[0]
    np.testing.assert_allclose(found, np.cumsum(x + 1), rtol=1e-4, atol=1e-4)


def test_what_stays() -> None:
    for shape in ((SHORT,), (100_000, 500)):
        module = running("sum", shape, len(shape) - 1, False)
        split_cumulative(module)
        assert cumulative(module) == [shape[-1]]
