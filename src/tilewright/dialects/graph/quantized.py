"""Products with group-wise quantized weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...ir import notes
from ...ir.builder import Builder
from ...ir.core import Attr, IRError, Operand, OptionalOperand, Value, operation
from ...ir.interpreter import Array
from ...ir.symbolic import Dim, prove_eq
from ...ir.types import DType, TensorType, Type, bf16, f32, i4, i8, i32
from ..tensor_builder import Scalar, TensorBuilder, TensorRef
from .base import Adjoint, GraphOp, tensor_type
from .contract import Einsum, GroupedMatMul, check_chosen, chosen, grouped_product
from .elementwise import BINARY, UNARY, Bitcast, Cast, Select, constant
from .index import clamped_array
from .norm import narrow, widen
from .reduce import ReduceMax
from .shape import Reshape, Transpose
from .term import Term


def _check_weights(
    op: QuantizedMatMul | ScaledMatMul | DequantizedMatMul, lead: Sequence[Dim], depth: Dim
) -> tuple[int, int, int]:
    """Rows and groups of ``op.qvalues`` and ``op.scales`` (of each matrix that ``op.index`` chooses from),
    and the size of a group.

    Raises:
        IRError: they do not fit each other, or an x of ``(*lead, depth)``.
    """
    qvalues, scales = tensor_type(op.qvalues), tensor_type(op.scales)
    matrices = () if op.index is None else qvalues.shape[:1]
    if op.index is not None:
        if len(lead) != 1:
            raise IRError(f"needs rows (S, K) where index chooses matrices, got {(*lead, depth)}", op)
        check_chosen(op, lead[0], tensor_type(op.index))
    if qvalues.dtype not in (i4, i8) or not scales.dtype.is_float:
        raise IRError(
            "needs qvalues of i4 or i8 with floating-point scales, "
            f"got {qvalues.dtype.label}, {scales.dtype.label}",
            op,
        )
    rank = 2 + len(matrices)
    if (
        qvalues.rank != rank
        or scales.rank != rank
        or not all(isinstance(n, int) for n in (*qvalues.shape, *scales.shape))
    ):
        form = "qvalues (E, N, K) and scales (E, N, G)" if matrices else "qvalues (N, K) and scales (N, G)"
        raise IRError(f"needs {form} of known sizes, got {qvalues.shape}, {scales.shape}", op)
    (rows, columns), (others, groups) = qvalues.shape[-2:], scales.shape[-2:]
    assert isinstance(rows, int) and isinstance(columns, int) and isinstance(groups, int)
    if matrices == (0,):
        raise IRError("there is no matrix that index could choose", op)
    fit = rows == others and scales.shape[:-2] == matrices and groups and columns % groups == 0
    if not fit or not prove_eq(depth, columns):
        raise IRError(
            f"qvalues {qvalues.shape} and scales {scales.shape} do not fit each other and a depth of {depth}",
            op,
        )
    return rows, groups, columns // groups


@operation
class QuantizedMatMul(GraphOp):
    """``x (qvalues * scales)^T``: x (..., K), quantized weights `qvalues` (N, K) of i4 or i8, `scales` (N,
    G), one for each group of K / G neighbours; result (..., N).

    `factors` is the type that is multiplied. With i8 each group of x is first rounded to 8 bits with its own
    scale, so that products are products of integers (Dettmers et al., "LLM.int8()", 2022, by groups). With
    qvalues of i4 the scales of a row differ by powers of two, so that sums are scaled by shifts; steps are
    then 1.45 times as large on average, which adds far less than the rounding of weights to 4 bits. With
    bf16, x and the weights are rounded to that type and summed in float32. With f32 nothing is rounded.

    With `index` (S,), as in `graph.grouped_matmul`, there are several matrices, `qvalues` (E, N, K) and
    `scales` (E, N, G), and each row of x (S, K) chooses one.
    """

    name = "graph.quantized_matmul"
    x: Operand
    qvalues: Operand
    scales: Operand
    index: OptionalOperand
    factors: Attr = i8

    def infer_types(self) -> Sequence[Type]:
        x = tensor_type(self.x)
        if not x.rank or not x.dtype.is_float:
            raise IRError(f"needs floating-point rows, got {x}", self)
        if self.factors not in (i8, bf16, f32):
            raise IRError(f"factors={self.factors} is not supported", self)
        rows, _, _ = _check_weights(self, x.shape[:-1], x.shape[-1])
        return (TensorType(x.dtype, (*x.shape[:-1], rows)),)

    def reference(self, x: Array, qvalues: Array, scales: Array, index: Array | None = None) -> Any:
        groups = scales.shape[-1]
        size = qvalues.shape[-1] // groups
        wide = x.astype(np.float32).reshape(*x.shape[:-1], groups, size)
        weights = qvalues.astype(np.float32).reshape(*scales.shape, size) * scales[..., None].astype(
            np.float32
        )
        if self.factors is i8:
            scale = np.abs(wide).max(-1, keepdims=True)
            if tensor_type(self.qvalues).dtype is i4:
                largest, most = scale.max(-2, keepdims=True), _most_doublings(i4, size)
                quotient = np.full(scale.shape, np.inf)
                np.divide(largest, scale, out=quotient, where=scale != 0, dtype=np.float64)
                scale = largest / 2.0 ** np.clip(np.floor(np.log2(quotient)), 0, most).astype(np.float32)
            inverse = np.divide(np.float32(127), scale, out=np.zeros_like(scale), where=scale != 0)
            wide = np.rint(wide * inverse) * (scale * np.float32(1 / 127))
        elif self.factors is bf16:
            wide, weights = wide.astype(bf16.numpy), weights.astype(bf16.numpy)
        left, right = (
            wide.reshape(x.shape).astype(np.float64),
            weights.reshape(qvalues.shape).astype(np.float64),
        )
        return _products(left, right, index).astype(x.dtype)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        x, qvalues, scales, *index = (v.wide() for v in at.operands)
        dy = at.cotangent.wide()
        rows = qvalues.shape[:-1]
        groups, size = scales.shape[-1], qvalues.shape[-1] // scales.shape[-1]
        parts = qvalues.cast(dy.dtype).reshape((*rows, groups, size))
        dx = dscales = None
        # Rounding x to the type of the factors has the derivative 1, as for quantized training's
        # straight-through estimator (Bengio et al., 2013).
        if at.needed[0]:
            weights = (parts * scales.cast(dy.dtype).unsqueeze(-1)).reshape(qvalues.shape)
            dx = self._chosen_product(dy, weights, *index)
        if at.needed[2]:
            dw = self._weight_gradient(dy, x, *index).reshape(parts.shape)
            dscales = (dw * parts).sum(len(parts.shape) - 1)
        return [dx, None, dscales, *(None for _ in index)]

    def _chosen_product(self, dy: Term, weights: Term, index: Term | None = None) -> Term:
        if index is None:
            return dy.matmul(weights)
        return dy.apply("grouped_matmul", dy.value, weights.value, index.value)

    def _weight_gradient(self, dy: Term, x: Term, index: Term | None = None) -> Term:
        if index is not None:
            return grouped_product(dy, x, index, tensor_type(self.qvalues).shape[0])
        letters = "abcdefgh"[: len(dy.shape) - 1]
        return dy.einsum(f"{letters}n,{letters}k->nk", x)

    def decompose(self, b: Builder) -> Value:
        x = widen(b, self.x)
        shape = tensor_type(x).shape
        lead = shape[:-1]
        rows, groups, size = _check_weights(self, lead, shape[-1])
        if self.factors is f32:
            scales = self.scales if tensor_type(self.scales).dtype is f32 else b(Cast(self.scales, dtype=f32))
            matrices = tensor_type(self.qvalues).shape[:-2]
            qvalues = b(Reshape(b(Cast(self.qvalues, dtype=f32)), shape=(*matrices, rows, groups, size)))
            weights = b(BINARY["mul"](qvalues, b(Reshape(scales, shape=(*matrices, rows, groups, 1)))))
            letters = "abcdefgh"[: len(lead)]
            weights = b(Reshape(weights, shape=(*matrices, rows, groups * size)))
            if self.index is not None:
                return narrow(
                    b, b(GroupedMatMul(x, b(Transpose(weights, permutation=(0, 2, 1))), self.index)), self.x
                )
            return narrow(b, b(Einsum((x, weights), equation=f"{letters}k,nk->{letters}n")), self.x)
        # The cast precedes the split into groups, so that it can be fused into the producer of x.
        if self.factors is bf16:
            x = b(Reshape(b(Cast(x, dtype=bf16)), shape=(*lead, groups, size)))
            return narrow(b, b(DequantizedMatMul(x, self.qvalues, self.scales, self.index)), self.x)
        x = b(Reshape(x, shape=(*lead, groups, size)))
        top = b(ReduceMax(b(UNARY["abs"](x)), axes=(len(lead) + 1,), keepdims=True))
        if tensor_type(self.qvalues).dtype is i4:
            rounded, scale, unit = _rounded_by_powers(b, x, top, _most_doublings(i4, size))
        else:
            rounded = b(Cast(b(UNARY["round"](b(BINARY["mul"](x, _steps(b, top))))), dtype=i8))
            scale, unit = b(BINARY["mul"](top, constant(b, 1 / 127, top))), None
        scale = b(Reshape(scale, shape=(*lead, groups)))
        y = b(ScaledMatMul(rounded, scale, self.qvalues, self.scales, self.index))
        if unit is not None:
            y = b(BINARY["mul"](y, b(Reshape(unit, shape=(*lead, 1)))))
        return narrow(b, y, self.x)


def _steps(b: Builder, top: Value) -> Value:
    """``127 / top``, and 0 where `top` is 0."""
    quotient = b(BINARY["div"](constant(b, 127, top), top))
    return b(Select(b(BINARY["eq"](top, constant(b, 0, top))), constant(b, 0, top), quotient))


def _rounded_by_powers(b: Builder, x: Value, top: Value, most: int) -> tuple[Value, Value, Value]:
    """Round groups of x (..., G, S) with largest magnitudes `top` (..., G, 1) to 8 bits, with scales that
    differ by powers of two.

    Returns:
        The rounded groups, i8; the scale of each group, from 1 to ``2 ** most``; what they are multiples of,
        (..., 1, 1).
    """
    largest = b(ReduceMax(top, axes=(tensor_type(top).rank - 2,), keepdims=True))
    # The difference of the bits of two positive floats, less the mantissa, is the exponent of the largest
    # power of two in their quotient.
    bits = b(BINARY["sub"](b(Bitcast(largest, dtype=i32)), b(Bitcast(top, dtype=i32))))
    power = b(BINARY["and"](bits, constant(b, -EXPONENT, bits)))
    power = b(BINARY["min"](power, constant(b, most * EXPONENT, power)))
    power = b(BINARY["max"](power, constant(b, 0, power)))
    finer = b(Bitcast(b(BINARY["add"](power, constant(b, ONE, power))), dtype=f32))
    scale = b(Bitcast(b(BINARY["sub"](constant(b, ONE + most * EXPONENT, power), power)), dtype=f32))
    steps = b(BINARY["mul"](b(BINARY["mul"](x, _steps(b, largest))), finer))
    unit = b(BINARY["mul"](largest, constant(b, 2.0**-most / 127, largest)))
    return b(Cast(b(UNARY["round"](steps)), dtype=i8)), scale, unit


EXPONENT, ONE = 1 << 23, 127 << 23
"""The unit of the exponent in the bits of a float32, and the bits of 1."""


def _most_doublings(dtype: DType, size: int) -> int:
    """The exponent of the largest power of two whose products with sums of `size` products of 8-bit integers
    and quantized values of type `dtype` fit 32 bits.
    """
    return max(0, 31 - (size * 127 << (dtype.bits - 1)).bit_length())


def _products(left: Array, right: Array, index: Array | None) -> Any:
    """``left @ right.T``, with the matrices that `index` chooses if there is one."""
    if index is None:
        return left @ right.T
    which = clamped_array(index, right.shape[0])
    return np.array([right[k] @ row for row, k in zip(left, which, strict=True)]).reshape(
        len(left), right.shape[1]
    )


def _weights_of(
    t: TensorBuilder, qvalues: TensorRef, scales: TensorRef, index: TensorRef | None = None
) -> Callable[[Sequence[Any]], tuple[Callable[..., Scalar], Callable[..., Scalar]]]:
    """For a row's position: a function that reads its matrix' quantized values, and one that reads their
    scales.
    """
    which = None if index is None else chosen(t, index, qvalues.shape[0])

    def reading(row: Sequence[Any]) -> tuple[Callable[..., Scalar], Callable[..., Scalar]]:
        matrix = () if which is None else (which[tuple(row)],)
        return lambda *i: qvalues[(*matrix, *i)], lambda *i: scales[(*matrix, *i)]

    return reading


def _noted_sum(
    t: TensorBuilder, shape: Sequence[Dim], depth: Sequence[Dim], product: Callable[..., Scalar]
) -> TensorRef:
    """A sum of products with the note `QUANTIZED`, by which packing recognizes it."""
    y = t.reduce("sum", shape, depth, product)
    made = y.value.defining_op
    assert made is not None
    notes.QUANTIZED.set(made, True)
    return y


@operation
class ScaledMatMul(GraphOp):
    """``sum over g of x_scales[.., g] scales[n, g] (sum over k of x[.., g, k] qvalues[n, g, k])``: x i8 (...,
    G, S), x_scales (..., G), qvalues (N, G S), scales (N, G), with `index` several of both; result f32 (...,
    N). The inner sums are exact. With qvalues of i4 the x_scales are powers of two from 1 on, whose products
    with the inner sums fit 32 bits.
    """

    name = "graph.scaled_matmul"
    x: Operand
    x_scales: Operand
    qvalues: Operand
    scales: Operand
    index: OptionalOperand

    def infer_types(self) -> Sequence[Type]:
        x, x_scales = tensor_type(self.x), tensor_type(self.x_scales)
        if x.rank < 2 or x.dtype is not i8 or x_scales.dtype is not f32:
            raise IRError(f"needs i8 (..., G, S) with scales of f32, got {x} and {x_scales}", self)
        rows, groups, size = _check_weights(self, x.shape[:-2], x.shape[-2] * x.shape[-1])
        if x.shape[-2:] != (groups, size) or x_scales.shape != x.shape[:-1]:
            raise IRError(
                f"{x.shape} with scales {x_scales.shape} does not fit {groups} groups of {size}", self
            )
        return (TensorType(f32, (*x.shape[:-2], rows)),)

    def reference(
        self, x: Array, x_scales: Array, qvalues: Array, scales: Array, index: Array | None = None
    ) -> Any:
        left = x.astype(np.float64) * x_scales[..., None]
        right = qvalues.reshape(*scales.shape, -1).astype(np.float64) * scales[..., None].astype(np.float64)
        left = left.reshape(*x.shape[:-2], qvalues.shape[-1])
        return _products(left, right.reshape(qvalues.shape), index).astype(np.float32)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        x, x_scales, qvalues, scales, *index = operands
        groups, size = x.shape[-2:]
        weights = _weights_of(t, qvalues, scales, *index)

        def product(*i: Dim) -> Scalar:
            *row, column, group, k = i
            qvalue, scale = weights(row)
            inner = x[(*row, group, k)].cast(i32) * qvalue(column, group * size + k).cast(i32)
            return inner.cast(f32) * (x_scales[(*row, group)] * scale(column, group).cast(f32))

        return _noted_sum(t, self.result.type.shape, (groups, size), product)


@operation
class DequantizedMatMul(GraphOp):
    """``x (qvalues * scales)^T`` with the weights rounded to bf16: x bf16 (..., G, S), qvalues (N, G S),
    scales (N, G), with `index` several of both; result f32 (..., N).
    """

    name = "graph.dequantized_matmul"
    x: Operand
    qvalues: Operand
    scales: Operand
    index: OptionalOperand

    def infer_types(self) -> Sequence[Type]:
        x = tensor_type(self.x)
        if x.rank < 2 or x.dtype is not bf16:
            raise IRError(f"needs bf16 (..., G, S), got {x}", self)
        rows, groups, size = _check_weights(self, x.shape[:-2], x.shape[-2] * x.shape[-1])
        if x.shape[-2:] != (groups, size):
            raise IRError(f"{x.shape} does not fit {groups} groups of {size}", self)
        return (TensorType(f32, (*x.shape[:-2], rows)),)

    def reference(self, x: Array, qvalues: Array, scales: Array, index: Array | None = None) -> Any:
        right = qvalues.reshape(*scales.shape, -1).astype(np.float32) * scales[..., None].astype(np.float32)
        right = right.astype(bf16.numpy).reshape(qvalues.shape).astype(np.float64)
        left = x.reshape(*x.shape[:-2], qvalues.shape[-1]).astype(np.float64)
        return _products(left, right, index).astype(np.float32)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        x, qvalues, scales, *index = operands
        groups, size = x.shape[-2:]
        weights = _weights_of(t, qvalues, scales, *index)

        def product(*i: Dim) -> Scalar:
            *row, column, group, k = i
            qvalue, scale = weights(row)
            left = x[(*row, group, k)].cast(f32)
            weight = qvalue(column, group * size + k).cast(f32) * scale(column, group).cast(f32)
            return left * weight.cast(bf16).cast(f32)

        return _noted_sum(t, self.result.type.shape, (groups, size), product)
