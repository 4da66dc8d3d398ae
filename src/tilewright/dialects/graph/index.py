"""Operators with data-dependent positions: gather and scatter. Gather indices out of range are clamped, never
read outside; a dimension without elements gives zeros. Scattered elements out of range are dropped.

The gradient of a gather is a scatter that adds, that of a scatter gathers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.core import Attr, IRError, Operand, Value, operation
from ...ir.interpreter import Array
from ...ir.symbolic import Dim, prove_eq
from ...ir.types import TensorType, Type, boolean, i64
from ..tensor_builder import Scalar, TensorBuilder, TensorRef
from .base import Adjoint, GraphOp, normalize_axis, tensor_type
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
from .term import Term


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


def _from_front(index: Term, n: Dim) -> Term:
    """Possibly negative indices of a dimension of `n` elements, counted from the front, in i64."""
    signed, index = index.dtype.is_signed, index.cast(i64)
    return (index < 0).select(index + n, index) if signed else index


def _clamped(index: Term, n: Dim) -> Term:
    """The indices that a gather reads in a dimension of `n` elements."""
    if _surely_inside(index.value, n):
        return index.cast(i64)
    return _from_front(index, n).maximum(0).minimum(index.number(n, i64) - 1)


def _added_at(x: Term, indices: Term, updates: Term, axes: Sequence[int] = ()) -> Term:
    """`updates` added into zeros of the shape of `x` at index vectors, as `ScatterNd` takes them."""
    dest = updates.number(0).broadcast(x.shape)
    return updates.apply(
        "scatter_nd", dest.value, indices.value, updates.value, combiner="sum", axes=tuple(axes)
    )


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

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        x, indices = at.operands
        axis, rank = self.axis % len(x.shape), len(indices.shape)
        if is_zero(x.shape[axis]):
            return None, None
        dy = at.cotangent.wide()
        lead = range(axis, axis + rank)
        dy = dy.transpose([*lead, *(k for k in range(len(dy.shape)) if k not in lead)])
        place = _clamped(indices, x.shape[axis]).unsqueeze(rank)
        return _added_at(x, place, dy, (axis,)), None

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

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        x, indices = at.operands
        axis = self.axis % len(x.shape)
        if is_zero(x.shape[axis]):
            return None, None
        dy = at.cotangent.wide()
        dest, place = dy.number(0).broadcast(x.shape), _clamped(indices, x.shape[axis])
        added = dy.apply("scatter_elements", dest.value, place.value, dy.value, axis=axis, combiner="sum")
        return added, None

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

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        x, indices = at.operands
        batch, depth = self.batch_dims, indices.shape[-1]
        assert isinstance(depth, int)
        dy, lead = at.cotangent.wide(), indices.shape[:-1]
        if not batch + depth:
            return dy.sum(range(len(lead))), None
        if any(map(is_zero, x.shape[batch : batch + depth])):
            return None, None
        parts = []
        for k in range(batch):
            parts.append(indices.iota(lead[k]).along_axis(k, len(lead)).broadcast(lead))
        for k in range(depth):
            part = indices.slice(len(lead), k, k + 1).reshape(lead)
            parts.append(_clamped(part, x.shape[batch + k]))
        return _added_at(x, _vectors(parts), dy), None

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


def _vectors(parts: Sequence[Term]) -> Term:
    """Index vectors of the `parts`, one for each element, in a new last dimension."""
    return parts[0].apply(
        "concat", [p.unsqueeze(len(p.shape)).value for p in parts], axis=len(parts[0].shape)
    )


class Scattering(GraphOp):
    """A copy of `x` with elements replaced by `updates`, or combined with them by `combiner`: the base of the
    two scatters, which differ in how `indices` tell the places.
    """

    x: Operand
    indices: Operand
    updates: Operand
    combiner: Any = None

    @abstractmethod
    def _written(self, x: Term, indices: Term, values: Term, combiner: str | None) -> Term:
        """`values`, of the shape of `_read`, scattered into `x`."""

    @abstractmethod
    def _read(self, x: Term, indices: Term) -> Term:
        """The elements of `x` at the places of the updates; of places outside, any."""

    @abstractmethod
    def _inside(self, x: Term, indices: Term) -> Term:
        """Whether an update's place lies inside of `x`; broadcasts to the shape of `_read`."""

    @abstractmethod
    def _lasts(self, x: Term, indices: Term) -> Term:
        """Whether an update is the last one of its place, inside of `x`; broadcasts as `_inside`."""

    def _used(self, updates: Term, indices: Term) -> Term:
        """The updates that have an index, of the shape of `_read`."""
        return updates

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        x, indices, updates = at.operands
        if any(map(is_zero, x.shape)):
            return None, None, None
        rule = {None: self._of_replaced, "sum": self._of_sum, "prod": self._of_product}.get(
            self.combiner, self._of_extreme
        )
        used = self._used(updates.wide(), indices)
        dx, du = rule(x.wide(), indices, used, at.result.wide(), at.cotangent.wide())
        if du is not None:
            du = du.pad([0] * len(du.shape), [n - m for n, m in zip(updates.shape, du.shape, strict=True)])
        return dx, None, du

    def _of_replaced(self, x: Term, indices: Term, updates: Term, y: Term, dy: Term) -> tuple[Term, Term]:
        dx = self._written(dy, indices, updates.zeros(), None)
        return dx, self._lasts(x, indices).select(self._read(dy, indices), 0)

    def _of_sum(self, x: Term, indices: Term, updates: Term, y: Term, dy: Term) -> tuple[Term, Term]:
        return dy, self._inside(x, indices).select(self._read(dy, indices), 0)

    def _of_product(self, x: Term, indices: Term, updates: Term, y: Term, dy: Term) -> tuple[Term, Term]:
        # The product of all factors but one: y / factor, or of the factors that are not zero if it is the
        # only zero. The derivative of this formula is wrong where two factors are zero.
        zeros = self._written(x.equals(0).cast(y.dtype), indices, updates.equals(0).cast(y.dtype), "sum")
        flat = (zeros <= 1).reshape((tensor_type(zeros.value).size,))
        safe = flat.apply("reduce_all", flat.value, axes=(0,))
        x, updates = (
            v.apply("once_differentiable", v.value, safe.value, message=_SECOND) for v in (x, updates)
        )
        rest = self._written(x.equals(0).select(1, x), indices, updates.equals(0).select(1, updates), "prod")
        rest = dy * zeros.equals(1).select(rest, 0)
        whole = dy * y

        def others(factor: Term, rest: Term, whole: Term) -> Term:
            zero = factor.equals(0)
            return zero.select(rest, whole / zero.select(1, factor))

        du = others(updates, self._read(rest, indices), self._read(whole, indices))
        return others(x, rest, whole), self._inside(x, indices).select(du, 0)

    def _of_extreme(self, x: Term, indices: Term, updates: Term, y: Term, dy: Term) -> tuple[Term, Term]:
        # Equal elements share the gradient, as in PyTorch's `scatter_reduce`.
        first = x.equals(y).cast(dy.dtype)
        hits = self._inside(x, indices) & updates.equals(self._read(y, indices))
        second = hits.cast(dy.dtype)
        share = dy / self._written(first, indices, second, "sum")
        return first * share, hits.select(self._read(share, indices), 0)


