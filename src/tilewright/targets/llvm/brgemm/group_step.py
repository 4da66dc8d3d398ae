"""One step of the vector tile over interleaved rows of B: pairs of bf16, pairs or quads of 8-bit integers.

Each lane holds the group of B's elements of one column; the broadcast word holds the group of A's elements of
one row. Every product sums over the group:

| operands | instruction | fallback |
|---|---|---|
| bf16 pairs | ``vdpbf16ps`` (AVX512-BF16), ``bfdot`` (Arm) | widened to float32: two multiply-adds |
| quads of one signed and one unsigned byte | ``vpdpbusd`` (AVX512-VNNI, AVX-VNNI) | pairs |
| quads of equal signedness, x86 | ``vpdpbssd``, ``vpdpbuud`` (AVX-VNNI-INT8) | signed: shifted; else pairs |
| quads of equal signedness, Arm | ``sdot``, ``udot`` (dotprod) | pairs |
| quads of one signed and one unsigned byte, Arm | ``usdot``, ``sudot`` (i8mm) | pairs |
| quads of bytes that are not both signed, Hexagon | ``vrmpybsu``, ``vrmpybu`` | pairs |
| quads of bytes, Hexagon's HVX | ``vrmpy`` of bytes | |
| quads of signed bytes, shifted | ``vpdpbusd`` of A + 128, minus ``vpdpbusd`` of 128 | |
| pairs of bytes, as 16 bits | ``vpmaddwd`` (x86), ``i32x4.dot_i16x8_s`` (wasm) | 32-bit multiply-adds |

Other processors multiply single bytes, and rows of B are not interleaved: Arm's, extended to 16 bits, by
instructions whose products have 32 bits (``smlal``, `widening_multiply`), others extended to 32 bits.

Matrix multiplications of Arm (``smmla``, ``bfmmla``) and long products of bytes (``smull``, ``sadalp``) are
in `block_tile`; `products` has the table of instructions.

All integer variants are exact modulo 2**32; the saturating ``vpmaddubsw`` is not used.
"""

from __future__ import annotations

from ....ir.types import DType, bf16, i8
from ..emitter import Emitter
from ..isa import Isa
from .problem import Problem
from .products import block_product, dot_product

SHIFT = str(-0x7F7F7F80)
"""The byte 128 in each of the four bytes of an i32; XOR with it adds 128 to every signed byte."""


def group_step(
    e: Emitter,
    isa: Isa,
    p: Problem,
    lanes: int,
    words: list[str],
    row: list[str],
    acc: list[str],
    *,
    splat: bool = False,
) -> list[str]:
    """The accumulators after ``acc[i, v] += words[i] . row[v]``.

    `words` are the groups of A as i32, narrower groups filled with zeros, or with `splat` vectors of copies
    of them (of bf16: as floats); `row` has vectors of raw groups of B. `acc` has one row more if A
    `is_shifted`.
    """
    if p.dtype is bf16:
        return _bf16_pairs(e, isa, lanes, words, row, acc, splat)
    if p.group == 4:
        return _quads(e, isa, p, lanes, words, row, acc, splat)
    return _byte_pairs(e, isa, p, lanes, words, row, acc)


def has_vector_products(isa: Isa, dtype: DType, b_dtype: DType, group: int) -> bool:
    """Whether one instruction multiplies whole groups of A and B, so that a group of A may be the lane of a
    vector.
    """
    lanes = isa.lanes(32)
    return _has_bf16_products(isa, lanes) if dtype is bf16 else group == 4 and has_quads(isa, dtype, b_dtype)


def byte_group(isa: Isa, a: DType, b: DType) -> int:
    """The number of rows of 8-bit operands that one instruction of `isa` multiplies."""
    if isa.byte_tiles:
        return 4
    if block := block_product(isa, a, b):
        return block.group
    if has_quads(isa, a, b):
        return 4
    return 2 if multiply_pairs(isa, isa.lanes(32)) else 1


def bf16_group(isa: Isa) -> int:
    """The number of rows of bf16 operands that one instruction of `isa` multiplies; 2 without one."""
    block = None if isa.tiles else block_product(isa, bf16, bf16)
    return block.group if block else 2


def widening_multiply(isa: Isa, lanes: int) -> str | None:
    """The intrinsic that multiplies two vectors of signed 16-bit integers to 32 bits; None without one, or
    for vectors of fewer than all lanes.
    """
    name = {"aarch64": "aarch64.neon.smull", "armv7": "arm.neon.vmulls"}.get(isa.triple.partition("-")[0])
    return f"llvm.{name}.v{lanes}i32" if name and lanes == isa.lanes(32) else None


