"""Primitives that hand a tile of a contraction to hardware-shaped code: write_into, tensorize."""

from __future__ import annotations

from ..dialects import loop, scalar, simd
from ..dialects.tensor import free_symbols_of
from ..ir.core import Operation, Value
from ..ir.symbolic import Dim, Expr, ceildiv, free_symbols, linear_in, substitute, symbol
from ..ir.types import Type
from .schedule import Schedule, ScheduleError, only_child, primitive
from .tree import accesses_of, address, enclosing_loops, inside, reduce_variables, written_buffer


@primitive
def write_into(s: Schedule, name: str, consumer: str) -> None:
    """Let block `name` write its intermediate result where `consumer` will write its own: the consumer then works in place.

    Possible when the consumer reads each element exactly where it stores one, of the same dtype and shape.
    """
    block, reader = s.block(name), s.block(consumer)
    source, target = written_buffer(block), written_buffer(reader)
    if not isinstance(source.defining_op, loop.Alloc):
        raise ScheduleError(f"write_into: block {name!r} does not write an intermediate buffer")
    if source.type.dtype is not target.type.dtype or source.type.shape != target.type.shape:
        raise ScheduleError(f"write_into: {source.type} and {target.type} differ")
    stores = [op for op in accesses_of(target) if inside(op, reader) and isinstance(op, loop.Store)]
    loads = [op for op in source.users if not inside(op, block)]
    if len(stores) != 1 or any(
        not isinstance(op, loop.Load) or not inside(op, reader) or op.indices != stores[0].indices or op.guard
        for op in loads
    ):
        raise ScheduleError(f"write_into: block {consumer!r} does not read '{name}' exactly where it stores")
    alloc, other = source.defining_op, target.defining_op
    position = {op: k for k, op in enumerate(s.kernel.walk())}
    if any(not inside(op, reader) and position[op] < position[reader] for op in target.users):
        raise ScheduleError(f"write_into: the result of block {consumer!r} is in use before")
    if other is not None and position[other] > position[alloc]:
        if other.parent is not alloc.parent:
            raise ScheduleError(f"write_into: the results of {name!r} and {consumer!r} live in different loops")
        assert alloc.parent is not None
        alloc.parent.insert_before(alloc, other)
    source.replace_by(target)
    alloc.erase()


def _coefficient(e: Dim, iv: Expr, what: str) -> tuple[Dim, Dim]:
    parts = linear_in(e, iv)
    if parts is None:
        raise ScheduleError(f"tensorize: the address of {what} ({e}) is not affine in {iv}")
    return parts


def _factor_loads(block: loop.Block) -> tuple[loop.Accumulate, list[loop.Load]]:
    ops = list(block.body.ops)
    update = ops[-1]
    if not isinstance(update, loop.Accumulate) or update.combiner != "sum":
        raise ScheduleError(f"tensorize: block {block.sym_name!r} is no sum")
    product = update.value.defining_op
    factors = product.operands if isinstance(product, scalar.BINARY["mul"]) else ()
    loads = [_uncast(v, update.value.type) for v in factors]
    if len(loads) != 2 or not all(isinstance(x, loop.Load) and not x.guard and not x.dynamic for x in loads):
        raise ScheduleError(f"tensorize: block {block.sym_name!r} is no sum of products of two unguarded reads")
    return update, loads  # type: ignore[return-value]


def _uncast(value: Value, wide: Type) -> Operation | None:
    """What computes `value`, before it is widened to the accumulator's type."""
    op = value.defining_op
    return op.x.defining_op if isinstance(op, scalar.Cast) and op.result.type is wide else op


