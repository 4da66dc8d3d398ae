"""Reductions, arg-reductions, prefix sums, sorting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...ir.builder import Builder
from ...ir.core import Attr, IRError, Operand, Value, operation
from ...ir.interpreter import Array, Frame
from ...ir.symbolic import Dim
from ...ir.types import DType, TensorType, Type, boolean, f32, i64
from .. import scalar, tensor
from ..scalar import combiner_identity
from ..tensor_builder import Scalar, TensorBuilder, TensorRef
from .base import Adjoint, GraphOp, normalize_axis, tensor_type
from .elementwise import BINARY, UNARY, Cast, Clamp, Select, Symbolic, constant
from .operands import check_floating, check_number, exceeds, is_zero, need_numbers, need_size
from .term import Term


class Reduction(GraphOp):
    """Combines the elements along `axes`; with `keepdims` they stay as unit dimensions."""

    x: Operand
    axes: Attr
    keepdims: Attr = False
    combiner: Any = None

    @property
    def normalized(self) -> tuple[int, ...]:
        rank = tensor_type(self.x).rank
        if not isinstance(self.axes, (tuple, list)):
            raise IRError(f"axes is {self.axes!r}, needs integers", self)
        return tuple(sorted({normalize_axis(a, rank, self) for a in self.axes}))

    def infer_types(self) -> Sequence[Type]:
        x, axes = tensor_type(self.x), self.normalized
        shape = [1 if d in axes else n for d, n in enumerate(x.shape) if self.keepdims or d not in axes]
        return (TensorType(self.result_dtype(x.dtype), shape),)

    def result_dtype(self, dtype: DType) -> DType:
        return dtype

    def reference(self, x: Array) -> Any:
        y = tensor.reduce_array(type(self).combiner, x, self.normalized)
        return np.expand_dims(y, self.normalized) if self.keepdims else y

    def gradient(self, at: Adjoint) -> Sequence[Term | None] | None:
        rule = _GRADIENTS.get(type(self).name)
        if rule is None:
            return None
        axes, x = self.normalized, at.operands[0].wide()
        y, dy = (v.wide() if self.keepdims else v.wide().unsqueeze(*axes) for v in (at.result, at.cotangent))
        return (rule(x, y, dy, axes),)

    def fold(self) -> Any:
        return self.x if not self.axes else None

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        (x,) = operands
        narrow = x.dtype.is_float and x.dtype.bits <= 16
        y = reduce_axes(
            t, x, type(self).combiner, self.normalized, self.keepdims, lambda v: v.cast(f32) if narrow else v
        )
        return t.compute(y.shape, lambda *i: y[i].cast(x.dtype)) if narrow else y


def _of_extreme(x: Term, y: Term, dy: Term, axes: Sequence[int]) -> Term:
    """The gradient of a minimum or maximum: equal elements share it, as in PyTorch's ``amax``."""
    chosen = x.equals(y).cast(dy.dtype)
    return chosen * (dy / chosen.sum(axes, keepdims=True))


def _of_product(x: Term, y: Term, dy: Term, axes: Sequence[int]) -> Term:
    """The gradient of a product: for each element the product of those before and of those behind it, which
    is right for any number of zeros, in the second order too.
    """
    kept = [k for k in range(len(x.shape)) if k not in axes]
    order = (*kept, *axes)
    moved = x.transpose(order)
    size: Dim = 1
    for k in axes:
        size = size * x.shape[k]
    flat = moved.reshape((*(x.shape[k] for k in kept), size))
    before, behind = (
        flat.apply("cumprod", flat.value, axis=len(kept), exclusive=True, reverse=reverse)
        for reverse in (False, True)
    )
    others = (before * behind).reshape(moved.shape)
    return dy * others.transpose([order.index(k) for k in range(len(order))])


def _count(x: Term, axes: Sequence[int]) -> Term:
    """The number of elements along `axes`, a scalar of the element type of `x`."""
    n: Dim = 1
    for a in axes:
        n = n * x.shape[a]
    return x.number(float(n) if isinstance(n, int) else n)


