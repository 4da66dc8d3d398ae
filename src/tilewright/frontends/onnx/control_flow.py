"""Operators with subgraphs: If, Scan and Loop, decided when the model is compiled where that can be, else in the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dialects import graph as g
from ...dialects.graph.base import normalize_axis
from ...dialects.graph.scan import Yield
from ...ir.builder import Builder
from ...ir.core import Block, Region, Value
from ...ir.symbolic import Dim, free_symbols, prove_eq
from ...ir.types import DType, TensorType, boolean, i64
from .ops import Unsupported
from .ops.branches import building, common_shape, discard
from .values import Absent, Tensor, TensorList, is_concrete

MAX_UNROLLED = 1024
"""Iterations of a loop over sequences, each of which becomes operators of its own."""

if TYPE_CHECKING:
    from .importer import Binding, Importer, Scope
    from .node import Node


def _scan(importer: Importer, node: Node, scope: Scope) -> Sequence[Binding]:
    if node.opset < 9:
        return _scan_of_each(importer, node, scope)
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


def _scan_of_each(importer: Importer, node: Node, scope: Scope) -> Sequence[Binding]:
    """The form before opset 9: states and inputs of a batch, whose elements are scanned one after the other."""
    if node.has(0):
        raise Unsupported(
            "lengths of sequences in a Scan before opset 9; convert the model with onnx.version_converter"
        )
    if any(node.attr("directions") or ()):
        raise Unsupported("a backward Scan before opset 9; convert the model with onnx.version_converter")
    batch = [node.value(k) for k in range(1, len(node.inputs))]
    states = len(batch) - node.attr("num_scan_inputs")
    block = Block([TensorType(x.type.dtype, x.type.shape[1:]) for x in batch])
    inside = Builder(block, location=node.location)
    initial, scanned = block.args[:states], block.args[states:]
    length = scanned[0].type.shape[0]
    try:
        with building(importer, inside):
            found = _build(importer, node, scope, node.attr("body"), initial, scanned, length, (), None)
    except Unsupported:
        discard(block)
        raise
    if found is None:
        discard(block)
        return [None] * len(node.outputs)
    inside(Yield(found))
    op = g.Scan([], batch, length=batch[0].type.shape[0], regions=[Region([block])])
    importer.builder.insert(op)
    return [importer.tensor_of(v) for v in op.results]


def _loop(importer: Importer, node: Node, scope: Scope) -> Sequence[Binding]:
    if any(isinstance(x, (TensorList, Absent)) for x in node.inputs):
        return _unrolled(importer, node, scope)
    content = node.tensor(0).content if node.has(0) else None
    condition = node.tensor(1).content if node.has(1) else np.array(True, object)
    initial = [node.value(k) for k in range(2, len(node.inputs))]
    known = content is not None and content.size == 1 and condition is not None and is_concrete(condition)
    found: list[Value] | None
    if known and _keeps_going(node.attr("body")):
        assert content is not None and condition is not None
        length = content.reshape(-1)[0] if condition.reshape(-1)[0] else 0
        numbers = node.emit(g.Iota(shape=(length,), dtype=i64))
        found = _build(importer, node, scope, node.attr("body"), initial, [numbers], length, (), node.tensor(0))
    else:
        found = _while(importer, node, scope, initial)
    return [None] * len(node.outputs) if found is None else [importer.tensor_of(v) for v in found]


def _unrolled(importer: Importer, node: Node, scope: Scope) -> Sequence[Binding]:
    """A loop that hands on sequences, which have no place in the graph: its iterations one after the other."""
    body = node.attr("body")
    states: list[Binding] = list(node.inputs[2:])
    limit = node.numbers(0)[0] if node.has(0) else MAX_UNROLLED + 1
    going = node.tensor(1) if node.has(1) else importer.content_tensor(boolean, np.array(True, object))
    stacked: list[list[Value]] = [[] for _ in body.output[1 + len(states) :]]
    step = 0
    while step < limit:
        if going.array is None and going.content is None:
            importer.specialize(going)
        if going.array is None:
            raise Unsupported("a sequence goes through a loop whose end depends on data")
        if not going.array.all():
            break
        if step == MAX_UNROLLED:
            raise Unsupported(f"a sequence goes through a loop of more than {MAX_UNROLLED} iterations")
        number = importer.content_tensor(i64, np.array(step, object))
        results = importer.subgraph(body, scope, None, [number, going, *states], [step])
        if any(r is None for r in results):
            return [None] * len(node.outputs)
        (going,) = _tensors(results[:1])
        states = results[1 : 1 + len(states)]
        for column, item in zip(stacked, _tensors(results[1 + len(states) :]), strict=True):
            column.append(node.emit(g.Reshape(item.value, shape=(1, *item.shape))))
        step += 1
    if stacked and not step:
        raise Unsupported("a loop without iterations stacks results of unknown sizes")
    return [*states, *(importer.tensor_of(node.emit(g.Concat(column, axis=0))) for column in stacked)]


def _sequence_map(importer: Importer, node: Node, scope: Scope) -> Sequence[Binding]:
    """The body for each tensor of the first sequence, with those of the others in the same place; tensors are given to each."""
    body, first = node.attr("body"), node.sequence(0)
    lists = [x.items if isinstance(x, TensorList) else [x] * len(first) for x in node.inputs]
    results = []
    for step, items in enumerate(zip(*lists, strict=True)):
        found = importer.subgraph(body, scope, None, items, [step])
        if any(r is None for r in found):
            return [None] * len(node.outputs)
        results.append(_tensors(found))
    return [TensorList([found[k] for found in results]) for k in range(len(body.output))]


def _keeps_going(body: Any) -> bool:
    """Whether a loop's body hands its condition on, or yields a constant one."""
    name = body.output[0].name
    while name != body.input[1].name:
        maker = next((n for n in body.node if name in n.output), None)
        if maker is None or maker.op_type != "Identity":
            return maker is None or maker.op_type == "Constant"
        name = maker.input[0]
    return True


