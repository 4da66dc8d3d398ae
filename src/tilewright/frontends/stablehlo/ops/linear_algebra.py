"""Factorizations and triangular systems: StableHLO's operations, and the LAPACK functions that JAX calls on
CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim, prove_le
from ....ir.types import f32, i32
from ...complex import Complex, each
from ...unsupported import Unsupported
from ..reading import bindings
from ..registry import importer
from .control_flow import scan_over

if TYPE_CHECKING:
    from ..node import Node, Tensor


def _turned(n: Node, x: Tensor) -> Tensor:
    """Transpose matrices."""
    rank = x.type.rank
    return n.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


def _adjoint(n: Node, x: Value | Complex) -> Any:
    """Transpose matrices, and conjugate complex ones."""
    return _turned(n, n.math.conj(x) if isinstance(x, Complex) else x)


def _wide(n: Node, x: Value) -> Value:
    """Convert numbers of 16 bits to float32 for the computation."""
    return n.cast(x, f32) if x.type.dtype.bits == 16 else x


def triangular_solve(
    n: Node, a: Value | Complex, b: Any, left: bool, lower: bool, unit: bool, form: str
) -> Any:
    """Solve ``op(a) x = b`` or, not `left`, ``x op(a) = b``. `form` is LAPACK's letter of ``op``: N for none,
    T for the transpose, C for the conjugate transpose.
    """
    if form == "C" and isinstance(a, Complex):
        a = n.math.conj(a)
    if (form != "N") == left:  # x a = b is a^T x^T = b^T
        a, lower = _turned(n, a), not lower
    b = b if left else _turned(n, b)
    x: Value | Complex
    if isinstance(a, Complex):
        x = _complex_solve(n, a, b, lower, unit)
    else:
        x = n.emit(g.TriangularSolve(_wide(n, a), _wide(n, b), upper=not lower, unit_diagonal=unit))
    return n.cast(x if left else _turned(n, x), a.type.dtype)


def cholesky(n: Node, a: Value | Complex, lower: bool) -> Any:
    """Return the Cholesky factor. Only the triangle of the result is read; a matrix that has no factor gives
    NaN.
    """
    a = a if lower else _adjoint(n, a)
    y: Value | Complex
    if isinstance(a, Complex):
        whole = n.emit(g.Cholesky(_blocks(n, a)))
        rank, shape = whole.type.rank, whole.type.shape
        y = _rows(n, n.slice(whole, [0] * rank, shape, [*[1] * (rank - 1), 2]))
    else:
        y = n.emit(g.Cholesky(_wide(n, a)))
    return n.cast(y if lower else _adjoint(n, y), a.type.dtype)


@importer("triangular_solve", complex="whole")
def _triangular_solve(n: Node) -> Any:
    a, b = n.inputs
    left, lower, unit = (bool(n.number(name)) for name in ("left_side", "lower", "unit_diagonal"))
    form = {"NO_TRANSPOSE": "N", "TRANSPOSE": "T", "ADJOINT": "C"}[n.word("transpose_a")]
    return triangular_solve(n, a, b, left, lower, unit, form)


@importer("cholesky", complex="whole")
def _cholesky(n: Node) -> Any:
    return cholesky(n, n.inputs[0], bool(n.number("lower")))


# Complex matrices as real ones of twice the size: x + iy is the block [[x, -y], [y, x]]. A triangular matrix
# with a real diagonal stays triangular.


def _columns(n: Node, a: Complex) -> Value:
    """Return the first columns of the blocks: (2 rows, columns)."""
    *lead, rows, columns = a.type.shape
    parts = [n.reshape(part, (*lead, rows, 1, columns)) for part in (a.real, a.imaginary)]
    return n.reshape(n.concat(parts, len(lead) + 1), (*lead, 2 * rows, columns))


def _rows(n: Node, x: Value) -> Complex:
    """Undo `_columns`."""
    *lead, rows, columns = x.type.shape
    steps = [*[1] * len(lead), 2, 1]
    return Complex(*(n.slice(x, [*[0] * len(lead), k, 0], [*lead, rows, columns], steps) for k in (0, 1)))


def _blocks(n: Node, a: Complex) -> Value:
    *lead, rows, columns = a.type.shape
    turned = Complex(n.unary("neg", a.imaginary), a.real)
    parts = [n.reshape(_columns(n, part), (*lead, 2 * rows, columns, 1)) for part in (a, turned)]
    return n.reshape(n.concat(parts, len(lead) + 2), (*lead, 2 * rows, 2 * columns))


def _complex_solve(n: Node, a: Complex, b: Complex, lower: bool, unit: bool) -> Complex:
    """Solve after dividing the rows of `a` and `b` by the diagonal of `a`, which becomes 1."""
    size, axis = a.type.shape[-1], a.type.rank - 1
    here = n.binary("eq", n.iota((size, 1)), n.iota((1, size), axis=1))

    def diagonal(part: Value) -> Value:
        kept = n.select(here, part, n.like(0, part))
        return n.emit(g.ReduceSum(kept, axes=(axis,), keepdims=True))

    if not unit:
        scale = each(diagonal, a)
        a, b = n.binary("div", a, scale), n.binary("div", b, scale)
    a = Complex(a.real, n.select(here, n.like(0, a.imaginary), a.imaginary))
    return _rows(
        n, n.emit(g.TriangularSolve(_blocks(n, a), _columns(n, b), upper=not lower, unit_diagonal=True))
    )


def _complex_lu(n: Node, a: Complex) -> tuple[Complex, Value]:
    """Do the same as `graph.lu`, column by column. The pivot is the element with the largest sum of its
    parts' magnitudes.
    """
    *lead, rows, columns = a.type.shape
    rank = a.type.rank
    count = rows if prove_le(rows, columns) else columns
    down, right = n.iota((rows, 1)), n.iota((1, columns), axis=1)

    def body(real: Value, imaginary: Value, j: Value) -> tuple[list[Value], list[Value]]:
        def chosen(where: Value, x: Complex, axis: int) -> Complex:
            def one(part: Value) -> Value:
                kept = n.select(where, part, n.like(0, part))
                return n.emit(g.ReduceSum(kept, axes=(axis,), keepdims=True))

            return each(one, x)

        at_row, at_column = n.binary("eq", down, j), n.binary("eq", right, j)
        x = Complex(real, imaginary)
        column = chosen(at_column, x, rank - 1)
        size = n.binary("add", n.unary("abs", column.real), n.unary("abs", column.imaginary))
        size = n.select(n.binary("lt", down, j), n.like(-1, size), size)
        pivot = n.emit(g.Argmax(size, axis=rank - 2, keepdims=True))
        order = n.select(at_row, pivot, n.select(n.binary("eq", down, pivot), j, down))
        order = n.broadcast(order, (*lead, rows, columns))
        x = each(lambda part: n.emit(g.GatherElements(part, order, axis=rank - 2)), x)
        row, column = chosen(at_row, x, rank - 2), chosen(at_column, x, rank - 1)
        divisor = chosen(at_column, row, rank - 1)
        whole = n.binary("ne", divisor, n.math.number(0, divisor))
        column = n.binary("div", column, n.select(whole, divisor, n.math.number(1, divisor)))
        below, behind = n.binary("gt", down, j), n.binary("gt", right, j)
        column, row = (n.select(w, y, n.math.number(0, y)) for w, y in ((below, column), (behind, row)))
        rest = n.binary("sub", x, n.binary("mul", column, row))
        y = n.select(n.binary("and", at_column, below), column, rest)
        return [y.real, y.imaginary], [n.reshape(pivot, lead)]

    real, imaginary, pivots = scan_over(n, [a.real, a.imaginary], [n.iota((count,))], lambda *v: body(*v[:3]))
    return Complex(real, imaginary), n.transpose(pivots, [*range(1, pivots.type.rank), 0])


def _letter(n: Node, name: str) -> str:
    """Return an option such as ``uplo``, which is stored as the code of a letter."""
    ir, *_ = bindings()
    options = ir.DictAttr(n.attr("mhlo.backend_config" if n.has("mhlo.backend_config") else "backend_config"))
    return chr(ir.IntegerAttr(options[name]).value & 0xFF)


def _lapack(name: str, letters: str = "sd") -> Callable[[Callable[[Node], Any]], Callable[[Node], Any]]:
    """Register a LAPACK function for float32 and float64; with `letters` "sdcz" for complex numbers, too."""
    return importer(*(f"lapack_{letter}{name}_ffi" for letter in letters), dialect="custom_call")


def _fine(n: Node, lead: Sequence[Dim]) -> Value:
    """Return LAPACK's ``info`` for success: 0."""
    return n.broadcast(n.constant(0, i32), lead)


