"""The register-tiled microkernel of `simd.brgemm`, as LLVM IR text.

Input: a `simd.BatchReduceGemm` and an `Isa`. Output: internal LLVM functions in two layers.

- A *tile* function computes ``rows x (vectors * lanes)`` elements of C, which stay in registers over all
  reductions. Each step of k loads one row of B and multiplies it by one broadcast element of A per tile row.
- The *driver* function is called by `simd.brgemm`. It iterates over the panels of B and, in each panel, over
  blocks of rows of nearly equal height. At most two tile heights occur, and no tile is too low to keep the
  multiply-add units busy.

Constant sizes are printed as literals; symbolic sizes become trailing ``i64`` arguments. Columns that do not
fill a vector are masked where the instruction set masks loads and stores for free. Elsewhere the whole vector
is computed into a tile on the stack if B may be read in full (`padded`); otherwise the columns are computed
by vectors of half, a quarter, ... the width.
"""

from __future__ import annotations

from collections.abc import Callable

from ....dialects import loop, simd
from ....ir.core import Operation
from ....ir.symbolic import Dim, prove_eq
from ....ir.types import DType, bf16, f32, i4, i8, i32
from ..isa import Isa
from .block_tile import block_of
from .byte_dots import has_byte_dots
from .copied_rows import COLUMNS, ROWS, CopiedRows
from .dequantize import dequantize_function
from .driver import Driver
from .epilogue import Epilogue, epilogue_of
from .group_step import bf16_group, byte_group, has_quads
from .matrix_tile import ROW, MatrixDriver
from .paired_rows import PairedRows, paired, paired_elements, pairs_rows
from .problem import BYTES, LLVM_TYPES, named, problem_of, registers_for, tile_rows, tile_shape
from .quantized import quantized_function
from .vector_rows import VectorRows
from .widened_rows import WidenedRows

VECTOR_ROWS = 2
"""Largest number of rows (M) for which vector instructions are faster than a matrix extension.

A matrix extension has to load its configuration and a whole register of B for each product.
"""


MANY_PANELS = 12
"""Number of panels from which on an odd number of panels no longer unbalances the threads noticeably."""


BYTE_PRODUCTS: tuple[type[CopiedRows], ...] = (VectorRows, WidenedRows)
"""The product instructions of bytes whose operands are rows that are copied first, best one first."""


def byte_product(isa: Isa) -> type[CopiedRows] | None:
    """The best of `BYTE_PRODUCTS` that an instruction set has."""
    return next((kind for kind in BYTE_PRODUCTS if isa.has(kind.feature)), None)


