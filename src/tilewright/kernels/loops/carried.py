"""Loops in order that carry values: they become `tensor.scan`s."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...dialects import tensor
from ...ir.builder import Builder
from ...ir.core import Value
from ...ir.types import DType, TensorType, boolean, f32, i64
from .facts import Loop
from .source import Problem
from .state import Frame, State, Variable
from .stores import Write
from .values import Node, Weak, convert, defined, fill, is_scalar, literal, make, read, select, to_node

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def run_carried(
    state: Any, node: ast.For, loop: Loop, variables: dict[str, Any], carried: Sequence[str]
) -> None:
    """Run a loop whose iterations pass the variables `carried` on.

    Raises:
        Problem: A carried variable is no number, or changes its type.
    """
    outer = [o for o in state.loops if o.kind != "step"]
    for name in carried:
        if not is_scalar(state.variables[name].value):
            raise Problem(f"{name!r} is carried by the loop, but is no number")
    loop.kind = "step"
    dtypes = _types(state, node, loop, variables, carried, outer)
    starts = {name: to_node(state.variables[name].value, dtypes[name]) for name in carried}
    initial = [_tensor(state, starts[name], outer).data[0] for name in carried]
    count = len(initial)
    shape = tuple(o.extent for o in outer)
    types = [TensorType(dtypes[name], shape) for name in carried]
    trial, ends, body = _built(state, node, loop, variables, carried, dtypes, outer)
    scan = tensor.Scan(
        initial,
        step=loop.symbol,
        places=tuple(loop.symbol for _ in ends[count:]),
        result_types=[
            *types,
            *(TensorType(v.type.dtype, (loop.extent, *v.type.shape)) for v in ends[count:]),
        ],
        location=state.source.location(node),
    )
    values: dict[Value, Value] = {
        a: scan.body.add_arg(a.type, name) for a, name in zip(trial.body.args, carried, strict=True)
    }
    for op in trial.body.ops:
        scan.body.append(op.clone(values))
    scan.body.append(tensor.Yield([values.get(v, v) for v in ends]))
    trial.drop_all()
    state.emitter.t.builder.insert(scan)
    symbols = tuple(o.symbol for o in outer)
    for name, result in zip(carried, scan.results, strict=False):
        state.variables[name] = Variable(
            read(result, dtypes[name], symbols),
            tuple(state.loops),
            state.source.line(node),
            len(state.conditions),
        )
    loop.kind = "range"
    slices = []
    for result, (own, dtype) in zip(scan.results[count:], body.slices, strict=True):
        slices.append(read(result, dtype, (loop.symbol, *(o.symbol for o in own))))
    done = 0
    for needed, rebuild in body.rebuild:
        state.perform(rebuild(slices[done : done + needed]))
        done += needed


def _tensor(state: State, node: Node, outer: Sequence[Loop]) -> Node:
    return state.emitter.over(state.emitter.hoisted(node, outer), outer)


@dataclass
class Plan:
    """The slices of a loop's writes, and how the writes follow from them."""

    slices: list[tuple[list[Loop], DType]]
    rebuild: list[tuple[int, Callable[[list[Node]], Write]]]


def _run(
    state: Any,
    node: ast.For,
    loop: Loop,
    variables: dict[str, Any],
    starts: dict[str, Any],
    frame: Frame,
) -> dict[str, Any]:
    """Run the body once; return the carried variables at its end."""
    with state.looping(loop):
        conditions = len(state.conditions)
        for name, value in starts.items():
            state.variables[name] = Variable(value, tuple(state.loops), state.source.line(node), conditions)
        state.bind(variables, node)
        state.frames.append(frame)
        try:
            state.run(node.body)
        finally:
            state.frames.pop()
        ends = {}
        for name in starts:
            found = state.variables[name]
            if list(found.loops) != state.loops or not is_scalar(found.value):
                raise Problem(f"the carried variable {name!r} has no single value at the end of an iteration")
            ends[name] = found.value
    return ends


