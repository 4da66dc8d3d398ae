"""Epilogues of products that register tiles compute: a bias, a residual, an activation.

A kernel computes a tile of C with `simd.brgemm`, and a loop nest after it reads the tile, calculates, and
writes the result. If each element of the result depends on the same element of the tile, the register tiles
do this with their sums before they write them, so that the tile is not written, read and written again. The
order of the operations on an element, and so its value, stays the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....analysis.dependence import Sharing
from ....analysis.loop_nest import address, inside
from ....dialects import loop, scalar, simd
from ....ir.core import Operation, Value
from ....ir.substitution import linear_in
from ....ir.symbolic import Dim, Expr, free_symbols, prove_eq
from ....ir.types import f32

CHEAP = tuple(scalar.BINARY[name] for name in ("add", "sub", "mul", "min", "max"))
"""Operations that register tiles calculate. Longer ones would be written out for each vector of a tile."""

Resolve = Callable[[Dim], Dim]


@dataclass(frozen=True)
class Place:
    """The elements of a buffer that belong to those of a tile: ``offset + line * i + row * j + column`` for
    line i and row j. A vector with an element for each column has the strides 0.
    """

    buffer: Value
    offset: Dim
    line: Dim
    row: Dim


@dataclass(frozen=True)
class Epilogue:
    """The calculation with an element of a tile.

    `body` are the scalar operations and loads in their order. `sums` are the loads of the product itself,
    `reads` those of other buffers with the places that they read; `result` is the value that is written to
    `target`.
    """

    body: tuple[Operation, ...]
    sums: frozenset[Operation]
    reads: tuple[tuple[loop.Load, Place], ...]
    result: Value
    target: Place


def epilogue_of(op: simd.BatchReduceGemm, nest: Operation | None, resolve: Resolve) -> Epilogue | None:
    """Return what the loop nest that follows a product calculates with each of its elements; None if it is
    something else, or must not run before all of the product is written.

    Args:
        op: The product of a finalized kernel.
        nest: The statement after it.
        resolve: Expresses sizes and addresses in the symbols of the loops around both.
    """
    if op.accumulate or op.c.type.dtype is not f32 or not isinstance(nest, loop.For):
        return None
    found = _loops(op, nest, resolve)
    if found is None:
        return None
    axes, body = found
    *ops, store = body
    if (
        not isinstance(store, loop.Store)
        or store.guard
        or store.dynamic
        or store.buffer.type.dtype is not f32
    ):
        return None
    target = _place(store, axes, resolve)
    product = Place(op.c, resolve(op.c_offset), resolve(op.c_line), resolve(op.c_m))
    sums, reads = set(), []
    for x in ops:
        if isinstance(x, loop.Load):
            place = _place(x, axes, resolve)
            if place is None or x.guard or x.dynamic or x.buffer.type.dtype is not f32:
                return None
            if x.buffer is not op.c:
                reads.append((x, place))
            elif _same(place, product, op):
                sums.add(x)
            else:
                return None
        elif not isinstance(x, (scalar.Constant, *CHEAP)) or x.result.type is not f32:
            return None
    if target is None or not sums or not isinstance(store.value.defining_op, CHEAP):
        return None
    result = Epilogue(tuple(ops), frozenset(sums), tuple(reads), store.value, target)
    return result if _may_be_fused(op, nest, product, result) else None


def _loops(
    op: simd.BatchReduceGemm, nest: loop.For, resolve: Resolve
) -> tuple[tuple[str | None, str | None, str], list[Operation]] | None:
    """The loop variables for lines, rows (None where there is one) and columns of a nest that runs over the
    elements of a product, and the statements inside.
    """
    loops = [nest]
    while (child := loops[-1].body.first) is loops[-1].body.last and isinstance(child, loop.For):
        loops.append(child)
    *outer, columns = loops
    if columns.kind != loop.LoopKind.VECTORIZE or any(f.inits or f.step for f in loops):
        return None
    if any(f.kind != loop.LoopKind.SERIAL for f in outer):
        return None
    sizes = [resolve(size) for size in (op.lines, op.m)]
    names: list[str | None] = []
    for size in sizes:
        is_next = bool(outer) and prove_eq(resolve(outer[0].extent), size)
        names.append(outer.pop(0).iv.name if is_next else None)
        if not is_next and size != 1:
            return None
    if outer or not prove_eq(resolve(columns.extent), resolve(op.n)):
        return None
    line, row = names
    return (line, row, columns.iv.name), list(columns.body.ops)


def _place(
    access: loop.Load | loop.Store, axes: tuple[str | None, str | None, str], resolve: Resolve
) -> Place | None:
    """The place of an access whose columns are contiguous; None for others."""
    rest = address(access)
    strides: list[Dim] = []
    for name in axes:
        iv = next((s for s in free_symbols(rest) if s.name == name), None) if isinstance(rest, Expr) else None
        parts = (0, rest) if iv is None else linear_in(rest, iv)
        if parts is None:
            return None
        strides.append(parts[0])
        rest = parts[1]
    line, row, column = strides
    if column != 1 or any(
        s.name in axes for e in (line, row) if isinstance(e, Expr) for s in free_symbols(e)
    ):
        return None
    return Place(access.buffer, resolve(rest), resolve(line), resolve(row))


def _same(a: Place, b: Place, op: simd.BatchReduceGemm) -> bool:
    """Whether two places are the same elements of equal buffers, as far as strides of several lines and rows
    tell.
    """
    line = op.lines == 1 or prove_eq(a.line, b.line)
    return prove_eq(a.offset, b.offset) and line and (op.m == 1 or prove_eq(a.row, b.row))


def _may_be_fused(op: simd.BatchReduceGemm, nest: loop.For, product: Place, epilogue: Epilogue) -> bool:
    """Whether the tile itself has no other reader, and no operand is overwritten before it is read."""
    target = epilogue.target
    if target.buffer is op.c:
        if not _same(target, product, op):
            return False
    elif not isinstance(op.c.defining_op, loop.Alloc) or any(
        x is not op and not inside(x, nest) for x in op.c.users
    ):
        return False
    sharing = Sharing.of(op)
    if any(sharing.may_be_same(factor, target.buffer) for factor in (op.a, op.b)):
        return False
    return all(
        _same(place, target, op)
        for _, place in epilogue.reads
        if sharing.may_be_same(place.buffer, target.buffer)
    )


__all__ = ["Epilogue", "Place", "epilogue_of"]
