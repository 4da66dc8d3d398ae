"""Parts shared by the drivers and tiles of `simd.brgemm`: the simplified problem, tile shapes, names,
arguments.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ....dialects import simd
from ....ir.symbolic import Dim, prove_divisible, prove_eq
from ....ir.types import DType, bf16, f16, f32, f64, i8, i32, u8
from ..emitter import Emitter
from ..isa import Isa
from .epilogue import Epilogue, Place
from .products import Product, block_product

LLVM_TYPES = {f16: "half", bf16: "bfloat", f32: "float", f64: "double", i8: "i8", u8: "i8", i32: "i32"}
BYTES = (i8, u8)
MIN_CHAINS = 8
"""Independent accumulators that keep two multiply-add units with a latency of four cycles busy."""
MAX_ROWS = 14


def accumulator_of(c_dtype: DType) -> DType:
    """The type in which a result of `c_dtype` is accumulated."""
    return c_dtype if c_dtype in (f64, i32) else f32


def tile_rows(isa: Isa, vectors: int) -> int:
    """The largest number of tile rows of `vectors` vectors that fits the registers.

    Registers are also needed for a row of B, a broadcast element of A and, without FMA, two products. Where a
    lane can be a factor, each tile row has a vector of elements of A instead.
    """
    if isa.lane_factors:
        return max(1, min(MAX_ROWS, (isa.vector_registers - vectors) // (vectors + 1)))
    spare = vectors + (1 if isa.fma or isa.has("relaxed-simd") else 3)
    return max(1, min(MAX_ROWS, (isa.vector_registers - spare) // vectors))


def block_rows(isa: Isa, block: Product, columns: int) -> int:
    """The largest number of rows of a tile of `columns` columns whose sums are blocks of results.

    Accumulators and a vector of each row of A occupy at most three quarters of the registers. LLVM's
    scheduler moves loads of several groups forward; fewer free registers lead to copies of accumulators and
    to spills.
    """
    rows = isa.vector_registers * 3 // 4 // (columns // (block.rows * block.columns) + 1)
    return max(block.rows, min(MAX_ROWS, rows // block.rows * block.rows))


def _block_columns(isa: Isa, block: Product) -> int:
    """Columns of a panel for products whose sums are blocks. Matrix products of bf16 have 20 accumulators,
    which hide a latency of 5 cycles where 4 begin in each (Neoverse V1); those of bytes 16 for 3 cycles.
    """
    if block.sums:
        return 8 if isa.vector_registers >= 32 else 4
    return 20 if block.operands == "bb" else 16


def tile_shape(isa: Isa, dtype: DType, other: DType | None = None) -> tuple[int, int]:
    """The preferred register tile ``(mr, nr)`` for right operands of `dtype` and left ones of `other`
    (default: the same): rows, and columns of a panel of B.

    Tiles have few rows and wide panels: 6 x 4 vectors with 32 registers, 6 x 2 with 16. A is read in place,
    and many rows a power of two bytes apart would map to one set of the first-level cache.
    """
    if (dtype is bf16 and isa.tiles) or (dtype in BYTES and isa.byte_tiles):
        return 32, 32
    if block := block_product(isa, other or dtype, dtype):
        columns = _block_columns(isa, block)
        return block_rows(isa, block, columns), columns
    isa = isa.for_type(dtype)
    lanes = isa.lanes(max(dtype.bits, 32))
    vectors = 4 if isa.vector_registers >= 32 else 2
    return tile_rows(isa, vectors), vectors * lanes


@dataclass(frozen=True)
class Problem:
    """A brgemm after simplification.

    A panel has ``splits * width`` columns, of which `width`, a multiple of `lanes`, are computed at a time.
    Strides and offsets count elements; `m`, `n`, `k`, `lines` and `reductions` are extents. `guards` and
    `fill` are those of the operation, as is `halves`, with which strides of B count bytes. `paired` says that
    rows of A lie in pairs (`paired_rows`). With an `epilogue`, C is its target.
    """

    dtype: DType
    b_dtype: DType
    c_dtype: DType
    lanes: int
    width: int
    splits: int
    m: Dim
    n: Dim
    k: Dim
    reductions: tuple[Dim, ...]
    a_m: Dim
    a_k: Dim
    a_r: tuple[Dim, ...]
    b_panel: Dim
    b_k: Dim
    b_r: tuple[Dim, ...]
    c_m: Dim
    lines: Dim
    a_line: Dim
    c_line: Dim
    accumulate: bool
    padded: bool
    group: int
    cache_resident: bool
    tile: simd.Tile
    guards: tuple[tuple[Dim, ...], ...] = ()
    fill: int = 0
    halves: bool = False
    paired: bool = False
    epilogue: Epilogue | None = None

    def elements_of_b(self, columns: int) -> int:
        """The elements of B, or the bytes of `halves`, that a group of some columns takes."""
        return columns * self.group // (2 if self.halves else 1)


def groups_are_words(p: Problem) -> bool:
    """Whether the groups of A have 32 bits, and all begin at multiples of 4 bytes if the first does."""
    strides = (*p.a_r, *([p.a_m] if p.m != 1 else []), *([p.a_line] if p.lines != 1 else []))
    size = p.dtype.itemsize
    return p.group * size == 4 and all(prove_divisible(stride * size, 4) for stride in strides)


class SymbolicArguments:
    """The symbolic dimensions used so far; each distinct one is the argument ``%d<i>``."""

    def __init__(self) -> None:
        self.dims: list[Dim] = []

    def __call__(self, e: Dim) -> str:
        """`e` as an i64 operand."""
        if isinstance(e, int):
            return str(e)
        if e not in self.dims:
            self.dims.append(e)
        return f"%d{self.dims.index(e)}"


def named(
    prefix: str, parameters: list[str], emitter: Emitter, isa: Isa, attributes: str = "nounwind"
) -> tuple[str, str]:
    """A function's name, which contains a hash of its text, and its definition."""
    text = f"({', '.join(parameters)}) {attributes} {{\n{emitter.text()}}}\n"
    digest = hashlib.blake2b(f"{isa.name} {text}".encode(), digest_size=8).hexdigest()
    name = f"{prefix}_{digest}"
    return name, f"define internal void @{name}{text}"


