"""Operators whose result has a size that depends on data, and shape operators whose bounds are data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....dialects import graph as g
from ....dialects.graph.base import normalize_axis
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import DType, boolean, i64
from ...unsupported import Unsupported
from ..registry import importer

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..node import Node


class Arithmetic:
    """Arithmetic on tensors: each method inserts the graph operator of its name, with operands and
    attributes.

    Numbers and arrays become constants of `dtype`. Without `dtype` they have the element type of the last
    operand that is a value, or i64 if there is none.
    """

    def __init__(self, n: Node, dtype: DType | None = None) -> None:
        self.n = n
        self.dtype = dtype

    def __getattr__(self, name: str) -> Callable[..., Value]:
        operator = getattr(g, name)

        def build(*operands: Value | npt.ArrayLike, **attributes: object) -> Value:
            dtype = self.dtype or self._common(name, operands)
            values = [x if isinstance(x, Value) else self.n.constant(x, dtype) for x in operands]
            return self.n.emit(operator(*values, **attributes))

        return build

    @staticmethod
    def _common(name: str, operands: Sequence[Any]) -> DType:
        dtype: DType = next((x.type.dtype for x in reversed(operands) if isinstance(x, Value)), i64)
        return i64 if name == "Select" and dtype is boolean else dtype

    def vector(self, x: Value) -> Value:
        """Flatten a tensor and convert it to i64."""
        flat = self.n.emit(g.Reshape(x, shape=(x.type.size,))) if x.type.rank != 1 else x
        return flat if flat.type.dtype is i64 else self.n.emit(g.Cast(flat, dtype=i64))

    def scalar(self, x: Value) -> Value:
        flat = self.n.emit(g.Reshape(x, shape=())) if x.type.rank else x
        return flat if flat.type.dtype is i64 else self.n.emit(g.Cast(flat, dtype=i64))

    def size(self, x: Value, lower: int | None = 0) -> Dim:
        """Return a scalar as a size."""
        return self.n.importer.computed_size(x, self.n.op_type, lower)

    def sizes(self, x: Value, lower: int | None = 0) -> list[Dim]:
        """Return the elements of a vector of known length as sizes."""
        return [self.size(self.n.element(x, k), lower) for k in range(_length(self.n, x))]

    def check(self, condition: Value, message: str) -> None:
        """Make the run fail unless all elements of `condition` hold."""
        axes = tuple(range(condition.type.rank))
        holds = self.n.emit(g.ReduceAll(condition, axes=axes, keepdims=False)) if axes else condition
        text = f"node {self.n.location} ({self.n.op_type}): {message}"
        self.n.importer.builder.insert(g.Check(holds, message=text))


def _length(n: Node, x: Value) -> int:
    count = x.type.size
    if not isinstance(count, int):
        raise Unsupported(
            "the number of dimensions of the result depends on data; "
            "an example of the model's inputs (args) is compiled in"
        )
    return count


def reshape_in_run(n: Node) -> Value:
    """Reshape to a shape that is data."""
    x, a = n.value(0), Arithmetic(n)
    wanted = a.vector(n.value(1))
    old = list(x.type.shape)
    rank = _length(n, wanted)
    if not n.attr("allowzero", 0):
        copied = n.dims_value([old[k] if k < len(old) else 1 for k in range(rank)])
        wanted = a.Select(a.Eq(wanted, 0), copied, wanted)
    open_ = a.Eq(wanted, -1)
    rest = n.emit(g.ReduceProd(a.Select(open_, 1, wanted), axes=(0,), keepdims=False))
    inferred = a.Floordiv(n.dims_value(x.type.size), a.Max(rest, 1))
    return n.emit(g.AssumeShape(x, shape=tuple(a.sizes(a.Select(open_, inferred, wanted)))))


def expand_in_run(n: Node) -> Value:
    """Expand to a shape that is data. A dimension of `x` that is not known to be 1 is assumed to differ from
    1.
    """
    x, a = n.value(0), Arithmetic(n)
    wanted = a.vector(n.value(1))
    rank = max(_length(n, wanted), x.type.rank)
    lead = rank - _length(n, wanted)
    own: list[Dim] = [1] * (rank - x.type.rank) + list(x.type.shape)
    shape: list[Dim] = own[:lead]
    for k in range(lead, rank):
        size = n.element(wanted, k - lead)
        if isinstance(own[k], int) and own[k] == 1:
            shape.append(a.size(size))
            continue
        known = n.dims_value(own[k])
        a.check(
            a.Or(a.Eq(size, 1), a.Eq(size, known)), f"dimension {k} of the shape is neither 1 nor {own[k]}"
        )
        shape.append(own[k])
    return n.emit(g.BroadcastTo(x, shape=tuple(shape)))


def slice_in_run(n: Node, axes: Sequence[int], steps: Sequence[int]) -> Value:
    """Slice with bounds that are data."""
    x, a = n.value(0), Arithmetic(n)
    bounds = [a.vector(n.value(k)) for k in (1, 2)]
    starts: list[Dim] = [0] * x.type.rank
    stops: list[Dim] = list(x.type.shape)
    strides = [1] * x.type.rank
    for k, (axis, step) in enumerate(zip(axes, steps, strict=True)):
        d = n.dims_value(x.type.shape[axis])
        start, stop = (n.element(v, k) for v in bounds)
        start, stop = (a.Select(a.Lt(v, 0), a.Add(v, d), v) for v in (start, stop))
        if step > 0:
            start, stop = (a.Min(a.Max(v, 0), d) for v in (start, stop))
            length = a.Floordiv(a.Add(a.Sub(stop, start), step - 1), step)
        else:
            start, stop = (a.Min(a.Max(v, -1), a.Sub(d, 1)) for v in (start, stop))
            length = a.Floordiv(a.Add(a.Sub(start, stop), -step - 1), -step)
        # An empty slice may begin anywhere; a backward slice may end one element before the first.
        first, count = a.size(start, -1), a.size(a.Max(length, 0))
        starts[axis], stops[axis], strides[axis] = first, first + count * step, step
    return n.emit(g.Slice(x, starts=tuple(starts), stops=tuple(stops), steps=tuple(strides)))


def range_in_run(n: Node) -> Value:
    """Range with bounds that are data."""
    a = Arithmetic(n)
    start, limit, delta = (
        n.emit(g.Reshape(n.value(k), shape=())) if n.tensor(k).rank else n.value(k) for k in range(3)
    )
    if (
        n.tensor(0).content is not None
        and n.dims(0) == [0]
        and n.tensor(2).content is not None
        and n.dims(2) == [1]
    ):
        size = n.importer.known_size(limit)
        if size is not None:
            return n.emit(g.Iota(shape=(size,), dtype=start.type.dtype))
    span = a.Sub(limit, start)
    if start.type.dtype.is_integer:
        # Ceiling division for all signs: the negated floor division of the negated dividend.
        count = a.Neg(a.Floordiv(a.Neg(a.scalar(span)), a.scalar(delta)))
    else:
        count = a.scalar(a.Ceil(a.Div(span, delta)))
    places = n.emit(g.Iota(shape=(a.size(a.Max(count, 0)),)))
    dtype = start.type.dtype
    places = places if dtype is i64 else n.emit(g.Cast(places, dtype=dtype))
    return a.Add(start, a.Mul(places, delta))


@importer("NonZero")
def _non_zero(n: Node) -> Value:
    places = n.emit(g.NonZero(n.value(0), count=n.importer.new_symbol("nonzero")))
    return n.emit(g.Transpose(places, permutation=(1, 0)))


@importer("Compress")
def _compress(n: Node) -> Value:
    axis = n.attr("axis")
    x = n.value(0)
    if axis is None:
        x = n.emit(g.Reshape(x, shape=(x.type.size,)))
    if n.tensor(1).array is not None:
        keep = n.constant(np.flatnonzero(n.array(1)), i64)
    else:
        keep = places_of(n, n.value(1))
    return n.emit(g.Gather(x, keep, axis=axis or 0))


def places_of(n: Node, flags: Value) -> Value:
    """Return the indices (i64) at which a vector of flags holds."""
    count = n.importer.new_symbol(n.op_type)
    return n.emit(g.Reshape(n.emit(g.NonZero(flags, count=count)), shape=(count,)))


@importer("Unique")
def _unique(n: Node) -> list[Value]:
    x, a = n.value(0), Arithmetic(n)
    axis = n.attr("axis")
    if axis is None:
        x, axis = n.emit(g.Reshape(x, shape=(x.type.size,))), 0
    else:
        axis = normalize_axis(axis, x.type.rank)
    order, fresh = _sorted_slices(n, x, axis)
    heads = places_of(n, fresh)
    # the order is stable: this is the first position of each value
    first = n.emit(g.Gather(order, heads, axis=0))
    group = a.Sub(n.emit(g.Cumsum(n.emit(g.Cast(fresh, dtype=i64)), axis=0)), 1)
    if not n.attr("sorted", 1):
        count = first.type.shape[0]
        places, turned = n.emit_all(g.Topk(first, k=count, axis=0, largest=False))
        empty = n.emit(g.BroadcastTo(n.constant(0, i64), shape=(count,)))
        rank = n.emit(g.ScatterElements(empty, turned, n.emit(g.Iota(shape=(count,))), axis=0))
        first, group = places, n.emit(g.Gather(rank, group, axis=0))
    size = x.type.shape[axis]
    zeros = n.emit(g.BroadcastTo(n.constant(0, i64), shape=(size,)))
    inverse = n.emit(g.ScatterElements(zeros, order, group, axis=0))
    none = n.emit(g.BroadcastTo(n.constant(0, i64), shape=first.type.shape))
    ones = n.emit(g.BroadcastTo(n.constant(1, i64), shape=(size,)))
    counts = n.emit(g.ScatterElements(none, group, ones, axis=0, combiner="sum"))
    return [n.emit(g.Gather(x, first, axis=axis)), first, inverse, counts]


MAX_COLUMNS = 256
"""Maximum number of elements of a slice for sorting. Slices are sorted by one element after the other, each a
sort operator, so a larger limit allows larger graphs.
"""


def _sorted_slices(n: Node, x: Value, axis: int) -> tuple[Value, Value]:
    """Return the stable order of the slices along `axis`, compared lexicographically, and which of them, in
    order, differ from the previous one.
    """
    size = x.type.shape[axis]
    permutation = (axis, *(k for k in range(x.type.rank) if k != axis))
    rows = n.emit(g.Transpose(x, permutation=permutation)) if axis else x
    width: Dim = 1
    for d in rows.type.shape[1:]:
        width = width * d
    if not isinstance(width, int) or width > MAX_COLUMNS:
        raise Unsupported(f"slices of {width} elements are compared, more than {MAX_COLUMNS}")
    columns = n.emit(g.Reshape(rows, shape=(size, width)))
    order = n.emit(g.Iota(shape=(size,)))
    for k in range(width - 1, -1, -1):
        column = n.emit(g.Gather(columns, n.constant(k, i64), axis=1))
        _, places = n.emit_all(g.Topk(n.emit(g.Gather(column, order, axis=0)), k=size, axis=0, largest=False))
        order = n.emit(g.Gather(order, places, axis=0))
    in_order = n.emit(g.Gather(columns, order, axis=0))
    before = n.emit(g.Gather(in_order, _previous(n, size), axis=0))
    differs = n.emit(g.ReduceAny(n.emit(g.Ne(in_order, before)), axes=(1,), keepdims=False))
    start = n.emit(g.Eq(n.emit(g.Iota(shape=(size,))), n.constant(0, i64)))
    return order, n.emit(g.Or(differs, start))


def _previous(n: Node, size: Dim) -> Value:
    """Return the index before each index; that of the first is 0."""
    return n.emit(g.Max(n.emit(g.Iota(shape=(size,), start=-1)), n.constant(0, i64)))


__all__ = ["Arithmetic", "expand_in_run", "range_in_run", "reshape_in_run", "slice_in_run"]
