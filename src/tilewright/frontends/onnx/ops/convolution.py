"""Convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....dialects import graph as g
from ....dialects.scalar import combiner_identity
from ....errors import CompileError
from ....ir.core import Value
from ....ir.symbolic import Dim, ceildiv, smax
from ....ir.types import i32, i64
from ...unsupported import Unsupported
from ..registry import importer
from .elementwise import cast, scalar
from .run_time import Arithmetic
from .shape import is_static, product, reshape

if TYPE_CHECKING:
    from ..node import Node

Padding = tuple[tuple[Dim, Dim], ...]


def _window(n: Node, x: Value, kernel: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], Padding]:
    """Return strides, dilations and (low, high) padding of a node with a sliding window."""
    rank = len(kernel)
    strides = tuple(n.attr("strides") or [1] * rank)
    dilations = tuple(n.attr("dilations") or [1] * rank)
    auto = n.attr("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        padding = []
        for size, k, s, d in zip(x.type.shape[2:], kernel, strides, dilations, strict=True):
            total = smax(0, (ceildiv(size, s) - 1) * s + d * (k - 1) + 1 - size)
            half = total // 2
            padding.append((half, total - half) if auto == "SAME_UPPER" else (total - half, half))
        return strides, dilations, tuple(padding)
    pads = n.attr("pads") or [0] * (2 * rank)
    if auto == "VALID":
        pads = [0] * (2 * rank)
    return strides, dilations, tuple(zip(pads[:rank], pads[rank:], strict=True))


def _static_padding(n: Node, x: Value, padding: Padding, value: float = 0) -> tuple[Value, Padding]:
    """Insert padding that depends on dynamic sizes as an operator of its own; return the padded tensor and
    the remaining padding.
    """
    if is_static([p for pair in padding for p in pair]):
        return x, padding
    low, high = zip(*padding, strict=True)
    x = n.emit(g.Pad(x, low=(0, 0, *low), high=(0, 0, *high), value=value))
    return x, ((0, 0),) * len(padding)


def _check_kernel(n: Node, w: Value) -> None:
    """Check `kernel_shape`, which repeats the shape of the weight."""
    kernel = n.attr("kernel_shape")
    if kernel is not None and tuple(kernel) != tuple(w.type.shape[2:]):
        raise CompileError(
            f"node {n.location} ({n.op_type}): kernel_shape {kernel} "
            f"contradicts the weight's shape {w.type.shape}"
        )


def conv(n: Node, x: Value, w: Value, bias: Value | None) -> Value:
    """Return the convolution of `x` with `w` that the node's attributes describe."""
    _check_kernel(n, w)
    strides, dilations, padding = _window(n, x, w.type.shape[2:])
    x, padding = _static_padding(n, x, padding)
    groups = n.attr("group", 1)
    return n.emit(g.Conv(x, w, bias, strides=strides, padding=padding, dilations=dilations, groups=groups))


@importer("Conv")
def _float_conv(n: Node) -> Value:
    return conv(n, n.value(0), n.value(1), n.optional(2))


@importer("ConvInteger")
def _conv_integer(n: Node) -> Value:
    x, w = (cast(n, n.value(k), i32) for k in (0, 1))
    if n.has(2):
        x = n.emit(g.Sub(x, cast(n, n.value(2), i32)))
    if n.has(3):
        zero = cast(n, n.value(3), i32)
        if zero.type.rank == 1:
            zero = n.emit(g.Reshape(zero, shape=(*zero.type.shape, *[1] * (w.type.rank - 1))))
        w = n.emit(g.Sub(w, zero))
    return conv(n, x, w, None)