def panel_of(isa: Isa, a: DType, b: DType, columns: int | None = None) -> simd.Panel:
    """The layout of a packed right operand of type `b` for left operands of type `a`.

    Rows of narrow types are interleaved in the groups that dot-product instructions read; machines without
    such instructions widen groups as fast as rows. A known number of `columns` may make panels narrower or
    wider. `Isa.halves` lets columns of signed integers share bytes. For quantized weights of any number of
    bits `b` is i4. Their panels are narrow, one or two vectors wide, so that a tile has many rows and an
    unpacked value serves all of them.
    """
    if b is i4:
        vectors = 2 if isa.vector_registers >= 32 or isa.has("relaxed-simd") else 1
        return simd.Panel(vectors * isa.narrow.lanes(32), 4 if has_byte_dots(isa) else 1)
    wide, halves = isa.integer_bits > isa.vector_bits, isa.halves and b is i8
    isa = isa.for_type(b if b in (bf16, *BYTES) else f32)
    _, nr = tile_shape(isa, b, a)
    if b not in (bf16, *BYTES):
        return simd.Panel(nr if columns is None else _even_panel(isa, nr, isa.lanes(b.bits), columns))
    if b in BYTES and (kind := byte_product(isa)) is not None:
        return simd.Panel(COLUMNS, kind.group, kind.group, halves)
    group = bf16_group(isa) if b is bf16 else byte_group(isa, a, b)
    if _in_tiles(isa, b, group):
        return simd.Panel(nr, group, ROW // b.itemsize)
    # A group of a convolution has few columns; wide vectors have more than many matrices.
    if (b is bf16 or (wide and b in BYTES)) and columns is not None:
        lanes = isa.lanes(32)
        nr = min(nr, -(-columns // lanes) * lanes)
    return simd.Panel(nr, group, group, halves)


def _even_panel(isa: Isa, nr: int, lanes: int, columns: int) -> int:
    """The panel width in columns: `nr`, or a width that makes an odd, small number of panels even.

    An even number of full panels gives two (four, ...) threads equal shares. The alternatives are five or
    three vectors, whose tiles occupy as many registers (5 x 5 and 9 x 3 instead of 6 x 4).
    """
    panels, vectors = -(-columns // nr), -(-columns // lanes)
    if nr != 4 * lanes or panels == 1 or panels % 2 == 0 or panels >= MANY_PANELS:
        return nr
    return next((v * lanes for v in (5, 3) if vectors % (2 * v) == 0), nr)


def rows_at_once(isa: Isa) -> int:
    """The rows of bytes that are multiplied with all columns at a time; 0: results are divided into tiles."""
    return ROWS if byte_product(isa) is not None else 0


def _in_tiles(isa: Isa, dtype: DType, group: int) -> bool:
    """Whether operands of `dtype` in groups of `group` rows are multiplied in tile registers."""
    return (dtype is bf16 and group == 2 and isa.tiles) or (dtype in BYTES and group == 4 and isa.byte_tiles)


def _supported(op: simd.BatchReduceGemm, a: DType, b: DType, c: DType) -> bool:
    if op.halves and (b is not i8 or op.nr % 2 or not op.padded):
        return False
    if c is i32:
        known = a in (*BYTES, i32) and b in (*BYTES, i32) and (a is b or (a in BYTES and b in BYTES))
        return known and (op.group == 1 or (a is not i32 and op.group in (2, 4, 8, 16)))
    known = a is b and a.is_float and a in LLVM_TYPES and c in LLVM_TYPES and c.bits >= a.bits
    return known and (op.group == 1 or (op.group in (2, 4) and a is bf16 and c is f32))


def fused_epilogue(
    op: simd.BatchReduceGemm, nest: Operation | None, isa: Isa, resolve: Callable[[Dim], Dim]
) -> Epilogue | None:
    """Return the calculation of the statement after a product with its elements, if the product's register
    tiles can do it (`brgemm_function`); None if they cannot. `resolve` expresses sizes and
    addresses in the symbols of the loops around both.

    Sums of matrix units and of blocks take another way to memory, and columns that fill no vector are written
    from registers only with masks.
    """
    if not isinstance(nest, loop.For) or op.guards:
        return None
    driver = _driver(op, isa, None)
    p = driver.problem if type(driver) is Driver else None
    if p is None or block_of(p, registers_for(op, isa)) or p.lanes == 1:
        return None
    if not isa.masked and not (isinstance(p.n, int) and p.n % p.lanes == 0):
        return None
    return epilogue_of(op, nest, resolve)


def elements_of_pairs(op: simd.BatchReduceGemm, isa: Isa) -> Dim:
    """The elements of A that `brgemm_function` copies to memory that it is given; 0 if A is read in place."""
    isa = registers_for(op, isa)
    found = paired(problem_of(op, isa, op.a.type.dtype, op.c.type.dtype), isa)
    return paired_elements(found) if found else 0


def brgemm_function(
    op: simd.BatchReduceGemm, isa: Isa, epilogue: Epilogue | None = None
) -> tuple[str, dict[str, str], tuple[Dim, ...]]:
    """The function that computes `op` on pointers to A, B and C, already advanced by the operation's offsets.

    Returns:
        The function's name; ``{name: definition}`` of it and of the tile functions that it calls; and the
        symbolic sizes to pass, in order, as trailing ``i64`` arguments:
        ``void @name(ptr %a, ptr %b, ptr %c[, ptr %pairs][, ptr %read0...], i64...)``, with memory for
        `elements_of_pairs` of A if there are any, and with the places of an `epilogue`: its target in place
        of C, and what it reads. Equal static properties give equal names.

    Raises:
        NotImplementedError: the element types are neither equal floating-point types at most as wide as C's,
            nor 8-bit or equal 32-bit integers with an i32 result; or rows have guards and are not copied.
    """
    driver = _driver(op, isa, epilogue)
    driver.write()
    dims = driver.dims.dims
    pointers = ["a", "b", "c", *(["pairs"] if isinstance(driver, PairedRows) else [])]
    pointers += [f"read{i}" for i in range(len(epilogue.reads) if epilogue is not None else 0)]
    parameters = [*(f"ptr %{x}" for x in pointers), *(f"i64 %d{i}" for i in range(len(dims)))]
    name, text = named("brgemm", parameters, driver.emitter, registers_for(op, isa))
    return name, {name: text, **driver.definitions}, tuple(dims)


def _driver(op: simd.BatchReduceGemm, isa: Isa, epilogue: Epilogue | None) -> CopiedRows | Driver:
    """Return the writer of a product's function."""
    a, b, c = (v.type.dtype for v in (op.a, op.b, op.c))
    if not _supported(op, a, b, c) or (op.group > 1 and not prove_eq(op.a_k, 1)):
        raise NotImplementedError(f"simd.brgemm of {a} and {b} into {c} with groups of {op.group} rows")
    isa = registers_for(op, isa)
    problem = problem_of(op, isa, a, c, epilogue)
    rows = op.m * op.lines
    few = isinstance(rows, int) and rows <= VECTOR_ROWS and (a is bf16 or has_quads(isa, a, b))
    uses_tiles = _in_tiles(isa, a, op.group) and not few
    kind = byte_product(isa)
    if kind is not None and kind.fits(problem, isa):
        return kind(problem)
    if problem.guards:
        raise NotImplementedError("simd.brgemm with guards, of rows that are not copied")
    in_pairs = paired(problem, isa)
    if in_pairs:
        return PairedRows(problem, in_pairs, isa)
    return MatrixDriver(problem, isa) if uses_tiles else Driver(problem, isa)


__all__ = [
    "brgemm_function",
    "dequantize_function",
    "elements_of_pairs",
    "fused_epilogue",
    "has_byte_dots",
    "pairs_rows",
    "panel_of",
    "quantized_function",
    "rows_at_once",
    "tile_rows",
    "tile_shape",
]