def _while(importer: Importer, node: Node, scope: Scope, initial: list[Value]) -> list[Value] | None:
    """A `graph.while`; None when the body holds something unsupported, which has been noted."""
    limit = _scalar(node, node.value(0), i64) if node.has(0) else None
    condition = _scalar(node, node.value(1), boolean) if node.has(1) else node.constant(True, boolean)
    body = node.attr("body")
    block = Block([TensorType(i64, ()), *(x.type for x in initial)])
    inside = Builder(block, location=node.location)
    shapes = [i.type.tensor_type.shape for i in body.input]
    step, *carried = block.args
    given = [Tensor(a.type, value=a) for a in carried]
    trips = Tensor(step.type, value=step)
    if len(shapes[0].dim) == 1:
        one = inside(g.Reshape(step, shape=(1,)))
        trips = Tensor(one.type, value=one)
    going = importer.content_tensor(boolean, np.full((1,) * len(shapes[1].dim), True, object))
    results = importer.subgraph(body, scope, inside, [trips, going, *given], [step])
    try:
        if any(r is None for r in results):
            discard(block)
            return None
        stays, *tensors = _tensors(results)
        with building(importer, inside):
            again = _scalar(node, stays.value, boolean)
            inside(Yield([again, *_kept(importer, body, initial, tensors)]))
    except Unsupported:
        discard(block)
        raise
    count = importer.new_symbol("steps")
    op = g.While(condition, limit, initial, count=count, regions=[Region([block])])
    importer.builder.insert(op)
    return list(op.results)


def _kept(importer: Importer, body: Any, initial: Sequence[Value], ends: Sequence[Tensor]) -> list[Value]:
    """What an iteration hands on. States keep their shapes, slices have those that are declared where their sizes are the iteration's own;
    where that shows in the run only, the run compares."""
    values = [t.value for t in ends]
    own = {s for s, home in importer.computed.items() if home is importer.builder}
    for k, y in enumerate(values):
        inner = [bool(free_symbols(d) & own) for d in y.type.shape]
        if k < len(initial):
            wanted = initial[k].type.shape
            if initial[k].type.dtype is not y.type.dtype or len(wanted) != y.type.rank:
                raise Unsupported(f"state {k} is {initial[k].type} at first and {y.type} after one iteration")
            if not all(i or prove_eq(c, d) for i, c, d in zip(inner, wanted, y.type.shape, strict=True)):
                raise Unsupported(
                    f"state {k} changes its shape: {initial[k].type} at first, {y.type} after one iteration"
                )
        else:
            declared = body.output[len(body.output) - len(values) + k].type.tensor_type.shape.dim
            if any(inner) and not (declared and all(d.HasField("dim_value") for d in declared)):
                raise Unsupported(f"a slice has a size that each iteration computes: {y.type}")
            wanted = tuple(d.dim_value for d in declared)
        if any(inner):
            values[k] = importer.builder(g.AssumeShape(y, shape=wanted))
    return values


