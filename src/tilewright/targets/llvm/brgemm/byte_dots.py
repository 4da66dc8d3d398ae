"""Dot products of int8 activations with unsigned quantized values, by the instructions that a machine has.

Each 32-bit lane of a vector of quantized values holds a quad of one column; a word holds the quad of one row.
All variants are exact:

| quantized values | machine | instructions for a quad |
|---|---|---|
| any | AVX512-VNNI, AVX-VNNI | ``vpdpbusd`` |
| any | AArch64 with i8mm | ``usdot`` |
| signed bytes | AArch64 with dot products | ``sdot`` |
| signed, up to 6 bits | other Arm with NEON | two ``smlal``; for 8 quads (6 bits: 2) ``addp``, ``sadalp`` |
| signed, more | the same | two ``smull``, two ``sadalp`` |
| up to 6 bits | AVX-512, AVX2, SSSE3 | ``vpmaddubsw``, an addition; for 8 quads (6 bits: 2) ``vpmaddwd`` |
| up to 7 bits | wasm with relaxed SIMD | ``i32x4.relaxed_dot_i8x16_i7x16_add_s`` |
| more | the same, wasm | even and odd bytes as 16 bits: two ``vpmaddwd``, two additions |

``vpmaddubsw`` saturates at 16 bits. Eight quads of 4-bit values stay below: 8 * 2 * 15 * 128 = 30720, and
two of 6 bits: 2 * 2 * 63 * 128 = 32256. The
relaxed product is exact where the unsigned factor has at most 7 bits. Engines compile it to one instruction
on Arm (``sdot``) and on x86 with AVX-VNNI, and to three elsewhere.
"""

from __future__ import annotations

from ....ir.types import i8, u8
from ..emitter import Emitter
from ..isa import Isa
from .group_step import has_quads, multiply_pairs, quad_step
from .products import add_neighbours, long_product

QUADS_IN_16_BITS = 8
"""Most quads whose products are summed in 16 bits. Fewer add more sums; values of 4 bits allow no more."""
NARROW = 63
"""The largest value of which the products of two quads fit 16 bits."""


def has_byte_dots(isa: Isa) -> bool:
    """Whether `isa` has instructions for these dot products in whole vectors."""
    quads = has_quads(isa, i8, u8) or multiplies_signed(isa)
    return quads or multiply_pairs(isa, isa.lanes(32)) is not None


def multiplies_signed(isa: Isa) -> bool:
    """Whether both factors of these dot products are signed, so that values of 128 and more do not fit."""
    signed = has_quads(isa, i8, i8) or long_product(isa, i8, i8) is not None
    return signed and not has_quads(isa, i8, u8)


