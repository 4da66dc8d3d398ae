"""Operators with subgraphs: If, Scan, Loop and SequenceMap.

A branch or a number of iterations that is known at compile time is resolved at import; the others become
`graph.if`, `graph.scan` and `graph.while`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ....dialects import graph as g
from ....dialects.graph.base import normalize_axis
from ....dialects.graph.scan import Yield
from ....ir.builder import Builder
from ....ir.core import Block, Region, Value
from ....ir.symbolic import Dim, free_symbols, prove_eq
from ....ir.types import DType, TensorType, boolean, i64
from ...unsupported import Unsupported
from ..registry import importer
from ..scope import Binding
from ..values import Absent, Tensor, TensorList, is_concrete
from .branches import common_shape, discard

MAX_UNROLLED = 1024
"""Maximum number of iterations of a loop over sequences. Each iteration is expanded into operators of its
own, so a larger limit allows larger graphs.
"""

if TYPE_CHECKING:
    import onnx

    from ..node import Node


@importer("Scan")
def _scan(node: Node) -> Sequence[Binding]:
    if node.opset < 9:
        return _scan_of_each(node)
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
    ends = _build(node, graph, initial, scanned, length, tuple(map(bool, backward)), None)
    if ends is None:
        return [None] * len(node.outputs)
    axes = node.attr("scan_output_axes") or [0] * results
    stacked = [
        _moved(node, y, 0, normalize_axis(axis, y.type.rank))
        for y, axis in zip(ends[count:], axes, strict=True)
    ]
    return [node.importer.tensor_of(v) for v in (*ends[:count], *stacked)]


def _scan_of_each(node: Node) -> Sequence[Binding]:
    """Import the form before opset 9: states and inputs have a batch dimension, and each batch element is
    scanned separately.
    """
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
        with node.importer.building(inside):
            ends = _build(node, node.attr("body"), initial, scanned, length, (), None)
    except Unsupported:
        discard(block)
        raise
    if ends is None:
        discard(block)
        return [None] * len(node.outputs)
    inside.insert(Yield(ends))
    op = g.Scan([], batch, length=batch[0].type.shape[0], regions=[Region([block])])
    node.importer.builder.insert(op)
    return [node.importer.tensor_of(v) for v in op.results]


@importer("Loop")
def _loop(node: Node) -> Sequence[Binding]:
    if any(isinstance(x, (TensorList, Absent)) for x in node.inputs):
        return _unrolled(node)
    content = node.tensor(0).content if node.has(0) else None
    condition = node.tensor(1).content if node.has(1) else np.array(True, object)
    initial = [node.value(k) for k in range(2, len(node.inputs))]
    known = content is not None and content.size == 1 and condition is not None and is_concrete(condition)
    ends: list[Value] | None
    if known and _keeps_going(node.attr("body")):
        assert content is not None and condition is not None
        length = content.reshape(-1)[0] if condition.reshape(-1)[0] else 0
        numbers = node.emit(g.Iota(shape=(length,), dtype=i64))
        ends = _build(node, node.attr("body"), initial, [numbers], length, (), node.tensor(0))
    else:
        ends = _while(node, initial)
    return [None] * len(node.outputs) if ends is None else [node.importer.tensor_of(v) for v in ends]


def _unrolled(node: Node) -> Sequence[Binding]:
    """Unroll a loop that carries sequences, which the graph cannot represent."""
    body = node.attr("body")
    states: list[Binding] = list(node.inputs[2:])
    limit = node.numbers(0)[0] if node.has(0) else MAX_UNROLLED + 1
    going = node.tensor(1) if node.has(1) else node.importer.content_tensor(boolean, np.array(True, object))
    stacked: list[list[Value]] = [[] for _ in body.output[1 + len(states) :]]
    step = 0
    while step < limit:
        if going.array is None and going.content is None:
            node.importer.specialize(going)
        if going.array is None:
            raise Unsupported("a sequence goes through a loop whose end depends on data")
        if not going.array.all():
            break
        if step == MAX_UNROLLED:
            raise Unsupported(f"a sequence goes through a loop of more than {MAX_UNROLLED} iterations")
        number = node.importer.content_tensor(i64, np.array(step, object))
        results = node.subgraph(body, None, [number, going, *states], [step])
        if any(r is None for r in results):
            return [None] * len(node.outputs)
        (going,) = _tensors(results[:1])
        states = results[1 : 1 + len(states)]
        for column, item in zip(stacked, _tensors(results[1 + len(states) :]), strict=True):
            column.append(node.emit(g.Reshape(item.value, shape=(1, *item.shape))))
        step += 1
    if stacked and not step:
        raise Unsupported("a loop without iterations stacks results of unknown sizes")
    return [*states, *(node.importer.tensor_of(node.emit(g.Concat(column, axis=0))) for column in stacked)]


@importer("SequenceMap")
def _sequence_map(node: Node) -> Sequence[Binding]:
    """Import the body once per tensor of the first sequence.

    The body takes the tensors of the other sequences at the same index; inputs that are tensors are passed to
    every iteration.
    """
    body, first = node.attr("body"), node.sequence(0)
    lists = [x.items if isinstance(x, TensorList) else [x] * len(first) for x in node.inputs]
    results = []
    for step, items in enumerate(zip(*lists, strict=True)):
        ends = node.subgraph(body, None, items, [step])
        if any(r is None for r in ends):
            return [None] * len(node.outputs)
        results.append(_tensors(ends))
    return [TensorList([ends[k] for ends in results]) for k in range(len(body.output))]


def _keeps_going(body: onnx.GraphProto) -> bool:
    """Whether a loop's body returns its condition unchanged, or a constant one."""
    name = body.output[0].name
    while name != body.input[1].name:
        maker = next((n for n in body.node if name in n.output), None)
        if maker is None or maker.op_type != "Identity":
            return maker is None or maker.op_type == "Constant"
        name = maker.input[0]
    return True


