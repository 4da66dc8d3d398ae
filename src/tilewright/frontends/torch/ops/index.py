"""Positions that depend on data: embedding, gather, scatter, indexing with tensors, sorting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....dialects import graph as g
from ....dialects.graph.base import broadcast_shapes
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import boolean, i64
from ..importer import Node, Unsupported
from ..registry import importer
from .shape import sliced


@importer("aten.embedding.default")
def embedding(n: Node, table: Value, indices: Value, *_: Any) -> Value:
    return n.emit(g.Gather(table, indices, axis=0))  # type: ignore[no-any-return]


@importer("aten.index_select.default")
def index_select(n: Node, x: Value, dim: int, indices: Value) -> Value:
    return n.reshape(n.emit(g.Gather(x, indices, axis=dim % x.type.rank)), n.result_shape())


@importer("aten.unfold.default", "aten.unfold_copy.default")
def unfold(n: Node, x: Value, dim: int, size: int, step: int) -> Value:
    """Windows of `size` elements every `step`, in a new last dimension."""
    axis = dim % x.type.rank
    count = n.result_shape()[axis]
    first = n.emit(g.Iota(shape=(count, 1), axis=0, step=step))
    where = n.binary("add", first, n.emit(g.Iota(shape=(1, size), axis=1)))
    y = n.emit(g.Gather(x, where, axis=axis))
    return n.transpose(y, [k for k in range(y.type.rank) if k != axis + 1] + [axis + 1])


@importer("aten.take_along_dim.default")
def take_along_dim(n: Node, x: Value, indices: Value, dim: int) -> Value:
    axis = dim % x.type.rank
    shape = broadcast_shapes(*([*v.type.shape[:axis], 1, *v.type.shape[axis + 1 :]] for v in (x, indices)))
    x = n.broadcast(x, (*shape[:axis], x.type.shape[axis], *shape[axis + 1 :]))
    indices = n.broadcast(indices, (*shape[:axis], indices.type.shape[axis], *shape[axis + 1 :]))
    return n.emit(g.GatherElements(x, indices, axis=axis))  # type: ignore[no-any-return]


@importer("aten.gather.default")
def gather(n: Node, x: Value, dim: int, indices: Value, **_: Any) -> Value:
    if not x.type.rank:
        return x
    return n.emit(g.GatherElements(x, indices, axis=dim % x.type.rank))  # type: ignore[no-any-return]


def _index_vectors(n: Node, indices: Sequence[Value]) -> tuple[Value, tuple[Dim, ...]]:
    """Index tensors broadcast together and stacked in a new last dimension, and their common shape."""
    shape = broadcast_shapes(*(i.type.shape for i in indices))
    columns = [n.reshape(n.broadcast(n.cast(i, i64), shape), (*shape, 1)) for i in indices]
    return (n.emit(g.Concat(columns, axis=len(shape))) if len(columns) > 1 else columns[0]), shape


def _indexed(n: Node, x: Value, indices: Sequence[Value | None]) -> tuple[list[int], list[Value]]:
    """Indexed dimensions and their index tensors."""
    dims = [d for d, i in enumerate(indices) if i is not None]
    given = [i for i in indices if i is not None]
    if any(i.type.dtype is boolean for i in given):
        raise Unsupported("the number of elements that a mask selects depends on data; use torch.where")
    return dims, given


def _is_outer(dims: Sequence[int], indices: Sequence[Value]) -> bool:
    """Whether neighbouring dimensions are indexed independently of each other, each along one dimension of the result (``numpy.ix_``)."""
    rank = len(dims)
    if list(dims) != list(range(dims[0], dims[0] + rank)) or max(i.type.rank for i in indices) != rank:
        return False
    shapes = [(1,) * (rank - i.type.rank) + tuple(i.type.shape) for i in indices]
    return all(s[d] == 1 for k, s in enumerate(shapes) for d in range(rank) if d != k)


@importer("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(n: Node, x: Value, indices: Sequence[Value | None]) -> Value:
    """NumPy's advanced indexing: index tensors broadcast; their dimensions stand at the first one's place if adjacent, else in front."""
    dims, given = _indexed(n, x, indices)
    if not dims:
        return x
    if len(dims) == 1:
        return n.emit(g.Gather(x, given[0], axis=dims[0]))  # type: ignore[no-any-return]
    if _is_outer(dims, given):
        for d, i in zip(dims, given, strict=True):
            x = n.emit(g.Gather(x, n.reshape(i, (i.type.size,)), axis=d))
        return x
    rest = [d for d in range(x.type.rank) if d not in dims]
    vectors, shape = _index_vectors(n, given)
    y = n.emit(g.GatherNd(n.transpose(x, [*dims, *rest]), vectors))
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    before = dims[0] if adjacent else 0
    lead = len(shape)
    return n.transpose(y, [*range(lead, lead + before), *range(lead), *range(lead + before, y.type.rank)])


@importer("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(n: Node, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Value:
    if all(i is not None and i.type.dtype is boolean for i in indices) and len(indices) == 1 and not accumulate:
        mask = indices[0]
        assert mask is not None
        if values.type.size == 1:
            mask = n.reshape(mask, (*mask.type.shape, *[1] * (x.type.rank - mask.type.rank)))
            return n.emit(g.Select(mask, n.reshape(n.cast(values, x.type.dtype), ()), x))  # type: ignore[no-any-return]
    dims, given = _indexed(n, x, indices)
    rest = [d for d in range(x.type.rank) if d not in dims]
    vectors, shape = _index_vectors(n, given)
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    before = dims[0] if adjacent else 0
    lead, tail = len(shape), [x.type.shape[d] for d in rest]
    # `values` broadcast to the shape that indexing gives; updates want the index dimensions in front.
    values = n.broadcast(n.cast(values, x.type.dtype), (*tail[:before], *shape, *tail[before:]))
    updates = n.transpose(
        values, [*range(before, before + lead), *range(before), *range(before + lead, values.type.rank)]
    )
    order = [*dims, *rest]
    y = n.emit(g.ScatterNd(n.transpose(x, order), vectors, updates, combiner="sum" if accumulate else None))
    return n.transpose(y, [order.index(d) for d in range(x.type.rank)])


_COMBINERS = {"add": "sum", "sum": "sum", "multiply": "prod", "prod": "prod", "amax": "max", "amin": "min"}


def _scattered(n: Node, x: Value, dim: int, indices: Value, source: Any, combiner: str | None) -> Value:
    if isinstance(source, Value):
        for axis, length in enumerate(indices.type.shape):
            source = sliced(n, source, axis, 0, length)
    else:
        source = n.broadcast(n.scalar(source, x.type.dtype), indices.type.shape)
    axis = dim % max(x.type.rank, 1)
    return n.emit(g.ScatterElements(x, indices, source, axis=axis, combiner=combiner))  # type: ignore[no-any-return]


@importer("aten.scatter.src", "aten.scatter.value")
def scatter(n: Node, x: Value, dim: int, indices: Value, source: Any) -> Value:
    return _scattered(n, x, dim, indices, source, None)


@importer("aten.scatter_add.default")
def scatter_add(n: Node, x: Value, dim: int, indices: Value, source: Value) -> Value:
    return _scattered(n, x, dim, indices, source, "sum")


@importer("aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter_combined(n: Node, x: Value, dim: int, indices: Value, source: Any, *, reduce: str) -> Value:
    return _scattered(n, x, dim, indices, source, _COMBINERS[reduce])


@importer("aten.scatter_reduce.two")
def scatter_reduce(
    n: Node, x: Value, dim: int, indices: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Value:
    if reduce not in _COMBINERS or not include_self:
        raise Unsupported(f"scatter_reduce with reduce={reduce!r}, include_self={include_self}")
    return _scattered(n, x, dim, indices, source, _COMBINERS[reduce])


@importer("aten.select_scatter.default")
def select_scatter(n: Node, x: Value, source: Value, dim: int, where: Dim) -> Value:
    axis = dim % x.type.rank
    shape = x.type.shape
    start = where + shape[axis] if isinstance(where, int) and where < 0 else where
    middle = n.reshape(n.cast(source, x.type.dtype), (*shape[:axis], 1, *shape[axis + 1 :]))
    return _replaced(n, x, middle, axis, start, 1)


@importer("aten.slice_scatter.default")
def slice_scatter(
    n: Node, x: Value, source: Value, dim: int = 0, start: Any = None, stop: Any = None, step: int = 1
) -> Value:
    from .shape import position

    if step != 1:
        raise Unsupported("slice_scatter with a step other than 1")
    axis = dim % x.type.rank
    begin = position(0 if start is None else start, x.type.shape[axis])
    source = n.cast(source, x.type.dtype)
    return _replaced(n, x, source, axis, begin, source.type.shape[axis])


def _replaced(n: Node, x: Value, middle: Value, axis: int, start: Dim, length: Dim) -> Value:
    """`x` with `length` elements of `axis` from `start` on replaced."""
    size = x.type.shape[axis]
    pieces = [sliced(n, x, axis, 0, start), middle, sliced(n, x, axis, start + length, size - start - length)]
    kept = [p for p in pieces if p.type.shape[axis] != 0]
    return n.emit(g.Concat(kept, axis=axis)) if len(kept) > 1 else kept[0]  # type: ignore[no-any-return]


@importer("aten.topk.default")
def topk(n: Node, x: Value, k: Dim, dim: int = -1, largest: bool = True, ordered: bool = True) -> tuple[Value, Value]:
    return n.emit(g.Topk(x, k=k, axis=dim % x.type.rank, largest=largest))  # type: ignore[no-any-return]


@importer("aten.sort.default")
def sort(n: Node, x: Value, dim: int = -1, descending: bool = False) -> tuple[Value, Value]:
    axis = dim % x.type.rank
    return n.emit(g.Topk(x, k=x.type.shape[axis], axis=axis, largest=descending))  # type: ignore[no-any-return]


@importer("aten.sort.stable")
def sort_stable(
    n: Node, x: Value, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Value, Value]:
    return sort(n, x, dim, descending)


@importer("aten.argsort.default")
def argsort(n: Node, x: Value, dim: int = -1, descending: bool = False) -> Value:
    return sort(n, x, dim, descending)[1]
