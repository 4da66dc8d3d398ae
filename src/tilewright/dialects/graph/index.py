"""Operators with data-dependent positions: gather and scatter. Gather indices out of range are clamped, never
read outside; a dimension without elements gives zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.core import Attr, IRError, Operand, Value, operation
from ...ir.interpreter import Array
from ...ir.symbolic import Dim
from ...ir.types import TensorType, Type, i64
from ..tensor_builder import Scalar, TensorBuilder, TensorRef
from .base import GraphOp, normalize_axis, tensor_type
from .elementwise import Constant
from .operands import (
    check_rank,
    check_shape,
    exceeds,
    is_zero,
    need_choice,
    need_integer,
    need_integers,
    within,
)


def clamped(t: TensorBuilder, index: Scalar, n: Dim) -> Scalar:
    """A possibly negative index counted from the front, clamped into the dimension."""
    wide = index.cast(i64)
    if wide.dtype is i64 and index.dtype.is_signed:
        wide = (wide < 0).select(wide + n, wide)
    return wide.max(0).min(t.index(n) - 1)


def _surely_inside(indices: Value, n: Dim) -> bool:
    """Whether indices are constants within a dimension of known size."""
    op = indices.defining_op
    if not isinstance(op, Constant) or not isinstance(n, int):
        return False
    array = op.value.array
    return bool(array.size == 0 or (array.min() >= 0 and array.max() < n))


def clamped_array(index: Array, n: int) -> Any:
    """`clamped` on NumPy's side."""
    index = index.astype(np.int64)
    return np.clip(np.where(index < 0, index + n, index), 0, max(n - 1, 0))


def zeros(t: TensorBuilder, result: TensorType) -> TensorRef:
    """The result of reading from a dimension without elements."""
    return t.compute(result.shape, lambda *_: t.constant(0, result.dtype))


def _check_indices(op: GraphOp, indices: TensorType) -> None:
    if not indices.dtype.is_integer:
        raise IRError(f"indices must be integers, got {indices.dtype.label}", op)


