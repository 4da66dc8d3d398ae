"""Factorizations of matrices in the last two dimensions, as loops over columns or over rounds of rotations.

Each step works on the whole matrix with elementwise computations and sums, in parallel over batch and matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import GradientError
from ...ir.builder import Builder
from ...ir.core import Attr, IRError, Operand, Value, operation
from ...ir.interpreter import Array
from ...ir.symbolic import Dim, prove_eq, prove_le, smin
from ...ir.types import TensorType, Type, f64, i64
from .base import Adjoint, GraphOp, tensor_type
from .operands import check_rank, check_same_type, check_shape, exceeds
from .reduce import Argmax, Topk
from .shape import Pad, Slice
from .term import Term, loop


def _matrix(op: GraphOp, x: Value, square: bool = False) -> TensorType:
    t = tensor_type(x)
    if t.rank < 2 or not t.dtype.is_float or t.dtype.bits < 32:
        raise IRError(f"needs matrices of f32 or f64, got {t}", op)
    if square and not prove_eq(t.shape[-1], t.shape[-2]):
        raise IRError(f"needs square matrices, got {t.shape}", op)
    return t


def _inner(op: GraphOp, x: TensorType) -> Dim:
    """The smaller side of a matrix."""
    m, n = x.shape[-2:]
    return m if prove_le(m, n) else n if prove_le(n, m) else smin(m, n)


def _last(stacked: Term) -> Term:
    """The slices that a loop stacked, with the steps' dimension moved to the end."""
    rank = len(stacked.shape)
    return stacked.transpose([*range(1, rank), 0])


def _each_matrix(function: Callable[..., Sequence[Array]], x: Array, *others: Array) -> Any:
    """Apply `function` to every matrix of a batch in float64; return the stacked results, as a list if there
    are several.
    """
    lead = x.shape[:-2]
    flat = [y.reshape(-1, *y.shape[len(lead) :]) for y in (x, *others)]
    wide = [y.astype(np.float64) if y.dtype.kind == "f" else y for y in flat]
    results = [function(*parts) for parts in zip(*wide, strict=True)]
    return [np.stack(parts).reshape(*lead, *parts[0].shape) for parts in zip(*results, strict=True)]


def _triangle(x: Term, upper: bool, diagonal: int = 0) -> Term:
    """The upper or lower triangle of each matrix, from the diagonal that `diagonal` counts as NumPy does."""
    return x.apply("triangular", x.value, upper=upper, diagonal=diagonal)


def _blocks(x: Term, k: Dim) -> tuple[Term, Term | None, Term | None]:
    """The leading (k, k) block of each matrix, the columns right of it and the rows below it, which may be
    none.
    """
    m, n = x.shape[-2:]
    head = _cut(_cut(x, -1, k), -2, k)
    right = None if prove_eq(n, k) else _cut(x, -1, n, start=k)
    below = None if prove_eq(m, k) else _cut(x, -2, m, start=k)
    return head, right, below


def _joined(parts: Sequence[Term], axis: int) -> Term:
    rank = len(parts[0].shape)
    return parts[0].apply("concat", [x.value for x in parts], axis=axis % rank)


def _row_order(pivots: Term, rows: Dim) -> Term:
    """The row of ``L U`` that each row of the factored matrix became: (..., rows), i64. The exchanges are
    undone from the last to the first.
    """
    lead, k = pivots.shape[:-1], pivots.shape[-1]

    def step(j: Term, order: Term) -> Any:
        index, pivot = j.iota(rows), j.of(pivots.value).at(j, -1).unsqueeze(-1)
        at_step, at_pivot = order.at(j, -1).unsqueeze(-1), order.along(pivot, -1)
        return [index.equals(j).select(at_pivot, index.equals(pivot).select(at_step, order))], []

    start = pivots.iota(rows).broadcast((*lead, rows))
    (order,), _ = loop(pivots.b, pivots.iota(k, k - 1, -1), [start], step)
    return order


def _solved(a: Term, x: Term, upper: bool, unit_diagonal: bool = False) -> Term:
    """``a^-1 x`` for a triangular `a`."""
    return x.apply("triangular_solve", a.value, x.value, upper=upper, unit_diagonal=unit_diagonal)


