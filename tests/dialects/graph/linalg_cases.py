"""Cases of factorizations, compared with NumPy. Where a factorization is not unique (signs, order of equal
values), the compared value does not depend on the choice, or the reference makes the same one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dialects import graph
from tilewright.ir.builder import Builder
from tilewright.ir.core import Value

from .harness import Case, F

SIZES = ({"b": 2, "n": 4, "m": 3}, {"b": 1, "n": 1, "m": 1}, {"b": 3, "n": 7, "m": 2})


def _spd(b: Builder, x: Value) -> Value:
    """A positive definite matrix: the product of `x` and its transpose, plus the identity."""
    product = b(graph.Matmul(x, b(graph.Transpose(x, permutation=(0, 2, 1)))))
    eye = b(graph.OneHot(b(graph.Iota(shape=(x.type.shape[-1],))), depth=x.type.shape[-1]))
    return b(graph.Add(product, eye))  # type: ignore[no-any-return]


def _spd_array(x: Any) -> Any:
    x = x.astype(np.float64)
    return x @ np.swapaxes(x, -1, -2) + np.eye(x.shape[-1])


def _solve(upper: bool) -> Any:
    def build(b: Builder, d: Any, a: Value, x: Value) -> Any:
        return b(graph.TriangularSolve(_spd(b, a), x, upper=upper))

    def expected(d: Any, a: Any, x: Any) -> Any:
        return np.linalg.solve((np.triu if upper else np.tril)(_spd_array(a)), x.astype(np.float64))

    return build, expected


def _product(b: Builder, d: Any, x: Value) -> Any:
    """The product of the triangular factors, which is the matrix with exchanged rows, and the pivots."""
    packed, pivots = b.insert(graph.Lu(x)).results
    upper = b(graph.Triangular(packed, upper=True))
    lower = b(graph.Triangular(packed, upper=False, diagonal=-1))
    eye = b(graph.OneHot(b(graph.Iota(shape=(x.type.shape[-1],))), depth=x.type.shape[-1]))
    return b(graph.Matmul(b(graph.Add(lower, eye)), upper)), pivots


def _exchanged(d: Any, x: Any) -> Any:
    rows, found = x.copy(), np.zeros(x.shape[:-1], np.int64)
    for k, a in enumerate(x.astype(np.float64)):
        for j in range(len(a)):
            found[k, j] = p = j + np.argmax(np.abs(a[j:, j]))
            a[[j, p]] = a[[p, j]]
            rows[k, [j, p]] = rows[k, [p, j]]
            a[j + 1 :, j:] -= np.outer(a[j + 1 :, j] / a[j, j], a[j, j:])
    return rows, found


def _qr(transposed: bool) -> Any:
    def build(b: Builder, d: Any, x: Value) -> Any:
        reflectors, tau = b.insert(graph.HouseholderQr(x)).results
        upper = b(graph.Triangular(reflectors, upper=True))
        return b(graph.Reflect(reflectors, tau, x if transposed else upper, transposed=transposed))

    return build


def _r(d: Any, x: Any) -> Any:
    return np.concatenate([np.linalg.qr(a, mode="r")[None] for a in x.astype(np.float64)])


def _svd(full: bool) -> Any:
    def build(b: Builder, d: Any, x: Value) -> Any:
        u, s, vt = b.insert(graph.Svd(x, full=full)).results
        k = s.type.shape[-1]
        kept = b(graph.Slice(u, starts=(0, 0, 0), stops=(*u.type.shape[:2], k), steps=(1, 1, 1)))
        rows = b(
            graph.Slice(vt, starts=(0, 0, 0), stops=(vt.type.shape[0], k, vt.type.shape[2]), steps=(1, 1, 1))
        )
        scaled = b(graph.Mul(kept, b(graph.Reshape(s, shape=(s.type.shape[0], 1, k)))))
        gram = b(graph.Matmul(b(graph.Transpose(u, permutation=(0, 2, 1))), u))
        return b(graph.Matmul(scaled, rows)), s, gram

    def expected(d: Any, x: Any) -> Any:
        u, s, _ = np.linalg.svd(x.astype(np.float64), full_matrices=full)
        return x, s, np.broadcast_to(np.eye(u.shape[-1]), (len(x), u.shape[-1], u.shape[-1]))

    return build, expected


def _eigh(b: Builder, d: Any, x: Value) -> Any:
    return b.insert(graph.Eigh(_spd(b, x))).results


def _eigenpairs(d: Any, x: Any) -> Any:
    values, vectors = np.linalg.eigh(_spd_array(x))
    largest = np.argmax(np.abs(vectors), -2)[:, None, :]
    return values, vectors * np.sign(np.take_along_axis(vectors, largest, -2))


def _cholesky(b: Builder, d: Any, x: Value) -> Value:
    return b(graph.Cholesky(_spd(b, x)))


SQUARE, TALL, WIDE = F("b", "n", "n"), F("b", "n+m", "m"), F("b", "m", "n+m")
CASES = [
    Case("Cholesky", (SQUARE,), _cholesky, lambda d, x: np.linalg.cholesky(_spd_array(x)), SIZES, 1e-4),
    *(
        Case("TriangularSolve", (SQUARE, F("b", "n", "m")), *_solve(upper), SIZES, 1e-4, note=note)
        for upper, note in ((False, "lower"), (True, "upper"))
    ),
    Case("Lu", (SQUARE,), _product, _exchanged, SIZES, 1e-4),
    Case("HouseholderQr", (TALL,), _qr(False), lambda d, x: x, SIZES, 1e-4, note="Q R"),
    Case("Reflect", (SQUARE,), _qr(True), _r, SIZES, 1e-4, note="transposed Q"),
    Case("Eigh", (SQUARE,), _eigh, _eigenpairs, SIZES, 1e-3),
    *(
        Case("Svd", (x,), *_svd(full), SIZES, 1e-3, note=note)
        for full in (False, True)
        for x, note in ((TALL, "tall full" if full else "tall"), (WIDE, "wide full" if full else "wide"))
    ),
]  # fmt: skip
