"""Operators with data-dependent positions: gather, scatter, top-k, arg-reductions, prefix sums."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....dialects.graph.base import normalize_axis
from ....ir.core import Value
from ....ir.symbolic import Dim, Expr, prove_le, prove_lt
from ....ir.types import boolean, i64
from ...unsupported import Unsupported
from ..registry import importer
from .elementwise import cast
from .run_time import Arithmetic
from .run_time_axes import along_axis
from .shape import broadcast, reshape, slice_

if TYPE_CHECKING:
    from ..node import Node


@importer("Gather")
def _gather(n: Node) -> Value:
    x, indices = n.tensor(0), n.tensor(1)
    axis = normalize_axis(n.attr("axis", 0), x.rank)
    d = x.shape[axis]
    known = list(indices.content.reshape(-1)) if indices.content is not None and indices.rank <= 1 else []
    if known and all(prove_lt(e, 0) or prove_le(0, e) for e in known):
        known = [e + d if prove_lt(e, 0) else e for e in known]
        consecutive = all(b == a + 1 for a, b in itertools.pairwise(known))
        if consecutive and prove_lt(known[-1], d) and prove_le(0, known[0]):
            # A constant index is a slice: no index reaches the generated code.
            y = slice_(n, x.value, axis, known[0], known[0] + len(known))
            return y if indices.rank else reshape(n, y, (*x.shape[:axis], *x.shape[axis + 1 :]))
    n.expect_index(indices.value, d)
    return n.emit(g.Gather(x.value, indices.value, axis=axis))


@importer("GatherElements")
def _gather_elements(n: Node) -> Value:
    x, indices, axis = n.value(0), n.value(1), n.attr("axis", 0)
    n.expect_index(indices, x.type.shape[axis])
    return n.emit(g.GatherElements(x, indices, axis=axis))


@importer("GatherND")
def _gather_nd(n: Node) -> Value:
    x, indices, batch = n.value(0), n.value(1), n.attr("batch_dims", 0)
    _expect_vectors(n, indices, x.type.shape[batch:])
    return n.emit(g.GatherNd(x, indices, batch_dims=batch))


def _expect_vectors(n: Node, indices: Value, shape: Sequence[Dim]) -> None:
    """Make the run fail if an index vector (along the last dimension of `indices`) is out of range for the
    first dimensions of `shape`.
    """
    axis = indices.type.rank - 1
    depth = indices.type.shape[axis]
    if isinstance(depth, int):
        for k, size in enumerate(shape[:depth]):
            n.expect_index(slice_(n, indices, axis, k, k + 1) if depth > 1 else indices, size)


_COMBINERS = {"none": None, "add": "sum", "mul": "prod", "max": "max", "min": "min"}


@importer("ScatterElements", "Scatter")
def _scatter_elements(n: Node) -> Value:
    combiner = _COMBINERS[n.attr("reduction", "none")]
    x, indices, axis = n.value(0), n.value(1), n.attr("axis", 0)
    n.expect_index(indices, x.type.shape[axis])
    return n.emit(g.ScatterElements(x, indices, n.value(2), axis=axis, combiner=combiner))


@importer("ScatterND")
def _scatter_nd(n: Node) -> Value:
    x, indices, combiner = n.value(0), n.value(1), _COMBINERS[n.attr("reduction", "none")]
    _expect_vectors(n, indices, x.type.shape)
    return n.emit(g.ScatterNd(x, indices, n.value(2), combiner=combiner))


@importer("TensorScatter")
def _tensor_scatter(n: Node) -> Value:
    """Write into a cache from a position on, which every batch element has its own; writes beyond the end are
    dropped or wrap around.
    """
    cache, update, a = n.value(0), n.value(1), Arithmetic(n)
    rank = cache.type.rank
    axis = normalize_axis(n.attr("axis", -2), rank)
    line = tuple(d if k == axis else 1 for k, d in enumerate(update.type.shape))
    place = n.emit(g.Iota(shape=line, axis=axis))
    if n.has(2):
        batch = n.tensor(2).shape[0]
        place = a.Add(place, reshape(n, cast(n, n.value(2), i64), (batch, *(1,) * (rank - 1))))
    if n.attr("mode", "linear") == "circular":
        place = a.Mod(place, n.dims_value(cache.type.shape[axis]))
    return n.emit(g.ScatterElements(cache, broadcast(n, place, update.type.shape), update, axis=axis))


@importer("TopK")
def _topk(n: Node) -> Any:
    k = n.sizes(1)[0]
    if n.tensor(1).content is None:
        a, size = Arithmetic(n), n.tensor(0).shape[n.attr("axis", -1)]
        a.check(
            a.Le(a.scalar(n.value(1)), n.dims_value(size)),
            f"k is more than the {size} elements of the dimension",
        )
    return n.emit_all(g.Topk(n.value(0), k=k, axis=n.attr("axis", -1), largest=bool(n.attr("largest", 1))))


@importer("ArgMax", "ArgMin")
def _arg(n: Node) -> Value:
    operator = g.Argmax if n.op_type == "ArgMax" else g.Argmin
    keep, last = bool(n.attr("keepdims", 1)), bool(n.attr("select_last_index", 0))
    return n.emit(operator(n.value(0), axis=n.attr("axis", 0), keepdims=keep, last=last))


@importer("CumSum", "CumProd")
def _prefix(n: Node) -> Value:
    operator = g.Cumsum if n.op_type == "CumSum" else g.Cumprod
    options = {"exclusive": bool(n.attr("exclusive", 0)), "reverse": bool(n.attr("reverse", 0))}
    x = n.value(0)
    if n.is_data(1):
        return along_axis(n, 1, x.type.rank, lambda axis: n.emit(operator(x, axis=axis, **options)))
    return n.emit(operator(x, axis=n.numbers(1)[0], **options))


@importer("OneHot")
def _one_hot(n: Node) -> Value:
    indices = cast(n, n.value(0), i64)
    content = n.tensor(1).content
    depth: Any
    if content is None and n.tensor(1).array is not None:
        depth = int(n.array(1).reshape(-1)[0])  # the depth may be a float
    elif content is None:
        depth = n.importer.computed_size(n.value(1), "depth")
    else:
        depth = content.reshape(-1)[0]
    hot = n.emit(g.OneHot(indices, depth=depth, axis=n.attr("axis", -1), dtype=boolean))
    values = n.value(2)
    off, on = (reshape(n, slice_(n, values, 0, k, k + 1), ()) for k in (0, 1))
    return n.emit(g.Select(hot, on, off))


@importer("ReverseSequence")
def _reverse_sequence(n: Node) -> Value:
    x, lengths = n.value(0), cast(n, n.value(1), i64)
    batch, time = n.attr("batch_axis", 1), n.attr("time_axis", 0)
    shape = x.type.shape
    view = [shape[k] if k == batch else 1 for k in range(len(shape))]
    lengths = reshape(n, lengths, view)
    line = [shape[k] if k == time else 1 for k in range(len(shape))]
    position = n.emit(g.Iota(shape=tuple(line), axis=time))
    turned = n.emit(g.Sub(n.emit(g.Sub(lengths, position)), n.constant(1, i64)))
    where = n.emit(g.Select(n.emit(g.Lt(position, lengths)), turned, position))
    return n.emit(g.GatherElements(x, broadcast(n, where, shape), axis=time))


@importer("Hardmax")
def _hardmax(n: Node) -> Value:
    x = n.value(0)
    axis = normalize_axis(n.attr("axis", -1), x.type.rank)
    depth = x.type.shape[axis]
    if isinstance(depth, Expr):
        raise Unsupported("the axis has a dynamic size")
    return n.emit(g.OneHot(n.emit(g.Argmax(x, axis=axis)), depth=depth, axis=axis, dtype=x.type.dtype))
