"""Computes the elementwise reader of a reshaped contraction over the contraction's own axes.

A convolution in groups has an axis for the groups and one for the channels of a group, which a reshape joins.
``relu(y[p, c // 24, c % 24] + b[c])`` becomes ``relu(y[p, g, c] + b[24*g + c])`` with a reshape behind it:
`form_groups` then makes it the contraction's epilogue.
"""

from __future__ import annotations

from ...analysis.index_maps import at_same_point, reshape_index
from ...dialects import tensor
from ...ir import notes
from ...ir.builder import Builder
from ...ir.core import Module, Operation, Value
from ...ir.refusal import Refusal, refused
from ...ir.symbolic import Dim, Expr, prove_eq, symbol
from ...ir.types import TensorType
from .split_concat import reshaped


def align_epilogues(module: Module) -> None:
    """Compute elementwise readers of reshaped contractions over the axes of the contraction."""
    for block in tensor.blocks_of_computations(module):
        for op in list(block.ops):
            if isinstance(op, tensor.Compute) and notes.CONTRACTION.present(op):
                reader = _reader(op)
                if isinstance(reader, tensor.Compute):
                    _align(op, reader)


def _reader(contraction: tensor.Compute) -> tensor.Compute | None:
    """The computation of `_found`, if it can be computed over the axes of the contraction."""
    reader = _found(contraction)
    if reader is None:
        return None
    verdict = _alignable(contraction, reader)
    refused("align-epilogues", verdict, reader, [contraction])
    return reader if verdict else None


def _found(contraction: tensor.Compute) -> tensor.Compute | None:
    """The computation in the same block that alone reads a contraction's result, behind at least one
    reshape.
    """
    value = _last_view(contraction)
    readers = {user.parent_op for user in value.users}
    if value is contraction.result or len(readers) != 1:
        return None
    (reader,) = readers
    return reader if isinstance(reader, tensor.Compute) and reader.parent is contraction.parent else None


def _last_view(contraction: tensor.Compute) -> Value:
    """A contraction's result, or that of the last of the reshapes that alone read it."""
    value: Value = contraction.result
    while value.has_one_use and isinstance(view := next(iter(value.users)), tensor.Reshape):
        value = view.result
    return value


def _alignable(contraction: tensor.Compute, reader: tensor.Compute) -> bool | Refusal:
    """Whether `reader` is elementwise, over as many points, and reads each element for the same element."""
    if reader.is_reduction or notes.CONTRACTION.present(reader):
        return Refusal("the reader of the reshaped result sums over elements of it")
    if not prove_eq(reader.result.type.size, contraction.result.type.size):
        return Refusal("the reader of the reshaped result has another number of elements")
    for user in _last_view(contraction).users:
        if not isinstance(user, tensor.Read) or user.guard or user.dynamic:
            return Refusal("the reader takes only some elements of the reshaped result")
        if not at_same_point(user.indices, reader.axes):
            return Refusal("the reader takes the elements of the reshaped result in another order")
    return True


def _align(contraction: tensor.Compute, reader: tensor.Compute) -> None:
    """Replace `reader` by a computation over the axes of `contraction` and a reshape."""
    shape = contraction.result.type.shape
    axes = tuple(symbol(f"i{k}", 0, axis.upper) for k, axis in enumerate(contraction.axes))
    place = reshape_index(axes, shape, reader.result.type.shape)
    mapping: dict[Expr, Dim] = dict(zip(reader.axes, place, strict=True))
    new = tensor.Compute(axes=axes, result_types=[TensorType(reader.dtype, shape)], location=reader.location)
    notes.copy(reader, new)
    copies: dict[Value, Value] = {}
    for child in reader.body.ops:
        if isinstance(child, tensor.Read) and _behind_reshapes(child.source) is contraction.result:
            copy: Operation = tensor.Read(
                contraction.result, (), None, indices=tuple(axes), location=child.location
            )
            copies[child.result] = copy.results[0]
        else:
            copy = child.clone(copies)
            tensor.substitute_indices(copy, mapping)
        new.body.append(copy)
    builder = Builder.before(reader)
    builder.insert(new)
    reader.replace_by(reshaped(builder, new.result, reader.result.type.shape))
    reader.erase()
    for view in _views(contraction.result):
        view.erase()


def _views(value: Value) -> list[Operation]:
    """The chain of reshapes of a value, the last one first."""
    views = [user for user in value.users if isinstance(user, tensor.Reshape)]
    return [x for view in views for x in (*_views(view.result), view)]


def _behind_reshapes(value: Value) -> Value:
    while isinstance(view := value.defining_op, tensor.Reshape):
        value = view.x
    return value


__all__ = ["align_epilogues"]
