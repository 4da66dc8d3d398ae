"""Operators with subgraphs that run many times: Scan, and Loop where the number of iterations is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dialects import graph as g
from ...dialects.graph.base import normalize_axis
from ...dialects.graph.scan import Yield
from ...ir.builder import Builder
from ...ir.core import Block, Region, Value
from ...ir.symbolic import Dim, prove_eq
from ...ir.types import TensorType, boolean, i64
from .ops import Unsupported
from .values import Tensor, is_concrete

if TYPE_CHECKING:
    from .importer import Binding, Importer, Node, Scope

CONTROL_FLOW = ("Scan", "Loop")


def import_loop(importer: Importer, node: Node, scope: Scope) -> Sequence[Binding]:
    """The results of a Scan or Loop node.

    Raises:
        Unsupported: the number of iterations depends on data, or a state changes its type.
    """
    return (_scan if node.op_type == "Scan" else _loop)(importer, node, scope)


def _scan(importer: Importer, node: Node, scope: Scope) -> Sequence[Binding]:
    if node.opset < 9:
        raise Unsupported("the form before opset 9; convert the model with onnx.version_converter")
    graph, count = node.attr("body"), len(node.inputs) - node.attr("num_scan_inputs")
    results = len(graph.output) - count
    inputs = node.attr("num_scan_inputs")
    backward = (
        *(node.attr("scan_input_directions") or [0] * inputs),
        *(node.attr("scan_output_directions") or [0] * results),
    )
    scanned = []
    for k, axis in enumerate(node.attr("scan_input_axes") or [0] * inputs):
        x = node.value(count + k)
        scanned.append(_moved(node, x, normalize_axis(axis, x.type.rank), 0))
    initial = [node.value(k) for k in range(count)]
    length = scanned[0].type.shape[0]
    found = _build(importer, node, scope, graph, initial, scanned, length, tuple(map(bool, backward)), None)
    if found is None:
        return [None] * len(node.outputs)
    axes = node.attr("scan_output_axes") or [0] * results
    stacked = [
        _moved(node, y, 0, normalize_axis(axis, y.type.rank)) for y, axis in zip(found[count:], axes, strict=True)
    ]
    return [importer.tensor_of(v) for v in (*found[:count], *stacked)]


def _loop(importer: Importer, node: Node, scope: Scope) -> Sequence[Binding]:
    content = node.tensor(0).content if node.has(0) else None
    if content is None or content.size != 1:
        raise Unsupported("the number of iterations depends on data; it must follow from shapes and constants")
    condition = node.tensor(1).content if node.has(1) else np.array(True, object)
    if condition is None or not is_concrete(condition):
        raise Unsupported("the condition depends on data; only loops over a known number of iterations can be compiled")
    length = content.reshape(-1)[0] if condition.reshape(-1)[0] else 0
    initial = [node.value(k) for k in range(2, len(node.inputs))]
    numbers = node.emit(g.Iota(shape=(length,), dtype=i64))
    found = _build(importer, node, scope, node.attr("body"), initial, [numbers], length, (), node.tensor(0))
    return [None] * len(node.outputs) if found is None else [importer.tensor_of(v) for v in found]


def _build(
    importer: Importer,
    node: Node,
    scope: Scope,
    graph: Any,
    initial: list[Value],
    scanned: list[Value],
    length: Dim,
    backward: tuple[bool, ...],
    trips: Tensor | None,
) -> list[Value] | None:
    """A `graph.scan` whose body is a subgraph; None when the subgraph holds something unsupported, which has been noted.

    The subgraph takes states and slices, or (`trips` given) the number of the iteration and the condition, then states; it then yields
    the condition first, which must stay true.
    """
    slices = [TensorType(x.type.dtype, x.type.shape[1:]) for x in scanned]
    block = Block([*(x.type for x in initial), *slices])
    given = [Tensor(a.type, value=a) for a in block.args]
    if trips is not None:
        given = [given[-1], importer.content_tensor(boolean, np.array(True, object)), *given[:-1]]
    results = importer.subgraph(graph, scope, Builder(block, location=node.location), given)
    try:
        if any(r is None for r in results):
            _discard(block)
            return None
        if any(not isinstance(r, Tensor) for r in results):
            raise Unsupported("a sequence of tensors goes from one iteration to the next")
        tensors = [r for r in results if isinstance(r, Tensor)]
        if trips is not None:
            stays, *tensors = tensors
            if stays.content is None or not is_concrete(stays.content) or not stays.content.reshape(-1)[0]:
                raise Unsupported(
                    "the condition depends on data; only loops over a known number of iterations can be compiled"
                )
        for k, (x, y) in enumerate(zip(initial, tensors, strict=False)):
            if x.type.dtype is not y.dtype or x.type.rank != y.rank or not all(map(prove_eq, x.type.shape, y.shape)):
                raise Unsupported(f"state {k} is {x.type} at first and {y.type} after one iteration")
    except Unsupported:
        _discard(block)
        raise
    body = Builder(block, location=node.location)
    body(Yield([t.value for t in tensors]))
    flags = backward if any(backward) else ()
    op = g.Scan(initial, scanned, length=length, backward=flags, regions=[Region([block])])
    importer.builder.insert(op)
    return list(op.results)


def _discard(block: Block) -> None:
    for op in block.ops:
        op.drop_all()


def _moved(node: Node, x: Value, start: int, end: int) -> Value:
    """`x` with one dimension moved."""
    if start == end:
        return x
    order = [k for k in range(x.type.rank) if k != start]
    order.insert(end, start)
    return node.emit(g.Transpose(x, permutation=tuple(order)))  # type: ignore[no-any-return]


__all__ = ["CONTROL_FLOW", "import_loop"]