def has_quads(isa: Isa, a: DType, b: DType) -> bool:
    """Whether `isa` has a dot product of quads of these types on whole vectors."""
    return dot_product(isa, a, b, isa.narrow.vector_bits) is not None


def is_shifted(isa: Isa, p: Problem) -> bool:
    """Whether signed A is multiplied as A + 128, which is unsigned.

    An additional tile row of the constant 128 then sums the excess of each result.
    """
    product = dot_product(isa, p.dtype, p.b_dtype, 32 * p.lanes) if p.group == 4 else None
    return product is not None and p.dtype is p.b_dtype and "vpdpbusd" in product.name


def _has_bf16_products(isa: Isa, lanes: int) -> bool:
    """Whether pairs of bf16 are multiplied by one instruction in vectors of `lanes` sums."""
    return (isa.has("avx512bf16") or (isa.lane_factors and isa.has("bf16"))) and lanes * 32 == isa.vector_bits


def _quads(
    e: Emitter,
    isa: Isa,
    p: Problem,
    lanes: int,
    words: list[str],
    row: list[str],
    acc: list[str],
    splat: bool,
) -> list[str]:
    if is_shifted(isa, p):
        words = [*(e.op(f"xor i32 {word}, {SHIFT}") for word in words), SHIFT]
    return quad_step(e, isa, p.dtype, p.b_dtype, lanes, words, row, acc, splat=splat)


def quad_step(
    e: Emitter,
    isa: Isa,
    a: DType,
    b: DType,
    lanes: int,
    words: list[str],
    row: list[str],
    acc: list[str],
    *,
    splat: bool = False,
) -> list[str]:
    """The accumulators after ``acc[i, v] += words[i] . row[v]`` by the dot product of quads.

    `words` are quads of type `a` as i32, with `splat` vectors of copies of them; `row` has vectors of bytes
    of type `b`.
    """
    sums = f"<{lanes} x i32>"
    result = []
    for i, word in enumerate(words):
        copies = word if splat else e.splat(sums, "i32", word)
        factor = e.op(f"bitcast {sums} {copies} to <{4 * lanes} x i8>")
        for v, x in enumerate(row):
            result.append(dot_of_quads(e, isa, a, b, lanes, factor, x, acc[i * len(row) + v]))
    return result


def dot_of_quads(e: Emitter, isa: Isa, a: DType, b: DType, lanes: int, x: str, y: str, total: str) -> str:
    """`total` plus the dot product of each lane's quads of the bytes `x` of type `a` and `y` of type `b`."""
    dot = dot_product(isa, a, b, 32 * lanes)
    if dot is None:
        return _dot_by_products(e, a, b, lanes, x, y, total)
    sums, quads = f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    first, second = (y, x) if dot.swapped else (x, y)
    name = dot.name.format(bits=32 * lanes)
    if not dot.register:
        return e.op(f"call {sums} @llvm.{name}({sums} {total}, {quads} {first}, {quads} {second})")
    operands = ((sums, total), (quads, first), (quads, second))
    given = ", ".join(
        f"{dot.register} {e.op(f'bitcast {kind} {value} to {dot.register}')}" for kind, value in operands
    )
    result = e.op(f"call {dot.register} @llvm.{name}({given})")
    return e.op(f"bitcast {dot.register} {result} to {sums}")


def _dot_by_products(e: Emitter, a: DType, b: DType, lanes: int, x: str, y: str, total: str) -> str:
    """`dot_of_quads` by single products."""
    quads, wide = f"<{4 * lanes} x i8>", f"<{4 * lanes} x i32>"
    factors = [e.op(f"{'sext' if t is i8 else 'zext'} {quads} {v} to {wide}") for t, v in ((a, x), (b, y))]
    products = e.op(f"mul {wide} {factors[0]}, {factors[1]}")
    for part in range(4):
        own = e.shuffle(wide, products, products, [4 * lane + part for lane in range(lanes)])
        total = e.op(f"add <{lanes} x i32> {total}, {own}")
    return total


def multiply_pairs(isa: Isa, lanes: int) -> str | None:
    """The intrinsic that multiplies signed 16-bit integers and adds the two products of each pair; None
    without one.
    """
    x86 = {
        16: ("avx512bw", "avx512.pmaddw.d.512"),
        8: ("avx2", "avx2.pmadd.wd"),
        4: ("sse4.2", "sse2.pmadd.wd"),
    }
    feature, name = x86.get(lanes, ("", ""))
    if feature and isa.has(feature):
        return f"llvm.x86.{name}"
    return "llvm.wasm.dot" if lanes == 4 and isa.has("simd128") else None