@importer("ConvTranspose")
def _conv_transpose(n: Node) -> Value:
    x, w = n.value(0), n.value(1)
    _check_kernel(n, w)
    kernel = w.type.shape[2:]
    rank = len(kernel)
    strides, dilations = tuple(n.attr("strides") or [1] * rank), tuple(n.attr("dilations") or [1] * rank)
    extra = list(n.attr("output_padding") or [0] * rank)
    pads = list(n.attr("pads") or [0] * (2 * rank))
    auto, wanted = n.attr("auto_pad", "NOTSET"), n.attr("output_shape")
    if wanted is not None or auto in ("SAME_UPPER", "SAME_LOWER"):
        for k in range(rank):
            size = x.type.shape[2 + k]
            target = wanted[-rank:][k] if wanted is not None else size * strides[k]
            total = strides[k] * (size - 1) + extra[k] + (kernel[k] - 1) * dilations[k] + 1 - target
            if not isinstance(total, int):
                raise Unsupported("a padding that depends on dynamic sizes")
            if total < 0:
                extra[k], total = extra[k] - total, 0
            low = total // 2 if auto != "SAME_LOWER" else total - total // 2
            if wanted is not None and auto != "SAME_UPPER":
                low = total - total // 2
            pads[k], pads[rank + k] = low, total - low
    elif auto == "VALID":
        pads = [0] * (2 * rank)
    padding = tuple(zip(pads[:rank], pads[rank:], strict=True))
    attributes = {
        "strides": strides,
        "dilations": dilations,
        "output_padding": tuple(extra),
        "groups": n.attr("group", 1),
    }
    return n.emit(g.ConvTranspose(x, w, n.optional(2), padding=padding, **attributes))


@importer("MaxPool", "AveragePool")
def _pool(n: Node) -> Any:
    return pool(n, n.value(0))


def pool(n: Node, x: Value) -> Any:
    """Return the maxima of windows of `x` (and their positions, if that output is used), or, for any operator
    but MaxPool, the means.
    """
    kernel = tuple(n.attr("kernel_shape"))
    strides, dilations, padding = _window(n, x, kernel)
    options: dict[str, Any] = {
        "kernel": kernel,
        "strides": strides,
        "dilations": dilations,
        "ceil_mode": bool(n.attr("ceil_mode", 0)),
    }
    whole = bool(n.attr("count_include_pad", 0))
    if not is_static([p for pair in padding for p in pair]):
        if n.wants(1):
            raise Unsupported("the second output (places) with a padding that depends on dynamic sizes")
        if n.op_type == "MaxPool":
            x, padding = _static_padding(n, x, padding, combiner_identity("max", x.type.dtype))
        elif whole:
            x, padding = _static_padding(n, x, padding)
        else:
            return _mean_of_real(n, x, padding, options)
    if n.op_type == "MaxPool":
        y = n.emit(g.MaxPool(x, padding=padding, **options))
        if not n.wants(1):
            return y
        return [y, _places_of_maxima(n, x, n.emit(g.MaxPoolIndices(x, padding=padding, **options)))]
    return n.emit(g.AvgPool(x, padding=padding, count_include_pad=whole, **options))


def _mean_of_real(n: Node, x: Value, padding: Padding, options: dict[str, Any]) -> Value:
    """Return the mean of the elements of each window that are not padding."""
    ones = n.emit(g.BroadcastTo(scalar(n, 1, x), shape=(1, 1, *x.type.shape[2:])))
    total, number = (
        n.emit(g.AvgPool(padded, padding=rest, divisor=1, **options))
        for padded, rest in (_static_padding(n, v, padding) for v in (x, ones))
    )
    return n.emit(g.Div(total, number))


def _places_of_maxima(n: Node, x: Value, places: Value) -> Value:
    """Convert positions in a plane to positions in the whole input; with `storage_order` 1 these count in
    column-major order.
    """
    a = Arithmetic(n)
    batch, channels, *spatial = x.type.shape
    if n.attr("storage_order", 0):
        rest, places = places, n.dims_value(0)
        for size, stride in zip(
            reversed(spatial), (product(spatial[:k]) for k in reversed(range(len(spatial)))), strict=True
        ):
            places = a.Add(places, a.Mul(a.Mod(rest, n.dims_value(size)), n.dims_value(stride)))
            rest = a.Floordiv(rest, n.dims_value(size))
    planes = n.emit(g.Iota(shape=(batch, channels, *(1,) * len(spatial)), axis=0))
    planes = a.Add(
        a.Mul(planes, n.dims_value(channels)), a.Iota(shape=(1, channels, *(1,) * len(spatial)), axis=1)
    )
    return a.Add(a.Mul(planes, n.dims_value(product(spatial))), places)


