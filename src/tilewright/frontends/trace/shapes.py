"""Functions under NumPy's names that rearrange elements or create tensors."""

from __future__ import annotations

import builtins
import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ...dialects import graph as g
from ...errors import ShapeError
from ...ir.interpreter import Array
from ...ir.symbolic import Dim, Expr
from .dtypes import DTypeLike, dtype_of, is_weak, weak_dtype
from .operands import apply, as_tensor, shape_argument, tensor, together
from .pointwise import astype, where
from .reductions import axes_of
from .registry import function
from .tensor import ScalarLike, ShapeLike, SizeLike, Tensor, TensorLike, call, concrete

Sections: TypeAlias = int | Iterable[SizeLike]
"""A number of parts, or the places where they begin."""


@function()
def reshape(x: TensorLike, shape: ShapeLike) -> Tensor:
    """Return the elements, in row-major order, under another shape; one size may be -1.

    Raises:
        ShapeError: The shape has another number of elements, or several sizes of -1.
    """
    x = as_tensor(x)
    sizes = list(shape_argument(shape))
    free = [k for k, n in enumerate(sizes) if isinstance(n, int) and n == -1]
    if len(free) > 1:
        raise ShapeError(f"only one size of {tuple(sizes)} may be -1")
    if free:
        rest: Dim = 1
        for n in (n for n in sizes if not (isinstance(n, int) and n == -1)):
            rest = rest * n
        if isinstance(rest, int) and rest == 0:
            raise ShapeError(f"the size of -1 in {tuple(sizes)} is undefined, as the others multiply to 0")
        sizes[free[0]] = x.size // rest
    return apply(g.Reshape, x, shape=tuple(sizes))


@function("flatten")
def ravel(x: TensorLike) -> Tensor:
    """Return the elements in row-major order, in the shape (n)."""
    x = as_tensor(x)
    return reshape(x, (x.size,))


@function("permute_dims")
def transpose(x: TensorLike, axes: Sequence[int] | None = None) -> Tensor:
    """Return `x` with the dimensions of its shape in the order `axes`, by default reversed."""
    x = as_tensor(x)
    order = tuple(range(x.ndim))[::-1] if axes is None else axes_of(x, axes)
    return apply(g.Transpose, x, permutation=order)


@function()
def swapaxes(x: TensorLike, a: int, b: int) -> Tensor:
    """Return `x` with dimensions `a` and `b` of its shape exchanged."""
    x = as_tensor(x)
    order = list(range(x.ndim))
    a, b = axes_of(x, (a, b))
    order[a], order[b] = order[b], order[a]
    return transpose(x, order)


@function()
def matrix_transpose(x: TensorLike) -> Tensor:
    """Return `x` with its last two dimensions exchanged: (..., m, n) gives (..., n, m)."""
    return swapaxes(x, -1, -2)