def _product(a: Term, x: Term, turned: str = "") -> Term:
    """``a x``; `turned` names the factors (``a``, ``x``, ``ax``) that are transposed."""
    left, right = "...ji" if "a" in turned else "...ij", "...kj" if "x" in turned else "...jk"
    return a.einsum(f"{left},{right}->...ik", x)


@operation
class Cholesky(GraphOp):
    """The lower triangular ``L`` with ``L L^T = x``; only the lower triangle of `x` is read. Where `x` is not
    positive definite, the result is NaN from that column on.
    """

    name = "graph.cholesky"
    x: Operand

    def infer_types(self) -> Sequence[Type]:
        return (_matrix(self, self.x, square=True),)

    def reference(self, x: Array) -> Any:
        def factor(a: Array) -> Any:
            lower, rest = np.zeros_like(a), np.tril(a) + np.tril(a, -1).T
            for j in range(len(a)):
                column = rest[:, j] / np.sqrt(rest[j, j])
                column[:j] = 0
                lower[:, j] = column
                rest = rest - np.outer(column, column)
            return (lower,)

        if not x.size:
            return x
        with np.errstate(all="ignore"):
            return _each_matrix(factor, x)[0].astype(x.dtype)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        """``L^-T f(L^T dL) L^-1``, where `f` halves the diagonal and drops the upper triangle (Murray,
        "Differentiation of the Cholesky decomposition", 2016). It is made symmetric, as PyTorch's: `x` counts
        as symmetric, although one triangle is read.
        """
        factor = at.result
        inner = _triangle(_product(factor, at.cotangent, "a"), upper=False)
        whole = (inner + _triangle(inner, upper=False, diagonal=-1).transpose()) * 0.5
        left = _solved(factor.transpose(), whole, upper=True)
        return (_solved(factor.transpose(), left.transpose(), upper=True),)

    def decompose(self, b: Builder) -> Value:
        x = Term(b, self.x)
        n = x.shape[-1]

        def step(j: Term, a: Term) -> Any:
            column = a.at(j, -1)
            column = column / column.at(j, -1).sqrt().unsqueeze(-1)
            column = (j.iota(n) < j).select(0, column)
            return [a - column.unsqueeze(-1) * column.unsqueeze(-2)], [column]

        _, (columns,) = loop(b, x.iota(n), [x], step)
        return _last(columns).value


@operation
class TriangularSolve(GraphOp):
    """``a^-1 b`` for a triangular `a` (n, n) and `b` (n, m); the other triangle of `a` is not read. Leading
    dimensions are equal.
    """

    name = "graph.triangular_solve"
    a: Operand
    b: Operand
    upper: Attr
    unit_diagonal: Attr = False

    def infer_types(self) -> Sequence[Type]:
        a, b = _matrix(self, self.a, square=True), _matrix(self, self.b)
        if a.rank != b.rank or a.dtype is not b.dtype or not all(map(prove_eq, a.shape[:-1], b.shape[:-1])):
            raise IRError(f"shapes of {a} and {b} do not agree", self)
        return (b,)

    def reference(self, a: Array, b: Array) -> Any:
        def solve(a: Array, x: Array) -> Any:
            order = range(len(a))
            for j in reversed(order) if self.upper else order:
                x[j] = x[j] if self.unit_diagonal else x[j] / a[j, j]
                rest = slice(0, j) if self.upper else slice(j + 1, None)
                x[rest] -= np.outer(a[rest, j], x[j])
            return (x,)

        if not b.size:
            return b
        with np.errstate(all="ignore"):
            return _each_matrix(solve, a, b)[0].astype(b.dtype)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        """``db = a^-T dy``, and ``da`` the triangle of ``-db y^T`` (Giles, "Collected matrix derivative
        results for forward and reverse mode algorithmic differentiation", 2008).
        """
        turned = at.operands[0].transpose()
        db = _solved(turned, at.cotangent, not self.upper, self.unit_diagonal)
        if not at.needed[0]:
            return None, db
        inside = (1 if self.upper else -1) if self.unit_diagonal else 0
        return -_triangle(_product(db, at.result, "x"), self.upper, inside), db

    def decompose(self, b: Builder) -> Value:
        a, x = Term(b, self.a), Term(b, self.b)
        n = a.shape[-1]

        def step(j: Term, x: Term) -> Any:
            column, row = Term(j.b, self.a).at(j, -1), x.at(j, -2)
            if not self.unit_diagonal:
                row = row / column.at(j, -1).unsqueeze(-1)
            index, row = j.iota(n), row.unsqueeze(-2)
            column = (index < j if self.upper else index > j).select(column, 0)
            return [index.equals(j).unsqueeze(-1).select(row, x - column.unsqueeze(-1) * row)], []

        steps = a.iota(n, n - 1, -1) if self.upper else a.iota(n)
        (solution,), _ = loop(b, steps, [x], step)
        return solution.value


