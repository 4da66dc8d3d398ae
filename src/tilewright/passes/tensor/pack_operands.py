"""Packs right operands of contractions into panels, the layout that contraction tiles read.

``b[k, n]`` becomes ``p[n // nr, k, n % nr]``: panels of `nr` columns with contiguous rows; zeros complete the
last panel. For narrow types `group` successive rows are interleaved, ``p[n // nr, k // group, n % nr, k %
group]``, as dot-product instructions require (`simd.Panel`).

Where the target asks for it (`Panel.halves`), a constant of signed bytes whose values all fit 4 bits, as
weights quantized to 4 bits do, takes half as many: two neighbouring columns share a byte, ``p[n // nr, k //
group, n % nr // 2, k % group]``. Its reads become computations of the value from the byte.

- A constant is packed here, at compile time.
- A run-time operand whose columns are not contiguous (a key matrix in attention), or whose rows are far
  apart, is packed by a computation of its own.
- Any other run-time operand stays as it is: a row-major matrix is already a sequence of rows.
- An operand for which the target asks so (`RowMajorRule`) is row-major: a library of the user's reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...analysis.axis_roles import Roles
from ...analysis.contraction import Contraction, Operand, has_few_readers, match_contraction
from ...analysis.index_maps import product, row_major_strides, substitute_all
from ...dialects import graph, tensor
from ...dialects.simd import Panel
from ...dialects.tensor import extent
from ...dialects.tensor_builder import Scalar, TensorBuilder, TensorRef
from ...dialects.weight_form import joined_nibbles
from ...ir import notes
from ...ir.builder import Builder
from ...ir.cleanup import dce
from ...ir.constant import Constant
from ...ir.core import Module, Value
from ...ir.substitution import linear_in
from ...ir.symbolic import Dim, Expr, bounds, ceildiv, free_symbols, prove_eq, prove_le
from ...ir.types import DType, bf16, f16, f32, f64, i4, i8, i32, u8, u16, u32
from .pack_constants import integer_in
from .pack_quantized import Packing, pack_quantized, read_from_panels

BYTES = (i8, u8)

PanelRule = Callable[[DType, DType, int | None], Panel]
"""The layout of packed right operands of a target.