def _fit_half(rows: Dim, vectors: int, isa: Isa) -> bool:
    """Whether half a panel's width lets one tile hold all `rows`, while the full width needs several row
    blocks; more than two of them where vectors are computed in two steps.

    Each further row block reads the panel from the second-level cache again, which takes less time than slow
    vectors. Tiles one vector wide are excluded: they wait for the broadcast elements of A.
    """
    whole = tile_rows(isa, vectors) * (2 if isa.two_steps else 1)
    return isinstance(rows, int) and vectors % 4 == 0 and whole < rows <= tile_rows(isa, vectors // 2)


def registers_for(op: simd.BatchReduceGemm, isa: Isa) -> Isa:
    """The instruction set with the registers that compute a product. Where floats and integers have different
    ones, those of integers multiply whole groups in packed panels; other operands are read in parts of any
    size.
    """
    dtype = op.a.type.dtype
    if op.group > 1:
        return isa.for_type(dtype)
    return (isa.narrow if dtype in BYTES else isa).for_type(f32)


def problem_of(
    op: simd.BatchReduceGemm, isa: Isa, dtype: DType, c_dtype: DType, epilogue: Epilogue | None = None
) -> Problem:
    accumulator = accumulator_of(c_dtype)
    natural = tile_shape(isa, accumulator)[1] if op.group == 1 else tile_shape(isa, op.b.type.dtype, dtype)[1]
    nr, group = op.nr, op.group
    if group == 1 and not op.halves and prove_eq(op.b_panel, nr):  # Plain rows allow any panel width.
        nr = natural
    lanes = isa.lanes(accumulator.bits)
    while nr % lanes:
        lanes //= 2
    width = natural if nr > natural and nr % natural == 0 and tile_rows(isa, nr // lanes) < 4 else nr
    reductions, a_r, b_r, k = tuple(op.reductions), tuple(op.a_r), tuple(op.b_r), op.k
    # A reduction whose strides continue k's is merged into k, such as the columns of a convolution's kernel
    # over channels-last data.
    while reductions and prove_eq(a_r[-1], k * op.a_k) and prove_eq(b_r[-1] * group, k * op.b_k):
        if group > 1 and not (isinstance(k, int) and k % group == 0):
            break
        if any(guard[2 + len(reductions)] != 0 for guard in op.guard_rows):
            break
        k = k * reductions[-1]
        reductions, a_r, b_r = reductions[:-1], a_r[:-1], b_r[:-1]
    m, lines = op.m, op.lines
    c = epilogue.target if epilogue is not None else Place(op.c, op.c_offset, op.c_line, op.c_m)
    strides = [(op.a_line, op.a_m), (c.line, c.row)]
    strides += [(place.line, place.row) for _, place in epilogue.reads] if epilogue is not None else []
    if lines != 1 and not op.guards and all(prove_eq(line, m * row) for line, row in strides):
        m, lines = lines * m, 1
    tile = simd.Tile(*op.tile)
    if tile.columns and nr % tile.columns == 0 and tile.columns % lanes == 0:
        width = tile.columns
    elif group == 1 and op.padded and lines == 1 and _fit_half(m, width // lanes, isa):
        width //= 2
    kept = [i for i, e in enumerate(reductions) if e != 1]
    return Problem(
        dtype=dtype,
        b_dtype=op.b.type.dtype,
        c_dtype=c_dtype,
        lanes=lanes,
        width=width,
        splits=nr // width,
        m=m,
        n=op.n,
        k=k,
        reductions=tuple(reductions[i] for i in kept),
        a_m=op.a_m,
        a_k=op.a_k,
        a_r=tuple(a_r[i] for i in kept),
        b_panel=nr if prove_eq(op.b_panel, op.nr) and not op.halves else op.b_panel,
        b_k=op.b_k,
        b_r=tuple(b_r[i] for i in kept),
        c_m=c.row,
        lines=lines,
        a_line=op.a_line,
        c_line=c.line,
        accumulate=op.accumulate,
        padded=op.padded,
        group=group,
        cache_resident=op.cache_resident,
        tile=tile,
        guards=tuple((*guard[:3], *(guard[3 + i] for i in kept)) for guard in op.guard_rows),
        fill=op.fill,
        halves=op.halves,
        epilogue=epilogue,
    )