def _if(importer: Importer, node: Node, scope: Scope) -> Sequence[Binding]:
    content = node.tensor(0).content
    branches = [node.attr("then_branch"), node.attr("else_branch")]
    if content is not None and content.size == 1 and is_concrete(content):
        return importer.subgraph(branches[0 if content.reshape(-1)[0] else 1], scope, None, ())
    condition = _scalar(node, node.value(0), boolean)
    blocks = [Block([]) for _ in branches]
    builders = [Builder(block, location=node.location) for block in blocks]
    results = [importer.subgraph(graph, scope, b, ()) for graph, b in zip(branches, builders, strict=True)]
    try:
        if any(r is None for side in results for r in side):
            for block in blocks:
                discard(block)
            return [None] * len(node.outputs)
        if any(not isinstance(r, Tensor) for side in results for r in side):
            for block in blocks:
                discard(block)
            return importer.subgraph(branches[0 if node.array(0).all() else 1], scope, None, ())
        tensors = [_tensors(side) for side in results]
        shapes = [common_shape(importer, node, condition, *pair) for pair in zip(*tensors, strict=True)]
    except Unsupported:
        for block in blocks:
            discard(block)
        raise
    for side, b in zip(tensors, builders, strict=True):
        with building(importer, b):
            values = [t.value for t in side]
            ends = [
                v if v.type.shape == s else b(g.AssumeShape(v, shape=s)) for v, s in zip(values, shapes, strict=True)
            ]
        b(Yield(ends))
    op = g.If(condition, regions=[Region([block]) for block in blocks])
    importer.builder.insert(op)
    return [importer.tensor_of(v) for v in op.results]


def _scalar(node: Node, x: Value, dtype: DType) -> Value:
    found = x if not x.type.rank else node.emit(g.Reshape(x, shape=()))
    return found if found.type.dtype is dtype else node.emit(g.Cast(found, dtype=dtype))


def _tensors(results: Sequence[Binding]) -> list[Tensor]:
    if any(not isinstance(r, Tensor) for r in results):
        raise Unsupported("a sequence of tensors leaves a branch or goes from one iteration to the next")
    return [r for r in results if isinstance(r, Tensor)]


def _build(
    importer: Importer,
    node: Node,
    scope: Scope,
    graph: Any,
    initial: Sequence[Value],
    scanned: Sequence[Value],
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
    step = None if trips is None else given[0].value
    body = Builder(block, location=node.location)
    results = importer.subgraph(graph, scope, body, given, [step])
    try:
        if any(r is None for r in results):
            discard(block)
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
        with building(importer, body):
            body(Yield(_kept(importer, graph, initial, tensors)))
    except Unsupported:
        discard(block)
        raise
    flags = backward if any(backward) else ()
    op = g.Scan(initial, scanned, length=length, backward=flags, regions=[Region([block])])
    importer.builder.insert(op)
    return list(op.results)


def _moved(node: Node, x: Value, start: int, end: int) -> Value:
    """`x` with one dimension moved."""
    if start == end:
        return x
    order = [k for k in range(x.type.rank) if k != start]
    order.insert(end, start)
    return node.emit(g.Transpose(x, permutation=tuple(order)))  # type: ignore[no-any-return]


CONTROL_FLOW: dict[str, Callable[[Importer, Node, Scope], Sequence[Binding]]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _sequence_map,
}
"""What imports each operator. Raises Unsupported: what is decided in the run changes the type of a tensor."""

__all__ = ["CONTROL_FLOW"]