@_lapack("potrf", "sdcz")
def _potrf(n: Node) -> list[Any]:
    a = n.inputs[0]
    y = cholesky(n, a, _letter(n, "uplo") == "L")
    rank = a.type.rank
    broken = n.unary("isnan", y.real if isinstance(y, Complex) else y)
    failed = n.emit(g.ReduceAny(broken, axes=(rank - 2, rank - 1), keepdims=False))
    return [y, n.cast(failed, i32)]


@_lapack("trsm", "sdcz")
def _trsm(n: Node) -> Any:
    a, b, *_ = n.inputs
    left, lower, unit = (
        _letter(n, name) == letter for name, letter in (("side", "L"), ("uplo", "L"), ("diag", "U"))
    )
    return triangular_solve(n, a, b, left, lower, unit, _letter(n, "trans_x"))


@_lapack("getrf", "sdcz")
def _getrf(n: Node) -> list[Any]:
    a = n.inputs[0]
    y, pivots = _complex_lu(n, a) if isinstance(a, Complex) else n.emit_all(g.Lu(a))
    return [y, n.binary("add", n.cast(pivots, i32), 1), _fine(n, a.type.shape[:-2])]


@_lapack("geqrf")
def _geqrf(n: Node) -> Sequence[Value]:
    return n.emit_all(g.HouseholderQr(n.inputs[0]))


