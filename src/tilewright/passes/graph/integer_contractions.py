"""Rewrites contractions of quantized numbers as products of 8-bit integers.

Quantized models state a factor as ``scale * (q - zero)`` with `q` of 8 bits (`DequantizeLinear`,
`QLinearConv`), or as ``q - zero`` in i32 (`MatMulInteger`). Constants may have fewer bits. Both are
multiplied as integers here: ``sum (a - za) (b - zb)`` is the sum of ``a b``, which instructions on bytes
compute, minus ``za * sum b`` and ``zb * sum (a - za)``. Sums over constants are constants, and the zero point
of a constant factor is subtracted from the constant if the difference fits 8 bits. The remaining terms are an
epilogue on the sums. Integer results are those of the original modulo 2**32. Real results differ from the
original's by rounding, as with any other order of summation: the integer sum is exact.

Requantization divides by a scale and rounds: behind an integer contraction, the constant scales of both are
combined to one factor.

Two kinds are not rewritten: parameters that vary along the reduction, and sums that might not fit 32 bits if
the model's own arithmetic is on real numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from ...dialects import graph
from ...dialects.graph.base import tensor_type
from ...ir.builder import Builder
from ...ir.constant import Constant
from ...ir.core import Module, Operation, Value
from ...ir.rewrite import Rewriter, apply_patterns, pattern
from ...ir.symbolic import Dim, bounds
from ...ir.types import DType, f32, i8, i32, u8
from ...ir.walk import operands_of, post_order, reachable
from .fold_constants import MAX_STEPS, run_on_constants
from .match import array_of, constant_of, is_one, new_constant, producer, rebuild, reshape

BYTES = (i8, u8)
SMALL = 1 << 16
"""Largest number of elements of a scale or zero point that is evaluated here."""
LARGEST = 255
"""Largest magnitude of a difference of two 8-bit integers."""


def integer_contractions(module: Module) -> int:
    """Rewrite the contractions of quantized numbers.

    Returns the number of rewrites.
    """
    rewrites = apply_patterns(module, [expand_conversion], fold=False)
    return rewrites + apply_patterns(module, [integer_matmul, integer_conv, one_scale], fold=False)


@pattern(graph.Quantize, graph.Dequantize)
def expand_conversion(op: graph.Quantize | graph.Dequantize, rewriter: Rewriter) -> bool:
    """A conversion to or from quantized numbers -> its arithmetic, which the other patterns look for."""
    rewriter.replace(op, op.decompose(rewriter.builder))
    return True


@dataclass(frozen=True, eq=False)
class _Narrowed:
    """Writes integers minus a zero point, in a narrower type that holds all of them."""

    source: Constant
    zero: Constant | None

    def __call__(self, out: np.ndarray[Any, Any]) -> None:
        out[...] = (
            self.source.array if self.zero is None else self.source.array.astype(np.int64) - self.zero.array
        )


@dataclass(frozen=True)
class Factor:
    """A factor as the model states it, ``moved(scale * (q - zero))``; `q` has 8 bits or is a constant.

    Without `scale` the factor is an i32 tensor, otherwise a real one. `moves` are the reshapes and transposes
    behind it, the last one first.
    """

    q: Value
    zero: Value | None = None
    scale: Value | None = None
    moves: tuple[Any, ...] = ()

    def shape_of(self, parameter: Value | None) -> tuple[Dim, ...] | None:
        """The shape of the scale or zero point behind the moves, in all dimensions; None if the moves mix its
        dimensions.
        """
        if parameter is None or all(is_one(d) for d in tensor_type(parameter).shape):
            return ()
        shape = self._padded(parameter)
        for move in reversed(self.moves):
            if not isinstance(move, graph.Transpose):
                return None
            shape = tuple(shape[d] for d in move.permutation)
        return shape

    def _padded(self, parameter: Value) -> tuple[Dim, ...]:
        """The parameter's shape with as many dimensions as `q` has."""
        shape = tensor_type(parameter).shape
        return (*[1] * (tensor_type(self.q).rank - len(shape)), *shape)

    def build(self, b: Builder) -> Factor:
        """The same factor without moves: they are applied to `q` and its parameters, and a constant is
        narrowed to 8 bits.
        """
        factor = self
        constant = array_of(self.q)
        if constant is not None:
            zero = np.zeros((), np.int64) if self.zero is None else known(self.zero)
            full = None if zero is None else constant.astype(np.int64) - zero
            for array, rest in ((full, None), (constant, self.zero)):
                dtype = None if array is None else next((t for t in BYTES if t.holds(array)), None)
                if array is not None and dtype is not None:
                    source = constant_of(self.q)
                    assert source is not None
                    narrowed = Constant(array.astype(dtype.numpy), source.name)
                    narrowed.again = _Narrowed(
                        source, None if rest is not None or zero is None else Constant(zero)
                    )
                    factor = replace(self, q=b(graph.Constant(value=narrowed)), zero=rest)
                    break
        parts = {}
        for name in ("q", "zero", "scale"):
            value = getattr(factor, name)
            if value is None:
                continue
            if name != "q":
                value = reshape(b, value, factor._padded(value) if self.shape_of(value) else ())
            if name == "q" or tensor_type(value).rank:
                for move in reversed(self.moves):
                    value = b(rebuild(move, [value]))
            parts[name] = value
        return Factor(**parts)

    def is_constant(self, along: int) -> bool:
        """Whether neither the scale nor the zero point varies along a dimension, counted from the end."""
        shapes = [self.shape_of(p) for p in (self.zero, self.scale)]
        return all(s is not None and (not s or is_one(s[along])) for s in shapes)

    def is_scalar(self) -> bool:
        """Whether one scale and one zero point serve all elements."""
        return self.shape_of(self.zero) == () == self.shape_of(self.scale)


