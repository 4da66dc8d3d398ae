"""Indices that are computed at run time: dynamic slices, gather, scatter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim, prove_eq, prove_le
from ....ir.types import DType, TensorType, boolean, i64, u8
from ...complex import Complex, each
from ...unsupported import Unsupported
from ..reading import bindings
from ..registry import importer
from .control_flow import maker, scan_over, scanned_slice, stacked_update
from .reduce import combiner
from .shape import strided

if TYPE_CHECKING:
    from ..node import Node


def _clamped(n: Node, start: Value, last: Dim) -> Value:
    """Convert integers to i64 and clamp them to ``[0, last]``."""
    wide = n.cast(start, i64)
    return n.binary("min", n.binary("max", wide, 0), last)


def _place(n: Node, k: int, axis: int = 0) -> Dim | None:
    """Return an element of operand `k` that is known at compile time or follows from a loop counter, else
    None.
    """
    content = n.content(k)
    return None if content is None else content.reshape(-1)[axis]


def _window(
    n: Node, x: Value, sizes: Sequence[Dim], starts: Sequence[Dim | None], start_of: Callable[[int], Value]
) -> Value:
    """Return `sizes` elements from `starts` on, where the start is moved so that all elements are in range;
    `start_of` returns the start along an axis as a value.
    """
    slice_of_row = scanned_slice(n, sizes, starts[0] if starts else None)
    if slice_of_row is not None:
        return slice_of_row
    for axis, (size, start) in enumerate(zip(sizes, starts, strict=True)):
        whole = x.type.shape[axis]
        if prove_eq(size, whole):
            continue
        if isinstance(start, int) and isinstance(whole, int) and isinstance(size, int):
            start = min(max(start, 0), whole - size)
        if (
            start is not None
            and not n.importer.is_inner(start)
            and prove_le(0, start)
            and prove_le(start, whole - size)
        ):
            shape = x.type.shape
            first = [start if d == axis else 0 for d in range(len(shape))]
            x = n.slice(x, first, [start + size if d == axis else s for d, s in enumerate(shape)])
            continue
        places = n.binary("add", n.iota((size,)), _clamped(n, start_of(axis), whole - size))
        x = n.emit(g.Gather(x, places, axis=axis))
    return x


@importer("dynamic_slice", complex="parts")
def _dynamic_slice(n: Node) -> Value:
    x = n.inputs[0]
    starts = [_place(n, 1 + axis) for axis in range(x.type.rank)]
    return _window(n, x, n.ints("slice_sizes"), starts, lambda axis: n.inputs[1 + axis])


@importer("real_dynamic_slice", complex="parts")
def _real_dynamic_slice(n: Node) -> Value:
    """If the starts depend on data, the sizes are the numbers that the limits add to them."""
    x, starts, _, _ = n.inputs
    steps = n.sizes(3)
    if not all(isinstance(s, int) for s in steps):
        raise Unsupported("steps that depend on sizes")
    first, last = n.content(1), n.content(2)
    if first is not None and last is not None:
        sizes = [b - a for a, b in zip(first, last, strict=True)]
        if not any(map(n.importer.is_inner, (*first, *last))):
            return n.slice(x, list(first), list(last), [s for s in steps if isinstance(s, int)])
    else:
        sizes = _added(n)
    if any(s != 1 for s in steps) or any(map(n.importer.is_inner, sizes)):
        raise Unsupported("steps, or sizes that depend on data, where the starts depend on data")
    known: list[Dim | None] = [None] * x.type.rank if first is None else list(first)
    return _window(n, x, sizes, known, lambda axis: n.reshape(strided(n, starts, 0, axis, 1), ()))


def _added(n: Node) -> list[Dim]:
    """Return the sizes of a slice whose limits are the sums of its starts and its sizes."""
    start, limit = list(n.op.operands)[1:3]
    definition = maker(limit)
    operands = (
        list(definition.operands) if definition is not None and definition.name == "stablehlo.add" else []
    )
    if start in operands:
        other = n.importer.values.get(operands[1 - operands.index(start)])
        content = n.importer.content(other) if other is not None else None
        if content is not None:
            return list(content)
    shape = n.shape()
    if None in shape:
        raise Unsupported("a slice whose size depends on data; it must follow from shapes and constants")
    return [d for d in shape if d is not None]


@importer("dynamic_update_slice", complex="parts")
def _dynamic_update_slice(n: Node) -> Value:
    """Select the update's element where the update lies, else the operand's own."""
    x, update = n.inputs[:2]
    stacked = stacked_update(n)
    if stacked is not None:
        return stacked
    within: Value | None = None
    for axis, (size, whole) in enumerate(zip(update.type.shape, x.type.shape, strict=True)):
        if prove_eq(size, whole):
            continue
        if size == 0:
            return x
        start = _clamped(n, n.inputs[2 + axis], whole - size)
        place = n.binary("sub", n.iota((whole,)), start)
        here = n.binary("and", n.binary("ge", place, 0), n.binary("lt", place, size))
        here = n.reshape(here, [whole if d == axis else 1 for d in range(x.type.rank)])
        within = here if within is None else n.binary("and", within, here)
        update = n.emit(g.Gather(update, _clamped(n, place, size - 1), axis=axis))
    return update if within is None else n.select(within, update, x)


def _vectors(n: Node, indices: Value, axis: int) -> Value:
    """Return index vectors (i64) along the last dimension."""
    indices = n.cast(indices, i64)
    rank = indices.type.rank
    if axis == rank:
        return n.reshape(indices, (*indices.type.shape, 1))
    return n.transpose(indices, [*(d for d in range(rank) if d != axis), axis])


def _column(n: Node, vectors: Value, k: int) -> Value:
    shape = vectors.type.shape
    lead = len(shape) - 1
    part = n.slice(vectors, (*[0] * lead, k), (*shape[:-1], k + 1))
    return n.reshape(part, shape[:-1])


def _along(n: Node, size: Dim, axis: int, rank: int) -> Value:
    """Return ``0, 1, ...`` along one of `rank` dimensions."""
    return n.reshape(n.iota((size,)), [size if d == axis else 1 for d in range(rank)])


def _points(
    n: Node,
    starts: dict[int, Value],
    batching: dict[int, int],
    windows: Sequence[int],
    sizes: Sequence[Dim],
    lead: Sequence[Dim],
) -> tuple[list[int], Value]:
    """Return the indexed dimensions, and an index vector (..., dimensions) for each element of `lead` and of
    the windows.

    `starts` (of shape `lead`) are the first indices along some dimensions. `batching` maps a dimension to the
    dimension of `lead` that it is aligned with. Along `windows` the indices of a window are consecutive.
    """
    shape = [*lead, *(sizes[d] for d in windows)]
    rank, outer = len(shape), len(lead)
    axes = sorted({*starts, *batching, *windows})
    columns = []
    for d in axes:
        place: Value | None = None
        if d in starts:
            place = n.reshape(starts[d], [*lead, *[1] * len(windows)])
        elif d in batching:
            place = _along(n, lead[batching[d]], batching[d], rank)
        if d in windows:
            offset = _along(n, sizes[d], outer + list(windows).index(d), rank)
            place = offset if place is None else n.binary("add", place, offset)
        assert place is not None
        columns.append(n.reshape(n.broadcast(place, shape), (*shape, 1)))
    return axes, n.emit(g.Concat(columns, axis=rank))


@importer("gather", "dynamic_gather", complex="parts")
def _gather(n: Node) -> Value:
    _, stablehlo, *_ = bindings()
    numbers = stablehlo.GatherDimensionNumbers(n.attr("dimension_numbers"))
    x, indices = n.inputs[:2]
    sizes: list[Dim] = list(n.ints("slice_sizes")) if n.has("slice_sizes") else n.sizes(2)
    vectors = _vectors(n, indices, numbers.index_vector_dim)
    lead = vectors.type.shape[:-1]
    mapped, collapsed = list(numbers.start_index_map), list(numbers.collapsed_slice_dims)
    pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    # The dimensions of `lead` are those of the indices except that of the vectors.
    batching = {d: k - (k > numbers.index_vector_dim) for d, k in pairs}
    starts = {
        d: _clamped(n, _column(n, vectors, k), x.type.shape[d] - sizes[d]) for k, d in enumerate(mapped)
    }
    kept = [d for d in range(x.type.rank) if d not in collapsed and d not in batching]
    if (
        len(mapped) == 1
        and not batching
        and all(
            prove_eq(s, w) or d == mapped[0] for d, (s, w) in enumerate(zip(sizes, x.type.shape, strict=True))
        )
        and sizes[mapped[0]] == 1
    ):
        axis = mapped[0]
        y = n.emit(g.Gather(x, starts[axis], axis=axis))
        # (before, lead..., after) -> (lead..., before, after)
        count = len(lead)
        order = [*range(axis, axis + count), *range(axis), *range(axis + count, y.type.rank)]
        y = n.transpose(y, order)
    else:
        full = {d for d in range(x.type.rank) if prove_eq(sizes[d], x.type.shape[d])}
        windows = [
            d for d in kept if not (d in mapped and sizes[d] == 1) and not (d in full and d not in mapped)
        ]
        axes, points = _points(n, starts, batching, windows, sizes, lead)
        rest = [d for d in range(x.type.rank) if d not in axes]
        y = (
            n.emit(g.GatherNd(n.transpose(x, [*axes, *rest]), points))
            if axes
            else n.broadcast(x, (*lead, *x.type.shape))
        )
        # `lead` is followed by the windows, then the rest; windows of one element are missing.
        behind = [*windows, *rest]
        order = sorted(range(len(behind)), key=lambda k: behind[k])
        y = n.transpose(y, [*range(len(lead)), *(len(lead) + k for k in order)])
    y = n.reshape(y, (*lead, *(sizes[d] for d in kept)))
    offsets = list(numbers.offset_dims)
    others = [d for d in range(y.type.rank) if d not in offsets]
    places = [*others, *offsets]
    return n.transpose(y, [places.index(d) for d in range(y.type.rank)])


@importer("scatter", complex="whole")
def _scatter(n: Node) -> list[Any]:
    count = len(n.inputs) // 2
    xs, indices, updates = n.inputs[:count], n.inputs[count], n.inputs[count + 1 :]
    combine = _combiner(n, xs[0].type.dtype) if count == 1 else "body"
    if combine == "body" or (isinstance(xs[0], Complex) and combine not in (None, "sum")):
        if any(isinstance(x, Complex) for x in (*xs, *updates)):
            raise Unsupported("combining complex numbers other than by their sum")
        return _in_turn(n, xs, indices, updates)
    return [each(lambda x, u: _scattered(n, x, indices, u, combine), xs[0], updates[0])]


def _combiner(n: Node, dtype: DType) -> str | None:
    """Return how an update is combined with the current element; None: it replaces it; ``body``: by the
    operation's body.
    """
    block = n.block()
    name = combiner(block, dtype)
    if name is not None:
        return name
    ops = list(block.operations)
    return None if len(ops) == 1 and ops[0].operation.operands[0] == block.arguments[1] else "body"


@dataclass
class Windows:
    """The positions of updates in a tensor of a `shape`, and the arrangement of the updates."""

    shape: Sequence[Dim]
    sizes: list[Dim]
    """The size of a window in each dimension."""
    kept: list[int]
    """The dimensions of the operand that the updates have, too."""
    starts: dict[int, Value]
    """The first index along each indexed dimension, per window."""
    batching: dict[int, int]
    """The batch dimension of the windows that a dimension is aligned with."""
    lead: tuple[Dim, ...]
    """The shape of the windows' numbers."""
    order: list[int]
    """The dimensions of the updates in the order: windows' numbers, then `kept`."""

    @property
    def indexed(self) -> list[int]:
        """The dimensions along which a window has several elements and a computed start."""
        return [
            d
            for d in self.kept
            if not (d in self.starts and self.sizes[d] == 1)
            and not (d not in self.starts and prove_eq(self.sizes[d], self.shape[d]))
        ]


