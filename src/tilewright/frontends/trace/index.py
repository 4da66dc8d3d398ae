"""Indexing: NumPy's, with slices, integers, None, Ellipsis, and integer and boolean tensors.

Bounds of slices and integers may be symbolic sizes. What is known while tracing is checked (IndexError); an index that only the run
has, and that lies outside, takes the nearest element.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...dialects import graph as g
from ...dialects.graph.checks import index_message
from ...ir.symbolic import Dim, Expr, prove_le, smax, smin
from ...ir.types import boolean, i64
from .pointwise import astype, clip
from .reductions import axes_of
from .shapes import arange, broadcast_to, common_shape, expand_dims, moveaxis, ravel, reshape, stack
from .tensor import Tensor, apply, as_tensor, concrete, function, value_of
from .tracing import current, user_location


def take_index(x: Tensor, index: Any) -> Tensor:
    """``x[index]``.

    Raises:
        IndexError: too many indices, or one that is known and lies outside.
    """
    parts = _expanded(x, index if isinstance(index, tuple) else (index,))
    advanced = [k for k, p in enumerate(parts) if isinstance(p, Tensor)]
    if advanced:
        # Next to an array a number is an array without dimensions.
        parts = [as_tensor(p) if isinstance(p, (int, Expr)) else p for p in parts]
        advanced = [k for k, p in enumerate(parts) if isinstance(p, Tensor)]
    y = _basic(x, [slice(None) if isinstance(p, Tensor) else p for p in parts])
    if not advanced:
        return y
    # Each part has its dimension in `y`: beside arrays no number is left.
    arrays = [parts[k] for k in advanced]
    together = advanced[-1] - advanced[0] == len(advanced) - 1
    return _gather(y, advanced, arrays, advanced[0] if together else 0)


def _expanded(x: Tensor, index: tuple[Any, ...]) -> list[Any]:
    """One part for each dimension, and the Nones; masks become the indices of their true elements."""
    parts: list[Any] = []
    for p in index:
        if isinstance(p, (list, np.ndarray, bool, np.bool_)):
            p = as_tensor(np.zeros(0, np.int64) if isinstance(p, list) and not p else p)
        if isinstance(p, Tensor) and p.type.dtype is boolean:
            if not p.ndim:
                raise IndexError("a single bool is no index; use tw.where")
            parts.append(_Mask(p))
        elif isinstance(p, Tensor) and not p.type.dtype.is_integer:
            raise IndexError(f"a tensor of {p.dtype} is no index; use integers or bools")
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
    axis, found = 0, []
    for p in parts:
        if isinstance(p, _Mask):
            shape = x.shape[axis : axis + p.mask.ndim]
            for have, want in zip(p.mask.shape, shape, strict=True):
                if isinstance(have, int) and isinstance(want, int) and have != want:
                    raise IndexError(f"a mask of shape {p.mask.shape} does not fit dimensions {shape}")
            found += nonzero(p.mask)
            axis += p.mask.ndim
        else:
            found.append(p)
            axis += p is not None
    return found


@dataclass
class _Mask:
    """A boolean tensor among indices."""

    mask: Tensor


def _basic(x: Tensor, parts: list[Any]) -> Tensor:
    """Slices, numbers and Nones."""
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
    if any(s != 0 or isinstance(s, Expr) for s in starts) or any(s != 1 for s in steps) or tuple(stops) != x.shape:
        y = apply(g.Slice, x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))
    sizes = tuple(y.shape[s.axis] if isinstance(s, _Size) else s for s in shape)
    return y if len(sizes) == y.ndim and sizes == y.shape else reshape(y, sizes)


@dataclass(frozen=True)
class _Size:
    """Stands for the size of a dimension of the slice."""

    axis: int


def _place(p: Any, n: Dim) -> Dim:
    """A number as a place in a dimension, counted from the front."""
    if isinstance(p, int) and isinstance(n, int) and not -n <= p < n:
        raise IndexError(f"index {p} is outside of a dimension of {n} elements")
    place: Dim = p + n if isinstance(p, int) and p < 0 else p
    if not (prove_le(0, place) and prove_le(place + 1, n)):
        place = smax(0, smin(place, n - 1))
    return place


def _bounds(p: slice, n: Dim) -> tuple[Dim, Dim, int]:
    """Start, stop and step of a slice within a dimension."""
    given = [v if v is None or isinstance(v, (int, Expr)) else v.__index__() for v in (p.start, p.stop, p.step)]
    start, stop, step = given[0], given[1], 1 if given[2] is None else given[2]
    if not isinstance(step, int):
        raise TypeError(f"the step of a slice is a number, not {step}")
    if step == 0:
        raise ValueError("the step of a slice is not 0")
    if isinstance(n, int) and not any(isinstance(v, Expr) for v in given):
        start, stop, step = slice(start, stop, step).indices(n)
        return start, (max(stop, start) if step > 0 else min(stop, start)), step
    low, high = (0, n) if step > 0 else (-1, n - 1)

    def inside(v: Any, otherwise: Dim) -> Dim:
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
    """Elements at arrays of indices in dimensions `places`; the arrays' own dimensions stand at `result`."""
    for place, array in zip(places, arrays, strict=True):
        _check(array, x.shape[place])
    if len(places) == 1:
        return apply(g.Gather, x, astype(arrays[0], i64), axis=places[0])  # type: ignore[no-any-return]
    shape = common_shape([a.shape for a in arrays])
    indices = stack([broadcast_to(astype(a, i64), shape) for a in arrays], -1)
    y = apply(g.GatherNd, moveaxis(x, places, list(range(len(places)))), indices)
    rank = len(shape)
    return moveaxis(y, list(range(rank)), list(range(result, result + rank))) if result and rank else y


