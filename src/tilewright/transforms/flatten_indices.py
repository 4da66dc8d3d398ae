"""Index vectors made of columns -> one flat index: arithmetic melts into the reader, vectors would be written to memory first.

``x[i, j]`` reads ``x.reshape(m * n)[i * n + j]``. It runs late, as `simplify` knows positions and masks by their columns.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..dialects import graph
from ..dialects.graph.base import normalize_axis, tensor_type
from ..ir.builder import Builder
from ..ir.core import Module, Value
from ..ir.rewrite import Rewriter, apply_patterns, pattern
from ..ir.symbolic import Dim
from ..ir.types import i64
from .match import is_one, new_constant, producer, reshape


def flatten_indices(module: Module) -> None:
    """Rewrite every gather at joined columns; one that reads a transposed tensor stays, as its transposition melts too."""
    apply_patterns(module, [gather_of_columns], fold=False)


@pattern(graph.GatherNd)
def gather_of_columns(op: Any, rewriter: Rewriter) -> bool:
    """A gather at vectors that join columns -> a gather along the merged dimensions."""
    joined, rank = producer(op.indices, graph.Concat), tensor_type(op.indices).rank
    if op.batch_dims or joined is None or normalize_axis(joined.axis, rank) != rank - 1:
        return False
    if not all(is_one(v.type.shape[-1]) for v in joined.inputs) or producer(op.x, graph.Transpose) is not None:
        return False
    b, x = rewriter.builder, tensor_type(op.x)
    sizes, flat = x.shape[: len(joined.inputs)], None
    for column, size in zip(joined.inputs, sizes, strict=True):
        i = reshape(b, column, tensor_type(op.indices).shape[:-1])
        i = i if i.type.dtype is i64 else b(graph.Cast(i, dtype=i64))
        n = _number(b, size)
        i = b(graph.Select(b(graph.Lt(i, _number(b, 0))), b(graph.Add(i, n)), i))
        flat = i if flat is None else b(graph.Add(b(graph.Mul(flat, n)), i))
    merged = reshape(b, op.x, (math.prod(sizes), *x.shape[len(sizes) :]))
    rewriter.replace(op, b(graph.Gather(merged, flat, axis=0)))
    return True


def _number(b: Builder, size: Dim) -> Value:
    if isinstance(size, int):
        return new_constant(b, np.asarray(size, np.int64))
    return b(graph.Symbolic(values=(size,)))  # type: ignore[no-any-return]
