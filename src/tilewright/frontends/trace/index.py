"""NumPy's indexing: slices, integers, None, Ellipsis, integer and boolean tensors.

Bounds of slices and integers may be symbolic sizes. An index that is known while tracing is checked
(IndexError). A number that is a symbolic size and lies outside in a run selects the nearest element.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...dialects import graph as g
from ...dialects.graph.checks import index_message
from ...errors import ShapeError
from ...ir.symbolic import Dim, Expr, prove_le, smax, smin
from ...ir.types import boolean, i64
from .operands import apply, as_tensor, value_of
from .pointwise import astype, clip
from .reductions import axes_of
from .registry import FUNCTIONS, function
from .shapes import arange, broadcast_to, common_shape, expand_dims, moveaxis, ravel, reshape, stack
from .tensor import Index, Tensor, TensorLike, concrete
from .tracing import current, user_location


def take_index(x: Tensor, index: Index) -> Tensor:
    """Return ``x[index]``.

    Raises:
        IndexError: There are too many indices, or one that is known while tracing lies outside.
    """
    parts = _expanded(x, index if isinstance(index, tuple) else (index,))
    advanced = [k for k, p in enumerate(parts) if isinstance(p, Tensor)]
    if advanced:
        # Beside an array, a number counts as an array without dimensions, as in NumPy.
        parts = [as_tensor(p) if isinstance(p, (int, Expr)) else p for p in parts]
        advanced = [k for k, p in enumerate(parts) if isinstance(p, Tensor)]
    y = _basic(x, [slice(None) if isinstance(p, Tensor) else p for p in parts])
    if not advanced:
        return y
    # Now each part has its dimension in `y`, as no number is left beside arrays.
    arrays = [parts[k] for k in advanced]
    together = advanced[-1] - advanced[0] == len(advanced) - 1
    return _gather(y, advanced, arrays, advanced[0] if together else 0)


def _expanded(x: Tensor, index: tuple[Any, ...]) -> list[Any]:
    """Return one part for each dimension, and the Nones; masks become the indices of their true elements."""
    parts: list[Any] = []
    for p in index:
        if isinstance(p, (list, np.ndarray, bool, np.bool_)):
            p = as_tensor(np.zeros(0, np.int64) if isinstance(p, list) and not p else p)
        if isinstance(p, Tensor) and p.type.dtype is boolean:
            if not p.ndim:
                raise IndexError("a single bool cannot be an index; use tw.where")
            parts.append(_Mask(p))
        elif isinstance(p, Tensor) and not p.type.dtype.is_integer:
            raise IndexError(f"a tensor of {p.dtype} cannot be an index; use integers or bools")
        elif p is None or p is Ellipsis or isinstance(p, (slice, Tensor, Expr)):
            parts.append(p)
        else:
            parts.append(p.__index__())
    used = sum(p.mask.ndim if isinstance(p, _Mask) else p is not None and p is not Ellipsis for p in parts)
    if used > x.ndim:
        raise IndexError(f"{used} indices for a tensor of {x.ndim} dimensions")
    dots = [k for k, p in enumerate(parts) if p is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index has at most one '...'")
    whole = [slice(None)] * (x.ndim - used)
    parts = [*parts[: dots[0]], *whole, *parts[dots[0] + 1 :]] if dots else [*parts, *whole]
    axis = 0
    expanded: list[Any] = []
    for p in parts:
        if isinstance(p, _Mask):
            shape = x.shape[axis : axis + p.mask.ndim]
            for have, want in zip(p.mask.shape, shape, strict=True):
                if isinstance(have, int) and isinstance(want, int) and have != want:
                    raise IndexError(f"a mask of shape {p.mask.shape} does not fit dimensions {shape}")
            expanded += nonzero(p.mask)
            axis += p.mask.ndim
        else:
            expanded.append(p)
            axis += p is not None
    return expanded


@dataclass
class _Mask:
    """A boolean tensor among indices."""

    mask: Tensor


def _basic(x: Tensor, parts: list[Any]) -> Tensor:
    """Apply slices, numbers and Nones, one for each dimension."""
    starts: list[Dim] = []
    stops: list[Dim] = []
    steps: list[int] = []
    shape: list[Any] = []
    for p in parts:
        if p is None:
            shape.append(1)
            continue
        n = x.shape[len(starts)]
        if isinstance(p, slice):
            start, stop, step = _bounds(p, n)
            shape.append(_Size(len(starts)))
        else:
            start = _place(p, n)
            stop, step = start + 1, 1
        starts.append(start)
        stops.append(stop)
        steps.append(step)
    y = x
    if (
        any(s != 0 or isinstance(s, Expr) for s in starts)
        or any(s != 1 for s in steps)
        or tuple(stops) != x.shape
    ):
        y = apply(g.Slice, x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))
    sizes = tuple(y.shape[s.axis] if isinstance(s, _Size) else s for s in shape)
    return y if len(sizes) == y.ndim and sizes == y.shape else reshape(y, sizes)


@dataclass(frozen=True)
class _Size:
    """A placeholder for the size of a dimension of the slice."""

    axis: int


def _place(p: Dim, n: Dim) -> Dim:
    """Return a number as a place in a dimension of size `n`, counted from the front."""
    if isinstance(p, int) and isinstance(n, int) and not -n <= p < n:
        raise IndexError(f"index {p} is outside of a dimension of {n} elements")
    place: Dim = p + n if isinstance(p, int) and p < 0 else p
    if not (prove_le(0, place) and prove_le(place + 1, n)):
        place = smax(0, smin(place, n - 1))
    return place


def _bounds(p: slice, n: Dim) -> tuple[Dim, Dim, int]:
    """Return start, stop and step of a slice within a dimension of size `n`."""
    bounds = [
        v if v is None or isinstance(v, (int, Expr)) else operator.index(v) for v in (p.start, p.stop, p.step)
    ]
    start, stop, step = bounds[0], bounds[1], 1 if bounds[2] is None else bounds[2]
    if not isinstance(step, int):
        raise TypeError(f"the step of a slice must be an integer, not {step}")
    if step == 0:
        raise ValueError("the step of a slice cannot be 0")
    if isinstance(n, int) and not any(isinstance(v, Expr) for v in bounds):
        start, stop, step = slice(start, stop, step).indices(n)
        return start, (max(stop, start) if step > 0 else min(stop, start)), step
    low, high = (0, n) if step > 0 else (-1, n - 1)

    def inside(v: Dim | None, otherwise: Dim) -> Dim:
        if v is None:
            return otherwise
        v = v + n if isinstance(v, int) and v < 0 else v
        return smax(low, smin(v, high))

    start, stop = inside(start, low if step > 0 else high), inside(stop, high if step > 0 else low)
    if step > 0 and not prove_le(start, stop):
        stop = smax(start, stop)
    if step < 0 and not prove_le(stop, start):
        stop = smin(start, stop)
    return start, stop, step


def _gather(x: Tensor, places: list[int], arrays: list[Tensor], result: int) -> Tensor:
    """Return the elements at arrays of indices in dimensions `places`; the arrays' dimensions begin at
    `result`.
    """
    for place, array in zip(places, arrays, strict=True):
        check_index(array, x.shape[place])
    if len(places) == 1:
        return apply(g.Gather, x, astype(arrays[0], i64), axis=places[0])
    shape = common_shape([a.shape for a in arrays])
    indices = stack([broadcast_to(astype(a, i64), shape) for a in arrays], -1)
    y = apply(g.GatherNd, moveaxis(x, places, list(range(len(places)))), indices)
    rank = len(shape)
    return moveaxis(y, list(range(rank)), list(range(result, result + rank))) if result and rank else y


def check_index(index: Tensor, n: Dim, wraps: bool = True) -> None:
    """Check indices into a dimension of `n` elements: now if they are known, else in the run. If `wraps`,
    negative ones count from its end.

    Raises:
        IndexError: A known index is outside.
    """
    trace = current()
    if index.is_traced and trace is not None:
        place = user_location("index")
        trace.builder.insert(
            g.CheckIndex(
                value_of(index), message=index_message(place, n, wraps), size=n, wraps=wraps, location=place
            )
        )
    if not index.is_traced and isinstance(n, int) and index.size:
        array = index.numpy()
        least = -n if wraps else 0
        if array.min() < least or array.max() >= n:
            wrong = array[(array < least) | (array >= n)][0]
            raise IndexError(f"index {wrong} is outside of a dimension of {n} elements")


def _flat_places(x: Tensor, index: Index) -> Tensor:
    """Return the row-major positions in `x` of the elements of ``x[index]``.

    The work grows with the number of indexed elements, not with the size of `x`.
    """
    parts = _expanded(x, index if isinstance(index, tuple) else (index,))
    if any(isinstance(p, Tensor) for p in parts):
        parts = [as_tensor(p) if isinstance(p, (int, Expr)) else p for p in parts]
    advanced = [k for k, p in enumerate(parts) if isinstance(p, Tensor)]
    width = len(common_shape([parts[k].shape for k in advanced]))
    # As in `take_index`: the arrays' dimensions stand at the first array if all arrays are adjacent, else in
    # front.
    front = advanced[0] if advanced and advanced[-1] - advanced[0] == len(advanced) - 1 else 0
    sliced = [k for k, p in enumerate(parts) if k not in advanced and not isinstance(p, (int, Expr))]
    rank = len(sliced) + width
    total, sizes = as_tensor(0), list(x.shape)
    for k, p in enumerate(parts):
        if p is None:
            continue
        step: Dim = 1
        for n in sizes[1:]:
            step = step * n
        row = arange(sizes[0])
        behind = 0
        if isinstance(p, Tensor):
            check_index(p, sizes[0])
            positions = apply(g.Gather, row, astype(p, i64), axis=0)
            behind = rank - front - width
        else:
            positions = _basic(row, [p])
            if k in sliced:
                at = sliced.index(k)
                behind = rank - 1 - at - (width if at >= front else 0)
        total = total + reshape(positions * step, (*positions.shape, *(1,) * behind))
        del sizes[0]
    return reshape(total, ((1,) * (rank - total.ndim) + total.shape))


@dataclass(frozen=True)
class _Slices:
    """An index of arrays for the dimensions `axes` and of whole slices for all others.

    `vectors` (..., len(axes)) are the index vectors. The arrays' dimensions begin at `front` in the shape of
    ``x[index]``.
    """

    vectors: Tensor
    axes: tuple[int, ...]
    front: int


def _slices(x: Tensor, index: Index) -> _Slices | None:
    """Return the description of an index of arrays and whole slices, at least one of each; None for any other
    index.
    """
    parts = _expanded(x, index if isinstance(index, tuple) else (index,))
    axes = tuple(k for k, p in enumerate(parts) if isinstance(p, Tensor))
    rest = [p for p in parts if not isinstance(p, Tensor)]
    if not axes or not rest or any(p != slice(None) for p in rest):
        return None
    arrays, sizes = [parts[k] for k in axes], [x.shape[k] for k in axes]
    for array, n in zip(arrays, sizes, strict=True):
        check_index(array, n)
    shape = common_shape([a.shape for a in arrays])
    inside = [clip(astype(a, i64), -n, n - 1) for a, n in zip(arrays, sizes, strict=True)]
    vectors = stack([broadcast_to(a, shape) for a in inside], -1)
    return _Slices(vectors, axes, axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0)


class Places:
    """The value of ``x.at``; see `Tensor.at`."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __getitem__(self, index: Index) -> Update:
        return Update(self.x, index)


