"""Products: dot_general and convolution."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim, prove_le
from ...complex import Complex, each
from ...unsupported import Unsupported
from ..registry import importer
from .shape import pad

if TYPE_CHECKING:
    from ..node import Node


def bilinear(n: Node, product: Callable[[Value, Value], Value]) -> Any:
    """Apply a product to the operands: to complex numbers, four products of their parts, or two if one
    operand is real.
    """
    (a, b), dtype = n.inputs, n.dtype()

    def times(x: Value, y: Value) -> Value:
        return product(n.cast(x, dtype), n.cast(y, dtype))

    if not isinstance(b, Complex):
        return (
            each(lambda x: times(x, b), a)
            if not n.is_complex() or isinstance(a, Complex)
            else n.math.complex(times(a, b))
        )
    if not isinstance(a, Complex):
        return each(lambda y: times(a, y), b)
    real = n.binary("sub", times(a.real, b.real), times(a.imaginary, b.imaginary))
    return Complex(real, n.binary("add", times(a.real, b.imaginary), times(a.imaginary, b.real)))


@importer("dot_general", complex="whole")
def _dot_general(n: Node) -> Any:
    return bilinear(n, lambda a, b: _dot(n, a, b))


@importer("dot", complex="whole")
def _plain_dot(n: Node) -> Any:
    """Return a product of matrices or vectors."""

    def product(a: Value, b: Value) -> Value:
        rows, columns = a.type.rank == 2, b.type.rank == 2
        wide = n.reshape(a, (1, *a.type.shape)) if not rows else a
        high = n.reshape(b, (*b.type.shape, 1)) if not columns else b
        shape = [*(a.type.shape[:1] if rows else ()), *(b.type.shape[1:] if columns else ())]
        return n.reshape(n.emit(g.Matmul(wide, high)), shape)

    return bilinear(n, product)


@importer("einsum", complex="whole")
def _einsum(n: Node) -> Any:
    equation = n.attr("einsum_config").value
    return bilinear(n, lambda a, b: n.emit(g.Einsum([a, b], equation=equation)))


def _dot(n: Node, a: Value, b: Value) -> Value:
    from ..reading import bindings

    _, stablehlo, *_ = bindings()
    numbers = stablehlo.DotDimensionNumbers(n.attr("dot_dimension_numbers"))
    batch = list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)
    summed = list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)
    rows = [d for d in range(a.type.rank) if d not in batch[0] + summed[0]]
    columns = [d for d in range(b.type.rank) if d not in batch[1] + summed[1]]
    if len(summed[0]) == 1 and len(rows) == len(columns) == 1:
        a = n.transpose(a, [*batch[0], *rows, *summed[0]])
        b = n.transpose(b, [*batch[1], *summed[1], *columns])
        return n.emit(g.Matmul(a, b))
    if len(summed[0]) == 1 and not batch[0] and rows and len(columns) == 1:
        a = n.transpose(a, [*rows, *summed[0]])
        return n.emit(g.Matmul(a, n.transpose(b, [*summed[1], *columns])))
    letters = iter(string.ascii_letters)
    left = [next(letters) for _ in range(a.type.rank)]
    right = [next(letters) for _ in range(b.type.rank)]
    for k, l in zip((*batch[1], *summed[1]), (*batch[0], *summed[0]), strict=True):
        right[k] = left[l]
    result = [*(left[d] for d in (*batch[0], *rows)), *(right[d] for d in columns)]
    equation = f"{''.join(left)},{''.join(right)}->{''.join(result)}"
    return n.emit(g.Einsum([a, b], equation=equation))


@importer("convolution", "dynamic_conv", complex="whole")
def _convolution(n: Node) -> Any:
    rank = n.inputs[0].type.rank - 2
    if n.name.endswith("dynamic_conv"):
        padding: Any = np.array(n.sizes(2), object).reshape(rank, 2).tolist()
        n.inputs = n.inputs[:2]
    else:
        padding = n.pairs("padding", rank)
    return bilinear(n, lambda x, w: _conv(n, x, w, [tuple(p) for p in padding]))


def _conv(n: Node, x: Value, w: Value, padding: list[tuple[Dim, Dim]]) -> Value:
    if 0 in n.shape():  # the kernel has no position, which the graph's convolution does not allow
        return n.broadcast(n.like(0, x), [d or 0 for d in n.shape()])
    from ..reading import bindings

    _, stablehlo, *_ = bindings()
    numbers = stablehlo.ConvDimensionNumbers(n.attr("dimension_numbers"))
    spatial = list(numbers.input_spatial_dimensions)
    rank = len(spatial)
    x = n.transpose(x, [numbers.input_batch_dimension, numbers.input_feature_dimension, *spatial])
    kernel = [numbers.kernel_output_feature_dimension, numbers.kernel_input_feature_dimension]
    w = n.transpose(w, [*kernel, *numbers.kernel_spatial_dimensions])
    ones = [1] * rank
    reversal = n.ints("window_reversal", [0] * rank)
    if any(reversal):
        w = n.emit(g.Flip(w, axes=tuple(2 + k for k, r in enumerate(reversal) if r)))
    spread = n.ints("lhs_dilation", ones)
    if any(s != 1 for s in spread) or not all(prove_le(0, p) for pair in padding for p in pair):
        low, high = ([0, 0, *(p[side] for p in padding)] for side in (0, 1))
        x = pad(n, x, n.like(0, x), low, high, [0, 0, *(s - 1 for s in spread)])
        padding = [(0, 0)] * rank
    groups, batches = n.number("feature_group_count", 1), n.number("batch_group_count", 1)
    if batches > 1:
        # The parts of the batch become groups of features, each with its own part of the kernel's outputs.
        if groups > 1:
            raise Unsupported("groups of features and of the batch at once")
        size, features, *rest = x.type.shape
        x = n.reshape(x, (batches, size // batches, features, *rest))
        x = n.transpose(x, [1, 0, 2, *range(3, 3 + rank)])
        x = n.reshape(x, (size // batches, batches * features, *rest))
        groups = batches
    steps, dilations = n.ints("window_strides", ones), n.ints("rhs_dilation", ones)
    flat = rank == 0
    if flat:
        x, w = (n.reshape(v, (*v.type.shape, 1)) for v in (x, w))
        steps, dilations, padding = [1], [1], [(0, 0)]
    y = n.emit(
        g.Conv(x, w, strides=tuple(steps), padding=tuple(padding), dilations=tuple(dilations), groups=groups)
    )
    if flat:
        y = n.reshape(y, y.type.shape[:2])
    placed = [
        numbers.output_batch_dimension,
        numbers.output_feature_dimension,
        *numbers.output_spatial_dimensions,
    ]
    return n.transpose(y, [placed.index(d) for d in range(2 + rank)])