class ByteDots:
    """Writes dot products of quads in vectors of `lanes` 32-bit integers, of bytes from 0 to `largest`, or,
    if the machine `multiplies_signed`, of signed ones of at most that magnitude.
    """

    def __init__(self, e: Emitter, isa: Isa, lanes: int, largest: int) -> None:
        self.e, self.isa, self.lanes = e, isa, lanes
        self.sums, self.pairs, self.bytes = (f"<{n * lanes} x i{32 // n}>" for n in (1, 2, 4))
        self.relaxed = largest < 128 and lanes == 4 and isa.has("relaxed-simd")
        self.right = i8 if multiplies_signed(isa) else u8
        self.by_quads = has_quads(isa, i8, self.right)
        self.by_lanes = self.by_quads and isa.lane_factors
        narrow = largest <= NARROW and not (self.by_quads or self.relaxed)
        self.by_bytes = _multiply_bytes(isa, lanes) if narrow else None
        self.long = None if self.by_quads else long_product(isa, i8, i8)
        self.quads_in_16_bits = min(QUADS_IN_16_BITS, 32767 // (2 * 128 * max(largest, 1)))
        # Sums of two products do not fit 16 bits: sums of pairs have 32.
        self.wide = self.long is not None and self.quads_in_16_bits < 2
        self._kept: list[list[str]] = []
        self._quads = 0

    @property
    def registers(self) -> int:
        """The number of vector registers that hold one unfinished sum."""
        return 3 if self.long is not None else 1 if self.by_bytes is None else 2

    def multiply(self, words: list[str], row: list[str], acc: list[str]) -> list[str]:
        """The accumulators after ``acc[i, v] += words[i] . row[v]``; complete only after `finish`.

        `words` are quads of rows as i32, `row` has vectors of bytes.
        """
        e = self.e
        if self.by_lanes:
            copies = [self._in_lane(word) for word in words]
            return quad_step(e, self.isa, i8, self.right, self.lanes, copies, row, acc, splat=True)
        if self.by_quads:
            return quad_step(e, self.isa, i8, self.right, self.lanes, words, row, acc)
        factors = [e.splat(self.sums, "i32", word) for word in words]
        if self.long is not None:  # LLVM would copy halves of the other operand to multiply half of a vector
            factors = [self._in_register(factor) for factor in factors]
        if self.relaxed:
            result = []
            for i, factor in enumerate(factors):
                quads = self._cast(factor, self.bytes)
                for v, x in enumerate(row):
                    total = self._add_quads(quads, x, acc[i * len(row) + v])
                    result.append(e.completed(self.sums, total))
            return result
        if self.by_bytes is None and self.long is None:
            return self._by_pairs(factors, row, acc)
        products = [
            self._multiply_bytes(x, self._cast(factor, self.bytes)) for factor in factors for x in row
        ]
        if self.long is not None and self.wide:
            products = [
                [add_neighbours(e, self.long, x, y) for x, y in zip(*both, strict=True)]
                for both in zip(self._kept or [["zeroinitializer"] * 2] * len(acc), products, strict=True)
            ]
        elif self._kept:
            products = [
                [e.op(f"add {self.pairs} {x}, {y}") for x, y in zip(*both, strict=True)]
                for both in zip(self._kept, products, strict=True)
            ]
        self._kept, self._quads = products, self._quads + 1
        return self.finish(acc) if self._quads == self.quads_in_16_bits and not self.wide else acc

    def finish(self, acc: list[str]) -> list[str]:
        """The accumulators with all sums that are still kept in 16 bits."""
        kept, self._kept, self._quads = self._kept, [], 0
        if not kept:
            return acc
        if self.long is not None:
            return [self._add_halves(x, total) for x, total in zip(kept, acc, strict=True)]
        ones = self.e.splat(self.pairs, "i16", "1")
        return [self._add_pairs(x, ones, total) for (x,), total in zip(kept, acc, strict=True)]

    def _in_lane(self, word: str) -> str:
        """A vector of copies of `word` that the instruction takes from the first lane of a register.

        LLVM would load all lanes (``ld1r``), which takes one of Neoverse N1's two vector units, too, and has
        no constant in its address.
        """
        e = self.e
        one = self._in_register(e.op(f"insertelement {self.sums} poison, i32 {word}, i64 0"))
        return e.shuffle(self.sums, one, one, [0] * self.lanes)

    def _in_register(self, value: str) -> str:
        """`value`, of which LLVM does not know how it is calculated."""
        return self.e.op(f'call {self.sums} asm "", "=w,0"({self.sums} {value}) nounwind memory(none)')

    def _cast(self, value: str, kind: str) -> str:
        return self.e.op(f"bitcast {self.sums} {value} to {kind}")

    def _multiply_bytes(self, x: str, signed: str) -> list[str]:
        """The sums of the two products of each pair of bytes, in 16 bits; by long products the products of
        the lower and of the upper half.
        """
        e = self.e
        if self.long is None:
            return [e.op(f"call {self.pairs} @{self.by_bytes}({self.bytes} {x}, {self.bytes} {signed})")]
        halves = [[e.shuffle(self.bytes, y, y, [*range(k, k + 8)]) for y in (x, signed)] for k in (0, 8)]
        return [
            e.op(f"call {self.pairs} @llvm.{self.long.name}(<8 x i8> {a}, <8 x i8> {b})") for a, b in halves
        ]

    def _add_halves(self, kept: list[str], total: str) -> str:
        """`total` plus the sums of the four products of each quad, from those of long products."""
        e, (low, high) = self.e, kept
        kind, count = (self.sums, 8) if self.wide else (self.pairs, 16)
        even, odd = (e.shuffle(kind, low, high, [*range(k, count, 2)]) for k in (0, 1))
        sums = e.op(f"add {kind} {even}, {odd}")
        if self.wide:
            return e.op(f"add {kind} {total}, {sums}")
        assert self.long is not None
        return add_neighbours(e, self.long, total, sums)

    def _add_quads(self, signed: str, unsigned: str, total: str) -> str:
        """`total` plus the sums of the four products of each quad, by WebAssembly's relaxed product."""
        arguments = f"({self.bytes} {signed}, {self.bytes} {unsigned}, {self.sums} {total})"
        return self.e.op(f"call {self.sums} @llvm.wasm.relaxed.dot.i8x16.i7x16.add.signed{arguments}")

    def _add_pairs(self, x: str, y: str, total: str) -> str:
        """`total` plus the sums of the two products of each pair of 16-bit integers."""
        call = f"call {self.sums} @{multiply_pairs(self.isa, self.lanes)}"
        products = self.e.op(f"{call}({self.pairs} {x}, {self.pairs} {y})")
        return self.e.op(f"add {self.sums} {total}, {products}")

    def _halves(self, x: str, shift: str) -> tuple[str, str]:
        """The even and the odd bytes, extended to 16 bits by the right shift `shift`."""
        e = self.e
        eight = e.splat(self.pairs, "i16", "8")
        odd = e.op(f"{shift} {self.pairs} {x}, {eight}")
        return e.op(f"{shift} {self.pairs} {e.op(f'shl {self.pairs} {x}, {eight}')}, {eight}"), odd

    def _by_pairs(self, factors: list[str], row: list[str], acc: list[str]) -> list[str]:
        e = self.e
        columns = [self._halves(e.op(f"bitcast {self.bytes} {x} to {self.pairs}"), "lshr") for x in row]
        result = []
        for i, factor in enumerate(factors):
            halves = self._halves(self._cast(factor, self.pairs), "ashr")
            for v, column in enumerate(columns):
                total = acc[i * len(row) + v]
                for x, y in zip(column, halves, strict=True):
                    total = self._add_pairs(x, y, total)
                result.append(total)
        return result


def _multiply_bytes(isa: Isa, lanes: int) -> str | None:
    """The intrinsic that multiplies unsigned by signed bytes and adds the two products of each pair in 16
    bits; None without one.
    """
    x86 = {
        16: ("avx512bw", "avx512.pmaddubs.w.512"),
        8: ("avx2", "avx2.pmadd.ub.sw"),
        4: ("ssse3", "ssse3.pmadd.ub.sw.128"),
    }
    feature, name = x86.get(lanes, ("", ""))
    return f"llvm.x86.{name}" if feature and isa.has(feature) else None


__all__ = ["ByteDots", "has_byte_dots", "multiplies_signed"]
