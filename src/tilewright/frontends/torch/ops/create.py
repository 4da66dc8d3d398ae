"""Creation of tensors from numbers and sizes."""

from __future__ import annotations

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim, Expr
from ...unsupported import Unsupported
from ..importer import Node, Number
from ..registry import importer


def filled(n: Node, value: Number) -> Value:
    """Return a tensor of the result's shape and dtype with one value everywhere."""
    return n.broadcast(n.as_tensor(value, n.result_dtype()), n.result_shape())


@importer("aten.full.default", "aten.full_like.default")
def full(n: Node, _: object, value: Number, **__: object) -> Value:
    return filled(n, value)


@importer("aten.new_full.default")
def new_full(n: Node, _: object, __: object, value: Number, **___: object) -> Value:
    return filled(n, value)


@importer("aten.fill.Scalar", "aten.fill.Tensor")
def fill(n: Node, _: Value, value: Number) -> Value:
    return filled(n, value)


@importer(
    "aten.zeros.default",
    "aten.zeros_like.default",
    "aten.new_zeros.default",
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.new_empty.default",
    "aten.empty_strided.default",
    "aten.new_empty_strided.default",
    "aten.empty_permuted.default",
)
def zeros(n: Node, *_: object, **__: object) -> Value:
    return filled(n, 0)


@importer("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(n: Node, *_: object, **__: object) -> Value:
    return filled(n, 1)


@importer("aten.scalar_tensor.default")
def scalar_tensor(n: Node, value: Number, **_: object) -> Value:
    return filled(n, value)


def iota(n: Node, start: Number, step: Number) -> Value:
    """Return the numbers from `start` on along the result's only dimension."""
    shape, dtype = n.result_shape(), n.result_dtype()
    if dtype.is_float:
        # Integers are computed exactly first, so that large indices and 16-bit floats keep their precision.
        if isinstance(start, (int, Expr)) and isinstance(step, (int, Expr)):
            return n.cast(n.emit(g.Iota(shape=shape, start=start, step=step)), dtype)
        if isinstance(start, Expr) or isinstance(step, Expr):
            raise Unsupported("a range of fractions with a dynamic start or step")
        return n.emit(g.Iota(shape=shape, start=float(start), step=float(step), dtype=dtype))
    start, step = (x if isinstance(x, Expr) else int(x) for x in (start, step))
    return n.emit(g.Iota(shape=shape, start=start, step=step, dtype=dtype))


@importer("aten.arange.default")
def arange(n: Node, stop: Number, **_: object) -> Value:
    return iota(n, 0, 1)


@importer("aten.arange.start")
def arange_start(n: Node, start: Number, stop: Number, **_: object) -> Value:
    return iota(n, start, 1)


@importer("aten.arange.start_step")
def arange_step(n: Node, start: Number, stop: Number, step: Number = 1, **_: object) -> Value:
    return iota(n, start, step)


@importer("prims.iota.default")
def prims_iota(n: Node, length: Dim, *, start: Dim, step: Dim, **_: object) -> Value:
    return iota(n, start, step)


@importer("aten.linspace.default")
def linspace(n: Node, start: float, stop: float, steps: Dim, **_: object) -> Value:
    if not isinstance(steps, int):
        dtype = n.result_dtype()
        span = n.binary("sub", n.constant(stop, dtype), n.constant(start, dtype))
        step = n.binary("div", span, n.scalar(steps - 1, dtype))
        index = n.cast(n.emit(g.Iota(shape=n.result_shape())), dtype)
        return n.binary("add", n.binary("mul", index, step), n.constant(start, dtype))
    import numpy as np

    return n.constant(np.linspace(start, stop, steps), n.result_dtype())


@importer("aten.eye.default", "aten.eye.m")
def eye(n: Node, *_: object, **__: object) -> Value:
    rows, columns = n.result_shape()
    row, column = (n.emit(g.Iota(shape=(rows, columns), axis=a)) for a in (0, 1))
    return n.cast(n.binary("eq", row, column), n.result_dtype())


@importer("aten.tril.default")
def tril(n: Node, x: Value, diagonal: Dim = 0) -> Value:
    return n.emit(g.Triangular(x, upper=False, diagonal=diagonal))


@importer("aten.triu.default")
def triu(n: Node, x: Value, diagonal: Dim = 0) -> Value:
    return n.emit(g.Triangular(x, upper=True, diagonal=diagonal))


@importer("aten.tril_indices.default")
def tril_indices(n: Node, rows: int, columns: int, offset: int = 0, **_: object) -> Value:
    """Return row and column of each element on and below a diagonal, in row-major order."""
    import numpy as np

    return n.constant(np.stack(np.tril_indices(rows, offset, columns)), n.result_dtype())


@importer("aten.triu_indices.default")
def triu_indices(n: Node, rows: int, columns: int, offset: int = 0, **_: object) -> Value:
    """Return row and column of each element on and above a diagonal, in row-major order."""
    import numpy as np

    return n.constant(np.stack(np.triu_indices(rows, offset, columns)), n.result_dtype())


@importer("aten.one_hot.default")
def one_hot(n: Node, x: Value, num_classes: int = -1) -> Value:
    return n.emit(g.OneHot(x, depth=n.result_shape()[-1], dtype=n.result_dtype()))
