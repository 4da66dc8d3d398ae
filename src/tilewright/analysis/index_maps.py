"""Index arithmetic shared by the tensor-level passes: addresses, reshapes, affine roles of axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..ir.substitution import linear_in, substitute
from ..ir.symbolic import Binary, Dim, Expr, FloorDiv, Mod, free_symbols, prove_eq
from ..ir.types import Shape


def at_same_point(indices: Sequence[Dim], axes: Sequence[Expr]) -> bool:
    """Whether indices into a tensor of the axes' extents equal the axes; the index of an axis of extent 1 may
    be 0.
    """
    return len(indices) == len(axes) and all(
        e is a or (isinstance(e, int) and e == 0 and isinstance(a.upper, int) and a.upper == 0)
        for e, a in zip(indices, axes, strict=True)
    )


def symbols_of(dims: Iterable[Dim]) -> frozenset[Expr]:
    """All symbols in some expressions."""
    symbols: set[Expr] = set()
    for d in dims:
        if not isinstance(d, int):
            symbols |= free_symbols(d)
    return frozenset(symbols)


def substitute_all(dims: Iterable[Dim], mapping: Mapping[Expr, Dim]) -> tuple[Dim, ...]:
    """`substitute` over a tuple."""
    return tuple(d if isinstance(d, int) else substitute(d, mapping) for d in dims)


def product(dims: Iterable[Dim]) -> Dim:
    total: Dim = 1
    for d in dims:
        total = total * d
    return total


def divisions(*indices: Dim) -> int:
    """The number of quotients and remainders in index expressions."""
    atoms = [x for e in indices if isinstance(e, Expr) for _, atoms in e.terms for x in atoms]
    inside = [divisions(x.a, x.b) for x in atoms if isinstance(x, Binary)]
    return sum(inside) + sum(isinstance(x, (FloorDiv, Mod)) for x in atoms)


def row_major_strides(shape: Shape) -> tuple[Dim, ...]:
    """Strides in elements of a contiguous tensor."""
    strides: list[Dim] = []
    step: Dim = 1
    for d in reversed(shape):
        strides.append(step)
        step = step * d
    return tuple(reversed(strides))


def flatten_index(index: Sequence[Dim], shape: Shape) -> Dim:
    """The row-major address, in elements, of an index."""
    total: Dim = 0
    for i, s in zip(index, row_major_strides(shape), strict=True):
        total = total + i * s
    return total


def affine_coefficients(e: Dim, axes: Sequence[Expr]) -> tuple[tuple[Dim, ...], Dim] | None:
    """Coefficients of `axes` in `e`, and the rest; None if `e` is not affine in them (they occur under // or
    %).
    """
    coefficients: list[Dim] = []
    for axis in axes:
        if isinstance(e, int):
            coefficients.append(0)
            continue
        parts = linear_in(e, axis)
        if parts is None:
            return None
        coefficient, e = parts
        coefficients.append(coefficient)
    if symbols_of(coefficients) & set(axes):
        return None
    return tuple(coefficients), e


def reshape_index(index: Sequence[Dim], shape: Shape, source: Shape) -> tuple[Dim, ...]:
    """Index into `source` of the element at `index` of its row-major reshape to `shape`.

    Dimensions are matched in the smallest groups of equal size, so that splits and merges stay local.
    """
    result: list[Dim] = []
    i = j = 0
    while i < len(shape) or j < len(source):
        start_i, start_j = i, j
        size_i: Dim = shape[i] if i < len(shape) else 1
        size_j: Dim = source[j] if j < len(source) else 1
        i, j = min(i + 1, len(shape)), min(j + 1, len(source))
        while not prove_eq(size_i, size_j):
            if i >= len(shape) and j >= len(source):
                break  # equal by the operation's contract, though not provably so here
            grow_shape = j >= len(source) or (
                i < len(shape)
                and _divides(size_j, size_i * shape[i])
                and not _divides(size_i, size_j * source[j])
            )
            if not grow_shape and i < len(shape) and isinstance(size_i, int) and isinstance(size_j, int):
                grow_shape = size_i < size_j
            if grow_shape:
                size_i, i = size_i * shape[i], i + 1
            else:
                size_j, j = size_j * source[j], j + 1
        linear = flatten_index(index[start_i:i], shape[start_i:i])
        group = source[start_j:j]
        strides = row_major_strides(group)
        for position, (dim, stride) in enumerate(zip(group, strides, strict=True)):
            if isinstance(dim, int) and dim == 1:
                result.append(0)
                continue
            value = linear // stride
            leads = all(isinstance(d, int) and d == 1 for d in group[:position])
            result.append(value if leads else value % dim)
    return tuple(result)


def _divides(a: Dim, b: Dim) -> bool:
    """Whether `a` divides `b` as polynomials or integers (a cheap, incomplete test)."""
    if isinstance(a, int) and isinstance(b, int):
        return a != 0 and b % a == 0
    return isinstance(b, int) is False and isinstance(b % a, int) and b % a == 0