def _check(index: Tensor, n: Dim) -> None:
    trace = current()
    if index.is_traced and trace is not None:
        place = user_location("index")
        trace.builder.insert(g.CheckIndex(value_of(index), message=index_message(place, n), size=n, location=place))
    if not index.is_traced and isinstance(n, int) and index.size:
        array = index.numpy()
        if array.min() < -n or array.max() >= n:
            wrong = array[(array < -n) | (array >= n)][0]
            raise IndexError(f"index {wrong} is outside of a dimension of {n} elements")


def _flat_places(x: Tensor, index: Any) -> Tensor:
    """Where the elements of ``x[index]`` lie in `x`, counted in a row; of the index's size, however large `x` is."""
    parts = _expanded(x, index if isinstance(index, tuple) else (index,))
    if any(isinstance(p, Tensor) for p in parts):
        parts = [as_tensor(p) if isinstance(p, (int, Expr)) else p for p in parts]
    advanced = [k for k, p in enumerate(parts) if isinstance(p, Tensor)]
    width = len(common_shape([parts[k].shape for k in advanced]))
    # As in `take_index`: where arrays that stand together stand, else in front.
    front = advanced[0] if advanced and advanced[-1] - advanced[0] == len(advanced) - 1 else 0
    own = [k for k, p in enumerate(parts) if k not in advanced and not isinstance(p, (int, Expr))]
    rank = len(own) + width
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
            _check(p, sizes[0])
            found = apply(g.Gather, row, astype(p, i64), axis=0)
            behind = rank - front - width
        else:
            found = _basic(row, [p])
            if k in own:
                at = own.index(k)
                behind = rank - 1 - at - (width if at >= front else 0)
        total = total + reshape(found * step, (*found.shape, *(1,) * behind))
        del sizes[0]
    return reshape(total, ((1,) * (rank - total.ndim) + total.shape))


def _rows(x: Tensor, index: Any) -> Tensor | None:
    """Index vectors in the last dimension, where an index is arrays for the first dimensions and everything of the others."""
    parts = _expanded(x, index if isinstance(index, tuple) else (index,))
    arrays = list(itertools.takewhile(lambda p: isinstance(p, Tensor), parts))
    rest = parts[len(arrays) :]
    if not arrays or not rest or any(p != slice(None) for p in rest):
        return None
    for array, n in zip(arrays, x.shape, strict=False):
        _check(array, n)
    shape = common_shape([a.shape for a in arrays])
    inside = [clip(astype(a, i64), -n, n - 1) for a, n in zip(arrays, x.shape, strict=False)]
    return stack([broadcast_to(a, shape) for a in inside], -1)