@_lapack("orgqr")
def _orgqr(n: Node) -> Value:
    """Return the first columns of the product of reflectors."""
    reflectors, tau = n.inputs
    *lead, rows, columns = reflectors.type.shape
    places = n.iota((rows, 1)), n.iota((1, columns), axis=1)
    identity = n.cast(n.binary("eq", *places), reflectors.type.dtype)
    count = tau.type.shape[-1]
    used = n.slice(reflectors, [0] * reflectors.type.rank, [*lead, rows, count])
    return n.emit(g.Reflect(used, tau, n.broadcast(identity, (*lead, rows, columns))))


@_lapack("syevd")
def _syevd(n: Node) -> list[Value]:
    """Return vectors, values and info. The sign of a vector is the one that the graph operator chooses."""
    a = n.inputs[0]
    values, vectors = n.emit_all(g.Eigh(a if _letter(n, "uplo") == "L" else _turned(n, a)))
    return [vectors, values, _fine(n, a.type.shape[:-2])]


@_lapack("gesdd", "sdcz")
def _gesdd(n: Node) -> list[Any]:
    """Return the destroyed operand (here: the operand), the singular values, u, v^T and info."""
    a, mode = n.inputs[0], _letter(n, "mode")
    info = _fine(n, a.type.shape[:-2])
    if mode == "N":  # u and v are not read
        values = n.emit_all(g.Svd(_blocks(n, a) if isinstance(a, Complex) else a, full=False))[1]

        def zeros(k: int) -> Any:
            shape = [d or 0 for d in n.shape(k)]
            return each(lambda part: n.broadcast(n.like(0, part), shape), a)

        values = _each_second(n, values) if isinstance(a, Complex) else values
        return [a, values, zeros(2), zeros(3), info]
    if mode not in "AS" or isinstance(a, Complex):
        raise Unsupported(f"mode '{mode}' of LAPACK's gesdd{' for complex numbers' * isinstance(a, Complex)}")
    u, s, v = n.emit_all(g.Svd(a, full=mode == "A"))
    return [a, s, u, v, info]


def _each_second(n: Node, values: Value) -> Value:
    """Return every second value of a matrix of blocks, which has each value twice."""
    *lead, _ = shape = values.type.shape
    return n.slice(values, [0] * len(shape), shape, [*[1] * len(lead), 2])