_GRADIENTS: dict[str, Callable[[Term, Term, Term, Sequence[int]], Term]] = {
    "graph.reduce_sum": lambda x, y, dy, axes: dy,
    "graph.reduce_prod": _of_product,
    "graph.reduce_mean": lambda x, y, dy, axes: dy / _count(x, axes),
    "graph.log_sum_exp": lambda x, y, dy, axes: dy * (x - y.equals(-math.inf).select(0, y)).unary("exp"),
    "graph.reduce_max": _of_extreme,
    "graph.reduce_min": _of_extreme,
}
"""The gradient of `x` from the result `y` and its gradient `dy`, both with unit dimensions at the axes."""


def reduce_axes(
    t: TensorBuilder,
    x: TensorRef,
    combiner: str,
    axes: Sequence[int],
    keepdims: bool,
    element: Callable[[Scalar], Scalar],
) -> TensorRef:
    """The reduction of ``element(x[...])`` over `axes`."""
    kept = [d for d in range(x.rank) if d not in axes]
    shape = [1 if d in axes else n for d, n in enumerate(x.shape) if keepdims or d not in axes]

    def body(*i: Dim) -> Scalar:
        parallel, reduced = i[: len(shape)], list(i[len(shape) :])
        outer = list(parallel) if keepdims else None
        where: list[Any] = []
        for d in range(x.rank):
            where.append(
                reduced[axes.index(d)]
                if d in axes
                else (outer[d] if outer is not None else parallel[kept.index(d)])
            )
        return element(x[tuple(where)])

    if not axes:
        return t.compute(shape, body)
    return t.reduce(combiner, shape, [x.shape[a] for a in axes], body)


def _reduction(class_name: str, combiner: str) -> type[Reduction]:
    name = "graph." + "".join("_" + c.lower() if c.isupper() else c for c in class_name).lstrip("_")
    body = {
        "name": name,
        "combiner": combiner,
        "__module__": __name__,
        "__doc__": f"Reduction by {combiner}.",
    }
    return operation(type(class_name, (Reduction,), body))


ReduceSum = _reduction("ReduceSum", "sum")
ReduceProd = _reduction("ReduceProd", "prod")
ReduceMax = _reduction("ReduceMax", "max")
ReduceMin = _reduction("ReduceMin", "min")


@operation
class ReduceXor(Reduction):
    """Reduction of integers or booleans by exclusive or of their bits."""

    name = "graph.reduce_xor"
    combiner = "xor"

    def infer_types(self) -> Sequence[Type]:
        scalar.check_operand(self, scalar.BINARY["xor"], tensor_type(self.x).dtype)
        return super().infer_types()


class BoolReduction(Reduction):
    def infer_types(self) -> Sequence[Type]:
        if tensor_type(self.x).dtype is not boolean:
            raise IRError(f"x is {tensor_type(self.x).dtype.label}, needs bool", self)
        return super().infer_types()


def _bool_reduction(class_name: str, combiner: str) -> type[Reduction]:
    name = "graph." + "".join("_" + c.lower() if c.isupper() else c for c in class_name).lstrip("_")
    body = {
        "name": name,
        "combiner": combiner,
        "__module__": __name__,
        "__doc__": f"Boolean reduction by {combiner}.",
    }
    return operation(type(class_name, (BoolReduction,), body))


ReduceAll = _bool_reduction("ReduceAll", "and")
ReduceAny = _bool_reduction("ReduceAny", "or")


def count(b: Builder, x: Value, axes: Sequence[int], dtype: DType) -> Value:
    """The number of elements along `axes`, as a rank-0 tensor of `dtype`."""
    n: Dim = 1
    for a in axes:
        n = n * tensor_type(x).shape[a]
    result: Value = b(Cast(b(Symbolic(values=(n,))), dtype=dtype))
    return result


