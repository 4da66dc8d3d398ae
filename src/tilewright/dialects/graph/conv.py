"""Convolutions of any rank. Dense ones lower to a contraction over a padded input (implicit GEMM), depthwise
ones to guarded reads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from ...ir.core import Attr, IRError, Operand, OptionalOperand, operation
from ...ir.interpreter import Array
from ...ir.symbolic import Dim, ceildiv, prove_divisible, prove_eq, prove_le, smax
from ...ir.types import TensorType, Type, f32
from ..tensor_builder import Scalar, TensorBuilder, TensorRef
from .base import Adjoint, GraphOp, tensor_type
from .contract import accumulate, factor_dtype, widen
from .operands import (
    check_number,
    check_same_type,
    check_shape,
    exceeds,
    need_integer,
    need_integers,
    need_pairs,
    within,
)
from .term import Term


def window_size(n: Dim, kernel: int, stride: int, pad: tuple[Dim, Dim], dilation: int) -> Dim:
    """Number of positions of a sliding window."""
    return (n + pad[0] + pad[1] - (dilation * (kernel - 1) + 1)) // stride + 1


def spatial_axes(rank: int, layout: str) -> tuple[int, ...]:
    """The spatial dimensions of an activation tensor of `rank`."""
    return tuple(range(2, rank)) if layout == "channels_first" else tuple(range(1, rank - 1))


def channel_axis(rank: int, layout: str) -> int:
    return 1 if layout == "channels_first" else rank - 1


def place(layout: str, n: Dim, c: Dim, spatial: Sequence[Any]) -> tuple[Any, ...]:
    """Batch, channel and spatial parts in the order of the layout."""
    return (n, c, *spatial) if layout == "channels_first" else (n, *spatial, c)


def check_layout(op: GraphOp, layout: str) -> None:
    if layout not in ("channels_first", "channels_last"):
        raise IRError(f"unknown layout {layout!r}; known: channels_first, channels_last", op)


def check_kernel(op: GraphOp, w: TensorType) -> None:
    """Check that a weight ``(.., .., *kernel)`` has a kernel of known sizes.

    Raises:
        IRError: it has not, or the kernel has no elements.
    """
    if not all(isinstance(k, int) and k > 0 for k in w.shape[2:]):
        raise IRError(f"the weight has shape {w.shape}: its kernel must have known sizes of at least 1", op)


def check_windows(op: GraphOp, rank: int) -> None:
    """Check the attributes of a sliding window over `rank` spatial dimensions.

    Raises:
        IRError: one has another number of entries than `rank`, or an entry that is no step or size.
    """
    for name in ("strides", "dilations"):
        need_integers(op, name, rank, least=1, empty=name == "dilations" and not op._attr_fields[name])
    need_pairs(op, "padding", rank)


def to_channels_first(x: Array, layout: str) -> Any:
    return x if layout == "channels_first" else np.moveaxis(x, -1, 1)


def from_channels_first(x: Array, layout: str) -> Any:
    return x if layout == "channels_first" else np.moveaxis(x, 1, -1)


def padded_array(x: Array, padding: Sequence[tuple[int, int]]) -> Any:
    """A channels-first array with zeros around its spatial dimensions; negative padding cuts off."""
    x = np.pad(x, [(0, 0), (0, 0), *((max(low, 0), max(high, 0)) for low, high in padding)])
    cuts = (
        slice(max(-low, 0), n - max(-high, 0)) for (low, high), n in zip(padding, x.shape[2:], strict=True)
    )
    return x[(slice(None), slice(None), *cuts)]


def convolve(
    x: Array,
    w: Array,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilations: Sequence[int],
    groups: int,
) -> Any:
    """The convolution of NumPy arrays, channels first, in double precision; arguments as of `Conv`."""
    x = padded_array(x.astype(np.float64), padding)
    rank, per = x.ndim - 2, w.shape[1]
    spans = [d * (k - 1) + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x, spans, axis=tuple(range(2, 2 + rank)))
    step = tuple(slice(None, None, s) for s in strides)
    taps = tuple(slice(None, None, d) for d in dilations)
    windows = windows[(slice(None), slice(None), *step, *taps)]
    n, _, *rest = windows.shape
    windows = windows.reshape(n, groups, per, *rest)
    weight = w.astype(np.float64).reshape(groups, w.shape[0] // groups, *w.shape[1:])
    out_axes, k_axes = "xyz"[:rank], "uvw"[:rank]
    y = np.einsum(f"ngc{out_axes}{k_axes},goc{k_axes}->ngo{out_axes}", windows, weight, optimize=True)
    return y.reshape(n, w.shape[0], *y.shape[3:])


def pad_spatial(
    t: TensorBuilder, x: TensorRef, layout: str, padding: Sequence[tuple[Dim, Dim]], value: float = 0
) -> TensorRef:
    """`x` with its spatial dimensions padded, as a tensor of its own; `x` itself when there is nothing to
    pad.
    """
    if all(isinstance(p, int) and p == 0 for pair in padding for p in pair):
        return x
    axes = spatial_axes(x.rank, layout)
    shape = list(x.shape)
    for a, (low, high) in zip(axes, padding, strict=True):
        shape[a] = shape[a] + low + high

    def element(*i: Dim) -> Scalar:
        where, guard = list(i), []
        for a, (low, _) in zip(axes, padding, strict=True):
            where[a] = i[a] - low
            guard += [g for g in (where[a], x.shape[a] - 1 - where[a]) if not prove_le(0, g)]
        return x.at(*where, guard=guard, otherwise=value)

    return t.compute(shape, element)


@dataclass(frozen=True)
class Window:
    """The attributes of a convolution, and its gradients: convolutions, transposed convolutions and
    `graph.conv_weight_gradient` are each other's gradients.
    """

    strides: Sequence[int]
    padding: Sequence[tuple[int, int]]
    dilations: Sequence[int]
    groups: int = 1
    layout: str = "channels_first"

    def gradients(self, x: Term, w: Term, dy: Term, needed: Sequence[bool]) -> list[Term | None]:
        """The gradients of the input, the weight and, if `needed` has three entries, the bias."""
        return [
            self.input_gradient(dy, w, x.shape) if needed[0] else None,
            self.weight_gradient(x, dy, w.shape) if needed[1] else None,
            *(self.bias_gradient(dy) if wanted else None for wanted in needed[2:]),
        ]

    def transposed_gradients(
        self, x: Term, w: Term, dy: Term, output_padding: Sequence[int], needed: Sequence[bool]
    ) -> list[Term | None]:
        """The same for a transposed convolution of these attributes."""
        # Elements that `output_padding` added are left out, so that a convolution of the result has as many
        # positions as `x`.
        padding = [(low, high - e) for (low, high), e in zip(self.padding, output_padding, strict=True)]
        window = replace(self, padding=padding)
        return [
            window.convolution(dy, w) if needed[0] else None,
            window.weight_gradient(dy, x, w.shape) if needed[1] else None,
            *(self.bias_gradient(dy) if wanted else None for wanted in needed[2:]),
        ]

    def _attributes(self) -> dict[str, Any]:
        return {
            "strides": tuple(self.strides),
            "padding": tuple((low, high) for low, high in self.padding),
            "dilations": tuple(self.dilations),
            "groups": self.groups,
            "layout": self.layout,
        }

    def convolution(self, x: Term, w: Term) -> Term:
        return x.apply("conv", x.value, w.value, None, **self._attributes())

    def input_gradient(self, dy: Term, w: Term, shape: Sequence[Dim]) -> Term:
        """The gradient of the input, of `shape`, from that of the result."""
        axes = spatial_axes(len(shape), self.layout)
        rest = []
        for a, k, s, (low, high), d in zip(
            axes, w.shape[2:], self.strides, self.padding, self.dilations, strict=True
        ):
            # Less than a stride is left behind the last window. If how much is not known, the result is made
            # too long and cut off.
            extra = shape[a] - ((dy.shape[a] - 1) * s + d * (cast(int, k) - 1) + 1 - low - high)
            rest.append(extra if isinstance(extra, int) else s - 1)
        dx = dy.apply(
            "conv_transpose", dy.value, w.value, None, output_padding=tuple(rest), **self._attributes()
        )
        if all(prove_eq(n, m) for n, m in zip(dx.shape, shape, strict=True)):
            return dx
        return dx.apply(
            "slice", dx.value, starts=(0,) * len(shape), stops=tuple(shape), steps=(1,) * len(shape)
        )

    def weight_gradient(self, x: Term, dy: Term, shape: Sequence[Dim]) -> Term:
        """The gradient of the weight, of `shape`, from the input and the result's gradient."""
        return x.apply(
            "conv_weight_gradient", x.value, dy.value, kernel=tuple(shape[2:]), **self._attributes()
        )

    def bias_gradient(self, dy: Term) -> Term:
        """The gradient of the bias: the sum over all dimensions but the channels."""
        rank = len(dy.shape)
        return dy.sum([k for k in range(rank) if k != channel_axis(rank, self.layout)])


