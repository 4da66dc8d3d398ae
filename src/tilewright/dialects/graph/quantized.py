"""Products with group-wise quantized weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from ...ir import notes
from ...ir.builder import Builder
from ...ir.constant import Constant as ConstantData
from ...ir.core import Attr, IRError, Operand, OptionalOperand, Value, operation
from ...ir.interpreter import Array
from ...ir.symbolic import Dim, prove_eq
from ...ir.types import FLOAT8, DType, TensorType, Type, bf16, f32, i4, i8, i32, u4, u8
from ..scalar import Constant as ScalarConstant
from ..tensor_builder import Scalar, TensorBuilder, TensorRef
from ..weight_form import TERNARY, WeightForm, choice, integer_table, weights_of
from .base import Adjoint, GraphOp, tensor_type
from .contract import Einsum, GroupedMatMul, check_chosen, chosen, grouped_product
from .elementwise import BINARY, UNARY, Bitcast, Cast, Constant, Select, constant, same_shape
from .index import Gather, clamped_array
from .norm import narrow, widen
from .reduce import ReduceMax
from .shape import Reshape, Transpose
from .term import Term

VALUES = (i4, u4, i8, u8, *(t for t in FLOAT8 if t.name in ("f8E4M3FN", "f8E5M2")))
"""The types of quantized values."""
MULTIPLES = (u4, i8, u8)
"""The types of scales and minimums that are multiples of units."""


def _check_weights(
    op: QuantizedMatMul | ScaledMatMul | DequantizedMatMul, lead: Sequence[Dim], depth: Dim
) -> tuple[int, int, int]:
    """Rows and groups of ``op.qvalues`` and ``op.scales`` (of each matrix that ``op.index`` chooses from),
    and the size of a group.

    Raises:
        IRError: they or the other parts do not fit each other, or an x of ``(*lead, depth)``.
    """
    qvalues, scales = tensor_type(op.qvalues), tensor_type(op.scales)
    matrices = () if op.index is None else qvalues.shape[:1]
    if op.index is not None:
        if len(lead) != 1:
            raise IRError(f"needs rows (S, K) where index chooses matrices, got {(*lead, depth)}", op)
        check_chosen(op, lead[0], tensor_type(op.index))
    if qvalues.dtype not in VALUES or scales.dtype.is_float == (op.units is not None):
        raise IRError(
            f"needs qvalues of {', '.join(t.label for t in VALUES)} with floating-point scales, or integer "
            f"scales with units, got {qvalues.dtype.label}, {scales.dtype.label}",
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
    _check_parts(op, (*matrices, rows), groups)
    return rows, groups, columns // groups


def _check_parts(
    op: QuantizedMatMul | ScaledMatMul | DequantizedMatMul, lead: tuple[Dim, ...], groups: int
) -> None:
    """Raise unless units, minimums and their units, the table and the number of bits fit the weights."""
    dtype = tensor_type(op.qvalues).dtype
    for name, needs, of in (
        ("units", True, "scales"),
        ("minimums", False, ""),
        ("minimum_units", True, "minimums"),
    ):
        value = getattr(op, name)
        if value is None:
            continue
        part = tensor_type(value)
        if part.shape[:-1] != lead or part.rank != len(lead) + 1 or not isinstance(part.shape[-1], int):
            raise IRError(f"{name} {part.shape} do not fit weights of {lead} rows", op)
        count = part.shape[-1]
        if count < 1 or groups % count or (not needs and count != groups):
            raise IRError(f"{name} {part.shape} do not fit {groups} groups", op)
        multiplied = getattr(op, of) if of else None
        if needs and (multiplied is None or tensor_type(multiplied).dtype not in MULTIPLES):
            raise IRError(f"{name} need {of} of {', '.join(t.label for t in MULTIPLES)}", op)
        allowed = MULTIPLES if name == "minimums" and op.minimum_units is not None else (i8, u8)
        if not part.dtype.is_float and (needs or part.dtype not in allowed):
            raise IRError(f"{name} of {part.dtype.label} are not supported", op)
    if op.table is not None and (dtype is not u4 or not isinstance(op.table, tuple) or len(op.table) != 16):
        raise IRError(f"a table needs 16 numbers and qvalues of u4, got {dtype.label}", op)
    if not 1 <= _bits(op) <= dtype.bits or (op.bits == TERNARY and (dtype.kind != "int" or op.table)):
        raise IRError(f"values of {op.bits} bits do not fit {dtype.label}", op)


def _bits(op: QuantizedMatMul | ScaledMatMul | DequantizedMatMul) -> int:
    """The bits that a value needs by itself."""
    return tensor_type(op.qvalues).dtype.bits if op.bits is None else ceil(op.bits)


def _form(op: QuantizedMatMul | ScaledMatMul | DequantizedMatMul) -> WeightForm:
    """The form of an operator's weights."""
    dtype = tensor_type(op.qvalues).dtype

    def count(x: Value | None) -> int:
        size = 0 if x is None else tensor_type(x).shape[-1]
        assert isinstance(size, int)
        return size

    groups = count(op.scales)
    covered = tuple(groups // count(x) if x is not None else 0 for x in _parts(op))
    kind = "ternary" if op.bits == TERNARY else dtype.name if dtype.is_float else dtype.kind
    return WeightForm(_bits(op), kind, covered, None if op.table is None else tuple(op.table))


def _parts(op: QuantizedMatMul | ScaledMatMul | DequantizedMatMul) -> tuple[Value | None, ...]:
    """The operands that are `PARTS`."""
    return op.scales, op.units, op.minimums, op.minimum_units


def _given(
    op: QuantizedMatMul | ScaledMatMul | DequantizedMatMul, rest: Sequence[Any]
) -> tuple[Any, dict[str, Any]]:
    """The index and the other parts among the operands behind the scales."""
    left = iter(rest)
    found = {
        name: next(left)
        for name in ("index", "units", "minimums", "minimum_units", "largest")
        if getattr(op, name, None) is not None
    }
    return found.pop("index", None), found


@operation
class QuantizedMatMul(GraphOp):
    """``x (qvalues * scales)^T``: x (..., K), quantized weights `qvalues` (N, K) of i4 or i8, `scales` (N,
    G), one for each group of K / G neighbours; result (..., N).

    `factors` is the type that is multiplied. With i8 each group of x is first rounded to 8 bits with its own
    scale, so that products are products of integers (Dettmers et al., "LLM.int8()", 2022, by groups). With
    values of at most 4 bits (`WeightForm.shifts_sums`) the scales of a row differ by powers of two, so that
    sums are scaled by shifts; steps are then 1.45 times as large on average, which adds far less than the
    rounding of weights to 4 bits. Where scales of weights are integers with units, the groups of a unit share
    a scale of x (`WeightForm.block`), so that sums stay integers. With bf16, x and the weights are rounded to
    that type and summed in float32. With f32 nothing is rounded.

    With `index` (S,), as in `graph.grouped_matmul`, there are several matrices, `qvalues` (E, N, K) and
    `scales` (E, N, G), and each row of x (S, K) chooses one.

    `dialects.weight_form` has the meaning of the other parts: `units` (N, G / a), `minimums` (N, G),
    `minimum_units` (N, G / b) and `table`, a tuple of 16 numbers for qvalues of u4. `bits` are those that a
    value takes, None: all that the type of `qvalues` has; `TERNARY`, 13 / 8: values are -1, 0 and 1. Qvalues
    may be 8-bit floats; then factors of i8 mean bf16. With factors of i8 a table is rounded to integers
    (`integer_table`).

    `largest` (..., 1), f32, is the largest magnitude of the rows of which x has some columns, where scales
    differ by powers of two or there is one for each row: x is then rounded as the whole rows are. It is at
    least that of x.
    """

    name = "graph.quantized_matmul"
    x: Operand
    qvalues: Operand
    scales: Operand
    index: OptionalOperand
    units: OptionalOperand
    minimums: OptionalOperand
    minimum_units: OptionalOperand
    largest: OptionalOperand
    factors: Attr = i8
    bits: Attr = None
    table: Attr = None

    def infer_types(self) -> Sequence[Type]:
        x = tensor_type(self.x)
        if not x.rank or not x.dtype.is_float:
            raise IRError(f"needs floating-point rows, got {x}", self)
        if self.factors not in (i8, bf16, f32):
            raise IRError(f"factors={self.factors} is not supported", self)
        rows, _, _ = _check_weights(self, x.shape[:-1], x.shape[-1])
        if self.largest is not None:
            given, wanted = tensor_type(self.largest), TensorType(f32, (*x.shape[:-1], 1))
            if given.dtype is not f32 or not same_shape(given.shape, wanted.shape):
                raise IRError(f"largest must be {wanted}, got {given}", self)
            groups, _ = _groups_and_size(self)
            if self.product is not i8 or not (_form(self).shifts_sums or groups == 1):
                raise IRError(
                    "largest has a meaning only for factors of i8 whose scales differ by powers of two, or "
                    "with one scale for each row",
                    self,
                )
        return (TensorType(x.dtype, (*x.shape[:-1], rows)),)

    @property
    def product(self) -> DType:
        """The type of factors."""
        floats = tensor_type(self.qvalues).dtype.is_float
        return bf16 if floats and self.factors is i8 else self.factors

    def reference(self, x: Array, qvalues: Array, scales: Array, *rest: Array) -> Any:
        index, parts = _given(self, rest)
        shared = parts.pop("largest", None)
        groups = scales.shape[-1]
        size = qvalues.shape[-1] // groups
        together = _form(self).rounded_together(size) if self.product is i8 else 1
        wide = x.astype(np.float32).reshape(*x.shape[:-1], groups // together, size * together)
        table = self.table
        if self.product is i8 and table is not None:
            numbers, unit = integer_table(table)
            table = [n * unit for n in numbers]
        weights = weights_of(qvalues, {"scales": scales, **parts}, table)
        if self.product is i8:
            scale = np.abs(wide).max(-1, keepdims=True)
            if _form(self).shifts_sums:
                most = _most_doublings(self, size)
                largest = scale.max(-2, keepdims=True) if shared is None else shared[..., None]
                quotient = np.full(scale.shape, np.inf)
                np.divide(largest, scale, out=quotient, where=scale != 0, dtype=np.float64)
                scale = largest / 2.0 ** np.clip(np.floor(np.log2(quotient)), 0, most).astype(np.float32)
            elif shared is not None:
                scale = shared[..., None]
            inverse = np.divide(np.float32(127), scale, out=np.zeros_like(scale), where=scale != 0)
            wide = np.rint(wide * inverse) * (scale * np.float32(1 / 127))
        elif self.product is bf16:
            wide, weights = wide.astype(bf16.numpy), weights.astype(bf16.numpy)
        left, right = wide.reshape(x.shape).astype(np.float64), weights.astype(np.float64)
        return _products(left, right, index).astype(x.dtype)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        x, qvalues, _, *rest = (v.wide() for v in at.operands)
        chosen_, parts = _given(self, rest)
        index = () if chosen_ is None else (chosen_,)
        dy = at.cotangent.wide()
        rows, (groups, size) = qvalues.shape[:-1], _groups_and_size(self)
        values = Term(at.b, _values(at.b, self, dy.dtype)).reshape((*rows, groups, size))
        gradients: dict[str, Term] = {}
        # Rounding x to the type of the factors has the derivative 1, as for quantized training's
        # straight-through estimator (Bengio et al., 2013).
        if at.needed[0]:
            weights = Term(at.b, _weights(at.b, self, dy.dtype))
            gradients["x"] = self._chosen_product(dy, weights, *index)
        if any(at.needed[2:]):
            dw = self._weight_gradient(dy, x, *index).reshape((*rows, groups, size))
            gradients["scales"] = (dw * values).sum(len(rows) + 1)
            gradients["minimums"] = -dw.sum(len(rows) + 1)
        # The integers among the parts are not differentiated, nor are numbers that they are multiples of.
        if "units" in parts or ("minimums" in parts and not parts["minimums"].dtype.is_float):
            gradients.pop("scales", None)
        names = ("x", "qvalues", "scales", *(("index",) if index else ()), *parts)
        return [gradients.get(name) for name in names]

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
        _, groups, size = _check_weights(self, lead, shape[-1])
        if self.product is f32:
            weights, letters = _weights(b, self, f32), "abcdefgh"[: len(lead)]
            if self.index is not None:
                return narrow(
                    b, b(GroupedMatMul(x, b(Transpose(weights, permutation=(0, 2, 1))), self.index)), self.x
                )
            return narrow(b, b(Einsum((x, weights), equation=f"{letters}k,nk->{letters}n")), self.x)
        rest = self.index, self.units, self.minimums, self.minimum_units
        # The cast precedes the split into groups, so that it can be fused into the producer of x.
        if self.product is bf16:
            x = b(Reshape(b(Cast(x, dtype=bf16)), shape=(*lead, groups, size)))
            product = DequantizedMatMul(x, self.qvalues, self.scales, *rest, bits=self.bits, table=self.table)
            return narrow(b, b(product), self.x)
        form = _form(self)
        together, shifts = form.rounded_together(size), form.shifts_sums
        # While x keeps this shape, one kernel can round it and add up its groups.
        split = (groups // together, together, size) if together > 1 else (groups, size)
        x = b(Reshape(x, shape=(*lead, *split)))
        if self.largest is None or shifts:
            axes = tuple(range(len(lead) + 1, len(lead) + len(split)))
            top = b(ReduceMax(b(UNARY["abs"](x)), axes=axes, keepdims=True))
        else:
            top = b(Reshape(self.largest, shape=(*lead, 1, 1)))
        table, factor = (None, 1.0) if self.table is None else integer_table(self.table)
        if shifts:
            if self.largest is None:
                largest = b(ReduceMax(top, axes=(len(lead),), keepdims=True))
            else:
                largest = b(Reshape(self.largest, shape=(*lead, 1, 1)))
            most = _most_doublings(self, size)
            rounded, scale, unit = _rounded_by_powers(b, x, top, largest, most, factor)
        else:
            rounded = b(Cast(b(UNARY["round"](b(BINARY["mul"](x, _steps(b, top))))), dtype=i8))
            scale, unit = b(BINARY["mul"](top, constant(b, factor / 127, top))), None
        scale = b(Reshape(scale, shape=(*lead, groups // together)))
        if together > 1:
            rounded = b(Reshape(rounded, shape=(*lead, groups, size)))
        rest = self.index, self.units, *_table_minimums(b, self, factor)
        y = b(ScaledMatMul(rounded, scale, self.qvalues, self.scales, *rest, bits=self.bits, table=table))
        if unit is not None:
            y = b(BINARY["mul"](y, b(Reshape(unit, shape=(*lead, 1)))))
        return narrow(b, y, self.x)


def _groups_and_size(op: QuantizedMatMul) -> tuple[int, int]:
    """The groups of a row, and the values of a group."""
    groups, depth = tensor_type(op.scales).shape[-1], tensor_type(op.qvalues).shape[-1]
    assert isinstance(groups, int) and isinstance(depth, int)
    return groups, depth // groups


def _values(b: Builder, op: QuantizedMatMul, dtype: DType) -> Value:
    """The numbers that quantized values stand for, of the type `dtype`."""
    if op.table is None:
        return b(Cast(op.qvalues, dtype=dtype))
    table = b(Constant(value=ConstantData(np.asarray(op.table, dtype.numpy))))
    return b(Gather(table, b(Cast(op.qvalues, dtype=i32)), axis=0))


def _wide(b: Builder, x: Value, dtype: DType) -> Value:
    return x if tensor_type(x).dtype is dtype else b(Cast(x, dtype=dtype))


def _multiplied(b: Builder, op: QuantizedMatMul, x: Value, units: Value | None, dtype: DType) -> Value:
    """Scales or minimums `x` of groups (..., N, G) times their units, of the type `dtype`."""
    if units is None:
        return _wide(b, x, dtype)
    shape, (groups, _) = tensor_type(op.qvalues).shape, _groups_and_size(op)
    count = tensor_type(units).shape[-1]
    split = b(Reshape(_wide(b, x, dtype), shape=(*shape[:-1], count, groups // count)))
    product = b(BINARY["mul"](split, b(Reshape(_wide(b, units, dtype), shape=(*shape[:-1], count, 1)))))
    return b(Reshape(product, shape=(*shape[:-1], groups)))


def _table_minimums(b: Builder, op: QuantizedMatMul, factor: float) -> tuple[Value | None, Value | None]:
    """The minimums and their units for values of a table that were divided by `factor`."""
    if op.minimums is None or factor == 1:
        return op.minimums, op.minimum_units
    minimums = _multiplied(b, op, op.minimums, op.minimum_units, f32)
    if op.minimum_units is None and not tensor_type(op.minimums).dtype.is_float:
        minimums = b(BINARY["mul"](minimums, _multiplied(b, op, op.scales, op.units, f32)))
    return b(BINARY["mul"](minimums, constant(b, 1 / factor, minimums))), None


def _weights(b: Builder, op: QuantizedMatMul, dtype: DType) -> Value:
    """The matrices (..., N, K), of the type `dtype`."""
    shape, (groups, size) = tensor_type(op.qvalues).shape, _groups_and_size(op)

    scales = _multiplied(b, op, op.scales, op.units, dtype)
    values = b(Reshape(_values(b, op, dtype), shape=(*shape[:-1], groups, size)))
    weights = b(BINARY["mul"](values, b(Reshape(scales, shape=(*shape[:-1], groups, 1)))))
    if op.minimums is not None:
        if op.minimum_units is None and not tensor_type(op.minimums).dtype.is_float:
            minimums = b(BINARY["mul"](_wide(b, op.minimums, dtype), scales))
        else:
            minimums = _multiplied(b, op, op.minimums, op.minimum_units, dtype)
        weights = b(BINARY["sub"](weights, b(Reshape(minimums, shape=(*shape[:-1], groups, 1)))))
    return b(Reshape(weights, shape=shape))


def _steps(b: Builder, top: Value) -> Value:
    """``127 / top``, and 0 where `top` is 0."""
    quotient = b(BINARY["div"](constant(b, 127, top), top))
    return b(Select(b(BINARY["eq"](top, constant(b, 0, top))), constant(b, 0, top), quotient))


def _rounded_by_powers(
    b: Builder, x: Value, top: Value, largest: Value, most: int, factor: float
) -> tuple[Value, Value, Value]:
    """Round groups of x (..., G, S) with largest magnitudes `top` (..., G, 1), and `largest` (..., 1, 1)
    of each row, to 8 bits, with scales that differ by powers of two.

    Returns:
        The rounded groups, i8; the scale of each group, from 1 to ``2 ** most``; `factor` times what they are
        multiples of, (..., 1, 1).
    """
    # The difference of the bits of two positive floats, less the mantissa, is the exponent of the largest
    # power of two in their quotient.
    bits = b(BINARY["sub"](b(Bitcast(largest, dtype=i32)), b(Bitcast(top, dtype=i32))))
    power = b(BINARY["and"](bits, constant(b, -EXPONENT, bits)))
    power = b(BINARY["min"](power, constant(b, most * EXPONENT, power)))
    power = b(BINARY["max"](power, constant(b, 0, power)))
    finer = b(Bitcast(b(BINARY["add"](power, constant(b, ONE, power))), dtype=f32))
    scale = b(Bitcast(b(BINARY["sub"](constant(b, ONE + most * EXPONENT, power), power)), dtype=f32))
    steps = b(BINARY["mul"](b(BINARY["mul"](x, _steps(b, largest))), finer))
    unit = b(BINARY["mul"](largest, constant(b, factor * 2.0**-most / 127, largest)))
    return b(Cast(b(UNARY["round"](steps)), dtype=i8)), scale, unit


EXPONENT, ONE = 1 << 23, 127 << 23
"""The unit of the exponent in the bits of a float32, and the bits of 1."""


def _most_doublings(op: QuantizedMatMul, size: int) -> int:
    """The exponent of the largest power of two whose products with sums of `size` products of 8-bit integers
    and values of at most 4 bits, or what they stand for, fit 32 bits.
    """
    if op.table is not None:
        largest = max(abs(x) for x in integer_table(op.table)[0])
    else:
        largest = 15 if _form(op).kind == "uint" else 8
    return max(0, 31 - (size * 127 * largest).bit_length())


def _products(left: Array, right: Array, index: Array | None) -> Any:
    """``left @ right.T``, with the matrices that `index` chooses if there is one."""
    if index is None:
        return left @ right.T
    which = clamped_array(index, right.shape[0])
    return np.array([right[k] @ row for row, k in zip(left, which, strict=True)]).reshape(
        len(left), right.shape[1]
    )


def _reader(
    t: TensorBuilder, op: ScaledMatMul | DequantizedMatMul, qvalues: TensorRef, scales: TensorRef, rest: Any
) -> Callable[[Sequence[Any]], _Reading]:
    """For a row's position: the functions that read its matrix."""
    index, parts = _given(op, rest)
    which = None if index is None else chosen(t, index, qvalues.shape[0])

    def reading(row: Sequence[Any]) -> _Reading:
        matrix = () if which is None else (which[tuple(row)],)
        return _Reading(_form(op), matrix, qvalues, {"scales": scales, **parts})

    return reading


@dataclass(frozen=True)
class _Reading:
    """Reads one matrix; `parts` by their names."""

    form: WeightForm
    matrix: tuple[Any, ...]
    qvalues: TensorRef
    parts: dict[str, TensorRef]

    def value(self, column: Dim, k: Dim) -> Scalar:
        """A quantized value; or what it stands for, as f32."""
        return stood_for(self.qvalues[(*self.matrix, column, k)], self.form.table)

    def scale_and_minimum(self, column: Dim, group: Dim) -> tuple[Scalar, Scalar | None]:
        """The scale and the minimum of a group, f32."""

        def part(name: str) -> Scalar:
            covered = self.form.covered_by(name)
            place = group if covered == 1 else group // covered
            return self.parts[name][(*self.matrix, column, place)].cast(f32)

        return scale_and_minimum(self.form, part, lambda name: self.parts[name].dtype)


def stood_for(code: Scalar, table: Sequence[float] | None) -> Scalar:
    """The number that a quantized value stands for: itself, or as f32 one in a table."""
    if table is None:
        return code
    place = code.cast(i32)

    def literal(x: Any) -> Scalar:
        if isinstance(x, Scalar):
            return x
        return Scalar(code.body, code.body(ScalarConstant(value=float(x), dtype=f32)))

    return literal(
        choice(
            table,
            lambda k: (place & (1 << k)).differs(0),
            lambda condition, a, b: condition.select(literal(a), literal(b)),
        )
    )


def scale_and_minimum(
    form: WeightForm, part: Callable[[str], Scalar], dtype: Callable[[str], DType]
) -> tuple[Scalar, Scalar | None]:
    """The scale and the minimum of a group, from its parts, which ``part(name)`` reads as f32 in the order of
    `PARTS`; ``dtype(name)`` is the type that they are stored in.
    """
    scale = part("scales")
    if "units" in form.parts:
        scale = scale * part("units")
    if "minimums" not in form.parts:
        return scale, None
    minimum = part("minimums")
    if "minimum_units" in form.parts:
        minimum = minimum * part("minimum_units")
    elif not dtype("minimums").is_float:
        minimum = minimum * scale
    return scale, minimum


def _noted_sum(
    t: TensorBuilder,
    op: ScaledMatMul | DequantizedMatMul,
    depth: Sequence[Dim],
    product: Callable[..., Scalar],
) -> TensorRef:
    """A sum of products with the note `QUANTIZED`, by which packing recognizes it."""
    y = t.reduce("sum", op.result.type.shape, depth, product)
    made = y.value.defining_op
    assert made is not None
    notes.QUANTIZED.set(made, _form(op).attribute)
    return y


@operation
class ScaledMatMul(GraphOp):
    """``sum over g of x_scales[.., g // c] scales[n, g] (sum over k of x[.., g, k] qvalues[n, g, k])``: x i8
    (..., G, S), x_scales (..., G / c), qvalues (N, G S), scales (N, G), with `index` several of both; result
    f32 (..., N). The inner sums are exact. With values of at most 4 bits the x_scales are powers of two from
    1 on, whose products with the inner sums fit 32 bits, unless scales have units. c is 1, or the groups of a
    unit (`WeightForm.rounded_together`).
    """

    name = "graph.scaled_matmul"
    x: Operand
    x_scales: Operand
    qvalues: Operand
    scales: Operand
    index: OptionalOperand
    units: OptionalOperand
    minimums: OptionalOperand
    minimum_units: OptionalOperand
    bits: Attr = None
    table: Attr = None

    def infer_types(self) -> Sequence[Type]:
        x, x_scales = tensor_type(self.x), tensor_type(self.x_scales)
        if x.rank < 2 or x.dtype is not i8 or x_scales.dtype is not f32:
            raise IRError(f"needs i8 (..., G, S) with scales of f32, got {x} and {x_scales}", self)
        rows, groups, size = _check_weights(self, x.shape[:-2], x.shape[-2] * x.shape[-1])
        together = _form(self).rounded_together(size)
        if x.shape[-2:] != (groups, size) or x_scales.shape != (*x.shape[:-2], groups // together):
            raise IRError(
                f"{x.shape} with scales {x_scales.shape} does not fit {groups} groups of {size}", self
            )
        return (TensorType(f32, (*x.shape[:-2], rows)),)

    def reference(self, x: Array, x_scales: Array, qvalues: Array, scales: Array, *rest: Array) -> Any:
        index, parts = _given(self, rest)
        depth = qvalues.shape[-1]
        left = x.astype(np.float64).reshape(*x_scales.shape, depth // x_scales.shape[-1])
        left = (left * x_scales[..., None]).reshape(*x.shape[:-2], depth)
        right = weights_of(qvalues, {"scales": scales, **parts}, self.table, np.float64)
        return _products(left, right, index).astype(np.float32)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        x, x_scales, qvalues, scales, *rest = operands
        groups, size = x.shape[-2:]
        reading, together = _reader(t, self, qvalues, scales, rest), groups // x_scales.shape[-1]

        def product(*i: Dim) -> Scalar:
            *row, column, group, k = i
            weights = reading(row)
            left, value = x[(*row, group, k)], weights.value(column, group * size + k)
            place = group if together == 1 else group // together
            return scaled_term(left, value, lambda: x_scales[(*row, place)],
                               lambda: weights.scale_and_minimum(column, group))  # fmt: skip

        return _noted_sum(t, self, (groups, size), product)


def scaled_term(
    x: Scalar,
    value: Scalar,
    x_scale: Callable[[], Scalar],
    scale_and_minimum: Callable[[], tuple[Scalar, Scalar | None]],
) -> Scalar:
    """A term of `graph.scaled_matmul`; scales are read after x and the value."""
    left = x_scale()
    scale, minimum = scale_and_minimum()
    if minimum is None and value.dtype is not f32:
        return (x.cast(i32) * value.cast(i32)).cast(f32) * (left * scale)
    weight = value.cast(f32) * scale
    return (x.cast(f32) * left) * (weight if minimum is None else weight - minimum)


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
    units: OptionalOperand
    minimums: OptionalOperand
    minimum_units: OptionalOperand
    bits: Attr = None
    table: Attr = None

    def infer_types(self) -> Sequence[Type]:
        x = tensor_type(self.x)
        if x.rank < 2 or x.dtype is not bf16:
            raise IRError(f"needs bf16 (..., G, S), got {x}", self)
        rows, groups, size = _check_weights(self, x.shape[:-2], x.shape[-2] * x.shape[-1])
        if x.shape[-2:] != (groups, size):
            raise IRError(f"{x.shape} does not fit {groups} groups of {size}", self)
        return (TensorType(f32, (*x.shape[:-2], rows)),)

    def reference(self, x: Array, qvalues: Array, scales: Array, *rest: Array) -> Any:
        index, parts = _given(self, rest)
        right = weights_of(qvalues, {"scales": scales, **parts}, self.table)
        left = x.reshape(*x.shape[:-2], qvalues.shape[-1]).astype(np.float64)
        return _products(left, right.astype(bf16.numpy).astype(np.float64), index).astype(np.float32)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        x, qvalues, scales, *rest = operands
        groups, size = x.shape[-2:]
        reading = _reader(t, self, qvalues, scales, rest)

        def product(*i: Dim) -> Scalar:
            *row, column, group, k = i
            weights = reading(row)
            left, value = x[(*row, group, k)].cast(f32), weights.value(column, group * size + k)
            return left * dequantized(value, *weights.scale_and_minimum(column, group))

        return _noted_sum(t, self, (groups, size), product)


def dequantized(value: Scalar, scale: Scalar, minimum: Scalar | None) -> Scalar:
    """A weight rounded to bf16, as f32."""
    weight = value.cast(f32) * scale
    return (weight if minimum is None else weight - minimum).cast(bf16).cast(f32)
