"""The primitive that replaces a tile of a product with quantized weights with hardware-shaped code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..analysis.loop_nest import Access, address, enclosing_loops, reduce_variables
from ..dialects import loop, simd
from ..dialects.tensor import free_symbols_of
from ..dialects.weight_form import WeightForm
from ..ir.builder import Builder
from ..ir.core import Operation
from ..ir.substitution import linear_in, substitute
from ..ir.symbolic import Dim, Expr, ceildiv, prove_divisible, smin, symbol
from ..ir.types import BufferType, bf16, f32, i8, i32, u8
from .core import ScheduleCore, ScheduleError, only_child, primitive


class QuantizedPrimitives(ScheduleCore):
    """The primitive that replaces the loops of a product with quantized weights."""

    @primitive
    def tensorize_quantized(
        self,
        name: str,
        m: str,
        n: str,
        groups: int,
        size: int,
        form: tuple[Any, ...],
        nr: int,
        unpack: bool = False,
        pieces: int = 1,
    ) -> None:
        """Replace the innermost loops of a product with packed quantized weights.

        Rows of 8-bit integers become one `simd.quantized_gemm`. Rows of bf16 become, for each panel, a
        `simd.dequantize` and a `simd.brgemm`.

        Args:
            name: the block, a sum of products of the row, the weight and their scales.
            m: the loop over rows.
            n: the loop over columns, which begin with a panel.
            groups: groups of weights with a scale each, along the sum.
            size: weights in a group.
            form: the form of the weights, the attribute of a `dialects.weight_form.WeightForm`.
            nr: columns of a panel.
            unpack: whether a panel is unpacked to bytes first, which pays for many rows.
            pieces: number of equal pieces of the sum, one after another (rows of bf16 only).

        Raises:
            ScheduleError: the loops are not the innermost ones of a perfect nest, or addresses are not affine
                in them.
        """
        if pieces < 1 or groups % pieces:
            raise ScheduleError(f"tensorize_quantized: {groups} groups are not cut into {pieces} pieces")
        tile = _QuantizedTile(self, name, m, n, _Weights(WeightForm.of(form), groups, size, nr))
        if not tile.is_integer:
            tile.multiply_dequantized(self, pieces)
        elif pieces == 1:
            tile.multiply_integers(unpack)
        else:
            raise ScheduleError("tensorize_quantized: products of integers are not cut into pieces")
        tile.remove()


@dataclass(frozen=True)
class _Weights:
    """Packed weights of a form, in `groups` of `size` with a scale each, in panels of `nr` columns."""

    form: WeightForm
    groups: int
    size: int
    nr: int

    @property
    def depth(self) -> int:
        """The number of terms of the sum."""
        return self.groups * self.size

    def parts_of_panels(self, panel: Dim, first: int) -> list[Dim]:
        """Offsets of the parts of the group `first` of a panel."""
        covered = [self.form.covered_by(name) for name in self.form.parts]
        return [(panel * (self.groups // c) + first // c) * self.nr for c in covered]


class _QuantizedTile:
    """The tile's loops around a block and its operands; writes the statements that replace the loops.

    Raises:
        ScheduleError: the loops or the operands do not fit.
    """

    def __init__(self, s: ScheduleCore, name: str, m: str, n: str, weights: _Weights) -> None:
        self.block, self.weights = s.block(name), weights
        self.rows, self.columns = s.loop(m), s.loop(n)
        self.update, loads = self._update_and_loads()
        self.tile = self._loops(s)
        self.top = self.tile[0]
        self.start: dict[Expr, Dim] = {f.iv: 0 for f in self.tile}
        self._check_columns()
        self.left, self.right = self._operands(loads)
        assert self.top.parent is not None
        self.builder = Builder(self.top.parent, before=self.top, location=self.block.location)

    @property
    def is_integer(self) -> bool:
        """Whether rows hold 8-bit integers with a scale each; otherwise they hold bf16."""
        return len(self.left) > 1

    @property
    def values(self) -> loop.Load:
        """The first read of the quantized values."""
        return self.right[0]

    @property
    def parts(self) -> list[loop.Load]:
        """The reads of the weights' parts, in order."""
        return self.right[1:]

    def _update_and_loads(self) -> tuple[loop.Accumulate, list[loop.Load]]:
        update = list(self.block.body.ops)[-1]
        loads = [op for op in self.block.body.ops if isinstance(op, loop.Load)]
        if not isinstance(update, loop.Accumulate) or any(x.guard or x.dynamic for x in loads):
            raise ScheduleError(
                f"tensorize_quantized: block {self.block.sym_name!r} is not a sum of products "
                "of unguarded reads"
            )
        return update, loads

    def _loops(self, s: ScheduleCore) -> list[loop.For]:
        """Return the loops of the tile, outermost first: rows and columns, then those of the reduction."""
        name, m, n = self.block.sym_name, self.rows.iv.name, self.columns.iv.name
        around = enclosing_loops(self.block)
        if self.rows not in around or self.columns not in around:
            raise ScheduleError(f"tensorize_quantized: {m!r} and {n!r} are not both around block {name!r}")
        tile = around[min(around.index(self.rows), around.index(self.columns)) :]
        child: Operation | None = tile[0]
        for f in tile:
            if child is not f:
                raise ScheduleError(
                    f"tensorize_quantized: the loops around {name!r} are not perfectly nested"
                )
            child = only_child(f)
        if child is not self.block or set(tile[:2]) != {self.rows, self.columns}:
            raise ScheduleError(
                f"tensorize_quantized: {m!r} and {n!r} are not directly around "
                f"the reduction loops ({s.loops(name)})"
            )
        if reduce_variables(self.block) != {f.iv for f in tile[2:]}:
            raise ScheduleError(
                f"tensorize_quantized: not all reduction loops of block {name!r} are inside {m!r} and {n!r}"
            )
        return tile

    def _check_columns(self) -> None:
        """Raise unless the columns are successive and the first one begins a panel."""
        index = self.block.bindings[len(self.block.axes) - 1]
        affine = linear_in(index, self.columns.iv)
        first = substitute(index, self.start)
        if not prove_divisible(first, self.weights.nr) or affine is None or affine[0] != 1:
            raise ScheduleError(
                f"tensorize_quantized: the columns of loop {self.columns.iv.name!r} do not begin "
                f"with a panel of {self.weights.nr}"
            )

    def _operands(self, loads: list[loop.Load]) -> tuple[list[loop.Load], list[loop.Load]]:
        """Return the reads of the rows, of sums of their groups and of scales, which may be absent, and of
        the weights: their values, then their parts.
        """
        left = [x for x in loads if self.columns.iv not in free_symbols_of(address(x))]
        right = [x for x in loads if x not in left]
        left = sorted(left, key=lambda x: (x.buffer.type.dtype.is_float, x.buffer.type.dtype.bits))
        # Values of several bit planes have a read for each plane.
        right = [x for k, x in enumerate(right) if not k or x.buffer is not right[0].buffer]
        if (
            [x.buffer.type.dtype for x in left] not in ([i8, f32], [i8, i32, f32], [bf16])
            or len(right) != 1 + len(self.weights.form.parts)
            or right[0].buffer.type.dtype is not u8
        ):
            raise ScheduleError(
                f"tensorize_quantized: loop {self.columns.iv.name!r} must move the quantized weights "
                "and their parts, and nothing else"
            )
        return left, right

    def _place(self, op: Access) -> tuple[Dim, Dim]:
        """Return the address of an access at the tile's first point, and the distance of rows."""
        where = address(op)
        affine = linear_in(where, self.rows.iv)
        if affine is None:
            raise ScheduleError(
                f"tensorize_quantized: address {where} is not affine in {self.rows.iv.name!r}"
            )
        return substitute(where, self.start) if isinstance(where, Expr) else where, affine[0]

    def multiply_integers(self, unpack: bool) -> None:
        """Write one `simd.quantized_gemm`, with memory for an unpacked panel if `unpack`."""
        w, (a, *sums, a_scales), b = self.weights, self.left, self.values
        if len(sums) != w.form.needs_sums:
            raise ScheduleError(
                f"tensorize_quantized: block {self.block.sym_name!r} does not read the sums of its rows' "
                "groups if and only if the form of weights needs them"
            )
        (a_offset, a_m), (c_offset, c_m) = self._place(a), self._place(self.update)
        a_scales_offset, a_scales_m = self._place(a_scales)
        a_sums_offset, a_sums_m = self._place(sums[0]) if sums else (0, 0)
        memory = None
        if unpack:
            memory = self.builder(loop.Alloc(buffer=BufferType(i8, (w.depth * w.nr,), "local")))
        self.builder.insert(
            simd.QuantizedGemm(
                a.buffer,
                a_scales.buffer,
                b.buffer,
                self.update.buffer,
                [part.buffer for part in self.parts],
                sums[0].buffer if sums else None,
                memory,
                m=self.rows.extent,
                n=self.columns.extent,
                a_offset=a_offset,
                a_scales_offset=a_scales_offset,
                a_sums_offset=a_sums_offset,
                b_offset=self._place(b)[0],
                part_offsets=tuple(self._place(part)[0] for part in self.parts),
                c_offset=c_offset,
                a_m=a_m,
                a_scales_m=a_scales_m,
                a_sums_m=a_sums_m,
                c_m=c_m,
                nr=w.nr,
                form=w.form.attribute,
                groups=w.groups,
                size=w.size,
            )
        )

    def multiply_dequantized(self, s: ScheduleCore, pieces: int) -> None:
        """For each piece of the sum, write a loop that dequantizes a panel and multiplies the rows by it."""
        w, (a,), b = self.weights, self.left, self.values
        (a_offset, a_m), (c_offset, c_m) = self._place(a), self._place(self.update)
        b_offset, starts = self._place(b)[0], [self._place(part)[0] for part in self.parts]
        depth, groups = w.depth // pieces, w.groups // pieces
        memory = self.builder(loop.Alloc(buffer=BufferType(bf16, (depth * w.nr,), "local")))
        for piece in range(pieces):
            name = s.fresh(f"{self.block.sym_name}_panel{piece}")
            panel = symbol(name, 0, ceildiv(self.columns.extent, w.nr) - 1)
            panels = loop.For(iv=panel, location=self.block.location)
            self.builder.insert(panels)
            body = Builder(panels.body, location=self.block.location)
            body.insert(
                simd.Dequantize(
                    b.buffer,
                    memory,
                    [part.buffer for part in self.parts],
                    b_offset=b_offset
                    + panel * (w.form.bytes_of(w.depth) * w.nr)
                    + piece * w.form.bytes_of(depth) * w.nr,
                    part_offsets=tuple(
                        start + offset
                        for start, offset in zip(
                            starts, w.parts_of_panels(panel, piece * groups), strict=True
                        )
                    ),
                    nr=w.nr,
                    form=w.form.attribute,
                    groups=groups,
                    size=w.size,
                )
            )
            body.insert(
                simd.BatchReduceGemm(
                    a.buffer,
                    memory,
                    self.update.buffer,
                    m=self.rows.extent,
                    n=smin(w.nr, self.columns.extent - panel * w.nr),
                    k=depth,
                    nr=w.nr,
                    a_offset=a_offset + piece * depth,
                    c_offset=c_offset + panel * w.nr,
                    a_m=a_m,
                    b_panel=depth * w.nr,
                    b_k=2 * w.nr,
                    c_m=c_m,
                    accumulate=piece > 0,
                    padded=True,
                    group=2,
                    cache_resident=True,
                )
            )

    def remove(self) -> None:
        """Remove the loops that the statements replace."""
        self.top.detach()
        self.top.drop_all()


__all__ = ["QuantizedPrimitives"]