@function()
def moveaxis(x: TensorLike, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Move the dimensions `source` of the shape to the places `destination`; the others keep their order."""
    x = as_tensor(x)
    pairs = sorted(zip(axes_of(x, destination), axes_of(x, source), strict=True))
    order = [d for d in range(x.ndim) if d not in {s for _, s in pairs}]
    for place, axis in pairs:
        order.insert(place, axis)
    return transpose(x, order)


@function()
def expand_dims(x: TensorLike, axis: int | Sequence[int]) -> Tensor:
    """Insert dimensions of size 1, at the places `axis` of the result."""
    x = as_tensor(x)
    axes = [axis] if isinstance(axis, int) else [operator.index(a) for a in axis]
    rank = x.ndim + len(axes)
    if any(not -rank <= a < rank for a in axes) or len({a % rank for a in axes}) != len(axes):
        raise ShapeError(f"axes {axes} are not distinct dimensions of a result of rank {rank}")
    places = {a % rank for a in axes}
    sizes = iter(x.shape)
    return reshape(x, tuple(1 if d in places else next(sizes) for d in range(rank)))


@function()
def squeeze(x: TensorLike, axis: int | Sequence[int] | None = None) -> Tensor:
    """Drop the given dimensions of the shape, of size 1, or all that are known to be 1.

    Raises:
        ShapeError: A given dimension is not 1.
    """
    x = as_tensor(x)
    drop = (
        {d for d, n in enumerate(x.shape) if isinstance(n, int) and n == 1}
        if axis is None
        else set(axes_of(x, axis))
    )
    for d in drop:
        if not (isinstance(x.shape[d], int) and x.shape[d] == 1):
            raise ShapeError(f"dimension {d} of shape {x.shape} is not 1 and cannot be dropped")
    return reshape(x, tuple(n for d, n in enumerate(x.shape) if d not in drop))


@function()
def broadcast_to(x: TensorLike, shape: ShapeLike) -> Tensor:
    """Repeat `x` along dimensions of size 1 and new leading ones to `shape`."""
    x, wanted = as_tensor(x), shape_argument(shape)
    return apply(g.BroadcastTo, x, shape=wanted)


@function()
def broadcast_arrays(*inputs: TensorLike) -> list[Tensor]:
    """Broadcast all inputs to their common shape."""
    tensors = [as_tensor(x) for x in inputs]
    shape = common_shape([x.shape for x in tensors])
    return [broadcast_to(x, shape) for x in tensors]


def common_shape(shapes: Sequence[tuple[Dim, ...]]) -> tuple[Dim, ...]:
    """Return the shape that shapes broadcast to.

    Raises:
        ShapeError: They do not broadcast.
    """
    from ...dialects.graph.base import broadcast_shapes
    from ...ir.core import IRError

    try:
        return broadcast_shapes(*shapes)
    except IRError as error:
        raise ShapeError(str(error)) from None


@function("concat")
def concatenate(inputs: Sequence[TensorLike], axis: int | None = 0) -> Tensor:
    """Join tensors along `axis`, whose sizes add up; the other sizes are equal. None flattens them first."""
    parts = together(*inputs)
    if axis is None:
        return apply(g.Concat, [ravel(x) for x in parts], axis=0)
    return apply(g.Concat, parts, axis=axis)


@function()
def stack(inputs: Sequence[TensorLike], axis: int = 0) -> Tensor:
    """Join tensors of one shape along a new dimension `axis` of the result."""
    return concatenate([expand_dims(x, axis) for x in together(*inputs)], axis)


@function()
def atleast_1d(x: TensorLike) -> Tensor:
    """Return `x` with at least one dimension: () gives (1), other shapes stay."""
    x = as_tensor(x)
    return x if x.ndim else reshape(x, (1,))


@function()
def atleast_2d(x: TensorLike) -> Tensor:
    """Return `x` with at least two dimensions: (n) gives (1, n), () gives (1, 1)."""
    x = atleast_1d(x)
    return x if x.ndim > 1 else expand_dims(x, 0)


@function()
def vstack(inputs: Sequence[TensorLike]) -> Tensor:
    """Join tensors along the first dimension; vectors are rows: k of shape (n) give (k, n)."""
    return concatenate([atleast_2d(x) for x in inputs], 0)


@function()
def hstack(inputs: Sequence[TensorLike]) -> Tensor:
    """Join tensors along the second dimension of their shapes, vectors along the first."""
    parts = [atleast_1d(x) for x in inputs]
    return concatenate(parts, 0 if parts[0].ndim == 1 else 1)


@function()
def column_stack(inputs: Sequence[TensorLike]) -> Tensor:
    """Join tensors along the second dimension; vectors are columns: k of shape (n) give (n, k)."""
    parts = [as_tensor(x) for x in inputs]
    return concatenate([x if x.ndim > 1 else expand_dims(x, -1) for x in parts], 1)


@function()
def array_split(x: TensorLike, sections: Sections, axis: int = 0) -> list[Tensor]:
    """Split along `axis` into `sections` parts, the first ones longer, or at the given places.

    Raises:
        ShapeError: A number of parts is asked for of a size that is known only in the run.
    """
    x = as_tensor(x)
    (axis,) = axes_of(x, axis)
    n = x.shape[axis]
    if isinstance(sections, int):
        if not isinstance(n, int):
            raise ShapeError(
                f"a dimension of symbolic size {n} cannot be split into {sections} parts: give the indices "
                "to split at"
            )
        each, more = divmod(n, sections)
        places: list[SizeLike] = [each * k + builtins.min(k, more) for k in range(1, sections)]
    else:
        places = list(sections)
    ends = [None, *places, None]
    lead = (slice(None),) * axis
    return [x[(*lead, slice(a, b))] for a, b in itertools.pairwise(ends)]


@function()
def split(x: TensorLike, sections: Sections, axis: int = 0) -> list[Tensor]:
    """Split along `axis` into `sections` equal parts, or at the given places.

    Raises:
        ShapeError: There is no such axis, or the number of parts does not divide its size.
    """
    x = as_tensor(x)
    n = x.shape[axes_of(x, axis)[0]]
    if isinstance(sections, int) and isinstance(n, Expr):
        (axis,) = axes_of(x, axis)
        sections = [n // sections * k for k in range(1, sections)]
        pieces = array_split(x, sections, axis)
        return [
            reshape(p, (*x.shape[:axis], sections[0] if sections else n, *x.shape[axis + 1 :]))
            for p in pieces
        ]
    if isinstance(sections, int) and n % sections:
        raise ShapeError(f"{n} elements cannot be split into {sections} equal parts")
    return array_split(x, sections, axis)


@function()
def unstack(x: TensorLike, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the slices along `axis`, of the shape without it."""
    return tuple(moveaxis(x, axis, 0))


@function()
def tile(x: TensorLike, repeats: ShapeLike) -> Tensor:
    """Repeat the whole tensor along each dimension: `repeats` (r) of shape (n) give (r * n)."""
    x, times = as_tensor(x), shape_argument(repeats)
    x = reshape(x, (*(1,) * (len(times) - x.ndim), *x.shape)) if len(times) > x.ndim else x
    return apply(g.Tile, x, repeats=(*(1,) * (x.ndim - len(times)), *times))


@function()
def repeat(x: TensorLike, repeats: TensorLike, axis: int | None = None) -> Tensor:
    """Repeat each element `repeats` times along `axis`; counts that differ by element must be known while
    tracing.
    """
    x = as_tensor(x)
    x, (axis,) = (ravel(x), (0,)) if axis is None else (x, axes_of(x, axis))
    if isinstance(repeats, (int, Expr)):
        wide = broadcast_to(expand_dims(x, axis + 1), (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :]))
        return reshape(wide, (*x.shape[:axis], x.shape[axis] * repeats, *x.shape[axis + 1 :]))
    places = np.repeat(np.arange(x.shape[axis]), np.asarray(repeats))
    return call("take", x, places, axis)


