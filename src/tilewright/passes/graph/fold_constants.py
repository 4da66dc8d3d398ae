"""Computes at compile time what depends on constants only.

Each operator whose operands are constants is evaluated by its own `reference`. Data are shared where NumPy
can give a view (transposed or reshaped weights are not copied), a broadcast element stays one element, and no
fold makes a module much larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...dialects import graph
from ...dialects.graph.base import GraphOp
from ...ir.builder import Builder
from ...ir.constant import Constant
from ...ir.core import Effect, Module, Operation, Value
from ...ir.interpreter import Frame
from ...ir.rewrite import Rewriter, apply_patterns, pattern
from ...ir.types import TensorType
from ...ir.walk import post_order, reachable
from .fold_recipes import remember
from .match import constant_of, reshape

ALWAYS = 1 << 16
"""Results of at most this many bytes are folded, whatever the operands' sizes. A larger value makes larger
artifacts and less work in each run.
"""
GROWTH = 4
"""Largest ratio of the bytes of larger results to the bytes of their operands."""
MAX_STEPS, MAX_STEP = 32, 1 << 24
"""Largest number of operators before a product that are computed with it, and bytes of the results of
each.
"""
MOVEMENTS = (graph.Reshape, graph.Transpose, graph.BroadcastTo, graph.Slice, graph.Tile, graph.Flip)
MAX_PRODUCTS = 1 << 28
"""Largest number of multiplications of a contraction that is folded. A larger value takes longer to
compile.
"""
MAX_MATMUL = 1 << 31
"""The same for matrix products of floats, which NumPy passes to BLAS: about 50 ms."""


def fold_constants(module: Module) -> int:
    """Fold every operator on constants.

    Returns the number of rewrites.
    """
    return apply_patterns(
        module,
        [without_elements, fold_constant_operands, fold_product, known_branch, known_check],
        fold=False,
    )


@pattern(GraphOp)
def without_elements(op: GraphOp, rewriter: Rewriter) -> bool:
    """Results without elements for all sizes -> empty constants, reshaped: nothing is left to compute."""
    empty = empty_results(op, rewriter.builder)
    if empty is not None:
        rewriter.replace(op, empty)
    return empty is not None


def empty_results(op: GraphOp, b: Builder) -> list[Value] | None:
    """Empty constants for the results of an operator; None if one of them has elements or already is such a
    constant.
    """
    if op.effects != Effect.PURE or not op.results or not all(0 in r.type.shape for r in op.results):
        return None
    if (
        isinstance(op, graph.Constant)
        or isinstance(op, graph.Reshape)
        and isinstance(op.x.defining_op, graph.Constant)
    ):
        return None
    nothing = [b(graph.Constant(value=Constant(np.zeros(0, r.type.dtype.numpy)))) for r in op.results]
    return [reshape(b, v, r.type.shape) for v, r in zip(nothing, op.results, strict=True)]


@pattern(GraphOp)
def fold_constant_operands(op: GraphOp, rewriter: Rewriter) -> bool:
    """An operator on constants -> its results as constants."""
    if isinstance(op, (graph.Constant, graph.If)) or not op.results or op.effects != Effect.PURE:
        return False
    later = _view_of_made(op)
    if later is not None:
        rewriter.replace(op, rewriter.builder(graph.Constant(value=later)))
        return True
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
    values = _moved_element(op) or run_on_constants(op, arrays)
    if values is None:
        return False
    builder = rewriter.builder
    sources = [c for c in map(constant_of, op.operands) if c is not None]
    name = next((s.name for s in sources if s.name), "")
    step = op.name.removeprefix("graph.")
    results = [Constant(x, name).made_of(sources, step) for x in values]
    remember(results, op, sources)
    rewriter.replace(op, [builder(graph.Constant(value=result)) for result in results])
    return True


@pattern(graph.Matmul, graph.Einsum)
def fold_product(op: GraphOp, rewriter: Rewriter) -> bool:
    """A product of values that follow from constants but are too large to be constants themselves -> a
    constant.

    The projection of sinusoidal positions is an example.
    """
    steps = _steps_from_constants(op)
    if steps is None or not _is_quick(op):
        return False
    leaves = {
        v: v.defining_op.value.array
        for s in steps
        for v in s.operands
        if isinstance(v.defining_op, graph.Constant)
    }
    if _bytes(op) > max(ALWAYS, GROWTH * sum(x.nbytes for x in leaves.values())):
        return False
    known: dict[Value, np.ndarray[Any, Any]] = dict(leaves)
    constants: dict[Value, Constant] = {v: c for v in leaves if (c := constant_of(v)) is not None}
    for step in steps:
        arrays = [known[v] for v in step.operands]
        values = run_on_constants(step, arrays) if step is not op or _affordable(op, arrays) else None
        if values is None:
            return False
        known.update(zip(step.results, values, strict=True))
        results = [Constant(x) for x in values]
        remember(results, step, [constants[v] for v in step.operands])
        constants.update(zip(step.results, results, strict=True))
    rewriter.replace(op, [rewriter.builder(graph.Constant(value=constants[op.result]))])
    return True


def _steps_from_constants(op: GraphOp) -> list[GraphOp] | None:
    """The operators that compute `op` from constants, in order and `op` last.

    None if another value takes part, or if there are many or large steps.
    """
    for count, step in enumerate(reachable([op], _computed_operands), 1):
        if not isinstance(step, GraphOp) or step.effects != Effect.PURE or step.regions or count > MAX_STEPS:
            return None
        if (
            not all(isinstance(r.type, TensorType) and r.type.is_static for r in step.results)
            or _bytes(step) > MAX_STEP
        ):
            return None
    return list(post_order([op], _computed_operands))


def _computed_operands(op: Operation) -> list[Any]:
    """The operations that compute the operands of an operator, constants excepted; None stands for function
    arguments.
    """
    makers = [v.defining_op for v in op.operands]
    return [maker for maker in makers if not isinstance(maker, graph.Constant)]


@pattern(graph.If)
def known_branch(op: graph.If, rewriter: Rewriter) -> bool:
    """A branch on a constant condition -> the results of the region that it takes."""
    condition = op.condition.defining_op
    if not isinstance(condition, graph.Constant):
        return False
    block = op.regions[0 if condition.value.array.all() else 1].block
    values: dict[Value, Value] = {}
    for inner in block.ops:
        if not inner.terminator:
            rewriter.builder.insert(inner.clone(values))
    ends = [values.get(v, v) for v in block.terminator.operands]
    rewriter.replace(
        op, [reshape(rewriter.builder, v, r.type.shape) for v, r in zip(ends, op.results, strict=True)]
    )
    return True


@pattern(graph.Check)
def known_check(op: graph.Check, rewriter: Rewriter) -> bool:
    """A check that always holds is removed."""
    condition = op.condition.defining_op
    if not isinstance(condition, graph.Constant) or not condition.value.array.all():
        return False
    rewriter.replace(op, [])
    return True


@dataclass(frozen=True)
class _View:
    """Writes a constant in another shape, or with its dimensions in another order."""

    order: tuple[int, ...] | None
    shape: tuple[int, ...]
    data: Constant

    def __call__(self, out: np.ndarray[Any, Any]) -> None:
        if self.order is None:
            out[...] = self.data.array.reshape(self.shape)
        else:
            self.data.write_to(out.transpose(np.argsort(self.order)))


def _view_of_made(op: GraphOp) -> Constant | None:
    """A view of data that are made on demand; it is made on demand, too."""
    source = op.operands[0].defining_op if isinstance(op, (graph.Reshape, graph.Transpose)) else None
    if not isinstance(source, graph.Constant) or not source.value.is_made or not op.result.type.is_static:
        return None
    data, shape = source.value, op.result.type.shape
    order = op.permutation if isinstance(op, graph.Transpose) else None
    step = op.name.removeprefix("graph.")
    return Constant.made(shape, data.numpy_dtype, _View(order, shape, data), data.name).made_of([data], step)


def _moved_element(op: GraphOp) -> list[np.ndarray[Any, Any]] | None:
    """The result of moving equal elements: one element, whatever the shape."""
    if isinstance(op, MOVEMENTS) and (source := op.operands[0].defining_op.value).is_splat:
        return [np.broadcast_to(source.array.reshape(-1)[:1].reshape(()), op.result.type.shape)]
    return None


def run_on_constants(op: GraphOp, arrays: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]] | None:
    """The results of an operator on arrays; None if an attribute contains a symbol."""
    frame = Frame(op, {}, {})
    for v, x in zip(op.operands, arrays, strict=True):
        frame.values[v] = x
    try:
        frame.run(op)
    except KeyError:  # an attribute contains a symbol
        return None
    return [frame.values[r] for r in op.results]


def _affordable(op: GraphOp, arrays: list[np.ndarray[Any, Any]]) -> bool:
    if isinstance(op, (graph.Reshape, graph.Transpose, graph.Slice, graph.Identity)):
        return True
    if isinstance(op, MOVEMENTS) and op.operands[0].defining_op.value.is_splat:
        return True
    size = _bytes(op)
    # A broadcast array counts with its distinct elements only.
    operand_bytes = sum(0 if 0 in x.strides and x.ndim else x.nbytes for x in arrays)
    if size > max(ALWAYS, GROWTH * operand_bytes):
        return False
    return _is_quick(op)


def _is_quick(op: GraphOp) -> bool:
    """Whether an operator has few enough multiplications for compile time."""
    if isinstance(op, (graph.Matmul, graph.Einsum)) and op.result.type.dtype.is_float:
        return _products(op) <= MAX_MATMUL
    if isinstance(op, (graph.Matmul, graph.Einsum, graph.Conv, graph.ConvTranspose, graph.Attention)):
        return _products(op) <= MAX_PRODUCTS
    return True


def _products(op: GraphOp) -> int:
    """The number of multiplications of a contraction; a lower bound for convolutions and attention."""
    if isinstance(op, graph.Einsum):
        return int(op.products())
    size, operands = int(op.result.type.size), [v.type for v in op.operands]
    if isinstance(op, graph.Matmul):
        return size * int(operands[0].shape[-1])
    return size * max(int(x.size) // max(x.shape[0], 1) for x in operands[1:])


def _bytes(op: GraphOp) -> int:
    return sum(int(r.type.size) * r.type.dtype.itemsize for r in op.results)
