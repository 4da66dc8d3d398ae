"""Branches and loops.

A loop that counts up becomes a scan: slices at the loop counter become scanned inputs, and writes at the
counter become stacked results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from ....dialects import graph as g
from ....dialects.graph.scan import Yield
from ....ir.builder import Builder
from ....ir.core import Block, BlockArgument, Region, Value
from ....ir.symbolic import Dim, Expr, prove_eq, prove_le, smax
from ....ir.types import TensorType, boolean, i64
from ...complex import Complex
from ...unsupported import Unsupported
from ..module_builder import UnsupportedBody
from ..reading import constant_of
from ..registry import importer, importers

if TYPE_CHECKING:
    from jaxlib.mlir import ir as mlir

    from ..module_builder import Content, ModuleBuilder
    from ..node import Node


@importer("if", complex="whole")
def _if(n: Node) -> Sequence[Any]:
    return _choose(n, n.inputs[0], lambda: _branch(n, 0), lambda: _branch(n, 1))


@importer("case", complex="whole")
def _case(n: Node) -> Sequence[Any]:
    """An index out of range selects the last branch."""
    content = n.content(0)
    last = len(n.op.regions) - 1
    if content is not None and isinstance(content.reshape(-1)[0], int):
        k = content.reshape(-1)[0]
        return _branch(n, k if 0 <= k <= last else last)

    def among(k: int) -> Sequence[Any]:
        if k == last:
            return _branch(n, k)
        return _choose(n, n.binary("eq", n.inputs[0], k), lambda: _branch(n, k), lambda: among(k + 1))

    return among(0)


def _branch(n: Node, k: int) -> list[Any]:
    return _whole(n.importer.block(n.block(k), []))


def _whole(values: Sequence[Any]) -> list[Any]:
    if any(v is None for v in values):
        raise UnsupportedBody
    return list(values)


def _flat(values: Sequence[Any]) -> list[Value]:
    """Return tensors in a row; a complex number is its real and its imaginary part."""
    return [part for v in values for part in ((v.real, v.imaginary) if isinstance(v, Complex) else (v,))]


def _packed(values: Sequence[Value], pairs: Sequence[bool]) -> list[Any]:
    """Undo `_flat`; `pairs` flags the complex numbers."""
    row = iter(values)
    return [Complex(next(row), next(row)) if pair else next(row) for pair in pairs]


def _choose(
    n: Node,
    condition: Value,
    first: Callable[[], Sequence[Value | Complex]],
    second: Callable[[], Sequence[Value | Complex]],
) -> Sequence[Any]:
    regions = []
    for make in (first, second):
        block = Block()
        with n.importer.building(Builder(block, location=n.location)) as inside:
            inside.insert(Yield(_flat(make())))
        regions.append(Region([block]))
    op = n.importer.builder.insert(g.If(condition, regions=regions))
    return _packed(op.results, [n.is_complex(k) for k in range(len(n.op.results))])


@dataclass
class Loop:
    """A loop with a known number of steps, while its body is built."""

    block: Block
    counter: Expr
    length: Dim
    invariants: set[Value]
    rows: dict[Value, int]
    """States that the body changes by one dynamic_update_slice and uses nowhere else, by their argument of
    `block`.
    """
    scanned: list[Value] = field(default_factory=list)
    backward: list[bool] = field(default_factory=list)
    stacked: dict[int, tuple[Value, bool]] = field(default_factory=dict)

    def direction(self, place: Dim) -> bool | None:
        """Return whether an index visits all steps backward (True) or forward (False), or None if it does
        neither.
        """
        if prove_eq(place, self.counter):
            return False
        return True if prove_eq(place, self.length - 1 - self.counter) else None


def _row(loop: Loop, x: Value, sizes: Sequence[Dim], place: Dim | None) -> bool | None:
    """Return the direction in which `sizes` of `x` from `place` of its first dimension on are one row per
    step, or None if they are not.
    """
    shape = x.type.shape
    if place is None or not shape or not prove_eq(sizes[0], 1) or not prove_eq(shape[0], loop.length):
        return None
    if not all(prove_eq(s, w) for s, w in zip(sizes[1:], shape[1:], strict=True)):
        return None
    return loop.direction(place)


def scanned_slice(n: Node, sizes: Sequence[Dim], place: Dim | None) -> Value | None:
    """Return `sizes` elements from `place` of the first dimension on as a scanned slice.

    Returns None unless they are a row, at the loop counter, of a tensor from outside the loop.
    """
    x = n.inputs[0]
    loop = n.importer.loops[-1] if n.importer.loops else None
    if loop is None or x not in loop.invariants:
        return None
    backward = _row(loop, x, sizes, place)
    if backward is None:
        return None
    loop.scanned.append(x)
    loop.backward.append(backward)
    return n.reshape(loop.block.add_arg(TensorType(x.type.dtype, x.type.shape[1:])), sizes)


def stacked_update(n: Node) -> Value | None:
    """Import the write of a row at the loop counter into a state that is not read: the rows of all steps are
    stacked.

    Returns None if the operation is no such write.
    """
    x, update = n.inputs[:2]
    loop = n.importer.loops[-1] if n.importer.loops else None
    if loop is None or x not in loop.rows:
        return None
    content = n.content(2)
    backward = _row(loop, x, update.type.shape, content.reshape(-1)[0] if content is not None else None)
    if backward is None:
        return None
    loop.stacked[loop.rows[x]] = n.reshape(update, update.type.shape[1:]), backward
    return x


class _States:
    """The states of a loop as tensors in a row; a complex state is two of them."""

    def __init__(self, n: Node) -> None:
        self.importer = n.importer
        self.pairs = [isinstance(x, Complex) for x in n.inputs]
        self.initial = _flat(n.inputs)
        self.number = [j for j, pair in enumerate(self.pairs) for _ in range(1 + pair)]
        """The number of the state of each tensor."""

    def block(self, block: mlir.Block, tensors: Sequence[Value]) -> list[Value]:
        """Import a region for these tensors and return its results."""
        return _flat(_whole(self.importer.block(block, _packed(tensors, self.pairs))))


@importer("while", complex="whole")
def _while(n: Node) -> Sequence[Any]:
    condition, body = n.block(0), n.block(1)
    ends = list(list(body.operations)[-1].operation.operands)
    kept = {k for k, end in enumerate(ends) if end == body.arguments[k]}
    states = _States(n)
    fixed = [k for k, number in enumerate(states.number) if number in kept]
    counted = _counted(n, condition, body, ends, kept)
    results = (
        _scan(n, body, states, fixed, *counted)
        if counted is not None
        else _open(n, condition, body, states, fixed)
    )
    return _packed(results, states.pairs)


def _open(
    n: Node, condition: mlir.Block, body: mlir.Block, states: _States, fixed: Sequence[int]
) -> list[Value]:
    """Build a loop that runs while its condition holds."""
    importer, initial = n.importer, states.initial
    changing = [k for k in range(len(initial)) if k not in fixed]
    (first,) = states.block(condition, initial)
    block = Block([TensorType(i64, ()), *(initial[k].type for k in changing)])
    arguments = list(initial)
    for k, a in zip(changing, block.args[1:], strict=True):
        arguments[k] = a
    importer.loops.append(None)
    try:
        with importer.building(Builder(block, location=n.location)) as inside:
            following = states.block(body, arguments)
            (again,) = states.block(condition, following)
            inside.insert(Yield([again, *(following[k] for k in changing)]))
    finally:
        importer.loops.pop()
    count = importer.new_symbol("steps")
    importer.inner.add(count)
    op = importer.builder.insert(
        g.While(first, None, [initial[k] for k in changing], count=count, regions=[Region([block])])
    )
    results = list(initial)
    for k, r in zip(changing, op.results, strict=True):
        results[k] = r
    return results


def _counted(
    n: Node, condition: mlir.Block, body: mlir.Block, ends: Sequence[Any], fixed: set[int]
) -> tuple[int, int, Dim] | None:
    """Return the counter of a counted loop, or None for another loop.

    The result is the number of the state that counts, its first value, and the bound that it stays below.
    """
    ops = [op.operation for op in condition.operations]
    test = maker(ops[-1].operands[0])
    if (
        test is None
        or test.name != "stablehlo.compare"
        or "LT" not in str(test.attributes["comparison_direction"])
    ):
        return None
    arguments = list(condition.arguments)
    if test.operands[0] not in arguments:
        return None
    k = arguments.index(test.operands[0])
    limit = test.operands[1]
    if limit in arguments:
        stop = _number(n.content(arguments.index(limit))) if arguments.index(limit) in fixed else None
    else:
        stop = _known(n.importer, limit, condition)
    start = _number(n.content(k))
    step = maker(ends[k])
    if stop is None or not isinstance(start, int) or step is None or step.name != "stablehlo.add":
        return None
    operands = list(step.operands)
    if body.arguments[k] not in operands:
        return None
    if _known(n.importer, operands[1 - operands.index(body.arguments[k])], body) != 1 or n.importer.is_inner(
        stop
    ):
        return None
    return k, start, stop


def maker(value: mlir.Value) -> Any:
    """Return the operation that defines an MLIR value; None for a block argument."""
    owner = value.owner
    return (
        getattr(owner, "operation", owner)
        if hasattr(owner, "operands") or hasattr(owner, "operation")
        else None
    )


def _known(importer: ModuleBuilder, value: mlir.Value, block: mlir.Block) -> Any:
    """Return a scalar's number or symbolic size. Values of `block` are unknown: it has not been imported
    yet.
    """
    definition = maker(value)
    if definition is not None and definition.name == "stablehlo.constant":
        return _number(constant_of(definition).astype(object))
    if (value.owner if definition is None else definition.block) == block:
        return None
    known = importer.values.get(value)
    return _number(importer.content(known)) if known is not None else None


def _number(content: Content | None) -> Any:
    """Return the only element of an array of known integers."""
    number = content.reshape(-1)[0] if content is not None and content.size == 1 else None
    return number if isinstance(number, (int, Expr)) and not isinstance(number, bool) else None


def _scan(
    n: Node, body: mlir.Block, states: _States, fixed: Sequence[int], number: int, start: int, stop: Dim
) -> list[Value]:
    """Build a loop that counts from `start` to below `stop` with its state `number`."""
    importer, initial = n.importer, states.initial
    k = states.number.index(number)
    length = stop - start
    if not prove_le(0, length):
        length = smax(length, 0)
    changing = [j for j in range(len(initial)) if j not in fixed and j != k]
    counter = importer.new_symbol("count", length - 1)
    importer.inner.add(counter)
    block = Block([initial[j].type for j in changing])
    rows: dict[Value, int] = {
        a: j
        for j, a in zip(changing, block.args, strict=True)
        if _updated(importer, body, states.number[j]) == states.number[j]
    }
    loop = Loop(block, counter, length, {initial[j] for j in fixed}, rows)
    arguments = list(initial)
    for j, a in zip(changing, block.args, strict=True):
        arguments[j] = a
    step = block.add_arg(TensorType(i64, ()))
    loop.scanned.append(n.iota((length,)))
    loop.backward.append(False)
    importer.loops.append(loop)
    try:
        with importer.building(Builder(block, location=n.location)) as inside:
            place = n.cast(step if start == 0 else n.binary("add", step, start), initial[k].type.dtype)
            if start == 0:
                importer.contents[place] = _scalar(counter)
            arguments[k] = place
            following = states.block(body, arguments)
            carried = [j for j in changing if j not in loop.stacked]
            inside.insert(Yield([*(following[j] for j in carried), *(v for v, _ in loop.stacked.values())]))
    finally:
        importer.loops.pop()
    for j in loop.stacked:
        block.erase_arg(cast(BlockArgument, arguments[j]))
    backward = (*loop.backward, *(b for _, b in loop.stacked.values()))
    op = importer.builder.insert(
        g.Scan(
            [initial[j] for j in carried],
            loop.scanned,
            length=length,
            backward=backward if any(backward) else (),
            regions=[Region([block])],
        )
    )
    results = list(initial)
    for j, r in zip((*carried, *loop.stacked), op.results, strict=True):
        results[j] = r
    results[k] = importer.known(_scalar(start + length), initial[k].type.dtype)
    return results


def _scalar(value: int | Expr) -> Any:
    import numpy as np

    content = np.empty((), object)
    content[()] = value
    return content


def _updated(importer: ModuleBuilder, block: mlir.Block, k: int, calls: tuple[str, ...] = ()) -> int | None:
    """Return the number of the block's result that is argument `k` after one dynamic_update_slice.

    The update may be in a function that the block calls. Returns None if anything else reads the argument.
    """
    following = _only_use(block.arguments[k])
    if following is None:
        return None
    op, number = following
    if op.name == "stablehlo.dynamic_update_slice" and number == 0:
        result = op.results[0]
    elif op.name == "func.call":
        name = op.attributes["callee"].value
        if name in calls or name not in importer.functions:
            return None
        callee = importer.functions[name].regions[0].blocks[0]
        inner = _updated(importer, callee, number, (*calls, name))
        if inner is None:
            return None
        result = op.results[inner]
    else:
        return None
    end = _only_use(result)
    return end[1] if end is not None and end[0] == list(block.operations)[-1].operation else None


def _only_use(value: mlir.Value) -> tuple[Any, int] | None:
    """Return the operation that reads a value and the operand's number, if the value has exactly one use."""
    uses = list(value.uses)
    return (
        (getattr(uses[0].owner, "operation", uses[0].owner), uses[0].operand_number)
        if len(uses) == 1
        else None
    )