class Update:
    """The value of ``x.at[index]``: its methods return copies of `x` with other elements at the index.

    `values` are broadcast to the shape of ``x[index]``. If one place is indexed several times, `set` stores
    any one of its values; the other methods combine all.
    """

    def __init__(self, x: Tensor, index: Index) -> None:
        self.x, self.index = x, index

    def set(self, values: TensorLike) -> Tensor:
        """Return a copy with `values` at the index."""
        return self._scatter(values, None)

    def add(self, values: TensorLike) -> Tensor:
        """Return a copy with `values` added to the elements at the index."""
        return self._scatter(values, "sum")

    def multiply(self, values: TensorLike) -> Tensor:
        """Return a copy with the elements at the index multiplied by `values`."""
        return self._scatter(values, "prod")

    def min(self, values: TensorLike) -> Tensor:
        """Return a copy with the smaller of each element at the index and its value."""
        return self._scatter(values, "min")

    def max(self, values: TensorLike) -> Tensor:
        """Return a copy with the larger of each element at the index and its value."""
        return self._scatter(values, "max")

    def _scatter(self, values: TensorLike, combiner: str | None) -> Tensor:
        slices = _slices(self.x, self.index)
        if slices is not None:  # Whole slices are copied in vectors and split between threads.
            shape, axes, front = slices.vectors.shape[:-1], slices.axes, slices.front
            rest = tuple(n for k, n in enumerate(self.x.shape) if k not in axes)
            updates = broadcast_to(as_tensor(values, self.x.dtype), (*rest[:front], *shape, *rest[front:]))
            if front and shape:
                lead = range(len(shape))
                updates = moveaxis(updates, [front + k for k in lead], list(lead))
            in_front = axes == tuple(range(len(axes)))
            return apply(
                g.ScatterNd,
                self.x,
                slices.vectors,
                updates,
                combiner=combiner,
                axes=() if in_front else axes,
            )
        places = _flat_places(self.x, self.index)
        updates = broadcast_to(as_tensor(values, self.x.dtype), places.shape)
        flat = apply(
            g.ScatterElements, ravel(self.x), ravel(places), ravel(updates), axis=0, combiner=combiner
        )
        return reshape(flat, self.x.shape)