@operation
class Lu(GraphOp):
    """LU factorization with partial pivoting: ``U`` on and above the diagonal, ``L`` without its unit
    diagonal below it, and for each column the row (i64) that was exchanged with it.
    """

    name = "graph.lu"
    x: Operand

    def infer_types(self) -> Sequence[Type]:
        x = _matrix(self, self.x)
        return (x, TensorType(i64, (*x.shape[:-2], _inner(self, x))))

    def reference(self, x: Array) -> Any:
        def factor(a: Array) -> Any:
            pivots = np.zeros(min(a.shape), np.int64)
            for j in range(len(pivots)):
                pivots[j] = p = j + int(np.argmax(np.abs(a[j:, j])))
                a[[j, p]] = a[[p, j]]
                if a[j, j]:
                    a[j + 1 :, j] /= a[j, j]
                a[j + 1 :, j + 1 :] -= np.outer(a[j + 1 :, j], a[j, j + 1 :])
            return a, pivots

        if not x.size:
            return x, np.zeros((*x.shape[:-2], min(x.shape[-2:])), np.int64)
        factors, pivots = _each_matrix(factor, x)
        return factors.astype(x.dtype), pivots

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        """``P L^-T (tril(L^T dL - dU2 U2^T, -1) + triu(dU U^T - L2^T dL2)) U^-T`` for the leading square
        block, where ``L2`` are further rows and ``U2`` further columns (Walter and Lehmann, "Algorithmic
        differentiation of linear algebra functions", 2010).
        """
        packed, dy = at.results[0], at.cotangents[0]
        if dy is None:
            return (None,)
        k = _inner(self, tensor_type(self.x))
        (head, right, below), (dhead, dright, dbelow) = (_blocks(x, k) for x in (packed, dy))
        unit = _triangle(head, False, -1) + _eye(head, head.shape[:-2], k, k)
        lower = _product(unit, _triangle(dhead, False, -1), "a")
        upper = _product(_triangle(dhead, True), _triangle(head, True), "x")
        if right is not None and dright is not None:
            lower = lower - _product(dright, right, "x")
        if below is not None and dbelow is not None:
            upper = upper - _product(below, dbelow, "a")

        def divided(x: Term) -> Term:
            """``x U^-T``"""
            return _solved(head, x.transpose(), upper=True).transpose()

        turned = head.transpose()
        found = divided(_solved(turned, _triangle(lower, False, -1) + _triangle(upper, True), True, True))
        if dright is not None:
            found = _joined([found, _solved(turned, dright, True, True)], -1)
        if dbelow is not None:
            found = _joined([found, divided(dbelow)], -2)
        return (found.along(_row_order(at.results[1], packed.shape[-2]).unsqueeze(-1), -2),)

    def decompose(self, b: Builder) -> Sequence[Value]:
        x = Term(b, self.x)
        m, n = x.shape[-2:]

        def step(j: Term, a: Term) -> Any:
            rows, columns = j.iota(m), j.iota(n)
            size = (rows < j).select(-1, a.at(j, -1).abs())
            pivot = j.of(j.b(Argmax(size.value, axis=-1, keepdims=True)))
            order = rows.equals(j).select(pivot, rows.equals(pivot).select(j, rows))
            a = a.along(order.unsqueeze(-1), -2)
            row = a.at(j, -2)
            divisor = row.at(j, -1).unsqueeze(-1)
            column = a.at(j, -1) / divisor.equals(0).select(1, divisor)
            column = (rows > j).select(column, 0).unsqueeze(-1)
            rest = a - column * (columns > j).select(row, 0).unsqueeze(-2)
            below = columns.equals(j) & (rows > j).unsqueeze(-1)
            return [below.select(column, rest)], [pivot.reshape(pivot.shape[:-1])]

        (factors,), (pivots,) = loop(b, x.iota(_inner(self, tensor_type(self.x))), [x], step)
        return factors.value, _last(pivots).value


