"""Factorizations of matrices, torch.linalg's functions of them, and solutions of equations with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....dialects import graph as g
from ....dialects.graph.base import broadcast_shapes
from ....dialects.graph.term import Term, loop
from ....ir.core import Value
from ....ir.symbolic import Dim, prove_le, smax
from ....ir.types import f64, i32, i64
from ...unsupported import Unsupported
from ..gradient_rules import with_gradient
from ..importer import Node
from ..registry import complex_importer, importer
from .arithmetic import widened


def term(n: Node, x: Value) -> Term:
    return Term(n.importer.builder, x)


def _eye(x: Term, lead: Sequence[Dim], rows: Dim, columns: Dim) -> Term:
    same = x.iota(rows).unsqueeze(-1).equals(x.iota(columns))
    return same.cast(x.dtype).broadcast((*lead, rows, columns))


def _identity(x: Term) -> Term:
    return _eye(x, x.shape[:-2], x.shape[-2], x.shape[-2])


def _triangle(x: Term, upper: bool, diagonal: int = 0) -> Term:
    return x.of(x.b(g.Triangular(x.value, upper=upper, diagonal=diagonal)))


def _rows(x: Term, count: Dim) -> Term:
    return _cut(x, -2, count)


def _cut(x: Term, axis: int, count: Dim) -> Term:
    """Return the first `count` slices along `axis`."""
    stops = list(x.shape)
    if stops[axis] == count:
        return x
    stops[axis] = count
    return x.of(x.b(g.Slice(x.value, starts=(0,) * len(stops), stops=tuple(stops), steps=(1,) * len(stops))))


def _matmul(a: Term, b: Term) -> Term:
    return a.of(a.b(g.Matmul(a.value, b.value)))


def _diagonal(x: Term) -> Term:
    rows, columns = x.shape[-2:]
    size = columns if prove_le(columns, rows) else rows
    picked = _cut(x, -2, size).along(x.iota(size).unsqueeze(-1), -1)
    return picked.reshape(picked.shape[:-1])


def _solve(a: Term, b: Term, upper: bool, unit: bool = False) -> Term:
    """Return ``a^-1 b`` for a triangular `a`; leading dimensions are broadcast."""
    lead = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (x.broadcast((*lead, *x.shape[-2:])) for x in (a, b))
    return a.of(a.b(g.TriangularSolve(a.value, b.value, upper=upper, unit_diagonal=unit)))


def _lu(x: Term) -> tuple[Term, Term]:
    packed, pivots = x.b.insert(g.Lu(x.value)).results
    return x.of(packed), x.of(pivots)


def _order(pivots: Term, rows: Dim) -> Term:
    """Return the source of each row of the permuted matrix: (…, rows), i64."""

    def step(j: Term, order: Term) -> Any:
        index, pivot = j.iota(rows), j.of(pivots.value).at(j, -1).unsqueeze(-1)
        at_step, at_pivot = order.at(j, -1).unsqueeze(-1), order.along(pivot, -1)
        return [index.equals(j).select(at_pivot, index.equals(pivot).select(at_step, order))], []

    start = pivots.iota(rows).broadcast((*pivots.shape[:-1], rows))
    (permutation,), _ = loop(pivots.b, pivots.iota(pivots.shape[-1]), [start], step)
    return permutation


def _lu_solve(packed: Term, pivots: Term, b: Term, adjoint: bool = False) -> Term:
    """Solve for the matrix whose elimination is given, or for its transpose."""
    lead = broadcast_shapes(packed.shape[:-2], b.shape[:-2])
    order = _order(pivots, packed.shape[-1]).broadcast((*lead, packed.shape[-1]))
    b = b.broadcast((*lead, *b.shape[-2:]))
    if not adjoint:
        b = b.along(order.unsqueeze(-1), -2)
        return _solve(packed, _solve(packed, b, upper=False, unit=True), upper=True)
    turned = packed.transpose()
    solution = _solve(turned, _solve(turned, b, upper=False), upper=True, unit=True)
    back = order.of(order.b.insert(g.Topk(order.value, k=order.shape[-1], axis=-1, largest=False)).results[1])
    return solution.along(back.unsqueeze(-1), -2)


def _pivots(x: Term) -> Term:
    """Return the pivots in LAPACK's numbering."""
    return (x + 1).cast(i32)


def _first(bad: Term) -> Term:
    """Return LAPACK's info: the number, from 1, of the first element of the last dimension that is bad, 0 if
    none is.
    """
    size = bad.shape[-1]
    if size == 0:
        return bad.number(0, i32).broadcast(bad.shape[:-1])
    place = bad.select(bad.iota(size), bad.number(size, i64))
    least = place.of(place.b(g.ReduceMin(place.value, axes=(-1,), keepdims=False)))
    return least.equals(least.number(size)).select(0, least + 1).cast(i32)


