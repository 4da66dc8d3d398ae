"""Products under NumPy's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...dialects import graph as g
from ...errors import ShapeError
from ...ir.types import boolean, i64
from .operands import apply, as_tensor, together
from .pointwise import astype
from .reductions import axes_of, sum, vector_norm
from .registry import FUNCTIONS, function
from .shapes import diagonal, expand_dims, moveaxis, ravel, reshape, stack, transpose
from .tensor import Axis, Tensor, TensorLike


def _factors(*inputs: TensorLike) -> tuple[list[Tensor], Any]:
    """Return operands in a common type that products are defined for, and the type of the result."""
    operands = together(*inputs)
    dtype = operands[0].type.dtype
    return ([astype(x, i64) for x in operands] if dtype is boolean else operands), dtype


@function()
def matmul(a: TensorLike, b: TensorLike) -> Tensor:
    """Multiply matrices: (..., m, k) and (..., k, n) give (..., m, n); a vector (k) is a row or a column.

    Raises:
        ShapeError: The sizes k differ, the leading dimensions do not broadcast, or an input has no dimension.
    """
    (a, b), dtype = _factors(as_tensor(a), as_tensor(b))
    return astype(apply(g.Matmul, a, b), dtype)


@function()
def dot(a: TensorLike, b: TensorLike) -> Tensor:
    """Sum products over the last dimension of `a` and the last but one of `b`: (..., k) and (k, n) give (...,
    n).

    Raises:
        ShapeError: The sizes k differ.
    """
    a, b = as_tensor(a), as_tensor(b)
    if not a.ndim or not b.ndim:
        return a * b
    if b.ndim <= 2:
        return matmul(a, b)
    return tensordot(a, b, ([a.ndim - 1], [b.ndim - 2]))


@function()
def inner(a: TensorLike, b: TensorLike) -> Tensor:
    """Sum products over the last dimensions: a (..., k) and b (n, k) give (..., n).

    Raises:
        ShapeError: The sizes k differ.
    """
    a, b = as_tensor(a), as_tensor(b)
    return a * b if not a.ndim or not b.ndim else tensordot(a, b, ([-1], [-1]))


@function()
def vdot(a: TensorLike, b: TensorLike) -> Tensor:
    """Sum the products of all elements of `a` and `b`, in row-major order, in the shape ().

    Raises:
        ShapeError: The numbers of elements differ.
    """
    return matmul(ravel(a), ravel(b))


@function()
def outer(a: TensorLike, b: TensorLike) -> Tensor:
    """Return the products of each of m elements of `a` and each of n elements of `b`, as a matrix (m, n)."""
    return expand_dims(ravel(a), 1) * expand_dims(ravel(b), 0)


@function()
def tensordot(a: TensorLike, b: TensorLike, axes: int | Sequence[int | Sequence[int]] = 2) -> Tensor:
    """Sum products over `axes`: a number of last axes of `a` and first of `b`, or a pair of lists of axes.

    The result has the shape of the other dimensions of `a`, then of `b`.

    Raises:
        ShapeError: The sizes along these axes differ, or there is no such axis.
    """
    a, b = as_tensor(a), as_tensor(b)
    pair = (range(a.ndim - axes, a.ndim), range(axes)) if isinstance(axes, int) else axes
    left, right = (
        axes_of(x, list(p) if not isinstance(p, int) else p) for x, p in zip((a, b), pair, strict=True)
    )
    kept = [[d for d in range(x.ndim) if d not in p] for x, p in ((a, left), (b, right))]
    a, b = transpose(a, [*kept[0], *left]), transpose(b, [*right, *kept[1]])
    lead, tail = a.shape[: len(kept[0])], b.shape[len(right) :]
    if a.shape[len(kept[0]) :] != b.shape[: len(right)]:
        raise ShapeError(f"summed sizes {a.shape[len(kept[0]) :]} and {b.shape[: len(right)]} differ")
    rows, inside, columns = 1, 1, 1
    for n in lead:
        rows = rows * n
    for n in tail:
        columns = columns * n
    for n in b.shape[: len(right)]:
        inside = inside * n
    return reshape(matmul(reshape(a, (rows, inside)), reshape(b, (inside, columns))), (*lead, *tail))


@function()
def einsum(equation: str, *inputs: TensorLike, optimize: object = None) -> Tensor:
    """Return an Einstein summation, in the shape that the equation gives; more than two operands are
    contracted in pairs, from the left.

    Raises:
        ShapeError: The equation does not fit the operands, or has '...' and more than two operands.
    """
    if not isinstance(equation, str):
        raise TypeError(f"the equation of an einsum is a string, not a {type(equation).__name__}")
    operands, dtype = _factors(*(as_tensor(x) for x in inputs))
    text = equation.replace(" ", "")
    if len(operands) <= 2:
        return astype(apply(g.Einsum, operands, equation=text), dtype)
    left, arrow, result = text.partition("->")
    if "." in text:
        raise ShapeError(f"{equation!r}: '...' is taken with at most two operands; name the dimensions")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ShapeError(f"equation {equation!r} has {len(terms)} terms for {len(operands)} operands")
    if not arrow:
        result = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    total, term = operands[0], terms[0]
    for k in range(1, len(operands)):
        later = result + "".join(terms[k + 1 :])
        kept = (
            "".join(dict.fromkeys(c for c in term + terms[k] if c in later))
            if k < len(operands) - 1
            else result
        )
        total = apply(g.Einsum, [total, operands[k]], equation=f"{term},{terms[k]}->{kept}")
        term = kept
    return astype(total, dtype)


@function()
def trace(x: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Return the sums of the diagonals of two dimensions: (n, n, ...) gives (...)."""
    return sum(diagonal(x, offset, axis1, axis2), -1)