def factor_of(value: Value) -> Factor | None:
    """The factor of 8-bit integers that a tensor is; None if it is none."""
    moves = []
    while isinstance(op := value.defining_op, (graph.Transpose, graph.Reshape)):
        moves.append(op)
        value = op.x
    factor = _integers(value) if tensor_type(value).dtype is i32 else _real(value)
    return None if factor is None else replace(factor, moves=tuple(moves))


def _real(value: Value) -> Factor | None:
    """The factor ``scale * cast(q - zero)``; otherwise None."""
    while (cast := producer(value, graph.Cast)) is not None and tensor_type(cast.x).dtype.is_float:
        value = cast.x
    product = producer(value, graph.Mul)
    if product is None:
        return None
    for x, scale in ((product.a, product.b), (product.b, product.a)):
        cast = producer(x, graph.Cast)
        if cast is None or not _broadcasts(scale, x):
            continue
        factor = Factor(cast.x) if _is_narrow(cast.x) else _integers(cast.x)
        if factor is not None:
            return replace(factor, scale=scale)
    return None


def _integers(value: Value) -> Factor | None:
    """The factor ``cast(q) - zero`` or ``cast(q)`` in i32; otherwise None."""
    if tensor_type(value).dtype is not i32:
        return None
    if (difference := producer(value, graph.Sub)) is not None:
        factor = None if producer(difference.a, graph.Sub) is not None else _integers(difference.a)
        if factor is None or not _broadcasts(difference.b, difference.a):
            return None
        return replace(factor, zero=difference.b)
    if (cast := producer(value, graph.Cast)) is not None and _is_narrow(cast.x):
        return Factor(cast.x)
    array = array_of(value)
    if array is not None and any(t.holds(array) for t in BYTES):
        return Factor(value)
    return None


def _is_narrow(q: Value) -> bool:
    """Whether a tensor is of bytes, or a constant of narrower integers, which becomes bytes."""
    dtype = tensor_type(q).dtype
    return dtype in BYTES or (dtype.is_integer and dtype.bits < 8 and array_of(q) is not None)


def _broadcasts(parameter: Value, x: Value) -> bool:
    """Whether a scale or zero point has no more dimensions than `x` and does not broadcast `x`."""
    own, shape = tensor_type(parameter).shape, tensor_type(x).shape
    return len(own) <= len(shape) and all(
        is_one(n) or n == m for n, m in zip(own[::-1], shape[::-1], strict=False)
    )


def _sums_fit(depth: Dim) -> bool:
    """Whether the sum of `depth` products of differences of 8-bit integers fits a 32-bit integer."""
    most = bounds(depth)[1]
    return most is not None and most * LARGEST**2 < 1 << 31


def _widened(b: Builder, x: Value) -> Value:
    value: Value = b(graph.Cast(x, dtype=i32))
    return value


def _scaled(b: Builder, total: Value, scales: Sequence[Value], dtype: DType) -> Value:
    """An integer result, converted to the real type and scaled."""
    y = b(graph.Cast(total, dtype=f32))
    scales = [s if tensor_type(s).dtype is f32 else b(graph.Cast(s, dtype=f32)) for s in scales]
    if any(tensor_type(s).rank == 0 for s in scales):
        y = b(graph.Mul(y, b(graph.Mul(*scales))))
    else:
        y = b(graph.Mul(b(graph.Mul(y, scales[0])), scales[1]))
    return y if dtype is f32 else b(graph.Cast(y, dtype=dtype))