@operation
class HouseholderQr(GraphOp):
    """QR factorization in the form of LAPACK's geqrf: ``R`` on and above the diagonal, below it the
    reflectors ``v``, and then each ``tau``.

    ``Q`` is the product of the reflections ``1 - tau v v^T``, where each ``v`` is 1 on the diagonal.
    """

    name = "graph.householder_qr"
    x: Operand

    def infer_types(self) -> Sequence[Type]:
        x = _matrix(self, self.x)
        return (x, TensorType(x.dtype, (*x.shape[:-2], _inner(self, x))))

    def reference(self, x: Array) -> Any:
        def factor(a: Array) -> Any:
            taus = np.zeros(min(a.shape))
            for j in range(len(taus)):
                v = a[j:, j].copy()
                end = -np.copysign(np.linalg.norm(v), v[0])
                if np.any(v[1:]):
                    taus[j] = (end - v[0]) / end
                    v[1:] /= v[0] - end
                    v[0] = 1
                    a[j:, j:] -= taus[j] * np.outer(v, v @ a[j:, j:])
                    a[j + 1 :, j] = v[1:]
            return a, taus

        if not x.size:
            return x, np.zeros((*x.shape[:-2], min(x.shape[-2:])), x.dtype)
        return [y.astype(x.dtype) for y in _each_matrix(factor, x)]

    def decompose(self, b: Builder) -> Sequence[Value]:
        x = Term(b, self.x)
        m, n = x.shape[-2:]

        def step(j: Term, a: Term) -> Any:
            rows, columns = j.iota(m), j.iota(n)
            column = a.at(j, -1)
            first = column.at(j, -1).unsqueeze(-1)
            rest = (rows > j).select(column, 0)
            # Dividing by the largest element prevents overflow of the squares.
            size = column.abs().max(-1, keepdims=True)
            size = size.equals(0).select(1, size)
            scaled = (rows < j).select(0, column / size)
            norm = (scaled * scaled).sum(-1, keepdims=True).sqrt() * size
            plain = rest.abs().max(-1, keepdims=True).equals(0)
            end = (first < 0).select(norm, -norm)
            tau = plain.select(0, (end - first) / plain.select(1, end))
            v = rest / plain.select(1, first - end)
            whole = rows.equals(j).select(1, v).unsqueeze(-1)
            reflected = a - tau.unsqueeze(-1) * whole * (whole * a).sum(-2, keepdims=True)
            below = columns.equals(j) & (rows > j).unsqueeze(-1)
            updated = below.select(v.unsqueeze(-1), (columns < j).select(a, reflected))
            return [updated], [tau.reshape(tau.shape[:-1])]

        (factors,), (taus,) = loop(b, x.iota(_inner(self, tensor_type(self.x))), [x], step)
        return factors.value, _last(taus).value


@operation
class Reflect(GraphOp):
    """``Q x``, or ``Q^T x`` with `transposed`: ``Q`` is given by `reflectors` (…, m, k) and `tau` (…, k) of
    `HouseholderQr`, `x` is (…, m, n).
    """

    name = "graph.reflect"
    reflectors: Operand
    tau: Operand
    x: Operand
    transposed: Attr = False

    def infer_types(self) -> Sequence[Type]:
        reflectors, x = _matrix(self, self.reflectors), _matrix(self, self.x)
        *lead, m, k = reflectors.shape
        check_rank(self, "tau", 1)
        for name in ("tau", "x"):
            check_same_type(self, name, reflectors.dtype)
        if exceeds(tensor_type(self.tau).shape[-1], k):
            raise IRError(f"tau has shape {tensor_type(self.tau).shape}, reflectors {reflectors.shape}", self)
        check_shape(self, "tau", (*lead, tensor_type(self.tau).shape[-1]))
        check_shape(self, "x", (*lead, m, x.shape[-1]))
        return (x,)

    def reference(self, reflectors: Array, tau: Array, x: Array) -> Any:
        def apply(a: Array, taus: Array, x: Array) -> Any:
            order = range(len(taus))
            for j in order if self.transposed else reversed(order):
                v = np.concatenate([np.zeros(j), [1.0], a[j + 1 :, j]])
                x = x - taus[j] * np.outer(v, v @ x)
            return (x,)

        return _each_matrix(apply, reflectors, tau, x)[0].astype(x.dtype) if x.size and tau.size else x

    def decompose(self, b: Builder) -> Value:
        x = Term(b, self.x)
        m, k = x.shape[-2], tensor_type(self.tau).shape[-1]

        def step(j: Term, x: Term) -> Any:
            rows = j.iota(m)
            v = (rows > j).select(j.of(self.reflectors).at(j, -1), 0)
            v = rows.equals(j).select(1, v).unsqueeze(-1)
            tau = j.of(self.tau).at(j, -1).unsqueeze(-1, -2)
            return [x - tau * v * (v * x).sum(-2, keepdims=True)], []

        steps = x.iota(k) if self.transposed else x.iota(k, k - 1, -1)
        (product,), _ = loop(b, steps, [x], step)
        return product.value


