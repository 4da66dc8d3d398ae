"""Packs constants of fewer than 8 bits on GPUs: weights of 4 bits share the bytes of memory.

A dimension of the constant is cut into blocks of as many bytes as a byte has numbers, times that number of
elements. Byte `j` of a block has its elements ``j``, ``j + bytes``, ``j + 2 bytes``, ..., lowest bits first,
so that neighbouring bytes have neighbouring elements in each of their parts.

A reader computes the number from the byte: ``cast((byte >> bits * part) as the narrow type)``. A reduction
along the packed dimension gets two axes for one, over parts and over bytes: every byte's address is affine in
them, vectors of bytes are read at once, and the other operand is read in its own order. Each rule of
schedules sees a factor that is computed from loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...analysis.axis_roles import Roles
from ...dialects import graph, scalar, tensor
from ...dialects.tensor import extent, free_symbols_of, is_dynamic_symbol
from ...dialects.tensor_builder import Scalar
from ...ir import notes
from ...ir.builder import Builder
from ...ir.cleanup import dce
from ...ir.constant import Constant
from ...ir.core import Module, Value
from ...ir.substitution import linear_in
from ...ir.symbolic import Dim, Expr, prove_divisible, symbol
from ...ir.types import DType, i32, u8

BLOCK = 32
"""Elements of a block in a constant that no reduction reads along a dimension."""


def pack_constants(module: Module) -> None:
    """Store several elements of a constant of fewer than 8 bits in each byte."""
    found: dict[Constant, list[graph.Constant]] = {}
    for op in module.walk():
        if isinstance(op, graph.Constant) and op.result.has_uses:
            found.setdefault(op.value, []).append(op)
    for value, ops in found.items():
        # Functions of a library share a constant, so all of them read it in the same layout.
        if all(_is_packable(op) for op in ops):
            _pack(value, ops)
    dce(module)


def _is_packable(op: graph.Constant) -> bool:
    """Whether a constant takes fewer bytes if its elements share bytes, and is read element by element."""
    dtype = op.result.type.dtype
    if not dtype.is_integer or not dtype.is_sub_byte or op.value.size <= 1:
        return False
    return all(isinstance(read, tensor.Read) and _is_zero_outside(read) for read in op.result.users)


def _is_zero_outside(read: tensor.Read) -> bool:
    if read.otherwise is None:
        return True
    made = read.otherwise.defining_op
    return bool(made is not None and getattr(made, "value", None) == 0)


@dataclass(frozen=True)
class _Layout:
    """The packed dimension of a constant of `bits` bits an element, and the bytes of a block."""

    dimension: int
    width: int
    bits: int

    @property
    def parts(self) -> int:
        return u8.bits // self.bits

    @property
    def block(self) -> int:
        return self.parts * self.width

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        blocks = -(-shape[self.dimension] // self.block)
        return (*shape[: self.dimension], blocks * self.width, *shape[self.dimension + 1 :])


@dataclass(frozen=True)
class _Packed:
    """Writes the bytes of a constant."""

    source: Constant
    layout: _Layout

    def __call__(self, out: np.ndarray[Any, Any]) -> None:
        layout, array = self.layout, self.source.array
        bits = np.moveaxis(array.view(f"u{array.dtype.itemsize}"), layout.dimension, -1)
        packed = np.moveaxis(out, layout.dimension, -1)
        packed[...] = 0
        mask, count = (1 << layout.bits) - 1, bits.shape[-1]
        for block in range(-(-count // layout.block)):
            target = packed[..., block * layout.width : (block + 1) * layout.width]
            for part in range(layout.parts):
                first = block * layout.block + part * layout.width
                some = bits[..., first : min(count, first + layout.width)] & mask
                target[..., : some.shape[-1]] |= some << (part * layout.bits)


def _pack(source: Constant, ops: Sequence[graph.Constant]) -> None:
    bits = ops[0].result.type.dtype.bits
    parts = u8.bits // bits
    reads: list[tensor.Read] = [read for op in ops for read in op.result.users]
    along = {read: found for read in reads if (found := _reduced(read, parts)) is not None}
    if along:
        dimension, axis = next(iter(along.values()))
        width = _size(axis) // parts
    else:
        dimension = max(k for k, n in enumerate(source.shape) if n > 1)
        count = source.shape[dimension]
        width = BLOCK // parts if count % BLOCK == 0 else -(-count // parts)
    layout = _Layout(dimension, width, bits)
    if any(is_dynamic_symbol(x) for r in reads for x in free_symbols_of(r.indices[dimension])):
        return
    for read, (d, axis) in along.items():
        compute = read.parent_op
        assert isinstance(compute, tensor.Compute)
        if d == dimension and axis in compute.reduce_axes and _size(axis) == layout.block:
            _split(compute, axis, layout.width)
    name = f"{source.name}.packed" if source.name else "packed"
    step = f"{parts} values in {u8.label}, those of a dimension {width} apart"
    packed = Constant.made(layout.shape(source.shape), u8.numpy, _Packed(source, layout), name)
    packed.made_of([source], step)
    for op in ops:
        value = Builder.after(op)(graph.Constant(value=packed, location=op.location))
        for read in list(op.result.users):
            _read(read, value, layout)


def _reduced(read: tensor.Read, parts: int) -> tuple[int, Expr] | None:
    """The dimension that a reduction moves along, and its axis there, if each run of that axis is blocks of
    `parts` equal pieces.
    """
    compute = read.parent_op
    if not isinstance(compute, tensor.Compute) or read.guard:
        return None
    for axis in reversed(compute.reduce_axes):
        size = extent(axis)
        dimensions = [k for k, e in enumerate(read.indices) if axis in free_symbols_of(e)]
        if not isinstance(size, int) or size == 1 or size % parts or len(dimensions) != 1:
            continue
        (dimension,) = dimensions
        affine = linear_in(read.indices[dimension], axis)
        if affine is not None and affine[0] == 1 and prove_divisible(affine[1], size):
            return dimension, axis
    return None


def _size(axis: Expr) -> int:
    size = extent(axis)
    assert isinstance(size, int)
    return size


def _split(compute: tensor.Compute, axis: Expr, width: int) -> None:
    """Give a reduction two axes for one, the inner of `width` points."""
    names = {x.name for x in (*compute.axes, *compute.reduce_axes)}
    free = (name for k in range(len(names) + 2) if (name := f"r{k}") not in names)
    part, inside = symbol(next(free), 0, _size(axis) // width - 1), symbol(next(free), 0, width - 1)
    place = compute.reduce_axes.index(axis)
    compute.reduce_axes = (*compute.reduce_axes[:place], part, inside, *compute.reduce_axes[place + 1 :])
    for op in compute.body.ops:
        tensor.substitute_indices(op, {axis: width * part + inside})
    roles = Roles.of(compute)
    if roles is not None:
        moved = [(place, place + 1) if k == place else (k + (k > place),) for k in roles.k]
        new = replace(roles, k=tuple(k for some in moved for k in some))
        notes.CONTRACTION.set(compute, new.as_attribute())


def _read(read: tensor.Read, packed: Value, layout: _Layout) -> None:
    """Replace a read of a number by that of its byte, and the computation of the number."""
    b, at = Builder.before(read), read.indices[layout.dimension]
    index = at // layout.block * layout.width + at % layout.width
    zero = b(scalar.Constant(value=0, dtype=u8)) if read.guard else None
    indices = (*read.indices[: layout.dimension], index, *read.indices[layout.dimension + 1 :])
    byte = Scalar(
        b,
        b(tensor.Read(packed, read.dynamic, zero, indices=indices, guard=read.guard, location=read.location)),
    )
    part: Dim = at % layout.block // layout.width * layout.bits
    read.replace_by(integer_in(byte, part, read.result.type).value)
    read.erase()


def integer_in(byte: Scalar, bit: Dim, dtype: DType) -> Scalar:
    """The integer of type `dtype`, of fewer than 8 bits, that begins at a bit of a byte."""
    return byte.cast(i32).apply("shr", bit).cast(dtype)


__all__ = ["integer_in", "pack_constants"]