@operation
class ReduceMean(Reduction):
    """Arithmetic mean; of integers truncated toward zero."""

    name = "graph.reduce_mean"
    combiner = "sum"

    def infer_types(self) -> Sequence[Type]:
        check_number(self, "x")
        return super().infer_types()

    def reference(self, x: Array) -> Any:
        if x.dtype.kind != "f" and x.dtype.name != "bfloat16":
            count = max(1, int(np.prod([x.shape[a] for a in self.normalized])))
            total = x.sum(axis=self.normalized, keepdims=self.keepdims)
            return scalar.BINARY["div"].function(total, np.asarray(count, total.dtype)).astype(x.dtype)
        return x.astype(np.float64).mean(axis=self.normalized, keepdims=self.keepdims).astype(x.dtype)

    def decompose(self, b: Builder) -> Value:
        x = tensor_type(self.x)
        wide = b(Cast(self.x, dtype=f32)) if x.dtype.is_float and x.dtype.bits <= 16 else self.x
        total = b(ReduceSum(wide, axes=self.normalized, keepdims=self.keepdims))
        mean: Value = b(BINARY["div"](total, count(b, self.x, self.normalized, tensor_type(wide).dtype)))
        return b(Cast(mean, dtype=x.dtype)) if wide is not self.x else mean


@operation
class Variance(Reduction):
    """Mean squared deviation, divided by ``n - correction`` (two passes)."""

    name = "graph.variance"
    correction: Attr = 0.0

    def infer_types(self) -> Sequence[Type]:
        check_floating(self, "x")
        need_numbers(self, "correction")
        return super().infer_types()

    def reference(self, x: Array) -> Any:
        return (
            x.astype(np.float64)
            .var(axis=self.normalized, ddof=self.correction, keepdims=self.keepdims)
            .astype(x.dtype)
        )

    def decompose(self, b: Builder) -> Value:
        x = tensor_type(self.x)
        wide = b(Cast(self.x, dtype=f32)) if x.dtype.is_float and x.dtype.bits <= 16 else self.x
        # As models compute the mean beside the variance, so that there is one.
        mean = b(ReduceMean(wide, axes=self.normalized, keepdims=False))
        centered = b(BINARY["sub"](wide, Term(b, mean).unsqueeze(*self.normalized).value))
        total = b(
            ReduceSum(b(BINARY["mul"](centered, centered)), axes=self.normalized, keepdims=self.keepdims)
        )
        n = b(
            BINARY["sub"](
                count(b, self.x, self.normalized, tensor_type(wide).dtype), constant(b, self.correction, wide)
            )
        )
        result: Value = b(BINARY["div"](total, b(Clamp(n, minimum=0.0))))
        return b(Cast(result, dtype=x.dtype)) if wide is not self.x else result

    def gradient(self, at: Adjoint) -> Sequence[Term | None] | None:
        axes, x, dy = self.normalized, at.operands[0].wide(), at.cotangent.wide()
        mean = x.apply("reduce_mean", x.value, axes=axes, keepdims=False).unsqueeze(*axes)
        scale = 2.0 / (_count(x, axes) - self.correction).maximum(0)
        return ((dy if self.keepdims else dy.unsqueeze(*axes)) * scale * (x - mean),)


@operation
class LogSumExp(Reduction):
    """``log(sum(exp(x)))`` without overflow."""

    name = "graph.log_sum_exp"

    def infer_types(self) -> Sequence[Type]:
        check_floating(self, "x")
        return super().infer_types()

    def reference(self, x: Array) -> Any:
        m = x.max(axis=self.normalized, keepdims=True, initial=-np.inf).astype(np.float64)
        m = np.where(np.isfinite(m), m, 0)
        with np.errstate(divide="ignore"):
            y = np.log(np.exp(x - m).sum(axis=self.normalized, keepdims=True)) + m
        return (y if self.keepdims else np.squeeze(y, self.normalized)).astype(x.dtype)

    def decompose(self, b: Builder) -> Value:

        from .shape import squeeze

        top = b(ReduceMax(self.x, axes=self.normalized, keepdims=True))
        infinite = b(UNARY["isinf"](top))
        top = b(Select(infinite, constant(b, 0, self.x), top))
        total = b(
            ReduceSum(b(UNARY["exp"](b(BINARY["sub"](self.x, top)))), axes=self.normalized, keepdims=True)
        )
        result: Value = b(BINARY["add"](b(UNARY["log"](total)), top))
        return result if self.keepdims else squeeze(b, result, self.normalized)


