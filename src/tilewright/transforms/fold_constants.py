"""Computing at compile time what depends on constants only.

Each operator whose operands are constants is run through its own `reference`. Data is shared where NumPy can give a view
(transposed or reshaped weights are not copied), a broadcast element stays one element, and no fold makes a module much larger.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dialects import graph
from ..dialects.graph.base import GraphOp
from ..ir.builder import Builder
from ..ir.constant import Constant
from ..ir.core import Effect, Module, Value
from ..ir.interpreter import Frame
from ..ir.rewrite import Rewriter, apply_patterns, pattern
from ..ir.types import TensorType
from .match import reshape

ALWAYS = 1 << 16
"""Results of up to so many bytes are folded whatever their operands are."""
GROWTH = 4
"""Larger results may have so many times the bytes of their operands."""
MOVEMENTS = (graph.Reshape, graph.Transpose, graph.BroadcastTo, graph.Slice, graph.Tile, graph.Flip)
MAX_PRODUCTS = 1 << 28
"""Contractions of more multiplications than this stay for run time,"""
MAX_MATMUL = 1 << 31
"""matrix products in float32 and float64, which NumPy hands to BLAS, of more than this (some 50 ms)."""


def fold_constants(module: Module) -> int:
    """Fold every operator on constants; returns how many rewrites were made."""
    return apply_patterns(module, [without_elements, fold_constant_operands, known_branch, known_check], fold=False)


@pattern(GraphOp)
def without_elements(op: GraphOp, rewriter: Rewriter) -> bool:
    """Results that have no elements whatever the sizes -> empty constants under their shapes: nothing is left to compute."""
    found = empty_results(op, rewriter.builder)
    if found is not None:
        rewriter.replace(op, found)
    return found is not None


def empty_results(op: GraphOp, b: Builder) -> list[Value] | None:
    """Empty constants for the results of an operator, unless one of them has elements or is such a constant."""
    if op.effects != Effect.PURE or not op.results or not all(0 in r.type.shape for r in op.results):
        return None
    if isinstance(op, graph.Constant) or isinstance(op, graph.Reshape) and isinstance(op.x.defining_op, graph.Constant):
        return None
    nothing = [b(graph.Constant(value=Constant(np.zeros(0, r.type.dtype.numpy)))) for r in op.results]
    return [reshape(b, v, r.type.shape) for v, r in zip(nothing, op.results, strict=True)]


@pattern(GraphOp)
def fold_constant_operands(op: GraphOp, rewriter: Rewriter) -> bool:
    """An operator on constants -> its results as constants."""
    if isinstance(op, (graph.Constant, graph.If)) or not op.results or op.effects != Effect.PURE:
        return False
    arrays = []
    for v in op.operands:
        source = v.defining_op
        if not isinstance(source, graph.Constant):
            return False
        arrays.append(source.value.array)
    if not all(isinstance(r.type, TensorType) and r.type.is_static for r in op.results):
        return False
    if not _affordable(op, arrays):
        return False
    found = _moved_element(op) or run_on_constants(op, arrays)
    if found is None:
        return False
    builder = rewriter.builder
    names = [v.defining_op.value.name for v in op.operands]  # type: ignore[union-attr]
    name = next((n for n in names if n), "")
    rewriter.replace(op, [builder(graph.Constant(value=Constant(x, name))) for x in found])
    return True


@pattern(graph.If)
def known_branch(op: Any, rewriter: Rewriter) -> bool:
    """A branch on a constant -> what the region that it takes computes."""
    condition = op.condition.defining_op
    if not isinstance(condition, graph.Constant):
        return False
    block = op.regions[0 if condition.value.array.all() else 1].block
    values: dict[Value, Value] = {}
    for inner in block.ops:
        if not inner.terminator:
            rewriter.builder.insert(inner.clone(values))
    ends = [values.get(v, v) for v in block.terminator.operands]
    rewriter.replace(op, [reshape(rewriter.builder, v, r.type.shape) for v, r in zip(ends, op.results, strict=True)])
    return True


@pattern(graph.Check)
def known_check(op: Any, rewriter: Rewriter) -> bool:
    """A check that always holds vanishes."""
    condition = op.condition.defining_op
    if not isinstance(condition, graph.Constant) or not condition.value.array.all():
        return False
    rewriter.replace(op, [])
    return True


def _moved_element(op: GraphOp) -> list[np.ndarray[Any, Any]] | None:
    """The result of moving equal elements: still one element, whatever its shape."""
    if isinstance(op, MOVEMENTS) and (source := op.operands[0].defining_op.value).is_splat:  # type: ignore[union-attr]
        return [np.broadcast_to(source.array.reshape(-1)[:1].reshape(()), op.result.type.shape)]
    return None


def run_on_constants(op: GraphOp, arrays: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]] | None:
    """The results of an operator on arrays; None where an attribute has a symbol in it."""
    frame = Frame(op, {}, {})
    for v, x in zip(op.operands, arrays, strict=True):
        frame.values[v] = x
    try:
        frame.run(op)
    except KeyError:  # an attribute with a symbol in it
        return None
    return [frame.values[r] for r in op.results]


def _affordable(op: GraphOp, arrays: list[np.ndarray[Any, Any]]) -> bool:
    if isinstance(op, (graph.Reshape, graph.Transpose, graph.Slice, graph.Identity)):
        return True
    if isinstance(op, MOVEMENTS) and op.operands[0].defining_op.value.is_splat:  # type: ignore[union-attr]
        return True
    size = sum(r.type.size * r.type.dtype.itemsize for r in op.results)
    # A broadcast array counts as what it would take in memory only up to its distinct elements.
    given = sum(0 if 0 in x.strides and x.ndim else x.nbytes for x in arrays)
    if size > max(ALWAYS, GROWTH * given):
        return False
    if (
        isinstance(op, (graph.Matmul, graph.Einsum, graph.Conv, graph.ConvTranspose, graph.Attention))
        and len(arrays) > 1
    ):
        inner = max(x.size for x in arrays[1:])
        fast = isinstance(op, graph.Matmul) and op.result.type.dtype.name in ("f32", "f64")
        products = int(op.result.type.size) * max(inner // max(op.result.type.shape[-1], 1), 1)
        return products <= (MAX_MATMUL if fast else MAX_PRODUCTS)
    return True
