"""Rewrites gathers at index vectors that consist of columns as gathers at one flat index.

``x[i, j]`` reads ``x.reshape(m * n)[i * n + j]``. The arithmetic is fused into the consumer, whereas index
vectors would be written to memory first. The pass runs late, because `simplify` matches positions and masks
by their columns.
"""

from __future__ import annotations

import math

import numpy as np

from ...dialects import graph
from ...dialects.graph.base import normalize_axis, tensor_type
from ...ir.builder import Builder
from ...ir.core import Module, Value
from ...ir.rewrite import Rewriter, apply_patterns, pattern
from ...ir.symbolic import Dim
from ...ir.types import i64
from .match import is_one, new_constant, producer, reshape, transpose


def flatten_indices(module: Module) -> None:
    """Rewrite gathers at concatenated index columns as gathers at one flat index.

    Gathers from dimensions that are not neighbours are left as they are: their transpose is fused.
    """
    apply_patterns(module, [gather_of_columns], fold=False)


@pattern(graph.GatherNd)
def gather_of_columns(op: graph.GatherNd, rewriter: Rewriter) -> bool:
    """A gather at vectors that concatenate columns -> a gather along the merged dimensions."""
    joined, rank = producer(op.indices, graph.Concat), tensor_type(op.indices).rank
    if op.batch_dims or joined is None or normalize_axis(joined.axis, rank) != rank - 1:
        return False
    place = _place(op.x, len(joined.inputs))
    if not all(is_one(v.type.shape[-1]) for v in joined.inputs) or place is None:
        return False
    b, (x, axis) = rewriter.builder, place
    shape, end = tensor_type(x).shape, axis + len(joined.inputs)
    sizes, flat = shape[axis:end], None
    for column, size in zip(joined.inputs, sizes, strict=True):
        i = reshape(b, column, tensor_type(op.indices).shape[:-1])
        i = i if i.type.dtype is i64 else b(graph.Cast(i, dtype=i64))
        n = _number(b, size)
        i = b(graph.Select(b(graph.Lt(i, _number(b, 0))), b(graph.Add(i, n)), i))
        flat = i if flat is None else b(graph.Add(b(graph.Mul(flat, n)), i))
    merged = reshape(b, x, (*shape[:axis], math.prod(sizes), *shape[end:]))
    y = b(graph.Gather(merged, flat, axis=axis))
    lead = range(axis, axis + rank - 1)
    rewriter.replace(op, transpose(b, y, [*lead, *range(axis), *range(lead.stop, y.type.rank)]))
    return True


def _place(x: Value, depth: int) -> tuple[Value, int] | None:
    """The tensor in which the first `depth` dimensions of `x` are neighbours, and the first of them there;
    None if they are apart.
    """
    moved = producer(x, graph.Transpose)
    if moved is None:
        return x, 0
    order = list(moved.permutation)
    first = order[0]
    run = range(first, first + depth)
    in_order = [*run, *(d for d in range(len(order)) if d not in run)]
    return (moved.x, first) if order == in_order else None


def _number(b: Builder, size: Dim) -> Value:
    if isinstance(size, int):
        return new_constant(b, np.asarray(size, np.int64))
    return b(graph.Symbolic(values=(size,)))