class ArgReduction(GraphOp):
    """Index (i64) of the extreme element along `axis`: the first, or with `last` the last; a NaN is
    extreme.
    """

    x: Operand
    axis: Attr
    keepdims: Attr = False
    last: Attr = False
    combiner: Any = None

    def infer_types(self) -> Sequence[Type]:
        x = tensor_type(self.x)
        axis = normalize_axis(self.axis, x.rank, self)
        shape = [1 if d == axis else n for d, n in enumerate(x.shape) if self.keepdims or d != axis]
        if is_zero(x.shape[axis]) and not any(map(is_zero, shape)):
            raise IRError(f"x has shape {x.shape}: there are no elements along dimension {axis}", self)
        return (TensorType(i64, shape),)

    def reference(self, x: Array) -> Any:
        axis = self.axis % x.ndim
        function = np.argmax if type(self).combiner == "max" else np.argmin
        y = x.shape[axis] - 1 - function(np.flip(x, axis), axis) if self.last else function(x, axis)
        return np.expand_dims(y, axis).astype(np.int64) if self.keepdims else np.asarray(y, np.int64)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        (x,) = operands
        axis = self.axis % x.rank
        best = reduce_axes(t, x, type(self).combiner, (axis,), True, lambda v: v)
        n = x.shape[axis]

        def element(*i: Dim) -> Scalar:
            *parallel, r = i
            outer = parallel if self.keepdims else [*parallel[:axis], 0, *parallel[axis:]]
            where = [*outer[:axis], r, *outer[axis + 1 :]]
            v = x[tuple(where)]
            top = best[(*outer[:axis], 0, *outer[axis + 1 :])]
            hit = v.equals(top)
            if x.dtype.is_float:
                hit = hit | v.isnan()
            position = t.index(r)
            return hit.select(position, t.constant(-1, i64) if self.last else t.index(n))

        return t.reduce("max" if self.last else "min", self.result.type.shape, (n,), element)


@operation
class Argmax(ArgReduction):
    name = "graph.argmax"
    combiner = "max"


@operation
class Argmin(ArgReduction):
    name = "graph.argmin"
    combiner = "min"


class CumulativeOp(GraphOp):
    """Running combination along `axis`; `exclusive` leaves the own element out, `reverse` runs from the
    end.
    """

    x: Operand
    axis: Attr
    exclusive: Attr = False
    reverse: Attr = False
    combiner: Any = None

    def infer_types(self) -> Sequence[Type]:
        normalize_axis(self.axis, tensor_type(self.x).rank, self)
        return (self.x.type,)

    def reference(self, x: Array) -> Any:
        axis = self.axis % x.ndim
        y = np.flip(x, axis) if self.reverse else x
        combiner = type(self).combiner
        ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[combiner]
        identity = combiner_identity(combiner, self.result.type.dtype)
        wide = y.astype(np.float64) if y.dtype.kind not in "iub" else y
        y = ufunc.accumulate(wide, axis, dtype=wide.dtype).astype(x.dtype)
        if self.exclusive:
            y = np.roll(y, 1, axis)
            y[tuple(slice(0, 1) if d == axis else slice(None) for d in range(x.ndim))] = identity
        return np.flip(y, axis) if self.reverse else y

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        (x,) = operands
        axis = self.axis % x.rank
        n = x.shape[axis]

        narrow = x.dtype.is_float and x.dtype.bits <= 16

        def length(*i: Dim) -> Dim:
            return (n - 1 - i[axis] if self.reverse else i[axis]) + 1

        def element(*i: Dim) -> Scalar:
            *where, r = i
            # An exclusive combination is the inclusive one of what stands one place before.
            r = r - 1 if self.exclusive else r
            where[axis] = n - 1 - r if self.reverse else r
            identity = combiner_identity(type(self).combiner, x.dtype)
            v = x.at(*where, guard=(r,), otherwise=identity) if self.exclusive else x[tuple(where)]
            return v.cast(f32) if narrow else v

        y = t.reduce(type(self).combiner, x.shape, (length,), element)
        return t.compute(y.shape, lambda *i: y[i].cast(x.dtype)) if narrow else y

    def _run(self, name: str, x: Term, exclusive: bool = False, backwards: bool = False) -> Term:
        """A running combination along the same axis; `backwards`: in the opposite direction."""
        reverse = bool(self.reverse) is not backwards
        return x.apply(name, x.value, axis=self.axis, exclusive=exclusive, reverse=reverse)