@pattern(graph.Matmul)
def integer_matmul(op: graph.Matmul, rewriter: Rewriter) -> bool:
    """A matmul of quantized numbers -> one of 8-bit integers, corrected for zero points, scaled."""
    t, (left, right) = tensor_type(op.result).dtype, (tensor_type(v) for v in op.operands)
    if op.dtype is not None or left.rank < 2 or right.rank < 2 or not (t is i32 or t.is_float):
        return False
    a, b = (factor_of(v) for v in op.operands)
    if a is None or b is None or (array_of(a.q) is not None and array_of(b.q) is not None):
        return False
    if not a.is_constant(-1) or not b.is_constant(-2) or (t.is_float and not _sums_fit(left.shape[-1])):
        return False
    new = rewriter.builder
    a, b = a.build(new), b.build(new)
    if any(tensor_type(x.q).dtype not in BYTES for x in (a, b)):
        return False
    total = new(graph.Matmul(a.q, b.q, dtype=i32))
    if a.zero is not None:
        columns = new(graph.ReduceSum(_widened(new, b.q), axes=(-2,), keepdims=True))
        total = new(graph.Sub(total, new(graph.Mul(a.zero, columns))))
    if b.zero is not None:
        x = _widened(new, a.q)
        x = x if a.zero is None else new(graph.Sub(x, a.zero))
        total = new(
            graph.Sub(total, new(graph.Mul(new(graph.ReduceSum(x, axes=(-1,), keepdims=True)), b.zero)))
        )
    if t is not i32:
        assert a.scale is not None and b.scale is not None
        total = _scaled(new, total, (a.scale, b.scale), t)
    rewriter.replace(op, total)
    return True


@pattern(graph.Conv)
def integer_conv(op: graph.Conv, rewriter: Rewriter) -> bool:
    """A convolution of a quantized image and quantized constants -> one of 8-bit integers, corrected for zero
    points and scaled.
    """
    t, w_type = tensor_type(op.result).dtype, tensor_type(op.w)
    if op.dtype is not None or op.layout != "channels_first" or not (t is i32 or t.is_float):
        return False
    x, w = factor_of(op.x), factor_of(op.w)
    if x is None or w is None or not x.is_scalar() or array_of(w.q) is None or not w_type.is_static:
        return False
    rank, channels = w_type.rank, w_type.shape[0]
    if not all(w.is_constant(d) for d in range(1 - rank, 0)):
        return False
    depth = math.prod(n for n in w_type.shape[1:] if isinstance(n, int))  # all are: the type is static
    if t.is_float and not _sums_fit(depth):
        return False
    new = rewriter.builder
    x, w = x.build(new), w.build(new)
    if any(tensor_type(f.q).dtype not in BYTES for f in (x, w)) or (w.zero is not None and op.groups > 1):
        return False
    image, padding = x.q, op.padding
    if x.zero is not None and any(not is_one(p + 1) for pair in padding for p in pair):
        low, high = zip(*padding, strict=True)
        zero, dtype = known(x.zero), tensor_type(image).dtype
        fill = new(graph.Cast(x.zero, dtype=dtype)) if zero is None else None
        value = 0 if zero is None else int(zero.item())
        image = new(graph.Pad(image, fill, low=(0, 0, *low), high=(0, 0, *high), value=value))
        padding = ((0, 0),) * len(padding)

    def conv(weight: Value) -> Value:
        return new(
            graph.Conv(
                image, weight, None, strides=op.strides, padding=padding, dilations=op.dilations,
                groups=op.groups, dtype=i32, location=op.location,
            )
        )  # fmt: skip

    def per_channel(value: Value) -> Value:
        return reshape(new, value, (1, channels, *[1] * (rank - 2))) if tensor_type(value).rank else value

    total = conv(w.q)
    if x.zero is not None:
        sums = new(graph.ReduceSum(_widened(new, w.q), axes=tuple(range(1, rank)), keepdims=True))
        total = new(graph.Sub(total, new(graph.Mul(x.zero, per_channel(sums)))))
    if w.zero is not None:
        window = conv(new_constant(new, np.ones((1, *w_type.shape[1:]), np.int8)))
        if x.zero is not None:
            window = new(
                graph.Sub(window, new(graph.Mul(x.zero, new_constant(new, np.array(depth, np.int32)))))
            )
        total = new(graph.Sub(total, new(graph.Mul(window, per_channel(w.zero)))))
    if t is not i32:
        assert x.scale is not None and w.scale is not None
        total = _scaled(new, total, (x.scale, per_channel(w.scale)), t)
    if op.bias is not None:
        total = new(graph.Add(total, reshape(new, op.bias, (1, channels, *[1] * (rank - 2)))))
    rewriter.replace(op, total)
    return True


