"""Products of matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.types import i32
from .elementwise import cast, scalar
from .table import importer

if TYPE_CHECKING:
    from ..importer import Node


@importer("MatMul")
def _matmul(n: Node) -> Value:
    return n.emit(g.Matmul(n.value(0), n.value(1)))  # type: ignore[no-any-return]


def transposed(n: Node, x: Value) -> Value:
    """The last two dimensions swapped."""
    rank = x.type.rank
    return n.emit(g.Transpose(x, permutation=(*range(rank - 2), rank - 1, rank - 2)))  # type: ignore[no-any-return]


@importer("Gemm")
def _gemm(n: Node) -> Value:
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
    return n.emit(g.Einsum([n.value(k) for k in range(len(n.inputs))], equation=equation))  # type: ignore[no-any-return]


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
    return n.emit(g.Matmul(*factors))  # type: ignore[no-any-return]
