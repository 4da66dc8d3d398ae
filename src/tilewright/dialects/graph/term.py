"""Tensors as terms of formulas with Python's operators, for decompositions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...ir.builder import Builder
from ...ir.constant import Constant as ConstantData
from ...ir.core import Block, Region, Value
from ...ir.symbolic import Dim, Expr
from ...ir.types import DType, TensorType, i64
from ..tensor_builder import Number
from .base import tensor_type
from .control_flow import While
from .elementwise import BINARY, UNARY, Cast, Constant, Select, Symbolic
from .index import Gather, GatherElements
from .reduce import ReduceMax, ReduceSum
from .scan import Scan, Yield
from .shape import BroadcastTo, Iota, Reshape, Transpose


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

    def number(self, x: Number | Expr, dtype: DType | None = None) -> Term:
        """A scalar: a number, or a symbolic size."""
        dtype = dtype or self.dtype
        if isinstance(x, (int, float, bool)):
            return self.of(self.b(Constant(value=ConstantData(np.asarray(x, dtype.numpy)))))
        return self.of(self.b(Symbolic(values=(x,)))).cast(dtype)

    def iota(self, size: Dim, start: Dim = 0, step: int = 1) -> Term:
        """``start, start + step, ...`` in i64."""
        return self.of(self.b(Iota(shape=(size,), start=start, step=step)))

    # -- Elementwise -----------------------------------------------------------------------------------------

    def _binary(self, name: str, a: Term | Number | Expr, b: Term | Number | Expr) -> Term:
        a, b = (x if isinstance(x, Term) else self.number(x) for x in (a, b))
        return self.of(self.b(BINARY[name](a.value, b.value)))

    def __add__(self, other: Term | Number | Expr) -> Term:
        return self._binary("add", self, other)

    def __sub__(self, other: Term | Number | Expr) -> Term:
        return self._binary("sub", self, other)

    def __rsub__(self, other: Term | Number | Expr) -> Term:
        return self._binary("sub", other, self)

    def __mul__(self, other: Term | Number | Expr) -> Term:
        return self._binary("mul", self, other)

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

    def __and__(self, other: Term | Number | Expr) -> Term:
        return self._binary("and", self, other)

    def __or__(self, other: Term | Number | Expr) -> Term:
        return self._binary("or", self, other)

    def equals(self, other: Term | Number | Expr) -> Term:
        return self._binary("eq", self, other)

    def unary(self, name: str) -> Term:
        return self.of(self.b(UNARY[name](self.value)))

    def abs(self) -> Term:
        return self.unary("abs")

    def sqrt(self) -> Term:
        return self.unary("sqrt")

    def cast(self, dtype: DType) -> Term:
        return self if dtype is self.dtype else self.of(self.b(Cast(self.value, dtype=dtype)))

    def select(self, a: Term | Number | Expr, b: Term | Number | Expr) -> Term:
        """Select elementwise: `a` where this boolean term holds, else `b`. At least one of them is a term."""
        like = a if isinstance(a, Term) else b
        if not isinstance(like, Term):
            raise TypeError("select needs a term among its two values")
        a, b = (x if isinstance(x, Term) else like.number(x) for x in (a, b))
        return self.of(self.b(Select(self.value, a.value, b.value)))

    # -- Shape -----------------------------------------------------------------------------------------------

    def unsqueeze(self, *axes: int) -> Term:
        """Insert unit dimensions at `axes` of the result."""
        rank = len(self.shape) + len(axes)
        at = {a % rank for a in axes}
        rest = iter(self.shape)
        return self.reshape([1 if k in at else next(rest) for k in range(rank)])

    def reshape(self, shape: Sequence[Dim]) -> Term:
        return self.of(self.b(Reshape(self.value, shape=tuple(shape))))

    def broadcast(self, shape: Sequence[Dim]) -> Term:
        return (
            self
            if self.shape == tuple(shape)
            else self.of(self.b(BroadcastTo(self.value, shape=tuple(shape))))
        )

    def transpose(self, permutation: Sequence[int] | None = None) -> Term:
        """Permute the dimensions; without a permutation, exchange the last two."""
        rank = len(self.shape)
        order = tuple(permutation) if permutation is not None else (*range(rank - 2), rank - 1, rank - 2)
        return self.of(self.b(Transpose(self.value, permutation=order)))

    def at(self, index: Term, axis: int) -> Term:
        """The slice at a scalar index, or the slices at several."""
        return self.of(self.b(Gather(self.value, index.value, axis=axis % len(self.shape))))

    def along(self, index: Term, axis: int) -> Term:
        """``take_along_axis``; the index broadcasts against the other dimensions."""
        rank = len(self.shape)
        axis %= rank
        shape = [index.shape[k - rank] if k == axis else d for k, d in enumerate(self.shape)]
        return self.of(self.b(GatherElements(self.value, index.broadcast(shape).value, axis=axis)))

    def sum(self, axis: int, keepdims: bool = False) -> Term:
        return self.of(self.b(ReduceSum(self.value, axes=(axis,), keepdims=keepdims)))

    def max(self, axis: int, keepdims: bool = False) -> Term:
        return self.of(self.b(ReduceMax(self.value, axes=(axis,), keepdims=keepdims)))


Body = Callable[..., "tuple[Sequence[Term], Sequence[Term]]"]


def loop(b: Builder, steps: Term, carried: Sequence[Term], body: Body) -> tuple[list[Term], list[Term]]:
    """Run ``next, slices = body(step, *carried)`` for each element of `steps`, an i64 vector. Return the last
    carried terms and the stacked slices.
    """
    block = Block([])
    arguments = [block.add_arg(x.value.type) for x in carried]
    step = block.add_arg(TensorType(i64, ()))
    inside = Builder(block, location=b.location)
    after, slices = body(Term(inside, step), *(Term(inside, a) for a in arguments))
    inside.insert(Yield([x.value for x in (*after, *slices)]))
    op = b.insert(
        Scan([x.value for x in carried], [steps.value], length=steps.shape[0], regions=[Region([block])])
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
    inside.insert(Yield([holds(*after).value, *(x.value for x in after)]))
    first = holds(*carried).value
    op = b.insert(While(first, None, [x.value for x in carried], count=count, regions=[Region([block])]))
    return [Term(b, r) for r in op.results]


__all__ = ["Term", "loop", "repeat"]