@primitive
def tensorize(
    s: Schedule,
    name: str,
    m: str,
    n: str,
    reductions: tuple[str, ...],
    k: str,
    nr: int,
    padded: bool = False,
    group: int = 1,
    lines: str | None = None,
    near: bool = False,
) -> None:
    """Replace the innermost loops of a contraction (rows `m` and, where given, `lines` of such, columns `n`, outer reduce loops, inner
    reduce loop `k`) by one `simd.brgemm` with panels of `nr` columns and interleaved groups of `group` rows, which are `near` where they stay in a cache. It also initializes the result, unless loops outside the tile reduce too: then the
    block must have its initial values already."""
    block = s.block(name)
    update, loads = _factor_loads(block)
    rows, columns, depth = s.loop(m), s.loop(n), s.loop(k)
    outer = [s.loop(r) for r in reductions]
    line = s.loop(lines) if lines is not None else None
    tile = [*([line] if line is not None else []), rows, columns, *outer, depth]
    around = enclosing_loops(block)
    if set(around[-len(tile) :]) != set(tile):
        raise ScheduleError(
            f"tensorize: {[f.iv.name for f in tile]} are not the innermost loops around {name!r} ({s.loops(name)})"
        )
    top: loop.For = around[-len(tile)]
    child: Operation | None = top
    for _ in tile:
        child = only_child(child) if child is not None else None
    if child is not block:
        raise ScheduleError(f"tensorize: the loops around {name!r} are not perfectly nested")
    reducing = reduce_variables(block)
    outside = [f.iv.name for f in around[: -len(tile)] if f.iv in reducing]
    if outside and not block.attributes.get("tw.initialized"):
        raise ScheduleError(
            f"tensorize: block {name!r} also reduces over {outside[0]!r} outside the tile: decompose_reduction there first"
        )
    left, right = loads
    if _moves(left, columns.iv) == _moves(right, columns.iv):
        raise ScheduleError(f"tensorize: loop {n!r} must move exactly one factor")
    if _moves(left, columns.iv):
        left, right = right, left
    a_address, b_address, c_address = address(left), address(right), address(update)
    panel, lane = symbol("panel_", 0, ceildiv(columns.extent, nr) - 1), symbol("lane_", 0, nr - 1)
    step, part = symbol("step_", 0, ceildiv(depth.extent, group) - 1), symbol("part_", 0, group - 1)
    parts: dict[Expr, Dim] = {columns.iv: panel * nr + lane, depth.iv: step * group + part}
    b_split = substitute(b_address, parts) if isinstance(b_address, Expr) else b_address
    a_m, a_rest = _coefficient(a_address, rows.iv, "the left factor")
    a_line, a_rest = _coefficient(a_rest, line.iv, "the left factor") if line is not None else (0, a_rest)
    a_r: list[Dim] = []
    b_r: list[Dim] = []
    for f in outer:
        c, a_rest = _coefficient(a_rest, f.iv, "the left factor")
        a_r.append(c)
    a_k, a_rest = _coefficient(a_rest, depth.iv, "the left factor")
    unit, b_rest = _coefficient(b_split, lane, "the right factor")
    b_panel, b_rest = _coefficient(b_rest, panel, "the right factor")
    for f in outer:
        c, b_rest = _coefficient(b_rest, f.iv, "the right factor")
        b_r.append(c)
    b_k, b_rest = _coefficient(b_rest, step, "the right factor")
    next_row, b_rest = _coefficient(b_rest, part, "the right factor")
    c_n, c_rest = _coefficient(c_address, columns.iv, "the result")
    c_m, c_rest = _coefficient(c_rest, rows.iv, "the result")
    c_line, c_rest = _coefficient(c_rest, line.iv, "the result") if line is not None else (0, c_rest)
    if group > 1 and next_row != 1:
        raise ScheduleError(f"tensorize: groups of {group} rows are not interleaved in the right factor")
    if unit != group or c_n != 1:
        raise ScheduleError(
            f"tensorize: columns {n!r} are not contiguous in the right factor (stride {unit}) and the result (stride {c_n})"
        )
    inner = {f.iv for f in tile} | {lane, panel, step, part}
    for what, e in (("left factor", a_rest), ("right factor", b_rest), ("result", c_rest)):
        if isinstance(e, Expr) and free_symbols(e) & inner:
            raise ScheduleError(f"tensorize: the address of the {what} is not affine in the tile's loops ({e})")
    op = simd.BatchReduceGemm(
        left.buffer,
        right.buffer,
        update.buffer,
        m=rows.extent,
        n=columns.extent,
        k=depth.extent,
        nr=nr,
        reductions=tuple(f.extent for f in outer),
        a_offset=a_rest,
        b_offset=b_rest,
        c_offset=c_rest,
        a_m=a_m,
        a_k=a_k,
        a_r=tuple(a_r),
        b_panel=b_panel,
        b_k=b_k,
        b_r=tuple(b_r),
        c_m=c_m,
        lines=line.extent if line is not None else 1,
        a_line=a_line,
        c_line=c_line,
        accumulate=bool(outside),
        padded=padded,
        group=group,
        near=near,
        location=block.location,
    )
    assert top.parent is not None
    top.parent.insert_before(top, op)
    top.detach()
    top.drop_all()


def _moves(load: loop.Load, iv: Expr) -> bool:
    return iv in free_symbols_of(address(load))


__all__ = ["tensorize", "write_into"]
