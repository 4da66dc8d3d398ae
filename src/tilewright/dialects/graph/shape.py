"""Operators that move elements: broadcasting, reshaping, transposing, slicing, padding, joining, and
generated patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.builder import Builder
from ...ir.core import Attr, IRError, Operand, OptionalOperand, Value, VariadicOperand, operation
from ...ir.core import Constant as ConstantData
from ...ir.interpreter import Array, Frame
from ...ir.symbolic import Dim, Expr, ceildiv, prove_eq, prove_le, smax, smin
from ...ir.types import TensorType, Type, f32, i64
from ..tensor_builder import Scalar, TensorBuilder, TensorRef
from .base import Adjoint, GraphOp, broadcast_index, normalize_axis, tensor_type
from .elementwise import same_shape
from .operands import (
    check_same_type,
    differ,
    exceeds,
    is_zero,
    need_choice,
    need_dtype,
    need_integers,
    need_numbers,
    need_size,
    need_sizes,
)
from .term import Term


def _ints(env: Frame, dims: Sequence[Dim]) -> list[int]:
    return [int(env.evaluate(d)) for d in dims]


@operation
class BroadcastTo(GraphOp):
    """`x` repeated along new or unit dimensions to `shape`."""

    name = "graph.broadcast_to"
    x: Operand
    shape: Attr

    def infer_types(self) -> Sequence[Type]:
        x = tensor_type(self.x)
        need_sizes(self, "shape")
        if x.rank > len(self.shape):
            raise IRError(f"cannot broadcast rank {x.rank} to {self.shape}", self)
        for d, n in zip(x.shape[::-1], self.shape[::-1], strict=False):
            if not (isinstance(d, int) and d == 1) and not prove_eq(d, n):
                raise IRError(f"cannot broadcast {x.shape} to {self.shape}", self)
        return (TensorType(x.dtype, self.shape),)

    def reference(self, x: Array, env: Frame) -> Any:
        return np.broadcast_to(x, _ints(env, self.shape))

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        return (at.cotangent,)

    def fold(self) -> Value | ConstantData | None:
        return self.x if same_shape(tensor_type(self.x).shape, self.shape) else None

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        (x,) = operands
        return t.compute(self.shape, lambda *i: x[broadcast_index(i, x.shape)])


@operation
class Reshape(GraphOp):
    """The same elements in row-major order under another shape."""

    name = "graph.reshape"
    x: Operand
    shape: Attr

    def infer_types(self) -> Sequence[Type]:
        need_sizes(self, "shape")
        result = TensorType(tensor_type(self.x).dtype, self.shape)
        if not prove_eq(tensor_type(self.x).size, result.size):
            raise IRError(
                f"cannot reshape {tensor_type(self.x).shape} to {self.shape}: "
                "the sizes are not provably equal",
                self,
            )
        return (result,)

    def reference(self, x: Array, env: Frame) -> Any:
        return np.reshape(x, _ints(env, self.shape))

    def fold(self) -> Value | ConstantData | None:
        if same_shape(tensor_type(self.x).shape, self.shape):
            return self.x
        inner = self.x.defining_op
        if isinstance(inner, Reshape):
            if same_shape(tensor_type(inner.x).shape, self.shape):
                return inner.x
            self.set_operand(0, inner.x)
        return None

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        return (at.cotangent.reshape(at.operands[0].shape),)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        return t.reshape(operands[0], self.shape)


@operation
class Transpose(GraphOp):
    """Dimensions reordered: result dimension d is dimension ``permutation[d]`` of `x`."""

    name = "graph.transpose"
    x: Operand
    permutation: Attr

    def infer_types(self) -> Sequence[Type]:
        x = tensor_type(self.x)
        need_integers(self, "permutation", x.rank)
        if sorted(self.permutation) != list(range(x.rank)):
            raise IRError(f"{self.permutation} is not a permutation of {x.rank} dimensions", self)
        return (TensorType(x.dtype, tuple(x.shape[p] for p in self.permutation)),)

    def reference(self, x: Array) -> Any:
        return np.transpose(x, self.permutation)

    def fold(self) -> Value | ConstantData | None:
        if tuple(self.permutation) == tuple(range(len(self.permutation))):
            return self.x
        inner = self.x.defining_op
        if isinstance(inner, Transpose):
            joined = tuple(inner.permutation[p] for p in self.permutation)
            if joined == tuple(range(len(joined))):
                return inner.x
            self.permutation = joined
            self.set_operand(0, inner.x)
        return None

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        order = [self.permutation.index(k) for k in range(len(self.permutation))]
        return (at.cotangent.transpose(order),)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        (x,) = operands
        return t.compute(
            self.result.type.shape, lambda *i: x[tuple(i[self.permutation.index(d)] for d in range(x.rank))]
        )


@operation
class Slice(GraphOp):
    """``x[start:stop:step]`` per dimension; bounds already lie within the dimension, a negative step counts
    down to an exclusive stop.
    """

    name = "graph.slice"
    x: Operand
    starts: Attr
    stops: Attr
    steps: Attr

    def infer_types(self) -> Sequence[Type]:
        x = tensor_type(self.x)
        need_sizes(self, "starts", x.rank, least=None)
        need_sizes(self, "stops", x.rank, least=None)
        need_integers(self, "steps", x.rank)
        shape: list[Dim] = []
        for d, (start, stop, step) in enumerate(zip(self.starts, self.stops, self.steps, strict=True)):
            if step == 0:
                raise IRError(f"step of dimension {d} is 0", self)
            length = ceildiv(stop - start, step) if step > 0 else ceildiv(start - stop, -step)
            if isinstance(length, int) and length < 0:
                length = 0
            shape.append(length)
            low, high = (start, stop) if step > 0 else (stop + 1, start + 1)
            if exceeds(0, low) or exceeds(0, high) or (exceeds(high, x.shape[d]) and not is_zero(length)):
                raise IRError(
                    f"dimension {d} has {x.shape[d]} elements, the slice is {start}:{stop}:{step}", self
                )
        return (TensorType(x.dtype, shape),)

    def reference(self, x: Array, env: Frame) -> Any:
        where = []
        for start, stop, step in zip(
            _ints(env, self.starts), _ints(env, self.stops), self.steps, strict=True
        ):
            if (stop - start) * step <= 0:
                start = stop = 0
            where.append(slice(start, None if step < 0 and stop < 0 else stop, step))
        return x[tuple(where)]

    def fold(self) -> Value | ConstantData | None:
        whole = all(s == 0 if isinstance(s, int) else False for s in self.starts) and all(
            s == 1 for s in self.steps
        )
        return self.x if whole and same_shape(self.stops, tensor_type(self.x).shape) else None

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        dx, low, high = at.cotangent, list[Dim](), list[Dim]()
        for d, (n, start, step) in enumerate(zip(at.operands[0].shape, self.starts, self.steps, strict=True)):
            count = dx.shape[d]
            if step < 0:
                dx, start = dx.flip(d), start + (count - 1) * step
            dx = dx.spread(d, abs(step))
            low.append(start)
            high.append(n - start - dx.shape[d])
        return (dx.pad(low, high),)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        (x,) = operands
        return t.compute(
            self.result.type.shape,
            lambda *i: x[tuple(s + k * p for s, k, p in zip(self.starts, i, self.steps, strict=True))],
        )


@operation
class UpdateSlice(GraphOp):
    """A copy of `x` in which `part` stands from `starts` on, one start for each dimension; it lies within
    `x`.
    """

    name = "graph.update_slice"
    x: Operand
    part: Operand
    starts: Attr

    def infer_types(self) -> Sequence[Type]:
        x, part = tensor_type(self.x), tensor_type(self.part)
        if x.dtype is not part.dtype or x.rank != part.rank:
            raise IRError(f"cannot insert {part} into {x}: the types do not agree", self)
        need_sizes(self, "starts", x.rank)
        for d, (start, n, size) in enumerate(zip(self.starts, part.shape, x.shape, strict=True)):
            if exceeds(start + n, size):
                raise IRError(
                    f"part has shape {part.shape}, which does not fit into {x.shape} from {start} on in "
                    f"dimension {d}",
                    self,
                )
        return (x,)

    def reference(self, x: Array, part: Array, env: Frame) -> Any:
        result = np.array(x)
        starts = _ints(env, self.starts)
        result[tuple(slice(start, start + n) for start, n in zip(starts, part.shape, strict=True))] = part
        return result

    def fold(self) -> Value | ConstantData | None:
        return self.part if same_shape(tensor_type(self.part).shape, tensor_type(self.x).shape) else None

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        _, part = at.operands
        dy = at.cotangent
        stops = tuple(s + n for s, n in zip(self.starts, part.shape, strict=True))
        inside = dy.apply("slice", dy.value, starts=self.starts, stops=stops, steps=(1,) * len(stops))
        outside = dy.apply("update_slice", dy.value, part.zeros().value, starts=self.starts)
        return outside, inside

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        x, part = operands
        return t.scatter(
            x,
            part.shape,
            lambda *i: (part[i], *(t.index(s + k) for s, k in zip(self.starts, i, strict=True))),
        )


@operation
class Concat(GraphOp):
    """Tensors joined along `axis`."""

    name = "graph.concat"
    inputs: VariadicOperand
    axis: Attr

    def infer_types(self) -> Sequence[Type]:
        types = [tensor_type(v) for v in self.inputs]
        if not types:
            raise IRError("needs at least one input", self)
        axis = normalize_axis(self.axis, types[0].rank, self)
        total: Dim = 0
        for x in types:
            if x.rank != types[0].rank or x.dtype is not types[0].dtype:
                raise IRError(f"inputs differ in rank or dtype: {types[0]} and {x}", self)
            for d in range(x.rank):
                if d != axis and not prove_eq(x.shape[d], types[0].shape[d]):
                    raise IRError(f"inputs differ in dimension {d}: {types[0].shape} and {x.shape}", self)
            total = total + x.shape[axis]
        return (TensorType(types[0].dtype, (*types[0].shape[:axis], total, *types[0].shape[axis + 1 :])),)

    def reference(self, *inputs: Array) -> Any:
        return np.concatenate(inputs, self.axis)

    def fold(self) -> Value | ConstantData | None:
        return self.inputs[0] if len(self.inputs) == 1 else None

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        axis = self.axis % len(at.cotangent.shape)
        parts: list[Term] = []
        start: Dim = 0
        for x in at.operands:
            parts.append(at.cotangent.slice(axis, start, start + x.shape[axis]))
            start = start + x.shape[axis]
        return parts

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        axis = self.axis % operands[0].rank

        def element(*i: Dim) -> Scalar:
            value: Scalar | float = 0
            ends: list[Dim] = []
            end: Dim = 0
            for x in operands:
                end = end + x.shape[axis]
                ends.append(end)
            for k in range(len(operands) - 1, -1, -1):
                start = ends[k - 1] if k else 0
                where = (*i[:axis], i[axis] - start, *i[axis + 1 :])
                value = operands[k].at(
                    *where, guard=(i[axis] - start, ends[k] - 1 - i[axis]), otherwise=value
                )
            assert isinstance(value, Scalar)
            return value

        return t.compute(self.result.type.shape, element)


@operation
class Pad(GraphOp):
    """`low` elements before and `high` after each dimension (negative: cropped); `mode` is constant, reflect,
    edge or wrap. The constant is the number `value` or, where it is known at run time only, the tensor of one
    element `fill`.
    """

    name = "graph.pad"
    x: Operand
    fill: OptionalOperand
    low: Attr
    high: Attr
    mode: Attr = "constant"
    value: Attr = 0

    def infer_types(self) -> Sequence[Type]:
        x = tensor_type(self.x)
        need_choice(self, "mode", ("constant", "reflect", "edge", "wrap"))
        need_sizes(self, "low", x.rank, least=None)
        need_sizes(self, "high", x.rank, least=None)
        if self.fill is None:
            need_numbers(self, "value")
            value = float(self.value)
            if self.mode == "constant" and not x.dtype.is_float and not value.is_integer():
                raise IRError(f"value {self.value} is no {x.dtype.label}", self)
        else:
            fill = tensor_type(self.fill)
            check_same_type(self, "fill", x.dtype)
            if differ(fill.size, 1):
                raise IRError(f"fill has shape {fill.shape}, needs one element", self)
        if self.mode != "constant":
            for l, n, h in zip(self.low, x.shape, self.high, strict=True):
                if is_zero(n) and (exceeds(l, 0) or exceeds(h, 0)):
                    raise IRError(f"x has shape {x.shape}: there is nothing to repeat", self)
        shape = tuple(l + d + h for l, d, h in zip(self.low, x.shape, self.high, strict=True))
        if any(exceeds(0, n) for n in shape):
            raise IRError(f"the padding low={self.low}, high={self.high} crops more than {x.shape}", self)
        return (TensorType(x.dtype, shape),)

    def reference(self, *operands: Array, env: Any = None) -> Any:
        x, *fill = operands
        if not self.low:  # NumPy pads no scalar
            return x
        low, high = _ints(env, self.low), _ints(env, self.high)
        pads = [(max(l, 0), max(h, 0)) for l, h in zip(low, high, strict=True)]
        options = (
            {"constant_values": fill[0].item() if fill else self.value} if self.mode == "constant" else {}
        )
        y = np.pad(x, pads, mode=self.mode, **options)
        return y[tuple(slice(max(-l, 0), n - max(-h, 0)) for l, h, n in zip(low, high, y.shape, strict=True))]

    def fold(self) -> Value | ConstantData | None:
        zero = all(isinstance(p, int) and p == 0 for p in (*self.low, *self.high))
        return self.x if zero else None

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        x, *fill = at.operands
        dy = at.cotangent
        if self.mode != "constant":
            return [self._of_repeated(x, dy), *(None for _ in fill)]
        dx = dy.pad([-l for l in self.low], [-h for h in self.high])
        if not fill or not at.needed[1]:
            return [dx, *(None for _ in fill)]
        added = (x.zeros().pad(self.low, self.high, 1) > 0).select(dy, dy.zeros())
        return dx, added.wide().sum(range(len(dy.shape))).reshape(fill[0].shape)

    def _of_repeated(self, x: Term, dy: Term) -> Term:
        """The gradient of `x` where the padding repeats elements: the sum over all copies of an element, in
        one dimension after the other.
        """
        dy = dy.wide()
        for d, (n, low, high) in enumerate(zip(x.shape, self.low, self.high, strict=True)):
            if (is_zero(low) and is_zero(high)) or is_zero(n):
                continue
            place = dy.iota(dy.shape[d]) - low
            if self.mode == "edge":
                place = place.maximum(0).minimum(n - 1)
            elif self.mode == "wrap":
                place = place % n
            else:
                period = smax(2 * (n - 1), 1)
                place = place % period
                place = place.minimum(-place + period)
            shape = (*dy.shape[:d], n, *dy.shape[d + 1 :])
            order = (d, *(k for k in range(len(shape)) if k != d))
            dy = dy.apply(
                "scatter_nd",
                dy.number(0).broadcast(shape).value,
                place.unsqueeze(1).value,
                dy.transpose(order).value,
                combiner="sum",
                axes=(d,),
            )
        return dy

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        x, *fill = operands

        def element(*i: Dim) -> Scalar:
            where: list[Dim] = []
            guard: list[Dim] = []
            for k, l, h, n in zip(i, self.low, self.high, x.shape, strict=True):
                e = k - l
                if isinstance(l, int) and l == 0 and isinstance(h, int) and h == 0:
                    where.append(e)
                elif self.mode == "constant":
                    where.append(e)
                    guard += [g for g in (e, n - 1 - e) if not prove_le(0, g)]
                elif self.mode == "edge":
                    where.append(smin(smax(e, 0), n - 1))
                elif self.mode == "wrap":
                    where.append(e % n)
                else:
                    period = smax(2 * (n - 1), 1)
                    m = e % period
                    where.append(smin(m, period - m) if not (isinstance(n, int) and n == 1) else 0)
            value = fill[0][(0,) * fill[0].rank] if fill else self.value
            return x.at(*where, guard=guard, otherwise=value) if guard else x[tuple(where)]

        return t.compute(self.result.type.shape, element)


@operation
class Tile(GraphOp):
    """`x` repeated `repeats` times per dimension."""

    name = "graph.tile"
    x: Operand
    repeats: Attr

    def infer_types(self) -> Sequence[Type]:
        x = tensor_type(self.x)
        need_sizes(self, "repeats", x.rank)
        return (TensorType(x.dtype, tuple(d * r for d, r in zip(x.shape, self.repeats, strict=True))),)

    def reference(self, x: Array, env: Frame) -> Any:
        return np.tile(x, _ints(env, self.repeats))

    def fold(self) -> Value | ConstantData | None:
        return self.x if all(isinstance(r, int) and r == 1 for r in self.repeats) else None

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        shape = [d for pair in zip(self.repeats, at.operands[0].shape, strict=True) for d in pair]
        return (at.cotangent.wide().reshape(shape).sum(range(0, len(shape), 2)),)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        (x,) = operands
        return t.compute(
            self.result.type.shape,
            lambda *i: x[
                tuple(
                    k if isinstance(r, int) and r == 1 else 0 if isinstance(n, int) and n <= 1 else k % n
                    for k, n, r in zip(i, x.shape, self.repeats, strict=True)
                )
            ],
        )


@operation
class Flip(GraphOp):
    """`x` reversed along `axes`."""

    name = "graph.flip"
    x: Operand
    axes: Attr

    def infer_types(self) -> Sequence[Type]:
        need_integers(self, "axes")
        rank = tensor_type(self.x).rank
        if len({normalize_axis(a, rank, self) for a in self.axes}) != len(self.axes):
            raise IRError(f"axes {self.axes} are not distinct", self)
        return (self.x.type,)

    def reference(self, x: Array) -> Any:
        return np.flip(x, self.axes)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        return (at.cotangent.flip(*self.axes),)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        (x,) = operands
        axes = {a % x.rank for a in self.axes}
        return t.compute(
            x.shape,
            lambda *i: x[
                tuple(n - 1 - k if d in axes else k for d, (k, n) in enumerate(zip(i, x.shape, strict=True)))
            ],
        )


@operation
class Iota(GraphOp):
    """``start + step * index`` along `axis`; `start` and `step` are numbers or, for integers, symbolic
    dims.
    """

    name = "graph.iota"
    shape: Attr
    axis: Attr = 0
    start: Attr = 0
    step: Attr = 1
    dtype: Attr = i64

    def infer_types(self) -> Sequence[Type]:
        need_sizes(self, "shape")
        need_dtype(self)
        for name in ("start", "step"):
            if not isinstance(getattr(self, name), Expr):
                need_numbers(self, name)
                value = getattr(self, name)
                if not self.dtype.is_float and not float(value).is_integer():
                    raise IRError(f"{name} {value} is no {self.dtype.label}", self)
        normalize_axis(self.axis, len(self.shape), self)
        return (TensorType(self.dtype, self.shape),)

    def reference(self, env: Frame) -> Any:
        shape = _ints(env, self.shape)
        start, step = (
            v if isinstance(v, (int, float)) else int(env.evaluate(v)) for v in (self.start, self.step)
        )
        values = (start + step * np.arange(shape[self.axis])).astype(self.dtype.numpy)
        axis = self.axis % len(shape)
        return np.broadcast_to(values.reshape([-1 if d == axis else 1 for d in range(len(shape))]), shape)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        axis = self.axis % len(self.shape)

        def element(*i: Dim) -> Scalar:
            if isinstance(self.start, float) or isinstance(self.step, float):
                return t.index(i[axis]).cast(self.dtype) * self.step + self.start
            return t.index(self.start + i[axis] * self.step).cast(self.dtype)

        return t.compute(self.shape, element)


@operation
class Triangular(GraphOp):
    """The upper or lower triangle of the last two dimensions; the rest becomes zero. `diagonal` as NumPy's
    ``k``.
    """

    name = "graph.triangular"
    x: Operand
    upper: Attr
    diagonal: Attr = 0

    def infer_types(self) -> Sequence[Type]:
        if tensor_type(self.x).rank < 2:
            raise IRError("needs at least two dimensions", self)
        need_size(self, "diagonal", least=None)
        return (self.x.type,)

    def reference(self, x: Array, env: Frame) -> Any:
        k = int(env.evaluate(self.diagonal))
        return np.triu(x, k) if self.upper else np.tril(x, k)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        dy = at.cotangent
        return (dy.apply("triangular", dy.value, upper=self.upper, diagonal=self.diagonal),)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        (x,) = operands

        def element(*i: Dim) -> Scalar:
            offset = t.index(i[-1] - i[-2] - self.diagonal)
            keep = offset >= 0 if self.upper else offset <= 0
            return keep.select(x[i], 0)

        return t.compute(x.shape, element)


@operation
class OneHot(GraphOp):
    """A new dimension of size `depth` at `axis` that is 1 at the index and 0 elsewhere."""

    name = "graph.one_hot"
    indices: Operand
    depth: Attr
    axis: Attr = -1
    dtype: Attr = f32

    def infer_types(self) -> Sequence[Type]:
        indices = tensor_type(self.indices)
        if not indices.dtype.is_integer:
            raise IRError(f"indices must be integers, got {indices.dtype.label}", self)
        need_size(self, "depth")
        need_dtype(self)
        shape = list(indices.shape)
        shape.insert(normalize_axis(self.axis, len(shape) + 1, self), self.depth)
        return (TensorType(self.dtype, shape),)

    def reference(self, indices: Array, env: Frame) -> Any:
        depth = int(env.evaluate(self.depth))
        axis = self.axis % (indices.ndim + 1)
        hot = np.expand_dims(np.where(indices < 0, indices + depth, indices), axis) == np.arange(
            depth
        ).reshape([-1 if d == axis else 1 for d in range(indices.ndim + 1)])
        return hot.astype(self.dtype.numpy)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        (x,) = operands
        axis = self.axis % (x.rank + 1)

        def element(*i: Dim) -> Scalar:
            index = x[(*i[:axis], *i[axis + 1 :])].cast(i64)
            index = (index < 0).select(index + self.depth, index)
            return index.equals(i[axis]).cast(self.dtype)

        return t.compute(self.result.type.shape, element)


def squeeze(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    """`x` without the unit dimensions `axes`."""
    shape = tensor_type(x).shape
    drop = {a % len(shape) for a in axes}
    result: Value = b(Reshape(x, shape=tuple(d for k, d in enumerate(shape) if k not in drop)))
    return result
