"""Operations that move elements by rules known at compile time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim
from ...complex import Complex, each
from ...unsupported import Unsupported
from ..registry import importer

if TYPE_CHECKING:
    from ..node import Node, Tensor


def result_shape(n: Node, sizes: int | None = None) -> list[Dim]:
    """Return the shape of the result, from its type or, for a dimension that the type leaves open, from
    operand `sizes`.
    """
    shape = n.shape()
    if sizes is not None and None in shape:
        return n.sizes(sizes)
    if None in shape:
        raise Unsupported("a result whose size follows neither from its type nor from its operands")
    return [d for d in shape if d is not None]


def broadcast_in_dim(n: Node, x: Tensor, dims: Sequence[int], shape: Sequence[Dim]) -> Tensor:
    """Place the dimensions of `x` at `dims` of the result, and broadcast it along all others."""
    order = sorted(range(len(dims)), key=lambda k: dims[k])
    x = n.transpose(x, order)
    wide: list[Dim] = [1] * len(shape)
    for k, size in zip(order, x.type.shape, strict=True):
        wide[dims[k]] = size
    return n.broadcast(n.reshape(x, wide), shape)


@importer("broadcast_in_dim", complex="parts")
def _broadcast_in_dim(n: Node) -> Value:
    return broadcast_in_dim(n, n.inputs[0], n.ints("broadcast_dimensions"), result_shape(n))


@importer("dynamic_broadcast_in_dim", complex="parts")
def _dynamic_broadcast_in_dim(n: Node) -> Value:
    return broadcast_in_dim(n, n.inputs[0], n.ints("broadcast_dimensions"), result_shape(n, 1))


@importer("broadcast", complex="parts")
def _broadcast(n: Node) -> Value:
    return n.broadcast(n.inputs[0], [*n.ints("broadcast_sizes"), *n.inputs[0].type.shape])


@importer("reshape", complex="parts")
def _reshape(n: Node) -> Value:
    return n.reshape(n.inputs[0], result_shape(n))


@importer("dynamic_reshape", complex="parts")
def _dynamic_reshape(n: Node) -> Value:
    return n.reshape(n.inputs[0], result_shape(n, 1))


@importer("transpose", complex="parts")
def _transpose(n: Node) -> Value:
    return n.transpose(n.inputs[0], n.ints("permutation"))


@importer("reverse", complex="parts")
def _reverse(n: Node) -> Value:
    axes = tuple(n.ints("dimensions"))
    return n.emit(g.Flip(n.inputs[0], axes=axes)) if axes else n.inputs[0]


@importer("slice", complex="parts")
def _slice(n: Node) -> Value:
    return n.slice(n.inputs[0], n.ints("start_indices"), n.ints("limit_indices"), n.ints("strides"))


@importer("concatenate", complex="parts")
def _concatenate(n: Node) -> Value:
    axis = n.number("dimension")
    parts = [x for x in n.inputs if x.type.shape[axis] != 0] or n.inputs[:1]
    return n.emit(g.Concat(parts, axis=axis))


@importer("pad", complex="parts")
def _pad(n: Node) -> Value:
    x, fill = n.inputs
    return pad(
        n, x, fill, n.ints("edge_padding_low"), n.ints("edge_padding_high"), n.ints("interior_padding")
    )


@importer("dynamic_pad", complex="parts")
def _dynamic_pad(n: Node) -> Value:
    interior = n.sizes(4)
    if not all(isinstance(s, int) for s in interior):
        raise Unsupported("interior padding that depends on sizes")
    return pad(
        n, n.inputs[0], n.inputs[1], n.sizes(2), n.sizes(3), [i for i in interior if isinstance(i, int)]
    )


def pad(
    n: Node,
    x: Value | Complex,
    fill: Value | Complex,
    low: Sequence[Dim],
    high: Sequence[Dim],
    interior: Sequence[int] | None = None,
) -> Any:
    """Pad `x` with `fill` before, after and between its elements; a negative number crops."""
    return each(lambda x, fill: _pad_part(n, x, fill, low, high, interior), x, fill)


def _pad_part(
    n: Node, x: Value, fill: Value, low: Sequence[Dim], high: Sequence[Dim], interior: Sequence[int] | None
) -> Value:
    high = list(high)
    for axis, count in enumerate(interior or ()):
        shape = x.type.shape
        if not count or shape[axis] in (0, 1):
            continue
        # Each element becomes the first of `1 + count`; those after the last element are cropped.
        rank = len(shape)
        apart = n.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
        after = tuple(count if d == axis + 1 else 0 for d in range(rank + 1))
        apart = n.emit(g.Pad(apart, fill, low=(0,) * (rank + 1), high=after))
        x = n.reshape(apart, (*shape[:axis], shape[axis] * (count + 1), *shape[axis + 1 :]))
        high[axis] = high[axis] - count
    return n.emit(g.Pad(x, fill, low=tuple(low), high=tuple(high)))


@importer("iota", "dynamic_iota", complex="whole")
def _iota(n: Node) -> Any:
    shape = result_shape(n, 0) if n.inputs else result_shape(n)
    numbers = n.iota(shape, n.number("iota_dimension"), n.dtype())
    return n.math.complex(numbers) if n.is_complex() else numbers


@importer("get_dimension_size", complex="whole")
def _get_dimension_size(n: Node) -> Value:
    size = n.inputs[0].type.shape[n.number("dimension")]
    return n.cast(n.emit(g.Symbolic(values=(size,))), n.dtype())


def strided(n: Node, x: Tensor, axis: int, start: Dim, count: Dim, step: int = 1) -> Tensor:
    """Return `count` elements along an axis from `start` on, at steps of `step`."""
    shape = x.type.shape
    starts = [start if d == axis else 0 for d in range(len(shape))]
    stops = [start + (count - 1) * step + 1 if d == axis else size for d, size in enumerate(shape)]
    return n.slice(x, starts, stops, [step if d == axis else 1 for d in range(len(shape))])


def positions(size: Dim, window: int, stride: int, dilation: int = 1) -> Dim:
    """Return the number of positions of a window in `size` elements."""
    return (size - (window - 1) * dilation - 1) // stride + 1
