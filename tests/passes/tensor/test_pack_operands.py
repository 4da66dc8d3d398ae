"""Operands of contractions whose rows lie far apart are copied first; values do not change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.analysis.axis_roles import Roles
from tilewright.dialects import func, graph, tensor
from tilewright.dialects.simd import Panel
from tilewright.dialects.tensor_builder import TensorBuilder
from tilewright.ir import notes
from tilewright.ir.builder import Builder
from tilewright.ir.constant import Constant
from tilewright.ir.core import Module
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.types import DType, TensorType, bf16, f32, i32, u8, u32
from tilewright.ir.verifier import verify
from tilewright.passes.tensor.pack_operands import pack_operands, shares_bytes


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
    arrays = [(rng.standard_normal(shape) * 9 % 99).astype(dtype) for dtype, shape in kinds]
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


@pytest.mark.parametrize(("columns", "depth"), [(96, 64), (33, 70), (40, 31)])
@pytest.mark.parametrize("units", [0, 1, 2])
def test_kernels_of_one_pixel_are_packed_as_words(columns: int, depth: int, units: int) -> None:
    """The two elements of a group are neighbours in a matrix, and in the kernels (O, C, 1, 1) of a
    convolution. An odd row has no whole number of groups.
    """
    module = Module()
    f = func.Func(sym_name="main", arg_names=("a", "b"), result_names=("y",))
    module.body.append(f)
    t = TensorBuilder(Builder(f.body))
    a, b = (
        t.wrap(f.body.add_arg(TensorType(bf16, s))) for s in ((64, depth), (columns, depth) + (1,) * units)
    )

    def element(i: Any, j: Any, k: Any) -> Any:
        return a[i, k].cast(f32) * b[(j, k) + (0,) * units].cast(f32)

    Builder(f.body).insert(func.Return([t.reduce("sum", (64, columns), (depth,), element).value]))
    assert copies(module, Panel(32, 2)) == ["pack"]
    (pack,) = (op for op in module.walk() if isinstance(op, tensor.Compute) and not op.is_reduction)
    words = [read.source.type.dtype is u32 for read in pack.reads]
    assert words == ([True] if depth % 2 == 0 else [False, False])


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


def codes(weights: np.ndarray, axes: tuple[int, int] = (1, 0)) -> Module:
    """Rows of bytes times constant bytes, of which `axes` are the sum's and the columns'."""
    module = Module()
    f = func.Func(sym_name="main", arg_names=("a",), result_names=("y",))
    module.body.append(f)
    b = Builder(f.body)
    t = TensorBuilder(b)
    depth, columns = weights.shape[axes[0]], weights.shape[axes[1]]
    a = t.wrap(f.body.add_arg(TensorType(u8, (3, depth))))
    w = t.wrap(b(graph.Constant(value=Constant(weights, "w"))))

    def element(i: Any, j: Any, k: Any) -> Any:
        return a[i, k].cast(i32) * w[(k, j) if axes == (0, 1) else (j, k)].cast(i32)

    b.insert(func.Return([t.reduce("sum", (3, columns), (depth,), element).value]))
    verify(module)
    return module


@pytest.mark.parametrize("axes", [(0, 1), (1, 0)])
@pytest.mark.parametrize("panel", [Panel(4, halves=True), Panel(2, 4, 4, True), Panel(4, 2, 2, True)])
def test_columns_whose_values_fit_four_bits_share_bytes(panel: Panel, axes: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    for low, shared in ((-8, True), (-9, False)):
        weights = rng.integers(-7, 8, (11, 7)).astype(np.int8)
        weights[3, 2] = low
        module = codes(weights, axes)
        assert copies(module, panel) == []
        (main,) = (op for op in module.walk() if isinstance(op, tensor.Compute))
        roles = Roles.of(main)
        assert roles is not None and roles.halves == shared
        (data,) = (op.value for op in module.walk() if isinstance(op, graph.Constant))
        columns, depth = weights.shape[axes[1]], weights.shape[axes[0]]
        bytes_ = -(-columns // panel.nr) * panel.nr * -(-depth // panel.group) * panel.group
        assert shares_bytes(data) == shared and data.nbytes == (bytes_ // 2 if shared else bytes_)


def test_sums_that_may_be_too_long_take_bytes() -> None:
    """16 times such a sum would not fit 32 bits."""
    module = codes(np.ones((2, 65_794), np.int8))
    pack_operands(module, lambda a, b, n: Panel(2, 4, 4, True))
    assert not any(shares_bytes(op.value) for op in module.walk() if isinstance(op, graph.Constant))


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