@operation
class Conv(GraphOp):
    """N-dimensional convolution (cross-correlation).

    `x` is (N, C, *spatial) or, `channels_last`, (N, *spatial, C); `w` is always (O, C / groups, *kernel);
    `padding` holds (low, high) per spatial dimension. 8-bit integers may be multiplied and summed in another
    `dtype`, i32; a bias is of the result's type.
    """

    name = "graph.conv"
    x: Operand
    w: Operand
    bias: OptionalOperand
    strides: Attr
    padding: Attr
    dilations: Attr
    groups: Attr = 1
    layout: Attr = "channels_first"
    dtype: Attr = None

    def infer_types(self) -> Sequence[Type]:
        check_layout(self, self.layout)
        x, w = tensor_type(self.x), tensor_type(self.w)
        if x.rank != w.rank or x.rank < 3:
            raise IRError(f"input rank {x.rank} and weight rank {w.rank} must agree and be at least 3", self)
        dtype = factor_dtype(self, x, w)
        check_number(self, "x")
        check_kernel(self, w)
        check_windows(self, x.rank - 2)
        need_integer(self, "groups", 1)
        if not prove_divisible(w.shape[0], self.groups):
            raise IRError(f"{self.groups} groups do not divide {w.shape[0]} outputs", self)
        check_shape(self, "bias", w.shape[:1])
        check_same_type(self, "bias", dtype)
        c = x.shape[channel_axis(x.rank, self.layout)]
        if not prove_eq(c, w.shape[1] * self.groups):
            raise IRError(f"input has {c} channels, the weight needs {w.shape[1] * self.groups}", self)
        spatial = [
            window_size(x.shape[a], cast(int, k), s, p, d)
            for a, k, s, p, d in zip(
                spatial_axes(x.rank, self.layout),
                w.shape[2:],
                self.strides,
                self.padding,
                self.dilations,
                strict=True,
            )
        ]
        for n in spatial:
            if isinstance(n, int) and n < 1:
                raise IRError(f"the kernel {w.shape[2:]} does not fit the padded input {x.shape}", self)
        return (TensorType(dtype, place(self.layout, x.shape[0], w.shape[0], spatial)),)

    def reference(self, x: Array, w: Array, bias: Array | None = None) -> Any:
        dtype = w.dtype if self.dtype is None else self.dtype.numpy
        x = to_channels_first(x, self.layout)
        y = convolve(x, w, self.strides, self.padding, self.dilations, self.groups)
        if bias is not None:
            y = y + bias.astype(np.float64).reshape(1, -1, *[1] * (x.ndim - 2))
        return from_channels_first(y, self.layout).astype(dtype)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        x, w, *_ = at.operands
        window = Window(self.strides, self.padding, self.dilations, self.groups, self.layout)
        return window.gradients(x, w, at.cotangent, at.needed)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        x, w, *rest = operands
        result: TensorType = self.result.type
        y = self._depthwise(t, x, w) if self._is_depthwise(x, w) else self._dense(t, x, w)
        if not rest:
            return y
        axis = channel_axis(result.rank, self.layout)
        return t.compute(
            result.shape, lambda *i: y[i] + rest[0][within(i[axis], result.shape[axis], rest[0].shape[0])]
        )

    def _is_depthwise(self, x: TensorRef, w: TensorRef) -> bool:
        return isinstance(w.shape[1], int) and w.shape[1] == 1 and self.groups > 1

    def _split(self, i: Sequence[Any]) -> tuple[Any, Any, tuple[Any, ...]]:
        rank = len(i)
        c = channel_axis(rank, self.layout)
        return i[0], i[c], tuple(i[a] for a in spatial_axes(rank, self.layout))

    def _product(self, x: Scalar, w: Scalar) -> Scalar:
        return widen(x, self.dtype) * widen(w, self.dtype)

    def _depthwise(self, t: TensorBuilder, x: TensorRef, w: TensorRef) -> TensorRef:
        result: TensorType = self.result.type
        rank = result.rank
        axes = spatial_axes(rank, self.layout)
        multiplier = w.shape[0] // self.groups
        dtype = self.dtype
        exact = math.prod(cast("tuple[int, ...]", w.shape[2:])) * 255**2 <= 1 << 24
        if dtype is not None and exact and not t.info.integer_sums:
            dtype = f32

        def body(*i: Dim) -> Scalar:
            n, o, out = self._split(i[:rank])
            taps = i[rank:]
            where, guard = [], []
            for a, p, r, s, d, (low, _) in zip(
                axes, out, taps, self.strides, self.dilations, self.padding, strict=True
            ):
                e = p * s + r * d - low
                where.append(e)
                guard += [g for g in (e, x.shape[a] - 1 - e) if not prove_le(0, g)]
            c = o if isinstance(multiplier, int) and multiplier == 1 else o // multiplier
            index = place(self.layout, n, c, where)
            value = x.at(*index, guard=guard) if guard else x[index]
            return widen(value, dtype) * widen(w[(o, 0, *taps)], dtype)

        return accumulate(t, result, w.shape[2:], body)

    def _dense(self, t: TensorBuilder, x: TensorRef, w: TensorRef) -> TensorRef:
        result: TensorType = self.result.type
        xp = pad_spatial(t, x, self.layout, self.padding)
        rank, g = result.rank, self.groups
        spatial = tuple(result.shape[a] for a in spatial_axes(rank, self.layout))

        def position(out: Sequence[Any], taps: Sequence[Any]) -> list[Any]:
            return [p * s + r * d for p, r, s, d in zip(out, taps, self.strides, self.dilations, strict=True)]

        if g == 1:

            def body(*i: Dim) -> Scalar:
                n, o, out = self._split(i[:rank])
                *taps, c = i[rank:]
                return self._product(xp[place(self.layout, n, c, position(out, taps))], w[(o, c, *taps)])

            return accumulate(t, result, (*w.shape[2:], w.shape[1]), body)
        # Groups get an axis of their own so that every index stays affine; a view joins them again.
        per_out, per_in = w.shape[0] // g, w.shape[1]
        first = self.layout == "channels_first"
        shape = (result.shape[0], g, per_out, *spatial) if first else (result.shape[0], *spatial, g, per_out)

        def grouped(*i: Dim) -> Scalar:
            own, inner = i[: len(shape)], i[len(shape) :]
            n, q, o, out = (
                (own[0], own[1], own[2], own[3:]) if first else (own[0], own[-2], own[-1], own[1:-2])
            )
            *taps, c = inner
            left = xp[place(self.layout, n, q * per_in + c, position(out, taps))]
            return self._product(left, w[(q * per_out + o, c, *taps)])

        y = accumulate(t, TensorType(result.dtype, shape), (*w.shape[2:], per_in), grouped)
        return t.reshape(y, result.shape)


