"""Tensors as terms of formulas with Python's operators, for decompositions and gradients.

Operators are looked up by name, so that the files that define operators can use terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...ir.builder import Builder
from ...ir.constant import Constant as ConstantData
from ...ir.core import Block, IRError, Operation, Region, Value, registered_operations
from ...ir.symbolic import Dim, Expr, prove_eq
from ...ir.types import DType, TensorType, f32, i64
from ..tensor_builder import Number


def tensor_type(value: Value) -> TensorType:
    """The tensor type of a value.

    Raises:
        IRError: Not a tensor.
    """
    if not isinstance(value.type, TensorType):
        raise IRError(f"expected a tensor, got {value.type}", value.defining_op)
    return value.type


def operator(name: str) -> type[Operation]:
    """The class of the graph operator `name`, without ``graph.``."""
    return registered_operations()[f"graph.{name}"]


class Term:
    """A tensor value together with the builder `b` for further computations. Numbers among operands take its
    element type; shapes broadcast as in NumPy.
    """

    def __init__(self, b: Builder, value: Value) -> None:
        self.b = b
        self.value = value

    @property
    def shape(self) -> tuple[Dim, ...]:
        return tuple(tensor_type(self.value).shape)

    @property
    def dtype(self) -> DType:
        return tensor_type(self.value).dtype

    def of(self, value: Value) -> Term:
        return Term(self.b, value)

    def apply(self, name: str, *operands: Any, **attributes: Any) -> Term:
        """The result of the graph operator `name` (without ``graph.``) on values."""
        return self.of(self.b(operator(name)(*operands, **attributes)))

    def number(self, x: Number | Expr, dtype: DType | None = None) -> Term:
        """A scalar: a number, or a symbolic size."""
        dtype = dtype or self.dtype
        if isinstance(x, (int, float, bool)):
            return self.apply("constant", value=ConstantData(np.asarray(x, dtype.numpy)))
        return self.apply("symbolic", values=(x,)).cast(dtype)

    def iota(self, size: Dim, start: Dim = 0, step: int = 1) -> Term:
        """``start, start + step, ...`` in i64."""
        return self.apply("iota", shape=(size,), start=start, step=step)

    # -- Elementwise -----------------------------------------------------------------------------------------

    def _binary(self, name: str, a: Term | Number | Expr, b: Term | Number | Expr) -> Term:
        a, b = (x if isinstance(x, Term) else self.number(x) for x in (a, b))
        return self.apply(name, a.value, b.value)

    def __add__(self, other: Term | Number | Expr) -> Term:
        return self._binary("add", self, other)

    __radd__ = __add__

    def __sub__(self, other: Term | Number | Expr) -> Term:
        return self._binary("sub", self, other)

    def __rsub__(self, other: Term | Number | Expr) -> Term:
        return self._binary("sub", other, self)

    def __mul__(self, other: Term | Number | Expr) -> Term:
        return self._binary("mul", self, other)

    __rmul__ = __mul__

    def __pow__(self, other: Term | Number | Expr) -> Term:
        return self._binary("pow", self, other)

    def __truediv__(self, other: Term | Number | Expr) -> Term:
        return self._binary("div", self, other)

    def __rtruediv__(self, other: Term | Number | Expr) -> Term:
        return self._binary("div", other, self)

    def __floordiv__(self, other: Term | Number | Expr) -> Term:
        return self._binary("floordiv", self, other)

    def __mod__(self, other: Term | Number | Expr) -> Term:
        return self._binary("mod", self, other)

    def __neg__(self) -> Term:
        return self.unary("neg")

    def __lt__(self, other: Term | Number | Expr) -> Term:
        return self._binary("lt", self, other)

    def __gt__(self, other: Term | Number | Expr) -> Term:
        return self._binary("gt", self, other)

    def __ge__(self, other: Term | Number | Expr) -> Term:
        return self._binary("ge", self, other)

    def __le__(self, other: Term | Number | Expr) -> Term:
        return self._binary("le", self, other)

    def __and__(self, other: Term | Number | Expr) -> Term:
        return self._binary("and", self, other)

    def __or__(self, other: Term | Number | Expr) -> Term:
        return self._binary("or", self, other)

    def minimum(self, other: Term | Number | Expr) -> Term:
        return self._binary("min", self, other)

    def maximum(self, other: Term | Number | Expr) -> Term:
        return self._binary("max", self, other)

    def equals(self, other: Term | Number | Expr) -> Term:
        return self._binary("eq", self, other)

    def unary(self, name: str) -> Term:
        return self.apply(name, self.value)

    def abs(self) -> Term:
        return self.unary("abs")

    def sqrt(self) -> Term:
        return self.unary("sqrt")

    def cast(self, dtype: DType) -> Term:
        return self if dtype is self.dtype else self.apply("cast", self.value, dtype=dtype)

    def wide(self) -> Term:
        """16-bit floats as float32, so that a formula is rounded once; others as they are."""
        return self.cast(f32) if self.dtype.is_float and self.dtype.bits <= 16 else self

    def zeros(self) -> Term:
        """Zeros of the shape and type of this term."""
        return self.number(0).broadcast(self.shape)

    def select(self, a: Term | Number | Expr, b: Term | Number | Expr) -> Term:
        """Select elementwise: `a` where this boolean term holds, else `b`. At least one of them is a term."""
        like = a if isinstance(a, Term) else b
        if not isinstance(like, Term):
            raise TypeError("select needs a term among its two values")
        a, b = (x if isinstance(x, Term) else like.number(x) for x in (a, b))
        return self.apply("select", self.value, a.value, b.value)

    # -- Shape -----------------------------------------------------------------------------------------------

    def unsqueeze(self, *axes: int) -> Term:
        """Insert unit dimensions at `axes` of the result."""
        rank = len(self.shape) + len(axes)
        at = {a % rank for a in axes}
        rest = iter(self.shape)
        return self.reshape([1 if k in at else next(rest) for k in range(rank)])

    def along_axis(self, axis: int, rank: int) -> Term:
        """A vector as a tensor of `rank` dimensions, all but `axis` of size 1."""
        return self.reshape([self.shape[0] if d == axis else 1 for d in range(rank)])

    def reshape(self, shape: Sequence[Dim]) -> Term:
        shape = tuple(shape)
        return self if self.shape == shape else self.apply("reshape", self.value, shape=shape)

    def broadcast(self, shape: Sequence[Dim]) -> Term:
        return (
            self if self.shape == tuple(shape) else self.apply("broadcast_to", self.value, shape=tuple(shape))
        )

    def transpose(self, permutation: Sequence[int] | None = None) -> Term:
        """Permute the dimensions; without a permutation, exchange the last two."""
        rank = len(self.shape)
        order = tuple(permutation) if permutation is not None else (*range(rank - 2), rank - 1, rank - 2)
        return self.apply("transpose", self.value, permutation=order)

    def slice(self, axis: int, start: Dim, stop: Dim, step: int = 1) -> Term:
        """``start:stop:step`` of one dimension; bounds as `graph.slice` takes them."""
        starts: list[Dim] = [0] * len(self.shape)
        stops, steps = list(self.shape), [1] * len(self.shape)
        starts[axis], stops[axis], steps[axis] = start, stop, step
        return self.apply("slice", self.value, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))

    def pad(self, low: Sequence[Dim], high: Sequence[Dim], value: Number = 0) -> Term:
        """`low` elements `value` before and `high` after each dimension; negative ones are cut off."""
        return self.apply("pad", self.value, None, low=tuple(low), high=tuple(high), value=value)

    def pad_axis(self, axis: int, low: Dim, high: Dim, value: Number = 0) -> Term:
        """`pad` of one dimension."""
        lows: list[Dim] = [0] * len(self.shape)
        highs = list(lows)
        lows[axis], highs[axis] = low, high
        return self.pad(lows, highs, value)

    def flip(self, *axes: int) -> Term:
        return self.apply("flip", self.value, axes=axes)

    def spread(self, axis: int, step: int) -> Term:
        """`step` - 1 zeros after each element along `axis`: ``(..., n * step, ...)``."""
        if step == 1:
            return self
        shape = [d * step if k == axis else d for k, d in enumerate(self.shape)]
        return self.unsqueeze(axis + 1).pad_axis(axis + 1, 0, step - 1).reshape(shape)

    def at(self, index: Term, axis: int) -> Term:
        """The slice at a scalar index, or the slices at several."""
        return self.apply("gather", self.value, index.value, axis=axis % len(self.shape))

    def along(self, index: Term, axis: int) -> Term:
        """``take_along_axis``; the index broadcasts against the other dimensions."""
        rank = len(self.shape)
        axis %= rank
        shape = [index.shape[k - rank] if k == axis else d for k, d in enumerate(self.shape)]
        return self.apply("gather_elements", self.value, index.broadcast(shape).value, axis=axis)

    def sum(self, axes: int | Sequence[int], keepdims: bool = False) -> Term:
        axes = (axes,) if isinstance(axes, int) else tuple(axes)
        return self.apply("reduce_sum", self.value, axes=axes, keepdims=keepdims) if axes else self

    def sum_to(self, shape: Sequence[Dim]) -> Term:
        """The sum over the dimensions along which broadcasting `shape` to this term's shape repeats it: the
        adjoint of that broadcast.
        """
        extra = len(self.shape) - len(shape)
        repeated = [
            k + extra for k, d in enumerate(shape) if d == 1 and not prove_eq(self.shape[k + extra], 1)
        ]
        whole = self.sum(range(extra)) if extra else self
        return whole.sum([k - extra for k in repeated], keepdims=True)

    def matmul(self, other: Term) -> Term:
        return self.apply("matmul", self.value, other.value)

    def einsum(self, equation: str, *others: Term) -> Term:
        """An Einstein summation of this term and others, in NumPy's explicit notation."""
        return self.apply("einsum", [self.value, *(x.value for x in others)], equation=equation)

    def max(self, axis: int, keepdims: bool = False) -> Term:
        return self.apply("reduce_max", self.value, axes=(axis,), keepdims=keepdims)


