"""The register-tiled microkernel behind `simd.brgemm`, as LLVM IR text.

In: the properties of a `simd.BatchReduceGemm` and an `Isa`. Out: internal LLVM functions in two layers.

- A *tile* function computes ``rows x (vectors * lanes)`` elements of C. They stay in registers over all reductions: per step of k it
  loads the row of B once and multiplies it by one broadcast element of A per row.
- The *driver* walks the panels of B and, in each, blocks of rows of nearly equal height, so that at most two tile heights occur
  (and no block is so low that it starves the multipliers). It is what `simd.brgemm` calls.

Numbers that are known are baked into the text; symbolic ones become trailing ``i64`` arguments. Columns that do not fill a vector
are masked where the instruction set does that for free; else computed whole into a stack tile when B may be read in full
(`padded`), and by narrower and narrower vectors when it may not.
"""

from __future__ import annotations

from ....dialects import simd
from ....ir.symbolic import Dim, prove_eq
from ....ir.types import DType, bf16, f32
from ..isa import Isa
from .driver import Driver
from .matrix_tile import DEPTH, MatrixDriver
from .problem import LLVM_TYPES, named, problem_of, tile_rows, tile_shape

FEW_ROWS = 2
"""Rows that vectors multiply sooner than a matrix extension, which loads its configuration first and a whole register of B for a product."""


def panel_of(isa: Isa, dtype: DType) -> simd.Panel:
    """The layout of packed right factors of `dtype`: pairs of bf16 rows are interleaved, which dot-product instructions need and which
    others widen just as well as rows."""
    _, nr = tile_shape(isa, dtype)
    if dtype is not bf16:
        return simd.Panel(nr)
    return simd.Panel(nr, 2, DEPTH) if isa.tiles else simd.Panel(nr, 2, 2)


def brgemm_function(op: simd.BatchReduceGemm, isa: Isa) -> tuple[str, dict[str, str], tuple[Dim, ...]]:
    """The function that computes `op`, on A, B and C pointers already advanced by the operation's offsets.

    Returns:
        Its name, ``{name: definition}`` of it and of the tile functions it calls, and the symbolic numbers to pass, in
        order, as trailing ``i64`` arguments: ``void @name(ptr %a, ptr %b, ptr %c, i64...)``. Equal static properties give
        equal names.

    Raises:
        NotImplementedError: element types other than floating-point ones, or A and B of different types.
    """
    a, b, c = (v.type.dtype for v in (op.a, op.b, op.c))
    if a is not b or a not in LLVM_TYPES or c not in LLVM_TYPES or c.bits < a.bits:
        raise NotImplementedError(
            f"simd.brgemm of {a} and {b} into {c}: only equal floating-point factors, not wider than the result"
        )
    if op.group not in (1, 2) or (op.group == 2 and (a is not bf16 or c is not f32 or not prove_eq(op.a_k, 1))):
        raise NotImplementedError(f"simd.brgemm of {a} with groups of {op.group} rows")
    problem = problem_of(op, isa, a, c)
    rows = op.m * op.lines
    uses_tiles = op.group == 2 and isa.tiles and not (isinstance(rows, int) and rows <= FEW_ROWS)
    driver = MatrixDriver(problem, isa) if uses_tiles else Driver(problem, isa)
    driver.write()
    dims = driver.dims.dims
    parameters = ["ptr %a", "ptr %b", "ptr %c", *(f"i64 %d{i}" for i in range(len(dims)))]
    name, text = named("brgemm", parameters, driver.emitter, isa)
    return name, {name: text, **driver.definitions}, tuple(dims)


__all__ = ["brgemm_function", "panel_of", "tile_rows", "tile_shape"]
