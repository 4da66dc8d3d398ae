"""Stores values that kernels pass on in the type that all their readers convert them to.

A convolution in bf16 sums in float32 and rounds. Fusion moves the rounding to the elementwise operation
behind it; where that becomes the epilogue of another convolution (the shortcut of a residual block), the
float32 sum would go through memory. The same conversion at the end of the producer gives the same bits in
half the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...dialects import scalar, tensor
from ...dialects.tensor_builder import TensorBuilder
from ...ir import notes
from ...ir.builder import Builder
from ...ir.core import Module, Value
from ...ir.types import DType


def narrow_results(module: Module) -> None:
    """Convert results of groups where they are computed, if every reader converts them to one narrower float
    type.
    """
    for block in tensor.blocks_of_computations(module):
        for group in [op for op in block.ops if isinstance(op, tensor.Group)]:
            for k, result in enumerate(group.results):
                casts = _casts(result)
                if casts and _computed(group, k):
                    _narrow(group, k, casts)


def _casts(result: Value) -> list[scalar.Cast]:
    """The conversions that are all that becomes of a tensor of floats, to one narrower type; empty if there
    is another use.
    """
    found: list[scalar.Cast] = []
    for read in _reads(result):
        if read is None or read.otherwise is not None or _is_factor(read):
            return []
        users = list(read.result.users)
        if not users or not all(isinstance(user, scalar.Cast) for user in users):
            return []
        found += [user for user in users if isinstance(user, scalar.Cast)]
    if len({cast.dtype for cast in found}) != 1:
        return []
    old, new = result.type.dtype, found[0].dtype
    return found if old.is_float and new.is_float and new.bits < old.bits else []


def _is_factor(read: tensor.Read) -> bool:
    """Whether a contraction reads a value: kernels multiply factors of certain pairs of types."""
    return read.parent_op is not None and notes.CONTRACTION.present(read.parent_op)


def _reads(value: Value) -> Iterator[tensor.Read | None]:
    """The reads of a tensor in groups, through views; None for each use of another kind."""
    for user, k in value.uses:
        if isinstance(user, tensor.Reshape):
            yield from _reads(user.result)
        elif isinstance(user, tensor.Group):
            yield from _reads(user.body.args[k])
        else:
            yield user if isinstance(user, tensor.Read) and user.source is value else None


def _computed(group: tensor.Group, k: int) -> bool:
    """Whether the producer of a result may convert it: an elementwise computation, or a contraction, whose
    epilogue that becomes.
    """
    op = group.body.terminator.operands[k].defining_op
    if not isinstance(op, tensor.Compute):
        return False
    alone = len(group.results) == 1 and op.result.has_one_use
    return not op.is_reduction or (group.kind == tensor.GroupKind.CONTRACTION and alone)


def _narrow(group: tensor.Group, k: int, casts: list[scalar.Cast]) -> None:
    dtype, end = casts[0].dtype, group.body.terminator
    op = end.operands[k].defining_op
    assert isinstance(op, tensor.Compute)
    if op.result.has_one_use and not op.is_reduction:
        yielded = op.body.terminator
        value = yielded.operands[0]
        yielded.set_operand(0, Builder.before(yielded)(scalar.Cast(value, dtype=dtype)))
        op.result.type = op.result.type.with_dtype(dtype)
    else:
        t = TensorBuilder(Builder.after(op))
        x = t.wrap(op.result)
        end.set_operand(k, t.compute(op.result.type.shape, lambda *i: x[i].cast(dtype)).value)
    _retype(group.results[k], dtype)
    for cast in casts:
        cast.result.replace_by(cast.x)
        cast.erase()


def _retype(value: Value, dtype: DType) -> None:
    value.type = value.type.with_dtype(dtype)
    for user, k in value.uses:
        if isinstance(user, tensor.Reshape):
            _retype(user.result, dtype)
        elif isinstance(user, tensor.Group):
            _retype(user.body.args[k], dtype)
        else:
            assert isinstance(user, tensor.Read)
            user.result.type = dtype


__all__ = ["narrow_results"]
