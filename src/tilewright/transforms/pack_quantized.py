"""Weights of few bits in panels: what `simd.quantized_gemm` reads.

The codes of `nr` columns (rows of the weight) lie side by side, quads of successive codes of a column together, as dot-product instructions on bytes want
them: ``p[n // nr, g, k // 4, n % nr, k % 4]``, with 128 added to make them unsigned. Codes of 4 bits, with 8 added, share bytes: of every 32 in a group the first half
are the lower four bits of the bytes that have the second half above: ``p[n // nr, g, k // 32, k % 16 // 4, n % nr, k % 4]``. Scales lie likewise, ``s[n // nr, g, n % nr]``.
Columns that fill up the last panel are zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dialects import graph, tensor
from ..dialects.simd import Panel
from ..dialects.tensor import extent
from ..dialects.tensor_builder import Scalar, TensorBuilder
from ..ir.builder import Builder
from ..ir.constant import Constant
from ..ir.core import Value
from ..ir.types import bf16, f32, i32
from .roles import CONTRACTION, Roles

CHUNK = 32
"""Codes of 4 bits of which the halves share bytes."""


def fits_panels(bits: int, size: int) -> bool:
    """Whether groups of so many codes are made of whole chunks (4 bits) or quads (8 bits)."""
    return size % (CHUNK if bits == 4 else 4) == 0


def pack_quantized(compute: tensor.Compute, panel: Panel, packed: dict[Any, Value]) -> None:
    """Bring the constant codes and scales of a `graph.scaled_matmul` or `graph.dequantized_matmul` into panels, and mark it as a contraction; leave it alone where they are no constants, or
    where groups are not made of whole quads or chunks."""
    x, codes, *x_scales, scales = compute.reads
    sources = [read.source.defining_op for read in (codes, scales)]
    *lead, column = compute.axes
    group, k = compute.reduce_axes
    groups, size = extent(group), extent(k)
    whole = all(isinstance(op, graph.Constant) for op in sources)  # type: ignore[attr-defined]
    read_as_written = x.indices == (*lead, group, k) and scales.indices[0] is column
    if panel.group != 4 or not (whole and read_as_written and isinstance(groups, int) and isinstance(size, int)):
        return
    bits, nr = codes.source.type.dtype.bits, panel.nr
    if not fits_panels(bits, size):
        return
    code_panels, scale_panels = _panels(sources, bits, groups, size, nr, packed)
    t = TensorBuilder(Builder.before(compute))
    left, right, right_scales = map(t.wrap, (x.source, code_panels, scale_panels))

    def product(*i: Any) -> Scalar:
        row, n, g, *inside = i[: len(lead)], *i[len(lead) :]
        if bits == 4:
            chunk, half, k = inside
            byte = right[n // nr, g, chunk, k // 4, n % nr, k % 4].cast(i32)
            code = byte.shr(t.index(4 * half, i32)) & 15
            k = chunk * CHUNK + half * (CHUNK // 2) + k
        else:
            (k,) = inside
            code = right[n // nr, g, k // 4, n % nr, k % 4].cast(i32)
        code, element = code - (1 << (bits - 1)), left[(*row, g, k)]
        scale = right_scales[n // nr, g, n % nr].cast(f32)
        if not x_scales:
            return element.cast(f32) * (code.cast(f32) * scale).cast(bf16).cast(f32)
        left_scale = t.wrap(x_scales[0].source)[(*row, g)]
        return (element.cast(i32) * code).cast(f32) * (left_scale * scale)

    depth = (groups, size // CHUNK, 2, CHUNK // 2) if bits == 4 else (groups, size)
    y = t.reduce("sum", compute.shape, depth, product).value
    made = y.defining_op
    assert made is not None
    rank = len(compute.axes)
    roles = Roles((), tuple(range(rank - 1)), (rank - 1,), tuple(range(len(depth))), nr, True, 4, (bits, groups, size))
    made.location = compute.location
    made.attributes.update({k: v for k, v in compute.attributes.items() if k.startswith("tw.")})
    made.attributes[CONTRACTION] = roles.as_attribute()
    compute.result.replace_by(y)
    compute.erase()


def _panels(sources: list[Any], bits: int, groups: int, size: int, nr: int, packed: dict[Any, Value]) -> list[Value]:
    """The packed codes and scales."""
    codes, scales = (op.value for op in sources)
    rows = codes.shape[0]
    panels = -(-rows // nr)

    def filled(array: Any, depth: int) -> Any:
        """[panels, nr, groups, depth]"""
        whole = np.zeros((panels * nr, groups * depth), array.dtype)
        whole[:rows] = array
        return whole.reshape(panels, nr, groups, depth)

    def write_codes(out: np.ndarray[Any, Any]) -> None:
        quads = (filled(codes.array.astype(np.int8), size).view(np.uint8) + (1 << (bits - 1))).astype(np.uint8)
        if bits == 4:
            halves = quads.reshape(panels, nr, groups, size // CHUNK, 2, CHUNK // 8, 4)
            out[...] = (halves[..., 0, :, :] | halves[..., 1, :, :] << 4).transpose(0, 2, 3, 4, 1, 5)
        else:
            out[...] = quads.reshape(panels, nr, groups, size // 4, 4).transpose(0, 2, 3, 1, 4)

    def write_scales(out: np.ndarray[Any, Any]) -> None:
        out[...] = filled(scales.array, 1)[..., 0].transpose(0, 2, 1)

    shape = (groups, size // CHUNK, CHUNK // 8, nr, 4) if bits == 4 else (groups, size // 4, nr, 4)
    step = f"packed in panels of {nr} columns"
    in_bytes = f"{step}, in groups of {size}, {'two codes to a byte' if bits == 4 else 'a code to a byte'}, {1 << (bits - 1)} added"
    wanted = (
        (sources[0], (panels, *shape), np.uint8, write_codes, in_bytes),
        (sources[1], (panels, groups, nr), scales.numpy_dtype, write_scales, step),
    )
    found = []
    for op, dims, dtype, write, step in wanted:
        recipe = ("quantized", op.value, bits, groups, size, nr)
        key = op.parent, recipe
        if key not in packed:
            name = f"{op.value.name}.packed" if op.value.name else "packed"
            constant = Constant.made(dims, dtype, write, name, recipe=recipe).made_of([op.value], step)
            packed[key] = Builder.after(op)(graph.Constant(value=constant, location=op.location))  # type: ignore[attr-defined]
        found.append(packed[key])
    return found


__all__ = ["fits_panels", "pack_quantized"]