# -- Rotations (Jacobi, 1846; Hestenes, 1958) ----------------------------------------------------------------


def _sweeps(x: Term) -> int:
    """Number of sweeps over all pairs of columns; convergence is quadratic at the end."""
    return 18 if x.dtype is f64 else 12


def _rotation(i: Term, partner: Term, own: Term, other: Term, product: Term) -> tuple[Term, Term]:
    """Cosine and sine, for each column, of the rotation that makes its product with its partner zero."""
    still = i.equals(partner) | product.equals(0)
    ratio = (other - own) / (still.select(1, product) * 2)
    positive = (ratio > 0) | (ratio.equals(0) & (i < partner))
    tangent = 1 / (ratio.abs() + (ratio * ratio + 1).sqrt())
    tangent = still.select(0, positive.select(tangent, -tangent))
    cosine = 1 / (tangent * tangent + 1).sqrt()
    return cosine, cosine * tangent


def _partners(step: Term, n: Dim) -> tuple[Term, Term]:
    """The columns and their rotation partners at a step: in `n` steps each column meets every other one."""
    i = step.iota(n)
    return i, (step - i) % i.number(n)


def _cut(x: Term, axis: int, stop: Dim, start: Dim = 0) -> Term:
    """The elements along `axis` from `start` to before `stop`."""
    starts: list[Dim] = [0] * len(x.shape)
    stops = list(x.shape)
    starts[axis], stops[axis] = start, stop
    if tuple(stops) == x.shape and start == 0:
        return x
    return x.of(x.b(Slice(x.value, starts=tuple(starts), stops=tuple(stops), steps=(1,) * len(stops))))


def _eye(x: Term, lead: Sequence[Dim], rows: Dim, columns: Dim) -> Term:
    same = x.iota(rows).unsqueeze(-1).equals(x.iota(columns))
    return same.cast(x.dtype).broadcast((*lead, rows, columns))


def _over_gaps(x: Term, values: Term) -> Term:
    """``x[i, j] / (values[j] - values[i])``, and 0 on the diagonal."""
    n = values.shape[-1]
    same = x.iota(n).unsqueeze(-1).equals(x.iota(n))
    gaps = same.select(1, values.unsqueeze(-2) - values.unsqueeze(-1))
    return same.select(0, x / gaps)


def _signs(vectors: Term) -> Term:
    """Sign of each column's largest element, as a row. It fixes which of two opposite vectors is returned."""
    largest = vectors.of(vectors.b(Argmax(vectors.abs().value, axis=-2, keepdims=True)))
    return (vectors.along(largest, -2) < 0).select(vectors.number(-1), 1)


def _sign_array(vectors: Array) -> Any:
    largest = np.argmax(np.abs(vectors), -2)[..., None, :]
    return np.where(np.take_along_axis(vectors, largest, -2) < 0, -1, 1)


