"""The simd dialect: statements that a hardware micro-kernel computes. The primitive `tensorize` puts them in
place of loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..ir.core import Attr, Effect, Operand, OptionalOperand, VariadicOperand, operation
from ..ir.interpreter import Array, Frame
from ..ir.symbolic import Dim, ceildiv
from ..ir.types import Type
from .elements import Elements, Statement
from .tensor import sorted_places
from .weight_form import WeightForm, split_nibbles, weights_of


@dataclass(frozen=True)
class Panel:
    """The layout in which a target takes packed right operands of contractions.

    A panel has `nr` columns; every `group` successive rows are interleaved. Zeros follow the last row up to a
    multiple of `depth` rows, unless `depth_block` divides the rows evenly. With `halves` the signed integers
    of 4 bits of two neighbouring columns, of which there is an even number, share a byte: the first one's are
    the low bits.
    """

    nr: int
    group: int = 1
    depth: int = 1
    halves: bool = False

    def padded_rows(self, k: Dim) -> Dim:
        """Number of rows of a packed operand that has `k` rows."""
        unit = (
            self.group
            if k_divides(k, depth_block(k, self.depth, self.group))
            else max(self.depth, self.group)
        )
        return ceildiv(k, unit) * unit


class Tile(NamedTuple):
    """How the innermost code of a product uses registers and prefetches. The results are the same but for the
    order of sums. A matrix unit has tiles of its own; of these numbers its code takes `share`.
    """

    rows: int = 0
    """The most rows of a register tile of a whole panel; 0: as many as the registers hold."""
    columns: int = 0
    """Columns of a register tile, a divisor of the panel's; 0: the panel's, or half of them where one tile
    then holds all rows.
    """
    unroll: int = 0
    """Terms of the sum in an iteration of the inner loop of large tiles; 0: the code generator's choice."""
    ahead: int = 384
    """Distance of the prefetch of the right operand into the first-level cache, in multiply-adds of vectors;
    0: no such prefetch.

    The default takes about 200 cycles, the latency of a shared cache. A larger value prefetches rows earlier,
    which may evict them again before their use.
    """
    share: int = 8
    """The most blocks of rows that share the prefetch of the next panel into the second-level cache; 0: no
    such prefetch.

    Vector code divides it among all blocks. With more sharers each prefetches less in a step, and the panel
    arrives later.
    """


def k_divides(k: Dim, by: int) -> bool:
    """Whether `by` divides the known number `k`."""
    return isinstance(k, int) and k % by == 0


