"""Operators that create tensors from shapes and constants only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ....dialects import graph as g
from ....ir.symbolic import Dim, ceildiv, smax
from ....ir.types import DType, i64
from ...unsupported import Unsupported
from ..registry import importer
from .elementwise import cast
from .run_time import range_in_run
from .shape import broadcast

if TYPE_CHECKING:
    from ..node import Node


@importer("Constant")
def _constant(n: Node) -> Any:
    if n.attr("sparse_value") is not None:
        return n.importer.data_tensor(
            n.importer.file.dense(n.attr("sparse_value"), f"node {n.location}"), n.outputs[0]
        )
    value = n.tensor_attr("value")
    if value is not None:
        return n.importer.data_tensor(value, n.outputs[0])
    for name, dtype in (
        ("value_int", np.int64),
        ("value_ints", np.int64),
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_string", object),
        ("value_strings", object),
    ):
        value = n.attr(name)
        if value is not None:
            return n.importer.data_tensor(np.array(value, dtype))
    raise Unsupported(f"constants given as {', '.join(n.attributes) or 'nothing'}")


@importer("ConstantOfShape")
def _constant_of_shape(n: Node) -> Any:
    fill = n.tensor_attr("value")
    fill = np.zeros(1, np.float32) if fill is None else fill
    return broadcast(n, n.constant(fill.reshape(-1)[0], DType.of(fill)), n.sizes(0))


@importer("Range")
def _range(n: Node) -> Any:
    dtype = n.tensor(0).dtype
    if any(n.tensor(k).content is None and n.tensor(k).array is None for k in range(3)):
        return range_in_run(n)
    if not dtype.is_integer:
        start, limit, step = (n.array(k).reshape(-1)[0] for k in range(3))
        return n.constant(start + np.arange(max(0, int(np.ceil((limit - start) / step)))) * step, dtype)
    first, end = n.dims(0)[0], n.dims(1)[0]
    (stride,) = n.numbers(2)
    length: Dim = smax(0, ceildiv(end - first, stride) if stride > 0 else ceildiv(first - end, -stride))
    return n.emit(g.Iota(shape=(length,), start=first, step=stride, dtype=dtype))


@importer("EyeLike")
def _eye_like(n: Node) -> Any:
    x = n.tensor(0)
    dtype = n.dtype_attr("dtype") if n.attr("dtype") is not None else x.dtype
    row, column = (n.emit(g.Iota(shape=x.shape, axis=a)) for a in (0, 1))
    diagonal = n.emit(g.Sub(column, n.constant(n.attr("k", 0), i64)))
    return cast(n, n.emit(g.Eq(row, diagonal)), dtype)


@importer("Shape")
def _shape(n: Node) -> Any:
    shape = list(n.tensor(0).shape)
    return n.dims_value(shape[slice(n.attr("start", 0), n.attr("end", len(shape)))])
