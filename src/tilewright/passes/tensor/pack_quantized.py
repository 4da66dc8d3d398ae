"""Packs quantized weights into panels, the layout that `simd.quantized_gemm` reads.

The quantized values of `nr` columns (rows of the weight) are neighbours, and four successive values of a
column are together, as dot-product instructions on bytes require: ``p[n // nr, k // 4, n % nr, k % 4]``, made
unsigned if they are integers. Values of fewer than 8 bits share bytes in chunks (`WeightForm.chunk`), as bit
planes or digits: ``p[n // nr, k // chunk, line of bytes, n % nr, k % 4]``. Scales and the other parts have
the same order, ``s[n // nr, g, n % nr]``; those of 4 bits share a byte with the next group's. Zeros complete
the last panel. If each row of the product chooses one of several matrices, their panels follow one another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...analysis.axis_roles import Roles
from ...dialects import graph, scalar, tensor
from ...dialects.graph.quantized import dequantized, scale_and_minimum, scaled_term, stood_for
from ...dialects.simd import Panel
from ...dialects.tensor import extent
from ...dialects.tensor_builder import Scalar, TensorBuilder
from ...dialects.weight_form import DIGITS, TERNARY, WeightForm, joined_nibbles
from ...ir import notes
from ...ir.builder import Builder
from ...ir.constant import Constant
from ...ir.core import Value
from ...ir.symbolic import Dim
from ...ir.types import DType, f32, i32, u4


@dataclass(frozen=True)
class Packing:
    """The layout of quantized values and their parts in panels, once a product has asked for it."""

    form: WeightForm
    groups: int
    size: int
    nr: int
    qvalues: Constant
    parts: tuple[Constant, ...]


def pack_quantized(compute: tensor.Compute, panel: Panel, packed: dict[Any, Value]) -> Packing | None:
    """Pack the constant values and parts of a `graph.scaled_matmul` or `graph.dequantized_matmul` into
    panels.

    Marks the computation as a contraction and returns the layout; None if the operands are not constants, two
    of them are equal, or their groups do not consist of whole quads or chunks.
    """
    fields = notes.QUANTIZED.get(compute)
    assert fields is not None
    form = WeightForm.of(fields)
    choosing = {v for read in compute.reads for v in read.dynamic}
    index = [read for read in compute.reads if read.result in choosing]
    x, qvalues, *rest = (read for read in compute.reads if read not in index)
    count = len(form.parts)
    if len(rest) < count:
        return None  # equal constants, such as scales and minimums of zeros, are one read
    x_scales, parts = rest[: len(rest) - count], rest[len(rest) - count :]
    sources = [read.source.defining_op for read in (qvalues, *parts)]
    *lead, column = compute.axes
    group, k = compute.reduce_axes
    groups, size = extent(group), extent(k)
    constants = [op for op in sources if isinstance(op, graph.Constant)]
    read_as_written = x.indices == (*lead, group, k) and parts[0].indices[-2] is column
    if panel.group != 4 or not (
        len(constants) == len(sources)
        and read_as_written
        and isinstance(groups, int)
        and isinstance(size, int)
    ):
        return None
    if not form.fits(groups, size):
        return None
    nr = panel.nr
    values = [op.value for op in constants]
    form = form.with_nibbles([name for name, x in zip(form.parts, values[1:], strict=True) if _in_nibbles(x)])
    packing = Packing(form, groups, size, nr, values[0], tuple(values[1:]))
    t = TensorBuilder(Builder.before(compute))
    left = t.wrap(x.source)
    right, *right_parts = (t.wrap(_panels(op, packing, packed)) for op in constants)
    by_name = dict(zip(form.parts, right_parts, strict=True))

    sums = _sums_of_groups(compute, x.source, packed) if x_scales and form.needs_sums else None

    def product(*i: Dim) -> Scalar:
        row, n, g, *inside = i[: len(lead)], *i[len(lead) :]
        matrix = [t.wrap(read.source)[row] for read in index]
        start: Dim = g * size
        if form.bits < 8:
            chunk, quad, within = inside
            k = chunk * (4 * quads) + quad * 4 + within
        else:
            (k,) = inside
        # A chunk may have several groups, which then are at different quads of it.
        code = _code(t, form, lambda *at: right[(*matrix, n // nr, *at, n % nr, k % 4)], start + k)
        value = stood_for(_value(code, form), form.table)
        element = left[(*row, g, k)]

        def part(name: str) -> Scalar:
            covered = form.covered_by(name)
            stored = by_name[name][*matrix, n // nr, g if covered == 1 else g // covered, n % nr]
            return (_nibble(t, stored, g) if name in form.nibbles else stored).cast(f32)

        def numbers() -> tuple[Scalar, Scalar | None]:
            return scale_and_minimum(form, part, lambda name: by_name[name].dtype)

        if not x_scales:
            return element.cast(f32) * dequantized(value, *numbers())
        at = g if together == 1 else g // together
        left_scale = lambda: t.wrap(x_scales[0].source)[(*row, at)]  # noqa: E731
        if sums is None:
            return scaled_term(element, value, left_scale, numbers)
        is_first = t.index(k).equals(0)
        sum_ = is_first.select(t.wrap(sums)[(*row, g)], 0)
        return _term_of_bytes(form, element, value, sum_, left_scale(), *numbers())

    quads, together = min(form.chunk, size) // 4, form.rounded_together(size)
    depth = (groups, size // (4 * quads), quads, 4) if form.bits < 8 else (groups, size)
    y = t.reduce("sum", compute.shape, depth, product).value
    made = y.defining_op
    assert made is not None
    rank = len(compute.axes)
    over_rows, over_depth = tuple(range(rank - 1)), tuple(range(len(depth)))
    described = groups, size, form.attribute
    roles = Roles((), over_rows, (rank - 1,), over_depth, nr, True, 4, described, bool(index))
    made.location = compute.location
    notes.copy(compute, made)
    notes.CONTRACTION.set(made, roles.as_attribute())
    compute.result.replace_by(y)
    compute.erase()
    return packing


def _sums_of_groups(compute: tensor.Compute, x: Value, packed: dict[Any, Value]) -> Value:
    """The sums of the groups of rows x [..., groups, size], i32 [..., groups], once for all products of x.
    `form_groups` puts them into the kernel that rounds the rows, if they are not behind a view.
    """
    shape, view = x.type.shape, x.defining_op
    if isinstance(view, tensor.Reshape) and view.x.type.shape[-1] == shape[-1]:
        x = view.x
    made = x.defining_op
    key = "sums", x, None if made is not None else compute.parent
    if key not in packed:
        t = TensorBuilder(Builder.before(compute) if made is None else Builder.after(made))
        rows, (*lead, size) = t.wrap(x), x.type.shape
        sums = t.reduce("sum", lead, (size,), lambda *i: rows[i].cast(i32))
        assert sums.value.defining_op is not None
        sums.value.defining_op.location = compute.location
        packed[key] = t.reshape(sums, shape[:-1]).value
    return packed[key]


def _term_of_bytes(
    form: WeightForm,
    x: Scalar,
    value: Scalar,
    sum_: Scalar,
    x_scale: Scalar,
    scale: Scalar,
    minimum: Scalar | None,
) -> Scalar:
    """A term of `graph.scaled_matmul` as kernels compute it: a product with an unsigned byte. The first term
    of a group subtracts what that adds and the minimum, times the group's sum; `sum_` is 0 in others.
    """
    products = x.cast(i32) * (value.cast(i32) + form.byte_offset)
    less = scale * float(form.byte_offset)
    less = less if minimum is None else less + minimum
    return x_scale * (products.cast(f32) * scale - sum_.cast(f32) * less)


def _code(t: _WritesIndices, form: WeightForm, byte: Callable[..., Scalar], k: Dim) -> Scalar:
    """The stored value at depth `k`, as i32; of 8 bits the byte. ``byte(*place)`` reads a byte at a place in
    the panel, between its number and the column.
    """
    if form.bits == 8:
        return byte(k // 4, 0)
    chunk, quad, code, first = k // form.chunk, k % form.chunk // 4, None, 0
    if form.kind == "ternary":
        digit, left = t.index(quad % DIGITS, i32), byte(chunk, quad // DIGITS).cast(i32)
        for place in range(1, DIGITS):
            left = (digit >= place).select(left * 3, left)
        return ((left & 255) * 3).shr(8)
    for width, low in form.planes:
        stored = byte(chunk, first + quad % width).cast(i32)
        field = stored.shr(t.index(quad // width * width, i32)) & ((1 << width) - 1)
        field = field.apply("shl", low) if low else field
        code = field if code is None else code | field
        first += width
    assert code is not None
    return code


def _value(code: Scalar, form: WeightForm) -> Scalar:
    """The quantized value of a stored one."""
    if not form.is_integer:
        return code.bitcast(DType.named(form.kind))
    return code.cast(i32) - form.added if form.added else code.cast(i32)


def _in_nibbles(part: Constant) -> bool:
    """Whether two successive numbers of a part share a byte in panels."""
    return part.numpy_dtype == u4.numpy and part.shape[-1] % 2 == 0


def _nibble(t: _WritesIndices, stored: Scalar, g: Dim) -> Scalar:
    """The integer of the group `g`, as i32, in a byte that has two."""
    return stored.cast(i32).shr(t.index(g % 2 * 4, i32)) & 15


def read_from_panels(constant: graph.Constant, packing: Packing, packed: dict[Any, Value]) -> None:
    """Let all other reads of packed quantized values or parts read the panels, so that they are stored once.

    An embedding that is also the head has such reads.
    """
    reads = list(constant.result.users)
    if not all(isinstance(read, tensor.Read) and not read.guard for read in reads):
        return
    form, nr = packing.form, packing.nr
    panels = _panels(constant, packing, packed)
    for read in reads:
        b, (n, k) = Builder.before(read), read.indices

        def element(place: tuple[Dim, ...], *behind: Dim, read: Any = read, n: Dim = n) -> Scalar:
            indices = (n // nr, *place, n % nr, *behind)
            made = tensor.Read(panels, read.dynamic, None, indices=indices, location=read.location)
            return Scalar(b, b(made))  # noqa: B023 - called before the loop goes on

        if constant.value != packing.qvalues:
            part = (
                element((k,))
                if not _in_nibbles(constant.value)
                else _nibble(_Indices(b), element((k // 2,)), k)
            )
            read.replace_by(part.cast(read.result.type).value)
            continue
        code = _code(_Indices(b), form, lambda *at, k=k, element=element: element(at, k % 4), k)
        read.replace_by(_value(code, form).cast(read.result.type).value)


class _WritesIndices(Protocol):
    def index(self, expr: Dim, dtype: DType) -> Scalar: ...


@dataclass(frozen=True)
class _Indices:
    """Writes index expressions as scalars with a builder inside a body."""

    b: Builder

    def index(self, expr: Dim, dtype: DType) -> Scalar:
        return Scalar(self.b, self.b(scalar.Index(expr=expr))).cast(dtype)


@dataclass(frozen=True)
class _Quantized:
    """Writes quantized values or a part [*matrices, rows, depth] in panels of `nr` rows."""

    value: Constant
    nr: int
    form: WeightForm | None = None
    """The form of quantized values; None: a part, whose numbers stay as they are."""

    def __call__(self, out: np.ndarray[Any, Any]) -> None:
        array, nr = self.value.array, self.nr
        *matrices, rows, depth = array.shape
        panels = -(-rows // nr)
        for matrix in np.ndindex(*matrices):
            stored = array[matrix]
            if self.form is not None and self.form.is_integer:
                stored = stored.astype(np.uint8 if self.form.kind == "uint" else np.int8)
            whole = np.zeros((panels * nr, depth), stored.dtype)
            whole[:rows] = stored
            whole = whole.reshape(panels, nr, depth)
            if self.form is not None:
                out[matrix] = self.form.packed(whole)
            else:
                out[matrix] = (joined_nibbles(whole) if _in_nibbles(self.value) else whole).swapaxes(-1, -2)


def _panels(op: graph.Constant, packing: Packing, packed: dict[Any, Value]) -> Value:
    """The panels of the constant that an operation holds, of quantized values or of a part."""
    form, nr, value = packing.form, packing.nr, op.value
    is_qvalues = value == packing.qvalues
    *matrices, rows, depth = value.shape
    panels = -(-rows // nr)
    write = _Quantized(value, nr, form if is_qvalues else None)
    key = op.parent, write
    if key not in packed:
        name, step = f"{value.name}.packed" if value.name else "packed", f"packed in panels of {nr} columns"
        if is_qvalues:
            inside = (depth // form.chunk, form.lines, nr, 4)
            constant = Constant.made((*matrices, panels, *inside), np.uint8, write, name)
            added = f", {form.added} added" if form.added else ""
            bits = TERNARY if form.kind == "ternary" else form.bits
            step = f"{step}, in groups of {packing.size}, {bits} bits a value{added}"
        else:
            halved = _in_nibbles(value)
            stored = np.uint8 if halved else value.numpy_dtype
            constant = Constant.made(
                (*matrices, panels, depth // 2 if halved else depth, nr), stored, write, name
            )
        packed[key] = Builder.after(op)(
            graph.Constant(value=constant.made_of([value], step), location=op.location)
        )
    return packed[key]


__all__ = ["Packing", "pack_quantized", "read_from_panels"]
