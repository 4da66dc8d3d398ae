"""From graph operators to tensor-level computations: decompose what decomposes, lower the rest."""

from __future__ import annotations

from ..dialects import func, graph, tensor
from ..dialects.tensor_builder import Tensor, TensorBuilder
from ..errors import UnsupportedOperator, UnsupportedOperatorError
from ..ir.builder import Builder
from ..ir.cleanup import dce
from ..ir.constant import Constant
from ..ir.core import IRError, Module, Operation, Value
from ..ir.symbolic import Dim
from ..transforms.fold_constants import empty_results


def lower_to_tensor(module: Module) -> Module:
    """Replace every graph operator except constants; names of operators stay on computations as ``tw.origin``.

    Raises:
        UnsupportedOperatorError: listing all operators that have no lowering.
    """
    missing: list[Operation] = []
    for function in module.functions(func.Func):
        for op in list(function.body.ops):
            _lower(op, None, missing)
    if missing:
        raise UnsupportedOperatorError(_grouped(missing))
    dce(module)
    return module


def _grouped(ops: list[Operation]) -> list[UnsupportedOperator]:
    """One entry for each operator, with all its places."""
    places: dict[str, list[str]] = {}
    for op in ops:
        places.setdefault(op.name, []).append(str(op.location))
    return [UnsupportedOperator(name, len(where), tuple(where)) for name, where in places.items()]


COMPUTED = 1 << 24
"""A constant of one value and more bytes than this is written in the run, not kept among the weights."""


def _lower(op: Operation, origin: str | None, missing: list[Operation]) -> None:
    if isinstance(op, graph.Constant):  # type: ignore[attr-defined]
        _lower_splat(op)
        return
    if not isinstance(op, graph.GraphOp):
        return
    origin = origin or op.name.partition(".")[2]
    builder = Builder.before(op)
    before, block = op.previous, op.parent
    results = empty_results(op, builder) or op.decompose(builder)
    if results is not None:
        values = (results,) if isinstance(results, Value) else tuple(results)
        inserted = _between(before, block, op)
        op.replace_by(_matching(builder, op, values))
        for new in inserted:
            _lower(new, origin, missing)
        return
    t = TensorBuilder(builder)
    try:
        lowered = op.lower(t, *(t.wrap(v) for v in op.operands))
    except IRError as error:
        if "neither a decomposition nor a lowering" not in str(error):
            raise
        missing.append(op)
        return
    tensors = (lowered,) if isinstance(lowered, Tensor) else tuple(lowered)
    start = before.next if before is not None else (block.first if block is not None else None)
    while start is not None and start is not op:
        if isinstance(start, (tensor.Compute, tensor.Scatter, tensor.Order)):
            start.attributes.setdefault("tw.origin", origin)
        if isinstance(start, tensor.Nested):
            for region in start.regions:
                for inner in list(region.block.ops):
                    _lower(inner, None, missing)
        start = start.next
    op.replace_by(_matching(builder, op, tuple(x.value for x in tensors)))


def _lower_splat(op: Operation) -> None:
    value: Constant = op.attributes["value"]
    if value.nbytes <= COMPUTED or not value.is_splat:
        return
    builder = Builder.before(op)
    element = builder(graph.Constant(value=Constant(value.array.reshape(-1)[:1].reshape(()).copy(), value.name)))  # type: ignore[attr-defined]
    t = TensorBuilder(builder)
    scalar = t.wrap(element)
    op.replace_by([t.compute(value.shape, lambda *_: scalar[()]).value])
    op.erase()


def _between(before: Operation | None, block: object, op: Operation) -> list[Operation]:
    """The operations that were inserted before `op`: those after `before`; none where an operand is the result."""
    found: list[Operation] = []
    new = before.next if before is not None else block.first  # type: ignore[attr-defined]
    while new is not op:
        assert new is not None
        found.append(new)
        new = new.next
    return found


def _matching(builder: Builder, op: Operation, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """`values` with the types of the results they replace: equal up to the way a symbolic dimension is written."""
    fixed = []
    for result, value in zip(op.results, values, strict=True):
        if value.type is not result.type:
            shape: tuple[Dim, ...] = result.type.shape
            if value.type.dtype is not result.type.dtype or len(value.type.shape) != len(shape):
                raise IRError(f"lowers to {value.type}, not to {result.type}", op)
            value = builder(tensor.Reshape(value, shape=shape))
        fixed.append(value)
    return tuple(fixed)