def _while(node: Node, initial: list[Value]) -> list[Value] | None:
    """Build a `graph.while`; return None if the body has an unsupported operator, which is on the list of
    problems already.
    """
    limit = _scalar(node, node.value(0), i64) if node.has(0) else None
    condition = _scalar(node, node.value(1), boolean) if node.has(1) else node.constant(True, boolean)
    body = node.attr("body")
    block = Block([TensorType(i64, ()), *(x.type for x in initial)])
    inside = Builder(block, location=node.location)
    shapes = [i.type.tensor_type.shape for i in body.input]
    step, *carried = block.args
    states = [Tensor(a.type, value=a) for a in carried]
    trips = Tensor(step.type, value=step)
    if len(shapes[0].dim) == 1:
        step_vector = inside(g.Reshape(step, shape=(1,)))
        trips = Tensor(step_vector.type, value=step_vector)
    going = node.importer.content_tensor(boolean, np.full((1,) * len(shapes[1].dim), True, object))
    results = node.subgraph(body, inside, [trips, going, *states], [step])
    try:
        if any(r is None for r in results):
            discard(block)
            return None
        stays, *tensors = _tensors(results)
        with node.importer.building(inside):
            again = _scalar(node, stays.value, boolean)
            inside.insert(Yield([again, *_kept(node, body, initial, tensors)]))
    except Unsupported:
        discard(block)
        raise
    count = node.importer.new_symbol("steps")
    op = g.While(condition, limit, initial, count=count, regions=[Region([block])])
    node.importer.builder.insert(op)
    return list(op.results)


def _kept(node: Node, body: onnx.GraphProto, initial: Sequence[Value], ends: Sequence[Tensor]) -> list[Value]:
    """Return the values that an iteration passes on.

    States must keep their shapes. A slice whose sizes the iteration computes itself takes the declared shape.
    Where this cannot be proven, the run checks it.
    """
    values = [t.value for t in ends]
    computed_here = {s for s, home in node.importer.computed.items() if home is node.importer.builder}
    for k, y in enumerate(values):
        inner = [bool(free_symbols(d) & computed_here) for d in y.type.shape]
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
            values[k] = node.importer.builder(g.AssumeShape(y, shape=wanted))
    return values


