"""torch's higher-order operators: branches, loops, and wrappers around a part of the model. Their functions
are graph modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....dialects.graph.scan import Yield, same_type
from ....ir.core import Block, Region, Value
from ....ir.symbolic import Dim
from ....ir.types import TensorType, boolean, f64, i64
from ...complex import Complex, flat
from ...unsupported import Unsupported
from ..importer import Node, Number
from ..registry import complex_importer, importer

if TYPE_CHECKING:
    import torch


def _on_all(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register an importer for both real and complex numbers."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        return complex_importer(*names)(importer(*names)(function))

    return register


# -- Numbers and complex tensors as tensors ------------------------------------------------------------------


def _tensors(n: Node, values: Sequence[Any]) -> list[Value]:
    """Return values as a flat list of tensors: a number is a scalar tensor, a complex tensor two."""
    tensors: list[Value] = []
    for v in values:
        tensors += flat(v if isinstance(v, (Value, Complex)) else _number(n, v))
    return tensors


def _number(n: Node, value: Number) -> Value:
    dtype = boolean if isinstance(value, bool) else f64 if isinstance(value, float) else i64
    return n.scalar(value, dtype)


def _packed(row: Sequence[Value], like: Sequence[Any]) -> list[Any]:
    """Return a flat list of tensors in the structure of `like`: complex tensors are joined, numbers stay
    scalar tensors.
    """
    rest = iter(row)
    return [Complex(next(rest), next(rest)) if isinstance(v, Complex) else next(rest) for v in like]


def _yield(n: Node, values: Sequence[Any], types: Sequence[TensorType], what: str) -> None:
    """End a body with `values`, converted to `types`."""
    ends = _tensors(n, values)
    for k, (v, t) in enumerate(zip(ends, types, strict=False)):
        if v.type.dtype is not t.dtype or v.type.rank != t.rank:
            raise Unsupported(f"{what} is {v.type} in one place and {t} in another")
        if not same_type(v.type, t):
            if all(isinstance(d, int) for d in (*v.type.shape, *t.shape)):
                raise Unsupported(
                    f"{what} has the shape {v.type.shape} in one place and {t.shape} in another"
                )
            ends[k] = n.assume(v, t.shape)
    n.importer.builder.insert(Yield(ends))


# -- Branches and wrappers -----------------------------------------------------------------------------------


@_on_all("cond")
def cond(
    n: Node,
    condition: Value | bool,
    if_true: torch.fx.GraphModule,
    if_false: torch.fx.GraphModule,
    operands: Sequence[Any] = (),
) -> list[Any]:
    if isinstance(condition, bool):
        return n.importer.subgraph(if_true if condition else if_false, operands)
    flag = n.reshape(n.cast(condition, boolean), ())
    blocks = Block(), Block()
    results: list[Any] = []
    types: list[TensorType] = []
    for block, side in zip(blocks, (if_true, if_false), strict=True):
        with n.importer.building(block):
            results = n.importer.subgraph(side, operands)
            types = types or [v.type for v in _tensors(n, results)]
            _yield(n, results, types, "a result of the branches")
    op = n.importer.builder.insert(g.If(flag, regions=[Region([b]) for b in blocks]))
    return _packed(op.results, results)


@_on_all("wrap_with_set_grad_enabled")
def wrap_with_set_grad_enabled(
    n: Node, enabled: object, body: torch.fx.GraphModule, *operands: object
) -> list[Any]:
    return n.importer.subgraph(body, operands)


@_on_all("wrap_with_autocast")
def wrap_with_autocast(
    n: Node,
    device: object,
    dtype: object,
    enabled: object,
    cached: object,
    body: torch.fx.GraphModule,
    *operands: object,
) -> list[Any]:
    return n.importer.subgraph(body, operands)


@_on_all("invoke_subgraph")
def invoke_subgraph(n: Node, body: torch.fx.GraphModule, identifier: object, *operands: object) -> list[Any]:
    return n.importer.subgraph(body, operands)


@_on_all("hints_wrapper")
def hints_wrapper(
    n: Node, body: torch.fx.GraphModule, operands: Sequence[Any], *_: object, **__: object
) -> list[Any]:
    return n.importer.subgraph(body, operands)


@_on_all("tag_activation_checkpoint", "wrap_activation_checkpoint")
def tag_activation_checkpoint(
    n: Node, body: torch.fx.GraphModule, *operands: object, **_: object
) -> list[Any]:
    with n.importer.checkpoints.collecting(n.importer.builder.block):
        return n.importer.subgraph(body, operands)


# -- Loops ---------------------------------------------------------------------------------------------------


@_on_all("while_loop")
def while_loop(
    n: Node,
    condition: torch.fx.GraphModule,
    body: torch.fx.GraphModule,
    carried: Sequence[Any],
    operands: Sequence[Any] = (),
) -> list[Any]:
    """Import a loop. Carried numbers are scalar tensors between steps and numbers within a step."""
    initial = _tensors(n, carried)
    start = _condition(n, condition, [*carried, *operands])
    block = Block([TensorType(i64, ()), *(v.type for v in initial)])
    with n.importer.building(block, lambda: block.args[0]):
        state = _packed(block.args[1:], carried)
        results = n.importer.subgraph(body, [*state, *operands])
        again = _condition(n, condition, [*results, *operands])
        _yield(n, [again, *results], [again.type, *(v.type for v in initial)], "a value carried by the loop")
    steps = n.run_time_size(0)
    op = n.importer.builder.insert(g.While(start, None, initial, count=steps, regions=[Region([block])]))
    return _packed(op.results, carried)


def _condition(n: Node, condition: torch.fx.GraphModule, values: Sequence[Any]) -> Value:
    (result,) = n.importer.subgraph(condition, values)
    flag = result if isinstance(result, Value) else _number(n, result)
    return n.reshape(n.cast(flag, boolean), ())


@_on_all("scan")
def scan(
    n: Node,
    body: torch.fx.GraphModule,
    carried: Sequence[Any],
    scanned: Sequence[Any],
    operands: Sequence[Any] = (),
) -> list[Any]:
    return _scan(n, body, carried, scanned, operands)


@_on_all("map_impl")
def map_impl(
    n: Node, body: torch.fx.GraphModule, scanned: Sequence[Any], operands: Sequence[Any] = ()
) -> list[Any]:
    return _scan(n, body, [], scanned, operands)


def _scan(
    n: Node,
    body: torch.fx.GraphModule,
    carried: Sequence[Any],
    scanned: Sequence[Any],
    operands: Sequence[Any],
) -> list[Any]:
    initial, rows = _tensors(n, carried), _tensors(n, scanned)
    length = rows[0].type.shape[0]
    slices = [TensorType(v.type.dtype, v.type.shape[1:]) for v in rows]
    block = Block([*(v.type for v in initial), *slices])
    counter: list[Value] = []

    def step() -> Value:
        """Return the number of the step, if an operator in the body needs it."""
        if not counter:
            counter.append(block.add_arg(TensorType(i64, ())))
        return counter[0]

    with n.importer.building(block, step):
        values = _packed(block.args, [*carried, *scanned])
        results = n.importer.subgraph(body, [*values, *operands])
        _yield(n, results, [v.type for v in initial], "a value carried by the scan")
    if counter:
        rows.append(n.emit(g.Iota(shape=(length,))))
    op = n.importer.builder.insert(g.Scan(initial, rows, length=length, regions=[Region([block])]))
    return _packed(op.results, results)


@_on_all("associative_scan")
def associative_scan(
    n: Node, combine: torch.fx.GraphModule, scanned: Sequence[Any], operands: Sequence[Any] = ()
) -> list[Any]:
    """Import an associative scan as a sequential one: the first slice is the first result, each further one
    is combined with the result before it.
    """

    def part(x: Value, start: Dim, stop: Dim) -> Value:
        starts, stops = (start, *[0] * (x.type.rank - 1)), (stop, *x.type.shape[1:])
        return n.emit(g.Slice(x, starts=starts, stops=stops, steps=(1,) * x.type.rank))

    rows = _tensors(n, scanned)
    length = rows[0].type.shape[0]
    firsts = [part(x, 0, 1) for x in rows]
    initial = [n.reshape(x, x.type.shape[1:]) for x in firsts]
    block = Block([*(v.type for v in initial), *(v.type for v in initial)])
    with n.importer.building(block, lambda: _refuse_steps()):
        values = _packed(block.args, [*scanned, *scanned])
        results = n.importer.subgraph(combine, [*values, *operands])
        _yield(n, [*results, *results], [v.type for v in initial] * 2, "a value carried by the scan")
    rest = [part(x, 1, length) for x in rows]
    op = n.importer.builder.insert(g.Scan(initial, rest, length=length - 1, regions=[Region([block])]))
    stacked = op.results[len(initial) :]
    joined = [n.emit(g.Concat([a, b], axis=0)) for a, b in zip(firsts, stacked, strict=True)]
    return _packed(joined, scanned)


def _refuse_steps() -> Value:
    raise Unsupported("random numbers inside an associative scan: draw them before it")