def _singular(packed: Term) -> Term:
    return _first(_diagonal(packed).equals(0))


def check_info(n: Node, info: Term, message: str) -> None:
    """Add a check that stops the run unless all of `info` is 0."""
    fine = info.equals(0).value
    axes = tuple(range(fine.type.rank))
    holds = n.emit(g.ReduceAll(fine, axes=axes, keepdims=False)) if axes else fine
    n.importer.builder.insert(g.Check(holds, message=f"{n.location}: {message}"))


@importer("aten._linalg_check_errors.default")
def check_errors(n: Node, info: Value, function: str, *, is_matrix: bool) -> tuple[()]:
    check_info(n, term(n, info), f"{function}: a matrix is singular or not positive definite")
    return ()


# -- Elimination ---------------------------------------------------------------------------------------------


def _sign_of_order(pivots: Term, like: Term) -> Term:
    """Return 1 for an even number of exchanges, else -1."""
    index = pivots.iota(pivots.shape[-1])
    signs = pivots.equals(index).select(like.number(1), -1)
    return signs.of(signs.b(g.ReduceProd(signs.value, axes=(-1,))))


@importer("aten._linalg_det.default")
def det(n: Node, a: Value) -> tuple[Value, ...]:
    packed, pivots = _lu(term(n, a))
    product = packed.of(packed.b(g.ReduceProd(_diagonal(packed).value, axes=(-1,))))
    return (product * _sign_of_order(pivots, packed)).value, packed.value, _pivots(pivots).value


@importer("aten._linalg_slogdet.default")
def slogdet(n: Node, a: Value) -> tuple[Value, ...]:
    packed, pivots = _lu(term(n, a))
    diagonal = _diagonal(packed)
    signs = packed.of(packed.b(g.ReduceProd(diagonal.unary("sign").value, axes=(-1,))))
    size = diagonal.abs().unary("log").sum(-1)
    return (signs * _sign_of_order(pivots, packed)).value, size.value, packed.value, _pivots(pivots).value


@importer("aten.linalg_inv_ex.default")
def inverse(n: Node, a: Value, *, check_errors: bool = False) -> tuple[Value, ...]:
    x = term(n, a)
    packed, pivots = _lu(x)
    info = _singular(packed)
    if check_errors:
        check_info(n, info, "linalg.inv: a matrix is singular")
    return _lu_solve(packed, pivots, _identity(x)).value, info.value


@importer("aten.linalg_lu_factor_ex.default")
def lu_factor(n: Node, a: Value, *, pivot: bool = True, check_errors: bool = False) -> tuple[Value, ...]:
    if not pivot:
        raise Unsupported("elimination without exchange of rows")
    packed, pivots = _lu(term(n, a))
    info = _singular(packed)
    if check_errors:
        check_info(n, info, "linalg.lu_factor: a matrix is singular")
    return packed.value, _pivots(pivots).value, info.value


def _unpacked(packed: Term, pivots: Term) -> tuple[Value, ...]:
    rows = packed.shape[-2]
    inner = pivots.shape[-1]
    order = _order(pivots, rows)
    places = packed.iota(rows).unsqueeze(-1).equals(order.unsqueeze(-2)).cast(packed.dtype)
    left = _cut(packed, -1, inner)
    lower = _triangle(left, False, -1) + _eye(packed, packed.shape[:-2], rows, inner)
    return places.value, lower.value, _triangle(_rows(packed, inner), True).value


@importer("aten.linalg_lu.default")
def lu(n: Node, a: Value, *, pivot: bool = True) -> tuple[Value, ...]:
    if not pivot:
        raise Unsupported("elimination without exchange of rows")
    return _unpacked(*_lu(term(n, a)))


@importer("aten.lu_unpack.default")
def lu_unpack(
    n: Node, packed: Value, pivots: Value, data: bool = True, order: bool = True
) -> tuple[Value, ...]:
    factors = list(_unpacked(term(n, packed), term(n, pivots).cast(i64) - 1))
    empty = term(n, packed).number(0).broadcast((0,)).value
    return factors[0] if order else empty, *(factors[1:] if data else (empty, empty))


@importer("aten.linalg_lu_solve.default")
def lu_solve(
    n: Node, packed: Value, pivots: Value, b: Value, *, left: bool = True, adjoint: bool = False
) -> Value:
    x, order, rhs = term(n, packed), term(n, pivots).cast(i64) - 1, term(n, b)
    if left:
        return _lu_solve(x, order, rhs, adjoint).value
    return _lu_solve(x, order, rhs.transpose(), not adjoint).transpose().value


