"""Lowers graph operators to tensor-level computations: decomposes those with a decomposition, lowers the
others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...dialects import func, graph, kernels, tensor
from ...dialects.tensor_builder import TensorBuilder, TensorRef
from ...errors import InternalError, TilewrightError, UnsupportedOperator, UnsupportedOperatorError
from ...ir import notes
from ...ir.builder import Builder
from ...ir.cleanup import dce
from ...ir.constant import Constant
from ...ir.core import IRError, Module, Operation, Value
from ...ir.origin import place_outside
from ...ir.symbolic import Dim
from ...ir.target_info import TargetInfo
from ..graph.fold_constants import empty_results


def lower_to_tensor(module: Module, info: TargetInfo | None = None) -> Module:
    """Replace every graph operator except constants by computations.

    The note `ORIGIN` of a computation keeps the operator's name. `info` describes the device, where known.

    Raises:
        UnsupportedOperatorError: some operators have no lowering; lists all of them.
    """
    missing: list[Operation] = []
    for function in module.functions(func.Func):
        for op in list(function.body.ops):
            _lower(op, None, missing, info)
    if missing:
        raise UnsupportedOperatorError(_grouped(missing))
    dce(module)
    return module


def _grouped(ops: list[Operation]) -> list[UnsupportedOperator]:
    """One entry for each operator, with all its locations."""
    places: dict[str, list[str]] = {}
    for op in ops:
        places.setdefault(op.name, []).append(str(op.location))
    return [
        UnsupportedOperator(name, len(where), tuple(where), NO_LOWERING) for name, where in places.items()
    ]


NO_LOWERING = "the class has neither `lower` nor `decompose`"
Result = TypeVar("Result")

COMPUTED = 1 << 24
"""Largest constant, in bytes, of equal elements that is stored with the weights. A larger one is filled in
each run.
"""


def _lower(op: Operation, origin: str | None, missing: list[Operation], info: TargetInfo | None) -> None:
    if isinstance(op, graph.Constant):
        _lower_splat(op)
        return
    if not isinstance(op, graph.GraphOp):
        return
    origin = origin or (op.kernel if isinstance(op, kernels.Apply) else op.name.partition(".")[2])
    builder = Builder.before(op)
    before, block = op.previous, op.parent
    assert block is not None
    results = empty_results(op, builder) or _defined(op, "decompose", lambda: op.decompose(builder))
    if results is not None:
        values = (results,) if isinstance(results, Value) else tuple(results)
        inserted = block.between(before, op)
        op.replace_by(_matching(builder, op, values))
        for new in inserted:
            _lower(new, origin, missing, info)
        return
    t = TensorBuilder(builder, info)
    if type(op).lower is graph.GraphOp.lower:
        missing.append(op)
        return
    lowered = _defined(op, "lower", lambda: op.lower(t, *(t.wrap(v) for v in op.operands)))
    tensors = (lowered,) if isinstance(lowered, TensorRef) else tuple(lowered)
    for new in block.between(before, op):
        if isinstance(new, (tensor.Compute, tensor.Scatter, tensor.Argsort, kernels.Run)):
            notes.copy(op, new)
            if not notes.ORIGIN.present(new):
                notes.ORIGIN.set(new, new.kernel if isinstance(new, kernels.Run) else origin)
        if isinstance(new, tensor.Nested):
            for region in new.regions:
                for inner in list(region.block.ops):
                    _lower(inner, None, missing, info)
    op.replace_by(_matching(builder, op, tuple(x.value for x in tensors)))


def _defined(op: Operation, method: str, call: Callable[[], Result]) -> Result:
    """The result of an operator's method; an exception of an operator that is not Tilewright's own becomes an
    error that names its place.
    """
    try:
        return call()
    except Exception as error:
        place = "" if isinstance(error, TilewrightError) else place_outside(type(op))
        if not place:
            raise
        raise InternalError(
            f"`{method}` of the operator '{op.name}' (at {op.location}) raises {type(error).__name__}: "
            f"{error}",
            f"The operator '{op.name}' is defined in {place}, outside of Tilewright.",
        ) from error


def _lower_splat(op: Operation) -> None:
    value: Constant = op.attributes["value"]
    if value.nbytes <= COMPUTED or not value.is_splat:
        return
    builder = Builder.before(op)
    element = builder(
        graph.Constant(value=Constant(value.array.reshape(-1)[:1].reshape(()).copy(), value.name))
    )
    t = TensorBuilder(builder)
    scalar = t.wrap(element)
    op.replace_by([t.compute(value.shape, lambda *_: scalar[()]).value])
    op.erase()


def _matching(builder: Builder, op: Operation, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """`values`, reshaped to the types of the results that they replace if symbolic dimensions are written
    differently.
    """
    fixed = []
    for result, value in zip(op.results, values, strict=True):
        if value.type is not result.type:
            shape: tuple[Dim, ...] = result.type.shape
            if value.type.dtype is not result.type.dtype or len(value.type.shape) != len(shape):
                raise IRError(f"lowers to {value.type}, not to {result.type}", op)
            value = builder(tensor.Reshape(value, shape=shape))
        fixed.append(value)
    return tuple(fixed)