Body = Callable[..., "tuple[Sequence[Term], Sequence[Term]]"]


def loop(b: Builder, steps: Term, carried: Sequence[Term], body: Body) -> tuple[list[Term], list[Term]]:
    """Run ``next, slices = body(step, *carried)`` for each element of `steps`, an i64 vector. Return the last
    carried terms and the stacked slices.
    """
    return scan(b, [steps], carried, body)


def scan(
    b: Builder, scanned: Sequence[Term], carried: Sequence[Term], body: Body
) -> tuple[list[Term], list[Term]]:
    """Run ``next, slices = body(*parts, *carried)`` for each slice of the terms `scanned`, of which there is
    one at least, along their leading axis. Return the last carried terms and the stacked slices.
    """
    block = Block([])
    arguments = [block.add_arg(x.value.type) for x in carried]
    parts = [block.add_arg(TensorType(x.dtype, x.shape[1:])) for x in scanned]
    inside = Builder(block, location=b.location)
    after, slices = body(*(Term(inside, a) for a in (*parts, *arguments)))
    inside.insert(operator("yield")([x.value for x in (*after, *slices)]))
    op = b.insert(
        operator("scan")(
            [x.value for x in carried],
            [x.value for x in scanned],
            length=scanned[0].shape[0],
            regions=[Region([block])],
        )
    )
    results = [Term(b, r) for r in op.results]
    return results[: len(carried)], results[len(carried) :]


def repeat(
    b: Builder,
    count: Expr,
    carried: Sequence[Term],
    holds: Callable[..., Term],
    body: Callable[..., Sequence[Term]],
) -> list[Term]:
    """Run ``carried = body(*carried)`` while ``holds(*carried)``, a bool scalar, is true; return the last
    carried terms. `count` is a new symbol for the number of runs.
    """
    block = Block([TensorType(i64, ()), *(x.value.type for x in carried)])
    inside = Builder(block, location=b.location)
    after = body(*(Term(inside, a) for a in block.args[1:]))
    inside.insert(operator("yield")([holds(*after).value, *(x.value for x in after)]))
    first = holds(*carried).value
    op = b.insert(
        operator("while")(first, None, [x.value for x in carried], count=count, regions=[Region([block])])
    )
    return [Term(b, r) for r in op.results]


__all__ = ["Term", "loop", "repeat", "scan"]