@importer("If")
def _if(node: Node) -> Sequence[Binding]:
    content = node.tensor(0).content
    branches = [node.attr("then_branch"), node.attr("else_branch")]
    if content is not None and content.size == 1 and is_concrete(content):
        return node.subgraph(branches[0 if content.reshape(-1)[0] else 1], None, ())
    condition = _scalar(node, node.value(0), boolean)
    blocks = [Block([]) for _ in branches]
    builders = [Builder(block, location=node.location) for block in blocks]
    results = [node.subgraph(graph, b, ()) for graph, b in zip(branches, builders, strict=True)]
    try:
        if any(r is None for side in results for r in side):
            for block in blocks:
                discard(block)
            return [None] * len(node.outputs)
        if any(not isinstance(r, Tensor) for side in results for r in side):
            for block in blocks:
                discard(block)
            return node.subgraph(branches[0 if node.array(0).all() else 1], None, ())
        tensors = [_tensors(side) for side in results]
        shapes = [common_shape(node, condition, *pair) for pair in zip(*tensors, strict=True)]
    except Unsupported:
        for block in blocks:
            discard(block)
        raise
    for side, b in zip(tensors, builders, strict=True):
        with node.importer.building(b):
            values = [t.value for t in side]
            ends = [
                v if v.type.shape == s else b(g.AssumeShape(v, shape=s))
                for v, s in zip(values, shapes, strict=True)
            ]
        b.insert(Yield(ends))
    op = g.If(condition, regions=[Region([block]) for block in blocks])
    node.importer.builder.insert(op)
    return [node.importer.tensor_of(v) for v in op.results]


def _scalar(node: Node, x: Value, dtype: DType) -> Value:
    scalar = x if not x.type.rank else node.emit(g.Reshape(x, shape=()))
    return scalar if scalar.type.dtype is dtype else node.emit(g.Cast(scalar, dtype=dtype))


def _tensors(results: Sequence[Binding]) -> list[Tensor]:
    if any(not isinstance(r, Tensor) for r in results):
        raise Unsupported("a sequence of tensors leaves a branch or goes from one iteration to the next")
    return [r for r in results if isinstance(r, Tensor)]


def _build(
    node: Node,
    graph: onnx.GraphProto,
    initial: Sequence[Value],
    scanned: Sequence[Value],
    length: Dim,
    backward: tuple[bool, ...],
    trips: Tensor | None,
) -> list[Value] | None:
    """Build a `graph.scan` whose body is a subgraph; return None if the subgraph has an unsupported operator,
    which is on the list of problems already.

    The subgraph takes states and slices, or, with `trips` (the maximum number of iterations), the iteration's
    number, the condition and the states. In this case its first result is the condition, which must be
    constantly true.
    """
    slices = [TensorType(x.type.dtype, x.type.shape[1:]) for x in scanned]
    block = Block([*(x.type for x in initial), *slices])
    arguments = [Tensor(a.type, value=a) for a in block.args]
    if trips is not None:
        arguments = [
            arguments[-1],
            node.importer.content_tensor(boolean, np.array(True, object)),
            *arguments[:-1],
        ]
    step = None if trips is None else arguments[0].value
    body = Builder(block, location=node.location)
    results = node.subgraph(graph, body, arguments, [step])
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
                    "the condition depends on data; "
                    "only loops over a known number of iterations can be compiled"
                )
        with node.importer.building(body):
            body.insert(Yield(_kept(node, graph, initial, tensors)))
    except Unsupported:
        discard(block)
        raise
    flags = backward if any(backward) else ()
    op = g.Scan(initial, scanned, length=length, backward=flags, regions=[Region([block])])
    node.importer.builder.insert(op)
    return list(op.results)


def _moved(node: Node, x: Value, start: int, end: int) -> Value:
    """Return `x` with dimension `start` moved to `end`."""
    if start == end:
        return x
    order = [k for k in range(x.type.rank) if k != start]
    order.insert(end, start)
    return node.emit(g.Transpose(x, permutation=tuple(order)))