@operation
class Cumsum(CumulativeOp):
    name = "graph.cumsum"
    combiner = "sum"

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        return (self._run("cumsum", at.cotangent, self.exclusive, backwards=True),)


@operation
class Cumprod(CumulativeOp):
    name = "graph.cumprod"
    combiner = "prod"

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        """An element that is not zero is a factor of the products from its place on, which are divided by it.
        The first zero is left out of these products instead. All of them are zero for elements behind it.
        """
        x, y, dy = (v.wide() for v in (at.operands[0], at.result, at.cotangent))
        zero = x.equals(0)
        first = zero & self._run("cumsum", zero.cast(i64)).equals(1)
        rest = self._run("cumprod", first.select(1, x), self.exclusive)

        def later(products: Term) -> Term:
            return self._run("cumsum", dy * products, self.exclusive, backwards=True)

        return (first.select(later(rest), later(y) / zero.select(1, x)),)


class CumulativeExtreme(CumulativeOp):
    """A running maximum or minimum. The last of equal elements has the gradient, as in PyTorch; a NaN is
    extreme.
    """

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        x, axis = at.operands[0], self.axis % len(at.cotangent.shape)
        dy, n = at.cotangent.wide(), x.shape[axis]
        y = self._run(type(self).name.removeprefix("graph."), x) if self.exclusive else at.result
        if self.exclusive:  # each result is the inclusive one of the place before
            ends = (1, -1) if self.reverse else (-1, 1)
            dy = dy.pad_axis(axis, *ends)
        place = x.iota(n).along_axis(axis, len(x.shape)).broadcast(x.shape)
        record = x.equals(y) | x.unary("isnan")
        last = self._run(
            "cummin" if self.reverse else "cummax", record.select(place, n if self.reverse else -1)
        )
        dest = dy.number(0).broadcast(x.shape)
        operands = (dest.value, last.value, dy.value)
        return (dy.apply("scatter_elements", *operands, axis=axis, combiner="sum"),)


@operation
class Cummax(CumulativeExtreme):
    name = "graph.cummax"
    combiner = "max"


@operation
class Cummin(CumulativeExtreme):
    name = "graph.cummin"
    combiner = "min"


@operation
class Topk(GraphOp):
    """The `k` largest (or smallest) elements along `axis` in order, and their indices (i64); equal elements
    by index.
    """

    name = "graph.topk"
    x: Operand
    k: Attr
    axis: Attr = -1
    largest: Attr = True

    def infer_types(self) -> Sequence[Type]:
        x = tensor_type(self.x)
        axis = normalize_axis(self.axis, x.rank, self)
        need_size(self, "k")
        if exceeds(self.k, x.shape[axis]):
            raise IRError(f"k is {self.k}, dimension {axis} of x has {x.shape[axis]} elements", self)
        shape = (*x.shape[:axis], self.k, *x.shape[axis + 1 :])
        return (TensorType(x.dtype, shape), TensorType(i64, shape))

    def reference(self, x: Array, env: Frame) -> Any:
        axis, k = self.axis % x.ndim, int(env.evaluate(self.k))
        order = tensor.sorted_places(x, self.largest, axis)
        order = np.take(order, np.arange(k), axis)
        return np.take_along_axis(x, order, axis), order.astype(np.int64)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        x, indices, dy = at.operands[0], at.results[1], at.cotangents[0]
        if dy is None:
            return (None,)
        operands = (dy.number(0).broadcast(x.shape).value, indices.value, dy.value)
        return (dy.apply("scatter_elements", *operands, axis=self.axis, combiner="sum"),)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> Sequence[TensorRef]:
        (x,) = operands
        axis = self.axis % x.rank
        indices = t.order(x, self.k, axis, self.largest)
        values = t.compute(indices.shape, lambda *i: x[(*i[:axis], indices[i], *i[axis + 1 :])])
        return values, indices
