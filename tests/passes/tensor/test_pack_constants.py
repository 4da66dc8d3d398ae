"""Elements of narrow constants share bytes of memory on GPUs; values do not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.analysis.axis_roles import Roles
from tilewright.dialects import func, graph, tensor
from tilewright.dialects.tensor_builder import Scalar, TensorBuilder, TensorRef
from tilewright.dialects.weight_form import WeightForm
from tilewright.ir import notes
from tilewright.ir.builder import Builder
from tilewright.ir.constant import Constant
from tilewright.ir.core import Module
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.types import DType, TensorType, f32, i4, i8, i64, u4, u8
from tilewright.ir.verifier import verify
from tilewright.passes.tensor.mark_contractions import mark_contractions
from tilewright.passes.tensor.pack_constants import pack_constants

Made = Callable[[TensorBuilder, TensorRef, TensorRef], TensorRef]


def drawn(dtype: DType, *shape: int) -> np.ndarray[Any, Any]:
    low, high = dtype.limits
    return np.random.default_rng(0).integers(low, high + 1, shape).astype(dtype.numpy)


def program(dtype: DType, weights: tuple[int, ...], x: TensorType, made: Made) -> Module:
    """A function of x that reads a constant of type `dtype` and shape `weights`."""
    module = Module()
    f = func.Func(sym_name="main", arg_names=("x",), result_names=("y",))
    module.body.append(f)
    b = Builder(f.body)
    t = TensorBuilder(b)
    w = t.wrap(b(graph.Constant(value=Constant(drawn(dtype, *weights), "w"))))
    b.insert(func.Return([made(t, t.wrap(f.body.add_arg(x)), w).value]))
    verify(module)
    return module


def in_groups(t: TensorBuilder, x: TensorRef, w: TensorRef) -> TensorRef:
    """A product whose terms are groups of 16 numbers."""
    y = t.reduce("sum", (3, 6), (4, 16), lambda i, n, g, k: x[i, 16 * g + k] * w[n, 16 * g + k].cast(f32))
    made = y.value.defining_op
    assert made is not None
    notes.QUANTIZED.set(made, WeightForm(4).attribute)
    return y


def along_rows(t: TensorBuilder, x: TensorRef, w: TensorRef) -> TensorRef:
    return t.reduce("sum", (3, 10), (64,), lambda i, n, k: x[i, k] * w[k, n].cast(f32))


def product(t: TensorBuilder, x: TensorRef, w: TensorRef) -> TensorRef:
    return t.reduce("sum", (3, 6), (64,), lambda i, n, k: x[i, k] * w[n, k].cast(f32))


def by_two_axes(t: TensorBuilder, x: TensorRef, w: TensorRef) -> TensorRef:
    """The places in the constant are no sum of an axis and a multiple of its extent."""
    return t.reduce("sum", (3,), (60, 4), lambda i, a, b: x[i, a] * w[0, a + b].cast(f32))


def every_third(t: TensorBuilder, x: TensorRef, w: TensorRef) -> TensorRef:
    return t.compute((3, 6), lambda i, k: x[i, k] + w[i, 18 - 3 * k].cast(f32))


def beyond_the_end(t: TensorBuilder, x: TensorRef, w: TensorRef) -> TensorRef:
    def element(i: Any, k: Any) -> Scalar:
        inside = w.at(i, k - 2, guard=(k - 2, 20 - k), otherwise=0)
        return x[i, k] + inside.cast(f32)

    return t.compute((3, 24), element)


def rows_by_data(t: TensorBuilder, x: TensorRef, w: TensorRef) -> TensorRef:
    return t.compute((3, 64), lambda i, k: x[i, k] * w[x[i, 0].cast(i64), k].cast(f32))


def columns_by_data(t: TensorBuilder, x: TensorRef, w: TensorRef) -> TensorRef:
    return t.compute((3,), lambda i: w[i, x[i, 0].cast(i64)].cast(f32))


PACKED: dict[str, tuple[DType, tuple[int, ...], Made, tuple[int, ...]]] = {
    "groups": (i4, (6, 64), in_groups, (6, 32)),
    "unsigned": (u4, (6, 64), in_groups, (6, 32)),
    "two bits": (DType.named("int2"), (6, 64), in_groups, (6, 16)),
    "along rows": (i4, (64, 10), along_rows, (32, 10)),
    "a product": (i4, (6, 64), product, (6, 32)),
    "two axes": (i4, (1, 63), by_two_axes, (1, 32)),
    "odd": (i4, (3, 19), every_third, (3, 10)),
    "guarded": (i4, (3, 19), beyond_the_end, (3, 10)),
    "rows by data": (i4, (3, 64), rows_by_data, (3, 32)),
}


@pytest.mark.parametrize("name", PACKED)
def test_values(name: str) -> None:
    dtype, shape, made, shared = PACKED[name]
    module = program(dtype, shape, TensorType(f32, (3, 64)), made)
    x = np.random.default_rng(1).integers(0, 3, (3, 64)).astype(np.float32)
    (before,) = Interpreter(module).run("main", [x])
    pack_constants(module)
    verify(module)
    (constant,) = (op.value for op in module.walk() if isinstance(op, graph.Constant))
    assert constant.dtype is u8 and constant.shape == shared
    assert [name for name, _ in constant.parameters] == ["w"]
    (after,) = Interpreter(module).run("main", [x])
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(("dtype", "made"), [(i4, columns_by_data), (i8, in_groups)])
def test_what_is_left_alone(dtype: DType, made: Made) -> None:
    """Places along the packed dimension that data decide; types as wide as bytes."""
    module = program(dtype, (6, 64), TensorType(f32, (3, 64)), made)
    pack_constants(module)
    (constant,) = (op.value for op in module.walk() if isinstance(op, graph.Constant))
    assert constant.dtype is dtype and constant.shape == (6, 64)


def test_roles_and_addresses() -> None:
    """A reduction gets an axis over the parts of a byte, next to that over bytes; addresses are affine."""
    module = program(i4, (6, 64), TensorType(f32, (3, 64)), in_groups)
    mark_contractions(module)
    pack_constants(module)
    (compute,) = (op for op in module.walk() if isinstance(op, tensor.Compute))
    assert [str(tensor.extent(a)) for a in compute.reduce_axes] == ["4", "2", "8"]
    roles = Roles.of(compute)
    assert roles is not None and roles.k == (0, 1, 2)
    x, w = compute.reads
    assert [str(e) for e in x.indices] == ["i0", "16*r0 + 8*r2 + r3"]
    assert [str(e) for e in w.indices] == ["i1", "8*r0 + r3"]


def test_functions_share_packed_constants() -> None:
    """A function that reads rows reads them in the layout that a product of another function asks for."""
    module = Module()
    value = Constant(drawn(i4, 6, 64), "w")
    for name, made in (("rows", rows_by_data), ("product", in_groups)):
        f = func.Func(sym_name=name, arg_names=("x",), result_names=("y",))
        module.body.append(f)
        b = Builder(f.body)
        t = TensorBuilder(b)
        w = t.wrap(b(graph.Constant(value=value)))
        y = made(t, t.wrap(f.body.add_arg(TensorType(f32, (3, 64)))), w)
        b.insert(func.Return([y.value]))
    x = np.random.default_rng(1).integers(0, 3, (3, 64)).astype(np.float32)
    before = [Interpreter(module).run(name, [x])[0] for name in ("rows", "product")]
    pack_constants(module)
    verify(module)
    first, second = (op.value for op in module.walk() if isinstance(op, graph.Constant))
    assert first == second and first.shape == (6, 32)
    after = [Interpreter(module).run(name, [x])[0] for name in ("rows", "product")]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