def _largest(sizes: Sequence[Dim]) -> Dim:
    total = sizes[0]
    for size in sizes[1:]:
        total = smax(total, size)
    return total


MOST_PHASES = 16
"""The most phases of a transposed convolution that are computed apart, each by a kernel of its own. With a
larger value fewer products with inserted zeros are computed, by more kernels.
"""


@dataclass(frozen=True)
class _Phase:
    """The output positions ``stride * q + phase`` of a dimension of a transposed convolution (before padding
    is cut off), for the `count` successive q from `first` on.

    They are sums over kernel elements ``tap + step * u`` for u below `taps`. The products with
    ``u = taps - 1 - v`` have input ``q - first + start + reach * v``.
    """

    phase: int
    first: int
    count: Dim
    tap: int
    step: int
    taps: int
    start: int
    reach: int

    @staticmethod
    def of(phase: int, stride: int, kernel: int, dilation: int, low: int, size: Dim) -> _Phase | None:
        """The phase of a dimension of `size` positions behind `low` that are cut off; None if no kernel
        element reaches it.
        """
        step = stride // math.gcd(stride, dilation)
        tap = next((r for r in range(min(step, kernel)) if (r * dilation - phase) % stride == 0), None)
        if tap is None:
            return None
        taps, reach = -(-(kernel - tap) // step), step * dilation // stride
        first = -(-(low - phase) // stride)
        count = (low + size - 1 - phase) // stride - first + 1
        start = first - (tap * dilation - phase) // stride - (taps - 1) * reach
        return _Phase(phase, first, count, tap, step, taps, start, reach)


@operation
class ConvTranspose(GraphOp):
    """Transposed convolution: the gradient of `Conv` with respect to its input. `w` is (C, O / groups,
    *kernel).
    """

    name = "graph.conv_transpose"
    x: Operand
    w: Operand
    bias: OptionalOperand
    strides: Attr
    padding: Attr
    output_padding: Attr
    dilations: Attr
    groups: Attr = 1
    layout: Attr = "channels_first"

    def infer_types(self) -> Sequence[Type]:
        check_layout(self, self.layout)
        x, w = tensor_type(self.x), tensor_type(self.w)
        if x.rank != w.rank or x.rank < 3:
            raise IRError(f"input rank {x.rank} and weight rank {w.rank} must agree and be at least 3", self)
        check_same_type(self, "w", x.dtype)
        check_number(self, "x")
        check_kernel(self, w)
        check_windows(self, x.rank - 2)
        need_integers(self, "output_padding", x.rank - 2, least=0)
        need_integer(self, "groups", 1)
        c = x.shape[channel_axis(x.rank, self.layout)]
        if not prove_eq(c, w.shape[0]):
            raise IRError(f"input has {c} channels, the weight needs {w.shape[0]}", self)
        if not prove_divisible(c, self.groups):
            raise IRError(f"{self.groups} groups do not divide {c} channels", self)
        check_shape(self, "bias", (w.shape[1] * self.groups,))
        check_same_type(self, "bias", x.dtype)
        spatial = [
            (x.shape[a] - 1) * s - low - high + d * (k - 1) + extra + 1
            for a, k, s, (low, high), d, extra in zip(
                spatial_axes(x.rank, self.layout),
                w.shape[2:],
                self.strides,
                self.padding,
                self.dilations,
                self.output_padding,
                strict=True,
            )
        ]
        if any(exceeds(0, n) for n in spatial):
            raise IRError(f"the padding {self.padding} crops more than the result has", self)
        return (TensorType(x.dtype, place(self.layout, x.shape[0], w.shape[1] * self.groups, spatial)),)

    def reference(self, x: Array, w: Array, bias: Array | None = None) -> Any:
        x = to_channels_first(x, self.layout).astype(np.float64)
        n, c, *sizes = x.shape
        g, per_out = self.groups, w.shape[1]
        full = [
            (m - 1) * s + d * (k - 1) + 1
            for m, s, d, k in zip(sizes, self.strides, self.dilations, w.shape[2:], strict=True)
        ]
        y = np.zeros((n, g, per_out, *[f + e for f, e in zip(full, self.output_padding, strict=True)]))
        left = x.reshape(n, g, c // g, *sizes)
        weight = w.astype(np.float64).reshape(g, c // g, *w.shape[1:])
        letters = "xyz"[: len(sizes)]
        for taps in np.ndindex(*w.shape[2:]):
            part = np.einsum(
                f"ngc{letters},gco->ngo{letters}",
                left,
                weight[(slice(None), slice(None), slice(None), *taps)],
            )
            where = tuple(
                slice(r * d, r * d + max((m - 1) * s + 1, 0), s)
                for r, d, m, s in zip(taps, self.dilations, sizes, self.strides, strict=True)
            )
            y[(slice(None), slice(None), slice(None), *where)] += part
        y = y.reshape(n, g * per_out, *y.shape[3:])
        y = padded_array(y, [(-low, -high) for low, high in self.padding])
        if bias is not None:
            y = y + bias.astype(np.float64).reshape(1, -1, *[1] * len(sizes))
        return from_channels_first(y, self.layout).astype(w.dtype)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        x, w, *_ = at.operands
        window = Window(self.strides, self.padding, self.dilations, self.groups, self.layout)
        return window.transposed_gradients(x, w, at.cotangent, self.output_padding, at.needed)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        x, w, *rest = operands
        whole = all(
            s == 1 or (d == 1 and k % s == 0)
            for k, s, d in zip(w.shape[2:], self.strides, self.dilations, strict=True)
        )
        if whole and self.layout == "channels_last":
            return self._by_phases(t, x, w, *rest)
        if math.prod(self.strides) <= MOST_PHASES:
            return self._phases_apart(t, x, w, *rest)
        return self._stretched(t, x, w, *rest)

    def _by_phases(self, t: TensorBuilder, x: TensorRef, w: TensorRef, *rest: TensorRef) -> TensorRef:
        """A dense convolution that computes all `stride` phases of an output pixel from the same few input
        pixels.

        Output pixel ``stride * q + p`` (before `padding` is cut off) is the sum over u of input ``q - u``
        times kernel element ``p + stride * u``: phases are further columns of the contraction, and no term is
        a product with an inserted zero.
        """
        result: TensorType = self.result.type
        rank, per_out, per_in, g = result.rank, w.shape[1], w.shape[0] // self.groups, self.groups
        axes = spatial_axes(rank, self.layout)
        taps = [k // s for k, s in zip(w.shape[2:], self.strides, strict=True)]
        # The first position q that has an output pixel, and how many have one.
        first = [low // s for (low, _), s in zip(self.padding, self.strides, strict=True)]
        counts = [
            ceildiv(low + result.shape[a], s) - q
            for a, (low, _), s, q in zip(axes, self.padding, self.strides, first, strict=True)
        ]
        pads = [
            (d * (u - 1) - q, n + q - x.shape[a])
            for a, u, d, q, n in zip(axes, taps, self.dilations, first, counts, strict=True)
        ]
        z = pad_spatial(t, x, self.layout, pads)
        phases = [e for n, s in zip(counts, self.strides, strict=True) for e in (n, s)]
        shape = (result.shape[0], *phases, g, per_out)

        def body(*i: Dim) -> Scalar:
            n, *at, q, o = i[: len(shape)]
            *steps, c = i[len(shape) :]
            where = [p + u * d for p, u, d in zip(at[::2], steps, self.dilations, strict=True)]
            kernel = [
                p + s * (u - 1 - e) for p, s, u, e in zip(at[1::2], self.strides, taps, steps, strict=True)
            ]
            return widen(z[(n, *where, q * per_in + c)]) * widen(w[(q * per_in + c, o, *kernel)])

        y = accumulate(t, TensorType(result.dtype, shape), (*taps, per_in), body)
        if rest:
            total = y
            y = t.compute(
                shape,
                lambda *i: total[i] + rest[0][within(i[-2] * per_out + i[-1], per_out * g, rest[0].shape[0])],
            )
        cut = [low - q * s for (low, _), s, q in zip(self.padding, self.strides, first, strict=True)]
        full = [n * s for n, s in zip(counts, self.strides, strict=True)]
        y = t.reshape(y, (result.shape[0], *full, g * per_out))
        if all(c == 0 for c in cut) and y.shape == result.shape:
            return y
        return t.compute(
            result.shape, lambda n, *i: y[(n, *(e + c for e, c in zip(i[:-1], cut, strict=True)), i[-1])]
        )

    def _phases_apart(self, t: TensorBuilder, x: TensorRef, w: TensorRef, *rest: TensorRef) -> TensorRef:
        """A dense convolution for each of the `stride` phases of an output pixel that any kernel element
        reaches, of its own kernel elements; the result takes each pixel from the convolution of its phase.
        """
        result: TensorType = self.result.type
        axes, layout = spatial_axes(result.rank, self.layout), self.layout
        kinds = [
            [f for p in range(s) if (f := _Phase.of(p, s, cast(int, k), d, low, result.shape[a])) is not None]
            for a, s, k, d, (low, _) in zip(
                axes, self.strides, w.shape[2:], self.dilations, self.padding, strict=True
            )
        ]
        # All phases read one padded input.
        pads = []
        for a, phases in zip(axes, kinds, strict=True):
            low = max(0, *(-f.start for f in phases))
            ends = [f.start + f.count + (f.taps - 1) * f.reach for f in phases]
            pads.append((low, _largest([0, *(end - x.shape[a] for end in ends)])))
        z = pad_spatial(t, x, layout, pads)
        lows = [low for low, _ in pads]
        parts = [(f, self._phase(t, z, w, f, lows)) for f in itertools.product(*kinds)]
        channels = channel_axis(result.rank, layout)

        def pixel(*i: Dim) -> Scalar:
            value: Scalar | float = 0
            for phases, part in parts:
                where, guard = list(i), []
                for a, f, s, (low, _) in zip(axes, phases, self.strides, self.padding, strict=True):
                    at = i[a] + low - f.phase
                    where[a] = at // s - f.first
                    if s > 1:
                        guard.append(-(at % s))
                value = part.at(*where, guard=guard, otherwise=value) if guard else part[tuple(where)]
            assert isinstance(value, Scalar)
            return (
                value + rest[0][within(i[channels], result.shape[channels], rest[0].shape[0])]
                if rest
                else value
            )

        return (
            parts[0][1] if not rest and all(s == 1 for s in self.strides) else t.compute(result.shape, pixel)
        )

    def _phase(
        self, t: TensorBuilder, z: TensorRef, w: TensorRef, phases: Sequence[_Phase], lows: Sequence[int]
    ) -> TensorRef:
        """The pixels of one phase, from the input with `lows` zeros before it."""
        result: TensorType = self.result.type
        g, per_out, per_in = self.groups, w.shape[1], w.shape[0] // self.groups
        first = self.layout == "channels_first"
        counts = tuple(f.count for f in phases)
        shape = (result.shape[0], g, per_out, *counts) if first else (result.shape[0], *counts, g, per_out)

        def body(*i: Dim) -> Scalar:
            own, (*taps, c) = i[: len(shape)], i[len(shape) :]
            n, q, o, at = (
                (own[0], own[1], own[2], own[3:]) if first else (own[0], own[-2], own[-1], own[1:-2])
            )
            where = [
                e + r * f.reach + f.start + low for e, r, f, low in zip(at, taps, phases, lows, strict=True)
            ]
            kernel = [f.tap + f.step * (f.taps - 1 - r) for r, f in zip(taps, phases, strict=True)]
            c = q * per_in + c
            return widen(z[place(self.layout, n, c, where)]) * widen(w[(c, o, *kernel)])

        taps = tuple(f.taps for f in phases)
        y = accumulate(t, TensorType(result.dtype, shape), (*taps, per_in), body)
        return t.reshape(y, place(self.layout, result.shape[0], g * per_out, counts))

    def _stretched(self, t: TensorBuilder, x: TensorRef, w: TensorRef, *rest: TensorRef) -> TensorRef:
        result: TensorType = self.result.type
        rank = result.rank
        axes = spatial_axes(rank, self.layout)
        channels = channel_axis(rank, self.layout)
        per_out, per_in = w.shape[1], w.shape[0] // self.groups
        # Zeros inserted between the elements of the input turn this into a dense convolution with a flipped
        # kernel.
        pads = [
            (d * (k - 1) - low, d * (k - 1) - high + extra)
            for (low, high), d, k, extra in zip(
                self.padding, self.dilations, w.shape[2:], self.output_padding, strict=True
            )
        ]
        shape = list(x.shape)
        for a, s, (low, high) in zip(axes, self.strides, pads, strict=True):
            shape[a] = (x.shape[a] - 1) * s + 1 + low + high

        def stretched(*i: Dim) -> Scalar:
            where, guard = list(i), []
            for a, s, (low, _) in zip(axes, self.strides, pads, strict=True):
                e = i[a] - low
                where[a] = e // s
                guard += [e, (x.shape[a] - 1) * s - e]
                if s > 1:
                    guard.append(-(e % s))
            return x.at(*where, guard=[q for q in guard if not prove_le(0, q)] or guard, otherwise=0)

        z = t.compute(shape, stretched)
        first = self.layout == "channels_first"
        spatial = tuple(result.shape[a] for a in axes)
        g = self.groups
        grouped_shape = (
            (result.shape[0], g, per_out, *spatial) if first else (result.shape[0], *spatial, g, per_out)
        )

        def body(*i: Dim) -> Scalar:
            own, inner = i[: len(grouped_shape)], i[len(grouped_shape) :]
            n, q, o, out = (
                (own[0], own[1], own[2], own[3:]) if first else (own[0], own[-2], own[-1], own[1:-2])
            )
            *taps, c = inner
            where = [p + r * d for p, r, d in zip(out, taps, self.dilations, strict=True)]
            flipped = [k - 1 - r for k, r in zip(w.shape[2:], taps, strict=True)]
            return widen(z[place(self.layout, n, q * per_in + c, where)]) * widen(
                w[(q * per_in + c, o, *flipped)]
            )

        y = t.reshape(
            accumulate(t, TensorType(result.dtype, grouped_shape), (*w.shape[2:], per_in), body), result.shape
        )
        if not rest:
            return y
        n = result.shape[channels]
        return t.compute(result.shape, lambda *i: y[i] + rest[0][within(i[channels], n, rest[0].shape[0])])
