"""Packs quantized weights into panels, the layout that `simd.quantized_gemm` reads.

The quantized values of `nr` columns (rows of the weight) are neighbours, and four successive values of a
column are together, as dot-product instructions on bytes require: ``p[n // nr, g, k // 4, n % nr, k % 4]``,
with 128 added to make them unsigned. Values of 4 bits, with 8 added, share bytes: of every 32 in a group, the
first half are the lower four bits of the bytes whose upper bits are the second half, ``p[n // nr, g, k // 32,
k % 16 // 4, n % nr, k % 4]``. Scales have the same order, ``s[n // nr, g, n % nr]``. Zeros complete the last
panel. If each row of the product chooses one of several matrices, their panels follow one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...analysis.axis_roles import Roles
from ...dialects import graph, tensor
from ...dialects.simd import Panel
from ...dialects.tensor import extent
from ...dialects.tensor_builder import Scalar, TensorBuilder
from ...ir import notes
from ...ir.builder import Builder
from ...ir.constant import Constant
from ...ir.core import Value
from ...ir.symbolic import Dim
from ...ir.types import bf16, f32, i32

CHUNK = 32
"""Number of 4-bit values that are packed together: the two halves share bytes."""


def fits_panels(bits: int, size: int) -> bool:
    """Whether groups of `size` values consist of whole chunks (4 bits) or quads (8 bits)."""
    return size % (CHUNK if bits == 4 else 4) == 0


@dataclass(frozen=True)
class Packing:
    """The layout of quantized values and scales in panels, once a product has asked for it."""

    bits: int
    groups: int
    size: int
    nr: int
    qvalues: Constant
    scales: Constant


def pack_quantized(compute: tensor.Compute, panel: Panel, packed: dict[Any, Value]) -> Packing | None:
    """Pack the constant values and scales of a `graph.scaled_matmul` or `graph.dequantized_matmul` into
    panels.

    Marks the computation as a contraction and returns the layout; None if the operands are not constants or
    their groups do not consist of whole quads or chunks.
    """
    choosing = {v for read in compute.reads for v in read.dynamic}
    index = [read for read in compute.reads if read.result in choosing]
    x, qvalues, *x_scales, scales = (read for read in compute.reads if read not in index)
    sources = [read.source.defining_op for read in (qvalues, scales)]
    *lead, column = compute.axes
    group, k = compute.reduce_axes
    groups, size = extent(group), extent(k)
    whole = all(isinstance(op, graph.Constant) for op in sources)
    read_as_written = x.indices == (*lead, group, k) and scales.indices[-2] is column
    if panel.group != 4 or not (
        whole and read_as_written and isinstance(groups, int) and isinstance(size, int)
    ):
        return None
    bits, nr = qvalues.source.type.dtype.bits, panel.nr
    if not fits_panels(bits, size):
        return None
    packing = Packing(bits, groups, size, nr, *(op.value for op in sources if isinstance(op, graph.Constant)))
    code_panels, scale_panels = (_panels(op, packing, packed) for op in sources)
    t = TensorBuilder(Builder.before(compute))
    left, right, right_scales = map(t.wrap, (x.source, code_panels, scale_panels))

    def product(*i: Dim) -> Scalar:
        row, n, g, *inside = i[: len(lead)], *i[len(lead) :]
        matrix = [t.wrap(read.source)[row] for read in index]
        if bits == 4:
            chunk, half, k = inside
            byte = right[*matrix, n // nr, g, chunk, k // 4, n % nr, k % 4].cast(i32)
            code = byte.shr(t.index(4 * half, i32)) & 15
            k = chunk * CHUNK + half * (CHUNK // 2) + k
        else:
            (k,) = inside
            code = right[*matrix, n // nr, g, k // 4, n % nr, k % 4].cast(i32)
        code, element = code - (1 << (bits - 1)), left[(*row, g, k)]
        scale = right_scales[*matrix, n // nr, g, n % nr].cast(f32)
        if not x_scales:
            return element.cast(f32) * (code.cast(f32) * scale).cast(bf16).cast(f32)
        left_scale = t.wrap(x_scales[0].source)[(*row, g)]
        return (element.cast(i32) * code).cast(f32) * (left_scale * scale)

    depth = (groups, size // CHUNK, 2, CHUNK // 2) if bits == 4 else (groups, size)
    y = t.reduce("sum", compute.shape, depth, product).value
    made = y.defining_op
    assert made is not None
    rank = len(compute.axes)
    over_rows, over_depth = tuple(range(rank - 1)), tuple(range(len(depth)))
    roles = Roles((), over_rows, (rank - 1,), over_depth, nr, True, 4, (bits, groups, size), bool(index))
    made.location = compute.location
    notes.copy(compute, made)
    notes.CONTRACTION.set(made, roles.as_attribute())
    compute.result.replace_by(y)
    compute.erase()
    return packing


def read_from_panels(constant: graph.Constant, packing: Packing, packed: dict[Any, Value]) -> None:
    """Let all other reads of packed quantized values or scales read the panels, so that the values are stored
    once.

    An embedding that is also the head has such reads.
    """
    reads = list(constant.result.users)
    if not all(isinstance(read, tensor.Read) and not read.guard for read in reads):
        return
    is_qvalues = constant.value == packing.qvalues
    panels, bits, size, nr = _panels(constant, packing, packed), packing.bits, packing.size, packing.nr
    for read in reads:
        b, (n, k) = Builder.before(read), read.indices
        if not is_qvalues:
            inside: tuple[Any, ...] = (k, n % nr)
        elif bits == 4:
            inside = (k // size, k % size // CHUNK, k % (CHUNK // 2) // 4, n % nr, k % 4)
        else:
            inside = (k // size, k % size // 4, n % nr, k % 4)
        element = b(
            tensor.Read(panels, read.dynamic, None, indices=(n // nr, *inside), location=read.location)
        )
        if is_qvalues:
            code = Scalar(b, element).cast(i32)
            if bits == 4:
                code = code.shr(k % CHUNK // (CHUNK // 2) * 4) & 15
            element = (code - (1 << (bits - 1))).cast(read.result.type).value
        read.replace_by(element)


@dataclass(frozen=True)
class _Quantized:
    """Writes quantized values or scales [*matrices, rows, depth] in panels of `nr` rows."""

    value: Constant
    bits: int
    groups: int
    size: int
    nr: int

    @property
    def panels(self) -> int:
        return -(-self.value.shape[-2] // self.nr)

    def filled(self, array: np.ndarray[Any, Any], depth: int) -> Any:
        """The array with complete panels, of shape [panels, nr, groups, depth]."""
        whole = np.zeros((self.panels * self.nr, self.groups * depth), array.dtype)
        whole[: len(array)] = array
        return whole.reshape(self.panels, self.nr, self.groups, depth)


class _Qvalues(_Quantized):
    def __call__(self, out: np.ndarray[Any, Any]) -> None:
        array, size = self.value.array, self.size
        for matrix in np.ndindex(*array.shape[:-2]):
            qvalues = self.filled(array[matrix].astype(np.int8), size).view(np.uint8)
            quads = (qvalues + (1 << (self.bits - 1))).astype(np.uint8)
            if self.bits == 4:
                halves = quads.reshape(self.panels, self.nr, self.groups, size // CHUNK, 2, CHUNK // 8, 4)
                out[matrix] = (halves[..., 0, :, :] | halves[..., 1, :, :] << 4).transpose(0, 2, 3, 4, 1, 5)
            else:
                out[matrix] = quads.reshape(self.panels, self.nr, self.groups, size // 4, 4).transpose(
                    0, 2, 3, 1, 4
                )


class _Scales(_Quantized):
    def __call__(self, out: np.ndarray[Any, Any]) -> None:
        array = self.value.array
        for matrix in np.ndindex(*array.shape[:-2]):
            out[matrix] = self.filled(array[matrix], 1)[..., 0].transpose(0, 2, 1)


def _panels(op: graph.Constant, packing: Packing, packed: dict[Any, Value]) -> Value:
    """The panels of the constant that an operation holds, of quantized values or of scales."""
    bits, groups, size, nr = packing.bits, packing.groups, packing.size, packing.nr
    value, is_qvalues = op.value, op.value == packing.qvalues
    *matrices, rows, _ = value.shape
    panels = -(-rows // nr)

    write = (_Qvalues if is_qvalues else _Scales)(value, bits, groups, size, nr)
    key = op.parent, write
    if key not in packed:
        name, step = f"{value.name}.packed" if value.name else "packed", f"packed in panels of {nr} columns"
        if is_qvalues:
            inside = (groups, size // CHUNK, CHUNK // 8, nr, 4) if bits == 4 else (groups, size // 4, nr, 4)
            constant = Constant.made((*matrices, panels, *inside), np.uint8, write, name)
            bytes_ = "two values to a byte" if bits == 4 else "a value to a byte"
            step = f"{step}, in groups of {size}, {bytes_}, {1 << (bits - 1)} added"
        else:
            constant = Constant.made((*matrices, panels, groups, nr), value.numpy_dtype, write, name)
        packed[key] = Builder.after(op)(
            graph.Constant(value=constant.made_of([value], step), location=op.location)
        )
    return packed[key]


__all__ = ["Packing", "fits_panels", "pack_quantized", "read_from_panels"]
