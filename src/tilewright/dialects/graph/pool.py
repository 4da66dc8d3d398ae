"""Pooling over sliding windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from ...ir.builder import Builder
from ...ir.core import Attr, IRError, Operand, Value, operation
from ...ir.interpreter import Array
from ...ir.symbolic import Dim, ceildiv, prove_le, smax, smin
from ...ir.types import TensorType, Type, f32, i32, i64
from ..scalar import combiner_identity
from ..tensor_builder import Scalar, TensorBuilder, TensorRef
from .base import Adjoint, GraphOp, tensor_type
from .conv import (
    channel_axis,
    check_layout,
    check_windows,
    from_channels_first,
    place,
    spatial_axes,
    to_channels_first,
    window_size,
)
from .operands import check_number, exceeds, need_integers, need_numbers
from .reduce import ReduceMean
from .term import Term


class Pool(GraphOp):
    """Base of windowed poolings; the attributes are per spatial dimension."""

    x: Operand
    kernel: Attr
    strides: Attr
    padding: Attr  # (low, high) per dimension
    dilations: Attr = ()
    ceil_mode: Attr = False
    layout: Attr = "channels_first"

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(self.dilations) or (1,) * len(self.kernel)

    def infer_types(self) -> Sequence[Type]:
        check_layout(self, self.layout)
        x = tensor_type(self.x)
        need_integers(self, "kernel", least=1)
        if x.rank != len(self.kernel) + 2:
            raise IRError(
                f"a kernel {self.kernel} needs an input of rank {len(self.kernel) + 2}, got {x.shape}", self
            )
        check_windows(self, len(self.kernel))
        axes = spatial_axes(x.rank, self.layout)
        spatial = [self._positions(x.shape[a], k) for k, a in enumerate(axes)]
        if any(exceeds(0, n) for n in spatial):
            raise IRError(f"the kernel {self.kernel} does not fit the padded input {x.shape}", self)
        return (
            TensorType(
                x.dtype, place(self.layout, x.shape[0], x.shape[channel_axis(x.rank, self.layout)], spatial)
            ),
        )

    def _positions(self, n: Dim, k: int) -> Dim:
        kernel, stride, (low, high), dilation = (
            self.kernel[k],
            self.strides[k],
            self.padding[k],
            self.steps[k],
        )
        if not self.ceil_mode:
            return window_size(n, kernel, stride, (low, high), dilation)
        count = ceildiv(n + low + high - (dilation * (kernel - 1) + 1), stride) + 1
        # A last window that would start in the high padding is dropped.
        if isinstance(count, int) and isinstance(n, int) and (count - 1) * stride >= n + low:
            count -= 1
        return count

    def _windows(self, x: Array) -> tuple[Any, Any]:
        """Float64 windows and a mask of the elements that lie inside the input, window dimensions last."""
        x = to_channels_first(x, self.layout)
        rank = x.ndim - 2
        shape = [self._positions(n, k) for k, n in enumerate(x.shape[2:])]
        index = []
        for k in range(rank):
            index.append(
                np.arange(cast(int, shape[k]))[:, None] * self.strides[k]
                + np.arange(self.kernel[k])[None, :] * self.steps[k]
                - self.padding[k][0]
            )
        grids, inside = [], np.ones((), bool)
        for k, i in enumerate(index):
            view = [1] * (2 * rank)
            view[k], view[rank + k] = i.shape
            i = i.reshape(view)
            inside = inside & (i >= 0) & (i < x.shape[2 + k])
            grids.append(np.clip(i, 0, max(x.shape[2 + k] - 1, 0)))
        if 0 in x.shape[2:]:  # no window sees the elements that stand here
            x = np.zeros((*x.shape[:2], *(max(n, 1) for n in x.shape[2:])), x.dtype)
        return x[(slice(None), slice(None), *grids)], inside

    def _taps(self, x: TensorRef) -> list[int]:
        """The window without what lies beyond the end of the input wherever the window stands."""
        sizes = [x.shape[a] for a in spatial_axes(x.rank, self.layout)]
        return [
            min(taps, max((n - 1 + low) // step + 1, 1)) if isinstance(n, int) else taps
            for n, taps, step, (low, _) in zip(sizes, self.kernel, self.steps, self.padding, strict=True)
        ]

    def _reads(self, x: TensorRef, i: Sequence[Any]) -> tuple[tuple[Any, ...], list[Dim]]:
        axes = spatial_axes(x.rank, self.layout)
        out, taps = i[: x.rank], i[x.rank :]
        where, guard = [], []
        for k, a in enumerate(axes):
            e = out[a] * self.strides[k] + taps[k] * self.steps[k] - self.padding[k][0]
            where.append(e)
            guard += [g for g in (e, x.shape[a] - 1 - e) if not prove_le(0, g)]
        return place(self.layout, out[0], out[channel_axis(x.rank, self.layout)], where), guard


@operation
class MaxPool(Pool):
    """Largest element of each window; padding never wins."""

    name = "graph.max_pool"

    def reference(self, x: Array) -> Any:
        windows, inside = self._windows(x)
        lowest = combiner_identity("max", self.result.type.dtype)
        windows = np.where(inside, windows, np.asarray(lowest, x.dtype))
        return from_channels_first(windows.max(axis=tuple(range(-len(self.kernel), 0))), self.layout).astype(
            x.dtype
        )

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        x, dy = at.operands[0], at.cotangent.wide()
        attributes = {name: self.attributes[name] for name in Pool._attr_fields}
        # In the forward pass, from which they stay in memory instead of x.
        found = Builder.after(self)(MaxPoolIndices(x.value, **attributes))
        places = x.of(found)
        axes = spatial_axes(len(x.shape), self.layout)
        first, last = axes[0], axes[-1]

        def flat(shape: Sequence[Dim]) -> tuple[Dim, ...]:
            return (*shape[:first], TensorType(i64, shape[first : last + 1]).size, *shape[last + 1 :])

        dest = dy.number(0).broadcast(flat(x.shape))
        places, dy = places.reshape(flat(places.shape)), dy.reshape(flat(dy.shape))
        dx = dy.apply("scatter_elements", dest.value, places.value, dy.value, axis=first, combiner="sum")
        return (dx.reshape(x.shape),)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        (x,) = operands

        def element(*i: Dim) -> Scalar:
            where, guard = self._reads(x, i)
            return x.at(*where, guard=guard, otherwise=combiner_identity("max", x.dtype))

        return t.reduce("max", self.result.type.shape, self._taps(x), element)


@operation
class MaxPoolIndices(Pool):
    """Where the largest element of each window lies (i64), counted in the flattened spatial dimensions of
    `x`: the first of equal ones, the last NaN; never padding.
    """

    name = "graph.max_pool_indices"

    def infer_types(self) -> Sequence[Type]:
        (pooled,) = super().infer_types()
        assert isinstance(pooled, TensorType)
        return (TensorType(i64, pooled.shape),)

    def reference(self, x: Array) -> Any:
        rank = len(self.kernel)
        windows, inside = self._windows(x)
        sizes = to_channels_first(x, self.layout).shape[2:]
        plane = np.arange(np.prod(sizes, dtype=np.int64)).reshape(1, 1, *sizes)
        places, _ = self._windows(from_channels_first(plane, self.layout))

        def taps_last(a: Array) -> Any:
            return np.broadcast_to(a, (*a.shape[:2], *windows.shape[2:])).reshape(
                *a.shape[:2], *windows.shape[2 : 2 + rank], math.prod(self.kernel)
            )

        windows, inside, places = taps_last(windows), taps_last(inside[None, None]), taps_last(places)
        nan = np.isnan(windows) & inside
        largest = np.where(inside, windows, combiner_identity("max", self.x.type.dtype)).max(
            -1, keepdims=True
        )
        hit = np.where(nan.any(-1, keepdims=True), nan, (windows == largest) & inside)
        key = np.where(nan, -1 - places, places)
        key = np.where(hit, key, np.iinfo(np.int64).max).min(-1)
        return from_channels_first(np.where(key < 0, -1 - key, key), self.layout)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        (x,) = operands
        axes = spatial_axes(x.rank, self.layout)
        sizes = [x.shape[a] for a in axes]
        shape = self.result.type.shape

        def value(*i: Dim) -> Scalar:
            where, guard = self._reads(x, i)
            return x.at(*where, guard=guard, otherwise=combiner_identity("max", x.dtype))

        best = t.reduce("max", shape, self._taps(x), value)
        # Half the memory where a gradient waits for them, and twice the lanes.
        dtype = i32 if prove_le(TensorType(i64, sizes).size, np.iinfo(np.int32).max) else i64
        nowhere = int(np.iinfo(dtype.numpy).max)  # of a window in the padding

        def place(*i: Dim) -> Scalar:
            where, guard = self._reads(x, i)
            v = value(*i)
            hit = v.equals(best[tuple(i[: x.rank])])
            position: Dim = 0
            for a, n in zip(axes, sizes, strict=True):
                position = position * n + where[a]
            index = t.index(position).cast(dtype)
            if x.dtype.is_float:  # a NaN comes before all numbers, the last one before the others
                hit, index = hit | v.isnan(), v.isnan().select(-1 - index, index)
            for g in guard:
                hit = hit & (t.index(g) >= 0)
            return hit.select(index, t.constant(nowhere, dtype))

        def from_front(*i: Dim) -> Scalar:
            wide = (first[i] < 0).select(-1 - first[i], first[i]).cast(i64)
            return wide if dtype is i64 else first[i].equals(nowhere).select(np.iinfo(np.int64).max, wide)

        first = t.reduce("min", shape, self._taps(x), place)
        return t.compute(shape, from_front)


@operation
class AvgPool(Pool):
    """Mean of each window. The divisor is `divisor`, or the window's size without (or, `count_include_pad`,
    with) padding.
    """

    name = "graph.avg_pool"
    count_include_pad: Attr = False
    divisor: Attr = None

    def infer_types(self) -> Sequence[Type]:
        check_number(self, "x")
        if self.divisor is not None:
            need_numbers(self, "divisor")
            if self.divisor == 0:
                raise IRError("the divisor is 0", self)
        return super().infer_types()

    def reference(self, x: Array) -> Any:
        windows, inside = self._windows(x)
        window = tuple(range(-len(self.kernel), 0))
        total = np.where(inside, windows.astype(np.float64), 0).sum(axis=window)
        return from_channels_first(total / self._count(x, inside, window), self.layout).astype(x.dtype)

    def _count(self, x: Array, inside: Array, window: tuple[int, ...]) -> Any:
        if self.divisor is not None:
            return self.divisor
        if not self.count_include_pad:
            return np.maximum(inside.sum(axis=window), 1)
        counts: Any = 1
        sizes = to_channels_first(x, self.layout).shape[2:]
        for k, n in enumerate(sizes):
            p = self._positions(n, k)
            i = (
                np.arange(cast(int, p))[:, None] * self.strides[k]
                + np.arange(self.kernel[k])[None, :] * self.steps[k]
            )
            c = (i < n + sum(self.padding[k])).sum(axis=1)
            counts = counts * c.reshape([-1 if d == k else 1 for d in range(len(sizes))])
        return counts

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        """The sum, for each element, over the windows that contain it, of their gradients divided by their
        sizes: along a dimension whose windows do not overlap copies, along others a sum over a window of the
        gradients with zeros between them.
        """
        x, dy = at.operands[0], at.cotangent.wide()
        rank = len(x.shape)
        axes = spatial_axes(rank, self.layout)
        dy = dy / self._divisor(x, dy)
        kernel: list[int] = []
        low: list[Dim] = [0] * rank
        high: list[Dim] = [0] * rank
        for k, a in enumerate(axes):
            taps, stride, step = self.kernel[k], self.strides[k], self.steps[k]
            apart = step == 1 and (stride >= taps or dy.shape[a] == 1)
            if apart:
                stride = max(stride, taps)
                copies = dy.unsqueeze(a + 1)
                copies = copies.broadcast((*copies.shape[: a + 1], taps, *copies.shape[a + 2 :]))
                shape = [d * stride if k == a else d for k, d in enumerate(dy.shape)]
                dy = copies.pad_axis(a + 1, 0, stride - taps).reshape(shape)
                kernel.append(1)
            else:
                dy = dy.spread(a, stride)
                kernel.append(taps)
            reach = step * (kernel[-1] - 1)
            low[a] = reach - self.padding[k][0]
            high[a] = x.shape[a] + reach - dy.shape[a] - low[a]
        dy = dy.pad(low, high)
        if any(taps > 1 for taps in kernel):
            dy = dy.apply(
                "avg_pool",
                dy.value,
                kernel=tuple(kernel),
                strides=(1,) * len(kernel),
                padding=((0, 0),) * len(kernel),
                dilations=tuple(self.dilations),
                divisor=1,
                layout=self.layout,
            )
        return (dy,)

    def _divisor(self, x: Term, dy: Term) -> Term | float:
        """The divisor of the sums of windows: one number, or a term that broadcasts to their shape."""
        if self.divisor is not None:
            return float(self.divisor)
        whole = self.count_include_pad or all(p == (0, 0) for p in map(tuple, self.padding))
        if whole and not self.ceil_mode:
            return float(math.prod(self.kernel))
        result = dy.number(1)
        rank = len(x.shape)
        for k, a in enumerate(spatial_axes(rank, self.layout)):
            n, taps, step, (low, high) = x.shape[a], self.kernel[k], self.steps[k], self.padding[k]
            start = dy.iota(dy.shape[a]) * self.strides[k] - low
            least, most = (-low, n + high) if self.count_include_pad else (0, n)
            first, last = (-((start - bound) // step) for bound in (least, most))
            count = (last.minimum(taps) - first.maximum(0)).maximum(1)
            result = result * count.cast(dy.dtype).along_axis(a, rank)
        return result

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        (x,) = operands
        result: TensorType = self.result.type
        axes = spatial_axes(x.rank, self.layout)

        def element(*i: Dim) -> Scalar:
            where, guard = self._reads(x, i)
            value = x.at(*where, guard=guard, otherwise=0) if guard else x[where]
            return value.cast(f32) if x.dtype.is_float and x.dtype.bits <= 16 else value

        total = t.reduce("sum", result.shape, self._taps(x), element)

        def mean(*i: Dim) -> Scalar:
            if self.divisor is not None:
                return divided(total[i], self.divisor)
            n: Dim = 1
            for k, a in enumerate(axes):
                start = i[a] * self.strides[k] - self.padding[k][0]
                # Taps start + r*step with r in [0, kernel) that lie in [low, high).
                low = -self.padding[k][0] if self.count_include_pad else 0
                high = x.shape[a] + (self.padding[k][1] if self.count_include_pad else 0)
                first = smax(ceildiv(low - start, self.steps[k]), 0)
                last = smin(ceildiv(high - start, self.steps[k]), self.kernel[k])
                n = n * smax(last - first, 1)  # of a window that sees nothing the sum is 0
            return divided(total[i], n)

        def divided(sum_: Scalar, n: Dim) -> Scalar:
            if isinstance(n, int) and total.dtype.is_float:
                return (sum_ * (1.0 / n) if n & (n - 1) == 0 else sum_ / float(n)).cast(x.dtype)
            return (sum_ / (n if isinstance(n, int) else t.index(n).cast(total.dtype))).cast(x.dtype)

        return t.compute(result.shape, mean)


@operation
class AdaptiveAvgPool(GraphOp):
    """Mean over windows that divide each spatial dimension into `size` nearly equal parts."""

    name = "graph.adaptive_avg_pool"
    x: Operand
    size: Attr
    layout: Attr = "channels_first"

    def infer_types(self) -> Sequence[Type]:
        check_layout(self, self.layout)
        x = tensor_type(self.x)
        check_number(self, "x")
        need_integers(self, "size", least=1)
        if x.rank != len(self.size) + 2:
            raise IRError(
                f"the size {self.size} needs an input of rank {len(self.size) + 2}, got {x.shape}", self
            )
        return (
            TensorType(
                x.dtype, place(self.layout, x.shape[0], x.shape[channel_axis(x.rank, self.layout)], self.size)
            ),
        )

    def reference(self, x: Array) -> Any:
        y = to_channels_first(x, self.layout).astype(np.float64)
        for k, size in enumerate(self.size):
            n = y.shape[2 + k]
            parts = [
                np.take(y, range(j * n // size, -(-(j + 1) * n // size)), 2 + k).mean(
                    axis=2 + k, keepdims=True
                )
                for j in range(size)
            ]
            y = np.concatenate(parts, 2 + k)
        return from_channels_first(y, self.layout).astype(x.dtype)

    def _divides(self) -> bool:
        """Whether the windows have one size."""
        x = tensor_type(self.x)
        sizes = [x.shape[a] for a in spatial_axes(x.rank, self.layout)]
        return all(isinstance(n, int) and n and n % s == 0 for n, s in zip(sizes, self.size, strict=True))

    def gradient(self, at: Adjoint) -> Sequence[Term | None] | None:
        """Products with the matrices that average along each dimension."""
        if self._divides() or all(s == 1 for s in self.size):
            return None  # that of the decomposition
        x, dy = at.operands[0], at.cotangent.wide()
        for a, size in zip(spatial_axes(len(x.shape), self.layout), self.size, strict=True):
            n, i = x.shape[a], dy.iota(size)
            start, stop = (i * n) // size, ((i + 1) * n + (size - 1)) // size
            places = dy.iota(n)
            inside = (places >= start.unsqueeze(1)) & (places < stop.unsqueeze(1))
            means = inside.cast(dy.dtype) / (stop - start).cast(dy.dtype).unsqueeze(1)
            letters = "abcdefgh"[: len(x.shape)]
            summed = letters.replace(letters[a], "z")
            dy = dy.einsum(f"{letters},{letters[a]}z->{summed}", means)
        return (dy,)

    def decompose(self, b: Builder) -> Value | None:
        x = tensor_type(self.x)
        axes = spatial_axes(x.rank, self.layout)
        if all(s == 1 for s in self.size):
            return b(ReduceMean(self.x, axes=axes, keepdims=True))
        if self._divides():
            sizes = [x.shape[a] for a in axes]
            kernel = tuple(n // s for n, s in zip(sizes, self.size, strict=True))
            padding = ((0, 0),) * len(kernel)
            return b(AvgPool(self.x, kernel=kernel, strides=kernel, padding=padding, layout=self.layout))
        return None

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        (x,) = operands
        axes = spatial_axes(x.rank, self.layout)
        windows = [x.shape[a] // s + 2 for a, s in zip(axes, self.size, strict=True)]

        def ends(i: Dim, k: int) -> tuple[Dim, Dim]:
            n, s = x.shape[axes[k]], self.size[k]
            return (i * n) // s, ((i + 1) * n + (s - 1)) // s

        def element(*i: Dim) -> Scalar:
            out, taps = i[: x.rank], i[x.rank :]
            where, guard = list(out), []
            for k, a in enumerate(axes):
                start, stop = ends(out[a], k)
                where[a] = start + taps[k]
                guard.append(stop - 1 - where[a])
            return x.at(*where, guard=guard, otherwise=0)

        total = t.reduce("sum", self.result.type.shape, windows, element)

        def mean(*i: Dim) -> Scalar:
            n: Dim = 1
            for k, a in enumerate(axes):
                start, stop = ends(i[a], k)
                n = n * (stop - start)
            return total[i] / t.index(n).cast(total.dtype)

        return t.compute(self.result.type.shape, mean)