_SECOND = (
    "the second derivative of a scatter by products does not exist in this form where two factors of one "
    "element are zero"
)
_UFUNC = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
_COMBINERS = (None, *_UFUNC)


@operation
class ScatterElements(Scattering):
    """A copy of `x` with ``result[..., indices[i], ...] = updates[i]`` along `axis`, or combined by
    `combiner`.
    """

    name = "graph.scatter_elements"
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

    def _written(self, x: Term, indices: Term, values: Term, combiner: str | None) -> Term:
        operands = (x.value, indices.value, values.value)
        return x.apply("scatter_elements", *operands, axis=self.axis, combiner=combiner)

    def _read(self, x: Term, indices: Term) -> Term:
        return x.apply("gather_elements", x.value, indices.value, axis=self.axis)

    def _inside(self, x: Term, indices: Term) -> Term:
        n = x.shape[self.axis % len(x.shape)]
        index = _from_front(indices, n)
        return (index >= 0) & (index < n)

    def _lasts(self, x: Term, indices: Term) -> Term:
        numbers = indices.iota(TensorType(i64, indices.shape).size).reshape(indices.shape)
        none = numbers.number(-1).broadcast(x.shape)
        return self._read(self._written(none, indices, numbers, "max"), indices).equals(numbers)

    def _used(self, updates: Term, indices: Term) -> Term:
        for d, n in enumerate(indices.shape):
            if not prove_eq(n, updates.shape[d]):
                updates = updates.slice(d, 0, n)
        return updates

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
class ScatterNd(Scattering):
    """A copy of `x` with slices at the index vectors in the last dimension of `indices` replaced by (or
    combined with) `updates`.

    The vectors address the dimensions `axes`, the first ones unless given; the others are the last of
    `updates`.
    """

    name = "graph.scatter_nd"
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

    def _written(self, x: Term, indices: Term, values: Term, combiner: str | None) -> Term:
        operands = (x.value, indices.value, values.value)
        return x.apply("scatter_nd", *operands, combiner=combiner, axes=tuple(self.axes))

    def _read(self, x: Term, indices: Term) -> Term:
        order = self._order()
        x = x if order == sorted(order) else x.transpose(order)
        return x.apply("gather_nd", x.value, indices.value)

    def _inside(self, x: Term, indices: Term) -> Term:
        depth, inside = len(self.addressed), indices.number(True, boolean)
        for k, d in enumerate(self.addressed):
            index = _from_front(indices.slice(len(indices.shape) - 1, k, k + 1), x.shape[d])
            inside = inside & (index >= 0) & (index < x.shape[d])
        lead = indices.shape[:-1]
        return inside.broadcast((*lead, 1)).reshape((*lead, *(1,) * (len(x.shape) - depth)))

    def _lasts(self, x: Term, indices: Term) -> Term:
        lead, addressed = indices.shape[:-1], [x.shape[d] for d in self.addressed]
        numbers = indices.iota(TensorType(i64, lead).size).reshape(lead)
        operands = numbers.number(-1).broadcast(addressed), indices, numbers
        last = x.apply("scatter_nd", *(v.value for v in operands), combiner="max")
        last = x.apply("gather_nd", last.value, indices.value).equals(numbers)
        return last.reshape((*lead, *(1,) * (len(x.shape) - len(addressed))))

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
