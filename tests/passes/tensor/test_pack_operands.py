"""Operands of contractions whose rows lie far apart are copied first; values do not change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.dialects import func, tensor
from tilewright.dialects.simd import Panel
from tilewright.dialects.tensor_builder import TensorBuilder
from tilewright.ir import notes
from tilewright.ir.builder import Builder
from tilewright.ir.core import Module
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.types import DType, TensorType, bf16, f32
from tilewright.ir.verifier import verify
from tilewright.passes.tensor.pack_operands import pack_operands


def product(rows: int, columns: int, depth: int, transposed: bool, dtype: DType = f32) -> Module:
    """``a^T @ b``, or ``a @ b``, of run-time matrices, as a module of the tensor level."""
    module = Module()
    f = func.Func(sym_name="main", arg_names=("a", "b"), result_names=("y",))
    module.body.append(f)
    t = TensorBuilder(Builder(f.body))
    left = (depth, rows) if transposed else (rows, depth)
    a, b = (t.wrap(f.body.add_arg(TensorType(dtype, s))) for s in (left, (depth, columns)))

    def element(i: Any, j: Any, k: Any) -> Any:
        return a[(k, i) if transposed else (i, k)].cast(f32) * b[k, j].cast(f32)

    Builder(f.body).insert(func.Return([t.reduce("sum", (rows, columns), (depth,), element).value]))
    verify(module)
    return module


def copies(module: Module, panel: Panel) -> list[str]:
    """The origins of the computations that packing adds. Checks that values do not change."""
    kinds = [(v.type.dtype.numpy, v.type.shape) for v in module.symbol("main").body.args]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(dtype) for dtype, shape in kinds]
    (before,) = Interpreter(module).run("main", arrays, {})
    pack_operands(module, lambda a, b, n: panel)
    verify(module)
    (after,) = Interpreter(module).run("main", arrays, {})
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-4)
    made = [op for op in module.walk() if isinstance(op, tensor.Compute) and not op.is_reduction]
    return sorted(notes.ORIGIN.get(op) or "" for op in made)


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "transposed", "expected"),
    [
        (256, 256, 128, True, ["pack", "transpose"]),
        (128, 256, 128, True, ["pack"]),  # rows of 512 bytes lie near enough
        (256, 128, 128, True, ["transpose"]),
        (256, 256, 64, True, []),  # too few rows
        (256, 64, 128, True, []),  # too few columns to pay for a transposed copy
        (256, 256, 128, False, ["pack"]),
        (64, 256, 128, False, []),  # too few rows read the right operand
    ],
)
def test_copies_of_far_rows(
    rows: int, columns: int, depth: int, transposed: bool, expected: list[str]
) -> None:
    assert copies(product(rows, columns, depth, transposed), Panel(32)) == expected


def test_groups_of_neighbours_need_rows() -> None:
    """Instructions that multiply pairs of bf16 read the left operand along the sum."""
    module = product(128, 128, 128, True, bf16)
    assert "transpose" in copies(module, Panel(32, 2))
    (main,) = (op for op in module.walk() if isinstance(op, tensor.Compute) and op.is_reduction)
    assert notes.CONTRACTION.present(main)


def windows(channels: int, stride: int, taps: int = 3) -> Module:
    """The gradient of a convolution's weight in bf16, from a padded image, channels last."""
    module = Module()
    f = func.Func(sym_name="main", arg_names=("a", "b"), result_names=("y",))
    module.body.append(f)
    t = TensorBuilder(Builder(f.body))
    size = (7 if taps > 1 else 8) * stride + taps
    a = t.wrap(f.body.add_arg(TensorType(bf16, (2, size, size, channels))))
    b = t.wrap(f.body.add_arg(TensorType(bf16, (2, 8, 8, 64))))

    def element(r: Any, s: Any, c: Any, o: Any, n: Any, p: Any, q: Any) -> Any:
        return a[n, p * stride + r, q * stride + s, c].cast(f32) * b[n, p, q, o].cast(f32)

    y = t.reduce("sum", (taps, taps, channels, 64), (2, 8, 8), element)
    Builder(f.body).insert(func.Return([y.value]))
    verify(module)
    return module


@pytest.mark.parametrize(
    ("channels", "stride", "taps", "expected"),
    [
        (64, 1, 3, ["pack", "transpose"]),
        (64, 2, 3, ["pack", "transpose"]),
        (8, 1, 1, []),  # too few products for the elements that would be copied
        (64, 1, 5, ["pack", "transpose"]),
    ],
)
def test_images_under_windows(channels: int, stride: int, taps: int, expected: list[str]) -> None:
    module = windows(channels, stride, taps)
    assert copies(module, Panel(32, 2)) == expected
    (main,) = (op for op in module.walk() if isinstance(op, tensor.Compute) and op.is_reduction)
    (left, _) = main.reads
    one_copy = len(left.source.type.shape) == 4  # all windows read one copy of the image
    assert one_copy == (stride == 1 and bool(expected) or not expected)