@operation
class Gather(GraphOp):
    """Slices of `x` along `axis` selected by `indices` (NumPy's ``take``); embedding is axis 0."""

    name = "graph.gather"
    x: Operand
    indices: Operand
    axis: Attr = 0

    def infer_types(self) -> Sequence[Type]:
        x, indices = tensor_type(self.x), tensor_type(self.indices)
        _check_indices(self, indices)
        axis = normalize_axis(self.axis, x.rank, self)
        return (TensorType(x.dtype, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])),)

    def reference(self, x: Array, indices: Array) -> Any:
        axis = self.axis % x.ndim
        if not x.shape[axis]:
            return np.zeros((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
        return np.take(x, clamped_array(indices, x.shape[axis]), axis)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        x, indices = operands
        axis, rank = self.axis % x.rank, indices.rank
        if is_zero(x.shape[axis]):
            return zeros(t, self.result.type)
        inside = _surely_inside(self.indices, x.shape[axis])

        def element(*i: Dim) -> Scalar:
            index = indices[i[axis : axis + rank]]
            where = index.cast(i64) if inside else clamped(t, index, x.shape[axis])
            return x[(*i[:axis], where, *i[axis + rank :])]

        return t.compute(self.result.type.shape, element)


@operation
class GatherElements(GraphOp):
    """``x[..., indices[i], ...]`` along `axis` for each element of `indices` (torch's ``gather``)."""

    name = "graph.gather_elements"
    x: Operand
    indices: Operand
    axis: Attr

    def infer_types(self) -> Sequence[Type]:
        x, indices = tensor_type(self.x), tensor_type(self.indices)
        _check_indices(self, indices)
        axis = normalize_axis(self.axis, x.rank, self)
        _check_inside(self, x, indices, axis)
        return (TensorType(x.dtype, indices.shape),)

    def reference(self, x: Array, indices: Array) -> Any:
        axis = self.axis % x.ndim
        if not x.shape[axis]:
            return np.zeros(indices.shape, x.dtype)
        where = [
            np.arange(n).reshape([-1 if d == k else 1 for d in range(x.ndim)])
            for k, n in enumerate(indices.shape)
        ]
        where[axis] = clamped_array(indices, x.shape[axis])
        return x[tuple(where)]

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        x, indices = operands
        axis = self.axis % x.rank
        if is_zero(x.shape[axis]):
            return zeros(t, self.result.type)

        def element(*i: Dim) -> Scalar:
            where: list[Any] = list(map(within, i, indices.shape, x.shape))
            where[axis] = clamped(t, indices[i], x.shape[axis])
            return x[tuple(where)]

        return t.compute(indices.shape, element)


@operation
class GatherNd(GraphOp):
    """Slices of `x` at the index vectors in the last dimension of `indices`; the first `batch_dims`
    dimensions go together.
    """

    name = "graph.gather_nd"
    x: Operand
    indices: Operand
    batch_dims: Attr = 0

    def infer_types(self) -> Sequence[Type]:
        x, indices = tensor_type(self.x), tensor_type(self.indices)
        _check_indices(self, indices)
        check_rank(self, "indices", 1)
        need_integer(self, "batch_dims", 0)
        depth, batch = indices.shape[-1], self.batch_dims
        if not isinstance(depth, int) or depth + batch > x.rank or batch >= indices.rank:
            raise IRError(
                f"index vectors of length {depth} and {batch} batch dimensions do not fit x of shape "
                f"{x.shape} and indices of shape {indices.shape}",
                self,
            )
        if any(map(exceeds, indices.shape[:batch], x.shape[:batch])):
            raise IRError(
                f"x of shape {x.shape} and indices of shape {indices.shape} differ in the first {batch} "
                "dimensions",
                self,
            )
        return (TensorType(x.dtype, (*indices.shape[:-1], *x.shape[batch + depth :])),)

    def reference(self, x: Array, indices: Array) -> Any:
        batch, depth = self.batch_dims, indices.shape[-1]
        lead = indices.shape[:-1]
        if 0 in x.shape[batch : batch + depth]:
            return np.zeros((*lead, *x.shape[batch + depth :]), x.dtype)
        where: list[Any] = [
            np.arange(n).reshape([-1 if d == k else 1 for d in range(len(lead))])
            for k, n in enumerate(lead[:batch])
        ]
        where += [clamped_array(indices[..., k], x.shape[batch + k]) for k in range(depth)]
        if not where:
            return np.broadcast_to(x, (*lead, *x.shape))
        return x[tuple(np.broadcast_to(w, lead) for w in where)]

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        x, indices = operands
        batch, lead = self.batch_dims, indices.rank - 1
        depth = indices.shape[-1]
        assert isinstance(depth, int)
        if any(map(is_zero, x.shape[batch : batch + depth])):
            return zeros(t, self.result.type)

        def element(*i: Dim) -> Scalar:
            where = [clamped(t, indices[(*i[:lead], k)], x.shape[batch + k]) for k in range(depth)]
            first = map(within, i[:batch], indices.shape, x.shape)
            return x[(*first, *where, *i[lead:])]

        return t.compute(self.result.type.shape, element)


def _check_inside(op: GraphOp, x: TensorType, indices: TensorType, axis: int) -> None:
    """Check that indices have the rank of `x` and, except along `axis`, no provably larger size.

    Raises:
        IRError: they have not.
    """
    if x.rank != indices.rank:
        raise IRError(f"indices have rank {indices.rank}, the data {x.rank}", op)
    if any(exceeds(n, m) for d, (n, m) in enumerate(zip(indices.shape, x.shape, strict=True)) if d != axis):
        raise IRError(
            f"indices have shape {indices.shape}, which exceeds that of the data, {x.shape}, in a dimension "
            f"other than {axis}",
            op,
        )


_UFUNC = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
_COMBINERS = (None, *_UFUNC)


@operation
class ScatterElements(GraphOp):
    """A copy of `x` with ``result[..., indices[i], ...] = updates[i]`` along `axis`, or combined by
    `combiner`.
    """

    name = "graph.scatter_elements"
    x: Operand
    indices: Operand
    updates: Operand
    axis: Attr
    combiner: Attr = None

    def infer_types(self) -> Sequence[Type]:
        x, indices, updates = (tensor_type(v) for v in self.operands)
        _check_indices(self, indices)
        axis = normalize_axis(self.axis, x.rank, self)
        need_choice(self, "combiner", _COMBINERS)
        if x.dtype is not updates.dtype:
            raise IRError(f"updates are {updates.dtype.label}, the data {x.dtype.label}", self)
        _check_inside(self, x, indices, axis)
        if updates.rank != indices.rank or any(map(exceeds, indices.shape, updates.shape)):
            raise IRError(f"updates have shape {updates.shape}, indices {indices.shape}", self)
        return (self.x.type,)

    def reference(self, x: Array, indices: Array, updates: Array) -> Any:
        axis = self.axis % x.ndim
        result = np.array(x)
        where: list[Array] = list(np.indices(indices.shape, sparse=True))
        raw = indices.astype(np.int64)
        raw = np.where(raw < 0, raw + x.shape[axis], raw)
        where[axis] = raw
        points = [np.broadcast_to(w, indices.shape).reshape(-1) for w in where]
        keep = (points[axis] >= 0) & (points[axis] < x.shape[axis])
        values = updates[tuple(slice(n) for n in indices.shape)].reshape(-1)[keep]
        points = [p[keep] for p in points]
        if self.combiner is None:
            for k in range(len(values)):
                result[tuple(p[k] for p in points)] = values[k]
        else:
            _UFUNC[self.combiner].at(result, tuple(points), values)
        return result

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        x, indices, updates = operands
        axis = self.axis % x.rank

        def point(*i: Dim) -> tuple[Scalar, ...]:
            raw = indices[i].cast(i64)
            where = [t.index(k) for k in i]
            where[axis] = (raw < 0).select(raw + x.shape[axis], raw)
            return (updates[tuple(map(within, i, indices.shape, updates.shape))], *where)

        return t.scatter(x, indices.shape, point, self.combiner)


@operation
class ScatterNd(GraphOp):
    """A copy of `x` with slices at the index vectors in the last dimension of `indices` replaced by (or
    combined with) `updates`.

    The vectors address the dimensions `axes`, the first ones unless given; the others are the last of
    `updates`.
    """

    name = "graph.scatter_nd"
    x: Operand
    indices: Operand
    updates: Operand
    combiner: Attr = None
    axes: Attr = ()

    @property
    def addressed(self) -> tuple[int, ...]:
        """The dimensions of `x` that an index vector tells the places in."""
        return tuple(self.axes) or tuple(range(self.indices.type.shape[-1]))

    def _order(self) -> list[int]:
        return [*self.addressed, *(d for d in range(self.x.type.rank) if d not in self.addressed)]

    def infer_types(self) -> Sequence[Type]:
        x, indices, updates = (tensor_type(v) for v in self.operands)
        _check_indices(self, indices)
        if x.dtype is not updates.dtype:
            raise IRError(f"updates are {updates.dtype.label}, the data {x.dtype.label}", self)
        check_rank(self, "indices", 1)
        need_choice(self, "combiner", _COMBINERS)
        need_integers(self, "axes")
        if not isinstance(indices.shape[-1], int) or indices.shape[-1] > x.rank:
            raise IRError(f"index vectors of length {indices.shape[-1]} do not fit rank {x.rank}", self)
        if self.axes and (
            len(self.axes) != indices.shape[-1]
            or not {*self.axes} <= {*range(x.rank)}
            or len({*self.axes}) < len(self.axes)
        ):
            raise IRError(
                f"index vectors of length {indices.shape[-1]} address dimensions {self.axes} of {x.rank}",
                self,
            )
        rest = [x.shape[d] for d in self._order()[indices.shape[-1] :]]
        check_shape(self, "updates", (*indices.shape[:-1], *rest))
        return (self.x.type,)

    def reference(self, x: Array, indices: Array, updates: Array) -> Any:
        whole = np.array(x)
        result = whole.transpose(self._order())
        x, depth = result, indices.shape[-1]
        raw = indices.reshape(-1, depth).astype(np.int64)
        raw = np.where(raw < 0, raw + np.array(x.shape[:depth]), raw)
        values = updates.reshape(len(raw), *x.shape[depth:])
        for point, value in zip(raw, values, strict=True):
            if all(0 <= p < n for p, n in zip(point, x.shape, strict=False)):
                where = tuple(point)
                result[where] = (
                    value if self.combiner is None else _UFUNC[self.combiner](result[where], value)
                )
        return whole

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        x, indices, updates = operands
        lead = indices.rank - 1
        depth = indices.shape[-1]
        assert isinstance(depth, int)
        order = self._order()

        def point(*i: Dim) -> tuple[Scalar, ...]:
            where = {d: t.index(k) for d, k in zip(order[depth:], i[lead:], strict=True)}
            for k, d in enumerate(order[:depth]):
                raw = indices[(*map(within, i[:lead], updates.shape, indices.shape), k)].cast(i64)
                where[d] = (raw < 0).select(raw + x.shape[d], raw)
            return (updates[i], *(where[d] for d in range(x.rank)))

        return t.scatter(x, updates.shape, point, self.combiner)
