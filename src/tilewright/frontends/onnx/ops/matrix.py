"""Matrix products and determinants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.types import i32
from ...unsupported import Unsupported
from ..registry import importer
from .elementwise import cast, scalar
from .run_time import Arithmetic
from .shape import broadcast, product, reshape, slice_

if TYPE_CHECKING:
    from ..node import Node


@importer("MatMul")
def _matmul(n: Node) -> Value:
    return n.emit(g.Matmul(n.value(0), n.value(1)))


def transposed(n: Node, x: Value) -> Value:
    """Swap the last two dimensions."""
    rank = x.type.rank
    return n.emit(g.Transpose(x, permutation=(*range(rank - 2), rank - 1, rank - 2)))


@importer("Gemm")
def gemm(n: Node) -> Value:
    """Return ``alpha a b + beta c``; either factor may be transposed."""
    a, b = n.value(0), n.value(1)
    a = transposed(n, a) if n.attr("transA", 0) else a
    b = transposed(n, b) if n.attr("transB", 0) else b
    y: Value = n.emit(g.Matmul(a, b))
    alpha, beta = n.attr("alpha", 1.0), n.attr("beta", 1.0)
    if alpha != 1.0:
        y = n.emit(g.Mul(y, scalar(n, alpha, y)))
    if n.has(2) and beta != 0.0:
        c = n.value(2)
        y = n.emit(g.Add(y, c if beta == 1.0 else n.emit(g.Mul(c, scalar(n, beta, c)))))
    return y


@importer("Einsum")
def _einsum(n: Node) -> Value:
    equation = n.attr("equation").replace(" ", "")
    return n.emit(g.Einsum([n.value(k) for k in range(len(n.inputs))], equation=equation))


@importer("MatMulInteger")
def _matmul_integer(n: Node) -> Value:
    factors = []
    for k in (0, 1):
        x = cast(n, n.value(k), i32)
        if n.has(2 + k):
            zero = cast(n, n.value(2 + k), i32)
            if k == 0 and zero.type.rank == 1 and zero.type.shape != (1,):
                zero = n.emit(g.Reshape(zero, shape=(*zero.type.shape, 1)))  # one per row of the left side
            x = n.emit(g.Sub(x, zero))
        factors.append(x)
    return n.emit(g.Matmul(*factors))


MAX_ORDER = 64
"""Maximum number of rows of a determinant. Each elimination step is expanded into operators, so a larger
limit allows larger graphs.
"""


@importer("Det")
def _det(n: Node) -> Value:
    """Eliminate column by column; the pivot is the largest element of the first column."""
    x, a = n.value(0), Arithmetic(n)
    *lead, rows, order = x.type.shape
    if not isinstance(order, int) or order > MAX_ORDER or rows != order:
        raise Unsupported(
            f"matrices of {rows} rows and {order} columns; up to {MAX_ORDER} of each are supported"
        )
    batch = product(lead)
    x = reshape(n, x, (batch, order, order))
    result: Value = broadcast(n, scalar(n, 1, x), (batch,))
    for size in range(order, 0, -1):
        column = reshape(n, slice_(n, x, 2, 0, 1), (batch, size))
        best = a.Argmax(a.Abs(column), axis=1, keepdims=True)
        pivot = a.GatherElements(column, best, axis=1)
        moved = reshape(n, a.Gt(best, 0), (batch,))
        factor = reshape(n, pivot, (batch,))
        result = a.Mul(result, a.Select(moved, a.Neg(factor), factor))
        if size == 1:
            break
        # Exchange the first row and the pivot's row.
        others = n.emit(g.Iota(shape=(1, size - 1), axis=1, start=1))
        others = reshape(n, a.Select(a.Eq(others, best), 0, others), (batch, size - 1, 1))
        rest = slice_(n, x, 2, 1, size)
        top = a.GatherElements(
            rest, broadcast(n, reshape(n, best, (batch, 1, 1)), (batch, 1, size - 1)), axis=1
        )
        below = a.GatherElements(rest, broadcast(n, others, (batch, size - 1, size - 1)), axis=1)
        left = a.GatherElements(column, reshape(n, others, (batch, size - 1)), axis=1)
        ratio = a.Div(left, a.Select(a.Eq(pivot, scalar(n, 0, x)), 1, pivot))
        x = a.Sub(below, a.Mul(reshape(n, ratio, (batch, size - 1, 1)), top))
    return reshape(n, result, lead)
