"""Primitives that replace a tile of a contraction with hardware-shaped code or a call: write_into, tensorize,
call_library.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..analysis.loop_nest import (
    accesses_of,
    address,
    enclosing_loops,
    inside,
    reduce_variables,
    resolved,
    written_buffer,
)
from ..dialects import loop, scalar, simd
from ..dialects.tensor import free_symbols_of
from ..ir import notes
from ..ir.core import Operation, Value
from ..ir.substitution import linear_in, substitute
from ..ir.symbolic import Dim, Expr, bounds, ceildiv, free_symbols, prove_eq, prove_le, symbol
from ..ir.types import Type
from .core import ScheduleCore, ScheduleError, only_child, primitive
from .factors import half_byte
from .order import keeps_order, result_of


class TensorizePrimitives(ScheduleCore):
    """Primitives that replace the loops of a contraction with hardware-shaped statements."""

    @primitive
    @keeps_order(result_of)
    def write_into(self, name: str, consumer: str) -> None:
        """Let block `name` write its intermediate result where `consumer` writes its own; the consumer then
        works in place.

        Possible if the consumer reads each element exactly where it stores one, of the same dtype and shape.

        Raises:
            ScheduleError: There is no such block, the two buffers differ in type, or the reads and writes do
                not allow it; the message says which.
        """
        block, reader = self.block(name), self.block(consumer)
        source, target = written_buffer(block), written_buffer(reader)
        if not isinstance(source.defining_op, loop.Alloc):
            raise ScheduleError(f"write_into: block {name!r} does not write an intermediate buffer")
        if source.type.dtype is not target.type.dtype or source.type.shape != target.type.shape:
            raise ScheduleError(f"write_into: {source.type} and {target.type} differ")
        stores = [op for op in accesses_of(target) if inside(op, reader) and isinstance(op, loop.Store)]
        loads = [op for op in source.users if not inside(op, block)]
        if len(stores) != 1 or any(
            not isinstance(op, loop.Load)
            or not inside(op, reader)
            or op.indices != stores[0].indices
            or op.guard
            for op in loads
        ):
            raise ScheduleError(
                f"write_into: block {consumer!r} does not read '{name}' exactly where it stores"
            )
        alloc, other = source.defining_op, target.defining_op
        position = {op: k for k, op in enumerate(self.kernel.walk())}
        if any(not inside(op, reader) and position[op] < position[reader] for op in target.users):
            raise ScheduleError(f"write_into: the result of block {consumer!r} is in use before")
        if other is not None and position[other] > position[alloc]:
            if other.parent is not alloc.parent:
                raise ScheduleError(
                    f"write_into: the results of {name!r} and {consumer!r} live in different loops"
                )
            assert alloc.parent is not None
            alloc.parent.insert_before(alloc, other)
        source.replace_by(target)
        alloc.erase()

    @primitive
    def tensorize(
        self,
        name: str,
        m: str,
        n: str,
        reductions: tuple[str, ...],
        k: str,
        nr: int,
        padded: bool = False,
        group: int = 1,
        lines: str | None = None,
        cache_resident: bool = False,
        tile: tuple[int, ...] = (),
        halves: bool = False,
    ) -> None:
        """Replace the innermost loops of a contraction with one `simd.brgemm`.

        It also initializes the result, unless loops outside the tile reduce too: then the block must have its
        initial values already.

        Args:
            name: The block, a sum of products of two reads.
            m: The loop over rows.
            n: The loop over columns.
            reductions: Outer reduction loops (a convolution's window).
            k: The inner reduction loop.
            nr: Columns of a panel of the right operand.
            padded: Whether the last panel may be read in full; see `simd.brgemm`.
            group: Rows of the right operand that are interleaved.
            lines: A further loop over rows, around `m` (lines of an image).
            cache_resident: Whether the right operand stays in a cache, so that it need not be prefetched.
            tile: The numbers of a `tilewright.dialects.simd.Tile`: rows and columns of a register tile, terms
                in an iteration of the inner loop, distance and sharers of prefetches. Numbers that are left
                out are the defaults.
            halves: Whether two columns of the right operand share a byte; see `simd.brgemm`.

        Raises:
            ScheduleError: The loops are not the innermost ones of a perfect nest, an address is not affine in
                them, or the registers do not hold the tile.
        """
        nest = _ContractionTile(self, name, m, n, reductions, k, lines, halves=halves)
        registers = _register_tile(self, tile, nest, nr, padded and group == 1)
        a, b, c = nest.left_strides(), nest.right_strides(nr, group, halves), nest.result_strides()
        if b.column != group or c.column != 1:
            raise ScheduleError(
                f"tensorize: columns {n!r} are not contiguous in the right factor "
                f"(stride {b.column}) and the result (stride {c.column})"
            )
        op = simd.BatchReduceGemm(
            nest.left.buffer,
            nest.right.buffer,
            nest.update.buffer,
            m=nest.rows.extent,
            n=nest.columns.extent,
            k=nest.depth.extent,
            nr=nr,
            reductions=tuple(f.extent for f in nest.outer),
            a_offset=a.offset,
            b_offset=b.offset,
            c_offset=c.offset,
            a_m=a.row,
            a_k=a.depth,
            a_r=a.outer,
            b_panel=b.panel,
            b_k=b.depth,
            b_r=b.outer,
            c_m=c.row,
            lines=nest.line.extent if nest.line is not None else 1,
            a_line=a.line,
            c_line=c.line,
            accumulate=nest.reduces_outside,
            padded=padded,
            group=group,
            halves=halves,
            cache_resident=cache_resident,
            tile=tuple(registers),
            guards=nest.guards(),
            fill=nest.fill(),
            location=nest.block.location,
        )
        nest.replace_by(op)

    @primitive
    def call_library(self, name: str, m: str, n: str, k: str, library: str, symbol: str) -> None:
        """Replace the innermost loops of a matrix product with one `simd.external_gemm`, a call of a
        registered library's C function.

        Args:
            name: The block, a sum of products of two reads: ``c[i, j] += a[i, k] * b[k, j]``.
            m: The loop over rows.
            n: The loop over columns.
            k: The reduction loop.
            library: The library's registered name.
            symbol: The name of its function.

        Raises:
            ScheduleError: The loops are not the innermost ones of a perfect nest, loops outside reduce too,
                or an operand is not a row-major matrix: the message names it.
        """
        tile = _ContractionTile(self, name, m, n, (), k, None, "call_library")
        if tile.reduces_outside:
            raise ScheduleError(f"call_library: block {name!r} also reduces outside of loop {k!r}")
        a = tile.row_major("the left factor", tile.left, tile.rows, tile.depth)
        b = tile.row_major("the right factor", tile.right, tile.depth, tile.columns)
        c = tile.row_major("the result", tile.update, tile.rows, tile.columns)
        tile.replace_by(
            simd.ExternalGemm(
                tile.left.buffer,
                tile.right.buffer,
                tile.update.buffer,
                library=library,
                symbol=symbol,
                m=tile.rows.extent,
                n=tile.columns.extent,
                k=tile.depth.extent,
                a_offset=a.offset,
                b_offset=b.offset,
                c_offset=c.offset,
                lda=a.row,
                ldb=b.row,
                ldc=c.row,
                location=tile.block.location,
            )
        )


@dataclass(frozen=True)
class _Strides:
    """The address of an operand in elements: its `offset`, and its stride along each axis of the tile."""

    offset: Dim
    row: Dim = 0
    line: Dim = 0
    column: Dim = 0
    panel: Dim = 0
    depth: Dim = 0
    outer: tuple[Dim, ...] = ()


class _ContractionTile:
    """The loops of a contraction's tile around a block, and the strides of its operands along them.

    Raises:
        ScheduleError: The loops are not the innermost ones of a perfect nest, or an operand does not fit.
    """

    def __init__(
        self,
        s: ScheduleCore,
        name: str,
        m: str,
        n: str,
        reductions: tuple[str, ...],
        k: str,
        lines: str | None,
        primitive_name: str = "tensorize",
        halves: bool = False,
    ) -> None:
        self.primitive_name = primitive_name
        self.block = s.block(name)
        guarded = primitive_name == "tensorize" and s.info.byte_rows > 0
        self.update, (left, right) = factor_loads(self.block, primitive_name, guarded, halves)
        self.rows, self.columns, self.depth = s.loop(m), s.loop(n), s.loop(k)
        self.outer = [s.loop(r) for r in reductions]
        self.line = s.loop(lines) if lines is not None else None
        first = [] if self.line is None else [self.line]
        self.tile = [*first, self.rows, self.columns, *self.outer, self.depth]
        self.top = self._check_nest(s)
        self.reduces_outside = self._reduces_outside()
        if halves:
            self.left, self.right = left, right
            self._check_halves()
            return
        if _moves(left, self.columns.iv) == _moves(right, self.columns.iv):
            raise ScheduleError(f"{self.primitive_name}: loop {n!r} must move exactly one factor")
        self.left, self.right = (right, left) if _moves(left, self.columns.iv) else (left, right)

    def _check_halves(self) -> None:
        """Check that the bytes of the right factor have the columns' integers in turn."""
        half = next(
            found for op in self.block.body.ops if (found := half_byte(op)) and found[0] is self.right
        )
        (bit,) = resolved(self.right, half[1:])
        if _moves(self.left, self.columns.iv) or not prove_eq(bit, self.columns.iv % 2 * 4):
            raise ScheduleError(
                f"{self.primitive_name}: neighbouring columns {self.columns.iv.name!r} of the right factor "
                f"do not share bytes (its integers begin at bit {bit})"
            )

    def _check_nest(self, s: ScheduleCore) -> loop.For:
        """Return the outermost loop of the tile."""
        name = self.block.sym_name
        around = enclosing_loops(self.block)
        innermost = around[-len(self.tile) :]
        if len(innermost) != len(self.tile) or set(innermost) != set(self.tile):
            raise ScheduleError(
                f"{self.primitive_name}: {[f.iv.name for f in self.tile]} are not the innermost loops "
                f"around {name!r} ({s.loops(name)})"
            )
        top = around[-len(self.tile)]
        child: Operation | None = top
        for _ in self.tile:
            child = only_child(child) if child is not None else None
        if child is not self.block:
            raise ScheduleError(f"{self.primitive_name}: the loops around {name!r} are not perfectly nested")
        return top

    def _reduces_outside(self) -> bool:
        """Whether loops around the tile reduce, too; the block must then be initialized."""
        reducing = reduce_variables(self.block)
        around = enclosing_loops(self.block)[: -len(self.tile)]
        outside = [f.iv.name for f in around if f.iv in reducing]
        if outside and not notes.INITIALIZED.get(self.block):
            raise ScheduleError(
                f"{self.primitive_name}: block {self.block.sym_name!r} also reduces over {outside[0]!r} "
                "outside the tile: decompose_reduction there first"
            )
        return bool(outside)

    def replace_by(self, op: Operation) -> None:
        """Put `op` in place of the tile's loops."""
        assert self.top.parent is not None
        self.top.parent.insert_before(self.top, op)
        self.top.detach()
        self.top.drop_all()

    def row_major(
        self, what: str, access: loop.Load | loop.Accumulate, rows: loop.For, columns: loop.For
    ) -> _Strides:
        """The offset and the row stride of a matrix whose columns are contiguous and whose rows do not
        overlap. A single row has its length as the stride.
        """
        column, rest = self._coefficient(address(access), columns.iv, what)
        row, rest = self._coefficient(rest, rows.iv, what)
        self._check_affine(rest, what)
        length = columns.extent
        if rows.extent == 1:
            row = length
        longest, closest = bounds(length)[1], bounds(row)[0]
        apart = longest is not None and closest is not None and longest <= closest
        if column != 1 or not (apart or prove_le(length, row)):
            raise ScheduleError(
                f"call_library: {what} is not a row-major matrix (column stride {column}, row stride "
                f"{row}, {length} columns)"
            )
        return _Strides(rest, row=row)

    def _outer(self, rest: Dim, what: str) -> tuple[tuple[Dim, ...], Dim]:
        """Return the strides along the outer reduction loops, and the rest of the address."""
        strides = []
        for f in self.outer:
            stride, rest = self._coefficient(rest, f.iv, what)
            strides.append(stride)
        return tuple(strides), rest

    def left_strides(self) -> _Strides:
        """The left factor, which lies in memory as it is."""
        what = "the left factor"
        row, rest = self._coefficient(address(self.left), self.rows.iv, what)
        line, rest = self._coefficient(rest, self.line.iv, what) if self.line is not None else (0, rest)
        outer, rest = self._outer(rest, what)
        depth, rest = self._coefficient(rest, self.depth.iv, what)
        self._check_affine(rest, what)
        return _Strides(rest, row=row, line=line, depth=depth, outer=outer)

    def guards(self) -> tuple[Dim, ...]:
        """The guards of the left factor, as `simd.brgemm` has them."""
        what, numbers = "a guard", []
        if self.right.guard:
            raise ScheduleError(
                f"{self.primitive_name}: the right factor of {self.block.sym_name!r} is guarded"
            )
        for e in resolved(self.left, self.left.guard):
            line, rest = self._coefficient(e, self.line.iv, what) if self.line is not None else (0, e)
            row, rest = self._coefficient(rest, self.rows.iv, what)
            outer, rest = self._outer(rest, what)
            self._check_affine(rest, what)
            numbers += [rest, line, row, *outer]
        return tuple(numbers)

    def fill(self) -> int:
        """The integer that the left factor is where a guard fails."""
        if not self.left.guard:
            return 0
        value = self.left.otherwise.defining_op if self.left.otherwise is not None else None
        if not isinstance(value, scalar.Constant):
            raise ScheduleError(f"{self.primitive_name}: a guarded factor needs a constant beyond its guards")
        return int(value.value)

    def right_strides(self, nr: int, group: int, halves: bool) -> _Strides:
        """The right factor in panels: column ``panel * nr + lane``, row ``step * group + part``. With
        `halves` two columns share a lane, whose stride is that of a group if there is only one.
        """
        what, unit = "the right factor", 2 if halves else 1
        panel = symbol("panel_", 0, ceildiv(self.columns.extent, nr) - 1)
        lane, half = symbol("lane_", 0, nr // unit - 1), symbol("half_", 0, unit - 1)
        inside = lane if not halves else lane * unit + half if nr > unit else half
        step = symbol("step_", 0, ceildiv(self.depth.extent, group) - 1)
        part = symbol("part_", 0, group - 1)
        where = address(self.right)
        if isinstance(where, Expr):
            where = substitute(
                where, {self.columns.iv: panel * nr + inside, self.depth.iv: step * group + part}
            )
        column, rest = self._coefficient(where, lane, what) if nr > unit else (group, where)
        per_panel, rest = self._coefficient(rest, panel, what)
        outer, rest = self._outer(rest, what)
        depth, rest = self._coefficient(rest, step, what)
        next_row, rest = self._coefficient(rest, part, what)
        if group > 1 and next_row != 1:
            raise ScheduleError(f"tensorize: groups of {group} rows are not interleaved in the right factor")
        self._check_affine(rest, what, lane, half, panel, step, part)
        return _Strides(rest, column=column, panel=per_panel, depth=depth, outer=outer)

    def result_strides(self) -> _Strides:
        """The result."""
        what = "the result"
        column, rest = self._coefficient(address(self.update), self.columns.iv, what)
        row, rest = self._coefficient(rest, self.rows.iv, what)
        line, rest = self._coefficient(rest, self.line.iv, what) if self.line is not None else (0, rest)
        self._check_affine(rest, what)
        return _Strides(rest, row=row, line=line, column=column)

    def _check_affine(self, rest: Dim, what: str, *symbols: Expr) -> None:
        """Raise if the rest of an address depends on the tile's loops, or on `symbols` in their place."""
        if isinstance(rest, Expr) and free_symbols(rest) & {*(f.iv for f in self.tile), *symbols}:
            raise ScheduleError(
                f"{self.primitive_name}: the address of {what} is not affine in the tile's loops ({rest})"
            )

    def _coefficient(self, e: Dim, iv: Expr, what: str) -> tuple[Dim, Dim]:
        parts = linear_in(e, iv)
        if parts is None:
            raise ScheduleError(f"{self.primitive_name}: the address of {what} ({e}) is not affine in {iv}")
        return parts


def _register_tile(
    s: ScheduleCore, tile: tuple[int, ...], nest: _ContractionTile, nr: int, divisible: bool
) -> simd.Tile:
    """Return the register tile of these numbers for panels of `nr` columns, which may be computed in parts if
    they are `divisible`.

    Raises:
        ScheduleError: There are too many numbers or a negative one, the columns do not divide a panel into
            vectors, the registers do not hold the tile, or the code of a matrix unit does not take them.
    """
    fields = ", ".join(simd.Tile._fields)
    if len(tile) > len(simd.Tile._fields) or any(x < 0 for x in tile):
        raise ScheduleError(f"tensorize: tile must be up to five numbers from 0 on ({fields}), got {tile}")
    found = simd.Tile(*tile)
    factor = nest.left.buffer.type.dtype
    if s.info.has_matrix_unit(factor) and found[:-1] != simd.Tile()[:-1]:
        raise ScheduleError(
            f"tensorize: a matrix unit multiplies {factor}; of ({fields}) it takes share only"
        )
    lanes, registers = s.info.vectors_of(factor)
    if found.columns and (not divisible or nr % found.columns or found.columns % lanes):
        raise ScheduleError(
            f"tensorize: tile has {found.columns} columns, which must be a multiple of {lanes} that divides "
            f"the {nr} of a padded panel of rows that are not interleaved"
        )
    vectors = -(-(found.columns or nr) // lanes)
    if found.rows and found.rows * vectors + vectors + 1 > registers:
        raise ScheduleError(
            f"tensorize: a tile of {found.rows} rows of {vectors} vectors does not fit in {registers} vector "
            "registers"
        )
    return found


def factor_loads(
    block: loop.Block, primitive_name: str, guarded: bool = False, halves: bool = False
) -> tuple[loop.Accumulate, list[loop.Load]]:
    """The accumulation of a sum of products, and the reads of its factors, which may be `guarded`. With
    `halves` one factor is half of the byte that the second read gives.

    Raises:
        ScheduleError: The block is another one; the message begins with `primitive_name`.
    """
    ops = list(block.body.ops)
    update = ops[-1]
    if not isinstance(update, loop.Accumulate) or update.combiner != "sum":
        raise ScheduleError(f"{primitive_name}: block {block.sym_name!r} is not a sum")
    product = update.value.defining_op
    factors = product.operands if isinstance(product, scalar.BINARY["mul"]) else ()
    operands = [_uncast(v, update.value.type) for v in factors]
    shared = [found[0] for x in operands if halves and (found := half_byte(x))]
    loads = [*(x for x in operands if isinstance(x, loop.Load)), *shared]
    loads = [x for x in loads if (guarded or not x.guard) and not x.dynamic]
    if len(loads) != 2 or len(shared) != halves:
        raise ScheduleError(
            f"{primitive_name}: block {block.sym_name!r} is not a sum of products of "
            f"{'a read and half a byte' if halves else 'two reads' if guarded else 'two unguarded reads'}"
        )
    return update, loads


def _uncast(value: Value, wide: Type) -> Operation | None:
    """Return the operation that computes `value`, before it is widened to the accumulator's type."""
    op = value.defining_op
    return op.x.defining_op if isinstance(op, scalar.Cast) and op.result.type is wide else op


def _moves(load: loop.Load, iv: Expr) -> bool:
    return iv in free_symbols_of(address(load))


__all__ = ["TensorizePrimitives", "factor_loads"]