@function()
def nonzero(x: TensorLike) -> tuple[Tensor, ...]:
    """Return, for each dimension, the indices (int64) of the elements that are not 0, in the shape (n).

    In a traced function n is a symbolic size.
    """
    vectors = argwhere(x)
    return tuple(vectors[:, k] for k in range(as_tensor(x).ndim))


@function()
def argwhere(x: TensorLike) -> Tensor:
    """Return the index vectors (int64) of the elements that are not 0, in row-major order, in the shape (n,
    rank).

    In a traced function n is a symbolic size.
    """
    x = as_tensor(x)
    trace = current()
    if not x.is_traced or trace is None:
        return concrete(np.argwhere(x.numpy()).astype(np.int64))
    return apply(g.NonZero, x, count=trace.new_symbol("found", x.size))


@function()
def flatnonzero(x: TensorLike) -> Tensor:
    """Return the row-major positions (int64) of the elements that are not 0, in the shape (n)."""
    return nonzero(ravel(x))[0]


@function()
def compress(condition: TensorLike, x: TensorLike, axis: int | None = None) -> Tensor:
    """Return the slices along `axis` for which the condition holds."""
    return take(x, flatnonzero(condition), axis)


@function()
def take(x: TensorLike, indices: TensorLike, axis: int | None = None) -> Tensor:
    """Return the elements at integer `indices` along `axis`, of all in row-major order for None."""
    x = as_tensor(x)
    x, (axis,) = (ravel(x), (0,)) if axis is None else (x, axes_of(x, axis))
    return take_index(x, (*(slice(None),) * axis, as_tensor(indices)))