@function()
def flip(x: TensorLike, axis: int | Sequence[int] | None = None) -> Tensor:
    """Reverse the order along axes, by default along all; the shape stays."""
    x = as_tensor(x)
    return apply(g.Flip, x, axes=axes_of(x, axis))


@function()
def fliplr(x: TensorLike) -> Tensor:
    """Reverse the order along the second dimension; the shape stays."""
    return flip(x, 1)


@function()
def flipud(x: TensorLike) -> Tensor:
    """Reverse the order along the first dimension; the shape stays."""
    return flip(x, 0)


@function()
def roll(x: TensorLike, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Tensor:
    """Shift elements along axes; those shifted beyond the end reappear at the start. The shape stays."""
    x = as_tensor(x)
    if axis is None:
        return reshape(roll(ravel(x), shift, 0), x.shape)
    axes = axes_of(x, axis)
    shifts = [shift] * len(axes) if isinstance(shift, int) else list(shift)
    for a, s in zip(axes, shifts, strict=True):
        n = x.shape[a]
        if isinstance(n, int) and n == 0:
            continue
        lead = (slice(None),) * a
        start = -s % n
        x = concatenate([x[(*lead, slice(start, None))], x[(*lead, slice(None, start))]], a)
        x = reshape(x, (*x.shape[:a], n, *x.shape[a + 1 :]))
    return x


@function()
def rot90(x: TensorLike, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    """Rotate by `k` times 90 degrees in the plane of two axes, from the first to the second; odd `k` exchange
    sizes in the shape.
    """
    a, b = axes
    turned = (
        lambda v: v,
        lambda v: swapaxes(flip(v, b), a, b),
        lambda v: flip(v, (a, b)),
        lambda v: flip(swapaxes(v, a, b), b),
    )
    return turned[k % 4](as_tensor(x))


@function()
def pad(
    x: TensorLike,
    pad_width: Dim | Sequence[Dim | Sequence[Dim]] | Array,
    mode: str = "constant",
    constant_values: float | np.generic = 0,
) -> Tensor:
    """Add elements before and after each dimension of the shape; `mode` is constant, edge, reflect or wrap.

    Args:
        x: A tensor of any shape.
        pad_width: The number of elements before and after: one for all dimensions, a pair for all, or a pair
            for each.
        mode: How the new elements are made.
        constant_values: The one number of the mode constant.

    Raises:
        TypeError: `constant_values` is not one number.
        ValueError: The mode is unknown.
    """
    x = as_tensor(x)
    if isinstance(pad_width, (int, Expr)):
        pairs: list[Any] = [(pad_width, pad_width)] * x.ndim
    elif all(isinstance(p, (int, Expr)) for p in pad_width):
        pairs = [tuple(pad_width) if len(pad_width) == 2 else tuple(pad_width) * 2] * x.ndim
    else:
        pairs = list(pad_width) * (x.ndim if len(pad_width) == 1 else 1)
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise ValueError(f"unknown mode {mode!r}; known: constant, edge, reflect, wrap")
    if not is_weak(constant_values) and not isinstance(constant_values, np.generic):
        raise TypeError("constant_values is one number")
    low, high = (tuple(int(p[k]) if not isinstance(p[k], Expr) else p[k] for p in pairs) for k in (0, 1))
    value = np.asarray(constant_values, x.dtype).item()
    return apply(g.Pad, x, None, low=low, high=high, mode=mode, value=value)


@function()
def tril(x: TensorLike, k: int = 0) -> Tensor:
    """Return the lower triangle of (..., m, n), up to diagonal `k`, zeros elsewhere, in the same shape."""
    return apply(g.Triangular, as_tensor(x), upper=False, diagonal=k)


@function()
def triu(x: TensorLike, k: int = 0) -> Tensor:
    """Return the upper triangle of (..., m, n), from diagonal `k`, zeros elsewhere, in the same shape."""
    return apply(g.Triangular, as_tensor(x), upper=True, diagonal=k)


@function()
def diagonal(x: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Return the diagonals of two dimensions of known size, as the last dimension: (n, n, ...) gives (...,
    n).

    Raises:
        ShapeError: There is no such axis, both are the same, or a size is known only in the run.
    """
    x = as_tensor(x)
    a, b = axes_of(x, (axis1, axis2))
    x = moveaxis(x, (a, b), (-2, -1))
    rows, columns = x.shape[-2], x.shape[-1]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise ShapeError(f"the diagonal of shape {x.shape} needs sizes that are known while tracing")
    n = builtins.max(0, builtins.min(rows + builtins.min(offset, 0), columns - builtins.max(offset, 0)))
    k = np.arange(n)
    return x[..., k + builtins.max(-offset, 0), k + builtins.max(offset, 0)]


@function()
def diag(x: TensorLike, k: int = 0) -> Tensor:
    """Return the diagonal of a matrix (m, n), or the matrix (n + abs(k), n + abs(k)) with a vector (n) as its
    diagonal `k`.

    Raises:
        ValueError: `x` is neither a matrix nor a vector.
    """
    x = as_tensor(x)
    if x.ndim == 2:
        return diagonal(x, k)
    (n,) = x.shape
    wide = pad(expand_dims(x, 0), ((0, 0), (builtins.max(k, 0), builtins.max(-k, 0))))
    size = n + abs(k)
    rows, columns = arange(size)[:, None], arange(size)[None, :]
    return where(
        columns - rows == k, wide if k >= 0 else swapaxes(pad(expand_dims(x, 0), ((0, 0), (-k, 0))), 0, 1), 0
    )


# -- Creation ----------------------------------------------------------------------------------------------


@function()
def full(shape: ShapeLike, fill_value: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Return a tensor of one value and a shape; a number without `dtype` is bool, int64 or float32."""
    return broadcast_to(as_tensor(fill_value, dtype), shape)


@function("empty")
def zeros(shape: ShapeLike, dtype: DTypeLike = float) -> Tensor:
    """Return a tensor of zeros of a shape; float32 by default."""
    return full(shape, 0, dtype)


@function()
def ones(shape: ShapeLike, dtype: DTypeLike = float) -> Tensor:
    """Return a tensor of ones of a shape; float32 by default."""
    return full(shape, 1, dtype)


@function()
def full_like(
    x: TensorLike, fill_value: TensorLike, dtype: DTypeLike | None = None, shape: ShapeLike | None = None
) -> Tensor:
    """Return a tensor of one value, by default in the shape and type of `x`."""
    x = as_tensor(x)
    return full(x.shape if shape is None else shape, fill_value, x.dtype if dtype is None else dtype)


@function("empty_like")
def zeros_like(x: TensorLike, dtype: DTypeLike | None = None, shape: ShapeLike | None = None) -> Tensor:
    """Return zeros, by default in the shape and type of `x`."""
    return full_like(x, 0, dtype, shape)


@function()
def ones_like(x: TensorLike, dtype: DTypeLike | None = None, shape: ShapeLike | None = None) -> Tensor:
    """Return ones, by default in the shape and type of `x`."""
    return full_like(x, 1, dtype, shape)


@function()
def arange(
    start: ScalarLike, stop: ScalarLike | None = None, step: ScalarLike = 1, dtype: DTypeLike | None = None
) -> Tensor:
    """Return the numbers from `start` (or 0) to before `stop`, in the shape (n): int64 for integers and
    symbolic sizes, float32 for floats.

    Raises:
        TypeError: A number is symbolic, and another one a float or the step; or there is no such element
            type.
    """
    start, stop = (0, start) if stop is None else (start, stop)
    numbers: list[Any] = [
        x if isinstance(x, (int, float, Expr)) else as_tensor(x).item() for x in (start, stop, step)
    ]
    first, end, by = numbers
    kind = dtype_of(dtype) if dtype is not None else weak_dtype(0.0 if any_float(numbers) else 0)
    if any(isinstance(x, Expr) for x in numbers):
        if any_float(numbers) or isinstance(by, Expr):
            raise TypeError(f"arange to a symbolic size takes integers, not {numbers}")
        length: Any = (end - first + by - 1) // by if by > 0 else (first - end - by - 1) // -by
        return apply(g.Iota, shape=(length,), start=first, step=by, dtype=kind)
    length = builtins.max(0, math.ceil((end - first) / by))
    return concrete((first + by * np.arange(length)).astype(kind.numpy))


def any_float(numbers: Iterable[object]) -> bool:
    """Return whether one of the numbers is a float."""
    return any(isinstance(x, float) for x in numbers)


@function()
def linspace(
    start: float, stop: float, num: int = 50, endpoint: bool = True, dtype: DTypeLike = float
) -> Tensor:
    """Return `num` numbers evenly spaced from `start` to `stop`, in the shape (num)."""
    return concrete(np.linspace(float(start), float(stop), num, endpoint).astype(dtype_of(dtype).numpy))


@function()
def eye(n: ScalarLike, m: ScalarLike | None = None, k: int = 0, dtype: DTypeLike = float) -> Tensor:
    """Return an (n, m) matrix with ones on diagonal `k`, zeros elsewhere."""
    rows, columns = arange(n)[:, None], arange(n if m is None else m)[None, :]
    return astype(columns - rows == k, dtype)


@function()
def identity(n: ScalarLike, dtype: DTypeLike = float) -> Tensor:
    """Return the (n, n) identity matrix."""
    return eye(n, dtype=dtype)


@function()
def tri(n: ScalarLike, m: ScalarLike | None = None, k: int = 0, dtype: DTypeLike = float) -> Tensor:
    """Return an (n, m) matrix with ones up to diagonal `k`, zeros elsewhere."""
    rows, columns = arange(n)[:, None], arange(n if m is None else m)[None, :]
    return astype(columns - rows <= k, dtype)


@function()
def meshgrid(*inputs: TensorLike, indexing: str = "xy") -> list[Tensor]:
    """Return the coordinates of the grid that vectors span, each of the grid's shape."""
    vectors = [ravel(x) for x in inputs]
    order = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        order[:2] = [1, 0]
    shape: list[Any] = [0] * len(vectors)
    for x, d in zip(vectors, order, strict=True):
        shape[d] = x.size
    return [
        broadcast_to(reshape(x, tuple(x.size if k == d else 1 for k in range(len(vectors)))), tuple(shape))
        for x, d in zip(vectors, order, strict=True)
    ]


@function("array")
def asarray(x: TensorLike, dtype: DTypeLike | None = None, copy: bool | None = None) -> Tensor:
    """Return `x` as a tensor of its shape, converted to `dtype`."""
    converted = x if isinstance(x, Tensor) else tensor(x, dtype)
    return converted if dtype is None else astype(converted, dtype)


@function()
def shape(x: TensorLike) -> tuple[Any, ...]:
    """Return the shape of `x`: the size of each dimension."""
    return as_tensor(x).shape


@function()
def ndim(x: TensorLike) -> int:
    """Return the number of dimensions of `x`, of any shape."""
    return as_tensor(x).ndim


@function()
def size(x: TensorLike, axis: int | None = None) -> Any:
    """Return the number of elements of `x`, or its size along `axis`."""
    x = as_tensor(x)
    return x.size if axis is None else x.shape[axis]
