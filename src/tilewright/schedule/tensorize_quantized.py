"""The primitive that hands a tile of a product with weights of few bits to hardware-shaped code."""

from __future__ import annotations

from ..dialects import loop, simd
from ..dialects.tensor import free_symbols_of
from ..ir.symbolic import Dim, Expr, linear_in, prove_divisible, substitute
from ..ir.types import BufferType, f32, i8, u8
from .schedule import Schedule, ScheduleError, only_child, primitive
from .tree import Access, address, enclosing_loops, reduce_variables


@primitive
def tensorize_quantized(
    s: Schedule, name: str, m: str, n: str, bits: int, groups: int, size: int, nr: int, unpack: bool = False
) -> None:
    """Replace the innermost loops of a product with packed codes (rows `m`, columns `n` that begin with a panel, all loops that reduce) by one `simd.quantized_gemm`, with memory
    to `unpack` codes where rows are many.

    Raises:
        ScheduleError: the loops are not the innermost ones of a perfect nest, or addresses are not affine in them.
    """
    block = s.block(name)
    update = list(block.body.ops)[-1]
    loads = [op for op in block.body.ops if isinstance(op, loop.Load)]
    if not isinstance(update, loop.Accumulate) or len(loads) != 4 or any(x.guard or x.dynamic for x in loads):
        raise ScheduleError(f"tensorize_quantized: block {name!r} is no sum of products of four unguarded reads")
    rows, columns = s.loop(m), s.loop(n)
    around = enclosing_loops(block)
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
    if len(tile) - 2 != len(block.reduce_axes) or not reduce_variables(block) <= {f.iv for f in tile[2:]}:
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
    pairs = [sorted(pair, key=lambda x: x.buffer.type.dtype.is_float) for pair in (left, right)]
    types = [[x.buffer.type.dtype for x in pair] for pair in pairs]
    if [len(t) for t in types] != [2, 2] or types[0] != [i8, f32] or types[1][0] is not u8 or not types[1][1].is_float:
        raise ScheduleError(f"tensorize_quantized: loop {n!r} must move codes and their scales, and they alone")
    (a, a_scales), (b, b_scales) = pairs
    (a_offset, a_m), (a_scales_offset, a_scales_m), (c_offset, c_m) = (parts(x) for x in (a, a_scales, update))
    memory = None
    assert top.parent is not None
    if unpack:
        memory = loop.Alloc(buffer=BufferType(i8, (groups * size * nr,), "local"), location=block.location)
        top.parent.insert_before(top, memory)
    op = simd.QuantizedGemm(
        a.buffer,
        a_scales.buffer,
        b.buffer,
        b_scales.buffer,
        update.buffer,
        memory.result if memory is not None else None,
        m=rows.extent,
        n=columns.extent,
        nr=nr,
        bits=bits,
        groups=groups,
        size=size,
        a_offset=a_offset,
        a_scales_offset=a_scales_offset,
        b_offset=parts(b)[0],
        b_scales_offset=parts(b_scales)[0],
        c_offset=c_offset,
        a_m=a_m,
        a_scales_m=a_scales_m,
        c_m=c_m,
        location=block.location,
    )
    top.parent.insert_before(top, op)
    top.detach()
    top.drop_all()


def _follows(block: loop.Block, column: Expr) -> bool:
    """Whether the last axis of a block goes where a loop goes, from somewhere on."""
    e = block.bindings[len(block.axes) - 1]
    found = linear_in(e, column)
    return found is not None and found[0] == 1


__all__ = ["tensorize_quantized"]