def _byte_pairs(
    e: Emitter, isa: Isa, p: Problem, lanes: int, words: list[str], row: list[str], acc: list[str]
) -> list[str]:
    sums, wide = f"<{lanes} x i32>", f"<{2 * lanes} x i16>"
    extend_a, extend_b = ("sext" if x is i8 else "zext" for x in (p.dtype, p.b_dtype))
    row = [e.op(f"{extend_b} <{2 * lanes} x i8> {x} to {wide}") for x in row]
    instruction = multiply_pairs(isa, lanes)
    halves = [] if instruction else [_halves(e, sums, e.op(f"bitcast {wide} {x} to {sums}")) for x in row]
    result = []
    for i, word in enumerate(words):
        pair = e.op(f"bitcast i16 {e.op(f'trunc i32 {word} to i16')} to <2 x i8>")
        both = e.op(f"bitcast <2 x i16> {e.op(f'{extend_a} <2 x i8> {pair} to <2 x i16>')} to i32")
        factor = e.splat(sums, "i32", both)
        if instruction:
            factor = e.op(f"bitcast {sums} {factor} to {wide}")
        else:
            low, high = _halves(e, sums, factor)
        for v, x in enumerate(row):
            total = acc[i * len(row) + v]
            if instruction:
                products = [e.op(f"call {sums} @{instruction}({wide} {factor}, {wide} {x})")]
            else:
                products = [e.op(f"mul {sums} {f}, {h}") for f, h in zip((low, high), halves[v], strict=True)]
            for product in products:
                total = e.op(f"add {sums} {total}, {product}")
            result.append(total)
    return result


def _halves(e: Emitter, kind: str, x: str) -> tuple[str, str]:
    """The lower and the upper 16 bits of each lane, sign-extended."""
    sixteen = e.splat(kind, "i32", "16")
    return e.op(f"ashr {kind} {e.op(f'shl {kind} {x}, {sixteen}')}, {sixteen}"), e.op(
        f"ashr {kind} {x}, {sixteen}"
    )


def _bf16_pairs(
    e: Emitter, isa: Isa, lanes: int, words: list[str], row: list[str], acc: list[str], splat: bool
) -> list[str]:
    sums, whole, pairs = f"<{lanes} x float>", f"<{lanes} x i32>", f"<{2 * lanes} x bfloat>"
    dots = _has_bf16_products(isa, lanes)
    if not dots:  # A bf16 is the upper half of a float32.
        raw = [e.op(f"bitcast {pairs} {x} to {whole}") for x in row]
        sixteen, upper = e.splat(whole, "i32", "16"), e.splat(whole, "i32", "-65536")
        low = [e.op(f"bitcast {whole} {e.op(f'shl {whole} {x}, {sixteen}')} to {sums}") for x in raw]
        high = [e.op(f"bitcast {whole} {e.op(f'and {whole} {x}, {upper}')} to {sums}") for x in raw]
    result = []
    for i, word in enumerate(words):
        if dots:
            copies = f"{sums} {word}" if splat else f"{whole} {e.splat(whole, 'i32', word)}"
            factor = e.op(f"bitcast {copies} to {pairs}")
            name = f"x86.avx512bf16.dpbf16ps.{isa.vector_bits}"
            if isa.lane_factors:  # AArch64, whose instruction takes the lane from its last operand
                name = "aarch64.neon.bfdot.v4f32.v8bf16"
            for v, x in enumerate(row):
                first, second = (x, factor) if isa.lane_factors else (factor, x)
                total = acc[i * len(row) + v]
                operands = f"{sums} {total}, {pairs} {first}, {pairs} {second}"
                result.append(e.op(f"call {sums} @llvm.{name}({operands})"))
            continue
        first = e.op(f"bitcast i32 {e.op(f'shl i32 {word}, 16')} to float")
        second = e.op(f"bitcast i32 {e.op(f'and i32 {word}, -65536')} to float")
        for v in range(len(row)):
            total = e.fma(sums, e.splat(sums, "float", first), low[v], acc[i * len(row) + v], isa.fma)
            result.append(e.fma(sums, e.splat(sums, "float", second), high[v], total, isa.fma))
    return result


__all__ = [
    "bf16_group",
    "byte_group",
    "dot_of_quads",
    "group_step",
    "has_vector_products",
    "has_quads",
    "is_shifted",
    "multiply_pairs",
    "quad_step",
    "widening_multiply",
]