Called with the element types of the left and the right operand, and with the number of columns if the right
operand is a constant. The type i4 stands for quantized weights of any number of bits.
"""

RowMajorRule = Callable[[Contraction], bool]
"""Whether a contraction's right operand shall be a row-major matrix, because a library of the user's computes
the contraction.
"""


def pack_operands(module: Module, panel: PanelRule, row_major: RowMajorRule | None = None) -> None:
    """Note the roles of axes at every contraction, and pack its right operand into panels where needed."""
    packed: dict[Any, Value] = {}
    packings: dict[Constant, Packing] = {}
    for block in tensor.blocks_of_computations(module):
        for op in list(block.ops):
            if isinstance(op, tensor.Compute) and notes.QUANTIZED.present(op):
                packing = pack_quantized(op, panel(i8, i4, None), packed)
                if packing is not None:
                    packings |= dict.fromkeys((packing.qvalues, *packing.parts), packing)
            elif isinstance(op, tensor.Compute) and (contraction := match_contraction(op)) is not None:
                _prepare(contraction, panel, packed, row_major)
    for op in list(module.walk()):
        if isinstance(op, graph.Constant) and op.value in packings:
            read_from_panels(op, packings[op.value], packed)
    dce(module)


def _prepare(
    c: Contraction, panel_rule: PanelRule, packed: dict[Any, Value], row_major: RowMajorRule | None
) -> None:
    compute = c.compute
    factor = c.a.type.dtype
    if not c.n or not _has_kernel(factor, c.b.type.dtype, c.dtype):
        return
    if any(
        not isinstance(axis.upper, int) and set(compute.axes) & tensor.free_symbols_of(axis.upper)
        for axis in compute.reduce_axes
    ):
        return
    last = c.n[-1]
    k = sorted(
        c.k, key=lambda axis: _order(axis, c.a.coefficients[axis])
    )  # the left operand is read along its rows
    if not isinstance(c.a.coefficients[k[-1]], int) and c.k[-1].upper != 0:
        k = list(c.k)
    contiguous = isinstance(c.b.coefficients[last], int) and c.b.coefficients[last] == 1
    constant = c.b.value.defining_op
    source = constant.value if isinstance(constant, graph.Constant) else None
    panel = panel_rule(factor, c.b.type.dtype, None if source is None else _number(extent(last)))
    if c.index is None and _columns_lie_apart(c, k[-1], panel):
        _transpose_left(c, k[-1])
        again = match_contraction(compute)
        assert again is not None
        c = again
    if panel.halves and (source is None or not _fits_halves(source, c)):
        panel = replace(panel, halves=False)
    if panel.group > 1 and not prove_eq(c.a.coefficients[k[-1]], 1):
        # Groups of elements of the left operand cannot be loaded as one.
        panel = Panel(panel.nr, halves=panel.halves)
    padded = False
    if c.index is not None and source is None:
        if not contiguous:
            return  # packing all matrices would cost more than the products with the chosen ones
        panel = Panel(panel.nr)
    elif row_major is not None and (contiguous or source is not None) and row_major(c):
        if source is not None and not contiguous:  # one panel of all columns is a row-major matrix
            _pack_constant(c, k, source, Panel(_number(extent(last))), packed)
        panel = Panel(panel.nr)
    elif source is not None:
        _pack_constant(c, k, source, panel, packed)
        padded = True
    elif not contiguous and has_few_readers(c):
        return  # one query against many keys: an ordinary reduction reads them once
    elif panel.group * factor.bits > WORD_BITS:
        panel = Panel(panel.nr)
        if not contiguous:
            _pack_at_run_time(c, k, panel)
            padded = True
    elif not contiguous or _rows_lie_apart(c) or (panel.group > 1 and _has_many_rows(c)):
        _pack_at_run_time(c, k, panel)
        padded = True
    else:
        panel = Panel(panel.nr)
    reductions = tuple(compute.reduce_axes.index(axis) for axis in k)
    positions = {axis: i for i, axis in enumerate(compute.axes)}
    roles = Roles(
        tuple(positions[a] for a in c.batch),
        tuple(positions[a] for a in c.m),
        tuple(positions[a] for a in c.n),
        reductions,
        panel.nr,
        padded,
        panel.group,
        grouped=c.index is not None,
        halves=panel.halves,
    )
    notes.CONTRACTION.set(compute, roles.as_attribute())


def _has_kernel(a: DType, b: DType, total: DType) -> bool:
    """Whether `simd.brgemm` takes factors of types `a` and `b` and sums of type `total`."""
    if total is i32:
        return (a in BYTES and b in BYTES) or (a is i32 and b is i32)
    return a is b and (a is total or (a in (bf16, f16) and total is f32)) and total in (f32, f64)


def _fits_halves(source: Constant, c: Contraction) -> bool:
    """Whether the values of a constant fit 4 bits, and the sums of their products, times 16 as product
    instructions compute them, 32 bits.
    """
    return prove_le(product(extent(axis) for axis in c.k), MOST_TERMS) and i4.holds(source.array)


def _has_many_rows(c: Contraction) -> bool:
    """Whether the right operand is multiplied by enough rows of the left one to pay for packing it."""
    rows = bounds(product(extent(a) for a in c.m))[1]
    return rows is None or rows >= PACKING_ROWS


def _rows_lie_apart(c: Contraction) -> bool:
    """Whether the rows of a run-time right operand are read often and are long, or short parts of longer
    rows.

    One head's values among those of all heads are an example, and a weight in training. A stride that is a
    power of two would map the rows to few sets of the caches.
    """
    if len(c.k) != 1:
        return False
    if prove_eq(c.b.coefficients[c.k[0]], extent(c.n[-1])) and not _is_far(c.b, c.k[0]):
        return False
    rows, readers = bounds(extent(c.k[0]))[1], bounds(product(extent(a) for a in c.m))[1]
    return rows is None or readers is None or (rows >= SCATTERED_ROWS and readers >= SCATTERED_ROWS)


def _columns_lie_apart(c: Contraction, k: Expr, panel: Panel) -> bool:
    """Whether a run-time left operand is the transpose of a row-major matrix and is better copied to one: its
    rows are far apart in memory, or the target multiplies groups of neighbours along `k`, the innermost axis
    of the sum.

    The gradient of a layer's weight is an example: a sum over rows of both factors.
    """
    if isinstance(c.a.value.defining_op, graph.Constant) or c.a.read.dynamic:
        return False
    step = c.a.coefficients[k]
    if not c.m or prove_eq(step, 1) or not prove_eq(c.a.coefficients[c.m[-1]], 1):
        return False
    m, n, terms = (bounds(product(extent(a) for a in axes))[1] for axes in (c.m, c.n, c.k))
    if terms is not None and terms < SCATTERED_ROWS:
        return False
    if panel.group > 1:
        # Both operands are copied: m + n elements for m * n products.
        return m is None or n is None or m * n >= GROUPED_PRODUCTS * (m + n)
    return _is_far(c.a, k) and len(c.k) == 1 and all(x is None or x >= SCATTERED_ROWS for x in (m, n))


def _is_far(x: Operand, axis: Expr) -> bool:
    step = x.coefficients[axis]
    return isinstance(step, int) and step * x.type.dtype.bits // 8 >= FAR_BYTES


def _transpose_left(c: Contraction, k: Expr) -> None:
    """Insert a computation that copies the left operand, so that its elements along `k` are neighbours.

    Where they are rows of a tensor, its last dimension becomes its first: windows of an image still share
    elements. Otherwise the copy has the axes of the operand, row by row, unless windows make it `MOST_COPIES`
    times as large; the operand then stays.
    """
    read, t = c.a.read, TensorBuilder(Builder.before(c.compute))
    source, (*others, last) = t.wrap(c.a.value), read.indices
    lead = [axis for axis in c.batch if c.a.moves_with(axis)]
    reduced = [axis for axis in c.k if axis is not k]
    axes = [*lead, *c.m, *reduced, k]
    if others and _moves_alone(others, last, k, c):
        copy = t.compute((source.shape[-1], *source.shape[:-1]), lambda first, *i: source[(*i, first)])
        index: tuple[Dim, ...] = (last, *others)
    elif _is_larger(product(extent(a) for a in axes), product(source.shape)):
        return
    else:
        fixed: dict[Expr, Dim] = {axis: 0 for axis in c.batch if axis not in lead}

        def element(*i: Dim) -> Any:
            return source.at(*substitute_all(read.indices, {**fixed, **dict(zip(axes, i, strict=True))}))

        copy = t.compute([extent(a) for a in axes], element)
        index = tuple(axes)
    computation = copy.value.defining_op
    assert computation is not None
    notes.ORIGIN.set(computation, "transpose")
    _replace(read, copy.value, index)


def _moves_alone(others: Sequence[Dim], last: Dim, k: Expr, c: Contraction) -> bool:
    """Whether `k` is a unit step of the dimension before the last one, which no reduction axis moves."""
    *outer, row = others
    parts = linear_in(row, k) if isinstance(row, Expr) else None
    return (
        parts is not None
        and prove_eq(parts[0], 1)
        and not any(isinstance(e, Expr) and k in free_symbols(e) for e in outer)
        and not (isinstance(last, Expr) and free_symbols(last) & set(c.k))
    )


def _is_larger(copy: Dim, source: Dim) -> bool:
    return not prove_le(copy, source * MOST_COPIES)


SCATTERED_ROWS = 128
"""Least number of rows, and of their readers, for which an operand is copied because its rows lie apart. A
larger value copies fewer operands.
"""
FAR_BYTES = 1024
"""Distance in bytes from which on rows lie apart: a tile of them is on many pages, and their addresses fall
into few sets of the caches. A larger value copies fewer operands.
"""
GROUPED_PRODUCTS = 40
"""Products for each element of both operands from which on both are copied for instructions that multiply
groups of neighbours: a copied element costs about as much as so many products. A larger value copies fewer
operands.
"""
MOST_COPIES = 4
"""The most times that a copy of an operand has as many elements as the tensor that it is read from: windows
share elements. A larger value copies the operands of windows that overlap more.
"""
WORD_BITS = 32
"""Bits of the largest groups that a computation packs, in words. Longer ones are made of constants only."""
PACKING_ROWS = 9
MOST_TERMS = (1 << 31) // (16 * 8 * 255) - 1
"""The most terms of a sum whose weights take half a byte."""


def _order(axis: Expr, coefficient: Dim) -> tuple[int, int]:
    """Sort key: larger strides first. Symbolic strides count as largest, axes of one point (a kernel of one
    pixel) as 0.
    """
    if axis.upper == 0:
        return 0, 0
    return (1, 0) if not isinstance(coefficient, int) else (2, -coefficient)


def _replace_b(c: Contraction, value: Value, index: tuple[Dim, ...]) -> None:
    _replace(c.b.read, value, index)


def _replace(read: tensor.Read, value: Value, index: tuple[Dim, ...], bit: Dim | None = None) -> None:
    """Read another tensor instead; with `bit` the integer of 4 bits that begins there."""
    b = Builder.before(read)
    new = b(tensor.Read(value, list(read.dynamic), None, indices=index, location=read.location))
    if bit is not None:
        new = integer_in(Scalar(b, new), bit, i4).cast(read.result.type).value
    read.replace_by(new)
    read.erase()


def _panel_index(lead: Sequence[Expr], last: Expr, k: list[Expr], panel: Panel) -> tuple[Dim, ...]:
    """The index into a packed operand: leading axes, panel, rows, lane, position in a group of rows."""
    *outer, row = k
    lane = last % panel.nr // (2 if panel.halves else 1)
    if panel.group == 1:
        return (*lead, last // panel.nr, *k, lane)
    return (*lead, last // panel.nr, *outer, row // panel.group, lane, row % panel.group)


def _number(d: Dim) -> int:
    """A dimension of a constant, which is never symbolic."""
    assert isinstance(d, int)
    return d


@dataclass(frozen=True)
class _Panels:
    """Writes a constant in panels.

    `shape` and `strides` (in elements) describe its axes in the required order, from element `start` on;
    `n_at` is the position of the columns' axis.
    """

    source: Constant
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    n_at: int
    panel: Panel

    def __call__(self, out: np.ndarray[Any, Any]) -> None:
        nr, group, n_at = self.panel.nr, self.panel.group, self.n_at
        whole, rest = divmod(self.shape[n_at], nr)
        flat = np.ascontiguousarray(self.source.array).reshape(-1)[self.start :]
        strides = [s * flat.itemsize for s in self.strides]
        view = np.lib.stride_tricks.as_strided(flat, self.shape, strides, writeable=False)
        for part in range(group):
            moved = np.moveaxis(view[..., part::group], n_at, -1)  # outer, k..., n
            target = out[..., part] if group > 1 else out
            panels = np.moveaxis(target, n_at, -2)  # outer, k..., panel, lane
            filled = moved.shape[-2]
            panels[..., filled:, :, :] = 0
            panels = panels[..., :filled, :, :]
            for number in range(whole):
                panels[..., number, :] = moved[..., number * nr : (number + 1) * nr]
            if rest:
                panels[..., whole, :rest] = moved[..., whole * nr :]
                panels[..., whole, rest:] = 0


@dataclass(frozen=True)
class _Halves:
    """Writes a constant in panels whose columns share bytes in pairs."""

    panels: _Panels
    shape: tuple[int, ...]

    def __call__(self, out: np.ndarray[Any, Any]) -> None:
        whole = np.empty(self.shape, np.int8)
        self.panels(whole)
        out[...] = joined_nibbles(whole & 15, -1 if self.panels.panel.group == 1 else -2).view(np.int8)


def shares_bytes(constant: Constant) -> bool:
    """Whether each byte of a constant holds two integers, of 4 bits."""
    return isinstance(constant.again or constant.source, _Halves)


def _pack_constant(
    c: Contraction, k: list[Expr], source: Constant, panel: Panel, packed: dict[Any, Value]
) -> None:
    *outer, last = [axis for axis in c.batch if axis.upper != 0 and c.b.moves_with(axis)] + list(c.n)
    axes = [*outer, last, *k]
    shape = [_number(extent(a)) for a in axes]
    strides = [_number(c.b.coefficients[a]) for a in axes]
    offset = c.b.offset
    if c.index is not None:  # the matrices, as the outermost axis
        matrix = c.b.read.indices[0]
        assert isinstance(matrix, Expr)
        outer, shape = [matrix, *outer], [_number(c.b.type.shape[0]), *shape]
        strides = [_number(row_major_strides(c.b.type.shape)[0]), *strides]
        offset = substitute_all((offset,), {matrix: 0})[0]
    start = _number(offset)
    nr, group = panel.nr, panel.group
    n_at = len(outer)
    write: Any = _Panels(source, tuple(shape), tuple(strides), start, n_at, panel)
    anchor = c.b.value.defining_op
    assert anchor is not None
    key = anchor.parent, write
    if key not in packed:
        rows = _number(panel.padded_rows(shape[-1]))
        inner = (rows, nr) if group == 1 else (rows // group, nr, group)
        result = (*shape[:n_at], -(-shape[n_at] // nr), *shape[n_at + 1 : -1], *inner)
        halves = ""
        if panel.halves:
            write, halves = _Halves(write, result), ", two columns in a byte"
            lanes = len(result) - (1 if group == 1 else 2)
            result = (*result[:lanes], nr // 2, *result[lanes + 1 :])
        name = f"{source.name}.packed" if source.name else "packed"
        constant = Constant.made(result, source.numpy_dtype, write, name)
        pairs = f", {group} rows interleaved" if group > 1 else ""
        constant.made_of([source], f"packed in panels of {nr} columns{pairs}{halves}")
        packed[key] = Builder.after(anchor)(graph.Constant(value=constant, location=anchor.location))
    bit = last % 2 * 4 if panel.halves else None
    _replace(c.b.read, packed[key], _panel_index(outer, last, k, panel), bit)


def _pack_at_run_time(c: Contraction, k: list[Expr], panel: Panel) -> None:
    """Insert a computation that copies the right operand into panels. The batch axes that it depends on come
    first.
    """
    compute, read = c.compute, c.b.read
    *outer, last = c.n
    nr, group = panel.nr, panel.group
    batch = [axis for axis in c.batch if c.b.moves_with(axis)]
    lead = [*batch, *outer]
    rows = [extent(a) for a in k]
    rows[-1] = panel.padded_rows(rows[-1]) // group
    shape: list[Dim] = [*(extent(a) for a in lead), ceildiv(extent(last), nr), *rows, nr]
    builder = Builder.before(compute)
    t = TensorBuilder(builder)
    source, where = _without_last_units(t, t.wrap(c.b.value), read.indices)
    fixed = {axis: 0 for axis in c.batch if axis not in batch}

    def index_of(*i: Dim) -> tuple[dict[Expr, Any], Any]:
        """The values of the axes at an index into the panels, and the column."""
        *leading, number = i[: len(lead) + 1]
        column = number * nr + i[-1]
        return {
            **fixed,
            **dict(zip((*lead, last, *k), (*leading, column, *i[len(lead) + 1 : -1]), strict=True)),
        }, column

    def read_at(tensor_: TensorRef, axes: dict[Expr, Any], column: Dim, words: bool = False) -> Any:
        index = substitute_all(where, axes)
        guards = (extent(last) - 1 - column, extent(k[-1]) - 1 - axes[k[-1]])
        needed = tuple(g for g in guards if not prove_le(0, g))
        if words:
            index = (*index[:-1], index[-1] // group)
        return tensor_.at(*index, guard=needed, otherwise=0) if needed else tensor_.at(*index)

    word = {16: u16, 32: u32}.get(group * c.b.type.dtype.bits, u32)
    if group == 1:
        packed = t.compute(shape, lambda *i: read_at(source, *index_of(*i)))
    elif _in_words(source.shape, where, k[-1], group):
        # Neighbours in memory: the elements of a group are moved as one word.
        words = t.bitcast(source, word, (*source.shape[:-1], source.shape[-1] // group))

        def whole(*i: Dim) -> Any:
            axes, column = index_of(*i)
            return read_at(words, {**axes, k[-1]: axes[k[-1]] * group}, column, words=True)

        packed = t.compute(shape, whole)
    else:
        element = {16: u16, 8: u8}[c.b.type.dtype.bits]
        bits = t.bitcast(source, element, source.shape)

        def joined(*i: Dim) -> Any:
            axes, column = index_of(*i)
            total = None
            for part in range(group):
                x = read_at(bits, {**axes, k[-1]: axes[k[-1]] * group + part}, column).cast(word)
                total = x if total is None else total | x.apply("shl", part * element.bits)
            return total

        packed = t.compute(shape, joined)
    computation = packed.value.defining_op
    assert computation is not None
    notes.ORIGIN.set(computation, "pack")
    if group > 1:
        packed = t.bitcast(packed, c.b.type.dtype, (*shape, group))
    _replace_b(c, packed.value, _panel_index(lead, last, k, panel))


def _without_last_units(
    t: TensorBuilder, x: TensorRef, index: tuple[Dim, ...]
) -> tuple[TensorRef, tuple[Dim, ...]]:
    """A tensor and an index into it without the tensor's last dimensions of one element, such as those of the
    kernel of a 1x1 convolution.
    """
    rank = max((d + 1 for d, n in enumerate(x.shape) if n != 1), default=1)
    if rank == len(index):
        return x, index
    return t.reshape(x, x.shape[:rank]), index[:rank]


def _in_words(shape: tuple[Dim, ...], index: tuple[Dim, ...], row: Expr, group: int) -> bool:
    """Whether `group` elements along the axis `row` of a right operand of a shape, read at an index, are
    always neighbours in memory, aligned to `group` elements.
    """
    *others, last = index
    rest = substitute_all((last,), {row: 0})[0]
    return (
        not any(row in free_symbols(e) for e in others if isinstance(e, Expr))
        and prove_eq(last, rest + row)
        and all(prove_eq(x % group, 0) for x in (rest, shape[-1], extent(row)))
    )


__all__ = ["PanelRule", "RowMajorRule", "pack_operands", "shares_bytes"]
