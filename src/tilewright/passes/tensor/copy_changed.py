"""Copies of tensors that an operation changes and that something else still needs: the operation overwrites
the copy.
"""

from __future__ import annotations

from ...dialects import tensor
from ...dialects.places import place_of
from ...dialects.tensor_builder import TensorBuilder
from ...ir import notes
from ...ir.builder import Builder
from ...ir.core import Module, OpResult
from ...ir.target_info import TargetInfo
from .write_in_place import changed_operand, overwrite


def copy_changed(module: Module, info: TargetInfo) -> None:
    """Let operations that may not overwrite the operand that they change overwrite a copy of it.

    Kernels of users' do on all targets. Scatters do on GPUs, where a kernel cannot copy a whole tensor and
    then scatter into it, because its blocks do not wait for each other.
    """
    for block in tensor.blocks_of_computations(module):
        for group in [op for op in block.ops if isinstance(op, tensor.Group)]:
            scatters = group.kind == tensor.GroupKind.SCATTER
            if group.kind != tensor.GroupKind.CALL and not (scatters and info.gpu is not None):
                continue
            for result in group.results:
                number = changed_operand(result)
                done = result.index in dict(notes.OVERWRITES.get(group, ()))
                # A scatter that also reads its operand, or whose result has a place, has a kernel of its own.
                if number is None or done or (scatters and _keeps(group, result, number)):
                    continue
                group.set_operand(number, _copied(group, number))
                overwrite(result, number)


def _keeps(group: tensor.Group, result: OpResult, number: int) -> bool:
    return place_of(result) is not None or len(group.body.args[number].users) != 1


def _copied(group: tensor.Group, number: int) -> OpResult:
    """A copy of an operand of a group, made before it."""
    t = TensorBuilder(Builder.before(group))
    source = group.operands[number]
    copy = tensor.Group([source], kind=tensor.GroupKind.ROWS, result_types=[source.type])
    inner = TensorBuilder(Builder(copy.body, location=group.location))
    x = inner.wrap(copy.body.add_arg(source.type))
    y = inner.compute(x.shape, lambda *i: x[i])
    copy.body.append(tensor.Yield([y.value]))
    notes.ROW_AXES.set(copy, x.rank)
    assert y.value.defining_op is not None
    notes.ORIGIN.set(y.value.defining_op, "copy")
    t.builder.insert(copy)
    return copy.results[0]


__all__ = ["copy_changed"]