@operation
class Eigh(GraphOp):
    """Eigenvalues (ascending) and eigenvectors (columns of norm 1, their largest element positive) of
    symmetric matrices; the lower triangle is read.
    """

    name = "graph.eigh"
    x: Operand

    def infer_types(self) -> Sequence[Type]:
        x = _matrix(self, self.x, square=True)
        return (TensorType(x.dtype, x.shape[:-1]), x)

    def reference(self, x: Array) -> Any:
        values, vectors = np.linalg.eigh(x.astype(np.float64))
        if x.size:
            vectors = vectors * _sign_array(vectors)
        return values.astype(x.dtype), vectors.astype(x.dtype)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        """``V (diag(dw) + (V^T dV) / E) V^T`` with ``E[i, j] = w[j] - w[i]`` and no diagonal (Giles, 2008).
        It is infinite or NaN where eigenvalues are equal and the vectors have a gradient, as PyTorch's.
        """
        (values, vectors), (dvalues, dvectors) = at.results, at.cotangents
        n = values.shape[-1]
        inner = None
        if dvectors is not None:
            inner = _over_gaps(_product(vectors, dvectors, "a"), values)
        if dvalues is not None:
            diagonal = _eye(values, (), n, n) * dvalues.unsqueeze(-1)
            inner = diagonal if inner is None else inner + diagonal
        return (None if inner is None else _product(_product(vectors, inner), vectors, "x"),)

    def decompose(self, b: Builder) -> Sequence[Value]:
        x = Term(b, self.x)
        *lead, n, _ = x.shape
        if n == 0:
            return x.number(0).broadcast(x.shape[:-1]).value, self.x
        index = x.iota(n)
        x = (index.unsqueeze(-1) < index).select(x.transpose(), x)

        def picked(a: Term, columns: Term) -> Term:
            """One element of each row."""
            return a.along(columns.unsqueeze(-1), -1).reshape(a.shape[:-1])

        def step(j: Term, a: Term, vectors: Term) -> Any:
            i, partner = _partners(j, n)
            diagonal, product = picked(a, i), picked(a, partner)
            # Rounding makes the two sides of the diagonal differ; both columns of a pair must rotate by the
            # same angle.
            product = (product + product.at(partner, -1)) * 0.5
            cosine, sine = _rotation(i, partner, diagonal, diagonal.at(partner, -1), product)
            a = cosine.unsqueeze(-1) * a - sine.unsqueeze(-1) * a.at(partner, -2)
            cosine, sine = cosine.unsqueeze(-2), sine.unsqueeze(-2)
            return [cosine * y - sine * y.at(partner, -1) for y in (a, vectors)], []

        (a, vectors), _ = loop(b, x.iota(n * _sweeps(x)), [x, _eye(x, lead, n, n)], step)
        ordered, order = b.insert(Topk(picked(a, a.iota(n)).value, k=n, axis=-1, largest=False)).results
        vectors = vectors.along(Term(b, order).unsqueeze(-2), -1)
        return ordered, (vectors * _signs(vectors)).value


