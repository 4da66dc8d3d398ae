"""Recognize contractions: sums of products whose addresses are affine in the axes (matmul, batched matmul,
convolution).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dialects import scalar, tensor
from ..dialects.tensor import extent, is_dynamic_symbol
from ..ir.core import Value
from ..ir.symbolic import Dim, Expr, bounds, is_symbol
from ..ir.types import DType, TensorType, f32, i8, i32, u8
from .index_maps import affine_coefficients, flatten_index, product, symbols_of


@dataclass(frozen=True)
class Operand:
    """One factor of a contraction: the read, and the coefficient of each axis in its flat address, in
    elements.
    """

    read: tensor.Read
    coefficients: dict[Expr, Dim]
    offset: Dim

    @property
    def value(self) -> Value:
        return self.read.source

    @property
    def type(self) -> TensorType:
        tensor_type: TensorType = self.read.source.type
        return tensor_type

    def moves_with(self, axis: Expr) -> bool:
        c = self.coefficients[axis]
        return not (isinstance(c, int) and c == 0)


@dataclass(frozen=True)
class Contraction:
    """``out[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n]``, where each letter stands for
    several axes.

    `n` contains the last axis of the result, so that the elements of `b` fill vectors. With `index`, `b` has
    a further leading dimension, and each row of the only axis in `m` chooses its matrix there: `index` is the
    read of that integer (`graph.grouped_matmul`).
    """

    compute: tensor.Compute
    a: Operand
    b: Operand
    batch: tuple[Expr, ...]
    m: tuple[Expr, ...]
    n: tuple[Expr, ...]
    k: tuple[Expr, ...]
    dtype: DType
    index: tensor.Read | None = None


def _factor(value: Value, compute: tensor.Compute, wide: DType) -> Operand | None:
    """The operand behind one factor: an unguarded affine read, possibly widened to the accumulation dtype."""
    op = value.defining_op
    if isinstance(op, scalar.Cast) and op.dtype is wide and (wide.is_float or widens_byte(op)):
        op = op.x.defining_op
    if not isinstance(op, tensor.Read) or op.guard:
        return None
    axes = (*compute.axes, *compute.reduce_axes)
    affine = affine_coefficients(flatten_index(op.indices, op.source.type.shape), axes)
    if affine is None:
        return None
    coefficients, offset = affine
    return Operand(op, dict(zip(axes, coefficients, strict=True)), offset)


def widens_byte(op: scalar.Cast) -> bool:
    """Whether a cast turns 8-bit integers into 32-bit ones."""
    return op.dtype is i32 and op.x.type in (i8, u8)


def match_contraction(compute: tensor.Compute) -> Contraction | None:
    """Return the contraction that a computation is, or None.

    Axes of extent 1 count as batch axes. A result whose last axis is in neither operand, a reduction over one
    operand alone and a triangular domain are no contractions.
    """
    if (
        compute.combiner != "sum"
        or not compute.reduce_axes
        or not (compute.dtype.is_float or compute.dtype is i32)
    ):
        return None
    result = compute.body.terminator.operands[0].defining_op
    if not isinstance(result, scalar.BINARY["mul"]):
        return None
    wide = result.result.type
    left, right = (_factor(v, compute, wide) for v in result.operands)
    if left is None or right is None:
        return None
    for axis in compute.reduce_axes:
        if not (left.moves_with(axis) and right.moves_with(axis)):
            return None
    live = [x for x in compute.axes if not (isinstance(tensor.extent(x), int) and tensor.extent(x) == 1)]
    if not live:
        return None
    last = live[-1]
    if left.moves_with(last) == right.moves_with(last):
        return None
    a, b = (right, left) if left.moves_with(last) else (left, right)
    batch: list[Expr] = []
    m: list[Expr] = []
    n: list[Expr] = []
    for axis in compute.axes:
        by_a, by_b = a.moves_with(axis), b.moves_with(axis)
        (m if by_a and not by_b else n if by_b and not by_a else batch).append(axis)
    index = None
    if a.read.dynamic or b.read.dynamic:
        index = _index_of(a, b, batch, m)
        if index is None:
            return None
    return Contraction(
        compute,
        a,
        b,
        tuple(batch),
        tuple(m),
        tuple(n),
        tuple(compute.reduce_axes),
        wide if wide else f32,
        index,
    )


def _index_of(a: Operand, b: Operand, batch: list[Expr], m: list[Expr]) -> tensor.Read | None:
    """The read that chooses each row's matrix of `b`, if it is the only data-dependent index."""
    choice = b.read.dynamic[0].defining_op if len(b.read.dynamic) == 1 and not a.read.dynamic else None
    if (
        not isinstance(choice, tensor.Read)
        or choice.guard
        or choice.dynamic
        or len(m) != 1
        or choice.indices != (m[0],)
    ):
        return None
    first, *others = b.read.indices
    elsewhere = any(map(is_dynamic_symbol, symbols_of(others)))
    return choice if is_symbol(first) and not elsewhere and all(extent(x) == 1 for x in batch) else None


FEW_READERS = 4
"""Most result rows for which a run-time right operand is not packed: packing reads and writes it
once, which few products do not repay. A larger value leaves more operands unpacked."""
FEW_READERS_OF_LARGE = 8
"""The same limit for operands that have, or may have, at least `LARGE` elements, which do not fit the caches
near the core. The keys of a cache of 1024 tokens are an example, of which queries of up to 8 heads are
products."""
LARGE = 1 << 16
"""Number of elements from which on an operand counts as large."""


def has_few_readers(c: Contraction) -> bool:
    """Whether so few rows use a run-time right operand that packing it costs more than the products."""
    readers = bounds(product(extent(a) for a in c.m))[1] if c.m else 1
    elements = bounds(product(extent(a) for a in (*c.n, *c.k)))[1]
    large = elements is None or elements >= LARGE
    return readers is not None and readers <= (FEW_READERS_OF_LARGE if large else FEW_READERS)