def scan_over(
    n: Node,
    carried: Sequence[Value],
    scanned: Sequence[Value],
    body: Callable[..., tuple[Sequence[Value], Sequence[Value]]],
    backward: bool = False,
) -> list[Value]:
    """Build a scan along the first dimension; `body` takes the carried values, the slices and the step's
    number.

    `body` returns the new carried values and the values to stack. The scan returns the final carried values,
    then the stacked ones.
    """
    length = scanned[0].type.shape[0]
    inputs = [*scanned, n.iota((length,))]
    block = Block([*(v.type for v in carried), *(TensorType(v.type.dtype, v.type.shape[1:]) for v in inputs)])
    with n.importer.building(Builder(block, location=n.location)) as inside:
        following, stacked = body(*block.args)
        inside.insert(Yield([*following, *stacked]))
    directions = (backward,) * (len(inputs) + len(stacked)) if backward else ()
    op = n.importer.builder.insert(
        g.Scan(list(carried), inputs, length=length, backward=directions, regions=[Region([block])])
    )
    return list(op.results)


@importer("scan", dialect="chlo")
def _scan_body(n: Node) -> list[Value]:
    """Import the body on slices of the inputs and carried values; it returns the values to stack, then the
    carried ones.
    """
    dimension, backward = n.number("dimension"), bool(n.number("is_reverse"))
    count, _ = (int(k) for k in n.attr("operandSegmentSizes"))
    inputs, initial = n.inputs[:count], n.inputs[count:]
    stacked = len(n.op.results) - len(initial)

    def body(*values: Value) -> tuple[list[Value], list[Value]]:
        carried, slices = values[: len(initial)], values[len(initial) : -1]
        results = _whole(n.importer.block(n.block(), [*slices, *carried]))
        return results[stacked:], results[:stacked]

    def moved(x: Value, source: int, target: int) -> Value:
        order = [d for d in range(x.type.rank) if d != source]
        order.insert(target, source)
        return n.transpose(x, order)

    results = scan_over(n, initial, [moved(x, dimension, 0) for x in inputs], body, backward)
    return [*(moved(y, 0, dimension) for y in results[len(initial) :]), *results[: len(initial)]]


@importer("custom_call", complex="whole")
def _custom_call(n: Node) -> Sequence[Any]:
    target = n.attr("call_target_name").value
    if target == "shape_assertion":
        return _assert(n)
    if target in ("Sharding", "annotate_device_placement", "LayoutConstraint"):
        return n.inputs
    if target.startswith("mhlo."):
        importer_of_target = importers().get(target.replace("mhlo.", "chlo.", 1))
    else:
        importer_of_target = importers().get(f"custom_call.{target}")
    if importer_of_target is None:
        raise Unsupported(f"the call of '{target}', a library function outside of StableHLO")
    result = importer_of_target(n)
    return [result] if isinstance(result, (Value, Complex)) else result


def _assert(n: Node) -> Sequence[Value]:
    """Check a condition on sizes that JAX requires."""
    content = n.content(0)
    message = str(n.attr("error_message").value) if n.has("error_message") else "a condition on shapes"
    if content is not None and content.reshape(-1)[0] is True:
        return []
    condition = n.inputs[0]
    assert condition.type.dtype is boolean
    n.importer.builder.insert(g.Check(n.reshape(condition, ()), message=message))
    return []