@pattern(graph.Round)
def one_scale(op: graph.Round, rewriter: Rewriter) -> bool:
    """``round(relu(float(i) * s + b) / t)`` behind an integer contraction -> ``round(relu(float(i) * (s / t)
    + b / t))``. The same for a product with ``1 / t``, and for a clamp.
    """
    scaled = _scaled_by_constant(op.x)
    if scaled is None or not op.x.has_one_use or not _is_scaled(scaled[0]):
        return False
    rewriter.replace(op, rewriter.builder(rebuild(op, [_times(rewriter.builder, *scaled)])))
    return True


def _scaled_by_constant(value: Value) -> tuple[Value, float] | None:
    """A value and a positive number that `value` is the product of; otherwise None."""
    op = value.defining_op
    if isinstance(op, graph.Div):
        x, factor = op.a, known(op.b)
    elif isinstance(op, graph.Mul) and (sides := _constant_side(op)) is not None:
        x, factor = sides[0], known(sides[1])
    else:
        return None
    if factor is None or factor.size != 1 or factor.dtype != np.float32 or not factor.item() > 0:
        return None
    return x, 1.0 / float(factor.item()) if isinstance(op, graph.Div) else float(factor.item())


def known(value: Value) -> np.ndarray[Any, Any] | None:
    """The array of a constant, or of a few elementwise operators on constants that are not folded yet;
    otherwise None.
    """
    steps = list(islice(reachable([value], _folded_operands), MAX_STEPS + 1))
    if len(steps) > MAX_STEPS or any(not tensor_type(v).is_static for v in steps if _folded_operands(v)):
        return None
    arrays: dict[Value, np.ndarray[Any, Any]] = {}
    for step in post_order([value], _folded_operands):
        if operands := _folded_operands(step):
            if any(arrays[v].size > SMALL for v in operands):
                return None
            maker = step.defining_op
            assert isinstance(maker, graph.GraphOp)
            results = run_on_constants(maker, [arrays[v] for v in operands])
            array = None if results is None else results[0]
        else:
            array = array_of(step)
        if array is None:
            return None
        arrays[step] = array
    return arrays[value]


def _folded_operands(value: Value) -> tuple[Value, ...]:
    """The operands of an operator that `known` evaluates itself; empty for others."""
    folded = isinstance(
        value.defining_op, (graph.Mul, graph.Sub, graph.Cast, graph.Reshape, graph.BroadcastTo)
    )
    return operands_of(value) if folded else ()


def _constant_side(op: Operation) -> tuple[Value, Value] | None:
    """The two operands of an operation, the one that is known at compile time last; None if neither is."""
    a, b = op.operands
    return next(((x, y) for x, y in ((a, b), (b, a)) if known(y) is not None), None)


def _is_scaled(value: Value) -> bool:
    """Whether a value is ``float(i) * s``, without other consumers.

    A constant may be added to it, and then the maximum with zero or a clamp be taken.
    """
    kinds = (graph.Relu, graph.Clamp, graph.Add, graph.Mul)
    while isinstance(op := value.defining_op, kinds) and value.has_one_use:
        if isinstance(op, (graph.Relu, graph.Clamp)):
            value = op.x
            continue
        sides = _constant_side(op)
        if sides is None:
            return False
        if isinstance(op, graph.Mul):
            inner = producer(sides[0], graph.Cast)
            return inner is not None and tensor_type(inner.x).dtype is i32
        value = sides[0]
    return False


def _times(b: Builder, value: Value, factor: float) -> Value:
    """A value that `_is_scaled`, times a positive number."""
    above: list[tuple[Any, Value | None]] = []
    """Operators from the last to the product, each with its constant times the factor."""
    while True:
        op: Any = value.defining_op
        if isinstance(op, (graph.Relu, graph.Clamp)):
            above.append((op, None))
            value = op.x
            continue
        sides = _constant_side(op)
        assert sides is not None
        value, constant = sides
        above.append((op, b(graph.Mul(constant, new_constant(b, np.array(factor, np.float32))))))
        if isinstance(op, graph.Mul):
            break
    for op, scaled in reversed(above):
        if scaled is not None:
            value = b(type(op)(value, scaled))
        elif isinstance(op, graph.Clamp):
            limits = {k: v if (v := op.attributes[k]) is None else v * factor for k in ("minimum", "maximum")}
            value = b(rebuild(op, [value], **limits))
        else:
            value = b(rebuild(op, [value]))
    return value


__all__ = ["Factor", "factor_of", "integer_contractions"]
