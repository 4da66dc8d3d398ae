"""The primitive that hands a tile of a product with weights of few bits to hardware-shaped code."""

from __future__ import annotations

from typing import Any

from ..dialects import loop, simd
from ..dialects.tensor import free_symbols_of
from ..ir.builder import Builder
from ..ir.symbolic import Dim, Expr, ceildiv, linear_in, prove_divisible, smin, substitute, symbol
from ..ir.types import BufferType, bf16, f32, i8, u8
from .schedule import Schedule, ScheduleError, only_child, primitive
from .tree import Access, address, enclosing_loops, reduce_variables


@primitive
def tensorize_quantized(
    s: Schedule,
    name: str,
    m: str,
    n: str,
    bits: int,
    groups: int,
    size: int,
    nr: int,
    unpack: bool = False,
    pieces: int = 1,
) -> None:
    """Replace the innermost loops of a product with packed codes (rows `m`, columns `n` that begin with a panel, all loops that reduce).

    Rows of 8-bit integers take one `simd.quantized_gemm`, with memory to `unpack` codes where rows are many; rows of bf16 a `simd.dequantize` and a `simd.brgemm` for each panel,
    in so many `pieces` of the sums, one after another.

    Raises:
        ScheduleError: the loops are not the innermost ones of a perfect nest, or addresses are not affine in them.
    """
    block = s.block(name)
    update = list(block.body.ops)[-1]
    loads = [op for op in block.body.ops if isinstance(op, loop.Load)]
    if not isinstance(update, loop.Accumulate) or len(loads) not in (3, 4) or any(x.guard or x.dynamic for x in loads):
        raise ScheduleError(
            f"tensorize_quantized: block {name!r} is no sum of products of three or four unguarded reads"
        )
    rows, columns = s.loop(m), s.loop(n)
    around = enclosing_loops(block)
    if rows not in around or columns not in around:
        raise ScheduleError(f"tensorize_quantized: {m!r} and {n!r} are not both around block {name!r}")
    top = around[min(around.index(rows), around.index(columns))]
    tile = around[around.index(top) :]
    child = top
    for f in tile:
        if child is not f:
            raise ScheduleError(f"tensorize_quantized: the loops around {name!r} are not perfectly nested")
        child = only_child(f)  # type: ignore[assignment]
    if child is not block or tile[:2] not in ([rows, columns], [columns, rows]):
        raise ScheduleError(
            f"tensorize_quantized: {m!r} and {n!r} are not right around the loops that reduce ({s.loops(name)})"
        )
    start: dict[Expr, Dim] = {f.iv: 0 for f in tile}
    if reduce_variables(block) != {f.iv for f in tile[2:]}:
        raise ScheduleError(
            f"tensorize_quantized: not all loops of block {name!r} that reduce are inside of {m!r} and {n!r}"
        )
    first = substitute(block.bindings[len(block.axes) - 1], start)
    if not prove_divisible(first, nr) or not _follows(block, columns.iv):
        raise ScheduleError(f"tensorize_quantized: the columns of loop {n!r} do not begin with a panel of {nr}")

    def parts(op: Access) -> tuple[Dim, Dim]:
        """Where an access begins, and how far apart rows are."""
        where = address(op)
        found = linear_in(where, rows.iv)
        if found is None:
            raise ScheduleError(f"tensorize_quantized: address {where} is not affine in {m!r}")
        return substitute(where, start) if isinstance(where, Expr) else where, found[0]

    left = [x for x in loads if columns.iv not in free_symbols_of(address(x))]
    right = [x for x in loads if x not in left]
    left, right = (sorted(part, key=lambda x: x.buffer.type.dtype.is_float) for part in (left, right))
    types = [[x.buffer.type.dtype for x in part] for part in (left, right)]
    if types[0] not in ([i8, f32], [bf16]) or len(types[1]) != 2 or types[1][0] is not u8 or not types[1][1].is_float:
        raise ScheduleError(f"tensorize_quantized: loop {n!r} must move codes and their scales, and they alone")
    assert top.parent is not None
    located = Builder(top.parent, before=top, location=block.location)
    (a_offset, a_m), (c_offset, c_m) = parts(left[0]), parts(update)
    b, b_scales = right
    b_offset, b_scales_offset = parts(b)[0], parts(b_scales)[0]
    shape: dict[str, Any] = {"nr": nr, "bits": bits, "groups": groups, "size": size}
    depth = groups * size
    memory = None
    if pieces < 1 or groups % pieces:
        raise ScheduleError(f"tensorize_quantized: {groups} groups are not cut into {pieces} pieces")
    if unpack or len(left) == 1:
        kind = i8 if len(left) == 2 else bf16
        memory = located(loop.Alloc(buffer=BufferType(kind, (depth // pieces * nr,), "local")))
    if len(left) == 2:
        if pieces != 1:
            raise ScheduleError("tensorize_quantized: products of integers are not cut into pieces")
        a_scales_offset, a_scales_m = parts(left[1])
        located(
            simd.QuantizedGemm(
                left[0].buffer,
                left[1].buffer,
                b.buffer,
                b_scales.buffer,
                update.buffer,
                memory,
                m=rows.extent,
                n=columns.extent,
                a_offset=a_offset,
                a_scales_offset=a_scales_offset,
                b_offset=b_offset,
                b_scales_offset=b_scales_offset,
                c_offset=c_offset,
                a_m=a_m,
                a_scales_m=a_scales_m,
                c_m=c_m,
                **shape,
            )
        )
    else:
        part, panel_depth = groups // pieces, depth // pieces
        for piece in range(pieces):
            panel = symbol(s.fresh(f"{name}_panel{piece}"), 0, ceildiv(columns.extent, nr) - 1)
            panels = loop.For(iv=panel, location=block.location)
            located(panels)
            body = Builder(panels.body, location=block.location)
            codes = b_offset + (panel * depth + piece * panel_depth) * (nr * bits // 8)
            scales = b_scales_offset + (panel * groups + piece * part) * nr
            body(
                simd.Dequantize(
                    b.buffer,
                    b_scales.buffer,
                    memory,
                    b_offset=codes,
                    b_scales_offset=scales,
                    **{**shape, "groups": part},
                )
            )
            body(
                simd.BatchReduceGemm(
                    left[0].buffer,
                    memory,
                    update.buffer,
                    m=rows.extent,
                    n=smin(nr, columns.extent - panel * nr),
                    k=panel_depth,
                    nr=nr,
                    a_offset=a_offset + piece * panel_depth,
                    c_offset=c_offset + panel * nr,
                    a_m=a_m,
                    b_panel=panel_depth * nr,
                    b_k=2 * nr,
                    c_m=c_m,
                    accumulate=piece > 0,
                    padded=True,
                    group=2,
                    near=True,
                )
            )
    top.detach()
    top.drop_all()


def _follows(block: loop.Block, column: Expr) -> bool:
    """Whether the last axis of a block goes where a loop goes, from somewhere on."""
    e = block.bindings[len(block.axes) - 1]
    found = linear_in(e, column)
    return found is not None and found[0] == 1


__all__ = ["tensorize_quantized"]