class Places:
    """``x.at``; see `Tensor.at`."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __getitem__(self, index: Any) -> Update:
        return Update(self.x, index)


class Update:
    """``x.at[index]``: copies with other elements at the index. Of several values for one place, `set` takes any one."""

    def __init__(self, x: Tensor, index: Any) -> None:
        self.x, self.index = x, index

    def set(self, values: Any) -> Tensor:
        return self._scatter(values, None)

    def add(self, values: Any) -> Tensor:
        return self._scatter(values, "sum")

    def multiply(self, values: Any) -> Tensor:
        return self._scatter(values, "prod")

    def min(self, values: Any) -> Tensor:
        return self._scatter(values, "min")

    def max(self, values: Any) -> Tensor:
        return self._scatter(values, "max")

    def _scatter(self, values: Any, combiner: str | None) -> Tensor:
        rows = _rows(self.x, self.index)
        if rows is not None:  # whole slices, of which lanes and threads take their parts
            shape = (*rows.shape[:-1], *self.x.shape[rows.shape[-1] :])  # type: ignore[misc]
            updates = broadcast_to(as_tensor(values, self.x.dtype), shape)
            return apply(g.ScatterNd, self.x, rows, updates, combiner=combiner)  # type: ignore[no-any-return]
        places = _flat_places(self.x, self.index)
        updates = broadcast_to(as_tensor(values, self.x.dtype), places.shape)
        flat = apply(g.ScatterElements, ravel(self.x), ravel(places), ravel(updates), axis=0, combiner=combiner)
        return reshape(flat, self.x.shape)


@function()
def nonzero(x: Any) -> tuple[Tensor, ...]:
    """For each dimension the indices of the elements that are not 0; how many is a symbolic size in traced functions."""
    found = argwhere(x)
    return tuple(found[:, k] for k in range(as_tensor(x).ndim))


@function()
def argwhere(x: Any) -> Tensor:
    """The index vectors of the elements that are not 0, in row-major order."""
    x = as_tensor(x)
    trace = current()
    if not x.is_traced or trace is None:
        return concrete(np.argwhere(x.numpy()).astype(np.int64))
    return apply(g.NonZero, x, count=trace.new_symbol("found", x.size))  # type: ignore[no-any-return]


@function()
def flatnonzero(x: Any) -> Tensor:
    return nonzero(ravel(x))[0]


@function()
def compress(condition: Any, x: Any, axis: int | None = None) -> Tensor:
    return take(x, flatnonzero(condition), axis)


@function()
def take(x: Any, indices: Any, axis: int | None = None) -> Tensor:
    x = as_tensor(x)
    x, (axis,) = (ravel(x), (0,)) if axis is None else (x, axes_of(x, axis))
    return take_index(x, (*(slice(None),) * axis, as_tensor(indices)))


@function()
def take_along_axis(x: Any, indices: Any, axis: int = -1) -> Tensor:
    x, indices = as_tensor(x), as_tensor(indices)
    (axis,) = axes_of(x, axis)
    _check(indices, x.shape[axis])
    lead = common_shape([(*s[:axis], 1, *s[axis + 1 :]) for s in (x.shape, indices.shape)])
    x, indices = (broadcast_to(v, (*lead[:axis], v.shape[axis], *lead[axis + 1 :])) for v in (x, indices))
    return apply(g.GatherElements, x, astype(indices, i64), axis=axis)  # type: ignore[no-any-return]


@function()
def diff(x: Any, n: int = 1, axis: int = -1) -> Tensor:
    """The `n`-th differences of neighbours."""
    x = as_tensor(x)
    (axis,) = axes_of(x, axis)
    lead = (slice(None),) * axis
    for _ in range(n):
        x = x[(*lead, slice(1, None))] - x[(*lead, slice(None, -1))]
    return x


@function()
def isin(x: Any, elements: Any) -> Tensor:
    x, elements = as_tensor(x), ravel(elements)
    return (expand_dims(x, -1) == elements).any(-1)  # type: ignore[no-any-return]


@function()
def searchsorted(ordered: Any, values: Any, side: str = "left") -> Tensor:
    """Where values would be inserted into an ordered vector."""
    ordered, values = as_tensor(ordered), expand_dims(values, -1)
    before = ordered < values if side == "left" else ordered <= values
    return before.sum(-1)  # type: ignore[no-any-return]
