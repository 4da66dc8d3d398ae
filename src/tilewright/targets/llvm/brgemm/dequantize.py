"""`simd.dequantize` as LLVM IR text: quantized weights times their scales, as pairs of bf16."""

from __future__ import annotations

from ....dialects import simd
from ....ir.types import bf16
from ..emitter import Carried, Emitter
from ..isa import Isa
from .problem import named
from .quantized_matrix import load_scales


def dequantize_function(op: simd.Dequantize, isa: Isa) -> tuple[str, dict[str, str]]:
    """The name of the function, and ``{name: definition}``.

    ``void @name(ptr %b, ptr %b_scales, ptr %y)`` takes pointers to the beginning of a panel and of its
    scales.

    Raises:
        NotImplementedError: a panel does not consist of whole vectors, or the result is not bf16.
    """
    lanes = next((n for n in (isa.lanes(32), isa.lanes(32) // 2, 4) if n and op.nr % n == 0), 0)
    if not lanes or op.y.type.dtype is not bf16:
        raise NotImplementedError(f"simd.dequantize of panels of {op.nr} columns on {isa.name}")
    vectors, dtype = op.nr // lanes, op.b_scales.type.dtype
    e = Emitter()
    numbers, floats = f"<{lanes} x i32>", f"<{lanes} x float>"
    by_table = op.bits == 4 and isa.avx512 and lanes == 16
    table = f"<{', '.join(f'float {k - 8:.1f}' for k in range(16))}>"
    low, offset = (1 << op.bits) - 1, 1 << (op.bits - 1)

    def weights(x: str, first: int, scale: str) -> list[str]:
        """Four weights from each lane's 32 bits, starting at bit `first`, times the scale."""
        products = []
        for byte in range(4):
            shift = 8 * byte + first
            code = e.op(f"lshr {numbers} {x}, splat (i32 {shift})") if shift else x
            if by_table:  # The table lookup uses only the lowest four bits of an index.
                number = e.op(
                    f"call {floats} @llvm.x86.avx512.permvar.sf.512({floats} {table}, {numbers} {code})"
                )
            else:
                code = e.op(f"and {numbers} {code}, splat (i32 {low})")
                number = e.op(
                    f"sitofp {numbers} {e.op(f'sub {numbers} {code}, splat (i32 {offset})')} to {floats}"
                )
            products.append(e.op(f"fmul {floats} {number}, {scale}"))
        return products

    def store(even: str, odd: str, where: str) -> None:
        """Store two adjacent rows as pairs, rounded to nearest even."""
        if isa.has("avx512bf16") and lanes == 16:
            both = e.op(
                f"call <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512({floats} {odd}, {floats} {even})"
            )
            pairs = e.shuffle("<32 x bfloat>", both, both, [k for i in range(16) for k in (i, i + 16)])
            e.line(f"store <32 x bfloat> {pairs}, ptr {where}, align 64")
            return
        rounded = []
        for x in (even, odd):
            bits = e.op(f"bitcast {floats} {x} to {numbers}")
            last = e.op(f"and {numbers} {e.op(f'lshr {numbers} {bits}, splat (i32 16)')}, splat (i32 1)")
            rounded.append(e.op(f"add {numbers} {e.op(f'add {numbers} {bits}, splat (i32 32767)')}, {last}"))
        below = e.op(f"lshr {numbers} {rounded[0]}, splat (i32 16)")
        above = e.op(f"and {numbers} {rounded[1]}, splat (i32 -65536)")
        e.line(f"store {numbers} {e.op(f'or {numbers} {below}, {above}')}, ptr {where}, align {4 * lanes}")

    # One step is a vector of bytes per column: eight weights of 4 bits, whose upper four belong 16 rows
    # later, or four weights of 8 bits.
    steps = 4 if op.bits == 4 else 1
    taken = 32 if op.bits == 4 else 4

    def group(g: str, _: Carried) -> list[str]:
        scales = []
        for v in range(vectors):
            where = e.at("%b_scales", e.add(e.mul(g, str(op.nr)), str(v * lanes)), dtype.itemsize)
            scales.append(load_scales(e, isa, where, dtype, lanes))

        def chunk(i: str, _: Carried) -> list[str]:
            first = e.add(e.mul(g, str(op.size // taken)), i)
            b = e.at("%b", e.mul(first, str(steps * op.nr * 4)), 1)
            y = e.at("%y", e.mul(first, str(taken * op.nr)), 2)
            for step in range(steps):
                for v in range(vectors):
                    x = e.load(numbers, e.at(b, str((step * op.nr + v * lanes) * 4), 1), 4 * lanes)
                    for half in range(8 // op.bits):
                        products = weights(x, 4 * half, scales[v])
                        for pair in range(2):
                            row = half * 8 + step * 2 + pair  # a row of pairs
                            where = e.at(y, str((row * op.nr + v * lanes) * 2), 2)
                            store(products[2 * pair], products[2 * pair + 1], where)
            return []

        e.loop("0", str(op.size // taken), "1", [], chunk)
        return []

    e.loop("0", str(op.groups), "1", [], group)
    name, text = named("dequantize", ["ptr %b", "ptr %b_scales", "ptr %y"], e, isa, "noinline nounwind")
    return name, {name: text}


__all__ = ["dequantize_function"]