@importer("aten._linalg_solve_ex.default")
def solve(n: Node, a: Value, b: Value, *, left: bool = True, check_errors: bool = False) -> tuple[Value, ...]:
    x, rhs = term(n, a), term(n, b)
    vector = len(rhs.shape) == 1 or rhs.shape == x.shape[:-1]
    rhs = rhs.unsqueeze(-1) if vector else rhs
    packed, pivots = _lu(x)
    info = _singular(packed)
    if check_errors:
        check_info(n, info, "linalg.solve: a matrix is singular")
    if left:
        solution = _lu_solve(packed, pivots, rhs)
    else:
        solution = _lu_solve(packed, pivots, rhs.transpose(), adjoint=True).transpose()
    return n.reshape(solution.value, n.result_shape(0)), packed.value, _pivots(pivots).value, info.value


# -- Triangles and Cholesky ----------------------------------------------------------------------------------


@importer("aten.linalg_solve_triangular.default")
def solve_triangular(
    n: Node, a: Value, b: Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Value:
    x, rhs = term(n, a), term(n, b)
    if left:
        return _solve(x, rhs, upper, unitriangular).value
    return _solve(x.transpose(), rhs.transpose(), not upper, unitriangular).transpose().value


@importer("aten.triangular_solve.default")
def triangular_solve(
    n: Node, b: Value, a: Value, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Value, ...]:
    x = term(n, a)
    solution = _solve(x.transpose() if transpose else x, term(n, b), upper != transpose, unitriangular)
    return solution.value, n.broadcast(a, n.result_shape(1))


def _cholesky(n: Node, a: Value, upper: bool) -> tuple[Term, Term]:
    """Return the factor and LAPACK's info."""
    x = term(n, a)
    lower = x.of(x.b(g.Cholesky((x.transpose() if upper else x).value)))
    info = _first(_diagonal(lower).unary("isnan"))
    return (lower.transpose() if upper else lower), info


@importer("aten.linalg_cholesky_ex.default")
def cholesky_ex(n: Node, a: Value, *, upper: bool = False, check_errors: bool = False) -> tuple[Value, ...]:
    factor, info = _cholesky(n, a, upper)
    if check_errors:
        check_info(n, info, "linalg.cholesky: a matrix is not positive definite")
    return factor.value, info.value


@importer("aten.cholesky.default")
def cholesky(n: Node, a: Value, upper: bool = False) -> Value:
    factor, info = _cholesky(n, a, upper)
    check_info(n, info, "cholesky: a matrix is not positive definite")
    return factor.value


def _cholesky_solve(b: Term, factor: Term, upper: bool) -> Term:
    lower = factor.transpose() if upper else factor
    return _solve(lower.transpose(), _solve(lower, b, False), True)


@importer("aten.cholesky_solve.default")
def cholesky_solve(n: Node, b: Value, factor: Value, upper: bool = False) -> Value:
    return _cholesky_solve(term(n, b), term(n, factor), upper).value


@importer("aten.cholesky_inverse.default")
def cholesky_inverse(n: Node, factor: Value, upper: bool = False) -> Value:
    x = term(n, factor)
    return _cholesky_solve(_identity(x), x, upper).value


# -- Orthogonal factors --------------------------------------------------------------------------------------


@importer("aten.geqrf.default")
def geqrf(n: Node, a: Value) -> tuple[Value, ...]:
    return tuple(n.emit_all(g.HouseholderQr(a)))


def _reflected(reflectors: Term, tau: Term, x: Term, transposed: bool = False) -> Term:
    return x.of(x.b(g.Reflect(reflectors.value, tau.value, x.value, transposed=transposed)))


@importer("aten.linalg_householder_product.default", "aten.orgqr.default")
def householder_product(n: Node, a: Value, tau: Value) -> Value:
    x = term(n, a)
    *lead, rows, columns = x.shape
    return _reflected(x, term(n, tau), _eye(x, lead, rows, columns)).value


@importer("aten.ormqr.default")
def ormqr(n: Node, a: Value, tau: Value, x: Value, left: bool = True, transpose: bool = False) -> Value:
    reflectors, scales, factor = term(n, a), term(n, tau), term(n, x)
    if left:
        return _reflected(reflectors, scales, factor, transpose).value
    return _reflected(reflectors, scales, factor.transpose(), not transpose).transpose().value


@importer("aten.linalg_qr.default")
def qr(n: Node, a: Value, mode: str = "reduced") -> tuple[Value, ...]:
    x = term(n, a)
    packed, tau = (x.of(y) for y in x.b.insert(g.HouseholderQr(a)).results)
    *lead, rows, _ = x.shape
    inner = tau.shape[-1]
    height = rows if mode == "complete" else inner
    upper = _triangle(_rows(packed, height), True).value
    if mode == "r":
        return n.broadcast(n.constant(0, x.dtype), n.result_shape(0)), upper
    return _reflected(packed, tau, _eye(x, lead, rows, height)).value, upper


@importer("aten._linalg_eigh.default")
def eigh(n: Node, a: Value, uplo: str = "L", compute_v: bool = True) -> tuple[Value, ...]:
    x = term(n, a)
    values, vectors = n.emit_all(g.Eigh((x if uplo.upper() == "L" else x.transpose()).value))
    return values, vectors if compute_v else n.broadcast(n.constant(0, x.dtype), n.result_shape(1))


@complex_importer("aten.linalg_eig.default")
def eig(*_: object) -> Value:
    raise Unsupported(
        "eigenvalues of matrices that are not symmetric; of symmetric ones take torch.linalg.eigh"
    )


@importer("aten._linalg_svd.default")
def svd(
    n: Node, a: Value, full_matrices: bool = False, compute_uv: bool = True, **_: object
) -> tuple[Value, ...]:
    u, s, vt = n.emit_all(g.Svd(a, full=full_matrices and compute_uv))
    if compute_uv:
        return u, s, vt
    return tuple(
        n.broadcast(n.constant(0, s.type.dtype), n.result_shape(k)) if k != 1 else s for k in range(3)
    )


@importer("aten.linalg_pinv.atol_rtol_tensor")
def pinv(
    n: Node, a: Value, *, atol: Value | None = None, rtol: Value | None = None, hermitian: bool = False
) -> Value:
    x = term(n, a)
    if any(d == 0 for d in x.shape):
        return n.broadcast(n.constant(0, x.dtype), n.result_shape())
    if hermitian:
        s, v = (x.of(y) for y in x.b.insert(g.Eigh(a)).results)
        u, sizes = v, s.abs()
    else:
        u, s, vt = (x.of(y) for y in x.b.insert(g.Svd(a)).results)
        v, sizes = vt.transpose(), s
    limit = x.number(0) if atol is None else term(n, atol).cast(x.dtype)
    if rtol is not None or atol is None:
        largest = x.number(smax(*x.shape[-2:])) * (2.0**-52 if x.dtype is f64 else 2.0**-23)
        share = largest if rtol is None else term(n, rtol).cast(x.dtype)
        top = share * sizes.max(-1)
        limit = top if atol is None else limit.of(limit.b(g.Max(limit.value, top.value)))
    kept = sizes > (limit.unsqueeze(-1) if limit.shape else limit)
    inverse = kept.select(1 / kept.select(s, 1), 0)
    return with_gradient(n, a, _matmul(v * inverse.unsqueeze(-2), u.transpose()).value, _of_pinv)


def _of_pinv(a: Term, p: Term, dp: Term) -> Term:
    """The gradient of a pseudoinverse for matrices of the same rank (Golub and Pereyra, 1973)."""
    t, g = p.transpose(), dp.transpose()
    left = g - _matmul(a, _matmul(p, g))
    right = g - _matmul(_matmul(g, p), a)
    inside = _matmul(_matmul(t, dp), t)
    return _matmul(_matmul(left, p), t) + _matmul(t, _matmul(p, right)) - inside


@importer("aten.linalg_matrix_exp.default")
def matrix_exp(n: Node, a: Value) -> Value:
    """Return the exponential: Taylor's series of the matrix divided by a power of two that makes it small;
    the result is squared as often.
    """
    x = term(n, widened(n, a))
    if any(d == 0 for d in x.shape):
        return a
    degree, squarings = (24, 40) if x.dtype is f64 else (18, 24)
    norm = x.abs().sum(-2).max(-1)
    halvings = (norm * 0.5).unary("log2").unary("ceil")
    halvings = halvings.of(n.emit(g.Clamp(halvings.value, minimum=0.0, maximum=float(squarings))))
    small = x * (-halvings).unary("exp2").unsqueeze(-1, -2)
    identity = _identity(x)
    total = identity + small * (1.0 / degree)
    for k in range(degree - 1, 0, -1):
        total = identity + _matmul(small, total) * (1.0 / k)

    def step(j: Term, y: Term) -> Any:
        left = j.cast(x.dtype) < j.of(halvings.value)
        return [(left.unsqueeze(-1, -2)).select(_matmul(y, y), y)], []

    (squared,), _ = loop(x.b, x.iota(squarings), [total], step)
    return n.cast(squared.value, a.type.dtype)
