"""Packs constants of narrow numbers on GPUs: weights of 4 bits share the bytes of memory.

A dimension of the constant is cut into blocks of as many *words* as a word has numbers, times that number of
elements; a word is the narrowest element that the device's memory has, a byte or 32 bits. Word `j` of a block
has its elements ``j``, ``j + words``, ``j + 2 words``, ..., lowest bits first, so that neighbouring words
have neighbouring elements in each of their parts.

A reader computes the number from the word: ``cast((word >> bits * part) as the narrow type)``. A reduction
along the packed dimension gets two axes for one, over parts and over words: every word's address is affine in
them, vectors of words are read at once, and the other operand is read in its own order. Each rule of
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
from ...ir.target_info import TargetInfo
from ...ir.types import DType, i32, u8, u32

BLOCK = 32
"""Elements of a block in a constant that no reduction reads along a dimension."""


def pack_constants(module: Module, info: TargetInfo) -> None:
    """Store several elements of a constant of a narrow type in each word of a device's memory."""
    word = u8 if info.gpu is None or info.gpu.byte_elements else u32
    found: dict[Constant, list[graph.Constant]] = {}
    for op in module.walk():
        if isinstance(op, graph.Constant) and op.result.has_uses:
            found.setdefault(op.value, []).append(op)
    for value, ops in found.items():
        # Functions of a library share a constant, so all of them read it in the same layout.
        if all(_is_packable(op, word) for op in ops):
            _pack(value, ops, word)
    dce(module)


def _is_packable(op: graph.Constant, word: DType) -> bool:
    """Whether a constant takes fewer bytes if its elements share words, and is read element by element."""
    dtype = op.result.type.dtype
    if not dtype.is_integer or dtype.bits >= word.bits or op.value.size <= 1:
        return False
    reads = op.result.users
    if not dtype.is_sub_byte and not all(notes.QUANTIZED.present(read.parent_op) for read in reads):
        return False  # a factor of a product that is recognized by its plain reads
    return all(isinstance(read, tensor.Read) and _is_zero_outside(read) for read in reads)


def _is_zero_outside(read: tensor.Read) -> bool:
    if read.otherwise is None:
        return True
    made = read.otherwise.defining_op
    return bool(made is not None and getattr(made, "value", None) == 0)


@dataclass(frozen=True)
class _Layout:
    """The packed dimension of a constant of `bits` bits an element, and the words of a block."""

    dimension: int
    words: int
    bits: int
    word: DType

    @property
    def parts(self) -> int:
        return self.word.bits // self.bits

    @property
    def block(self) -> int:
        return self.parts * self.words

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        blocks = -(-shape[self.dimension] // self.block)
        return (*shape[: self.dimension], blocks * self.words, *shape[self.dimension + 1 :])


@dataclass(frozen=True)
class _Packed:
    """Writes the words of a constant."""

    source: Constant
    layout: _Layout

    def __call__(self, out: np.ndarray[Any, Any]) -> None:
        layout, array = self.layout, self.source.array
        bits = np.moveaxis(array.view(f"u{array.dtype.itemsize}"), layout.dimension, -1)
        words = np.moveaxis(out, layout.dimension, -1)
        words[...] = 0
        mask, count = (1 << layout.bits) - 1, bits.shape[-1]
        for block in range(-(-count // layout.block)):
            target = words[..., block * layout.words : (block + 1) * layout.words]
            for part in range(layout.parts):
                first = block * layout.block + part * layout.words
                some = bits[..., first : min(count, first + layout.words)] & mask
                target[..., : some.shape[-1]] |= some.astype(out.dtype) << (part * layout.bits)


def _pack(source: Constant, ops: Sequence[graph.Constant], word: DType) -> None:
    bits = ops[0].result.type.dtype.bits
    parts = word.bits // bits
    reads: list[tensor.Read] = [read for op in ops for read in op.result.users]
    along = {read: found for read in reads if (found := _reduced(read, parts)) is not None}
    if along:
        dimension, axis = next(iter(along.values()))
        words = _size(axis) // parts
    else:
        dimension = max(k for k, n in enumerate(source.shape) if n > 1)
        count = source.shape[dimension]
        words = BLOCK // parts if count % BLOCK == 0 else -(-count // parts)
    layout = _Layout(dimension, words, bits, word)
    if any(is_dynamic_symbol(x) for r in reads for x in free_symbols_of(r.indices[dimension])):
        return
    for read, (d, axis) in along.items():
        compute = read.parent_op
        assert isinstance(compute, tensor.Compute)
        if d == dimension and axis in compute.reduce_axes and _size(axis) == layout.block:
            _split(compute, axis, layout.words)
    name = f"{source.name}.packed" if source.name else "packed"
    step = f"{parts} values in {word.label}, those of a dimension {words} apart"
    packed = Constant.made(layout.shape(source.shape), word.numpy, _Packed(source, layout), name)
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


def _split(compute: tensor.Compute, axis: Expr, words: int) -> None:
    """Give a reduction two axes for one, the inner of `words` points."""
    names = {x.name for x in (*compute.axes, *compute.reduce_axes)}
    free = (name for k in range(len(names) + 2) if (name := f"r{k}") not in names)
    part, inside = symbol(next(free), 0, _size(axis) // words - 1), symbol(next(free), 0, words - 1)
    place = compute.reduce_axes.index(axis)
    compute.reduce_axes = (*compute.reduce_axes[:place], part, inside, *compute.reduce_axes[place + 1 :])
    for op in compute.body.ops:
        tensor.substitute_indices(op, {axis: words * part + inside})
    roles = Roles.of(compute)
    if roles is not None:
        moved = [(place, place + 1) if k == place else (k + (k > place),) for k in roles.k]
        new = replace(roles, k=tuple(k for some in moved for k in some))
        notes.CONTRACTION.set(compute, new.as_attribute())


def _read(read: tensor.Read, packed: Value, layout: _Layout) -> None:
    """Replace a read of a number by that of its word, and the computation of the number."""
    b, at = Builder.before(read), read.indices[layout.dimension]
    index = at // layout.block * layout.words + at % layout.words
    zero = b(scalar.Constant(value=0, dtype=layout.word)) if read.guard else None
    indices = (*read.indices[: layout.dimension], index, *read.indices[layout.dimension + 1 :])
    word = Scalar(
        b,
        b(tensor.Read(packed, read.dynamic, zero, indices=indices, guard=read.guard, location=read.location)),
    )
    wide = word.cast(i32 if layout.word is u8 else u32)
    part: Dim = at % layout.block // layout.words * layout.bits
    read.replace_by(wide.apply("shr", part).cast(read.result.type).value)
    read.erase()


__all__ = ["pack_constants"]