@function()
def kron(a: TensorLike, b: TensorLike) -> Tensor:
    """Return the Kronecker product: (m, n) and (p, q) give (m * p, n * q)."""
    a, b = as_tensor(a), as_tensor(b)
    rank = max(a.ndim, b.ndim)
    a, b = (reshape(x, (*(1,) * (rank - x.ndim), *x.shape)) for x in (a, b))
    wide = expand_dims(a, tuple(range(rank, 2 * rank))) * expand_dims(b, tuple(range(rank)))
    order = [d for k in range(rank) for d in (k, rank + k)]
    return reshape(transpose(wide, order), tuple(m * n for m, n in zip(a.shape, b.shape, strict=True)))


@function()
def cross(a: TensorLike, b: TensorLike, axis: int = -1) -> Tensor:
    """Return the cross products of vectors of three elements along `axis`.

    Raises:
        ShapeError: A vector has another number of elements, or there is no such axis.
    """
    a, b = (moveaxis(x, axis, 0) for x in together(a, b))
    if len(a) != 3 or len(b) != 3:
        raise ShapeError(f"a cross product takes vectors of three elements, not of {len(a)} and {len(b)}")
    parts = [a[(k + 1) % 3] * b[(k + 2) % 3] - a[(k + 2) % 3] * b[(k + 1) % 3] for k in range(3)]
    return moveaxis(stack(parts), 0, axis)


@function("linalg.norm")
def _norm(x: TensorLike, ord: float | str | None = None, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the vector norm along `axis`; of several axes, or of all of a matrix, the Frobenius norm.

    Raises:
        TypeError: Another norm of matrices is asked for.
    """
    x = as_tensor(x)
    of_matrices = x.ndim > 1 if axis is None else not isinstance(axis, int)
    if of_matrices and ord not in (None, "fro"):
        raise TypeError(
            f"norms of matrices of order {ord!r} are not supported; tilewright.numpy.vector_norm takes axes "
            "as vectors"
        )
    order = None if of_matrices else ord
    if isinstance(order, str):
        raise TypeError(f"norms of vectors of order {order!r} are not supported: the order is a number")
    return vector_norm(x, order, axis, keepdims)


FUNCTIONS.update(
    {f"linalg.{n}": FUNCTIONS[n] for n in ("matmul", "matrix_transpose", "tensordot", "vector_norm", "cross")}
)
