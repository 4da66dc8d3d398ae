"""Linear quantization: conversions between real numbers and scaled integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ....dialects import graph as g
from ....dialects.graph.base import normalize_axis
from ....ir.core import Value
from ....ir.types import DType, f32, i32
from .elementwise import cast
from .shape import broadcast, reshape
from .table import importer

if TYPE_CHECKING:
    from ..importer import Node


def _along(n: Node, parameter: Value, x: Value) -> Value:
    """A scale or zero point per tensor, per index of `axis`, or per block along `axis`, made to broadcast with `x`."""
    shape = parameter.type.shape
    if len(shape) == 0 or (len(shape) == 1 and shape[0] == 1 and x.type.rank != 1):
        return reshape(n, parameter, ())
    axis, block = normalize_axis(n.attr("axis", 1), x.type.rank), n.attr("block_size", 0)
    if not block:
        return reshape(n, parameter, [shape[0] if d == axis else 1 for d in range(x.type.rank)])
    wide = (*shape[: axis + 1], block, *shape[axis + 1 :])
    repeated = broadcast(n, reshape(n, parameter, (*shape[: axis + 1], 1, *shape[axis + 1 :])), wide)
    return reshape(n, repeated, x.type.shape)


@importer("DequantizeLinear")
def _dequantize(n: Node) -> Value:
    x, scale = n.value(0), n.value(1)
    dtype = n.dtype_attr("output_dtype") if n.attr("output_dtype", 0) else scale.type.dtype
    y = cast(n, x, i32)
    if n.has(2):
        y = n.emit(g.Sub(y, _along(n, cast(n, n.value(2), i32), x)))
    y = n.emit(g.Mul(cast(n, y, f32), _along(n, cast(n, scale, f32), x)))
    return cast(n, y, dtype)


@importer("QuantizeLinear")
def _quantize(n: Node) -> Value:
    x, scale = n.value(0), n.value(1)
    if n.has(2):
        dtype = n.tensor(2).dtype
    else:
        dtype = n.dtype_attr("output_dtype") if n.attr("output_dtype", 0) else DType.named("ui8")
    y = n.emit(g.Round(n.emit(g.Div(cast(n, x, f32), _along(n, cast(n, scale, f32), x)))))
    if n.has(2):
        y = n.emit(g.Add(y, _along(n, cast(n, n.value(2), f32), x)))
    info = np.iinfo(dtype.numpy)
    return cast(n, n.emit(g.Clamp(y, minimum=float(info.min), maximum=float(info.max))), dtype)
