"""Accesses at positions that depend on data: embedding, gather, scatter, indexing with tensors, sorting."""

from __future__ import annotations

from collections.abc import Sequence

from ....dialects import graph as g
from ....dialects.graph.base import broadcast_shapes
from ....ir.core import Value
from ....ir.symbolic import Dim, prove_eq
from ....ir.types import boolean, i64, u8
from ..importer import Node
from ..registry import importer
from ..symbols import TorchSize
from .shape import sliced


@importer("aten.embedding.default")
def embedding(n: Node, table: Value, indices: Value, *_: object) -> Value:
    n.expect_index(indices, table.type.shape[0], wraps=False)
    return n.emit(g.Gather(table, indices, axis=0))


@importer("aten.index_select.default")
def index_select(n: Node, x: Value, dim: int, indices: Value) -> Value:
    axis = dim % max(x.type.rank, 1)
    line = x if x.type.rank else n.reshape(x, (1,))
    n.expect_index(indices, line.type.shape[axis], wraps=False)
    return n.reshape(n.emit(g.Gather(line, indices, axis=axis)), n.result_shape())


@importer("aten.unfold.default", "aten.unfold_copy.default")
def unfold(n: Node, x: Value, dim: int, size: int, step: int) -> Value:
    """Return windows of `size` elements every `step`, in a new last dimension."""
    if not x.type.rank:
        return sliced(n, n.reshape(x, (1,)), 0, 0, size)
    axis = dim % x.type.rank
    count = n.result_shape()[axis]
    first = n.emit(g.Iota(shape=(count, 1), axis=0, step=step))
    where = n.binary("add", first, n.emit(g.Iota(shape=(1, size), axis=1)))
    y = n.emit(g.Gather(x, where, axis=axis))
    return n.transpose(y, [k for k in range(y.type.rank) if k != axis + 1] + [axis + 1])


@importer("aten.take.default")
def take(n: Node, x: Value, indices: Value) -> Value:
    n.expect_index(indices, x.type.size)
    return n.emit(g.Gather(n.reshape(x, (x.type.size,)), indices, axis=0))


@importer("aten.take_along_dim.default")
def take_along_dim(n: Node, x: Value, indices: Value, dim: int | None = None) -> Value:
    if dim is None:
        return take(n, x, n.reshape(indices, (indices.type.size,)))
    axis = dim % x.type.rank
    n.expect_index(indices, x.type.shape[axis])
    shape = broadcast_shapes(*([*v.type.shape[:axis], 1, *v.type.shape[axis + 1 :]] for v in (x, indices)))
    x = n.broadcast(x, (*shape[:axis], x.type.shape[axis], *shape[axis + 1 :]))
    indices = n.broadcast(indices, (*shape[:axis], indices.type.shape[axis], *shape[axis + 1 :]))
    return n.emit(g.GatherElements(x, indices, axis=axis))


@importer("aten.gather.default")
def gather(n: Node, x: Value, dim: int, indices: Value, **_: object) -> Value:
    if n.result_shape() and 0 in n.result_shape():  # torch then does not check the sizes further.
        return n.broadcast(n.scalar(0, x.type.dtype), n.result_shape())
    if not (x.type.rank and indices.type.rank):  # A scalar counts as a vector of one element.
        line, where = (n.reshape(v, (v.type.size,)) for v in (x, indices))
        n.expect_index(where, line.type.size, wraps=False)
        return n.reshape(n.emit(g.Gather(line, where, axis=0)), n.result_shape())
    n.expect_index(indices, x.type.shape[dim], wraps=False)
    return n.emit(g.GatherElements(x, indices, axis=dim % x.type.rank))


def _index_vectors(n: Node, indices: Sequence[Value]) -> tuple[Value, tuple[Dim, ...]]:
    """Return index tensors broadcast together and stacked in a new last dimension, and their common shape."""
    shape = broadcast_shapes(*(i.type.shape for i in indices))
    columns = [n.reshape(n.broadcast(n.cast(i, i64), shape), (*shape, 1)) for i in indices]
    return (n.emit(g.Concat(columns, axis=len(shape))) if len(columns) > 1 else columns[0]), shape


def places(n: Node, mask: Value, size: TorchSize = 0) -> list[Value]:
    """Return, for each dimension of `mask`, the index (i64) of each element that is not 0; `size` is torch's
    symbol for their number.
    """
    count = n.run_time_size(size, mask.type.size)
    vectors = n.emit(g.NonZero(mask, count=count))
    return [n.reshape(sliced(n, vectors, 1, d, 1), (count,)) for d in range(mask.type.rank)]


