"""What the drivers and tiles of `simd.brgemm` share: the simplified problem, shapes of register tiles, names and arguments of functions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ....dialects import simd
from ....ir.symbolic import Dim, prove_eq
from ....ir.types import DType, bf16, f16, f32, f64, i8, i32, u8
from ..emitter import Emitter
from ..isa import Isa

LLVM_TYPES = {f16: "half", bf16: "bfloat", f32: "float", f64: "double", i8: "i8", u8: "i8", i32: "i32"}
BYTES = (i8, u8)
MIN_CHAINS = 8
"""Independent accumulators that keep two multiply-add pipes of latency four busy."""
MAX_ROWS = 14


def accumulator_of(c_dtype: DType) -> DType:
    """The type in which a result of `c_dtype` is summed."""
    return c_dtype if c_dtype in (f64, i32) else f32


def tile_rows(isa: Isa, vectors: int) -> int:
    """How many rows of `vectors` vectors fit the registers, beside a row of B, a broadcast element and, without FMA, products."""
    spare = vectors + (1 if isa.fma else 3)
    return max(1, min(MAX_ROWS, (isa.vector_registers - spare) // vectors))


def tile_shape(isa: Isa, dtype: DType) -> tuple[int, int]:
    """The preferred register tile ``(mr, nr)`` for factors of `dtype`: rows, and columns of a panel of B.

    Few rows and wide panels: A is read where it lies, and many rows a power of two apart would fall into one set of the first cache.
    So 6 x 4 vectors with 32 registers, 6 x 2 with 16.
    """
    if (dtype is bf16 and isa.tiles) or (dtype in BYTES and isa.byte_tiles):
        return 32, 32
    lanes = isa.lanes(max(dtype.bits, 32))
    vectors = 4 if isa.vector_registers >= 32 else 2
    return tile_rows(isa, vectors), vectors * lanes


@dataclass(frozen=True)
class Problem:
    """A brgemm after simplification: `width` columns (a multiple of `lanes`) are computed at a time, `splits` such in a panel."""

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
    near: bool


class Arguments:
    """Symbolic dims seen so far; each distinct one is the argument ``%d<i>``."""

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
    """A function's name, the hash of all it says, and its text."""
    text = f"({', '.join(parameters)}) {attributes} {{\n{emitter.text()}}}\n"
    digest = hashlib.blake2b(f"{isa.name} {text}".encode(), digest_size=8).hexdigest()
    name = f"{prefix}_{digest}"
    return name, f"define internal void @{name}{text}"


def _fit_half(rows: Dim, vectors: int, isa: Isa) -> bool:
    """Whether so many rows meet half a panel all at once, but a whole one only in several blocks, for each of which it comes from the
    second-level cache again. (Single vectors would wait for the broadcast elements.)"""
    return isinstance(rows, int) and vectors % 4 == 0 and tile_rows(isa, vectors) < rows <= tile_rows(isa, vectors // 2)


def problem_of(op: simd.BatchReduceGemm, isa: Isa, dtype: DType, c_dtype: DType) -> Problem:
    accumulator = accumulator_of(c_dtype)
    _, natural = tile_shape(isa, accumulator if op.group == 1 else dtype)
    nr, group = op.nr, op.group
    if group == 1 and prove_eq(op.b_panel, nr):  # plain rows: any panel width will do
        nr = natural
    lanes = isa.lanes(accumulator.bits)
    while nr % lanes:
        lanes //= 2
    width = natural if nr > natural and nr % natural == 0 and tile_rows(isa, nr // lanes) < 4 else nr
    reductions, a_r, b_r, k = tuple(op.reductions), tuple(op.a_r), tuple(op.b_r), op.k
    # A reduction that goes on where k ends is more of k: the columns of a convolution's kernel over channels-last data.
    while reductions and prove_eq(a_r[-1], k * op.a_k) and prove_eq(b_r[-1] * group, k * op.b_k):
        if group > 1 and not (isinstance(k, int) and k % group == 0):
            break
        k = k * reductions[-1]
        reductions, a_r, b_r = reductions[:-1], a_r[:-1], b_r[:-1]
    m, lines = op.m, op.lines
    if lines != 1 and prove_eq(op.a_line, m * op.a_m) and prove_eq(op.c_line, m * op.c_m):
        m, lines = lines * m, 1
    if group == 1 and op.padded and lines == 1 and _fit_half(m, width // lanes, isa):
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
        b_panel=nr if prove_eq(op.b_panel, op.nr) else op.b_panel,
        b_k=op.b_k,
        b_r=tuple(b_r[i] for i in kept),
        c_m=op.c_m,
        lines=lines,
        a_line=op.a_line,
        c_line=op.c_line,
        accumulate=op.accumulate,
        padded=op.padded,
        group=group,
        near=op.near,
    )
