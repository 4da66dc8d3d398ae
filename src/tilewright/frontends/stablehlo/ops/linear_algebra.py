"""Factorizations and triangular systems: StableHLO's own, and LAPACK's functions, which JAX calls for the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import f32, i32
from ..reading import bindings
from .table import CALLS, Unsupported, importer

if TYPE_CHECKING:
    from ..importer import Node


def _turned(n: Node, x: Value) -> Value:
    """The transposed matrices."""
    rank = x.type.rank
    return n.transpose(x, [*range(rank - 2), rank - 1, rank - 2])  # type: ignore[no-any-return]


def _wide(n: Node, x: Value) -> Value:
    """Numbers of 16 bits are calculated with in float32."""
    return n.cast(x, f32) if x.type.dtype.bits == 16 else x  # type: ignore[no-any-return]


def triangular_solve(n: Node, a: Value, b: Value, left: bool, lower: bool, unit: bool, transposed: bool) -> Value:
    """``op(a) x = b`` or, not `left`, ``x op(a) = b``."""
    if transposed == left:  # x a = b is a^T x^T = b^T
        a, lower = _turned(n, a), not lower
    b = b if left else _turned(n, b)
    x = n.emit(g.TriangularSolve(_wide(n, a), _wide(n, b), upper=not lower, unit_diagonal=unit))
    return n.cast(x if left else _turned(n, x), a.type.dtype)  # type: ignore[no-any-return]


def cholesky(n: Node, a: Value, lower: bool) -> Value:
    """The triangular factor of matrices, of which the same triangle is read; NaN where there is none."""
    y = n.emit(g.Cholesky(_wide(n, a if lower else _turned(n, a))))
    return n.cast(y if lower else _turned(n, y), a.type.dtype)  # type: ignore[no-any-return]


@importer("triangular_solve")
def _triangular_solve(n: Node) -> Value:
    a, b = n.inputs
    transposed = n.word("transpose_a") != "NO_TRANSPOSE"
    left, lower, unit = (bool(n.number(name)) for name in ("left_side", "lower", "unit_diagonal"))
    return triangular_solve(n, a, b, left, lower, unit, transposed)


@importer("cholesky")
def _cholesky(n: Node) -> Value:
    return cholesky(n, n.inputs[0], bool(n.number("lower")))


# -- LAPACK ------------------------------------------------------------------------------------------------------------------------


def _letter(n: Node, name: str) -> str:
    """An option such as ``uplo``, told as the number of a letter."""
    ir, *_ = bindings()
    options = ir.DictAttr(n.attr("mhlo.backend_config" if n.has("mhlo.backend_config") else "backend_config"))
    return chr(ir.IntegerAttr(options[name]).value & 0xFF)


def _lapack(name: str) -> Callable[[Callable[[Node], Any]], Callable[[Node], Any]]:
    """Register a function of LAPACK, for float32 and float64."""

    def register(function: Callable[[Node], Any]) -> Callable[[Node], Any]:
        for letter in "sd":
            CALLS[f"lapack_{letter}{name}_ffi"] = function
        return function

    return register


def _fine(n: Node, lead: Sequence[Dim]) -> Value:
    """``info`` of LAPACK: 0, nothing went wrong."""
    return n.broadcast(n.constant(0, i32), lead)  # type: ignore[no-any-return]


@_lapack("potrf")
def _potrf(n: Node) -> list[Value]:
    a = n.inputs[0]
    y = cholesky(n, a, _letter(n, "uplo") == "L")
    rank = a.type.rank
    failed = n.emit(g.ReduceAny(n.unary("isnan", y), axes=(rank - 2, rank - 1), keepdims=False))
    return [y, n.cast(failed, i32)]


@_lapack("trsm")
def _trsm(n: Node) -> Value:
    a, b, *_ = n.inputs
    left, lower, unit = (_letter(n, name) == letter for name, letter in (("side", "L"), ("uplo", "L"), ("diag", "U")))
    return triangular_solve(n, a, b, left, lower, unit, _letter(n, "trans_x") != "N")


@_lapack("getrf")
def _getrf(n: Node) -> list[Value]:
    a = n.inputs[0]
    y, pivots = n.emit(g.Lu(a))
    return [y, n.binary("add", n.cast(pivots, i32), 1), _fine(n, a.type.shape[:-2])]


@_lapack("geqrf")
def _geqrf(n: Node) -> Sequence[Value]:
    return list(n.emit(g.HouseholderQr(n.inputs[0])))


@_lapack("orgqr")
def _orgqr(n: Node) -> Value:
    """The first columns of the product of reflectors."""
    reflectors, tau = n.inputs
    *lead, rows, columns = reflectors.type.shape
    places = n.iota((rows, 1)), n.iota((1, columns), axis=1)
    one = n.cast(n.binary("eq", *places), reflectors.type.dtype)
    count = tau.type.shape[-1]
    used = n.slice(reflectors, [0] * reflectors.type.rank, [*lead, rows, count])
    return n.emit(g.Reflect(used, tau, n.broadcast(one, (*lead, rows, columns))))  # type: ignore[no-any-return]


@_lapack("syevd")
def _syevd(n: Node) -> list[Value]:
    """Vectors, values, info. The sign of a vector is the graph's choice."""
    a = n.inputs[0]
    values, vectors = n.emit(g.Eigh(a if _letter(n, "uplo") == "L" else _turned(n, a)))
    return [vectors, values, _fine(n, a.type.shape[:-2])]


@_lapack("gesdd")
def _gesdd(n: Node) -> list[Value]:
    """What is left of the operand, the singular values, u, v^T, info."""
    a, mode = n.inputs[0], _letter(n, "mode")
    if mode not in "AS":
        raise Unsupported(f"of LAPACK's gesdd the mode '{mode}'")
    u, s, v = n.emit(g.Svd(a, full=mode == "A"))
    return [a, s, u, v, _fine(n, a.type.shape[:-2])]