@operation
class Svd(GraphOp):
    """``x = u diag(s) v^T``: `u`, the singular values in descending order, and ``v^T``, each row of which has
    a positive largest element.

    `u` and ``v^T`` are square with `full`, else as large as `s` is.
    """

    name = "graph.svd"
    x: Operand
    full: Attr = False

    def infer_types(self) -> Sequence[Type]:
        x = _matrix(self, self.x)
        *lead, m, n = x.shape
        k = _inner(self, x)
        if not prove_le(m, n) and not prove_le(n, m):
            raise IRError(
                f"needs a matrix of which rows or columns are known to be more, got {x.shape}", self
            )
        rows, columns = (m, n) if self.full else (k, k)
        return tuple(TensorType(x.dtype, (*lead, *s)) for s in ((m, rows), (k,), (columns, n)))

    def reference(self, x: Array) -> Any:
        u, s, vt = np.linalg.svd(x.astype(np.float64), full_matrices=self.full)
        if x.size:
            signs, k = _sign_array(np.swapaxes(vt, -1, -2)), s.shape[-1]
            vt, u = (
                vt * np.swapaxes(signs, -1, -2),
                np.concatenate([u[..., :k] * signs[..., :k], u[..., k:]], -1),
            )
        return u.astype(x.dtype), s.astype(x.dtype), vt.astype(x.dtype)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        """The gradient of a thin factorization (Townsend, "Differentiating the singular value decomposition",
        2016). It is infinite or NaN where singular values are equal or 0 and the vectors have a gradient.

        Raises:
            GradientError: The vectors that complete a basis (`full`, of a matrix that is not square) have a
                gradient; they are not unique.
        """
        (u, s, vt), (du, ds, dvt) = at.results, at.cotangents
        k = s.shape[-1]
        if self.full and not prove_eq(u.shape[-1], vt.shape[-1]) and (du is not None or dvt is not None):
            raise GradientError(
                f"the singular vectors of a full factorization of matrices of shape {u.shape[-1]} x "
                f"{vt.shape[-1]} have no gradient, as those that complete the basis are not unique: use "
                f"full_matrices=False (at {self.location})"
            )
        u, v = _cut(u, -1, k), _cut(vt, -2, k).transpose()
        row = s.unsqueeze(-2)
        inner = None if ds is None else _eye(s, (), k, k) * ds.unsqueeze(-1)

        def turning(x: Term, dx: Term) -> Term:
            """The antisymmetric part of ``x^T dx``, twice, over the differences of squares."""
            both = _product(x, dx, "a")
            return _over_gaps(both - both.transpose(), s * s)

        found: list[Term] = []
        if du is not None:
            part = turning(u, du) * row
            inner = part if inner is None else inner + part
            if not prove_eq(u.shape[-2], k):
                outside = du - _product(u, _product(u, du, "a"))
                found.append(_product(outside / row, v, "x"))
        if dvt is not None:
            dv = dvt.transpose()
            part = s.unsqueeze(-1) * turning(v, dv)
            inner = part if inner is None else inner + part
            if not prove_eq(v.shape[-2], k):
                outside = dv - _product(v, _product(v, dv, "a"))
                found.append(_product(u, outside / row, "x"))
        if inner is not None:
            found.append(_product(_product(u, inner), v, "x"))
        total = found[0]
        for part in found[1:]:
            total = total + part
        return (total,)

    def decompose(self, b: Builder) -> Sequence[Value]:
        x = Term(b, self.x)
        wide = not prove_le(x.shape[-1], x.shape[-2])
        if wide:
            x = x.transpose()
        *lead, m, n = x.shape
        if m == 0 or n == 0:
            shapes = [r.type.shape for r in self.results]
            left, right = (_eye(x, lead, *shapes[k][-2:]).value for k in (0, 2))
            return left, x.number(0).broadcast(shapes[1]).value, right

        def step(j: Term, w: Term, v: Term) -> Any:
            i, partner = _partners(j, n)
            norms, product = (w * w).sum(-2), (w * w.at(partner, -1)).sum(-2)
            rotation = _rotation(i, partner, norms, norms.at(partner, -1), product)
            cosine, sine = (y.unsqueeze(-2) for y in rotation)
            return [cosine * y - sine * y.at(partner, -1) for y in (w, v)], []

        (w, v), _ = loop(b, x.iota(n * _sweeps(x)), [x, _eye(x, lead, n, n)], step)
        values, order = b.insert(Topk((w * w).sum(-2).sqrt().value, k=n, axis=-1)).results
        columns = Term(b, order).unsqueeze(-2)
        w, v = w.along(columns, -1), v.along(columns, -1)
        # The columns are orthogonal already: their QR factorization completes them to a basis, also where
        # some are zero.
        reflectors, tau = b.insert(HouseholderQr(w.value)).results
        diagonal = Term(b, reflectors).along(w.iota(n).unsqueeze(-2), -2)
        width = m if self.full else n
        reflected: Value = b(Reflect(reflectors, tau, _eye(x, lead, m, width).value))
        u = Term(b, reflected)
        turned = (diagonal < 0).select(x.number(-1), 1)
        if self.full:
            turned = _padded_signs(turned, width)
        return self._signed(u * turned, values, v, wide)

    def _signed(self, u: Term, values: Value, v: Term, wide: bool) -> Sequence[Value]:
        """The results with normalized signs. For a transposed matrix, `u` and `v` are exchanged."""
        size = v.shape[-1]
        signs = _signs(_cut(u, -1, size) if wide else v)
        v = v * signs
        u = u * (_padded_signs(signs, u.shape[-1]) if self.full else signs)
        left, right = (v, u) if wide else (u, v)
        return left.value, values, right.transpose().value


def _padded_signs(signs: Term, columns: Dim) -> Term:
    """A row of signs padded with ones."""
    rank = len(signs.shape)
    high = (0,) * (rank - 1) + (columns - signs.shape[-1],)
    return signs.of(signs.b(Pad(signs.value, None, low=(0,) * rank, high=high, value=1)))


__all__ = ["Cholesky", "Eigh", "HouseholderQr", "Lu", "Reflect", "Svd", "TriangularSolve"]
