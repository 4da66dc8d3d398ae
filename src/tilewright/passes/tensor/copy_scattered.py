"""Copies what scatters change, for targets whose kernels cannot copy a whole tensor and then scatter into it,
because their blocks do not wait for each other: the scatter overwrites the copy.
"""

from __future__ import annotations

from ...dialects import tensor
from ...dialects.places import place_of
from ...dialects.tensor_builder import TensorBuilder
from ...ir import notes
from ...ir.builder import Builder
from ...ir.core import Module


def copy_scattered(module: Module) -> None:
    """Let every scatter that may not overwrite its operand overwrite a copy of it."""
    for block in tensor.blocks_of_computations(module):
        for group in [op for op in block.ops if isinstance(op, tensor.Group)]:
            number = _scattered(group)
            if number is None:
                continue
            t = TensorBuilder(Builder.before(group))
            source = group.operands[number]
            copy = tensor.Group([source], kind=tensor.GroupKind.ROWS, result_types=[source.type])
            inner = TensorBuilder(Builder(copy.body, location=group.location))
            x = inner.wrap(copy.body.add_arg(source.type))
            y = inner.compute(x.shape, lambda *i, x=x: x[i])
            copy.body.append(tensor.Yield([y.value]))
            notes.ROW_AXES.set(copy, x.rank)
            assert y.value.defining_op is not None
            notes.ORIGIN.set(y.value.defining_op, "copy")
            t.builder.insert(copy)
            group.set_operand(number, copy.results[0])
            notes.OVERWRITES.set(group, number)


def _scattered(group: tensor.Group) -> int | None:
    """The number of the operand that a group copies with some elements changed; None for other groups, and
    where the group also reads it or its result has a place already.
    """
    if group.kind != tensor.GroupKind.SCATTER or len(group.results) != 1 or notes.OVERWRITES.present(group):
        return None
    scatter = group.body.terminator.operands[0].defining_op
    if not isinstance(scatter, tensor.Scatter) or place_of(group.results[0]) is not None:
        return None
    if scatter.dest not in group.body.args or len(scatter.dest.users) != 1:
        return None
    return int(group.body.args.index(scatter.dest))


__all__ = ["copy_scattered"]