def depth_block(k: Dim, most: int, multiple: int) -> int:
    """Number of rows that one step of a tile instruction multiplies.

    It is `most`, or a smaller multiple of `multiple` that divides a known `k` where this costs at most one
    step more.
    """
    if not isinstance(k, int) or k <= 0:
        return most
    steps = -(-k // most)
    for block in range(most, 0, -multiple):
        if k % block == 0:
            return block if k // block <= steps + 1 else most
    return most


@operation
class BatchReduceGemm(Statement):
    """One tile of a contraction (batch-reduce GEMM): ``C[m, n] (+)= sum over r.., k of A[a(m, r, k)] * B[b(n,
    r, k)]``.

    All addresses are in elements from the start of flat, row-major buffers. `m`, `n` and `k` are extents;
    `reductions` lists the extents of further outer reduction loops (a convolution's kernel rows and columns).
    A has the strides ``a_m``, ``a_k`` and ``a_r[i]``. B is a sequence of panels of `nr` columns: column n of
    row k is at ``b_panel * (n // nr) + b_k * k + n % nr``. C has the row stride ``c_m`` and the column stride
    1. There are `lines` such blocks of m rows (the lines of an image), ``a_line`` apart in A and ``c_line``
    apart in C. `accumulate` adds to C instead of overwriting it. All numbers are `Dim`s over the surrounding
    loop variables.

    With ``group > 1`` every `group` successive rows of a panel are interleaved, as dot-product instructions
    on narrow types take them: element (k, n) is at ``b_panel * (n // nr) + b_k * (k // group) + (n % nr) *
    group + k % group``. `padded` promises that the last panel of B may be read in full and that zeros follow
    its rows as `Panel.padded_rows` says. With `halves` (`Panel`) the elements of B are bytes that two columns
    share, and ``n % nr // 2`` stands for ``n % nr``. `cache_resident` says that B stays in a cache because it
    is read often, so that code need not prefetch it. `tile` has the numbers of a `Tile`.

    `guards` limit what is read of A, as an image limits the windows at its borders. Each has ``3 + r``
    numbers for `r` reductions: a start, and steps by line, row and reduction. Where their sum is negative,
    the elements of A are `fill`.

    Source: Georganas et al., "High-Performance Deep Learning via a Single Building Block", 2019.
    """

    name = "simd.brgemm"
    effects = Effect.READ | Effect.WRITE
    a: Operand
    b: Operand
    c: Operand
    m: Attr
    n: Attr
    k: Attr
    nr: Attr
    reductions: Attr = ()
    a_offset: Attr = 0
    b_offset: Attr = 0
    c_offset: Attr = 0
    a_m: Attr
    a_k: Attr = 1
    a_r: Attr = ()
    b_panel: Attr
    b_k: Attr
    b_r: Attr = ()
    c_m: Attr
    lines: Attr = 1
    a_line: Attr = 0
    c_line: Attr = 0
    accumulate: Attr = False
    padded: Attr = False
    group: Attr = 1
    halves: Attr = False
    cache_resident: Attr = False
    tile: Attr = tuple(Tile())
    guards: Attr = ()
    fill: Attr = 0

    def infer_types(self) -> Sequence[Type]:
        return ()

    @property
    def guard_rows(self) -> list[tuple[Dim, ...]]:
        """The numbers of each guard."""
        size = 3 + len(self.reductions)
        return [tuple(self.guards[k : k + size]) for k in range(0, len(self.guards), size)]

    def touched(self) -> tuple[Elements, ...]:
        outer = list(self.reductions)
        a = [(self.lines, self.a_line), (self.m, self.a_m), (self.k, self.a_k)]
        b = [
            (ceildiv(self.n, self.nr), self.b_panel),
            (ceildiv(self.k, self.group), self.b_k),
            (self.nr * self.group // (2 if self.halves else 1), 1),
        ]
        c = [(self.lines, self.c_line), (self.m, self.c_m), (self.n, 1)]
        left = self.box(self.a, self.a_offset, [*a, *zip(outer, self.a_r, strict=True)])
        return (
            self.box(self.a, 0, [(self.a.type.size, 1)]) if self.guards else left,
            self.box(self.b, self.b_offset, [*b, *zip(outer, self.b_r, strict=True)]),
            self.box(self.c, self.c_offset, c, writes=True),
        )

    def interpret(self, env: Frame, a: Array, b: Array, c: Array) -> None:
        def value(e: Dim) -> int:
            return int(env.evaluate(e))

        m, n, k, nr, group = value(self.m), value(self.n), value(self.k), value(self.nr), value(self.group)
        outer = [value(e) for e in self.reductions]
        if m <= 0 or n <= 0:
            return
        columns, depth = np.arange(n), np.arange(k)
        line, row = (x.reshape(-1) for x in np.indices((value(self.lines), m)))
        a_row, c_row = (
            line * value(x) + row * value(y) for x, y in ((self.a_line, self.a_m), (self.c_line, self.c_m))
        )
        wide = np.int64 if np.issubdtype(c.dtype, np.integer) else np.float64
        total = np.zeros((line.size, n), wide)
        unit = 2 if self.halves else 1
        column = value(self.b_panel) * (columns // nr) + columns % nr // unit * group
        b_row = value(self.b_k) * (depth // group) + depth % group
        for point in np.ndindex(*outer):
            a_start = value(self.a_offset) + sum(i * value(s) for i, s in zip(point, self.a_r, strict=True))
            b_start = value(self.b_offset) + sum(i * value(s) for i, s in zip(point, self.b_r, strict=True))
            inside = np.ones(line.shape, bool)
            for start, by_line, by_row, *steps in self.guard_rows:
                first = value(start) + sum(i * value(s) for i, s in zip(point, steps, strict=True))
                inside &= first + line * value(by_line) + row * value(by_row) >= 0
            place = a_start + a_row[:, None] + depth[None, :] * value(self.a_k)
            left = np.where(inside[:, None], a.reshape(-1)[np.where(inside[:, None], place, 0)], self.fill)
            right = b.reshape(-1)[b_start + b_row[:, None] + column[None, :]]
            if self.halves:
                right = np.where(columns % 2, right, right << 4) >> 4
            total += left.astype(wide) @ right.astype(wide)
        where = value(self.c_offset) + c_row[:, None] + columns[None, :]
        flat = c.reshape(-1)
        flat[where] = (total + flat[where] if self.accumulate else total).astype(c.dtype)


@operation
class ExternalGemm(Statement):
    """A tile of a matrix product that a C function of a registered library computes: ``C = A @ B``.

    All addresses are in elements from the start of flat, row-major buffers: A has `m` rows of `k` elements
    from `a_offset` on, `lda` apart; B has `k` rows of `n` elements, C has `m` rows of `n` elements. All
    numbers are `Dim`s over the surrounding loop variables. `library` is the registered name, `symbol` the
    function's.
    """

    name = "simd.external_gemm"
    effects = Effect.READ | Effect.WRITE
    a: Operand
    b: Operand
    c: Operand
    library: Attr
    symbol: Attr
    m: Attr
    n: Attr
    k: Attr
    a_offset: Attr = 0
    b_offset: Attr = 0
    c_offset: Attr = 0
    lda: Attr
    ldb: Attr
    ldc: Attr

    def infer_types(self) -> Sequence[Type]:
        return ()

    def touched(self) -> tuple[Elements, ...]:
        return (
            self.box(self.a, self.a_offset, [(self.m, self.lda), (self.k, 1)]),
            self.box(self.b, self.b_offset, [(self.k, self.ldb), (self.n, 1)]),
            self.box(self.c, self.c_offset, [(self.m, self.ldc), (self.n, 1)], writes=True),
        )

    def interpret(self, env: Frame, a: Array, b: Array, c: Array) -> None:
        def places(offset: Dim, rows: int, stride: Dim, columns: int) -> Any:
            start, step = int(env.evaluate(offset)), int(env.evaluate(stride))
            return start + step * np.arange(rows)[:, None] + np.arange(columns)

        m, n, k = (max(0, int(env.evaluate(e))) for e in (self.m, self.n, self.k))
        wide = np.int64 if np.issubdtype(c.dtype, np.integer) else np.float64
        left = a.reshape(-1)[places(self.a_offset, m, self.lda, k)].astype(wide)
        right = b.reshape(-1)[places(self.b_offset, k, self.ldb, n)].astype(wide)
        c.reshape(-1)[places(self.c_offset, m, self.ldc, n)] = (left @ right).astype(c.dtype)


def _weights_at(
    form: WeightForm, b: Array, parts: Sequence[Array], panels: int, groups: int, size: int, nr: int
) -> Any:
    """Weights [panels * nr, groups * size], float32, from arrays that begin with the first panel."""
    values = form.unpacked(b, panels, groups * size, nr).reshape(panels * nr, groups * size)
    named = {}
    for name, part in zip(form.parts, parts, strict=True):
        count = groups // form.covered_by(name)
        rows = part[: panels * count * nr].reshape(panels, count, nr).swapaxes(1, 2).reshape(-1, count)
        named[name] = split_nibbles(rows) if name in form.nibbles else rows
    return weights_of(values, named, None)


@operation
class QuantizedGemm(Statement):
    """A tile of a product with quantized weights: ``C[m, n] = sum over g of a_scales[m, g // c] (scale[n, g]
    (sum over k of A[m, g, k] value[n, g, k]) - minimum[n, g] (sum over k of A[m, g, k]))``. The inner sums
    are exact. With values of at most 4 bits and without units, the scales of A are powers of two from 1 on,
    whose products with the inner sums fit 32 bits. c is `WeightForm.rounded_together`.

    A holds 8-bit integers: row m begins at ``a_offset + a_m * m`` and has `groups` groups of `size` elements;
    its scales begin at ``a_scales_offset + a_scales_m * m``. The sums of its groups, i32, begin at
    ``a_sums_offset + a_sums_m * m``; `a_sums` is present if the form needs them
    (`WeightForm.needs_sums`). B and the parts of its `form`
    (`weight_form.WeightForm`, as an attribute) are panels of `nr` columns, see
    `passes.tensor.pack_quantized`. The tile begins with the panel at `b_offset` (bytes), whose parts begin at
    `part_offsets`. The columns of C are contiguous, its rows ``c_m`` elements apart. `memory`, if present, is
    a buffer for one panel's quantized values as bytes, for matrix registers that load whole rows.
    """

    name = "simd.quantized_gemm"
    effects = Effect.READ | Effect.WRITE
    a: Operand
    a_scales: Operand
    b: Operand
    c: Operand
    parts: VariadicOperand
    a_sums: OptionalOperand
    memory: OptionalOperand
    m: Attr
    n: Attr
    nr: Attr
    form: Attr
    groups: Attr
    size: Attr
    a_offset: Attr = 0
    a_scales_offset: Attr = 0
    a_sums_offset: Attr = 0
    b_offset: Attr = 0
    part_offsets: Attr = (0,)
    c_offset: Attr = 0
    a_m: Attr
    a_scales_m: Attr
    a_sums_m: Attr = 0
    c_m: Attr

    @property
    def panel_bytes(self) -> int:
        """Size of a panel of B in bytes."""
        return WeightForm.of(self.form).bytes_of(self.groups * self.size) * self.nr

    @property
    def panel_of_parts(self) -> tuple[int, ...]:
        """Elements of a panel of each part."""
        form = WeightForm.of(self.form)
        return tuple(self.groups // form.covered_by(name) * self.nr for name in form.parts)

    @property
    def a_scale_count(self) -> int:
        """Scales of a row of A."""
        return int(self.groups // WeightForm.of(self.form).rounded_together(self.size))

    def infer_types(self) -> Sequence[Type]:
        return ()

    def touched(self) -> tuple[Elements, ...]:
        panels, depth = ceildiv(self.n, self.nr), self.groups * self.size
        scales = [(self.m, self.a_scales_m), (self.a_scale_count, 1)]
        parts = zip(self.parts, self.part_offsets, self.panel_of_parts, strict=True)
        sums = [(self.m, self.a_sums_m), (self.groups, 1)]
        return (
            self.box(self.a, self.a_offset, [(self.m, self.a_m), (depth, 1)]),
            self.box(self.a_scales, self.a_scales_offset, scales),
            *([] if self.a_sums is None else [self.box(self.a_sums, self.a_sums_offset, sums)]),
            self.box(self.b, self.b_offset, [(panels * self.panel_bytes, 1)]),
            *(self.box(part, offset, [(panels * count, 1)]) for part, offset, count in parts),
            self.box(self.c, self.c_offset, [(self.m, self.c_m), (self.n, 1)], writes=True),
        )

    def interpret(self, env: Frame, a: Array, a_scales: Array, b: Array, c: Array, *rest: Array) -> None:
        def value(e: Dim) -> int:
            return int(env.evaluate(e))

        m, n, groups, size, nr = value(self.m), value(self.n), self.groups, self.size, self.nr
        if m <= 0 or n <= 0:
            return
        panels, row, form = -(-n // nr), np.arange(m)[:, None], WeightForm.of(self.form)
        parts = [
            part.reshape(-1)[value(offset) :] for part, offset in zip(rest, self.part_offsets, strict=False)
        ]
        right = _weights_at(form, b.reshape(-1)[value(self.b_offset) :], parts, panels, groups, size, nr)[:n]
        at = value(self.a_offset) + value(self.a_m) * row + np.arange(groups * size)
        left = a.reshape(-1)[at].astype(np.float64)
        at = value(self.a_scales_offset) + value(self.a_scales_m) * row + np.arange(self.a_scale_count)
        scales = a_scales.reshape(-1)[at].astype(np.float64)
        left *= np.repeat(scales, groups * size // self.a_scale_count, -1)
        at = value(self.c_offset) + value(self.c_m) * row + np.arange(n)
        c.reshape(-1)[at] = (left @ right.astype(np.float64).T).astype(c.dtype)


@operation
class Dequantize(Statement):
    """Compute the weights of one panel of packed quantized values, rounded to bf16.

    The result is a panel of `simd.brgemm` with pairs of successive rows interleaved: ``y[k // 2, n, k % 2]``.
    The panel begins at `b_offset` (bytes), its parts at `part_offsets`; `form` as for `simd.quantized_gemm`.
    """

    name = "simd.dequantize"
    effects = Effect.READ | Effect.WRITE
    b: Operand
    y: Operand
    parts: VariadicOperand
    nr: Attr
    form: Attr
    groups: Attr
    size: Attr
    b_offset: Attr = 0
    part_offsets: Attr = (0,)

    def infer_types(self) -> Sequence[Type]:
        return ()

    def touched(self) -> tuple[Elements, ...]:
        size, form = self.groups * self.size * self.nr, WeightForm.of(self.form)
        parts = zip(form.parts, self.parts, self.part_offsets, strict=True)
        return (
            self.box(self.b, self.b_offset, [(form.bytes_of(self.groups * self.size) * self.nr, 1)]),
            *(
                self.box(part, offset, [(self.groups // form.covered_by(name) * self.nr, 1)])
                for name, part, offset in parts
            ),
            self.box(self.y, 0, [(size, 1)], writes=True),
        )

    def interpret(self, env: Frame, b: Array, y: Array, *rest: Array) -> None:
        starts = [int(env.evaluate(e)) for e in self.part_offsets]
        parts = [part.reshape(-1)[start:] for part, start in zip(rest, starts, strict=True)]
        start = int(env.evaluate(self.b_offset))
        form, nr = WeightForm.of(self.form), self.nr
        weights = _weights_at(form, b.reshape(-1)[start:], parts, 1, self.groups, self.size, nr)
        weights = weights.reshape(nr, self.groups * self.size // 2, 2)
        y.reshape(-1)[: weights.size] = weights.transpose(1, 0, 2).astype(y.dtype).reshape(-1)


@operation
class Argsort(Statement):
    """Sort indirectly: ``y[y_offset + j * y_step]`` is the position of the j-th element, for j < k, of the
    sorted ``x[x_offset + i * x_step]``, i < n.

    The order is stable and ascending, or descending with `largest`; NaN counts as the largest number. `keys`
    is scratch memory for ``2 * n`` keys as wide as x's elements, at least 32 bits; `places` is scratch memory
    for ``2 * n`` i32 numbers. Addresses and extents are `Dim`s over the surrounding loop variables.
    """

    name = "simd.argsort"
    effects = Effect.READ | Effect.WRITE
    x: Operand
    y: Operand
    keys: Operand
    places: Operand
    n: Attr
    k: Attr
    x_offset: Attr = 0
    x_step: Attr = 1
    y_offset: Attr = 0
    y_step: Attr = 1
    largest: Attr = False

    def infer_types(self) -> Sequence[Type]:
        return ()

    def touched(self) -> tuple[Elements, ...]:
        return (
            self.box(self.x, self.x_offset, [(self.n, self.x_step)]),
            self.box(self.y, self.y_offset, [(self.k, self.y_step)], writes=True),
        )

    def interpret(self, env: Frame, x: Array, y: Array, keys: Array, places: Array) -> None:
        n, k, x_offset, x_step, y_offset, y_step = (
            int(env.evaluate(e))
            for e in (self.n, self.k, self.x_offset, self.x_step, self.y_offset, self.y_step)
        )
        row = x.reshape(-1)[x_offset + np.arange(n) * x_step]
        y.reshape(-1)[y_offset + np.arange(k) * y_step] = sorted_places(row, self.largest)[:k]