def _indexed(
    n: Node, x: Value, indices: Sequence[Value | None], size: TorchSize = 0
) -> tuple[list[int], list[Value]]:
    """Return the indexed dimensions of `x` and their index tensors. A mask becomes the indices where it
    holds, `size` in number for torch.
    """
    dims: list[int] = []
    tensors: list[Value] = []
    d = 0
    counted: Dim | None = None
    for i in indices:
        if i is not None and i.type.dtype in (boolean, u8):
            indices_of_mask = places(n, i, size if counted is None else 0)
            if counted is not None:  # Several masks are combined element by element.
                indices_of_mask = [n.assume(p, (counted,)) for p in indices_of_mask]
            counted = indices_of_mask[0].type.shape[0]
            tensors += indices_of_mask
            dims += range(d, d + len(indices_of_mask))
            d += len(indices_of_mask)
        else:
            if i is not None:
                if "_unsafe" not in str(n.fx.target):
                    n.expect_index(i, x.type.shape[d])
                tensors.append(i)
                dims.append(d)
            d += 1
    return dims, tensors


def unbacked(n: Node) -> TorchSize:
    """Return torch's symbol for the size of the result that this operator computes in the run; 0 if it has
    none.
    """
    size: TorchSize = next(iter(n.fx.meta.get("unbacked_bindings") or ()), 0)
    return size


@importer("aten.nonzero.default")
def nonzero(n: Node, x: Value) -> Value:
    if isinstance(n.meta.shape[0], int):
        return nonzero_static(n, x, size=n.meta.shape[0])
    return n.emit(g.NonZero(x, count=n.run_time_size(n.meta.shape[0])))


@importer("aten.nonzero_static.default")
def nonzero_static(n: Node, x: Value, *, size: Dim, fill_value: int = -1) -> Value:
    """Return the indices of the first `size` elements that are not 0, filled up with `fill_value`."""
    shape, count = x.type.shape, x.type.size
    held = n.cast(n.cast(n.reshape(x, (count,)), boolean), i64)
    none = n.scalar(size, i64)  # An index outside of the result, where nothing is written.
    positions = n.emit(g.Cumsum(held, axis=0, exclusive=True))
    positions = n.emit(g.Select(n.cast(held, boolean), positions, none))
    empty = n.broadcast(n.constant(-1, i64), (size,))
    flat = n.emit(g.ScatterElements(empty, positions, n.emit(g.Iota(shape=(count,))), axis=0))
    flat = n.reshape(flat, (size, 1))
    strides: list[Dim] = [1]
    for d in shape[:0:-1]:
        strides.insert(0, strides[0] * d)
    steps, sizes = (
        n.emit(g.Symbolic(values=tuple(v), shape=(len(shape),))) for v in (strides[: len(shape)], shape)
    )
    places = n.binary("mod", n.binary("floordiv", flat, steps), sizes)
    return n.emit(g.Select(n.binary("lt", flat, n.constant(0, i64)), n.constant(fill_value, i64), places))


@importer("aten.masked_select.default")
def masked_select(n: Node, x: Value, mask: Value) -> Value:
    shape = broadcast_shapes(x.type.shape, mask.type.shape)
    flat = [n.reshape(v, (v.type.size,)) for v in (n.broadcast(x, shape), n.broadcast(mask, shape))]
    return n.emit(g.Gather(flat[0], places(n, flat[1], n.meta.shape[0])[0], axis=0))


def _is_outer(dims: Sequence[int], indices: Sequence[Value]) -> bool:
    """Return whether adjacent dimensions are indexed independently, each along one dimension of the result
    (``numpy.ix_``).
    """
    rank = len(dims)
    if list(dims) != list(range(dims[0], dims[0] + rank)) or max(i.type.rank for i in indices) != rank:
        return False
    shapes = [(1,) * (rank - i.type.rank) + tuple(i.type.shape) for i in indices]
    return all(s[d] == 1 for k, s in enumerate(shapes) for d in range(rank) if d != k)