def _windows(n: Node, shape: Sequence[Dim], indices: Value, updates: TensorType) -> Windows:
    _, stablehlo, *_ = bindings()
    numbers = stablehlo.ScatterDimensionNumbers(n.attr("scatter_dimension_numbers"))
    rank = len(shape)
    vectors = _vectors(n, indices, numbers.index_vector_dim)
    pairs = zip(numbers.input_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    batching = {d: k - (k > numbers.index_vector_dim) for d, k in pairs}
    inserted = list(numbers.inserted_window_dims)
    kept = [d for d in range(rank) if d not in inserted and d not in batching]
    window_dims = list(numbers.update_window_dims)
    sizes: list[Dim] = [1] * rank
    for d, k in zip(kept, window_dims, strict=True):
        sizes[d] = updates.shape[k]
    others = [k for k in range(updates.rank) if k not in window_dims]
    starts = {d: _column(n, vectors, k) for k, d in enumerate(numbers.scattered_dims_to_operand_dims)}
    return Windows(shape, sizes, kept, starts, batching, vectors.type.shape[:-1], [*others, *window_dims])


def _inside(n: Node, w: Windows) -> Value | None:
    """Return whether a window is in range as a whole; None: all windows are."""
    inside: Value | None = None
    for d, start in w.starts.items():
        ok = n.binary(
            "and", n.binary("ge", start, 0), n.binary("le", start, n.like(w.shape[d] - w.sizes[d], start))
        )
        inside = ok if inside is None else n.binary("and", inside, ok)
    return inside


def _scattered(n: Node, x: Value, indices: Value, updates: Value, combine: str | None) -> Value:
    """Apply all updates at once, combined by a mode of `graph.scatter_nd`."""
    w = _windows(n, x.type.shape, indices, updates.type)
    updates = n.transpose(updates, w.order)
    if x.type.dtype is boolean and combine is not None:  # `combine` is "or" or "and"
        x, updates = n.cast(x, u8), n.cast(updates, u8)
        y = _placed(n, w, x, updates, "max" if combine == "or" else "min")
        return n.cast(y, boolean)
    return _placed(n, w, x, updates, combine)


def _placed(n: Node, w: Windows, x: Value, updates: Value, combine: str | None) -> Value:
    # A window that is partly out of range is skipped: all of its indices are moved out of range.
    inside = _inside(n, w)
    starts = dict(w.starts)
    if inside is not None:
        starts = {d: n.select(inside, start, n.like(w.shape[d], start)) for d, start in starts.items()}
    windows = w.indexed
    if not (starts or w.batching or windows):  # nothing is indexed: each update is one window over everything
        raise Unsupported("no indexed dimension")
    axes, points = _points(n, starts, w.batching, windows, w.sizes, w.lead)
    rest = [d for d in range(len(w.shape)) if d not in axes]
    # Updates are (lead..., kept...); ScatterNd takes (lead..., windows..., rest...).
    shown = [d for d in w.kept if d in windows or d in rest]
    updates = n.reshape(updates, (*w.lead, *(w.sizes[d] for d in shown)))
    count = len(w.lead)
    updates = n.transpose(updates, [*range(count), *(count + shown.index(d) for d in (*windows, *rest))])
    order = [*axes, *rest]
    y = n.emit(g.ScatterNd(n.transpose(x, order), points, updates, combiner=combine))
    return n.transpose(y, [order.index(d) for d in range(len(order))])


def _in_turn(n: Node, xs: Sequence[Value], indices: Value, updates: Sequence[Value]) -> list[Value]:
    """Apply the windows one after the other; the body combines them with the current elements, of several
    tensors at once.
    """
    w = _windows(n, xs[0].type.shape, indices, updates[0].type)
    count: Dim = 1
    for size in w.lead:
        count = count * size
    starts = dict(w.starts)
    for d, k in w.batching.items():
        starts[d] = n.broadcast(_along(n, w.lead[k], k, len(w.lead)), w.lead)
    rows = [n.reshape(start, (count,)) for start in starts.values()]
    arranged = [n.transpose(u, w.order) for u in updates]
    arranged = [n.reshape(u, (count, *(w.sizes[d] for d in w.kept))) for u in arranged]
    window = [w.sizes[d] for d in range(len(w.shape))]

    def body(*values: Value) -> tuple[list[Value], list[Value]]:
        states, places, news = (
            values[: len(xs)],
            values[len(xs) : len(xs) + len(rows)],
            values[len(xs) + len(rows) : -1],
        )
        here = dict(zip(starts, places, strict=True))
        window_here = Windows(w.shape, w.sizes, list(range(len(w.shape))), here, {}, (), [])
        inside = _inside(n, window_here)
        firsts = [n.reshape(here[d], ()) if d in here else n.constant(0, i64) for d in range(len(w.shape))]
        old = [_window(n, x, window, [None] * len(window), lambda axis: firsts[axis]) for x in states]
        new_rows = [n.broadcast(n.reshape(u, window), window) for u in news]
        combined = n.apply(n.block(), [*old, *new_rows])
        if inside is not None:
            combined = [n.select(inside, y, o) for y, o in zip(combined, old, strict=True)]
            # A window that is out of range writes back the elements that `old` was read from.
            window_here.starts = {d: _clamped(n, s, w.shape[d] - w.sizes[d]) for d, s in here.items()}
        return [
            _placed(n, window_here, x, y, None) if window_here.starts else y
            for x, y in zip(states, combined, strict=True)
        ], []

    return scan_over(n, xs, [*rows, *arranged], body)
