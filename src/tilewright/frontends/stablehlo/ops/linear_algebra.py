"""Factorizations and triangular systems, row after row: `graph.scan` over matrices of any number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import i32
from .control_flow import scan_over
from .table import CALLS, importer

if TYPE_CHECKING:
    from ..importer import Node


def _stack(n: Node, x: Value) -> tuple[Value, list[Dim]]:
    """Matrices (count, rows, columns), and the leading dimensions."""
    lead = list(x.type.shape[:-2])
    size: Dim = 1
    for d in lead:
        size = size * d
    return n.reshape(x, (size, *x.type.shape[-2:])), lead


def _at(n: Node, size: Dim, place: Value, rank: int, axis: int) -> Value:
    """Whether an index along `axis` of `rank` dimensions is `place`."""
    return n.reshape(n.binary("eq", n.iota((size,)), place), [size if d == axis else 1 for d in range(rank)])  # type: ignore[no-any-return]


def solve_triangular(n: Node, a: Value, b: Value, lower: bool, unit: bool) -> Value:
    """``x`` with ``a x = b`` for matrices (count, rows, rows) and (count, rows, columns); only one triangle of `a` is read."""
    count, size, columns = b.type.shape
    rows = n.transpose(a, [1, 0, 2])
    right = n.transpose(b, [1, 0, 2])

    def step(x: Value, row: Value, b: Value, k: Value) -> tuple[list[Value], list[Value]]:
        index = n.iota((size,))
        inside = n.binary("lt" if lower else "gt", index, k)
        known = n.select(n.reshape(inside, (1, size)), row, n.like(0, row))
        rest = n.binary("sub", b, n.reshape(n.emit(g.Matmul(n.reshape(known, (count, 1, size)), x)), (count, columns)))
        if not unit:
            pivot = n.emit(g.Gather(row, n.reshape(k, (1,)), axis=1))
            rest = n.binary("div", rest, pivot)
        here = _at(n, size, k, 3, 1)
        return [n.select(here, n.reshape(rest, (count, 1, columns)), x)], []

    zero = n.broadcast(n.like(0, b), b.type.shape)
    return scan_over(n, [zero], [rows, right], step, backward=not lower)[0]


def triangular_solve(n: Node, a: Value, b: Value, left: bool, lower: bool, unit: bool, transposed: bool) -> Value:
    """``op(a) x = b`` or, not `left`, ``x op(a) = b``."""
    (a, _), (b, lead) = _stack(n, a), _stack(n, b)
    if transposed == left:  # x a = b is a^T x^T = b^T
        a, lower = n.transpose(a, [0, 2, 1]), not lower
    b = b if left else n.transpose(b, [0, 2, 1])
    x = solve_triangular(n, a, b, lower, unit)
    x = x if left else n.transpose(x, [0, 2, 1])
    return n.reshape(x, (*lead, *x.type.shape[1:]))  # type: ignore[no-any-return]


def cholesky(n: Node, a: Value) -> Value:
    """The lower triangular factor of matrices (count, rows, rows), of which the lower triangle is read; NaN where there is none."""
    count, size, _ = a.type.shape
    columns = n.transpose(a, [2, 0, 1])

    def step(factor: Value, column: Value, k: Value) -> tuple[list[Value], list[Value]]:
        row = n.emit(g.Gather(factor, n.reshape(k, (1,)), axis=1))
        done = n.reshape(n.emit(g.Matmul(factor, n.transpose(row, [0, 2, 1]))), (count, size))
        rest = n.binary("sub", column, done)
        pivot = n.unary("sqrt", n.emit(g.Gather(rest, n.reshape(k, (1,)), axis=1)))
        index = n.reshape(n.iota((size,)), (1, size))
        found = n.select(n.binary("gt", index, k), n.binary("div", rest, pivot), n.like(0, rest))
        found = n.select(n.binary("eq", index, k), pivot, found)
        return [n.select(_at(n, size, k, 3, 2), n.reshape(found, (count, size, 1)), factor)], []

    zero = n.broadcast(n.like(0, a), a.type.shape)
    return scan_over(n, [zero], [columns], step)[0]


def lu(n: Node, a: Value) -> tuple[Value, Value]:
    """Of matrices (count, rows, columns) the factors in one matrix, and which row each was exchanged with (count, steps), i64."""
    count, rows, columns = a.type.shape
    steps = rows if not isinstance(columns, int) or (isinstance(rows, int) and rows <= columns) else columns

    def step(x: Value, _: Value, k: Value) -> tuple[list[Value], list[Value]]:
        number = n.reshape(k, (1,))
        column = n.reshape(n.emit(g.Gather(x, number, axis=2)), (count, rows))
        index = n.reshape(n.iota((rows,)), (1, rows))
        size = n.select(n.binary("ge", index, k), n.unary("abs", column), n.like(-1, column))
        pivot = n.emit(g.Argmax(size, axis=1, keepdims=True))
        # Rows k and pivot change places.
        place = n.select(n.binary("eq", index, k), pivot, n.select(n.binary("eq", index, pivot), k, index))
        order = n.broadcast(n.reshape(place, (count, rows, 1)), (count, rows, columns))
        x = n.emit(g.GatherElements(x, order, axis=1))
        row = n.emit(g.Gather(x, number, axis=1))
        column = n.emit(g.Gather(x, number, axis=2))
        below = n.reshape(n.binary("gt", n.iota((rows,)), k), (1, rows, 1))
        corner = n.emit(g.Gather(row, number, axis=2))
        factors = n.binary("div", column, n.select(n.binary("eq", corner, 0), n.like(1, corner), corner))
        factors = n.select(below, factors, n.like(0, factors))
        after = n.reshape(n.binary("gt", n.iota((columns,)), k), (1, 1, columns))
        x = n.binary("sub", x, n.binary("mul", factors, n.select(after, row, n.like(0, row))))
        here = n.binary("and", below, _at(n, columns, k, 3, 2))
        return [n.select(here, factors, x)], [n.reshape(pivot, (count,))]

    x, pivots = scan_over(n, [a], [n.iota((steps,))], step)
    return x, n.transpose(pivots, [1, 0])


@importer("triangular_solve")
def _triangular_solve(n: Node) -> Value:
    a, b = n.inputs
    transposed = n.word("transpose_a") != "NO_TRANSPOSE"
    left, lower, unit = (bool(n.number(name)) for name in ("left_side", "lower", "unit_diagonal"))
    return triangular_solve(n, a, b, left, lower, unit, transposed)


@importer("cholesky")
def _cholesky(n: Node) -> Value:
    x = n.inputs[0]
    a, lead = _stack(n, x)
    lower = bool(n.number("lower"))
    y = cholesky(n, a if lower else n.transpose(a, [0, 2, 1]))
    y = y if lower else n.transpose(y, [0, 2, 1])
    return n.reshape(y, (*lead, *y.type.shape[1:]))  # type: ignore[no-any-return]


# -- LAPACK's functions, which JAX calls for the CPU ------------------------------------------------------------------------------


def _letter(n: Node, name: str) -> str:
    """An option such as ``uplo``, told as the number of a letter."""
    from ..reading import bindings

    ir, *_ = bindings()
    options = ir.DictAttr(n.attr("mhlo.backend_config" if n.has("mhlo.backend_config") else "backend_config"))
    return chr(ir.IntegerAttr(options[name]).value & 0xFF)


def _lapack(*names: str) -> Callable[[Callable[[Node], Any]], Callable[[Node], Any]]:
    """Register functions of LAPACK for float32 and float64."""

    def register(function: Callable[[Node], Any]) -> Callable[[Node], Any]:
        for name in names:
            for letter in "sd":
                CALLS[f"lapack_{letter}{name}_ffi"] = function
        return function

    return register


def _fine(n: Node, lead: Sequence[Dim]) -> Value:
    """``info`` of LAPACK: 0, nothing went wrong."""
    return n.broadcast(n.constant(0, i32), lead)  # type: ignore[no-any-return]


@_lapack("potrf")
def _potrf(n: Node) -> list[Value]:
    a, lead = _stack(n, n.inputs[0])
    lower = _letter(n, "uplo") == "L"
    y = cholesky(n, a if lower else n.transpose(a, [0, 2, 1]))
    size = y.type.shape[-1]
    failed = n.emit(g.ReduceAny(n.unary("isnan", y), axes=(1, 2), keepdims=False))
    y = y if lower else n.transpose(y, [0, 2, 1])
    return [n.reshape(y, (*lead, size, size)), n.reshape(n.cast(failed, i32), lead)]


@_lapack("trsm")
def _trsm(n: Node) -> Value:
    a, b, *_ = n.inputs
    left, lower, unit = (_letter(n, name) == letter for name, letter in (("side", "L"), ("uplo", "L"), ("diag", "U")))
    return triangular_solve(n, a, b, left, lower, unit, _letter(n, "trans_x") != "N")


@_lapack("getrf")
def _getrf(n: Node) -> list[Value]:
    a, lead = _stack(n, n.inputs[0])
    y, pivots = lu(n, a)
    pivots = n.binary("add", n.cast(pivots, i32), 1)
    return [n.reshape(y, (*lead, *y.type.shape[1:])), n.reshape(pivots, (*lead, pivots.type.shape[-1])), _fine(n, lead)]