@importer("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(n: Node, x: Value, indices: Sequence[Value | None]) -> Value:
    """Return NumPy's advanced indexing: index tensors are broadcast; their dimensions stand at the first
    one's place if they are adjacent, else in front.
    """
    dims, tensors = _indexed(n, x, indices, unbacked(n))
    if not dims:
        return x
    if len(dims) == 1:
        return n.emit(g.Gather(x, tensors[0], axis=dims[0]))
    if _is_outer(dims, tensors):
        for d, i in zip(dims, tensors, strict=True):
            x = n.emit(g.Gather(x, n.reshape(i, (i.type.size,)), axis=d))
        return x
    rest = [d for d in range(x.type.rank) if d not in dims]
    vectors, shape = _index_vectors(n, tensors)
    y = n.emit(g.GatherNd(n.transpose(x, [*dims, *rest]), vectors))
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    before = dims[0] if adjacent else 0
    lead = len(shape)
    return n.transpose(y, [*range(lead, lead + before), *range(lead), *range(lead + before, y.type.rank)])


@importer("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(
    n: Node, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Value:
    if (
        all(i is not None and i.type.dtype is boolean for i in indices)
        and len(indices) == 1
        and not accumulate
    ):
        mask = indices[0]
        assert mask is not None
        if values.type.size == 1:
            mask = n.reshape(mask, (*mask.type.shape, *[1] * (x.type.rank - mask.type.rank)))
            return n.emit(g.Select(mask, n.reshape(n.cast(values, x.type.dtype), ()), x))
    dims, tensors = _indexed(n, x, indices)
    rest = [d for d in range(x.type.rank) if d not in dims]
    vectors, shape = _index_vectors(n, tensors)
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    before = dims[0] if adjacent else 0
    lead, tail = len(shape), [x.type.shape[d] for d in rest]
    # `values` are broadcast to the shape that indexing gives; updates need the index dimensions in front.
    target = (*tail[:before], *shape, *tail[before:])
    values = n.cast(values, x.type.dtype)
    value_shape = values.type.shape
    wanted = [
        d if d == 1 else t for d, t in zip(value_shape, target[len(target) - len(value_shape) :], strict=True)
    ]
    if any(
        not (isinstance(d, int) and isinstance(t, int) or prove_eq(d, t))
        for d, t in zip(value_shape, wanted, strict=True)
    ):
        # The number of values that a mask selects, or other sizes of the run, can be compared only in the
        # run.
        values = n.assume(values, wanted)
    values = n.broadcast(values, target)
    updates = n.transpose(
        values, [*range(before, before + lead), *range(before), *range(before + lead, values.type.rank)]
    )
    axes = () if dims == list(range(len(dims))) else tuple(dims)
    return n.emit(g.ScatterNd(x, vectors, updates, combiner="sum" if accumulate else None, axes=axes))


@importer("aten.select_scatter.default")
def select_scatter(n: Node, x: Value, source: Value, dim: int, where: Dim) -> Value:
    axis = dim % x.type.rank
    shape = x.type.shape
    start = where + shape[axis] if isinstance(where, int) and where < 0 else where
    middle = n.reshape(n.cast(source, x.type.dtype), (*shape[:axis], 1, *shape[axis + 1 :]))
    return _replaced(n, x, middle, axis, start)


@importer("aten.slice_scatter.default")
def slice_scatter(
    n: Node,
    x: Value,
    source: Value,
    dim: int = 0,
    start: Dim | None = None,
    stop: object = None,
    step: int = 1,
) -> Value:
    from .shape import position

    axis = dim % x.type.rank
    size = x.type.shape[axis]
    begin = position(0 if start is None else start, size)
    source = n.cast(source, x.type.dtype)
    length = source.type.shape[axis]
    if step == 1:
        return _replaced(n, x, source, axis, begin)
    # Each place takes the element of the source whose distance is a multiple of the step.
    rest = [1] * (x.type.rank - axis - 1)
    here = n.binary("sub", n.emit(g.Iota(shape=(size,))), n.scalar(begin, i64))
    step_ = n.constant(step, i64)
    which = n.binary("floordiv", here, step_)
    hit = n.binary("eq", n.binary("mod", here, step_), n.constant(0, i64))
    hit = n.binary("and", hit, n.binary("ge", here, n.constant(0, i64)))
    hit = n.binary("and", hit, n.binary("lt", which, n.scalar(length, i64)))
    values = n.emit(g.Gather(source, n.binary("max", which, n.constant(0, i64)), axis=axis))
    return n.emit(g.Select(n.reshape(hit, (size, *rest)), values, x))


def _replaced(n: Node, x: Value, middle: Value, axis: int, start: Dim) -> Value:
    """Return `x` with the elements of `axis` from `start` on replaced by `middle`."""
    starts = tuple(start if d == axis else 0 for d in range(x.type.rank))
    return n.emit(g.UpdateSlice(x, middle, starts=starts))