def _types(
    state: Any,
    node: ast.For,
    loop: Loop,
    variables: dict[str, Any],
    carried: Sequence[str],
    outer: Sequence[Loop],
) -> dict[str, DType]:
    """The types of carried variables: of their first values, or where these have none, of the next ones."""
    known: dict[str, DType] = {}
    weak: dict[str, bool] = {}
    for name in carried:
        value = state.variables[name].value
        if isinstance(value, Node):
            known[name] = value.dtype
        elif isinstance(value, bool):
            known[name] = boolean
        else:
            weak[name] = isinstance(value, float) or (isinstance(value, Weak) and value.is_float)
    shape = tuple(o.extent for o in outer)
    symbols = tuple(o.symbol for o in outer)

    def start(name: str, trial: tensor.Scan) -> Any:
        def placeholder(dtype: DType) -> Node:
            return read(trial.body.add_arg(TensorType(dtype, shape), name), dtype, symbols)

        return placeholder(known[name]) if name in known else Weak(weak[name], placeholder)

    while any(name not in known for name in carried):
        trial = tensor.Scan([], step=loop.symbol, places=(), result_types=[])
        with state.trial(), state.emitter.inside(Builder(trial.body)):
            ends = _run(
                state, node, loop, variables, {name: start(name, trial) for name in carried}, Frame(loop)
            )
        trial.drop_all()
        found = {n: v.dtype for n, v in ends.items() if n not in known and isinstance(v, Node)}
        floats = {
            n
            for n, v in ends.items()
            if n not in known and (isinstance(v, float) or (isinstance(v, Weak) and v.is_float))
        }
        if not found and all(weak[n] for n in floats):
            found = {n: f32 if weak[n] else i64 for n in carried if n not in known}
        weak.update(dict.fromkeys(floats, True))
        known.update(found)
    return known


def _built(
    state: Any,
    node: ast.For,
    loop: Loop,
    variables: dict[str, Any],
    carried: Sequence[str],
    dtypes: dict[str, DType],
    outer: Sequence[Loop],
) -> tuple[tensor.Scan, list[Value], Plan]:
    """The body of the loop in a scan of its own, what it yields, and the plan of its writes."""
    trial = tensor.Scan([], step=loop.symbol, places=(), result_types=[])
    shape = tuple(o.extent for o in outer)
    symbols = tuple(o.symbol for o in outer)
    starts = {
        name: read(trial.body.add_arg(TensorType(dtypes[name], shape), name), dtypes[name], symbols)
        for name in carried
    }
    frame = Frame(loop)
    saved = dict(state.variables)
    with state.emitter.inside(Builder(trial.body, location=state.source.location(node))):
        ends = _run(state, node, loop, variables, dict(starts), frame)
        state.variables = saved
        yields = []
        for name in carried:
            try:
                end = to_node(ends[name], dtypes[name])
            except Problem as problem:
                raise Problem(
                    f"{name!r} begins as {dtypes[name].label} and changes its type in the loop: {problem}"
                ) from None
            if loop.bound is not None:
                end = select(loop.bound, end, starts[name])
            yields.append(starts[name].data[0] if end is starts[name] else _tensor(state, end, outer).data[0])
        plan = Plan([], [])
        for write in frame.writes:
            inner = [o for o in write.loops[write.loops.index(loop) + 1 :] if o.kind != "step"]
            own = [*outer, *inner]
            needed, rebuild = _slices(write)
            for element in needed:
                yields.append(_tensor(state, element, own).data[0])
                plan.slices.append((own, element.dtype))
            plan.rebuild.append((len(needed), rebuild))
    return trial, yields, plan


def _slices(write: Write) -> tuple[list[Node], Callable[[list[Node]], Write]]:
    """The elements that a write needs of each iteration, and the write from them."""
    needed: list[Node] = []

    def want(node: Node) -> int:
        needed.append(node)
        return len(needed) - 1

    zero = literal(False if write.array.dtype is boolean else 0, write.array.dtype)
    value = want(fill(write.value, zero))
    condition = want(defined(write.value)) if write.value.undefined else None
    places = [want(e) if isinstance(e, Node) else None for e in write.indices]

    def rebuild(nodes: list[Node]) -> Write:
        element = nodes[value]
        if condition is not None:
            element = select(nodes[condition], element, make("undefined", element.dtype))
        indices = tuple(
            e if k is None else convert(nodes[k], i64) for e, k in zip(write.indices, places, strict=True)
        )
        return Write(write.array, indices, element, write.combiner, write.loops, write.line)

    return needed, rebuild


__all__ = ["run_carried"]