@importer("MaxUnpool")
def _max_unpool(n: Node) -> Value:
    """Scatter elements to the positions that MaxPool returned, and zeros elsewhere; positions count in the
    shape that follows from the windows.
    """
    x, places = n.value(0), n.value(1)
    kernel = n.attr("kernel_shape")
    rank = len(kernel)
    strides, pads = n.attr("strides") or [1] * rank, n.attr("pads") or [0] * (2 * rank)
    unpooled_sizes = [
        (d - 1) * strides[k] + kernel[k] - pads[k] - pads[rank + k] for k, d in enumerate(x.type.shape[2:])
    ]
    shape = (*x.type.shape[:2], *unpooled_sizes)
    empty = n.emit(g.BroadcastTo(scalar(n, 0, x), shape=(product(shape),)))
    flat = [reshape(n, v, (v.type.size,)) for v in (places, x)]
    y = reshape(n, n.emit(g.ScatterElements(empty, *flat, axis=0)), shape)
    if not n.has(2):
        return y
    gaps = tuple(want - have for want, have in zip(n.sizes(2), shape, strict=True))
    return n.emit(g.Pad(y, low=(0,) * (2 + rank), high=gaps))


@importer("Col2Im")
def _col2im(n: Node) -> Value:
    """Sum blocks at their places in the image."""
    x = n.value(0)
    image, block = n.numbers(1), n.numbers(2)
    rank = len(block)
    strides, dilations = n.attr("strides") or [1] * rank, n.attr("dilations") or [1] * rank
    pads = n.attr("pads") or [0] * (2 * rank)
    counts = [
        (image[k] + pads[k] + pads[rank + k] - dilations[k] * (block[k] - 1) - 1) // strides[k] + 1
        for k in range(rank)
    ]
    batch, planes, columns = x.type.shape
    taps, size = int(np.prod(block)), int(np.prod(image))
    if columns != int(np.prod(counts)) or not isinstance(planes, int) or planes % taps:
        raise ValueError(f"{planes} x {columns} elements are not {counts} blocks of {block} for each channel")
    # Image position of each element of each block, of shape (tap, block). Elements in the padding get the
    # position after the last.
    places, outside = np.zeros((taps, columns), np.int64), np.zeros((taps, columns), bool)
    for k, (tap, start) in enumerate(
        zip(np.indices(block).reshape(rank, -1), np.indices(counts).reshape(rank, -1), strict=True)
    ):
        place = start[None, :] * strides[k] + tap[:, None] * dilations[k] - pads[k]
        outside |= (place < 0) | (place >= image[k])
        places = places * image[k] + place
    places[outside] = size
    rows = batch * (planes // taps)
    empty = n.emit(g.BroadcastTo(scalar(n, 0, x), shape=(rows, size)))
    where = n.emit(g.BroadcastTo(n.constant(places.reshape(-1), i64), shape=(rows, taps * columns)))
    values = reshape(n, x, (rows, taps * columns))
    y = n.emit(g.ScatterElements(empty, where, values, axis=1, combiner="sum"))
    return reshape(n, y, (batch, planes // taps, *image))


@importer("LpPool")
def _lp_pool(n: Node) -> Value:
    """Compute ``(sum |x|^p)^(1/p)`` of each window: the mean pool with divisor 1 is a sum."""
    x, p = n.value(0), n.attr("p", 2)
    kernel = tuple(n.attr("kernel_shape"))
    strides, dilations, padding = _window(n, x, kernel)
    x, padding = _static_padding(n, x, padding)
    options = {
        "kernel": kernel,
        "strides": strides,
        "dilations": dilations,
        "ceil_mode": bool(n.attr("ceil_mode", 0)),
    }
    powers = n.emit(g.Pow(n.emit(g.Abs(x)), scalar(n, p, x)))
    total = n.emit(g.AvgPool(powers, padding=padding, divisor=1, **options))
    return n.emit(g.Pow(total, scalar(n, 1.0 / p, x)))


@importer("GlobalLpPool")
def _global_lp_pool(n: Node) -> Value:
    x, p = n.value(0), n.attr("p", 2)
    powers = n.emit(g.Pow(n.emit(g.Abs(x)), scalar(n, p, x)))
    total = n.emit(g.ReduceSum(powers, axes=tuple(range(2, x.type.rank)), keepdims=True))
    return n.emit(g.Pow(total, scalar(n, 1.0 / p, x)))


@importer("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(n: Node) -> Value:
    operator = g.ReduceMean if n.op_type == "GlobalAveragePool" else g.ReduceMax
    return n.emit(operator(n.value(0), axes=tuple(range(2, n.tensor(0).rank)), keepdims=True))