@function()
def take_along_axis(x: TensorLike, indices: TensorLike, axis: int = -1) -> Tensor:
    """Return the elements at `indices` along `axis`: (..., n) and indices (..., k) give (..., k); others
    broadcast.

    Raises:
        IndexError: An index that is known while tracing lies outside of the dimension, or `indices` are no
            integers.
        ShapeError: There is no such axis, the ranks differ, or the other dimensions do not broadcast.
    """
    x, indices = as_tensor(x), as_tensor(indices)
    (axis,) = axes_of(x, axis)
    if indices.ndim != x.ndim:
        raise ShapeError(f"indices have shape {indices.shape}, the data {x.shape} (at {user_location('')})")
    if not indices.type.dtype.is_integer:
        raise IndexError(f"a tensor of {indices.dtype} cannot be an index here; use integers")
    check_index(indices, x.shape[axis])
    lead = common_shape([(*s[:axis], 1, *s[axis + 1 :]) for s in (x.shape, indices.shape)])
    x, indices = (broadcast_to(v, (*lead[:axis], v.shape[axis], *lead[axis + 1 :])) for v in (x, indices))
    return apply(g.GatherElements, x, astype(indices, i64), axis=axis)


@function()
def diff(x: TensorLike, n: int = 1, axis: int = -1) -> Tensor:
    """Return the `n`-th differences of neighbours along `axis`."""
    x = as_tensor(x)
    (axis,) = axes_of(x, axis)
    lead = (slice(None),) * axis
    for _ in range(n):
        x = x[(*lead, slice(1, None))] - x[(*lead, slice(None, -1))]
    return x


@function()
def isin(x: TensorLike, elements: TensorLike) -> Tensor:
    """Elementwise test whether elements of `x` are among `elements`, of any shape, as bools."""
    x, elements = as_tensor(x), ravel(elements)
    return (expand_dims(x, -1) == elements).any(-1)


@function()
def searchsorted(ordered: TensorLike, values: TensorLike, side: str = "left") -> Tensor:
    """Return the positions (int64) at which `values` would be inserted into an ordered vector (n), in their
    shape.
    """
    ordered, values = as_tensor(ordered), expand_dims(values, -1)
    before = ordered < values if side == "left" else ordered <= values
    return before.sum(-1)


FUNCTIONS["Tensor.__getitem__"] = take_index
FUNCTIONS["Tensor.at"] = Places
